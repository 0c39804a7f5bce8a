"""Windows straight into a file of plain numbers, as ENVI has it.

Not through GDAL: its blocks there are single rows of single bands, and a window that is narrower than the image would have every
one of them read, changed and written again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RawWriter:
    """`interleave` is bsq (band by band), bil (row by row, in it band by band) or bip (pixel by pixel)."""

    def __init__(self, file: FileIO, shape: tuple[int, int, int], dtype: np.dtype[Any], interleave: str) -> None:
        self._file = file
        self._bands, self._height, self._width = shape
        self._itemsize = dtype.itemsize
        self._interleave = interleave

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        is_wide = columns.stop - columns.start == self._width
        if self._interleave == "bip":
            pixels = np.ascontiguousarray(block.transpose(1, 2, 0))
            starts = [(row * self._width + columns.start) * self._bands for row in range(rows.start, rows.stop)]
            self._put(starts, pixels, joined=is_wide)
        elif self._interleave == "bil":
            lines = np.ascontiguousarray(block.transpose(1, 0, 2))
            for row, line in zip(range(rows.start, rows.stop), lines, strict=True):
                starts = [(row * self._bands + band) * self._width + columns.start for band in range(self._bands)]
                self._put(starts, line, joined=is_wide)
        else:
            for band, plane in enumerate(np.ascontiguousarray(block)):
                starts = [(band * self._height + row) * self._width + columns.start for row in range(rows.start, rows.stop)]
                self._put(starts, plane, joined=is_wide)

    def _put(self, starts: list[int], pieces: NDArray[Any], *, joined: bool) -> None:
        """Pieces at their places, counted in values; where they follow each other, all in one go."""
        if joined:
            self._put_bytes(starts[0], pieces)
            return
        for start, piece in zip(starts, pieces, strict=True):
            self._put_bytes(start, piece)

    def _put_bytes(self, start: int, values: NDArray[Any]) -> None:
        left = values.data.cast("B")
        self._file.seek(start * self._itemsize)
        while left:
            left = left[self._file.write(left) :]


@contextmanager
def raw_writer(path: Path, shape: tuple[int, int, int], dtype: np.dtype[Any], interleave: str) -> Iterator[RawWriter]:
    """Into a file that exists."""
    with path.open("r+b", buffering=0) as file:
        yield RawWriter(file, shape, dtype, interleave)
