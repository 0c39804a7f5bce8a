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
    as_json: Annotated[bool, typer.Option("--json", help="Also print the figures as JSON.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
) -> None:
    """Show how good a fused image is, on one page: pictures, close-ups, spectra, maps, scores and what they mean.

    Without a reference it is judged by what it gives back of its inputs, by indices (QNR, HQNR), and by fusing once more one scale
    coarser. The page is one file, to be opened in any browser, mailed or printed. See docs/report.md.

    [dim]hyperfuse report fused.tif --hsi enmap.tif --msi sentinel2.tif -o report.html[/dim]
    """
    import json

    from hyperfuse.reporting.quality_report import write_quality_report

    findings = write_quality_report(
        fused, output, hsi=hsi, msi=msi, reference=reference, method=method, weights=weights, response=response, overwrite=overwrite
    )
    if as_json:
        typer.echo(json.dumps(findings.as_dict(), indent=2, allow_nan=False))
    else:
        typer.echo(str(output))
