"""`hyperfuse estimate` and `hyperfuse methods`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from hyperfuse.estimation.observation import Observation


def estimate(
    hsi: Annotated[Path, typer.Argument(metavar="HSI", help="The coarse image: many narrow bands, big pixels.")],
    msi: Annotated[Path, typer.Argument(metavar="MSI", help="The fine image of the same place: few bands, small pixels.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, the whole response included.")] = False,
) -> None:
    """Find out from a pair alone how it was observed: shift, point spread, response, noise.

    [dim]hyperfuse estimate enmap.tif sentinel2.tif[/dim]
    """
    import json

    from rich.console import Console

    from hyperfuse.cubes.files import open_cube
    from hyperfuse.prediction.aligned_pair import align_pair
    from hyperfuse.prediction.fuse_pair import ObservationHints, observe

    hsi_cube = open_cube(hsi)
    observation = observe(align_pair(hsi_cube, open_cube(msi)), hsi_cube, ObservationHints())
    if as_json:
        typer.echo(json.dumps(observation.summary(), indent=2))
        return
    Console(soft_wrap=True).print(_observation_table(observation))


def methods() -> None:
    """List the methods, one line and the reference each: closed forms, and the one that ships with weights."""
    from hyperfuse.methods.catalogue import AUTO, METHODS

    for name, method in METHODS.items():
        typer.echo(f"{name:<11} {method.line}\n{'':<11} [{method.reference}]")
    typer.echo(f"{AUTO:<11} the one that gives the hsi back best when the pair is degraded once more")


def _observation_table(observation: Observation) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    rows = {
        "scale": "{:.4g} {:.4g}".format(*observation.scale),
        "shift": "{:+.3f} {:+.3f} fine pixels down, right of the georeference".format(*observation.misregistration),
        "point spread": "{:.3f} {:.3f} fine pixels (sigma)".format(*observation.sigma),
        "hsi noise": f"{float(observation.hsi_noise.median()):.3g} (median over bands)",
        "msi noise": " ".join(f"{float(level):.3g}" for level in observation.msi_noise),
        "msi offset": " ".join(f"{float(level):.3g}" for level in observation.offset),
        "confidence": f"{observation.confidence:.2f}",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    for index, row in enumerate(observation.response):
        strongest = int(row.argmax())
        table.add_row(f"response {index + 1}", f"peak at hsi band {strongest + 1}, sum {float(row.sum()):.4g}")
    for note in observation.notes:
        table.add_row("note", note)
    return table
