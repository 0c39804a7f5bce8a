"""Tiles of one scene: their windows of both images, computed in threads, worker processes or on a Dask cluster.

Windows are clipped only at the border of the scene, so border effects occur there and nowhere else.

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
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
import xarray as xr
from numpy.typing import NDArray
from scipy.ndimage import shift as spline_shift

from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.fusion.fusers import Fuser
from hyperfuse.fusion.pair import AlignedPair
from hyperfuse.fusion.parts import TileCore, storage_of
from hyperfuse.fusion.tile_files import load_tile, store_tile, tile_file
from hyperfuse.io.allocator import freed_memory_kept, keep_freed_memory
from hyperfuse.io.cube import physical_values
from hyperfuse.io.output import Clipping, to_stored
from hyperfuse.methods.missing import fill_missing, filling_halo
from hyperfuse.methods.mixing import interpolated_core
from hyperfuse.methods.window import (
    EVERYWHERE,
    Place,
    Window,
    all_finite,
    near_on_axis,
    one_torch_thread,
)
from hyperfuse.models.weights import network_precision
from hyperfuse.physics.observation import Observation

# Below this shift in fine pixels, interpolation would cost more than it gains.
SMALLEST_MOVE = 0.01
# The support of an interpolating cubic spline is unbounded, but its weights fall by 0.27 from pixel to pixel.
SPLINE_HALO = 12
TILES_PER_READER = 4
LOOPBACK = "127.0.0.1"
SECONDS_TO_CONNECT = 10
# How often to look whether any worker is left, and how long it may take to start others.
SECONDS_BETWEEN_LOOKS, SECONDS_WITHOUT_WORKERS = 5.0, 120.0
# Tiles that wait at a worker while it computes another.
WAITING_PER_WORKER = 1

# Every thread of a library has its own buffers: hundreds of megabytes on a machine with many cores.
MOST_THREADS = 16
CACHE_BYTES = 48_000_000  # of GDAL

FusedTiles = Generator[tuple["Tile", "FusedTile"], None, None]


def pixels_of(place: Place) -> int:
    rows, columns = (int(part.stop - part.start) for part in place)
    return rows * columns


@dataclass(frozen=True)
class Tile:
    """A piece of the output, in pixels of the output's grid."""

    index: int
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def pixels(self) -> int:
        return pixels_of((self.rows, self.columns))


@dataclass(frozen=True)
class WindowPlace:
    """Windows of both images for some fine pixels of a pair, and within them the cores."""

    coarse: Place
    fine: Place
    coarse_core: Place
    fine_core: Place
    halo: int
    """Coarse pixels around the core."""

    @property
    def coarse_pixels(self) -> int:
        return pixels_of(self.coarse)

    @property
    def fine_pixels(self) -> int:
        return pixels_of(self.fine)

    @property
    def core_pixels(self) -> int:
        return pixels_of(self.fine_core)


def place_for(pair: AlignedPair, observation: Observation, rows: slice, columns: slice, halo: int) -> WindowPlace:
    """The windows that these fine pixels of the pair need, with `halo` coarse pixels around them."""
    cores = (rows.start, rows.stop), (columns.start, columns.stop)
    axes = zip(cores, pair.coarse_shape[1:], pair.fine_shape[1:], pair.scale, observation.shift, strict=True)
    y, x = (near_on_axis(*axis, halo) for axis in axes)
    coarse, fine, under = zip(y, x, strict=True)
    corners = [(top.start, left.start) for top, left in (coarse, fine)]
    return WindowPlace(coarse, fine, relative(under, corners[0]), relative((rows, columns), corners[1]), halo)


def place_to_fill(pair: AlignedPair, observation: Observation, place: WindowPlace) -> WindowPlace:
    """The same with all pixels that those that are missing are filled from."""
    rows, columns = (
        slice(part.start + core.start, part.start + core.stop)
        for part, core in zip(place.fine, place.fine_core, strict=True)
    )
    return place_for(pair, observation, rows, columns, place.halo + filling_halo(observation))


