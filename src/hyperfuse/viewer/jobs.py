"""Long work in the background, with progress, time left and a way to stop it: fusing, estimating, scoring, building
overviews.

Errors as the page gets them: what was got, what was expected, what to do about it; never a traceback.
"""

from __future__ import annotations

import contextvars
import logging
import secrets
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO, TypedDict

from hyperfuse.errors import Cancelled, HyperfuseError
from hyperfuse.progress import ProgressReport, listening

log = logging.getLogger(__name__)


class Complaint(TypedDict):
    got: str
    expected: str
    remedy: str


def complaint_of(error: BaseException) -> Complaint:
    if isinstance(error, HyperfuseError):
        return Complaint(got=error.got, expected=error.expected, remedy=error.remedy)
    if isinstance(error, OSError):
        return Complaint(
            got=error.strerror or type(error).__name__,
            expected="a readable file and space to write",
            remedy="check both",
        )
    if isinstance(error, MemoryError):
        return Complaint(got="not enough memory", expected="", remedy="close other programs, or fuse a smaller scene")
    log.error("internal error", exc_info=error)
    return Complaint(got="internal error", expected="", remedy="this is a bug in hyperfuse, please report what you did")


MOST_AT_ONCE = 2
MOST_REMEMBERED = 50
SECONDS_TO_END = 20.0

_notes: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("hyperfuse_job_notes", default=None)


class TooManyJobsError(HyperfuseError):
    """The machine is busy enough."""


@dataclass(eq=False)
class Job:
    name: str
    kind: str
    state: str = "running"
    """running, done, failed or cancelled"""
    report: ProgressReport | None = None
    result: Any = None
    complaint: Complaint | None = None
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def as_dict(self) -> dict[str, Any]:
        report = self.report
        return {
            "job": self.name,
            "kind": self.kind,
            "state": "stopping" if self.state == "running" and self.cancel.is_set() else self.state,
            "step": report.description if report else "Starting",
            "unit": report.unit if report else "",
            "done": report.done if report else 0,
            "total": report.total if report else 0,
            "megapixels_per_second": report.megapixels_per_second if report else None,
            "seconds_left": _seconds_left(report),
            "seconds": (self.ended or time.monotonic()) - self.started,
            "notes": list(self.notes),
            "result": self.result,
            "error": self.complaint,
        }


def _seconds_left(report: ProgressReport | None) -> float | None:
    return None if report is None else report.seconds_left


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(self, kind: str, work: Callable[[threading.Event], Any]) -> Job:
        """`work` gets the event that is set when it shall stop, and returns what JSON can hold."""
        with self._lock:
            if sum(job.state == "running" for job in self._jobs.values()) >= MOST_AT_ONCE:
                raise TooManyJobsError(f"{MOST_AT_ONCE} jobs at work", "fewer", "wait for one to end, or cancel it")
            job = Job(secrets.token_hex(8), kind)
            self._jobs[job.name] = job
            for old in [name for name, other in self._jobs.items() if other.state != "running"][
                : len(self._jobs) - MOST_REMEMBERED
            ]:
                del self._jobs[old]
        job.thread = threading.Thread(target=_run, args=(job, work), name=f"job {kind}", daemon=True)
        job.thread.start()
        return job

    def find(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def running(self) -> list[Job]:
        return [job for job in list(self._jobs.values()) if job.state == "running"]

    def stop_all(self) -> None:
        """Ask all of them to stop and give them time to clear away what is half done."""
        jobs = self.running()
        for job in jobs:
            job.cancel.set()
        deadline = time.monotonic() + SECONDS_TO_END
        for job in jobs:
            if job.thread is not None:
                job.thread.join(max(0.0, deadline - time.monotonic()))


def _run(job: Job, work: Callable[[threading.Event], Any]) -> None:
    def listen(report: ProgressReport) -> None:
        job.report = report

    _notes.set(job.notes)
    try:
        with listening(listen, cancel=job.cancel):
            job.result = work(job.cancel)
        state = "done"
    except Cancelled:
        state = "cancelled"
    except Exception as error:
        # Whatever it was, the page must learn that the job has ended.
        job.complaint = complaint_of(error)
        state = "failed"
    job.ended = time.monotonic()
    job.state = state


def keep_warnings_as_notes() -> None:
    """From now on our own warnings become notes of the job in which they occur; those of libraries are for developers."""
    warnings.filterwarnings("always", category=UserWarning, module=r"hyperfuse\.")
    warnings.showwarning = _note_warning


def _note_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    notes = _notes.get()
    if notes is not None and category is UserWarning and "hyperfuse" in filename and str(message) not in notes:
        notes.append(str(message))
