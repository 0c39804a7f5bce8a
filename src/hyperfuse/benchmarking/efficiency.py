"""Time, memory and growth of networks and methods on this machine.

Measured are presets with fresh weights, trained networks from their folders, and methods. As in the paper, a time is
the mean of 50 runs after 20 of warm-up; of longer runs, as many as fit into the given seconds (see the table).
Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

from hyperfuse.benchmarking.cases import named_folder, takes_bands
from hyperfuse.benchmarking.results import current_session, printed_efficiency
from hyperfuse.benchmarking.run import measured
from hyperfuse.benchmarking.tables import render
from hyperfuse.config import LARGEST_SIDE, EfficiencyConfig
from hyperfuse.errors import OptionError
from hyperfuse.fusion.fusers import fuse_with_network, load_network
from hyperfuse.fusion.plan import GIGABYTE, default_ram_gb
from hyperfuse.io.atomic import check_writable, make_folder, published
from hyperfuse.methods.catalogue import DEFAULT, METHODS, fuse_arrays
from hyperfuse.methods.universal import shipped_network
from hyperfuse.models.analysis import count_parameters, multiply_adds, performed_multiply_adds
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.catalogue import BASELINE_PRESETS, AnyBaselineConfig, AnyNetwork, build_network
from hyperfuse.models.ssa import PRESETS, SSAConfig
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.progress import progress
from hyperfuse.reporting.style import COLOURS, MARKERS, MEDIUM, SMALL, clean_axes, new_figure

MATMUL_SIDE = 1024
FEWEST_REPEATS = 3
# Growth is fitted to these shares of the pair's side, and to these numbers of bands on a smaller pair.
SIDES = (0.25, 0.375, 0.5, 1.0, 1.5, 2.0)
BAND_COUNTS = (16, 31, 62, 124, 186)
SIDE_FOR_BANDS = 0.25
FEWEST_POINTS = 3
IMAGES_AT_ONCE = 8
AUTO, CPU, CUDA = "auto", "cpu", "cuda"
JSON_NAME, MARKDOWN_NAME, FIGURE_NAME = "efficiency.json", "efficiency.md", "efficiency.png"
NETWORK, BASELINE, METHOD = "network", "baseline", "method"
LINE_STYLES = {NETWORK: "-", BASELINE: "--", METHOD: ":"}
# The paper's names of the presets that have its sizes.
PRINTED_NAMES = {"dspnet": "DSPNet", "mimo-sst": "MIMO-SST", "dcinn": "DCINN", "pstun": "PSTUN", "ssa-6-6": "SSA"}

Run = Callable[[], Tensor]


@dataclass(frozen=True)
class PairSize:
    """One pair: `side` fine pixels along rows and columns, `scale` times fewer coarse ones."""

    bands: int
    msi_bands: int
    side: int
    scale: float

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
        msi_band = torch.arange(self.bands) * self.msi_bands // self.bands
        srf = (msi_band == torch.arange(self.msi_bands)[:, None]).double()
        srf = srf / srf.sum(dim=1, keepdim=True).clamp_min(1.0)
        return known_observation(srf, self.side / self.coarse_side)

    def as_dict(self) -> dict[str, Any]:
        sides = {"fine_side": self.side, "coarse_side": self.coarse_side}
        return {"bands": self.bands, "msi_bands": self.msi_bands, **sides, "scale": self.scale}


@dataclass(frozen=True, eq=False)
class Subject:
    """A network with fresh weights by its `config`, a `trained` one, or a method, which has neither."""

    name: str
    kind: str
    config: SSAConfig | AnyBaselineConfig | None = None
    trained: AnyNetwork | None = None

    def fits(self, size: PairSize) -> bool:
        return takes_bands(self._network(size, "meta"), size.bands, size.msi_bands)

    def parameters(self, size: PairSize) -> int:
        network = self._network(size, "meta")
        if network is None:
            return count_parameters(shipped_network()) if self.name == DEFAULT else 0
        return count_parameters(network)

    def multiply_adds(self, size: PairSize) -> int:
        """Of methods, and networks that build on one, matrix products only; decompositions are not counted."""
        if self.config is None:
            return multiply_adds(self.prepared(size, CPU))
        fine, coarse = (size.side, size.side), (size.coarse_side, size.coarse_side)
        return performed_multiply_adds(_for_bands(self.config, size), size.bands, size.msi_bands, fine, coarse)

    def prepared(self, size: PairSize, device: str) -> Run:
        """The fusion of one pair whose observation is known; everything that happens once is done before."""
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
        with torch.device(device):
            return build_network(_for_bands(self.config, size))


def _for_bands(config: SSAConfig | AnyBaselineConfig, size: PairSize) -> SSAConfig | AnyBaselineConfig:
    return config if isinstance(config, SSAConfig) else config.with_bands(size.bands, size.msi_bands)


def find_subjects(
    networks: Sequence[str] | None, methods: Sequence[str] | None, weights: Sequence[str]
) -> list[Subject]:
    """All presets and all methods where none are named; an empty list names none."""
    presets = {name: Subject(name, NETWORK, config) for name, config in PRESETS.items()}
    presets |= {name: Subject(name, BASELINE, config) for name, config in BASELINE_PRESETS.items()}
    listed = {name: Subject(name, METHOD) for name in METHODS}
    chosen = []
    for kind, known, names in ((NETWORK, presets, networks), (METHOD, listed, methods)):
        for name in known if names is None else names:
            if name not in known:
                raise OptionError(f"no {kind} is called {name!r}", f"one of {', '.join(known)}")
            chosen.append(known[name])
    for folder in weights:
        name, path = named_folder(folder, ("weights", "best"))
        network = load_network(str(path))
        kind = BASELINE if isinstance(network, BaselineNetwork) else NETWORK
        chosen.append(Subject(name, kind, trained=network))
    if not chosen:
        raise OptionError("nothing to measure", "at least one network, method or folder of weights")
    names = [subject.name for subject in chosen]
    numbers = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [
        subject if number == 1 else replace(subject, name=f"{subject.name} {number}")
        for subject, number in zip(chosen, numbers, strict=True)
    ]


@dataclass(frozen=True)
class Timing:
    seconds: float
    """Mean of the runs."""
    standard_deviation: float
    fastest_seconds: float
    processor_seconds: float | None
    """Least of the runs, all threads together: independent of other work on the machine. None on a CUDA device."""
    warm_up: int
    repeats: int
    peak_bytes: int | None
    """Growth of memory at its peak, on CUDA that of the device; None where it cannot be measured."""

    @property
    def steady_seconds(self) -> float:
        """For growth and comparisons: the seconds that depend least on other work on the machine."""
        return self.fastest_seconds if self.processor_seconds is None else self.processor_seconds


@dataclass(frozen=True)
class Growth:
    """Exponents p of cost ~ size^p, fitted to the points; None where too few could be measured.

    A point is the size of a pair with its `steady_seconds`, `peak_bytes` and `multiply_adds`.
    """

    exponent_of_time: float | None
    exponent_of_memory: float | None
    exponent_of_multiply_adds: float | None
    points: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class SubjectCost(Timing):
    name: str
    kind: str
    parameters: int
    multiply_adds: int
    megapixels_per_second: float
    in_matmuls: float
    """In units of this machine's product of two 1024 x 1024 matrices, timed right before it, in steady seconds."""
    share_of_matmul: float | None
    """Multiply-adds per second relative to those of the matrix product; None where none were counted."""
    growth_with_pixels: Growth | None = None
    growth_with_bands: Growth | None = None


