"""Signals wait while a library writes: what their handlers raise would be lost, or worse, in its callbacks and threads."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from numpy.typing import NDArray

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class CubeWriter(Protocol):
    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        """Write one window of all bands, (band, rows, columns)."""


class _UndisturbedWriter:
    def __init__(self, writer: CubeWriter) -> None:
        self._writer = writer

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        with signals_waiting():
            self._writer.write(rows, columns, block)


@contextmanager
def undisturbed(creation: AbstractContextManager[CubeWriter]) -> Iterator[CubeWriter]:
    """The same writer: its beginning, each of its writes and its end happen whole, and signals are heard in between."""
    with signals_waiting():
        writer = creation.__enter__()
    try:
        yield _UndisturbedWriter(writer)
    except BaseException:
        with signals_waiting():
            if not creation.__exit__(*sys.exc_info()):
                raise
    else:
        with signals_waiting():
            creation.__exit__(None, None, None)


@contextmanager
def signals_waiting() -> Iterator[None]:
    """Signals that Python code would handle are handled when the block ends. Only the main thread ever handles them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
