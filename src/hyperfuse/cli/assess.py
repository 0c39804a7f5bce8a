"""`hyperfuse evaluate`, `hyperfuse report` and `hyperfuse view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyperfuse.cli.options import Json, command, print_json
from hyperfuse.config import EvaluateConfig, PairInputConfig, ReportConfig
from hyperfuse.errors import OptionError


@command(EvaluateConfig)
def evaluate(
    fused: Annotated[Path, typer.Argument(help="The fused cube.")],
    reference: Annotated[Path, typer.Argument(help="The true image: the same bands on the same grid.")],
    config: EvaluateConfig,
    per_band: Annotated[
        bool, typer.Option("--per-band", help="Also show every band (JSON always contains them).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Score a fused cube against its reference: PSNR, SAM, ERGAS, SSIM, UIQI, RMSE."""
    from rich.console import Console

    from hyperfuse.metrics.evaluation import evaluate as evaluate_cubes
    from hyperfuse.reporting.tables import band_table, evaluation_table

    scores = evaluate_cubes(fused, reference, config=config)
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
    as_json: Annotated[bool, typer.Option("--json", help="Also print the scores as JSON.")] = False,
) -> None:
    """Assess a fused image on one page: pictures, close-ups, spectra, maps, scores and what they mean.

    Without a reference it is assessed by its consistency with the inputs, by indices (QNR, HQNR), and at reduced
    resolution. The page is one file, to be opened in any browser, mailed or printed. See docs/report.md.

    [dim]hyperfuse report fused.tif --hsi enmap.tif --msi sentinel2.tif -o report.html[/dim]
    """
    from hyperfuse.reporting.report import report as write_report

    quality = write_report(fused, output, hsi=hsi, msi=msi, reference=reference, config=config)
    if as_json:
        print_json(quality.as_dict())
    else:
        typer.echo(str(output))


@command(PairInputConfig)
def view(
    config: PairInputConfig,
    fused: Annotated[
        Path | None,
        typer.Argument(metavar="FUSED", help="The cube to show; without one the page starts with fusing."),
    ] = None,
    hsi: Annotated[Path | None, typer.Option(help="The HSI that it was fused from.")] = None,
    msi: Annotated[Path | None, typer.Option(help="The MSI that it was fused from.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The true image, if known.")] = None,
    uncertainty: Annotated[Path | None, typer.Option(help="Its uncertainty, by `fuse --uncertainty`.")] = None,
    change_mask: Annotated[Path | None, typer.Option(help="What `fuse --change-mask` wrote.")] = None,
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

    given = {"fused": fused, "hsi": hsi, "msi": msi, "reference": reference}
    given |= {"uncertainty": uncertainty, "change_mask": change_mask}
    images = {role: path.absolute() for role, path in given.items() if path is not None}
    serve(
        images,
        folder,
        port=port,
        open_browser=browser,
        inputs=config,
        announce=lambda url: typer.echo(f"{url}\nControl-C ends it."),
    )
