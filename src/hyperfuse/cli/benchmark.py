"""`hyperfuse efficiency`: what every network and method costs on this machine.

`hyperfuse benchmark`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 130
SIMULATION = "How pairs are made"
REPORT = "What is made of the results"


def benchmark(
    more_scenes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE", help="More scenes, where the shell has expanded a pattern.", show_default=False
        ),
    ] = None,
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for results, tables and figures.")
    ],
    scenes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]SOURCE[@R,R]",
            help="Scenes to degrade: file, folder, pattern or data set of `hyperfuse scenes`; with its own name and responses.",
            show_default=False,
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HSI,MSI,REFERENCE",
            help="A pair that two sensors took, with its reference; REFERENCE,MSI makes the HSI of the reference. Fused blind.",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Names of `hyperfuse methods`, all or none.")
    ] = "all",
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FOLDER", help="A trained network, ours or a rival; repeat for more.", show_default=False
        ),
    ] = None,
    knowledge: Annotated[
        str,
        typer.Option(
            help="blind: nothing but the pair; oracle: point spread, shift, response and noise are told; or both."
        ),
    ] = "blind",
    scales: Annotated[
        str, typer.Option(metavar="S,S", help="Fine over coarse, also fractions.", rich_help_panel=SIMULATION)
    ] = "4",
    srfs: Annotated[
        str,
        typer.Option(
            metavar="R,R",
            help="rgb, rgb+nir, rgb+nir+swir, sensors or files; those that a scene does not cover are left out.",
            rich_help_panel=SIMULATION,
        ),
    ] = "rgb",
    noise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HSI,MSI",
            help="Also with noise: signal-to-noise ratios in dB, such as 30,40.",
            rich_help_panel=SIMULATION,
            show_default=False,
        ),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DY,DX",
            help="Also with a shift: fine pixels down and right, such as 0.5,0.5.",
            rich_help_panel=SIMULATION,
            show_default=False,
        ),
    ] = None,
    clean: Annotated[bool, typer.Option(help="The pairs without noise and shift.", rich_help_panel=SIMULATION)] = True,
    split: Annotated[
        str,
        typer.Option(
            metavar="disjoint|paper", help="Which blocks of a data set are tested.", rich_help_panel=SIMULATION
        ),
    ] = "disjoint",
    scenes_folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where data sets lie.", rich_help_panel=SIMULATION, show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the noise.", rich_help_panel=SIMULATION)] = 0,
    pictures: Annotated[
        bool,
        typer.Option(
            help="Error maps, close-ups and spectra of the first scene of each data set.", rich_help_panel=REPORT
        ),
    ] = True,
    beside_paper: Annotated[
        bool,
        typer.Option(
            "--beside-paper",
            help="Show the paper's printed numbers beside ours, with warnings.",
            rich_help_panel=REPORT,
        ),
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Also put the tables into this page, between its marks for DIR's name.",
            rich_help_panel=REPORT,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Score every method and network on the same pairs; killed, it goes on when asked the same again.

    [dim]hyperfuse benchmark --scenes 'test/*.npz' --scales 4,8 --responses rgb,rgb+nir --noise 30,40 -o scores[/dim]
    [dim]hyperfuse benchmark -o scores[/dim]         makes tables and figures of what is there again
    """
    from hyperfuse.benchmarking.cases import listed_srfs
    from hyperfuse.benchmarking.results import FAILED, results_in
    from hyperfuse.benchmarking.tables import around_the_place, describe_failures, write_into, write_report

    scenes = [*(scenes or []), *(more_scenes or [])]
    if into is not None:
        around_the_place(into, output)  # hours of scoring should not end with a page that does not exist
    if scenes or pair:
        _run(
            output,
            scenes=scenes,
            pairs=pair or [],
            methods=[] if methods == "none" else _listed(methods),
            weights=weights or [],
            scales=_listed(scales),
            srfs=listed_srfs(srfs),
            noise=[_two_numbers(text, "--noise") for text in noise or []],
            shift=[_two_numbers(text, "--shift") for text in shift or []],
            clean=clean,
            knowledge=["blind", "oracle"] if knowledge == "both" else [knowledge],
            split=split,
            scenes_folder=scenes_folder,
            seed=seed,
            pictures=pictures,
        )
    for path in write_report(output, beside_paper, pictures):
        typer.echo(str(path))
    if into is not None:
        typer.echo(str(write_into(into, output, beside_paper)))
    failed = [result for result in results_in(output) if result.state == FAILED]
    for words in describe_failures(failed):
        typer.echo(f"hyperfuse: {words}", err=True)
    if failed:
        raise typer.Exit(1 if any(result.is_bug for result in failed) else 2)


