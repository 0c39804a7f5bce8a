"""Ctrl-C and a scheduler's SIGTERM end a training between two steps, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruption_noticed() -> Iterator[Callable[[], bool]]:
    """Within the block, SIGINT and SIGTERM only set a flag, which the yielded function reads."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread can hear signals
        return
    names = (signal.SIGINT, signal.SIGTERM)

    def note(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, earlier[signal.Signals(number)])  # who asks a second time does not want to wait

    earlier = {number: signal.getsignal(number) for number in names}
    for number in names:
        signal.signal(number, note)
    try:
        yield asked.is_set
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
