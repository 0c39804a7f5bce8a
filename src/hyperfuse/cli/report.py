"""`hyperfuse report`: a fused image to look at, with scores and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyperfuse.cli.pairs import RESPONSE_HELP


def report(
    fused: Annotated[Path, typer.Argument(metavar="FUSED", help="The fused image.", show_default=False)],
    hsi: Annotated[Path, typer.Option("--hsi", metavar="HSI", help="The coarse image that it was made from.")],
    msi: Annotated[Path, typer.Option("--msi", metavar="MSI", help="The fine image that it was made from.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PAGE.html", help="The page to write.")],
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="R", help="What it should be, where that is known: same bands, same grid.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Method to judge one scale coarser.", show_default="the one that FUSED was made by"),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The same for a trained network: the weights that FUSED was made by.")
    ] = None,
    response: Annotated[
        str | None, typer.Option(metavar="R", help="Known response of the MSI, not estimated. " + RESPONSE_HELP)
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Clouds in the MSI: not used where this raster, on any grid, is not 0.")
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
    reference_band_axis: Annotated[int | None, typer.Option(metavar="0|1|2", help="The same for the reference.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the figures as JSON.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
) -> None:
    """Show how good a fused image is, on one page: pictures, close-ups, spectra, maps, scores and what they mean.

    Without a reference it is judged by what it gives back of its inputs, by indices (QNR, HQNR), and by fusing once more one scale
    coarser. The page is one file, to be opened in any browser, mailed or printed. See docs/report.md.

    [dim]hyperfuse report fused.tif --hsi enmap.tif --msi sentinel2.tif -o report.html[/dim]
    """
    import json

    from hyperfuse.reporting.quality_report import InputFile, write_quality_report

    findings = write_quality_report(
        InputFile(fused, fused_variable, fused_band_axis),
        output,
        hsi=InputFile(hsi, hsi_variable, hsi_band_axis),
        msi=InputFile(msi, msi_variable, msi_band_axis),
        reference=None if reference is None else InputFile(reference, reference_variable, reference_band_axis),
        mask=mask,
        hsi_mask=hsi_mask,
        method=method,
        weights=weights,
        response=response,
        overwrite=overwrite,
    )
    if as_json:
        typer.echo(json.dumps(findings.as_dict(), indent=2, allow_nan=False))
    else:
        typer.echo(str(output))
