"""Time, memory and growth of everything that fuses, on this machine.

The paper measures the mean of 50 runs after 20 that do not count. So do we where a run is short; where it is long, on a processor,
as many as fit into the seconds that are given, and the table says how many.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from hyperfuse.prediction.memory import GIGABYTE, default_ram_gb
from hyperfuse.progress import progress
from hyperfuse.scoring.efficiency_subjects import LARGEST_SIDE, PairSize, Run, Subject
from hyperfuse.scoring.measuring import measured

MATMUL_SIDE = 1024
FEWEST_REPEATS = 3
# What growth is fitted to: shares of the pair's side, and numbers of bands on a smaller pair.
SIDES = (0.25, 0.375, 0.5, 1.0, 1.5, 2.0)
BAND_COUNTS = (16, 31, 62, 124, 186)
SIDE_FOR_BANDS = 0.25
FEWEST_POINTS = 3


@dataclass(frozen=True)
class Effort:
    """How long to measure: at most so many runs, and about so many seconds for each subject and size."""

    warm_up: int = 20
    repeats: int = 50
    seconds: float = 5.0


@dataclass(frozen=True)
class Timing:
    seconds: float
    """Mean of the runs."""
    deviation: float
    fastest: float
    processor_seconds: float | None
    """Least of the runs, all threads together: what a busy machine does not stretch. None on a CUDA device."""
    warm_up: int
    repeats: int
    peak_bytes: int | None
    """Beyond what was held before; of the device where it is a CUDA one; None where it cannot be measured."""

    @property
    def steady(self) -> float:
        """What growth and comparisons are made of: seconds that depend least on what else the machine does."""
        return self.fastest if self.processor_seconds is None else self.processor_seconds


@dataclass(frozen=True)
class Point:
    """One size on the way to how a subject grows."""

    size: PairSize
    timing: Timing
    multiply_adds: int


@dataclass(frozen=True)
class Growth:
    """Exponents p of cost ~ size^p, fitted to the points; None where too few could be measured."""

    points: tuple[Point, ...]
    of_time: float | None
    of_memory: float | None
    of_multiply_adds: float | None


@dataclass(frozen=True)
class SubjectCost:
    subject: Subject
    parameters: int
    multiply_adds: int
    timing: Timing
    megapixels_per_second: float
    in_matmuls: float
    """In units of this machine's product of two 1024 x 1024 matrices, timed right before it, in steady seconds."""
    share_of_matmul: float | None
    """Multiply-adds per second, of those that this machine's matrix product reaches; None where none were counted."""
    with_pixels: Growth | None = None
    with_bands: Growth | None = None


@dataclass(frozen=True)
class EfficiencyResult:
    size: PairSize
    device: str
    matmul_seconds: float
    costs: list[SubjectCost]
    left_out: list[str] = field(default_factory=list)
    """Names of subjects that do not take a pair of these bands."""


