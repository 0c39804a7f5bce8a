"""`hyperfuse batch`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hyperfuse.prediction.batch import PairOutcome
    from hyperfuse.prediction.fusion_request import FusionRequest

INTERRUPTED = 130


def batch(
    pairs: Annotated[Path, typer.Argument(metavar="LIST.csv", help="Columns hsi, msi, output and any option of `hyperfuse fuse`.")],
    ram: Annotated[float | None, typer.Option(metavar="GB", help="Peak memory, for pairs whose line does not say.")] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes of this machine, for pairs whose line does not say.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Dask cluster, for pairs whose line does not say.")] = None,
) -> None:
    """Fuse many pairs: skips what is done, continues what was interrupted, goes on after a failure.

    [dim]hsi,msi,output,method[/dim]
    [dim]may/enmap.tif,may/s2.tif,may/fused.tif,[/dim]
    [dim]june/enmap.tif,june/s2.tif,june/fused.tif,gsa[/dim]
    """
    from hyperfuse.prediction.batch import read_batch, run_batch
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