def covered_part(tile: Tile, pair: AlignedPair) -> tuple[slice, slice] | None:
    """The fine pixels of the pair, counted from its corner, in a tile; None where there are none."""
    rows, columns = (
        slice(max(part.start, covered.start) - covered.start, min(part.stop, covered.stop) - covered.start)
        for part, covered in ((tile.rows, pair.fine_rows), (tile.columns, pair.fine_columns))
    )
    return (rows, columns) if rows.stop > rows.start and columns.stop > columns.start else None


def read_window(pair: AlignedPair, observation: Observation, place: WindowPlace, *, all_bands: bool = False) -> Window:
    """A window of the pair with the usable bands of the HSI, or all of them; NaN where there is no data.

    Where there is none in some of it, the window has what is needed to fill it, too.
    """
    read = pair.hsi_values if all_bands else pair.usable_values
    hsi, msi = read(*place.coarse), pair.msi_values(*place.fine)
    if not (all_finite(torch.from_numpy(hsi)) and all_finite(torch.from_numpy(msi))):
        place = place_to_fill(pair, observation, place)
        hsi, msi = read(*place.coarse), pair.msi_values(*place.fine)
    local = observation.in_window(*((rows.start, columns.start) for rows, columns in (place.coarse, place.fine)))
    weight = None if pair.msi_weight is None else torch.from_numpy(physical_values(pair.msi_weight, *place.fine)[0])
    cores = place.coarse_core, place.fine_core
    return Window(torch.from_numpy(hsi), torch.from_numpy(msi), local, *cores, msi_weight=weight)


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
    seconds: float = 0.0
    in_file: bool = False  # the values, instead of here


@dataclass(frozen=True)
class TileJob:
    pair: AlignedPair
    observation: Observation
    fuser: Fuser
    bands: NDArray[np.int64]
    """Which bands of the HSI the output has."""
    move: tuple[float, float] = (0.0, 0.0)
    """How far to move the result, in fine pixels: to where the HSI's georeference says that it lies."""
    non_negative: bool = True
    """Whether values are kept from falling below zero where the HSI does not."""
    precision: str = "float32"
    """Of networks."""
    stored_as: xr.DataArray | None = None
    """One pixel of the output: its bands, data type, scale and nodata. None while that is not decided."""

    def run(self, tile: Tile) -> FusedTile:
        return self.fuse(tile, self.read(tile))

    def read(self, tile: Tile) -> TileInputs | None:
        """None where the pair does not cover the tile."""
        part = covered_part(tile, self.pair)
        if part is None:
            return None
        rows, columns = (self._widened(axis, size) for axis, size in zip(part, self.pair.fine_shape[1:], strict=True))
        place = place_for(self.pair, self.observation, rows, columns, self.fuser.halo(self.observation))
        return TileInputs(part, (rows, columns), read_window(self.pair, self.observation, place, all_bands=True))

    def fuse(self, tile: Tile, inputs: TileInputs | None) -> FusedTile:
        """All bands are only ever held of a part that fits into the cache, where it is converted to what is stored."""
        start, clipping = time.perf_counter(), Clipping()

        def stored(values: NDArray[np.float32]) -> NDArray[Any]:
            return values if self.stored_as is None else to_stored(values, self.stored_as, clipping)

        dtype = np.float32 if self.stored_as is None else self.stored_as.dtype
        block = np.empty((len(self.bands), *tile.shape), dtype)
        if inputs is None or pixels_of(inputs.part) < tile.pixels:
            block[:] = stored(np.full((len(self.bands), 1, 1), np.nan, dtype=np.float32))
        if inputs is not None:
            top, left = tile.rows.start - self.pair.fine_rows.start, tile.columns.start - self.pair.fine_columns.start
            covered, core = block[:, *relative(inputs.part, (top, left))], self._fused_core(inputs.window)
            if is_moved(self.move):
                inner = relative(inputs.part, (inputs.core[0].start, inputs.core[1].start))
                covered[:] = stored(moved(core.values(EVERYWHERE).numpy(), self.move)[:, *inner])
            else:
                for part in core.parts(covered.shape):
                    if not core.store(part, covered[:, *part], clipping):
                        covered[:, *part] = stored(core.values(part).numpy())
        return FusedTile(block, clipping.values, clipping.clipped, time.perf_counter() - start)

    def _fused_core(self, window: Window) -> TileCore:
        usable = torch.from_numpy(self.pair.usable_bands)
        good = window if usable.all() else replace(window, hsi=window.hsi[usable])
        bad = replace(window, hsi=window.hsi[~usable])
        with network_precision(self.precision):
            fused = self.fuser.fused_core(good)
        filled = interpolated_core(bad, fill_missing(bad.hsi)).in_unit(1, bad)
        others = filled if self.fuser.interpolates_bad_bands else None
        return TileCore(good, bad, fused, others, usable, self.bands, self.non_negative, storage_of(self.stored_as))

    def _widened(self, part: slice, size: int) -> slice:
        if not is_moved(self.move):
            return part
        halo = math.ceil(max(abs(distance) for distance in self.move)) + SPLINE_HALO
        return slice(max(0, part.start - halo), min(size, part.stop + halo))


