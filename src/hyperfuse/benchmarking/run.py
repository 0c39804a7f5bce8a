"""`benchmark`: everybody on the same pairs, in one run that goes on where it was stopped.

Seconds and peak memory of a piece of work, and the processor seconds, which a busy machine does not stretch.

Memory is what the process's resident memory grows by at its peak, which the Linux kernel keeps and which is set back
before the work. What earlier work has freed but the allocator has kept is given back first, so that nobody works in
another's memory. Where there is no such kernel, memory is not measured.

The scores of a fused image: one protocol for all tables.

The fused image is clipped to 0..1, the range of the reference. PSNR is pooled over all bands and pixels with peak 1,
the spectral angle is the mean over pixels in degrees, ERGAS has the factor 100/scale, SSIM is the mean over bands. See
docs/metrics.md.
"""

from __future__ import annotations

import ctypes
import gc
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hyperfuse.benchmarking.cases import CaseName, CasePair
from hyperfuse.benchmarking.figures import case_folder, keep_views
from hyperfuse.benchmarking.models import BLIND, Competitor
from hyperfuse.benchmarking.plan import Plan, PlannedCase, make_plan
from hyperfuse.benchmarking.results import FAILED, RESULTS, SCORED, UNFIT, Result, ResultsFile, open_folder
from hyperfuse.data.splits import SplitKind
from hyperfuse.errors import Cancelled, GridError, HyperfuseError, ValueRangeError
from hyperfuse.io.atomic import target_lock
from hyperfuse.metrics.metrics import ergas, psnr_db, spectral_angle_degrees, ssim
from hyperfuse.progress import listening, progress

PROCESS = Path("/proc/self")
SET_PEAK_BACK = "5"

Made = TypeVar("Made")


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu_seconds: float
    """Of all threads together."""
    peak_bytes: int | None
    """Beyond what was held before; None where it cannot be measured."""


def measured(work: Callable[[], Made]) -> tuple[Made, Cost]:
    before = _resident_after_clearing()
    start, cpu_start = time.perf_counter(), time.process_time()
    made = work()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return made, Cost(seconds, cpu_seconds, None if before is None else max(0, _memory("VmHWM") - before))


def _resident_after_clearing() -> int | None:
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (PROCESS / "clear_refs").write_text(SET_PEAK_BACK)
        return _memory("VmRSS")
    except OSError:
        return None


def _memory(line: str) -> int:
    found = re.search(rf"{line}:\s+(\d+) kB", (PROCESS / "status").read_text())
    assert found is not None
    return 1024 * int(found[1])


PEAK = 1.0


@dataclass(frozen=True)
class Scores:
    """None is not defined: a PSNR of equal images, an SSIM of images without room for a window."""

    psnr_db: float | None
    spectral_angle_degrees: float | None
    ergas: float | None
    ssim: float | None


def scores(fused: NDArray[np.float32], pair: CasePair) -> Scores:
    reference = pair.reference.values
    if fused.shape != reference.shape:
        raise GridError(
            f"fused image of shape {fused.shape} for a reference of {reference.shape}",
            "the same bands and pixels",
            "cut the reference to what both images show",
        )
    valid = np.isfinite(reference).all(axis=0) if pair.valid is None else pair.valid
    holes = int(np.count_nonzero(~np.isfinite(fused).all(axis=0) & valid))
    if holes and pair.truth is not None:
        raise ValueRangeError(
            f"{holes} fused pixels without a value", "a value for every pixel of a pair without holes"
        )
    shown = np.clip(fused, 0.0, PEAK)
    return Scores(
        _defined(psnr_db(shown, reference, PEAK, valid)),
        _defined(spectral_angle_degrees(shown, reference, valid)),
        _defined(ergas(shown, reference, pair.scale, valid)),
        _defined(ssim(shown, reference, PEAK, valid)),
    )


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, eq=False)
class Benchmark:
    folder: Path
    results: list[Result]

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.state == FAILED]


