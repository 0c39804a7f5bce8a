"""The one way in: what to measure, how long, and into which folder.

What was measured, as JSON, as a Markdown table and as a picture of how everything grows: all three, or none.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from hyperfuse.benchmarking.efficiency import (
    EfficiencyResult,
    Effort,
    Growth,
    PairSize,
    SubjectCost,
    find_subjects,
    measure_efficiency,
)
from hyperfuse.benchmarking.paper import PrintedEfficiency, printed_efficiency
from hyperfuse.benchmarking.results import current_session
from hyperfuse.errors import CubeWriteError, OptionError
from hyperfuse.fusion.memory import GIGABYTE, default_ram_gb
from hyperfuse.io.atomic import published, check_writable

JSON_NAME, MARKDOWN_NAME, FIGURE_NAME = "efficiency.json", "efficiency.md", "efficiency.png"
# The paper's names of the presets that have its sizes.
PRINTED_NAMES = {"dspnet": "DSPNet", "mimo-sst": "MIMO-SST", "dcinn": "DCINN", "pstun": "PSTUN", "ssa-6-6": "SSA"}
# Okabe and Ito's colours, told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
KINDS = {"network": "-", "rival": "--", "method": ":"}
SMALL, MEDIUM = 8.0, 10.0


def write_efficiency(result: EfficiencyResult, folder: Path, command: str, *, overwrite: bool) -> list[Path]:
    session = current_session(command)
    grown = any(cost.with_pixels is not None for cost in result.costs)
    names = [JSON_NAME, MARKDOWN_NAME, *([FIGURE_NAME] if grown else [])]
    paths = [folder / name for name in names]
    stale = [] if grown else [folder / FIGURE_NAME]
    with published(paths[0], overwrite=overwrite, beside=paths[1:], stale=stale) as target:
        target.write_text(json.dumps(as_json(result, session), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        target.with_name(MARKDOWN_NAME).write_text(markdown(result, session), encoding="utf-8")
        if grown:
            growth_figure(result).savefig(target.with_name(FIGURE_NAME), format="png")
    return paths


def as_json(result: EfficiencyResult, session: dict[str, Any]) -> dict[str, Any]:
    return {
        "session": session,
        "device": result.device,
        "pair": _size(result.size),
        "matmul_seconds": result.matmul_seconds,
        "subjects": [_cost(cost) for cost in result.costs],
        "left_out": result.left_out,
        "as_printed": [{"method": each.method, **_printed(each)} for each in printed_efficiency()],
    }


def markdown(result: EfficiencyResult, session: dict[str, Any]) -> str:
    return "\n".join(_markdown_lines(result, session)) + "\n"


def _markdown_lines(result: EfficiencyResult, session: dict[str, Any]) -> Iterator[str]:
    size = result.size
    versions = f"commit {session['commit'] or 'unknown'}, {session['date']}, torch {session['torch']}"
    yield f"`{session['command']}`, {versions}, {session['machine']}."
    yield ""
    yield (
        f"One pair: {size.side} x {size.side} fine pixels, {size.coarse_side} x {size.coarse_side} coarse ones, {size.bands} and "
        f"{size.msi_bands} bands, float32, {result.device}. Time: mean and standard deviation of so many runs after so many that "
        "do not count; processor: the least that a run took of all threads together, which other work on the machine does not "
        "stretch; memory: peak beyond what was held before. The last two columns compare processor times with that of a product of "
        f"two 1024 x 1024 matrices right before ({1e3 * result.matmul_seconds:.1f} ms at best). Methods are told how the pair was "
        "observed; of their multiply-adds only matrix products are counted."
    )
    yield ""
    yield "| | parameters | multiply-adds | time | processor | runs | peak memory | MPix/s | in matmuls | of matmul's speed |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    yield from map(_row, result.costs)
    if result.left_out:
        yield f"\nNot for {size.bands} and {size.msi_bands} bands: {', '.join(result.left_out)}."
    if any(cost.with_pixels is not None for cost in result.costs):
        yield from _growth_lines(result)
    yield from _printed_lines(result)


def _row(cost: SubjectCost) -> str:
    timing = cost.timing
    cells = [
        cost.subject.name,
        f"{cost.parameters:,}" if cost.parameters else "",
        f"{cost.multiply_adds / 1e9:.3g} G",
        f"{1e3 * timing.seconds:.1f} ± {1e3 * timing.deviation:.1f} ms",
        "" if timing.processor_seconds is None else f"{1e3 * timing.processor_seconds:.1f} ms",
        f"{timing.warm_up} + {timing.repeats}",
        _megabytes(timing.peak_bytes),
        f"{cost.megapixels_per_second:.3g}",
        f"{cost.in_matmuls:.3g}",
        "" if cost.share_of_matmul is None else f"{100 * cost.share_of_matmul:.0f} %",
    ]
    return f"| {' | '.join(cells)} |"


def _growth_lines(result: EfficiencyResult) -> Iterator[str]:
    yield (
        "\nGrowth: exponents p of cost ~ size^p, fitted to processor times (on CUDA: to the fastest runs); pixels at "
        f"{result.size.bands} bands, bands at a quarter of the side. 1 is proportional; blank: too few sizes, or too little memory "
        "to be seen.\n"
    )
    yield "| | pixels: time | memory | multiply-adds | up to | bands: time | memory | multiply-adds | up to |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for cost in result.costs:
        pixels, bands = cost.with_pixels, cost.with_bands
        if pixels is not None and bands is not None:
            largest = f"{pixels.points[-1].size.side}²" if pixels.points else ""
            most = str(bands.points[-1].size.bands) if bands.points else ""
            yield f"| {cost.subject.name} | {_exponents(pixels)} | {largest} | {_exponents(bands)} | {most} |"


def _printed_lines(result: EfficiencyResult) -> Iterator[str]:
    printed = {each.method: each for each in printed_efficiency()}
    shown = [
        (cost, printed[PRINTED_NAMES[cost.subject.name]]) for cost in result.costs if cost.subject.name in PRINTED_NAMES
    ]
    if not shown:
        return
    yield (
        "\nThe paper's own, as printed: an RTX 4090, 512 x 512 pixels, half precision where supported; its caption says 191 bands, "
        "but parameters and operations are those of 31 (32 for DSPNet), at 128 x 128 pixels.\n"
    )
    yield "| | parameters, printed | here | operations, printed | here | time, printed | peak memory, printed | MPix/s, printed |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for cost, paper in shown:
        speed = f"{paper.milliseconds:g} ms | {paper.peak_memory_gb:g} GB | {paper.megapixels_per_second:g}"
        yield (
            f"| {paper.method} | {paper.parameters_millions:.3f} M | {cost.parameters / 1e6:.3f} M | {paper.flops_g:.3f} G | "
            f"{cost.multiply_adds / 1e9:.3f} G | {speed} |"
        )


def growth_figure(result: EfficiencyResult) -> Figure:
    """Time against pixels and against bands, both axes logarithmic: a slope of 1 is proportional."""
    figure = Figure(figsize=(11.5, 5.6), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    looks = list(itertools.product(MARKERS, COLOURS))
    for place, cost in enumerate(result.costs):
        # Neighbours differ in both colour and marker.
        marker, colour = looks[(place * (len(COLOURS) + 1)) % len(looks)]
        look = {
            "color": colour,
            "marker": marker,
            "linestyle": KINDS[cost.subject.kind],
            "markersize": 4,
            "linewidth": 1.2,
        }
        for axes, growth, across in (
            (
                left,
                cost.with_pixels,
                [point.size.pixels for point in cost.with_pixels.points] if cost.with_pixels else [],
            ),
            (right, cost.with_bands, [point.size.bands for point in cost.with_bands.points] if cost.with_bands else []),
        ):
            if growth is not None and growth.points:
                axes.plot(
                    across, [1e3 * point.timing.steady for point in growth.points], label=cost.subject.name, **look
                )
    for axes, name in ((left, "fine pixels"), (right, "bands")):
        measured = "time" if result.device == "cuda" else "processor time"
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel=f"{measured} of one pair, ms")
        shown = sorted({across for line in axes.get_lines() for across in line.get_xdata()})
        axes.set_xticks(shown, [f"{round(across**0.5)}²" if axes is left else f"{across:g}" for across in shown])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(which="major", alpha=0.3, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"Time against {name}", loc="left", fontsize=MEDIUM)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=SMALL, frameon=False)
    return figure


def _exponents(growth: Growth) -> str:
    found = (growth.of_time, growth.of_memory, growth.of_multiply_adds)
    return " | ".join("" if each is None else f"{each:z.2f}" for each in found)


def _megabytes(amount: int | None) -> str:
    return "" if amount is None else f"{amount / 1e6:.0f} MB"


def _cost(cost: SubjectCost) -> dict[str, Any]:
    return {
        "name": cost.subject.name,
        "kind": cost.subject.kind,
        "parameters": cost.parameters,
        "multiply_adds": cost.multiply_adds,
        "seconds": cost.timing.seconds,
        "standard_deviation": cost.timing.deviation,
        "fastest_seconds": cost.timing.fastest,
        "processor_seconds": cost.timing.processor_seconds,
        "warm_up": cost.timing.warm_up,
        "repeats": cost.timing.repeats,
        "peak_bytes": cost.timing.peak_bytes,
        "megapixels_per_second": cost.megapixels_per_second,
        "in_matmuls": cost.in_matmuls,
        "share_of_matmul": cost.share_of_matmul,
        "growth_with_pixels": _growth(cost.with_pixels),
        "growth_with_bands": _growth(cost.with_bands),
    }


def _growth(growth: Growth | None) -> dict[str, Any] | None:
    if growth is None:
        return None
    return {
        "exponent_of_time": growth.of_time,
        "exponent_of_memory": growth.of_memory,
        "exponent_of_multiply_adds": growth.of_multiply_adds,
        "points": [
            {
                **_size(point.size),
                "steady_seconds": point.timing.steady,
                "peak_bytes": point.timing.peak_bytes,
                "multiply_adds": point.multiply_adds,
            }
            for point in growth.points
        ],
    }


def _size(size: PairSize) -> dict[str, Any]:
    return {
        "bands": size.bands,
        "msi_bands": size.msi_bands,
        "fine_side": size.side,
        "coarse_side": size.coarse_side,
        "scale": size.scale,
    }


def _printed(paper: PrintedEfficiency) -> dict[str, float]:
    found = {
        "parameters_millions": paper.parameters_millions,
        "flops_g": paper.flops_g,
        "milliseconds": paper.milliseconds,
        "peak_memory_gb": paper.peak_memory_gb,
        "megapixels_per_second": paper.megapixels_per_second,
    }
    assert all(math.isfinite(each) for each in found.values())
    return found


AUTO, CPU, CUDA = "auto", "cpu", "cuda"


@dataclass(frozen=True)
class EfficiencyRequest:
    """`networks` and `methods`: None for all. `threads` of the processor: None for as many as torch takes."""

    size: PairSize
    networks: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    weights: tuple[str, ...] = ()
    effort: Effort = field(default_factory=Effort)
    device: str = AUTO
    threads: int | None = None
    growth: bool = True


def run_efficiency(request: EfficiencyRequest, folder: Path, *, overwrite: bool = False) -> list[Path]:
    """The files that were written: JSON, Markdown and, with growth, the figure."""
    device = _device(request.device)
    _require_memory(request.size)
    subjects = find_subjects(request.networks, request.methods, request.weights)
    _make_folder(folder, overwrite=overwrite)
    before = torch.get_num_threads()
    try:
        if request.threads is not None:
            torch.set_num_threads(request.threads)
        result = measure_efficiency(subjects, request.size, request.effort, device, with_growth=request.growth)
        if not result.costs:
            raise OptionError(
                f"nothing that takes {request.size.bands} and {request.size.msi_bands} bands",
                remedy="choose other --bands",
            )
        return write_efficiency(result, folder, _command(), overwrite=overwrite)
    finally:
        torch.set_num_threads(before)


def _device(name: str) -> str:
    if name not in (AUTO, CPU, CUDA):
        raise OptionError(f"device {name!r}", f"{AUTO}, {CPU} or {CUDA}")
    if name == CUDA and not torch.cuda.is_available():
        raise OptionError("device cuda, but no CUDA device here", "cpu", "leave out --device")
    return (CUDA if torch.cuda.is_available() else CPU) if name == AUTO else name


def _require_memory(size: PairSize) -> None:
    room = default_ram_gb() * GIGABYTE
    if size.bytes_in_use > room:
        raise OptionError(
            f"a pair of {size.side}x{size.side} pixels and {size.bands} bands needs about {size.bytes_in_use / GIGABYTE:.1f} GB",
            f"at most {room / GIGABYTE:.1f} GB, half of this machine's memory",
            "choose a smaller --size or fewer --bands",
        )


def _make_folder(folder: Path, *, overwrite: bool) -> None:
    """Said before the minutes of work, not after them."""
    if folder.exists() and not folder.is_dir():
        raise CubeWriteError(f"{folder} is a file", "a folder", "choose another -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CubeWriteError(
            f"cannot make the folder {folder}: {error.strerror}", remedy="choose another -o"
        ) from error
    for name in (JSON_NAME, MARKDOWN_NAME, FIGURE_NAME):
        check_writable(folder / name, overwrite=overwrite)


def _command() -> str:
    """As it was typed, whatever the program is called here."""
    return shlex.join(["hyperfuse", *sys.argv[1:]])
