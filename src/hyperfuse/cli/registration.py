"""`hyperfuse register`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hyperfuse.prediction.registration_report import RegistrationReport


def register(
    hsi: Annotated[Path, typer.Argument(metavar="HSI", help="The coarse image: many narrow bands, big pixels.")],
    msi: Annotated[Path, typer.Argument(metavar="MSI", help="The fine image of the same place: few bands, small pixels.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PNG", help="Draw the offsets as arrows over the MSI.")
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Clouds in the MSI: not used where this raster, on any grid, is not 0.")
    ] = None,
    hsi_mask: Annotated[Path | None, typer.Option(metavar="FILE", help="The same for the HSI.")] = None,
    hsi_variable: Annotated[str | None, typer.Option(help="Which array of an HSI file that holds several.")] = None,
    msi_variable: Annotated[str | None, typer.Option(help="Which array of an MSI file that holds several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, the field included.")] = False,
) -> None:
    """How far the HSI looks beyond its georeference, as a whole and from place to place.

    [dim]hyperfuse register enmap.tif sentinel2.tif -o offsets.png[/dim]
    """
    import json

    from hyperfuse.cubes.files import open_cube
    from hyperfuse.cubes.publishing import refuse_unwritable
    from hyperfuse.errors import OptionError
    from hyperfuse.prediction.registration_report import report_registration
    from hyperfuse.reporting.offset_figure import offset_figure

    if output is not None:
        if output.suffix.lower() != ".png":
            raise OptionError(f"picture {output.name}", "a name that ends in .png")
        refuse_unwritable(output, overwrite=True)
    masks = [None if path is None else open_cube(path) for path in (mask, hsi_mask)]
    report = report_registration(open_cube(hsi, hsi_variable), open_cube(msi, msi_variable), mask=masks[0], hsi_mask=masks[1])
    if as_json:
        typer.echo(json.dumps(report.summary(), indent=2))
    else:
        for label, text in _lines(report).items():
            typer.echo(f"{label:<8} {text}")
    if output is not None:
        offset_figure(output, report, f"{hsi.name} on {msi.name}")
        typer.echo(str(output), err=as_json)


def _lines(report: RegistrationReport) -> dict[str, str]:
    from hyperfuse.prediction.registration_report import verdict

    whole, field = report.whole, report.field
    metres = report.in_metres(whole.offset)
    on_earth = "" if metres is None else f" ({metres[0]:+.2f} {metres[1]:+.2f} m)"
    local = "not estimated: too few parts of the scene have texture that both images show"
    if any(field.used):
        local = (
            f"varies by {field.variation:.2f}, at most {field.largest:.2f} fine pixels, standard error {field.error:.2f}, "
            f"confidence {field.confidence:.2f}, {sum(field.used)} of {len(field.windows)} windows agree"
        )
    return {
        "shift": f"{whole.offset[0]:+.2f} {whole.offset[1]:+.2f} fine pixels{on_earth} down, right of the georeference; "
        f"{whole.coarse_pixels:.2f} HSI pixels; confidence {whole.confidence:.2f}",
        "local": local,
        "verdict": verdict(report),
    }
