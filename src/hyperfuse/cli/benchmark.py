"""`hyperfuse benchmark`, `hyperfuse efficiency` and `hyperfuse reproduce`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from hyperfuse.cli.options import INTERRUPTED, Json, command
from hyperfuse.config import TABLES, BenchmarkConfig, EfficiencyConfig, ReproduceConfig


@command(BenchmarkConfig)
def benchmark(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for results, tables and figures.")
    ],
    config: BenchmarkConfig,
    more_scenes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="More scenes, where the shell expands a pattern.", show_default=False),
    ] = None,
    beside_paper: Annotated[
        bool,
        typer.Option("--beside-paper", help="Show the paper's printed numbers beside ours.", rich_help_panel=TABLES),
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Also put the tables into this page, between its marks for DIR's name.",
            rich_help_panel=TABLES,
        ),
    ] = None,
) -> None:
    """Score every method and network on the same pairs; an interrupted run is resumed by the same command.

    [dim]hyperfuse benchmark --scenes 'test/*.npz' --scales 4,8 --srfs rgb,rgb+nir --noise 30,40 -o scores[/dim]
    [dim]hyperfuse benchmark -o scores[/dim]         makes tables and figures of existing results again
    """
    from hyperfuse.benchmarking.results import FAILED, results_in
    from hyperfuse.benchmarking.run import benchmark as run_benchmark
    from hyperfuse.benchmarking.tables import around_the_place, describe_failures, write_into, write_report

    if more_scenes:
        config = config.replace(scenes=(*config.scenes, *more_scenes))
    if into is not None:
        around_the_place(into, output)  # a missing page is reported before hours of scoring
    if config.scenes or config.pairs:
        try:
            run_benchmark(output, config=config, command=shlex.join(["hyperfuse", *sys.argv[1:]]))
        except KeyboardInterrupt as stop:
            typer.echo("hyperfuse: stopped; the same command resumes", err=True)
            raise typer.Exit(INTERRUPTED) from stop
    for path in write_report(output, beside_paper, config.pictures):
        typer.echo(str(path))
    if into is not None:
        typer.echo(str(write_into(into, output, beside_paper)))
    failed = [result for result in results_in(output) if result.state == FAILED]
    for message in describe_failures(failed):
        typer.echo(f"hyperfuse: {message}", err=True)
    if failed:
        raise typer.Exit(1 if any(result.is_bug for result in failed) else 2)


@command(EfficiencyConfig)
def efficiency(
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Folder for efficiency.json, efficiency.md and efficiency.png."
        ),
    ],
    config: EfficiencyConfig,
    as_json: Json = False,
) -> None:
    """Measure parameters, multiply-adds, time, memory and MPix/s of networks and methods on this machine.

    Warm-up and repeats are the paper's, 20 and 50, within the time limit. Times are also given as multiples of this
    machine's own matrix product, to compare them with other machines. See docs/efficiency.md.

    [dim]hyperfuse efficiency -o efficiency[/dim]
    [dim]hyperfuse efficiency -o efficiency --networks ssa-small,mimo-sst --methods none --weights runs/a/weights[/dim]
    """
    from hyperfuse.benchmarking.efficiency import run_efficiency

    paths = run_efficiency(output, config)
    typer.echo(paths[0 if as_json else 1].read_text(encoding="utf-8"), nl=False)
    if not as_json:
        typer.echo("\n" + "\n".join(map(str, paths)))


@command(ReproduceConfig)
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="seen, unseen, scales, fractional, without-mk, model-size, baselines, kernels or efficiency.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for trainings, scores, tables and figures.")
    ],
    config: ReproduceConfig,
    check: Annotated[
        bool, typer.Option("--check", help="Only read the scenes, time a few steps and print what would be done.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Also put the page into this one, between its marks for EXPERIMENT.",
            rich_help_panel=TABLES,
        ),
    ] = None,
) -> None:
    """Run an experiment of the paper on your scenes; an interrupted run is resumed by the same command.

    The experiments of one folder share their joint network. See docs/reproduce.md.

    [dim]hyperfuse reproduce unseen --scenes 'scenes/*.npz' --minutes 30 -o reproduced[/dim]
    """
    from hyperfuse.benchmarking import reproduce as experiments
    from hyperfuse.benchmarking.tables import around_the_place

    if check:
        for line in experiments.check(experiment, output, config):
            typer.echo(line)
        return
    if into is not None:
        around_the_place(into, output / experiment)
    try:
        written = experiments.reproduce(
            experiment, output, config=config, command=shlex.join(["hyperfuse", *sys.argv[1:]])
        )
    except KeyboardInterrupt as stop:
        typer.echo("hyperfuse: stopped; the same command resumes", err=True)
        raise typer.Exit(INTERRUPTED) from stop
    if into is not None:
        written.append(experiments.insert_page(into, output, experiment))
    for path in written:
        typer.echo(str(path))
