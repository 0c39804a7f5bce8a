"""Work for one request, in a thread: only a few at a time, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request

from hyperfuse.errors import HyperfuseError
from hyperfuse.viewer.session import Session

Answer = TypeVar("Answer")
AT_ONCE = 4
# A request that gave up leaves its thread at work; no more than these in all.
MOST_THREADS = 12
SECONDS = 30.0


class BusyError(HyperfuseError):
    """It took too long; asking again may find it done."""


class Workers:
    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._threads = anyio.CapacityLimiter(MOST_THREADS)

    async def run(self, work: Callable[[], Answer]) -> Answer:
        try:
            async with asyncio.timeout(self._seconds), self._turns:
                return await anyio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)
        except TimeoutError as error:
            raise BusyError(f"no answer within {self._seconds:g} s", "a shorter piece of work", "ask again in a moment") from error


def _session(request: Request) -> Session:
    session: Session = request.app.state.session
    return session


def _workers(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers


SessionHere = Annotated[Session, Depends(_session)]
WorkersHere = Annotated[Workers, Depends(_workers)]
