"""Commands on pairs: `fuse`, `batch`, `demo`, `estimate`, `register`, `simulate` and `methods`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperfuse.cli.options import (
    SUFFIXES,
    HsiFile,
    Json,
    MsiFile,
    Overwrite,
    command,
    importing,
    interruptible,
    output_option,
    print_json,
    print_table,
    switch,
)
from hyperfuse.config import (
    LARGE_SCENES,
    SRF_HELP,
    FuseConfig,
    ObservationConfig,
    PairConfig,
    ReportConfig,
    SimulateConfig,
)
from hyperfuse.errors import OptionError

if TYPE_CHECKING:
    from hyperfuse.fusion.batch import BatchPair, PairOutcome


@command(FuseConfig)
def fuse(
    hsi: HsiFile,
    msi: MsiFile,
    config: FuseConfig,
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="The file to write, here or after -o.", show_default=False)
    ] = None,
    output: Annotated[Path | None, output_option("OUT", f"The file to write: {SUFFIXES}.")] = None,
    report: Annotated[
        bool, switch("--report", "Also write a report beside it: OUT with .html. See `hyperfuse report`.")
    ] = False,
    report_to: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="The same, under this name.")] = None,
    dry_run: Annotated[
        bool, switch("--dry-run", "Print tiles, memory, time and sizes; write nothing.", rich_help_panel=LARGE_SCENES)
    ] = False,
) -> None:
    """Fuse a coarse HSI with a fine MSI: the HSI's bands on the MSI's pixels, with all metadata.

    [dim]hyperfuse fuse enmap.tif sentinel2.tif -o fused.tif[/dim]
    [dim]hyperfuse fuse enmap.zip S2A.SAFE -o out.tif --bands 400-1000nm --dtype int16 --scale-factor 1e-4 --cog[/dim]
    """
    with importing():
        from hyperfuse.fusion.run import dry_run as summary_of
        from hyperfuse.fusion.run import run_fusion

    if (out is None) == (output is None):
        got = "no output" if out is None else f"two outputs, {out} and {output}"
        raise OptionError(got, "one file to write", "hyperfuse fuse HSI MSI -o OUT, or hyperfuse fuse HSI MSI OUT")
    output = output or out
    assert output is not None
    page = report_to or (output.with_suffix(".html") if report else None)
    if page is not None:
        from hyperfuse.reporting.report import check_page

        check_page(page, overwrite=config.overwrite)
    if dry_run:
        for label, text in summary_of(hsi, msi, output, config).items():
            typer.echo(f"{label:<10} {text}")
        return
    with interruptible("stopped; nothing was left behind"):
        run_fusion(hsi, msi, output, config)
    for path in filter(None, (output, config.uncertainty, config.change_mask)):
        typer.echo(str(path))
    if page is not None:
        from hyperfuse.reporting.report import report as write_report

        # The method is in the record of the fused file.
        shared = (config.model_fields_set & ReportConfig.model_fields.keys()) - {"method"}
        write_report(output, page, hsi=hsi, msi=msi, **{name: getattr(config, name) for name in shared})
        typer.echo(str(page))


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
    """Fuse many pairs: skips finished ones, resumes interrupted ones, continues after a failure.

    [dim]hsi,msi,output,method[/dim]
    [dim]may/enmap.tif,may/s2.tif,may/fused.tif,[/dim]
    [dim]june/enmap.tif,june/s2.tif,june/fused.tif,gsa[/dim]
    """
    from hyperfuse.fusion.batch import read_batch, run_batch
    from hyperfuse.progress import progress_is_shown

    listed = read_batch(pairs, ram_gb=ram, workers=workers, cluster=cluster)
    outcomes: list[PairOutcome] = []

    def announce(number: int, pair: BatchPair) -> None:
        if progress_is_shown():
            typer.echo(f"pair {number} of {len(listed)}: {pair.output}", err=True)

    try:
        with interruptible("stopped; the same command skips finished pairs and resumes the rest"):
            for outcome in run_batch(listed, announce):
                outcomes.append(outcome)
                if outcome.failure is not None:
                    typer.echo(f"hyperfuse: {outcome.pair.output}: {outcome.failure}", err=True)
    finally:
        _print_outcomes(outcomes)
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        names = ", ".join(str(outcome.pair.output) for outcome in failed)
        typer.echo(f"hyperfuse: {len(failed)} of {len(listed)} pairs failed: {names}", err=True)
        raise typer.Exit(1 if any(outcome.is_bug for outcome in failed) else 2)


def _print_outcomes(outcomes: list[PairOutcome]) -> None:
    rows = []
    for outcome in outcomes:
        figures = ("", "") if outcome.run is None else (f"{outcome.run.pixels / 1e6:.2f}", str(outcome.run.tiles))
        seconds = "" if outcome.state == "done already" else f"{outcome.seconds:.1f}"
        rows.append([str(outcome.pair.output), outcome.state, *figures, seconds])
    if rows:
        print_table(("output", "state", "MPix", "tiles", "seconds"), rows, left=2)


def demo(
    folder: Annotated[Path, output_option("FOLDER", "Where to write pictures and cubes.")] = Path("demo"),
) -> None:
    """Fuse a real scene (Indian Pines, AVIRIS, x4, Sentinel-2's 10 m bands) with every method; score and draw it."""
    from rich.console import Console

    from hyperfuse.reporting.demo import run_demo

    result = run_demo(folder)
    console = Console(highlight=False)
    console.print(result.table)
    console.print(result.verdict, soft_wrap=True, markup=False)
    for label, path in result.files.items():
        console.print(f"{label:<10} {path}", soft_wrap=True, markup=False)


@command(SimulateConfig)
def simulate(
    reference: Annotated[Path, typer.Argument(help="The fine hyperspectral image to degrade, in any known format.")],
    out_dir: Annotated[Path, typer.Argument(help="Folder for hsi.tif, msi.tif, reference.tif and observation.json.")],
    scale: Annotated[str, typer.Option(help="Fine pixels per coarse pixel: 4, 3.2, 10/3.", metavar="S")],
    config: SimulateConfig,
    srf: Annotated[str | None, typer.Option(help=SRF_HELP + " Required.", metavar="SRF")] = None,
    variable: Annotated[str | None, typer.Option(help="Array to read from a file that holds several.")] = None,
    band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="Axis of the bands in an unlabelled array.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Simulate a coarse HSI and a fine MSI from a fine hyperspectral image (Wald's protocol)."""
    if srf is None:
        raise OptionError("no SRF", "--srf SRF", "for example --srf Sentinel-2A")
    with importing():
        from hyperfuse.physics.simulate import OUTPUTS, simulate_files

    record = simulate_files(
        reference, out_dir, scale, srf, config, variable=variable, band_axis=band_axis, overwrite=overwrite
    )
    (height, width), (coarse_height, coarse_width) = record.fine_size, record.coarse_size
    bands = len(record.srf.weights[0])
    typer.echo(f"hsi        {bands} bands, {coarse_height}x{coarse_width}")
    typer.echo(f"msi        {len(record.srf.names)} bands ({', '.join(record.srf.names)}), {height}x{width}")
    if record.srf.uncovered:
        typer.echo(f"dropped    {', '.join(record.srf.uncovered)} (not covered by the reference)")
    for name in OUTPUTS:
        typer.echo(str(out_dir / name))


@command(ObservationConfig)
def estimate(hsi: HsiFile, msi: MsiFile, config: ObservationConfig, as_json: Json = False) -> None:
    """Estimate from a pair alone how it was observed: shift, PSF, SRF, noise.

    [dim]hyperfuse estimate enmap.tif sentinel2.tif[/dim]
    """
    from rich.console import Console
    from rich.table import Table

    with importing():
        from hyperfuse.fusion.run import estimate as estimate_pair

    observation = estimate_pair(hsi, msi, config=config)
    if as_json:
        print_json(observation.summary())
        return
    table = Table(box=None, show_header=False)
    for row in observation.described().items():
        table.add_row(*row)
    Console(soft_wrap=True).print(table)


def methods() -> None:
    """List the methods, with one line and the reference each."""
    from hyperfuse.methods.catalogue import AUTO, METHODS

    for name, method in METHODS.items():
        typer.echo(f"{name:<11} {method.description}\n{'':<11} [{method.reference}]")
    typer.echo(f"{AUTO:<11} the best of them on this pair at reduced resolution")


@command(PairConfig)
def register(
    hsi: HsiFile,
    msi: MsiFile,
    config: PairConfig,
    output: Annotated[Path | None, output_option("PNG", "Draw the offsets as arrows over the MSI.")] = None,
    as_json: Json = False,
) -> None:
    """Measure how far the HSI lies from its georeference, over the whole scene and locally.

    [dim]hyperfuse register enmap.tif sentinel2.tif -o offsets.png[/dim]
    """
    from hyperfuse.fusion.registration import register as register_files
    from hyperfuse.io.atomic import check_writable
    from hyperfuse.reporting.figures import offset_figure

    if output is not None:
        if output.suffix.lower() != ".png":
            raise OptionError(f"picture {output.name}", "a name that ends in .png")
        check_writable(output, overwrite=True)
    report = register_files(hsi, msi, config)
    if as_json:
        print_json(report.summary())
    else:
        for label, text in report.described().items():
            typer.echo(f"{label:<8} {text}")
    if output is not None:
        offset_figure(output, report, f"{hsi.name} on {msi.name}")
        typer.echo(str(output), err=as_json)
