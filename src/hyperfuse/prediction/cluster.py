"""The same tiles on many processes: workers of this machine, or a Dask cluster. One process, the caller, writes.

Workers read their own windows of the images, so these must lie where they can see them. A worker that dies costs the tiles that it
was working on; the scheduler hands them to another.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from hyperfuse.errors import OptionError
from hyperfuse.prediction.memory import bounded_pools, give_back
from hyperfuse.prediction.scene_job import FusedTile, SceneJob, one_thread_per_tile
from hyperfuse.prediction.tile_engine import StageSeconds
from hyperfuse.prediction.tile_plan import Tile

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
            raise OptionError(f"no Dask scheduler at {address}", "an address like tcp://host:8786", "check --cluster") from error
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
