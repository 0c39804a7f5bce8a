"""Scenes for several processes: a loader's workers look at the same memory or the same file instead of each having a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.loading.buckets import Bucket


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

    Pickled, a scene in memory becomes a handle on shared memory (torch's own way, which the loader uses for batches too), and one
    that is mapped from a file becomes the place in that file.
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
        replace(bucket, scenes=tuple(replace(scene, stored=array) for scene, array in zip(bucket.scenes, row, strict=True)))
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
