"""Answers kept for the next time, within a bound; whoever asks for one that is being made waits for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Value = TypeVar("Value")


def _counted(value: object) -> int:
    return 1


class Remembered(Generic[Value]):
    """The most recently used values, as many as weigh `most` together; each is made once, in the thread that asks first."""

    def __init__(self, most: int, weight: Callable[[Value], int] = _counted, forget: Callable[[Value], None] | None = None) -> None:
        self._most = most
        self._weight = weight
        self._forget = forget
        self._futures: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        with self._lock:
            future = self._futures.get(key)
            is_ours = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
        if not is_ours:
            return future.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                self._futures.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(value)
        self._shrink()
        return value

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._futures.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            gone = [future for future in self._futures.values() if future.done()]
            self._futures.clear()
        self._say_goodbye(gone)

    def _shrink(self) -> None:
        gone = []
        with self._lock:
            made = [(key, future) for key, future in self._futures.items() if future.done() and future.exception() is None]
            weight = sum(self._weight(future.result()) for _, future in made)
            # The newest stays, however heavy it is.
            for key, future in made[:-1]:
                if weight <= self._most:
                    break
                weight -= self._weight(future.result())
                gone.append(self._futures.pop(key))
        self._say_goodbye(gone)

    def _say_goodbye(self, gone: list[Future[Value]]) -> None:
        for future in gone:
            if self._forget is not None and future.exception() is None:
                self._forget(future.result())