def benchmark(
    folder: str | Path,
    *,
    scenes: Sequence[str] = (),
    pairs: Sequence[str] = (),
    methods: Sequence[str] = ("all",),
    weights: Sequence[str] = (),
    scales: Sequence[float] = (4.0,),
    srfs: Sequence[str] = ("rgb",),
    noise: Sequence[tuple[float, float]] = (),
    shift: Sequence[tuple[float, float]] = (),
    clean: bool = True,
    knowledge: Sequence[str] = (BLIND,),
    split: SplitKind = "disjoint",
    scenes_folder: Path | None = None,
    seed: int = 0,
    pictures: bool = True,
    command: str = "",
) -> Benchmark:
    """Score methods and networks on the same simulated and recorded pairs, and keep every result in `folder`.

    scenes      `[NAME=]SOURCE[@RESPONSE,...]` each: files, a folder, a pattern, or a data set of the catalogue
    pairs       `HSI,MSI,REFERENCE` each, or `REFERENCE,MSI` where the hsi is made of the reference; fused blind
    methods     names of `hyperfuse methods`, or "all"; `weights` are folders of networks, ours and rivals, or
                `NAME=FOLDER`
    responses   names or files, for scenes that name none of their own; those that a scene does not cover are left out
    noise       (hsi, msi) signal-to-noise ratios in dB; `shift` (down, right) in fine pixels: each a condition of its
                own beside
                the clean pairs
    knowledge   "blind": nothing is given but the pair; "oracle": the true point spread, shift, response and noise are

    pictures    keep of the first scene of each data set what `report.write_report` draws pictures from

    Called again on the same folder with the same arguments it goes on; failures are tried again. What failed is in
    `failed`.
    """
    plan = make_plan(
        scenes=scenes,
        pairs=pairs,
        methods=methods,
        weights=weights,
        scales=scales,
        srfs=srfs,
        noise=noise,
        shift=shift,
        clean=clean,
        knowledge=knowledge,
        split=split,
        scenes_folder=scenes_folder,
        seed=seed,
    )
    folder = Path(folder)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with target_lock(folder):
        open_folder(folder, plan.described, command)
        results = ResultsFile(folder / RESULTS)
        _run(plan, results, folder, plan.pictured if pictures else set())
    return Benchmark(folder, results.all())


def _run(plan: Plan, results: ResultsFile, folder: Path, pictured: set[CaseName]) -> None:
    keys = plan.keys
    with progress("Benchmark", len(keys), "runs", done=sum(results.is_done(key) for key in keys)) as advance:
        for case in plan.cases:
            todo = [
                (competitor, knowledge)
                for competitor in plan.competitors
                for knowledge in case.knowledge
                if not results.is_done((case.name, competitor.name, knowledge))
            ]
            for result in _run_case(case, todo, case_folder(folder, case.name) if case.name in pictured else None):
                results.add(result)
                advance(1)


def _run_case(case: PlannedCase, todo: Sequence[tuple[Competitor, str]], views: Path | None) -> Iterator[Result]:
    if not todo:
        return
    try:
        with listening(lambda report: None):  # bars of single steps would cover the one that counts
            pair = case.make()
    except Cancelled:
        raise
    except Exception as error:
        yield from (_failure(Result(case.name, each.name, knowledge, FAILED), error) for each, knowledge in todo)
        return
    for competitor, knowledge in todo:
        # An oracle's picture differs from the blind one by what no eye sees.
        kept = views if knowledge == case.knowledge[0] else None
        with listening(lambda report: None):
            result = run_competitor(competitor, knowledge, case.name, pair, kept)
        yield result


def run_competitor(
    competitor: Competitor, knowledge: str, case: CaseName, pair: CasePair, views: Path | None = None
) -> Result:
    """One result, whatever happens; with a folder for views, what pictures need is kept there first."""
    failed = Result(case, competitor.name, knowledge, FAILED)
    if not competitor.fits(pair):
        bands = f"{pair.hsi.sizes['band']} and {pair.msi.sizes['band']}"
        return replace(failed, state=UNFIT, message=f"not made for {bands} bands")
    try:
        competitor.warm_up(pair)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", UserWarning)
            fused, cost = measured(lambda: competitor.fused(pair, knowledge))
        warned = "; ".join(dict.fromkeys(str(each.message) for each in heard if each.category is UserWarning))
        figures = {**asdict(scores(fused, pair)), **asdict(cost)}
        if views is not None:
            keep_views(views, pair, competitor.name, fused)
        return replace(failed, state=SCORED, message=warned, **figures)
    except Cancelled:
        raise
    except Exception as error:
        return _failure(failed, error)


def _failure(failed: Result, error: Exception) -> Result:
    if isinstance(error, HyperfuseError):
        return replace(failed, message=str(error))
    return replace(failed, message=f"{type(error).__name__}: {error}".splitlines()[0], is_bug=True)
