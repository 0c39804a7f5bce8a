"""Lazy cubes: an array that reads only the window asked for, and may travel to another process: it holds a path, not a file."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from hyperfuse.cubes.cube import DIMS


class WindowReader(Protocol):
    """Something that reads windows of a (band, y, x) array from a file."""

    @property
    def shape(self) -> tuple[int, int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        """The given bands, in the given order, of the rows and columns start:stop (step 1)."""


class _WindowedArray(BackendArray):
    def __init__(self, reader: WindowReader) -> None:
        self.reader = reader
        self.shape = reader.shape
        self.dtype = reader.dtype.newbyteorder("=")

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        bands = np.atleast_1d(np.arange(self.shape[0])[key[0]])
        rows, inner_rows = _covering(key[1], self.shape[1])
        columns, inner_columns = _covering(key[2], self.shape[2])
        if 0 in (bands.size, rows.stop - rows.start, columns.stop - columns.start):
            block = np.empty((bands.size, rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        else:
            block = self.reader.read(bands, rows, columns).astype(self.dtype, copy=False)
        block = block[:, inner_rows][:, :, inner_columns]
        for axis in (2, 1, 0):
            if isinstance(key[axis], int | np.integer):
                block = block[(slice(None),) * axis + (0,)]
        return block


def lazy_variable(reader: WindowReader) -> xr.Variable:
    return xr.Variable(DIMS, indexing.LazilyIndexedArray(_WindowedArray(reader)))


def _covering(key: Any, size: int) -> tuple[slice, Any]:
    """The contiguous range that covers an index, and the index within that range."""
    positions = np.atleast_1d(np.arange(size)[key])
    if positions.size == 0:
        return slice(0, 0), slice(None)
    start, stop = int(positions.min()), int(positions.max()) + 1
    contiguous = positions.size == stop - start and (positions.size == 1 or positions[0] < positions[-1])
    return slice(start, stop), slice(None) if contiguous else positions - start
