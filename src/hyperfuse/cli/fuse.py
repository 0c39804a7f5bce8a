"""`hyperfuse batch`.

`hyperfuse fuse` and `hyperfuse demo`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperfuse.cli import options as out
from hyperfuse.cli.pairs import SRF_HELP

if TYPE_CHECKING:
    from hyperfuse.fusion.batch import PairOutcome
    from hyperfuse.fusion.request import FusionRequest


OBSERVATION = "How the pair was observed"
INPUTS = "Parts of the inputs"
LARGE_SCENES = "Large scenes"
INTERRUPTED = 130


def fuse(
    hsi: Annotated[Path, typer.Argument(metavar="HSI", help="The coarse image: many narrow bands, big pixels.")],
    msi: Annotated[
        Path, typer.Argument(metavar="MSI", help="The fine image of the same place: few bands, small pixels.")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="OUT", help="What to write: .tif .hdr .nc .h5 .zarr .mat .npz .npy."),
    ],
    method: Annotated[
        str, typer.Option(metavar="NAME", help="One of `hyperfuse methods`; `auto` lets the pair itself choose.")
    ] = "universal",
    weights: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Fuse with this trained network instead of a method.")
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option(
            help="Find shift, point spread, response and noise from the pair itself (else: as georeferenced, FWHM = scale).",
            rich_help_panel=OBSERVATION,
        ),
    ] = True,
    srf: Annotated[
        str | None,
        typer.Option(metavar="R", help="Known response, not estimated. " + SRF_HELP, rich_help_panel=OBSERVATION),
    ] = None,
    psf_fwhm: Annotated[
        float | None,
        typer.Option(help="Known point spread of the HSI, FWHM in fine pixels.", rich_help_panel=OBSERVATION),
    ] = None,
    shift: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="DY DX",
            help="Known shift: how far down and right of its georeference the HSI looks, fine pixels.",
            rich_help_panel=OBSERVATION,
        ),
    ] = None,
    local_shift: Annotated[
        bool,
        typer.Option(
            "--local-shift",
            help="Follow a shift that differs from place to place. See `hyperfuse register`.",
            rich_help_panel=OBSERVATION,
        ),
    ] = False,
    trust: Annotated[
        str,
        typer.Option(
            metavar="msi|hsi",
            help="Whose georeference is right where the two disagree; the result lies there.",
            rich_help_panel=OBSERVATION,
        ),
    ] = "msi",
    consistency: Annotated[
        bool,
        typer.Option(
            "--consistency", help="Make the result agree once more with both images, as far as their noise allows."
        ),
    ] = False,
    extent: Annotated[
        str,
        typer.Option(
            metavar="intersection|msi|hsi",
            help="What OUT covers: what both images show, or all of one of them.",
            rich_help_panel=INPUTS,
        ),
    ] = "intersection",
    bounds: Annotated[
        tuple[float, float, float, float] | None,
        typer.Option(
            metavar="XMIN YMIN XMAX YMAX", help="Fuse only this part, in the MSI's coordinates.", rich_help_panel=INPUTS
        ),
    ] = None,
    bounds_crs: Annotated[
        str | None, typer.Option(metavar="CRS", help="Of --bounds, e.g. EPSG:4326.", rich_help_panel=INPUTS)
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Clouds in the MSI: not used where this raster, on any grid, is not 0.",
            rich_help_panel=INPUTS,
        ),
    ] = None,
    hsi_mask: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same for the HSI.", rich_help_panel=INPUTS)
    ] = None,
    hsi_variable: Annotated[
        str | None, typer.Option(help="Which array of an HSI file that holds several.", rich_help_panel=INPUTS)
    ] = None,
    msi_variable: Annotated[
        str | None, typer.Option(help="Which array of an MSI file that holds several.", rich_help_panel=INPUTS)
    ] = None,
    hsi_band_axis: Annotated[
        int | None,
        typer.Option(
            metavar="0|1|2", help="Which axis of an unlabelled HSI array holds the bands.", rich_help_panel=INPUTS
        ),
    ] = None,
    msi_band_axis: Annotated[
        int | None,
        typer.Option(
            metavar="0|1|2", help="Which axis of an unlabelled MSI array holds the bands.", rich_help_panel=INPUTS
        ),
    ] = None,
    bands: out.Bands = None,
    dtype: out.DataType = None,
    scale_factor: out.ScaleFactor = None,
    nodata: out.Nodata = None,
    compress: out.Compress = None,
    cog: out.Cog = False,
    overviews: out.Overviews = False,
    creation_options: out.CreationOptions = None,
    stac: out.Stac = False,
    overwrite: out.Overwrite = False,
    uncertainty: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write how far off each value is to be expected: standard deviations (docs/model_card.md).",
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Also write a page about the result beside it: OUT with .html. See `hyperfuse report`."
        ),
    ] = False,
    report_to: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="The same, under this name.")] = None,
    ram: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            help="Peak memory; larger scenes are fused in tiles. By default half of the machine's.",
            rich_help_panel=LARGE_SCENES,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue an interrupted run from its finished tiles.", rich_help_panel=LARGE_SCENES
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Fuse tiles in N processes of this machine.", rich_help_panel=LARGE_SCENES),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Fuse tiles on a Dask cluster, e.g. tcp://host:8786.", rich_help_panel=LARGE_SCENES
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print tiles, memory, time and sizes; write nothing.", rich_help_panel=LARGE_SCENES
        ),
    ] = False,
) -> None:
    """Fuse a coarse HSI with a fine MSI: the HSI's bands on the MSI's pixels, with all metadata.

    [dim]hyperfuse fuse enmap.tif sentinel2.tif -o fused.tif[/dim] [dim]hyperfuse fuse enmap.zip S2A.SAFE -o fused.tif
    --bands 0.4-1.0um,good --dtype int16 --scale-factor 0.0001 --cog[/dim]
    """
    from hyperfuse.fusion.request import FusionRequest

    request = FusionRequest(
        hsi,
        msi,
        output,
        method=method,
        weights=weights,
        estimate=estimate,
        srf=srf,
        psf_fwhm=psf_fwhm,
        shift=shift,
        local_shift=local_shift,
        trust=trust,
        consistency=consistency,
        extent=extent,
        bounds=bounds,
        bounds_crs=bounds_crs,
        mask=mask,
        hsi_mask=hsi_mask,
        hsi_variable=hsi_variable,
        msi_variable=msi_variable,
        hsi_band_axis=hsi_band_axis,
        msi_band_axis=msi_band_axis,
        stored=out.output_options(bands, dtype, scale_factor, nodata, compress, overviews, stac),
        options=out.parse_options(creation_options),
        cog=cog,
        overwrite=overwrite,
        ram_gb=ram,
        resume=resume,
        workers=workers,
        cluster=cluster,
    )
    expected_error = None if uncertainty is None else _uncertainty_request(request, uncertainty)
    page = report_to or (output.with_suffix(".html") if report else None)
    if page is not None:
        from hyperfuse.reporting.report import refuse_unwritable_page

        refuse_unwritable_page(page, overwrite=overwrite)
    if dry_run:
        _print_plan(request)
        return
    _run(request)
    if expected_error is not None:
        _run(expected_error)
    if page is not None:
        _report(request, page)


def _uncertainty_request(request: FusionRequest, path: Path) -> FusionRequest:
    """Everything that can be said against it is said before the first run."""
    from hyperfuse.io.files import check_target

    asked = request.for_uncertainty(path)
    check_target(path, output=asked.stored, options=asked.options, cog=asked.cog, overwrite=request.overwrite)
    return asked


def _print_plan(request: FusionRequest) -> None:
    from hyperfuse.fusion.plan import summarise_plan

    for label, text in summarise_plan(request).items():
        typer.echo(f"{label:<10} {text}")


def _run(request: FusionRequest) -> None:
    from hyperfuse.fusion.run import run_fusion

    try:
        typer.echo(str(run_fusion(request).path))
    except KeyboardInterrupt as stop:
        typer.echo(f"hyperfuse: {stop}" if stop.args else "hyperfuse: stopped; nothing was left behind", err=True)
        raise typer.Exit(INTERRUPTED) from stop


def _report(request: FusionRequest, page: Path) -> None:
    from hyperfuse.reporting.report import InputFile, write_quality_report

    write_quality_report(
        request.output,
        page,
        hsi=InputFile(request.hsi, request.hsi_variable, request.hsi_band_axis),
        msi=InputFile(request.msi, request.msi_variable, request.msi_band_axis),
        mask=request.mask,
        hsi_mask=request.hsi_mask,
        weights=request.weights,
        srf=request.srf,
        overwrite=request.overwrite,
    )
    typer.echo(str(page))


def demo(
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where to write pictures and cubes.")
    ] = Path("demo"),
) -> None:
    """Fuse a real scene (Indian Pines, AVIRIS, x4, Sentinel-2 bands) with every method; show scores, write cube and
    picture.
    """
    from rich.console import Console

    from hyperfuse.reporting.demo import run_demo

    result = run_demo(folder)
    console = Console(highlight=False)
    console.print(result.table)
    for label, path in result.files.items():
        console.print(f"{label:<10} {path}", soft_wrap=True, markup=False)


def batch(
    pairs: Annotated[
        Path, typer.Argument(metavar="LIST.csv", help="Columns hsi, msi, output and any option of `hyperfuse fuse`.")
    ],
    ram: Annotated[
        float | None, typer.Option(metavar="GB", help="Peak memory, for pairs whose line does not say.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes of this machine, for pairs whose line does not say.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask cluster, for pairs whose line does not say.")
    ] = None,
) -> None:
    """Fuse many pairs: skips what is done, continues what was interrupted, goes on after a failure.

    [dim]hsi,msi,output,method[/dim]
    [dim]may/enmap.tif,may/s2.tif,may/fused.tif,[/dim]
    [dim]june/enmap.tif,june/s2.tif,june/fused.tif,gsa[/dim]
    """
    from hyperfuse.fusion.batch import read_batch, run_batch
    from hyperfuse.progress import progress_is_shown

    requests = [_completed(request, ram, workers, cluster) for request in read_batch(pairs)]
    outcomes: list[PairOutcome] = []

    def announce(number: int, request: FusionRequest) -> None:
        if progress_is_shown():
            typer.echo(f"pair {number} of {len(requests)}: {request.target}", err=True)

    try:
        for outcome in run_batch(requests, announce):
            outcomes.append(outcome)
            if outcome.failure is not None:
                typer.echo(f"hyperfuse: {outcome.request.target}: {outcome.failure}", err=True)
    except KeyboardInterrupt as stop:
        _print_table(outcomes)
        typer.echo("hyperfuse: stopped; the same command skips what is done and continues the rest", err=True)
        raise typer.Exit(INTERRUPTED) from stop
    _print_table(outcomes)
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        names = ", ".join(str(outcome.request.target) for outcome in failed)
        typer.echo(f"hyperfuse: {len(failed)} of {len(requests)} pairs failed: {names}", err=True)
        raise typer.Exit(1 if any(outcome.is_bug for outcome in failed) else 2)


def _completed(request: FusionRequest, ram: float | None, workers: int | None, cluster: str | None) -> FusionRequest:
    if request.workers is not None or request.cluster is not None:
        workers = cluster = None
    return replace(
        request,
        ram_gb=request.ram_gb if ram is None or request.ram_gb is not None else ram,
        workers=request.workers if workers is None else workers,
        cluster=request.cluster if cluster is None else cluster,
    )


def _print_table(outcomes: list[PairOutcome]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not outcomes:
        return
    table = Table("output", "state", "MPix", "tiles", "seconds")
    for column in table.columns[2:]:
        column.justify = "right"
    for outcome in outcomes:
        run = outcome.run
        figures = ("", "") if run is None else (f"{run.pixels / 1e6:.2f}", str(run.tiles))
        seconds = "" if outcome.state == "done already" else f"{outcome.seconds:.1f}"
        table.add_row(Text(str(outcome.request.target)), outcome.state, *figures, seconds)
    Console(highlight=False).print(table)