def relative(part: Place, origin: tuple[int, int]) -> Place:
    """A part as it is seen from an origin."""
    rows, columns = (slice(axis.start - first, axis.stop - first) for axis, first in zip(part, origin, strict=True))
    return rows, columns


def is_moved(misregistration: tuple[float, float]) -> bool:
    return max(abs(distance) for distance in misregistration) >= SMALLEST_MOVE


def moved(fused: NDArray[np.float32], misregistration: tuple[float, float]) -> NDArray[np.float32]:
    """(C, H, W) moved by a subpixel shift with cubic splines: pixel (i, j) comes from (i, j) + misregistration.

    Holes move by whole pixels.
    """
    if not is_moved(misregistration):
        return fused
    back = [-distance for distance in misregistration]
    whole = fill_missing(torch.from_numpy(fused)).numpy()
    result = np.stack([spline_shift(band, back, order=3, mode="nearest") for band in whole])
    missing = np.isnan(fused)
    if missing.any():
        nearest = [round(distance) for distance in back]
        holes = np.stack([spline_shift(band.astype(np.uint8), nearest, order=0, mode="nearest") for band in missing])
        result[holes > 0] = np.nan
    return result


def fuse_tiles(
    job: TileJob,
    tiles: Sequence[Tile],
    at_once: int,
    workers: int | None = None,
    cluster: str | None = None,
    folder: Path | None = None,
) -> FusedTiles:
    """Every tile, in order: in processes where `workers` or a `cluster` is given, else in `at_once` threads.

    Workers of this machine leave their tiles in the `folder`, from where they take a quarter of the time to arrive.
    """
    if workers is not None or cluster is not None:
        return _in_processes(job, tiles, workers, cluster, folder if cluster is None else None)
    return _in_threads(job, tiles, at_once)


def _in_threads(job: TileJob, tiles: Sequence[Tile], at_once: int) -> FusedTiles:
    def compute(tile: Tile, inputs: Future[TileInputs | None]) -> FusedTile:
        return job.fuse(tile, inputs.result())

    readers = 1 + (at_once - 1) // TILES_PER_READER
    with one_torch_thread(), ThreadPoolExecutor(readers) as reading, ThreadPoolExecutor(at_once) as computing:
        try:
            submit = lambda tile: computing.submit(compute, tile, reading.submit(job.read, tile))  # noqa: E731
            yield from _in_order(tiles, submit, lambda: at_once + 1)
        finally:
            # Also when the caller stops: running tiles end, waiting ones never start.
            for pool in (reading, computing):
                pool.shutdown(wait=False, cancel_futures=True)


def _in_processes(
    job: TileJob, tiles: Sequence[Tile], workers: int | None, address: str | None, folder: Path | None
) -> FusedTiles:
    with _client(workers, address) as client:
        # A task and not scattered data: the scheduler can then repeat it when the worker that holds it dies.
        shared = client.submit(copy, job, pure=False)
        futures: list[Any] = []

        def submit(tile: Tile) -> Any:
            futures.append(client.submit(_run_in_worker, shared, tile, folder, pure=False))
            return futures[-1]

        try:
            limit = lambda: (1 + WAITING_PER_WORKER) * max(1, sum(client.nthreads().values()))  # noqa: E731
            for tile, fused in _in_order(tiles, submit, limit, partial(_wait_for, client)):
                futures.pop(0)
                yield tile, _fetched(job, tile, fused, folder) if fused.in_file else fused
        except _killed_worker() as error:
            got = "a tile on which one worker after the other was killed"
            raise HyperfuseError(got, remedy="leave them more memory: fewer --workers, or a lower --ram") from error
        except (CancelledError, OSError) as error:
            if client.status == "running":
                raise
            got = f"the Dask scheduler at {address or client.scheduler.address} stopped answering"
            raise HyperfuseError(got, remedy="restart it") from error
        finally:
            if client.status == "running":
                client.cancel(futures)


