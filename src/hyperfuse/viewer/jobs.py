"""Long work in the background, with progress, time left and cancellation: estimate, fuse, score."""

from __future__ import annotations

import contextvars
import logging
import math
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, StringConstraints

from hyperfuse.config import (
    INPUTS,
    LARGE_SCENES,
    OBSERVATION,
    OUTPUT,
    FuseConfig,
    ObservationConfig,
    describe_options,
    option_of,
)
from hyperfuse.errors import Cancelled, HyperfuseError, OptionError
from hyperfuse.io.cube import iterate_windows
from hyperfuse.io.envi import find_data
from hyperfuse.io.files import open_cube
from hyperfuse.metrics.evaluation import evaluate
from hyperfuse.metrics.sums import angle_sum, mask_incomparable
from hyperfuse.progress import Advance, ProgressReport, listening, progress
from hyperfuse.viewer.colours import Planes
from hyperfuse.viewer.folder import Folder, RequestError
from hyperfuse.viewer.images import OpenImages
from hyperfuse.viewer.maps import ObservedPair, degraded_and_hsi, degraded_and_msi, unavailable

log = logging.getLogger(__name__)
# Gets the event that cancels it, and returns what JSON can hold.
Work = Callable[[threading.Event], Any]

MOST_AT_ONCE = 2
MOST_KEPT = 50
LONGEST_TEXT = 500
SECONDS_TO_END = 20.0
LEAST_SECONDS_TO_TELL = 1.0
# One window of the fused image as float32, beside which lie the HSI's and what the operators need.
WINDOW_BYTES = 48 * 2**20

# The form of the page offers every option of `FuseConfig` whose type it has an input for, except these: those with a
# control of their own, and those that write another file or use other machines.
OWN_CONTROL = ("method", "weights", "resume")
NOT_OFFERED = ("uncertainty", "cluster")
GROUPS = ("Method", OBSERVATION, INPUTS, OUTPUT, LARGE_SCENES)
FORM_DEFAULTS = {"overviews": True}
UNCERTAINTY_STORAGE: dict[str, Any] = {"dtype": "float32", "scale_factor": 1.0, "nodata": None, "uncertainty": None}

_notes: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("hyperfuse_job_notes", default=None)


def error_message(error: BaseException) -> dict[str, str]:
    """What the page shows; an unexpected error goes to the log and never to the page."""
    got, expected, remedy = "internal error", "", "this is a bug in hyperfuse, please report it"
    if isinstance(error, HyperfuseError):
        got, expected, remedy = error.got[:LONGEST_TEXT], error.expected, error.remedy
    elif isinstance(error, OSError):
        got = error.strerror or type(error).__name__
        expected, remedy = "a readable file and space to write", "check both"
    elif isinstance(error, MemoryError):
        got, remedy = "not enough memory", "close other programs, or fuse a smaller scene"
    else:
        log.error("internal error", exc_info=error)
    return {"got": got, "expected": expected, "remedy": remedy}


@dataclass(eq=False)
class Job:
    """One piece of work; `state` is running, done, failed or cancelled."""

    kind: str
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "running"
    report: ProgressReport = field(default_factory=lambda: ProgressReport("Starting", "", 0, 0, 0, 0.0))
    reported: float = field(default_factory=time.monotonic)
    result: Any = None
    error: dict[str, str] | None = None
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "job": self.name,
            "kind": self.kind,
            "state": "stopping" if self.state == "running" and self.cancel.is_set() else self.state,
            "step": self.report.description,
            "unit": self.report.unit,
            "done": self.report.done,
            "total": self.report.total,
            "megapixels_per_second": self.report.megapixels_per_second,
            "seconds_left": self.seconds_left(),
            "seconds": (self.ended or time.monotonic()) - self.started,
            "notes": list(self.notes),
            "result": self.result,
            "error": self.error,
        }

    def seconds_left(self) -> float | None:
        """Of the present step; None where too little is done to tell, and when the estimate has run out."""
        if self.report.seconds_left is None or self.report.seconds < LEAST_SECONDS_TO_TELL:
            return None
        left = self.report.seconds_left - (time.monotonic() - self.reported)
        return left if left > 0 else None

    def run(self, work: Work) -> None:
        def listen(report: ProgressReport) -> None:
            self.report, self.reported = report, time.monotonic()

        _notes.set(self.notes)
        try:
            with listening(listen, cancel=self.cancel):
                self.result = work(self.cancel)
            state = "done"
        except Cancelled:
            state = "cancelled"
        except Exception as error:
            # Whatever it was, the page must learn that the job has ended.
            self.error = error_message(error)
            state = "failed"
        self.ended = time.monotonic()
        self.state = state


