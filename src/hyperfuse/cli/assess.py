"""`hyperfuse view`: the page.

`hyperfuse evaluate`: how good a fused cube is.

`hyperfuse report`: a fused image to look at, with scores and what they mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyperfuse.config import SRF_HELP
from hyperfuse.errors import OptionError


def evaluate(
    fused: Annotated[Path, typer.Argument(help="The fused cube.", show_default=False)],
    reference: Annotated[
        Path, typer.Argument(help="What it should be: the same bands on the same grid.", show_default=False)
    ],
    scale: Annotated[
        float | None,
        typer.Option(
            "--scale", help="Fine over coarse, for ERGAS; taken from FUSED where it says so.", show_default=False
        ),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            "--peak",
            help="Peak of the signal for PSNR and SSIM; 1 for a reference within 0 to 1, else the reference's maximum.",
            show_default=False,
        ),
    ] = None,
    per_band: Annotated[
        bool, typer.Option("--per-band", help="Also show every band (JSON always holds them).")
    ] = False,
    q2n: Annotated[bool, typer.Option("--q2n", help="Also compute Q2n, the hypercomplex quality index.")] = False,
    fused_variable: Annotated[str | None, typer.Option(help="Which array of a fused file that holds several.")] = None,
    reference_variable: Annotated[
        str | None, typer.Option(help="Which array of a reference file that holds several.")
    ] = None,
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

    from hyperfuse.io.files import open_cube
    from hyperfuse.metrics.evaluation import evaluate as evaluate_cubes
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


def report(
    fused: Annotated[Path, typer.Argument(metavar="FUSED", help="The fused image.", show_default=False)],
    hsi: Annotated[Path, typer.Option("--hsi", metavar="HSI", help="The coarse image that it was made from.")],
    msi: Annotated[Path, typer.Option("--msi", metavar="MSI", help="The fine image that it was made from.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PAGE.html", help="The page to write.")],
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="R", help="What it should be, where that is known: same bands, same grid."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Method to judge one scale coarser.", show_default="the one that FUSED was made by"
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The same for a trained network: the weights that FUSED was made by."),
    ] = None,
    srf: Annotated[
        str | None, typer.Option(metavar="R", help="Known response of the MSI, not estimated. " + SRF_HELP)
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Clouds in the MSI: not used where this raster, on any grid, is not 0."),
    ] = None,
    hsi_mask: Annotated[Path | None, typer.Option(metavar="FILE", help="The same for the HSI.")] = None,
    fused_variable: Annotated[str | None, typer.Option(help="Which array of a fused file that holds several.")] = None,
    hsi_variable: Annotated[str | None, typer.Option(help="The same for the HSI.")] = None,
    msi_variable: Annotated[str | None, typer.Option(help="The same for the MSI.")] = None,
    reference_variable: Annotated[str | None, typer.Option(help="The same for the reference.")] = None,
    fused_band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="Which axis of an unlabelled fused array holds the bands.")
    ] = None,
    hsi_band_axis: Annotated[int | None, typer.Option(metavar="0|1|2", help="The same for the HSI.")] = None,
    msi_band_axis: Annotated[int | None, typer.Option(metavar="0|1|2", help="The same for the MSI.")] = None,
    reference_band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="The same for the reference.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the figures as JSON.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
) -> None:
    """Show how good a fused image is, on one page: pictures, close-ups, spectra, maps, scores and what they mean.

    Without a reference it is judged by what it gives back of its inputs, by indices (QNR, HQNR), and by fusing once
    more one scale coarser. The page is one file, to be opened in any browser, mailed or printed. See docs/report.md.

    [dim]hyperfuse report fused.tif --hsi enmap.tif --msi sentinel2.tif -o report.html[/dim]
    """
    import json

    from hyperfuse.reporting.report import InputFile, report

    findings = report(
        InputFile(fused, fused_variable, fused_band_axis),
        output,
        hsi=InputFile(hsi, hsi_variable, hsi_band_axis),
        msi=InputFile(msi, msi_variable, msi_band_axis),
        reference=None if reference is None else InputFile(reference, reference_variable, reference_band_axis),
        mask=mask,
        hsi_mask=hsi_mask,
        method=method,
        weights=weights,
        srf=srf,
        overwrite=overwrite,
    )
    if as_json:
        typer.echo(json.dumps(findings.as_dict(), indent=2, allow_nan=False))
    else:
        typer.echo(str(output))


def view(
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
        images, folder, port=port, open_browser=browser, announce=lambda url: typer.echo(f"{url}\nControl-C ends it.")
    )
