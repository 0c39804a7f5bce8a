"""Tiles of one scene, computed in this thread, in several threads, in worker processes or on a Dask cluster.

`TileJob` holds everything that any process needs to compute any tile to the same bits. A tile passes through three
stages: while some are computed, the next are read, and finished ones are written by the caller. Only the caller writes.
Workers read their own windows of the images, so these must be visible to them; when a worker dies, the scheduler hands
its tiles to another. Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.fusion.fusers import Fuser
from hyperfuse.fusion.pair import AlignedPair
from hyperfuse.fusion.tiles import (
    FINE_ALIGNMENT,
    Tile,
    bounded_pools,
    covered_part,
    place_for,
    read_window,
    release_memory,
)
from hyperfuse.fusion.warp import SMALLEST_MOVE, moved
from hyperfuse.io.output import Clipping, to_stored
from hyperfuse.methods.window import Place, Window, fill_missing, mask_missing
from hyperfuse.physics.observation import Observation

# The support of an interpolating cubic spline is unbounded, but its weights fall by 0.27 from pixel to pixel.
SPLINE_HALO = 12
TILES_PER_READER = 4
LOOPBACK = "127.0.0.1"
SECONDS_TO_CONNECT = 10
# Tiles that wait at a worker while it computes another.
WAITING_PER_WORKER = 1

FusedTiles = Generator[tuple[Tile, "FusedTile"], None, None]


@dataclass(frozen=True)
class TileInputs:
    part: Place
    """The fine pixels of the pair that lie in the tile."""
    core: Place
    """The fine pixels that are fused; more than `part` where the result is moved."""
    window: Window  # with all bands of the HSI


@dataclass(frozen=True)
class FusedTile:
    """Values of a tile (bands, rows, columns) as they are stored, how many were valid and how many were clipped."""

    block: NDArray[Any]
    values: int = 0
    clipped: int = 0
    reading: float = 0.0  # seconds
    computing: float = 0.0


@dataclass(frozen=True)
class TileJob:
    pair: AlignedPair
    observation: Observation
    fuser: Fuser
    bands: NDArray[np.int64]
    """Which bands of the HSI the output has."""
    move: tuple[float, float] = (0.0, 0.0)
    """How far to move the result, in fine pixels: to where the HSI's georeference says that it lies."""
    stored_as: xr.DataArray | None = None
    """One pixel of the output: its bands, data type, scale and nodata. None while that is not decided."""

    def run(self, tile: Tile) -> FusedTile:
        start = time.perf_counter()
        inputs = self.read(tile)
        return self.fuse(tile, inputs, time.perf_counter() - start)

    def read(self, tile: Tile) -> TileInputs | None:
        """None where the pair does not cover the tile."""
        part = covered_part(tile, self.pair)
        if part is None:
            return None
        rows, columns = (self._widened(axis, size) for axis, size in zip(part, self.pair.fine_shape[1:], strict=True))
        place = place_for(self.pair, self.observation, rows, columns, self.fuser.halo(self.observation))
        return TileInputs(part, (rows, columns), read_window(self.pair, self.observation, place, all_bands=True))

    def fuse(self, tile: Tile, inputs: TileInputs | None, reading: float = 0.0) -> FusedTile:
        start = time.perf_counter()
        values = self.values(tile, inputs)
        if self.stored_as is None:
            return FusedTile(values, reading=reading, computing=time.perf_counter() - start)
        clipping = Clipping()
        block = to_stored(values, self.stored_as, clipping)
        return FusedTile(block, clipping.values, clipping.clipped, reading, time.perf_counter() - start)

    def values(self, tile: Tile, inputs: TileInputs | None) -> NDArray[np.float32]:
        """(bands, rows, columns) Physical values of a tile, NaN where there is no data."""
        fused = None if inputs is None else self._fused(inputs)
        if fused is not None and fused.shape[1:] == tile.shape:
            return fused
        values = np.full((len(self.bands), *tile.shape), np.nan, dtype=np.float32)
        if inputs is not None:
            top, left = tile.rows.start - self.pair.fine_rows.start, tile.columns.start - self.pair.fine_columns.start
            values[:, *_relative(inputs.part, (top, left))] = fused
        return values

    def _fused(self, inputs: TileInputs) -> NDArray[np.float32]:
        usable, window = torch.from_numpy(self.pair.usable_bands), inputs.window
        fused = self.fuser.fuse_window(replace(window, hsi=window.hsi[usable])).numpy()
        if not usable.all():
            good, fused = fused, np.full((len(usable), *fused.shape[1:]), np.nan, dtype=np.float32)
            fused[usable] = good
            if self.fuser.interpolates_bad_bands:
                bad = replace(window, hsi=window.hsi[~usable])
                fused[~usable] = mask_missing(bad.upsample_to_core(fill_missing(bad.hsi)), bad).numpy()
        if len(self.bands) < len(fused) or (self.bands != np.arange(len(fused))).any():
            fused = fused[self.bands]
        rows, columns = inputs.core
        return moved(fused, self.move)[:, *_relative(inputs.part, (rows.start, columns.start))]

    def _widened(self, part: slice, size: int) -> slice:
        farthest = max(abs(distance) for distance in self.move)
        if farthest < SMALLEST_MOVE:
            return part
        halo = math.ceil(farthest) + SPLINE_HALO
        # Aligned, so that holes are filled as in any other tile.
        return slice(max(0, part.start - halo) // FINE_ALIGNMENT * FINE_ALIGNMENT, min(size, part.stop + halo))


def _relative(part: Place, origin: tuple[int, int]) -> Place:
    rows, columns = (slice(axis.start - first, axis.stop - first) for axis, first in zip(part, origin, strict=True))
    return rows, columns


def fuse_tiles(
    job: TileJob, tiles: Sequence[Tile], at_once: int, workers: int | None = None, cluster: str | None = None
) -> FusedTiles:
    """Every tile, in order: in processes where `workers` or a `cluster` is given, else in `at_once` threads."""
    if workers is not None or cluster is not None:
        return _in_processes(job, tiles, workers, cluster)
    return _in_threads(job, tiles, at_once)


def _in_threads(job: TileJob, tiles: Sequence[Tile], at_once: int) -> FusedTiles:
    def read(tile: Tile) -> tuple[TileInputs | None, float]:
        start = time.perf_counter()
        return job.read(tile), time.perf_counter() - start

    def compute(tile: Tile, inputs: Future[tuple[TileInputs | None, float]]) -> FusedTile:
        fused = job.fuse(tile, *inputs.result())
        release_memory()
        return fused

    readers = 1 + (at_once - 1) // TILES_PER_READER
    with one_thread_per_tile(), ThreadPoolExecutor(readers) as reading, ThreadPoolExecutor(at_once) as computing:
        try:
            yield from _in_order(
                tiles, lambda tile: computing.submit(compute, tile, reading.submit(read, tile)), lambda: at_once + 2
            )
        finally:
            # Also when the caller stops: running tiles end, waiting ones never start.
            for pool in (reading, computing):
                pool.shutdown(wait=False, cancel_futures=True)


def _in_processes(job: TileJob, tiles: Sequence[Tile], workers: int | None, address: str | None) -> FusedTiles:
    with _client(workers, address) as client:
        # A task and not scattered data: the scheduler can then repeat it when the worker that holds it dies.
        shared = client.submit(copy, job, pure=False)
        futures: list[Any] = []

        def submit(tile: Tile) -> Any:
            futures.append(client.submit(_run_in_worker, shared, tile, pure=False))
            return futures[-1]

        try:
            limit = lambda: (1 + WAITING_PER_WORKER) * max(1, sum(client.nthreads().values()))  # noqa: E731
            for tile, fused in _in_order(tiles, submit, limit):
                futures.pop(0)
                yield tile, fused
        finally:
            client.cancel(futures)


def _in_order(tiles: Sequence[Tile], submit: Callable[[Tile], Any], limit: Callable[[], int]) -> FusedTiles:
    """Results in the order of the tiles, with at most `limit()` of them submitted and not yet consumed."""
    pending: deque[tuple[Tile, Any]] = deque()
    waiting = iter(tiles)
    while True:
        while len(pending) < limit() and (tile := next(waiting, None)) is not None:
            pending.append((tile, submit(tile)))
        if not pending:
            return
        tile, future = pending.popleft()
        yield tile, future.result()


@contextmanager
def one_thread_per_tile() -> Iterator[None]:
    """Compute each tile in one thread, so that sums do not depend on the number of processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_in_worker(job: TileJob, tile: Tile) -> FusedTile:
    with bounded_pools(), one_thread_per_tile():
        fused = job.run(tile)
    release_memory()
    return fused


@contextmanager
def _client(workers: int | None, address: str | None) -> Iterator[Any]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        remedy = 'pip install "hyperfuse[cluster]"'
        raise OptionError("a run on several processes without Dask", "the extra `cluster`", remedy) from error
    with ExitStack() as opened, warnings.catch_warnings():
        # Slightly different versions, ports in use, tasks of some megabytes: nothing that a user can fix.
        for module in ("distributed", "dask", "tornado"):
            warnings.filterwarnings("ignore", module=module)
        if address is None:
            cluster = opened.enter_context(_local_cluster(distributed, workers))
            yield opened.enter_context(distributed.Client(cluster))
            return
        try:
            client = opened.enter_context(distributed.Client(address, timeout=SECONDS_TO_CONNECT))
        except (OSError, ValueError) as error:
            got = f"no Dask scheduler at {address}"
            raise OptionError(got, "an address like tcp://host:8786", "check --cluster") from error
        if not client.nthreads():
            raise OptionError(f"the cluster at {address} has no workers", "at least one", "start `dask worker`")
        yield client


def _local_cluster(distributed: Any, workers: int | None) -> Any:
    try:
        return distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host=LOOPBACK,
            dashboard_address=None,
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        )
    except (OSError, RuntimeError) as error:
        remedy = 'in a script of your own, call it under `if __name__ == "__main__":`'
        raise OptionError(f"{workers} workers that do not start ({error})", remedy=remedy) from error
