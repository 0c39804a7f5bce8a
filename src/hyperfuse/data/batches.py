"""Batches for a training loop: one after the other, drawn by worker processes while the network computes.

Scenes for several processes: a loader's workers look at the same memory or the same file instead of each having a copy.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hyperfuse.data.observing import PairBatch, SimulationSettings
from hyperfuse.data.sampler import Bucket, draw_batch
from hyperfuse.errors import OptionError


@dataclass(frozen=True)
class MappedFile:
    """Where in a file an array lies."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    def open(self) -> NDArray[Any]:
        content = np.memmap(self.path, dtype=np.uint8, mode="r")
        return np.ndarray(self.shape, self.dtype, buffer=content, offset=self.offset, strides=self.strides)


class SharedBuckets:
    """Buckets that can be sent to another process without their scenes being copied.

    Pickled, a scene in memory becomes a handle on shared memory (torch's own way, which the loader uses for batches
    too), and one that is mapped from a file becomes the place in that file.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        arrays: dict[int, Tensor | MappedFile] = {}
        for scene in (scene for bucket in buckets for scene in bucket.scenes):
            if id(scene) not in arrays:
                arrays[id(scene)] = _shared(scene.stored)
        # Per bucket; a scene cut into patches of two sizes lies in two of them, and its array but once in memory.
        self._arrays = [[arrays[id(scene)] for scene in bucket.scenes] for bucket in buckets]
        self.buckets = _with_arrays(buckets, [[_opened(array) for array in row] for row in self._arrays])

    def __getstate__(self) -> dict[str, Any]:
        nothing = [[np.empty((0, 0, 0)) for _ in row] for row in self._arrays]
        return {"_arrays": self._arrays, "buckets": _with_arrays(self.buckets, nothing)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._arrays = state["_arrays"]
        self.buckets = _with_arrays(state["buckets"], [[_opened(array) for array in row] for row in self._arrays])


def _with_arrays(buckets: Sequence[Bucket], arrays: Sequence[Sequence[NDArray[Any]]]) -> list[Bucket]:
    return [
        replace(
            bucket, scenes=tuple(replace(scene, stored=array) for scene, array in zip(bucket.scenes, row, strict=True))
        )
        for bucket, row in zip(buckets, arrays, strict=True)
    ]


def _shared(stored: NDArray[Any]) -> Tensor | MappedFile:
    if isinstance(stored, np.memmap) and stored.filename is not None:
        whole: Any = stored
        while isinstance(whole.base, np.memmap):
            whole = whole.base
        offset = whole.offset + stored.ctypes.data - whole.ctypes.data
        return MappedFile(str(stored.filename), stored.dtype, stored.shape, offset, stored.strides)
    shared = torch.from_numpy(np.array(stored, dtype=stored.dtype.newbyteorder("="), order="C"))
    shared.share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _opened(array: Tensor | MappedFile) -> NDArray[Any]:
    return array.open() if isinstance(array, MappedFile) else array.numpy()


Finish = Callable[[PairBatch], PairBatch]


class PairBatches(Dataset[PairBatch]):
    """All batches of a seed: item `draw` is batch number `draw`, for any number of 0 or more, or the part of it in
    `slots`.

    `finish` is applied to each of them where it is drawn, in a worker if there are any: the place for work that needs
    no network.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket] | SharedBuckets,
        settings: SimulationSettings,
        *,
        seed: int,
        batch_size: int,
        slots: range | None = None,
        finish: Finish | None = None,
    ) -> None:
        self._buckets = buckets
        self.settings = settings
        self.seed = seed
        self.batch_size = batch_size
        self.slots = slots
        self.finish = finish

    def __getitem__(self, draw: int) -> PairBatch:
        buckets = self._buckets.buckets if isinstance(self._buckets, SharedBuckets) else self._buckets
        batch = draw_batch(
            buckets, self.settings, seed=self.seed, draw=draw, batch_size=self.batch_size, slots=self.slots
        )
        return batch if self.finish is None else self.finish(batch)


def batch_loader(
    buckets: Sequence[Bucket],
    settings: SimulationSettings,
    *,
    seed: int,
    batch_size: int,
    start: int,
    end: int,
    workers: int = 0,
    slots: range | None = None,
    finish: Finish | None = None,
    prefetch: int = 2,
    pin_memory: bool = False,
) -> DataLoader[PairBatch]:
    """Batches `start` .. `end` - 1 in this order, drawn here or by worker processes, with the same bits.

    Workers are not forks of this process: a fork of a process whose threads compute may hang. So `finish` and the
    functions of synthetic buckets must be picklable, and a script that calls this needs `if __name__ == "__main__"`.
    """
    shared = SharedBuckets(buckets) if workers else buckets
    dataset = PairBatches(shared, settings, seed=seed, batch_size=batch_size, slots=slots, finish=finish)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=range(start, end),
        num_workers=workers,
        multiprocessing_context=_start_method() if workers else None,
        persistent_workers=workers > 0,
        prefetch_factor=prefetch if workers else None,
        worker_init_fn=_calm_worker,
        pin_memory=pin_memory,
        # The loader draws a seed for its workers; not from the generator that the training's own random numbers come
        # from.
        generator=torch.Generator(),
    )


def _start_method() -> BaseContext:
    """Workers fork from a server that has read the libraries and computed nothing; where there is no fork, from
    nothing.

    Spawned workers end by tearing down their interpreter, which aborts when a batch is just being sent; those of a
    server do not.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def process_slots(batch_size: int, process: int, processes: int) -> range:
    """Which slots of every batch one of several processes draws."""
    if batch_size % processes:
        raise OptionError(
            f"batches of {batch_size} for {processes} processes",
            "as many samples for each process",
            f"take a multiple of {processes}",
        )
    share = batch_size // processes
    return range(process * share, (process + 1) * share)


def _calm_worker(worker: int) -> None:
    """An interrupt from the keyboard reaches every process; only the training itself decides what becomes of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_training, daemon=True).start()


def _end_with_the_training() -> None:
    """A training that was killed cannot tell its workers, and the server from which they forked outlives it with them."""
    training = multiprocessing.parent_process()
    if training is not None:
        training.join()
        os._exit(1)
