"""`hyperfuse evaluate`, `hyperfuse report` and `hyperfuse view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hyperfuse.cli.options import Json, command, print_json
from hyperfuse.config import INPUTS, EvaluateConfig, PairInputConfig, ReportConfig
from hyperfuse.errors import OptionError


def _variable(role: str) -> Any:
    return typer.Option(help=f"Which array of {role} that holds several.", rich_help_panel=INPUTS)


def _band_axis(role: str) -> Any:
    help_text = f"Which axis of {role} without labels holds the bands."
    return typer.Option(metavar="0|1|2", help=help_text, rich_help_panel=INPUTS)


FusedVariable = Annotated[str | None, _variable("a fused file")]
FusedBandAxis = Annotated[int | None, _band_axis("a fused array")]
ReferenceVariable = Annotated[str | None, _variable("a reference file")]
ReferenceBandAxis = Annotated[int | None, _band_axis("a reference array")]


@command(EvaluateConfig)
def evaluate(
    fused: Annotated[Path, typer.Argument(help="The fused cube.")],
    reference: Annotated[Path, typer.Argument(help="The true image: the same bands on the same grid.")],
    config: EvaluateConfig,
    per_band: Annotated[
        bool, typer.Option("--per-band", help="Also show every band (JSON always contains them).")
    ] = False,
    fused_variable: FusedVariable = None,
    reference_variable: ReferenceVariable = None,
    fused_band_axis: FusedBandAxis = None,
    reference_band_axis: ReferenceBandAxis = None,
    as_json: Json = False,
) -> None:
    """Score a fused cube against its reference: PSNR, SAM, ERGAS, SSIM, UIQI, RMSE."""
    from rich.console import Console

    from hyperfuse.io.files import open_cube
    from hyperfuse.metrics.evaluation import evaluate as evaluate_cubes
    from hyperfuse.reporting.tables import band_table, evaluation_table

    fused_cube = open_cube(fused, fused_variable, fused_band_axis)
    scores = evaluate_cubes(fused_cube, open_cube(reference, reference_variable, reference_band_axis), config=config)
    if as_json:
        print_json(scores.as_dict())
        return
    console = Console(highlight=False)
    console.print(evaluation_table(scores))
    if per_band:
        console.print(band_table(scores))
    for note in scores.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


@command(ReportConfig)
def report(
    fused: Annotated[Path, typer.Argument(metavar="FUSED", help="The fused image.")],
    hsi: Annotated[Path, typer.Option("--hsi", metavar="HSI", help="The coarse image that it was made from.")],
    msi: Annotated[Path, typer.Option("--msi", metavar="MSI", help="The fine image that it was made from.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PAGE.html", help="The page to write.")],
    config: ReportConfig,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="R", help="The true image, if known: same bands, same grid.")
    ] = None,
    fused_variable: FusedVariable = None,
    hsi_variable: Annotated[str | None, _variable("an HSI file")] = None,
    msi_variable: Annotated[str | None, _variable("an MSI file")] = None,
    reference_variable: ReferenceVariable = None,
    fused_band_axis: FusedBandAxis = None,
    hsi_band_axis: Annotated[int | None, _band_axis("an HSI array")] = None,
    msi_band_axis: Annotated[int | None, _band_axis("an MSI array")] = None,
    reference_band_axis: ReferenceBandAxis = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the scores as JSON.")] = False,
) -> None:
    """Assess a fused image on one page: pictures, close-ups, spectra, maps, scores and what they mean.

    Without a reference it is assessed by its consistency with the inputs, by indices (QNR, HQNR), and at reduced
    resolution. The page is one file, to be opened in any browser, mailed or printed. See docs/report.md.

    [dim]hyperfuse report fused.tif --hsi enmap.tif --msi sentinel2.tif -o report.html[/dim]
    """
    from hyperfuse.reporting.report import InputFile
    from hyperfuse.reporting.report import report as write_report

    quality = write_report(
        InputFile(fused, fused_variable, fused_band_axis),
        output,
        hsi=InputFile(hsi, hsi_variable, hsi_band_axis),
        msi=InputFile(msi, msi_variable, msi_band_axis),
        reference=None if reference is None else InputFile(reference, reference_variable, reference_band_axis),
        config=config,
    )
    if as_json:
        print_json(quality.as_dict())
    else:
        typer.echo(str(output))


@command(PairInputConfig)
def view(
    config: PairInputConfig,
    fused: Annotated[
        Path | None,
        typer.Argument(metavar="FUSED", help="The cube to look at; without one the page begins with fusing."),
    ] = None,
    hsi: Annotated[Path | None, typer.Option(help="The HSI that it was fused from.")] = None,
    msi: Annotated[Path | None, typer.Option(help="The MSI that it was fused from.")] = None,
    reference: Annotated[Path | None, typer.Option(help="What it should be, where that is known.")] = None,
    uncertainty: Annotated[Path | None, typer.Option(help="How sure it is, pixel by pixel, on the same grid.")] = None,
    folder: Annotated[
        Path, typer.Option(help="Files below this folder can be opened and fused on the page.", show_default="this one")
    ] = Path(),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine.", show_default="any that is free")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Look at cubes in the browser: pan, zoom, compare, spectra, scores, and fuse.

    [dim]hyperfuse view fused.tif --hsi enmap.hdr --msi sentinel2.tif[/dim]
    """
    try:
        from hyperfuse.viewer.server import serve
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{error.name} is not installed, which the page needs", remedy="pip install 'hyperfuse[view]'"
        ) from error

    given = {"fused": fused, "hsi": hsi, "msi": msi, "reference": reference, "uncertainty": uncertainty}
    images = {role: path.absolute() for role, path in given.items() if path is not None}
    serve(
        images,
        folder,
        port=port,
        open_browser=browser,
        inputs=config,
        announce=lambda url: typer.echo(f"{url}\nControl-C ends it."),
    )