def _killed_worker() -> type[Exception]:
    found: type[Exception] = import_module("distributed").KilledWorker
    return found


def _wait_for(client: Any, future: Any) -> Any:
    """The result of a task. Dask would wait for ever for workers that nobody starts again."""
    alone = 0.0
    while True:
        try:
            return future.result(timeout=SECONDS_BETWEEN_LOOKS)
        except TimeoutError:
            if future.done():
                raise
            alone = 0.0 if client.nthreads() else alone + SECONDS_BETWEEN_LOOKS
            if alone >= SECONDS_WITHOUT_WORKERS:
                raise HyperfuseError("no worker is left", remedy="start workers") from None


def _in_order(
    tiles: Sequence[Tile],
    submit: Callable[[Tile], Any],
    limit: Callable[[], int],
    wait: Callable[[Any], Any] = Future.result,
) -> FusedTiles:
    """Results in the order of the tiles, with at most `limit()` of them submitted and not yet consumed."""
    pending: deque[tuple[Tile, Any]] = deque()
    waiting = iter(tiles)
    while True:
        while len(pending) < limit() and (tile := next(waiting, None)) is not None:
            pending.append((tile, submit(tile)))
        if not pending:
            return
        tile, future = pending.popleft()
        yield tile, wait(future)


@contextmanager
def bounded_pools() -> Iterator[None]:
    """Limit threads, heaps and GDAL's cache (by default 5 % of the memory), so that every machine needs the same."""
    with freed_memory_kept(), _bounded_threads():
        yield


@contextmanager
def _bounded_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(min(MOST_THREADS, threads))
    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES):
            yield
    finally:
        torch.set_num_threads(threads)


def _run_in_worker(job: TileJob, tile: Tile, folder: Path | None) -> FusedTile:
    if folder is None:
        with bounded_pools(), one_torch_thread():
            return job.run(tile)
    # A process of our own, which keeps its memory for the next tile.
    keep_freed_memory()
    with _bounded_threads(), one_torch_thread():
        fused = job.run(tile)
    # Where it cannot be stored, it takes the other way.
    with suppress(OSError):
        store_tile(tile_file(folder, tile.index), fused.block)
        return replace(fused, block=fused.block[:0].copy(), in_file=True)
    return fused


def _fetched(job: TileJob, tile: Tile, fused: FusedTile, folder: Path | None) -> FusedTile:
    assert folder is not None
    assert job.stored_as is not None
    block = load_tile(tile_file(folder, tile.index), (len(job.bands), *tile.shape), job.stored_as.dtype)
    return job.run(tile) if block is None else replace(fused, block=block)


@contextmanager
def _client(workers: int | None, address: str | None) -> Iterator[Any]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        remedy = 'pip install "hyperfuse[cluster]"'
        raise OptionError("a run on several processes without Dask", "the extra `cluster`", remedy) from error
    # That a connection is lost is said once, by the error.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with ExitStack() as opened, warnings.catch_warnings():
        # Slightly different versions, ports in use, tasks of some megabytes: nothing that a user can fix.
        for module in ("distributed", "dask", "tornado"):
            warnings.filterwarnings("ignore", module=module)
        if address is None:
            cluster = opened.enter_context(_local_cluster(distributed, workers))
            yield opened.enter_context(distributed.Client(cluster, direct_to_workers=True))
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
        remedy = 'try again; in a script of your own, call it under `if __name__ == "__main__":`'
        raise OptionError(f"{workers} workers of which one did not start ({error})", remedy=remedy) from error