def measure_efficiency(
    subjects: Sequence[Subject], size: PairSize, effort: Effort, device: str, *, with_growth: bool = True
) -> EfficiencyResult:
    fitting = [subject for subject in subjects if subject.fits(size)]
    costs: list[SubjectCost] = []
    with progress("Measuring", total=len(fitting) * (3 if with_growth else 1)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # methods warn of what random pairs look like
        matmuls: list[float] = []
        for subject in fitting:
            matmuls.append(matmul_seconds(device))
            cost = _cost(subject, size, effort, device, matmuls[-1])
            advance(1)
            if with_growth:
                quick = replace(effort, warm_up=1, seconds=effort.seconds / 4)
                by_side, by_bands = growth_sizes(size)
                known = {size: Point(size, cost.timing, cost.multiply_adds)}
                pixels = _growth(subject, by_side, quick, device, lambda each: each.pixels, known)
                advance(1)
                bands = _growth(subject, by_bands, quick, device, lambda each: each.bands, known)
                advance(1)
                cost = replace(cost, with_pixels=pixels, with_bands=bands)
            costs.append(cost)
    left_out = [subject.name for subject in subjects if subject not in fitting]
    return EfficiencyResult(size, device, min(matmuls, default=math.nan), costs, left_out)


def growth_sizes(size: PairSize) -> tuple[list[PairSize], list[PairSize]]:
    """Pairs of other sides, and of other numbers of bands, that fit into memory."""
    smallest = math.ceil(8 * size.scale)
    sides = sorted({min(LARGEST_SIDE, max(smallest, round(share * size.side))) for share in SIDES})
    small = replace(size, side=max(smallest, round(SIDE_FOR_BANDS * size.side)))
    counts = sorted({max(each, size.msi_bands) for each in BAND_COUNTS})
    room = default_ram_gb() * GIGABYTE
    by_side, by_bands = [replace(size, side=side) for side in sides], [replace(small, bands=count) for count in counts]
    return [each for each in by_side if each.bytes_in_use <= room], [each for each in by_bands if each.bytes_in_use <= room]


def timed(run: Run, effort: Effort, device: str) -> Timing:
    """Warm-up and repeats as far as the seconds go: never less than one and three."""
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else _nothing
    warm_up, spent = 0, 0.0
    while warm_up == 0 or (warm_up < effort.warm_up and spent < effort.seconds / 4):
        spent += _seconds_of(run, wait)
        warm_up += 1
    seconds: list[float] = []
    processor_seconds: list[float] = []
    while len(seconds) < FEWEST_REPEATS or (len(seconds) < effort.repeats and sum(seconds) < effort.seconds):
        before = time.process_time()
        seconds.append(_seconds_of(run, wait))
        processor_seconds.append(time.process_time() - before)
    return Timing(
        seconds=float(np.mean(seconds)),
        deviation=float(np.std(seconds)),
        fastest=min(seconds),
        processor_seconds=None if device == "cuda" else min(processor_seconds),
        warm_up=warm_up,
        repeats=len(seconds),
        peak_bytes=_peak_bytes(run, device),
    )


def matmul_seconds(device: str) -> float:
    """Steady seconds of a product of two 1024 x 1024 matrices of float32: what a machine's arithmetic can do at best."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(MATMUL_SIDE, MATMUL_SIDE, generator=generator).to(device) for _ in range(2))
    return timed(lambda: first @ second, Effort(warm_up=3, repeats=20, seconds=0.5), device).steady


def fitted_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """The slope of log cost over log size, by least squares."""
    usable = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if cost > 0]
    if len(usable) < FEWEST_POINTS or len({size for size, _ in usable}) < FEWEST_POINTS:
        return None
    logarithms = np.log(np.array(usable))
    return float(np.polyfit(logarithms[:, 0], logarithms[:, 1], 1)[0])


def _cost(subject: Subject, size: PairSize, effort: Effort, device: str, matmul: float) -> SubjectCost:
    timing = timed(subject.prepared(size, device), effort, device)
    counted = subject.multiply_adds(size)
    return SubjectCost(
        subject=subject,
        parameters=subject.parameters(size),
        multiply_adds=counted,
        timing=timing,
        megapixels_per_second=size.pixels / 1e6 / timing.seconds,
        in_matmuls=timing.steady / matmul,
        share_of_matmul=(counted / timing.steady) / (MATMUL_SIDE**3 / matmul) if counted else None,
    )


def _growth(
    subject: Subject,
    sizes: Sequence[PairSize],
    effort: Effort,
    device: str,
    extent: Callable[[PairSize], int],
    known: dict[PairSize, Point],
) -> Growth:
    """From the smallest up; a size that would take longer than its seconds, by what came before it, is left out."""
    points: list[Point] = []
    for size in sizes:
        if not subject.fits(size):
            continue
        if size not in known:
            if points and points[-1].timing.steady * extent(size) / extent(points[-1].size) > effort.seconds:
                continue
            known[size] = Point(size, timed(subject.prepared(size, device), effort, device), subject.multiply_adds(size))
        points.append(known[size])
    extents = [float(extent(point.size)) for point in points]
    memory = [float(point.timing.peak_bytes or 0) for point in points]
    return Growth(
        tuple(points),
        fitted_exponent(extents, [point.timing.steady for point in points]),
        fitted_exponent(extents, memory),
        fitted_exponent(extents, [float(point.multiply_adds) for point in points]),
    )


def _peak_bytes(run: Run, device: str) -> int | None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    return measured(run)[1].peak_bytes


def _seconds_of(run: Run, wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def _nothing() -> None:
    """A processor's work is done when the call returns."""
