"""`benchmark`: all models on the same pairs, in one run that can be resumed.

The protocol of all tables: the fused image is clipped to 0..1, the range of the reference; PSNR is pooled over all
bands and pixels with peak 1, the spectral angle is the mean over pixels in degrees, ERGAS has the factor 100/scale,
SSIM is the mean over bands. See docs/metrics.md.
"""

from __future__ import annotations

import ctypes
import gc
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyperfuse.benchmarking.cases import (
    ALL,
    BenchmarkModel,
    CasePair,
    Condition,
    PlannedCase,
    choose_scenes,
    find_models,
    listed_srfs,
    plan_cases,
    read_pairs,
)
from hyperfuse.benchmarking.results import (
    FAILED,
    RESULTS,
    SCORED,
    UNFIT,
    CaseName,
    Result,
    ResultsFile,
    open_folder,
)
from hyperfuse.benchmarking.tables import case_folder, keep_views
from hyperfuse.config import BenchmarkConfig, takes_options
from hyperfuse.errors import Cancelled, GridError, HyperfuseError, OptionError, ValueRangeError
from hyperfuse.io.atomic import target_lock
from hyperfuse.metrics.metrics import ergas, psnr_db, sam_degrees, ssim
from hyperfuse.physics.imperfections import IMPERFECTIONS, find_imperfections
from hyperfuse.progress import listening, progress

PROTOCOL = 2
"""Results of one protocol may be compared; increase it with every change."""
PROCESS = Path("/proc/self")
PEAK = 1.0

Made = TypeVar("Made")


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu_seconds: float
    """Of all threads together; other work on the machine does not increase it."""
    peak_bytes: int | None
    """By which resident memory grew at its peak; None where the kernel does not provide it."""


def measured(work: Callable[[], Made]) -> tuple[Made, Cost]:
    """Run `work` and measure its time and peak memory."""
    before = _resident_after_clearing()
    start, cpu_start = time.perf_counter(), time.process_time()
    made = work()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return made, Cost(seconds, cpu_seconds, None if before is None else max(0, _memory("VmHWM") - before))


def _resident_after_clearing() -> int | None:
    """Return freed memory to the system, so that work does not hide in what was allocated before; reset the peak."""
    gc.collect()
    # glibc only; Windows has no library of no name.
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (PROCESS / "clear_refs").write_text("5")  # resets VmHWM
        return _memory("VmRSS")
    except OSError:
        return None


def _memory(line: str) -> int:
    found = re.search(rf"{line}:\s+(\d+) kB", (PROCESS / "status").read_text())
    return 1024 * int(found[1]) if found else 0


def score(fused: NDArray[np.float32], pair: CasePair) -> dict[str, float | None]:
    """Scores by name; None where undefined: a PSNR of equal images, an SSIM of images smaller than its window."""
    reference = pair.reference.values
    if fused.shape != reference.shape:
        got = f"fused image of shape {fused.shape} for a reference of {reference.shape}"
        raise GridError(got, "the same bands and pixels", "cut the reference to what both images show")
    valid = np.isfinite(reference).all(axis=0) if pair.valid is None else pair.valid
    missing = int(np.count_nonzero(~np.isfinite(fused).all(axis=0) & valid))
    if missing and pair.truth is not None:
        raise ValueRangeError(f"{missing} fused pixels without a value", "a value for every pixel of a complete pair")
    shown = np.clip(fused, 0.0, PEAK)
    scores = {
        "psnr_db": psnr_db(shown, reference, PEAK, valid),
        "spectral_angle_degrees": sam_degrees(shown, reference, valid),
        "ergas": ergas(shown, reference, pair.scale, valid),
        "ssim": ssim(shown, reference, PEAK, valid),
    }
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


@dataclass(frozen=True, eq=False, repr=False)
class Benchmark:
    """Results of a benchmark, in the order of its cases, and the folder that holds them."""

    folder: Path
    results: list[Result]

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.state == FAILED]

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in Counter(each.state for each in self.results).items())
        lines = [f"Benchmark in {self.folder}: {states}"]
        for each in self.results:
            psnr = each.state if each.psnr_db is None else f"{each.psnr_db:.2f} dB"
            lines.append(f"  {each.case}: {each.model} ({each.knowledge}) {psnr}")
        return "\n".join(lines)


