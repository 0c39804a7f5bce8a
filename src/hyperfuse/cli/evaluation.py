"""`hyperfuse evaluate`: how good a fused cube is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    fused: Annotated[Path, typer.Argument(help="The fused cube.", show_default=False)],
    reference: Annotated[Path, typer.Argument(help="What it should be: the same bands on the same grid.", show_default=False)],
    scale: Annotated[
        float | None,
        typer.Option("--scale", help="Fine over coarse, for ERGAS; taken from FUSED where it says so.", show_default=False),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            "--peak",
            help="Peak of the signal for PSNR and SSIM; 1 for a reference within 0 to 1, else the reference's maximum.",
            show_default=False,
        ),
    ] = None,
    per_band: Annotated[bool, typer.Option("--per-band", help="Also show every band (JSON always holds them).")] = False,
    q2n: Annotated[bool, typer.Option("--q2n", help="Also compute Q2n, the hypercomplex quality index.")] = False,
    fused_variable: Annotated[str | None, typer.Option(help="Which array of a fused file that holds several.")] = None,
    reference_variable: Annotated[str | None, typer.Option(help="Which array of a reference file that holds several.")] = None,
    fused_band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="Which axis of an unlabelled fused array holds the bands.")
    ] = None,
    reference_band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="Which axis of an unlabelled reference array holds the bands.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a fused cube against its reference: PSNR, SAM, ERGAS, SSIM, UQI, RMSE."""
    import json

    from rich.console import Console

    from hyperfuse.cubes.files import open_cube
    from hyperfuse.quality.evaluation import evaluate as evaluate_cubes
    from hyperfuse.reporting.tables import band_table, evaluation_table

    fused_cube = open_cube(fused, fused_variable, fused_band_axis)
    reference_cube = open_cube(reference, reference_variable, reference_band_axis)
    scores = evaluate_cubes(fused_cube, reference_cube, scale, peak, with_q2n=q2n)
    if as_json:
        typer.echo(json.dumps(scores.as_dict(), indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    console.print(evaluation_table(scores))
    if per_band:
        console.print(band_table(scores))
    for note in scores.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
