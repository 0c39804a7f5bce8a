"""The arrays in a container (HDF5, NetCDF, Zarr, .mat, .npz), not yet read, and windows of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyperfuse.cubes.lazy import covering, stretches


class LoadPart(Protocol):
    """Reads part of an n-dimensional array: `load((slice, slice, slice))`."""

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class InMemory:
    """`LoadPart` for an array that had to be read anyway."""

    array: NDArray[Any]

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        return np.asarray(self.array[key])


@dataclass(frozen=True, eq=False)
class FoundArray:
    """An array of a container, not yet read."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: LoadPart
    dims: tuple[str, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.name.rsplit("/", 1)[-1].rsplit(".", 1)[-1].lower()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def values(self) -> NDArray[Any]:
        return self.load(tuple(slice(None) for _ in self.shape))


@dataclass(frozen=True)
class TransposedReader:
    """Reads windows of a 3-D array whose axes come in any order; `axes` says where band, y and x are."""

    found: FoundArray
    axes: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        band, y, x = self.axes
        return self.found.shape[band], self.found.shape[y], self.found.shape[x]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.found.dtype

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        parts = [self._read_stretch(part, rows, columns) for part in stretches(bands)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read_stretch(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        stretch, inner = covering(bands)
        key: list[Any] = [None, None, None]
        for axis, part in zip(self.axes, (stretch, rows, columns), strict=True):
            key[axis] = part
        values: NDArray[Any] = self.found.load(tuple(key)).transpose(self.axes)[inner]
        return values


Sides = Mapping[str, FoundArray]
