"""`hyperfuse efficiency`: what every network and method costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def efficiency(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for efficiency.json, efficiency.md and efficiency.png.")
    ],
    networks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Presets of ours and of rivals, or none.", show_default="all"),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Methods that need no weights, or none.", show_default="all")
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="Also this trained network; repeatable.", show_default=False)
    ] = None,
    size: Annotated[int, typer.Option(help="Fine pixels on a side of the pair.")] = 128,
    scale: Annotated[float, typer.Option(help="Fine pixels per coarse pixel.")] = 4.0,
    bands: Annotated[int, typer.Option(help="Bands of the HSI.")] = 31,
    msi_bands: Annotated[int, typer.Option(help="Bands of the MSI.")] = 3,
    warm_up: Annotated[int, typer.Option(min=1, help="Runs that do not count, at most.")] = 20,
    repeats: Annotated[int, typer.Option(min=3, help="Runs that count, at most.")] = 50,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="About how long to measure each; at least one run does not count and three do.")
    ] = 5.0,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where networks run; methods use the processor.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, max=256, help="Of the processor.", show_default="all cores")] = None,
    growth: Annotated[bool, typer.Option(help="Also measure how time and memory grow with pixels and bands.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier measurement in DIR.")] = False,
) -> None:
    """Measure parameters, multiply-adds, time, memory and MPix/s of networks and methods on this machine, and how they grow.

    Warm-up and repeats are the paper's, 20 and 50, as far as the seconds go. Times also stand as multiples of this machine's own
    matrix product, so that they can be compared with those of other machines. See docs/efficiency.md.

    [dim]hyperfuse efficiency -o efficiency[/dim]
    [dim]hyperfuse efficiency -o efficiency --networks ssa-small,mimo-sst --methods none --weights runs/joint/weights[/dim]
    """
    from hyperfuse.scoring.efficiency import EfficiencyRequest, run_efficiency
    from hyperfuse.scoring.efficiency_measuring import Effort
    from hyperfuse.scoring.efficiency_subjects import PairSize

    request = EfficiencyRequest(
        size=PairSize(bands, msi_bands, size, scale),
        networks=_names(networks),
        methods=_names(methods),
        weights=tuple(weights or ()),
        effort=Effort(warm_up, repeats, seconds),
        device=device,
        threads=threads,
        growth=growth,
    )
    paths = run_efficiency(request, output, overwrite=overwrite)
    typer.echo(paths[0 if as_json else 1].read_text(encoding="utf-8"), nl=False)
    if not as_json:
        typer.echo("\n" + "\n".join(map(str, paths)))


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else names
