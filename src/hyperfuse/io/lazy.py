"""Whatever a parser stumbles over in a damaged file becomes one error that says so.

Lazy cubes: an array that reads only the window asked for, and may travel to another process: it holds a path, not a
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from hyperfuse.errors import CubeFileError, HyperfuseError
from hyperfuse.io.cube import DIMS

# Where fewer than one in so many rows (or bands) of a stretch are wanted, they are read one by one and the rest stays
# unread.
SPARSE = 4


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
        self.dtype = delivered_dtype(reader.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if isinstance(key, indexing.BasicIndexer | indexing.OuterIndexer):
            # Not through xarray's adapter, which fails on an empty slice of negative step.
            return self._read(key.tuple)
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        bands, rows, columns = (positions_of(part, size) for part, size in zip(key, self.shape, strict=True))
        block = np.empty((bands.size, rows.size, columns.size), self.dtype)
        if block.size:
            stretch, inner_columns = covering(columns)
            start = 0
            for part in stretches(rows):
                row_stretch, inner_rows = covering(part)
                read = self.reader.read(bands, row_stretch, stretch)
                block[:, start : start + part.size] = read[:, inner_rows][:, :, inner_columns]
                start += part.size
        return block[tuple(0 if isinstance(part, int | np.integer) else slice(None) for part in key)]


def lazy_variable(reader: WindowReader) -> xr.Variable:
    return xr.Variable(DIMS, indexing.LazilyIndexedArray(_WindowedArray(reader)))


def delivered_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Native byte order; half precision, which few formats know, becomes float32 without loss."""
    return np.dtype(np.float32) if stored == np.float16 else stored.newbyteorder("=")


def positions_of(key: Any, size: int) -> NDArray[np.int64]:
    if isinstance(key, slice):
        return np.arange(*key.indices(size))
    positions = np.atleast_1d(np.asarray(key, dtype=np.int64))
    return np.where(positions < 0, positions + size, positions)


def stretches(positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Positions in pieces that are worth reading in one go: all of them, or where they are far apart, runs of
    neighbours.
    """
    span = int(positions.max()) - int(positions.min()) + 1
    if span <= SPARSE * positions.size:
        return [positions]
    return np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)


def covering(positions: NDArray[np.int64]) -> tuple[slice, Any]:
    """The contiguous range that covers some positions, and where they are within that range."""
    start, stop = int(positions.min()), int(positions.max()) + 1
    in_order = np.array_equal(positions, np.arange(start, stop))
    return slice(start, stop), slice(None) if in_order else positions - start


# No usual compression does better; a file that claims to does not hold what it promises.
LARGEST_COMPRESSION = 1100
# Whatever is smaller than this is not worth a refusal.
HARMLESS_BYTES = 2**28


def promises_too_much(promised: int, held: int) -> bool:
    """Would a library allocate so many bytes for a piece of a file that cannot be in it?"""
    return promised > HARMLESS_BYTES and promised > held * LARGEST_COMPRESSION


@contextmanager
def reading(path: Path, expected: str, remedy: str = "fetch or export it again") -> Iterator[None]:
    """For blocks in which a library parses `path`: scipy, zarr, h5py and numpy answer damage with all kinds of
    exceptions.
    """
    try:
        yield
    except HyperfuseError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise CubeFileError(f"{path} cannot be read: {text}", expected, remedy) from error