def _run(output: Path, *, scales: list[str], **arguments: Any) -> None:
    import sys

    from hyperfuse.benchmarking.run import benchmark as run_benchmark
    from hyperfuse.physics.resample import exact_scale

    try:
        run_benchmark(
            output, scales=[float(exact_scale(scale)) for scale in scales], command=_as_typed(sys.argv), **arguments
        )
    except KeyboardInterrupt as stop:
        typer.echo("hyperfuse: stopped; the same command goes on from here", err=True)
        raise typer.Exit(INTERRUPTED) from stop


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str, option: str) -> float:
    from hyperfuse.errors import OptionError

    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{option} {text!r}", "numbers") from None


def _two_numbers(text: str, option: str) -> tuple[float, float]:
    from hyperfuse.errors import OptionError

    numbers = [_number(part, option) for part in _listed(text)]
    if len(numbers) != 2:
        raise OptionError(f"{option} {text!r}", "two numbers with a comma between them")
    return numbers[0], numbers[1]


def _as_typed(arguments: list[str]) -> str:
    import shlex

    return shlex.join(["hyperfuse", *arguments[1:]])


def efficiency(
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Folder for efficiency.json, efficiency.md and efficiency.png."
        ),
    ],
    networks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Presets of ours and of rivals, or none.", show_default="all"),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Methods that need no weights, or none.", show_default="all")
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="Also this trained network; repeatable.", show_default=False),
    ] = None,
    size: Annotated[int, typer.Option(help="Fine pixels on a side of the pair.")] = 128,
    scale: Annotated[float, typer.Option(help="Fine pixels per coarse pixel.")] = 4.0,
    bands: Annotated[int, typer.Option(help="Bands of the HSI.")] = 31,
    msi_bands: Annotated[int, typer.Option(help="Bands of the MSI.")] = 3,
    warm_up: Annotated[int, typer.Option(min=1, help="Runs that do not count, at most.")] = 20,
    repeats: Annotated[int, typer.Option(min=3, help="Runs that count, at most.")] = 50,
    seconds: Annotated[
        float,
        typer.Option(min=0.0, help="About how long to measure each; at least one run does not count and three do."),
    ] = 5.0,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Where networks run; methods use the processor.")
    ] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="Of the processor.", show_default="all cores")
    ] = None,
    growth: Annotated[bool, typer.Option(help="Also measure how time and memory grow with pixels and bands.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier measurement in DIR.")] = False,
) -> None:
    """Measure parameters, multiply-adds, time, memory and MPix/s of networks and methods on this machine, and how they
    grow.

    Warm-up and repeats are the paper's, 20 and 50, as far as the seconds go. Times also stand as multiples of this
    machine's own matrix product, so that they can be compared with those of other machines. See docs/efficiency.md.

    [dim]hyperfuse efficiency -o efficiency[/dim] [dim]hyperfuse efficiency -o efficiency --networks ssa-small,mimo-sst
    --methods none --weights runs/joint/weights[/dim]
    """
    from hyperfuse.benchmarking.efficiency import Effort, PairSize, run_efficiency

    paths = run_efficiency(
        PairSize(bands, msi_bands, size, scale),
        output,
        networks=_names(networks),
        methods=_names(methods),
        weights=weights or (),
        effort=Effort(warm_up, repeats, seconds),
        device=device,
        threads=threads,
        growth=growth,
        overwrite=overwrite,
    )
    typer.echo(paths[0 if as_json else 1].read_text(encoding="utf-8"), nl=False)
    if not as_json:
        typer.echo("\n" + "\n".join(map(str, paths)))


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else names
