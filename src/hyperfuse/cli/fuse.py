"""`hyperfuse fuse`, `hyperfuse batch` and `hyperfuse demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperfuse.cli.options import INTERRUPTED, SUFFIXES, HsiFile, MsiFile, command
from hyperfuse.config import FuseConfig, ReportConfig
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
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help=f"The file to write: {SUFFIXES}.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also write a report beside it: OUT with .html. See `hyperfuse report`.")
    ] = False,
    report_to: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="The same, under this name.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print tiles, memory, time and sizes; write nothing.", rich_help_panel="Large scenes"
        ),
    ] = False,
) -> None:
    """Fuse a coarse HSI with a fine MSI: the HSI's bands on the MSI's pixels, with all metadata.

    [dim]hyperfuse fuse enmap.tif sentinel2.tif -o fused.tif[/dim]
    [dim]hyperfuse fuse enmap.zip S2A.SAFE -o out.tif --bands 400-1000nm --dtype int16 --scale-factor 1e-4 --cog[/dim]
    """
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
    try:
        run_fusion(hsi, msi, output, config)
    except KeyboardInterrupt as stop:
        typer.echo(f"hyperfuse: {stop}" if stop.args else "hyperfuse: stopped; nothing was left behind", err=True)
        raise typer.Exit(INTERRUPTED) from stop
    typer.echo(str(output))
    for path in (config.uncertainty, config.change_mask):
        if path is not None:
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
        for outcome in run_batch(listed, announce):
            outcomes.append(outcome)
            if outcome.failure is not None:
                typer.echo(f"hyperfuse: {outcome.pair.output}: {outcome.failure}", err=True)
    except KeyboardInterrupt as stop:
        _print_table(outcomes)
        typer.echo("hyperfuse: stopped; the same command skips finished pairs and resumes the rest", err=True)
        raise typer.Exit(INTERRUPTED) from stop
    _print_table(outcomes)
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        names = ", ".join(str(outcome.pair.output) for outcome in failed)
        typer.echo(f"hyperfuse: {len(failed)} of {len(listed)} pairs failed: {names}", err=True)
        raise typer.Exit(1 if any(outcome.is_bug for outcome in failed) else 2)


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
        table.add_row(Text(str(outcome.pair.output)), outcome.state, *figures, seconds)
    Console(highlight=False).print(table)


def demo(
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where to write pictures and cubes.")
    ] = Path("demo"),
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