@dataclass(frozen=True)
class EfficiencyResult:
    size: PairSize
    device: str
    matmul_seconds: float
    costs: list[SubjectCost]
    left_out: list[str] = field(default_factory=list)
    """Names of subjects that do not take a pair of these bands."""

    @property
    def has_growth(self) -> bool:
        return any(cost.growth_with_pixels is not None for cost in self.costs)


def measure_efficiency(
    subjects: Sequence[Subject], size: PairSize, effort: EfficiencyConfig, device: str
) -> EfficiencyResult:
    """Measure every subject that fits the pair's bands, as often, as long and with growth as `effort` says."""
    fitting = [subject for subject in subjects if subject.fits(size)]
    quick = effort.replace(warm_up=1, seconds=effort.seconds / 4)
    by_side, by_bands = growth_sizes(size)
    costs: list[SubjectCost] = []
    matmuls: list[float] = []
    total = len(fitting) * (3 if effort.growth else 1)
    # Methods warn of random pairs.
    with progress("Measuring", total) as advance, warnings.catch_warnings(action="ignore"):
        for subject in fitting:
            matmuls.append(matmul_seconds(device))
            cost = _measure(subject, size, effort, device, matmuls[-1])
            advance(1)
            if effort.growth:
                known = {size: _point(size, cost, cost.multiply_adds)}
                pixels = _measure_growth(subject, by_side, quick, device, lambda each: each.pixels, known)
                advance(1)
                bands = _measure_growth(subject, by_bands, quick, device, lambda each: each.bands, known)
                advance(1)
                cost = replace(cost, growth_with_pixels=pixels, growth_with_bands=bands)
            costs.append(cost)
    left_out = [subject.name for subject in subjects if subject not in fitting]
    return EfficiencyResult(size, device, min(matmuls, default=math.nan), costs, left_out)