class Jobs:
    """The running jobs and the latest finished ones."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(self, kind: str, work: Work) -> dict[str, Any]:
        """Run `work` in a thread."""
        job = Job(kind)
        with self._lock:
            if len(self.running()) >= MOST_AT_ONCE:
                raise RequestError(429, f"{MOST_AT_ONCE} running jobs", "fewer", "wait for one to end, or cancel it")
            finished = [name for name, other in self._jobs.items() if other.state != "running"]
            for name in finished[: max(0, len(self._jobs) + 1 - MOST_KEPT)]:
                del self._jobs[name]
            self._jobs[job.name] = job
        job.thread = threading.Thread(target=job.run, args=(work,), name=f"job {kind}", daemon=True)
        job.thread.start()
        return job.as_dict()

    def find(self, name: str) -> Job:
        if name not in self._jobs:
            raise OptionError("an unknown job", "one that was started on this page")
        return self._jobs[name]

    def running(self) -> list[Job]:
        return [job for job in list(self._jobs.values()) if job.state == "running"]

    def stop_all(self) -> None:
        """Cancel all jobs and give them time to remove unfinished files."""
        jobs = self.running()
        for job in jobs:
            job.cancel.set()
        deadline = time.monotonic() + SECONDS_TO_END
        for job in jobs:
            if job.thread is not None:
                job.thread.join(max(0.0, deadline - time.monotonic()))


def keep_warnings_as_notes() -> None:
    """Make our own warnings notes of the job in which they occur; those of libraries are for developers."""

    def note(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **others: Any) -> None:
        notes = _notes.get()
        if notes is not None and category is UserWarning and "hyperfuse" in filename and str(message) not in notes:
            notes.append(str(message))

    warnings.filterwarnings("always", category=UserWarning, module=r"hyperfuse\.")
    warnings.showwarning = note


FileName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class Pair(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hsi: FileName
    msi: FileName


class FuseRequest(Pair):
    """`options` are those of `FuseConfig` that `form_fields` describes."""

    output: FileName
    options: dict[str, Any] = {}


def form_fields() -> list[dict[str, Any]]:
    """The options of a fusion that the form offers, derived from `FuseConfig`."""
    fields = [
        one
        | {"group": one["group"] or GROUPS[0], "default": FORM_DEFAULTS.get(one["name"], one["default"])}
        # A further file is written beside the first, under a name derived from its name.
        | ({"input": "checkbox", "default": False} if one["input"] == "output" else {})
        for one in describe_options(FuseConfig)
        if one["input"] != "any" and not one["repeat"] and one["name"] not in (*OWN_CONTROL, *NOT_OFFERED)
    ]
    return sorted(fields, key=lambda one: GROUPS.index(one["group"]) if one["group"] in GROUPS else len(GROUPS))


def fuse_config(folder: Folder, options: dict[str, Any]) -> FuseConfig:
    """The options of a request; files must lie in the folder."""
    offered = {*OWN_CONTROL, *(one["name"] for one in form_fields())}
    chosen = {name: value for name, value in options.items() if value is not None}
    for name, value in chosen.items():
        if name not in offered:
            raise OptionError(f"option {name[:40]!r}", f"one of {', '.join(sorted(offered))}")
        if option_of(FuseConfig, name).is_path:
            chosen[name] = folder.network(str(value)) if name == "weights" else folder.cube(str(value))
    return FuseConfig(**chosen)


def fusion(folder: Folder, request: FuseRequest, *, uncertainty: bool = False) -> Work:
    """Check a request at once; the returned function fuses, or computes the expected error of what was fused."""
    hsi, msi = folder.cube(request.hsi), folder.cube(request.msi)
    wants_mask = request.options.get("change_mask") is True
    config = fuse_config(folder, {**request.options, "change_mask": None})
    output = folder.output(request.output, overwrite=config.overwrite)
    if wants_mask and not uncertainty:
        name = Path(request.output)
        mask = folder.output(str(name.with_name(f"{name.stem}_change_mask.tif")), overwrite=config.overwrite)
        config = config.replace(change_mask=mask)
    if uncertainty:
        # The first step checks that these options have an uncertainty.
        config = config.replace(uncertainty=output).replace(**UNCERTAINTY_STORAGE)
    if output.suffix.lower() not in (".tif", ".tiff"):
        config = config.replace(overviews=False)

    def work(cancel: threading.Event) -> dict[str, Any]:
        from hyperfuse.fusion import run

        run.run_fusion(hsi, msi, output, config, uncertainty=uncertainty)
        files = [] if output.is_dir() else [output]
        if output.suffix.lower() == ".hdr":
            files.append(find_data(output))
        return {
            "hsi": request.hsi,
            "msi": request.msi,
            "output": folder.name_of(output),
            "bytes": sum(path.stat().st_size for path in (files or output.rglob("*"))),
            "change_mask": None if config.change_mask is None else folder.name_of(config.change_mask),
            "method": str(open_cube(output).attrs.get("hyperfuse_method", config.method)),
            "downloads": [folder.name_of(path) for path in files],
        }

    return work


def estimation(folder: Folder, pair: Pair) -> Work:
    """Check a request at once; the returned function estimates how the pair was observed."""
    hsi, msi = folder.cube(pair.hsi), folder.cube(pair.msi)

    def work(cancel: threading.Event) -> dict[str, Any]:
        from hyperfuse.fusion.observe import observe
        from hyperfuse.fusion.pair import align_pair

        hsi_cube = open_cube(hsi)
        return observe(align_pair(hsi_cube, open_cube(msi)), hsi_cube, ObservationConfig()).summary()

    return work


def offered_methods(folder: Folder) -> dict[str, Any]:
    """The methods, the default first, the networks of the folder, and the other options."""
    from hyperfuse.methods.catalogue import AUTO, DEFAULT, METHODS

    line = "the best in a reduced-resolution (Wald) assessment of the pair"
    automatic = {"name": AUTO, "line": line, "reference": ""}
    named = [{"name": name, "line": one.description, "reference": one.reference} for name, one in METHODS.items()]
    methods = sorted([automatic, *named], key=lambda method: method["name"] != DEFAULT)
    return {"methods": methods, "default": DEFAULT, "networks": folder.networks(), "fields": form_fields()}


def scores(opened: OpenImages, observed_pair: Callable[[], ObservedPair]) -> dict[str, Any]:
    """Those of `hyperfuse evaluate` where there is a reference, else of the consistency with the inputs."""
    if {"fused", "reference"} <= opened.images.keys():
        return {"reference": evaluate(opened.images["fused"].cube, opened.images["reference"].cube).as_dict()}
    return {"consistency": consistency_scores(opened, observed_pair)}


def consistency_scores(opened: OpenImages, observed_pair: Callable[[], ObservedPair]) -> dict[str, Any]:
    """RMSE of the degraded fused image against HSI and MSI, and the spectral angle to the HSI."""
    reason = unavailable(opened, "consistency_hsi")
    if reason is not None:
        raise OptionError(reason, "a fused image and the HSI that it was fused from", "open them in Files")
    pair = observed_pair()
    fused, hsi, msi = opened.images["fused"], opened.images["hsi"], opened.images.get("msi")
    assert hsi.placement is not None
    coarse_bytes = max(1, int(WINDOW_BYTES / math.prod(hsi.placement.scale)))
    coarse = list(iterate_windows(hsi.cube, coarse_bytes, block=1))
    fine = [] if msi is None or pair.observation is None else list(iterate_windows(fused.cube, WINDOW_BYTES))
    with progress("Consistency", total=len(coarse) + len(fine), unit="windows") as advance:
        hsi_windows = (degraded_and_hsi(fused, hsi, pair, *window) for window in coarse)
        msi_windows = (degraded_and_msi(fused, msi, pair, *window) for window in fine if msi is not None)
        agreement = _agreement("hsi", hsi_windows, advance) | _agreement("msi", msi_windows, advance)
    return agreement | {"estimated": pair.observation is not None}


def _agreement(name: str, windows: Iterable[tuple[Planes, Planes]], advance: Advance) -> dict[str, float | None]:
    """RMSE, error relative to the signal, and spectral angle between simulated and observed windows."""
    sums = np.zeros(5)
    for simulated, observed in windows:
        first, second = simulated.astype(np.float64), observed.astype(np.float64)
        known = mask_incomparable(first, second)
        squares = np.square(first - second)[known].sum(), np.square(second)[known].sum()
        sums += known.sum(), *squares, *angle_sum(first, second)
        advance(1)
    values, errors, signal, angles, pixels = sums.tolist()
    return {
        f"{name}_rmse": math.sqrt(errors / values) if values else None,
        f"{name}_relative": math.sqrt(errors / signal) if signal else None,
        f"{name}_angle_degrees": angles / pixels if pixels else None,
    }
