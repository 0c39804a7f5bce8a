"""Progress bars with time left, for anything that takes longer than two seconds.

Library code always reports progress; whether a person sees it is decided once, by the command line (`show_progress`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BEFORE_SHOWN = 2.0

_shown: ContextVar[bool] = ContextVar("hyperfuse_progress_shown", default=False)


def show_progress(shown: bool) -> None:
    """Switch progress bars on or off for this context; they are drawn on stderr."""
    _shown.set(shown)


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """`with progress("Writing", total=tiles) as advance: ... advance(1)`; the bar appears after two seconds."""
    if not _shown.get():
        yield lambda steps: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(description, total=total)
    # A timer, because the first step may itself be the long one.
    appearance = threading.Timer(SECONDS_BEFORE_SHOWN, bar.start)
    appearance.daemon = True
    appearance.start()
    try:
        yield lambda steps: bar.update(task, advance=steps)
    finally:
        appearance.cancel()
        appearance.join()
        if bar.live.is_started:
            bar.stop()