def growth_sizes(size: PairSize) -> tuple[list[PairSize], list[PairSize]]:
    """Pairs of other sides, and of other numbers of bands, that fit into memory."""
    smallest = math.ceil(8 * size.scale)
    sides = sorted({min(LARGEST_SIDE, max(smallest, round(share * size.side))) for share in SIDES})
    small = replace(size, side=max(smallest, round(SIDE_FOR_BANDS * size.side)))
    counts = sorted({max(count, size.msi_bands) for count in BAND_COUNTS})
    room = default_ram_gb() * GIGABYTE
    candidates = [replace(size, side=side) for side in sides], [replace(small, bands=count) for count in counts]
    by_side, by_bands = ([each for each in listed if each.bytes_in_use <= room] for listed in candidates)
    return by_side, by_bands


def timed(run: Run, effort: EfficiencyConfig, device: str) -> Timing:
    """Warm up and repeat as far as the seconds go: at least once and three times."""
    warm_up, spent = 0, 0.0
    while warm_up == 0 or (warm_up < effort.warm_up and spent < effort.seconds / 4):
        spent += _seconds_of(run, device)
        warm_up += 1
    seconds: list[float] = []
    processor_seconds: list[float] = []
    while len(seconds) < FEWEST_REPEATS or (len(seconds) < effort.repeats and sum(seconds) < effort.seconds):
        before = time.process_time()
        seconds.append(_seconds_of(run, device))
        processor_seconds.append(time.process_time() - before)
    return Timing(
        seconds=float(np.mean(seconds)),
        standard_deviation=float(np.std(seconds)),
        fastest_seconds=min(seconds),
        processor_seconds=None if device == CUDA else min(processor_seconds),
        warm_up=warm_up,
        repeats=len(seconds),
        peak_bytes=_peak_bytes(run, device),
    )


