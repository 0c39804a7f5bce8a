"""Tiles through three stages at once: while some are computed, the next are read and finished ones are written by the caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from hyperfuse.prediction.memory import give_back
from hyperfuse.prediction.scene_job import FusedTile, SceneJob, TileInputs, one_thread_per_tile
from hyperfuse.prediction.tile_plan import Tile

TILES_PER_READER = 4


@dataclass
class StageSeconds:
    """Seconds spent in each stage, summed over threads: stages overlap, so they add up to more than the time that passed."""

    reading: float = 0.0
    computing: float = 0.0
    writing: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def spent_on(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                setattr(self, stage, getattr(self, stage) + time.perf_counter() - start)

    def shares(self) -> dict[str, float]:
        total = max(1e-9, self.reading + self.computing + self.writing)
        return {stage: getattr(self, stage) / total for stage in ("reading", "computing", "writing")}


def fused_in_threads(
    job: SceneJob, tiles: Sequence[Tile], at_once: int, seconds: StageSeconds
) -> Generator[tuple[Tile, FusedTile], None, None]:
    """Every tile, in order. At most `at_once` are computed at the same time, and no more than two others wait before or after."""

    def read(tile: Tile) -> TileInputs | None:
        with seconds.spent_on("reading"):
            return job.read(tile)

    def compute(tile: Tile, inputs: Future[TileInputs | None]) -> FusedTile:
        values = inputs.result()
        with seconds.spent_on("computing"):
            fused = job.fuse(tile, values)
        give_back()
        return fused

    under_way: deque[tuple[Tile, Future[FusedTile]]] = deque()
    waiting = iter(tiles)
    readers = 1 + (at_once - 1) // TILES_PER_READER
    with one_thread_per_tile(), ThreadPoolExecutor(readers) as reading, ThreadPoolExecutor(at_once) as computing:
        try:
            while True:
                while len(under_way) < at_once + 2 and (tile := next(waiting, None)) is not None:
                    under_way.append((tile, computing.submit(compute, tile, reading.submit(read, tile))))
                if not under_way:
                    return
                tile, fused = under_way.popleft()
                yield tile, fused.result()
        finally:
            # Also when the caller stops: what has begun ends, the rest never begins.
            for pool in (reading, computing):
                pool.shutdown(wait=False, cancel_futures=True)
