"""Progress of anything that takes longer than two seconds: a bar with time left, or reports to a listener; and how
to stop it.

Library code always reports progress; whether a person sees it is decided once, by the command line (`show_progress`).
For a program that runs the command, HYPERFUSE_PROGRESS=json replaces the bars by lines of JSON on stderr. One that uses
the library and has its own way of showing progress (a window, a web page) listens instead:

    stop = threading.Event()
    with listening(lambda report: print(report.description, report.done, report.total), cancel=stop):
        hyperfuse.fuse(...)     # once stop.set() was called elsewhere: errors.Cancelled, raised between two steps
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from hyperfuse.errors import Cancelled

SECONDS_BEFORE_SHOWN = 2.0
SECONDS_BETWEEN_LINES = 0.2


@dataclass(frozen=True)
class ProgressReport:
    """How far one piece of work is; `pixels` counts fine pixels, all bands together, where it is made of pixels."""

    description: str
    unit: str
    done: int
    total: int
    pixels: int
    seconds: float
    rate: float = 0.0
    """Steps per second since the work began."""
    note: str = ""
    """How the work goes, in a few words, such as the loss of a training."""

    @property
    def megapixels_per_second(self) -> float | None:
        return self.pixels / self.seconds / 1e6 if self.pixels and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """None before the first step; steps done before this run (`progress(..., done=)`) do not count as fast ones."""
        return None if self.rate == 0 else (self.total - self.done) / self.rate

    @property
    def speed(self) -> str:
        """Millions of pixels per second, where the work is made of pixels, the time that is left, and the note."""
        speed, left = self.megapixels_per_second, self.seconds_left
        clock = "-:--:--" if left is None else str(timedelta(seconds=int(left + 0.5)))
        return " ".join(filter(None, (f"{speed:.2f} MPix/s" if speed is not None else "", f"left {clock}", self.note)))


class Advance(Protocol):
    def __call__(self, steps: int, pixels: int = 0, note: str = "") -> None:
        """This many steps are done, which made this many pixels. Raises `Cancelled` where the listener asked for it."""


Listener = tuple[Callable[[ProgressReport], None], threading.Event | None]
_shown: ContextVar[bool] = ContextVar("hyperfuse_progress_shown", default=False)
_listener: ContextVar[Listener | None] = ContextVar("hyperfuse_progress_listener", default=None)


def show_progress(shown: bool) -> None:
    """Switch progress bars on or off for this context; they are drawn on stderr."""
    _shown.set(shown)


def progress_is_shown() -> bool:
    return _shown.get()


@contextmanager
def listening(report: Callable[[ProgressReport], None], cancel: threading.Event | None = None) -> Iterator[None]:
    """Within the block, and in its thread, progress goes to `report` and not to a bar; setting `cancel` ends the work.

    `report` is called in the thread that works, at the beginning and after every step of each piece of work. Work that
    is cancelled raises `errors.Cancelled` at its next step and leaves nothing half behind.
    """
    token = _listener.set((report, cancel))
    try:
        yield
    finally:
        _listener.reset(token)


def raise_if_cancelled() -> None:
    """For long work between two steps."""
    _, cancel = _listener.get() or (None, None)
    if cancel is not None and cancel.is_set():
        raise Cancelled


@contextmanager
def progress(description: str, total: int, unit: str = "", done: int = 0) -> Iterator[Advance]:
    """`with progress("Writing", total=tiles) as advance: ... advance(1)`; the bar appears after two seconds.

    `unit` names the steps ("tiles"); `done` of them were finished before this run began.
    """
    listener = _listener.get()
    start = time.monotonic()
    report = ProgressReport(description, unit, done, total, pixels=0, seconds=0.0)
    with _bar(report, shown=_shown.get() and listener is None) as draw:

        def advance(steps: int, pixels: int = 0, note: str = "") -> None:
            nonlocal report
            seconds = time.monotonic() - start
            reached = report.done + steps
            rate = (reached - done) / seconds if seconds > 0 else 0.0
            pixels += report.pixels
            report = replace(report, done=reached, pixels=pixels, seconds=seconds, rate=rate, note=note)
            draw(report)
            if listener is not None:
                listener[0](report)
            raise_if_cancelled()

        advance(0)
        yield advance


def _print_lines() -> Callable[[ProgressReport], None]:
    """Print the first and the last report, and not too many of those between."""
    printed = -math.inf

    def draw(report: ProgressReport) -> None:
        nonlocal printed
        if report.done < report.total and report.seconds < printed + SECONDS_BETWEEN_LINES:
            return
        printed = report.seconds
        line = {"step": report.description, "done": report.done, "total": report.total, "unit": report.unit}
        print(json.dumps(line | {"seconds_left": report.seconds_left}), file=sys.stderr, flush=True)  # noqa: T201

    return draw


@contextmanager
def _bar(report: ProgressReport, *, shown: bool) -> Iterator[Callable[[ProgressReport], None]]:
    if not shown:
        yield lambda report: None
        return
    if os.environ.get("HYPERFUSE_PROGRESS") == "json":
        yield _print_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    if report.unit:
        columns.insert(3, TextColumn(report.unit))
    speed = TextColumn("{task.fields[speed]}", markup=False, table_column=Column(no_wrap=True))
    columns.append(speed)  # on a narrow terminal the bar shrinks first
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(report.description, total=report.total, completed=report.done, speed=report.speed)
    # A timer, because the first step may itself be the long one.
    appearance = threading.Timer(SECONDS_BEFORE_SHOWN, bar.start)
    appearance.daemon = True
    appearance.start()
    try:
        yield lambda report: bar.update(task, completed=report.done, speed=report.speed)
    finally:
        appearance.cancel()
        appearance.join()
        if bar.live.is_started:
            bar.stop()