def _seconds_of(run: Run, device: str) -> float:
    start = time.perf_counter()
    run()
    if device == CUDA:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _peak_bytes(run: Run, device: str) -> int | None:
    if device != CUDA:
        return measured(run)[1].peak_bytes
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def matmul_seconds(device: str) -> float:
    """Steady seconds of a product of two 1024 x 1024 matrices of float32: the best that a machine's arithmetic does."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(MATMUL_SIDE, MATMUL_SIDE, generator=generator).to(device) for _ in range(2))
    return timed(lambda: first @ second, EfficiencyConfig(warm_up=3, repeats=20, seconds=0.5), device).steady_seconds


def fitted_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """The slope of log cost over log size, by least squares."""
    usable = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if cost > 0]
    if len({size for size, _ in usable}) < FEWEST_POINTS:
        return None
    logarithms = np.log(np.array(usable))
    return float(np.polyfit(logarithms[:, 0], logarithms[:, 1], 1)[0])


def _measure(subject: Subject, size: PairSize, effort: EfficiencyConfig, device: str, matmul: float) -> SubjectCost:
    timing = timed(subject.prepared(size, device), effort, device)
    counted = subject.multiply_adds(size)
    in_matmuls = timing.steady_seconds / matmul
    return SubjectCost(
        **vars(timing),
        name=subject.name,
        kind=subject.kind,
        parameters=subject.parameters(size),
        multiply_adds=counted,
        megapixels_per_second=size.pixels / 1e6 / timing.seconds,
        in_matmuls=in_matmuls,
        share_of_matmul=counted / in_matmuls / MATMUL_SIDE**3 if counted else None,
    )


def _point(size: PairSize, timing: Timing, counted: int) -> dict[str, Any]:
    costs = {"steady_seconds": timing.steady_seconds, "peak_bytes": timing.peak_bytes, "multiply_adds": counted}
    return size.as_dict() | costs


def _measure_growth(
    subject: Subject,
    sizes: Sequence[PairSize],
    effort: EfficiencyConfig,
    device: str,
    extent: Callable[[PairSize], int],
    known: dict[PairSize, dict[str, Any]],
) -> Growth:
    """From the smallest up; a size that would take longer than its seconds, by the one before it, is left out."""
    measured_sizes: list[PairSize] = []
    for size in filter(subject.fits, sizes):
        if size not in known:
            before = measured_sizes[-1] if measured_sizes else None
            if before and known[before]["steady_seconds"] * extent(size) / extent(before) > effort.seconds:
                continue
            timing = timed(subject.prepared(size, device), effort, device)
            known[size] = _point(size, timing, subject.multiply_adds(size))
        measured_sizes.append(size)
    points = tuple(known[size] for size in measured_sizes)
    extents = [float(extent(size)) for size in measured_sizes]
    time_exponent, memory_exponent, count_exponent = (
        fitted_exponent(extents, [point[cost] or 0 for point in points])
        for cost in ("steady_seconds", "peak_bytes", "multiply_adds")
    )
    return Growth(time_exponent, memory_exponent, count_exponent, points)


def run_efficiency(folder: Path, config: EfficiencyConfig) -> list[Path]:
    """Measure and write JSON, Markdown and, with growth, a figure; the files that were written."""
    size = PairSize(config.bands, config.msi_bands, config.size, config.scale)
    device: str = config.device
    if device == CUDA and not torch.cuda.is_available():
        raise OptionError("device cuda, but no CUDA device here", "cpu", "leave out --device")
    if device == AUTO:
        device = CUDA if torch.cuda.is_available() else CPU
    needed, room = size.bytes_in_use / GIGABYTE, default_ram_gb()
    if needed > room:
        got = f"a pair of {size.side}x{size.side} pixels and {size.bands} bands needs about {needed:.1f} GB"
        expected = f"at most {room:.1f} GB, half of this machine's memory"
        raise OptionError(got, expected, "choose a smaller --size or fewer --bands")
    subjects = find_subjects(config.networks, config.methods, config.weights)
    make_folder(folder)
    for name in (JSON_NAME, MARKDOWN_NAME, FIGURE_NAME):
        check_writable(folder / name, overwrite=config.overwrite)
    before = torch.get_num_threads()
    try:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        result = measure_efficiency(subjects, size, config, device)
        if not result.costs:
            raise OptionError(f"nothing for {size.bands} and {size.msi_bands} bands", remedy="choose other --bands")
        return _write_files(result, folder, overwrite=config.overwrite)
    finally:
        torch.set_num_threads(before)


def _write_files(result: EfficiencyResult, folder: Path, *, overwrite: bool) -> list[Path]:
    """All of them or none; a figure of an earlier measurement goes."""
    about = {
        "session": current_session(shlex.join(["hyperfuse", *sys.argv[1:]])),
        "device": result.device,
        "matmul_seconds": result.matmul_seconds,
        "left_out": result.left_out,
    }
    document = about | {
        "pair": result.size.as_dict(),
        "subjects": [asdict(cost) for cost in result.costs],
        "as_printed": [asdict(each) for each in printed_efficiency()],
    }
    printed = {each.method: each for each in printed_efficiency()}
    compared = [(cost, printed[PRINTED_NAMES[cost.name]]) for cost in result.costs if cost.name in PRINTED_NAMES]
    page = render("efficiency.md.j2", **about, result=result, size=result.size, compared=compared)
    figure = folder / FIGURE_NAME
    paths = [folder / JSON_NAME, folder / MARKDOWN_NAME, *([figure] if result.has_growth else [])]
    stale = [] if result.has_growth else [figure]
    with published(paths[0], overwrite=overwrite, beside=paths[1:], stale=stale) as target:
        target.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        target.with_name(MARKDOWN_NAME).write_text(page + "\n", encoding="utf-8")
        if result.has_growth:
            _growth_figure(result).savefig(target.with_name(FIGURE_NAME), format="png")
    return paths


def _growth_figure(result: EfficiencyResult) -> Figure:
    """Time against pixels and against bands, both axes logarithmic: a slope of 1 is proportional."""
    figure = new_figure(11.5, 5.6, 110, layout="constrained")
    markers_and_colours = list(itertools.product(MARKERS, COLOURS))
    measured_time = "time" if result.device == CUDA else "processor time"
    panels: Any = figure.subplots(1, 2)
    growths = {"fine pixels": "growth_with_pixels", "bands": "growth_with_bands"}
    for axes, (name, growth_of) in zip(panels, growths.items(), strict=True):
        for place, cost in enumerate(result.costs):
            growth = getattr(cost, growth_of)
            if growth is not None and growth.points:
                # Neighbours differ in both colour and marker.
                marker, colour = markers_and_colours[(place * (len(COLOURS) + 1)) % len(markers_and_colours)]
                line = {"linestyle": LINE_STYLES[cost.kind], "markersize": 4, "linewidth": 1.2}
                x = [point["bands"] if name == "bands" else point["fine_side"] ** 2 for point in growth.points]
                y = [1e3 * point["steady_seconds"] for point in growth.points]
                axes.plot(x, y, label=cost.name, color=colour, marker=marker, **line)
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel=f"{measured_time} of one pair, ms")
        ticks = sorted({x for line in axes.get_lines() for x in line.get_xdata()})
        axes.set_xticks(ticks, [f"{round(x**0.5)}²" if name != "bands" else str(x) for x in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(f"Time against {name}", loc="left", fontsize=MEDIUM)
        clean_axes(axes, alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=SMALL, frameon=False)
    return figure
