"""What is measured: presets of ours and of the rivals with fresh weights, trained networks from their folders, closed
forms.

Shapes: C bands, M msi bands, h w coarse, H W fine.

Time, memory and growth of everything that fuses, on this machine.

The paper measures the mean of 50 runs after 20 that do not count. So do we where a run is short; where it is long, on a
processor, as many as fit into the seconds that are given, and the table says how many.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hyperfuse.benchmarking.run import measured
from hyperfuse.errors import BandError, OptionError
from hyperfuse.fusion.memory import GIGABYTE, default_ram_gb
from hyperfuse.fusion.network import fuse_with_network, load_network, require_fitting_bands
from hyperfuse.methods.catalogue import DEFAULT, METHODS
from hyperfuse.methods.run import fuse_arrays
from hyperfuse.methods.universal import shipped_network
from hyperfuse.models.analysis import count_parameters, multiply_adds, performed_multiply_adds
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.baselines.catalogue import BASELINE_PRESETS, AnyNetwork, AnyBaselineConfig, build_baseline
from hyperfuse.models.config import PRESETS, NetworkConfig
from hyperfuse.models.ssa import FusionNetwork
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.progress import progress

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
    return [each for each in by_side if each.bytes_in_use <= room], [
        each for each in by_bands if each.bytes_in_use <= room
    ]


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
            known[size] = Point(
                size, timed(subject.prepared(size, device), effort, device), subject.multiply_adds(size)
            )
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


NETWORK, BASELINE, METHOD = "network", "rival", "method"
# Folders of weights are often called so; then the run that they belong to says more.
NAMELESS = ("weights", "best")
Run = Callable[[], Tensor]
MOST_BANDS, LARGEST_SIDE = 4096, 16384
IMAGES_AT_ONCE = 8


@dataclass(frozen=True)
class PairSize:
    """One pair: `side` fine pixels along rows and columns, `scale` times fewer coarse ones."""

    bands: int
    msi_bands: int
    side: int
    scale: float

    def __post_init__(self) -> None:
        if not (1 <= self.bands <= MOST_BANDS and 1 <= self.msi_bands <= MOST_BANDS):
            raise OptionError(
                f"{self.bands} and {self.msi_bands} bands", f"1 to {MOST_BANDS} of the HSI and of the MSI"
            )
        if not (2 <= self.side <= LARGEST_SIDE and 1 <= self.scale <= self.side / 2):
            raise OptionError(
                f"{self.side} pixels on a side at scale {self.scale:g}",
                f"at most {LARGEST_SIDE} pixels, and a scale from 1 up that leaves two coarse ones",
            )

    @property
    def coarse_side(self) -> int:
        return max(1, round(self.side / self.scale))

    @property
    def pixels(self) -> int:
        return self.side**2

    @property
    def bytes_in_use(self) -> int:
        """About what a fusion of such a pair holds at once."""
        return IMAGES_AT_ONCE * 4 * self.bands * self.pixels

    def random_pair(self) -> tuple[Tensor, Tensor]:
        """(C, h, w) and (M, H, W), always the same for the same size."""
        generator = torch.Generator().manual_seed(0)
        hsi = torch.rand(self.bands, self.coarse_side, self.coarse_side, generator=generator)
        return hsi, torch.rand(self.msi_bands, self.side, self.side, generator=generator)

    def observation(self) -> Observation:
        srf = torch.zeros(self.msi_bands, self.bands, dtype=torch.float64)
        for band in range(self.bands):
            srf[band * self.msi_bands // self.bands, band] = 1.0
        srf = srf / srf.sum(dim=1, keepdim=True).clamp_min(1.0)
        return known_observation(srf, self.side / self.coarse_side)


@dataclass(frozen=True, eq=False)
class Subject:
    """Something that fuses. `config` makes a network of fresh weights, `trained` is one from its folder; a method has
    neither.
    """

    name: str
    kind: str
    config: NetworkConfig | AnyBaselineConfig | None = None
    trained: AnyNetwork | None = None

    def fits(self, size: PairSize) -> bool:
        network = self._network(size, "meta")
        try:
            if network is not None:
                require_fitting_bands(network, size.bands, size.msi_bands)
        except BandError:
            return False
        return True

    def parameters(self, size: PairSize) -> int:
        if self.kind == METHOD:
            return count_parameters(shipped_network()) if self.name == DEFAULT else 0
        network = self._network(size, "meta")
        assert network is not None
        return count_parameters(network)

    def multiply_adds(self, size: PairSize) -> int:
        """Of a method, or a network that leans on one: its matrix products; decompositions are not counted."""
        if self.config is None:
            return multiply_adds(self.prepared(size, "cpu"))
        fine, coarse = (size.side, size.side), (size.coarse_side, size.coarse_side)
        return performed_multiply_adds(_for_bands(self.config, size), size.bands, size.msi_bands, fine, coarse)

    def prepared(self, size: PairSize, device: str) -> Run:
        """Everything that happens once is done; what is left is the fusion of one pair, told how it was observed."""
        hsi, msi = size.random_pair()
        observation = size.observation()
        network = self._network(size, device)
        if network is None:
            return lambda: fuse_arrays(hsi, msi, observation, self.name)
        network = network.eval().to(device)
        if self.trained is not None and not isinstance(network, BaselineNetwork):
            wavelength_nm = torch.linspace(450.0, 900.0, size.bands, dtype=torch.float64)
            return lambda: fuse_with_network(network, hsi, msi, observation, wavelength_nm)
        batch = hsi[None].to(device), msi[None].to(device)

        def run() -> Tensor:
            with torch.inference_mode():
                fused: Tensor = network(*batch)
            return fused

        return run

    def _network(self, size: PairSize, device: str) -> AnyNetwork | None:
        if self.trained is not None or self.config is None:
            return self.trained
        config = _for_bands(self.config, size)
        with torch.device(device):
            return FusionNetwork(config) if isinstance(config, NetworkConfig) else build_baseline(config)


def _for_bands(config: NetworkConfig | AnyBaselineConfig, size: PairSize) -> NetworkConfig | AnyBaselineConfig:
    return config if isinstance(config, NetworkConfig) else config.with_bands(size.bands, size.msi_bands)


def find_subjects(
    networks: Sequence[str] | None, methods: Sequence[str] | None, weights: Sequence[str]
) -> list[Subject]:
    """All presets and all methods where none are named; an empty list names none."""
    known: dict[str, Subject] = {name: Subject(name, NETWORK, config) for name, config in PRESETS.items()}
    known |= {name: Subject(name, BASELINE, config) for name, config in BASELINE_PRESETS.items()}
    chosen = [_named(known, name, "network") for name in (known if networks is None else networks)]
    listed = {name: Subject(name, METHOD) for name in METHODS}
    chosen += [_named(listed, name, "method") for name in (listed if methods is None else methods)]
    chosen += [_from_folder(folder) for folder in weights]
    if not chosen:
        raise OptionError("nothing to measure", "at least one network, method or folder of weights")
    return _distinct(chosen)


def _named(known: dict[str, Subject], name: str, what: str) -> Subject:
    if name not in known:
        raise OptionError(f"no {what} is called {name!r}", f"one of {', '.join(known)}")
    return known[name]


def _from_folder(folder: str) -> Subject:
    network = load_network(folder)
    path = Path(folder)
    name = path.parent.name if path.name in NAMELESS else path.name
    return Subject(name, BASELINE if isinstance(network, BaselineNetwork) else NETWORK, trained=network)


def _distinct(subjects: list[Subject]) -> list[Subject]:
    seen: dict[str, int] = {}
    found = []
    for subject in subjects:
        seen[subject.name] = seen.get(subject.name, 0) + 1
        found.append(
            subject if seen[subject.name] == 1 else replace(subject, name=f"{subject.name} {seen[subject.name]}")
        )
    return found
