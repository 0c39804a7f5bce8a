"""The same tiles on many processes: workers of this machine, or a Dask cluster. One process, the caller, writes.

Workers read their own windows of the images, so these must lie where they can see them. A worker that dies costs the
tiles that it was working on; the scheduler hands them to another.

Everything that any process needs to fuse any tile of one scene, and the three steps of doing it: read, fuse, store.

Shapes: C bands, M msi bands, h w coarse, H W fine.

Tiles through three stages at once: while some are computed, the next are read and finished ones are written by the
caller.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.errors import OptionError
from hyperfuse.fusion.memory import bounded_pools, give_back
from hyperfuse.fusion.network import MethodFusion, WindowFusion
from hyperfuse.fusion.pair import AlignedPair
from hyperfuse.fusion.register import SMALLEST_MOVE, moved
from hyperfuse.fusion.tiles import FINE_ALIGNMENT, Tile, WindowPlace, covered_part, place_for
from hyperfuse.io.cube import nodata_of
from hyperfuse.io.output import Clipping, to_stored
from hyperfuse.methods.catalogue import UNCERTAINTY
from hyperfuse.methods.window import Window, fill_missing, mask_missing
from hyperfuse.physics.observation import Observation

# Cubic splines look farther than their four pixels, but fade by 0.27 from pixel to pixel.
SPLINE_REACH = 12


@dataclass(frozen=True)
class TileInputs:
    part: tuple[slice, slice]
    """The fine pixels of the pair that the tile yields."""
    place: WindowPlace
    hsi: NDArray[np.float32]
    msi: NDArray[np.float32]


@dataclass(frozen=True)
class FusedTile:
    """Values of a tile (bands, rows, columns) as they are stored, and how many of them there were and did not fit."""

    block: NDArray[Any]
    values: int
    clipped: int


@dataclass(frozen=True)
class SceneJob:
    pair: AlignedPair
    observation: Observation
    fusion: WindowFusion
    stored_as: xr.DataArray
    """One pixel of the output: its bands, data type, scale and nodata."""
    bands: NDArray[np.int64]
    """Which bands of the HSI the output has."""
    move: tuple[float, float]
    """How far the result is to be moved, fine pixels: not at all, or to where the HSI says that it lies."""

    def fuse_tile(self, tile: Tile) -> FusedTile:
        return self.fuse(tile, self.read(tile))

    def read(self, tile: Tile) -> TileInputs | None:
        """None where the pair does not reach."""
        part = covered_part(tile, self.pair)
        if part is None:
            return None
        rows, columns = (self._widened(axis, size) for axis, size in zip(part, self.pair.fine_shape[1:], strict=True))
        place = place_for(self.pair, self.observation, rows, columns, self.fusion.halo(self.observation))
        return TileInputs(part, place, self.pair.hsi_values(*place.coarse), self.pair.msi_values(*place.fine))

    def fuse(self, tile: Tile, inputs: TileInputs | None) -> FusedTile:
        nodata, clipping = nodata_of(self.stored_as), Clipping()
        block = np.full((len(self.bands), *tile.shape), 0 if nodata is None else nodata, dtype=self.stored_as.dtype)
        if inputs is not None:
            fused = self._fused(inputs)
            rows, columns = (
                slice(part.start + covered.start - wanted.start, part.stop + covered.start - wanted.start)
                for part, covered, wanted in zip(
                    inputs.part, (self.pair.fine_rows, self.pair.fine_columns), (tile.rows, tile.columns), strict=True
                )
            )
            block[:, rows, columns] = to_stored(fused, self.stored_as, clipping)
        return FusedTile(block, clipping.values, clipping.clipped)

    def _fused(self, inputs: TileInputs) -> NDArray[np.float32]:
        """(bands, rows, columns) Physical values of the tile's part of the pair, NaN where there is no data."""
        usable, place = self.pair.usable_bands, inputs.place
        msi, observation = torch.from_numpy(np.ascontiguousarray(inputs.msi)), place.observation(self.observation)
        hsi = torch.from_numpy(np.ascontiguousarray(inputs.hsi[usable]))
        fused = self.fusion.fuse_window(Window(hsi, msi, observation, place.coarse_core, place.fine_core)).numpy()
        if not usable.all():
            everything = np.empty((len(usable), *fused.shape[1:]), dtype=np.float32)
            everything[usable] = fused
            if isinstance(self.fusion, MethodFusion) and self.fusion.method == UNCERTAINTY:
                everything[~usable] = np.nan  # of bands that are only interpolated nothing is known
            else:
                bad = torch.from_numpy(np.ascontiguousarray(inputs.hsi[~usable]))
                everything[~usable] = _interpolated(
                    Window(bad, msi, observation, place.coarse_core, place.fine_core)
                ).numpy()
            fused = everything
        if len(self.bands) < len(fused):
            fused = fused[self.bands]
        if not self._is_moved:
            return fused
        rows, columns = (
            slice(part.start - wide.start - core.start, part.stop - wide.start - core.start)
            for part, wide, core in zip(inputs.part, place.fine, place.fine_core, strict=True)
        )
        return moved(fused, self.move)[:, rows, columns]

    @property
    def _is_moved(self) -> bool:
        return max(abs(distance) for distance in self.move) >= SMALLEST_MOVE

    def _widened(self, part: slice, size: int) -> slice:
        if not self._is_moved:
            return part
        margin = math.ceil(max(abs(distance) for distance in self.move)) + SPLINE_REACH
        # Begins where holes are filled as they are in any other tile.
        return slice(max(0, part.start - margin) // FINE_ALIGNMENT * FINE_ALIGNMENT, min(size, part.stop + margin))


def _interpolated(window: Window) -> Tensor:
    """Bands that are flagged bad are interpolated and nothing else."""
    whole = replace(window, hsi=fill_missing(window.hsi))
    return mask_missing(whole.upsample_to_core(whole.hsi), window)


@contextmanager
def one_thread_per_tile() -> Iterator[None]:
    """Tiles are worked on side by side, each by one thread: sums then do not depend on how many processors there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


TILES_PER_READER = 4


@dataclass
class StageSeconds:
    """Seconds spent in each stage, summed over threads: stages overlap, so they add up to more than the time that
    passed.
    """

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
    """Every tile, in order. At most `at_once` are computed at the same time, and no more than two others wait before or
    after.
    """

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


LOOPBACK = "127.0.0.1"
SECONDS_TO_CONNECT = 10
# Tiles that wait at a worker while it computes another.
WAITING_PER_WORKER = 1


def fused_on_cluster(
    job: SceneJob, tiles: Sequence[Tile], seconds: StageSeconds, *, workers: int | None, address: str | None
) -> Generator[tuple[Tile, FusedTile], None, None]:
    """Every tile, in order."""
    with _client(workers, address) as client:
        # A task and not scattered data: what a dead worker held is then made again.
        shared = client.submit(_unchanged, job, pure=False)
        under_way: deque[tuple[Tile, Any]] = deque()
        waiting = iter(tiles)
        try:
            while True:
                threads = max(1, sum(client.nthreads().values()))
                while len(under_way) < (1 + WAITING_PER_WORKER) * threads and (tile := next(waiting, None)) is not None:
                    under_way.append((tile, client.submit(_fused, shared, tile, pure=False)))
                if not under_way:
                    return
                tile, future = under_way.popleft()
                fused, reading, computing = future.result()
                seconds.reading += reading
                seconds.computing += computing
                yield tile, fused
        finally:
            client.cancel([future for _, future in under_way])


def _unchanged(job: SceneJob) -> SceneJob:
    return job


def _fused(job: SceneJob, tile: Tile) -> tuple[FusedTile, float, float]:
    with bounded_pools(), one_thread_per_tile():
        start = time.perf_counter()
        inputs = job.read(tile)
        middle = time.perf_counter()
        fused = job.fuse(tile, inputs)
        end = time.perf_counter()
    give_back()
    return fused, middle - start, end - middle


@contextmanager
def _client(workers: int | None, address: str | None) -> Iterator[Any]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        remedy = 'pip install "hyperfuse[cluster]"'
        raise OptionError("a run on several processes without Dask", "the extra `cluster`", remedy) from error
    with ExitStack() as opened, quiet():
        if address is None:
            cluster = opened.enter_context(_local_cluster(distributed, workers))
            yield opened.enter_context(distributed.Client(cluster))
            return
        try:
            client = opened.enter_context(distributed.Client(address, timeout=SECONDS_TO_CONNECT))
        except (OSError, ValueError) as error:
            raise OptionError(
                f"no Dask scheduler at {address}", "an address like tcp://host:8786", "check --cluster"
            ) from error
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


@contextmanager
def quiet() -> Iterator[None]:
    """Versions that differ a little, ports that are taken, jobs of some megabytes: nothing that a user can mend."""
    with warnings.catch_warnings():
        for part in ("distributed", "dask", "tornado"):
            warnings.filterwarnings("ignore", module=part)
        yield