@takes_options(BenchmarkConfig)
def benchmark(folder: str | Path, *, config: BenchmarkConfig | None = None, command: str = "") -> Benchmark:
    """Score methods and networks on the same simulated and recorded pairs, and keep every result in `folder`.

    Called again with the same folder and arguments it resumes; failed cases are tried again.

    Parameters
    ----------
    folder
        Where results are kept; a new one, or one of the same request.
    config : BenchmarkConfig, optional
        Scenes, pairs, methods, weights, scales, SRFs, conditions and knowledge in one object; each may also be given as
        a keyword. See docs/options.md.
    command
        Recorded with the results.

    Returns
    -------
    Benchmark
        All results; models that failed are in `failed`. `hyperfuse.benchmarking.tables.write_report` makes tables.

    Raises
    ------
    OptionError
        An argument is wrong, or the folder belongs to another request. Nothing has been run then.

    Examples
    --------
    >>> import hyperfuse, tempfile
    >>> values = np.random.default_rng(0).random((8, 32, 32), dtype=np.float32)
    >>> scene = hyperfuse.make_cube(values, wavelength_nm=np.linspace(400, 750, 8))
    >>> file = hyperfuse.write_cube(scene, tempfile.mkdtemp() + "/scene.npz")
    >>> options = {"methods": ["bicubic", "gsa"], "knowledge": ["oracle"], "pictures": False}
    >>> hyperfuse.benchmark(file.parent / "scores", scenes=[str(file)], **options)
    Benchmark in ...scores: 2 scored
      scene, rgb, x4, clean: bicubic (oracle) ... dB
      scene, rgb, x4, clean: gsa (oracle) ... dB
    """
    config = config or BenchmarkConfig()
    _check_choices(config)
    conditions = [Condition()] if config.clean else []
    conditions += [Condition(noise_db=each) for each in config.noise]
    conditions += [Condition(shift=each) for each in config.shift]
    for listed in config.imperfections:
        conditions += [Condition(imperfection=kind) for kind in (IMPERFECTIONS if listed == ALL else [listed])]
    conditions = list(dict.fromkeys(conditions))
    if config.scenes and not conditions:
        expected = "clean pairs, noise, a shift or an imperfection"
        remedy = "leave out --no-clean, or add --noise, --shift or --imperfections"
        raise OptionError("no condition to simulate", expected, remedy)
    models = find_models(config.methods, config.weights)
    recorded = read_pairs(config.pairs, config)
    scales, knowledge = list(dict.fromkeys(config.scales)), tuple(config.knowledge)
    srfs = [srf for listed in config.srfs for srf in listed_srfs(listed)]
    chosen = []
    if config.scenes:
        chosen = choose_scenes(config.scenes, srfs, config.split, config.scenes_folder, config)
    cases, left_out = plan_cases(chosen, recorded, scales, conditions, knowledge, config.seed)
    request = {
        "protocol": PROTOCOL,
        "scenes": {f"{scene.dataset}/{scene.name}": [scene.digest, list(scene.srfs)] for scene in chosen},
        "pairs": {pair.name: pair.digest for pair in recorded},
        "models": {model.name: model.digest or model.method for model in models},
        "scales": scales,
        "conditions": [condition.name for condition in conditions],
        "knowledge": list(knowledge),
        "seed": config.seed,
        "left_out": left_out,
        "overlapping": sorted({scene.dataset for scene in chosen if scene.overlapping}),
    }
    folder = Path(folder)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with target_lock(folder):
        open_folder(folder, request, command)
        results = ResultsFile(folder / RESULTS)
        _run(cases, models, results, folder, pictures=config.pictures)
    return Benchmark(folder, results.all())


def _check_choices(config: BenchmarkConfig) -> None:
    if not config.scenes and not config.pairs:
        raise OptionError("nothing to benchmark on", "scenes or recorded pairs", "name them with --scenes or --pair")
    for kind in config.imperfections:
        if kind != ALL:
            find_imperfections(kind)


def _run(
    cases: Sequence[PlannedCase],
    models: Sequence[BenchmarkModel],
    results: ResultsFile,
    folder: Path,
    *,
    pictures: bool,
) -> None:
    runs = [(case, model, knowledge) for case in cases for model in models for knowledge in case.knowledge]
    todo: dict[PlannedCase, list[tuple[BenchmarkModel, str]]] = {}
    for case, model, knowledge in runs:
        if not results.is_done((case.name, model.name, knowledge)):
            todo.setdefault(case, []).append((model, knowledge))
    # Pictures are of the first scene of each data set under its first condition: at every scale, with every SRF.
    first: dict[str, tuple[str, str]] = {}
    for case in cases:
        first.setdefault(case.name.dataset, (case.name.scene, case.name.condition))
    done = len(runs) - sum(map(len, todo.values()))
    with progress("Benchmark", len(runs), "runs", done=done) as advance:
        for case, rest in todo.items():
            pictured = pictures and (case.name.scene, case.name.condition) == first[case.name.dataset]
            for result in _run_case(case, rest, case_folder(folder, case.name) if pictured else None):
                results.add(result)
                advance(1)


def _run_case(case: PlannedCase, todo: Sequence[tuple[BenchmarkModel, str]], views: Path | None) -> Iterator[Result]:
    try:
        with listening(lambda report: None):  # bars of single steps would hide the one of the benchmark
            pair = case.make()
    except Cancelled:
        raise
    except Exception as error:
        yield from (_failure(Result(case.name, model.name, knowledge, FAILED), error) for model, knowledge in todo)
        return
    for model, knowledge in todo:
        # Oracle and blind look alike: one picture is enough.
        kept = views if knowledge == case.knowledge[0] else None
        with listening(lambda report: None):
            result = run_model(model, knowledge, case.name, pair, kept)
        yield result


def run_model(
    model: BenchmarkModel, knowledge: str, case: CaseName, pair: CasePair, views: Path | None = None
) -> Result:
    """One result, whatever happens; `views` is the folder to keep what pictures need."""
    failed = Result(case, model.name, knowledge, FAILED)
    if not model.fits(pair):
        bands = f"{pair.hsi.sizes['band']} and {pair.msi.sizes['band']}"
        return replace(failed, state=UNFIT, message=f"not made for {bands} bands")
    try:
        model.warm_up(pair)
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
            fused, cost = measured(lambda: model.fuse(pair, knowledge))
        warned = "; ".join(dict.fromkeys(str(each.message) for each in caught if each.category is UserWarning))
        figures: dict[str, Any] = {**score(fused, pair), **asdict(cost)}
        if views is not None:
            keep_views(views, pair, model.name, fused)
        return replace(failed, state=SCORED, message=warned, **figures)
    except Cancelled:
        raise
    except Exception as error:
        return _failure(failed, error)


def _failure(failed: Result, error: Exception) -> Result:
    if isinstance(error, HyperfuseError):
        return replace(failed, message=str(error))
    return replace(failed, message=f"{type(error).__name__}: {error}".splitlines()[0], is_bug=True)
