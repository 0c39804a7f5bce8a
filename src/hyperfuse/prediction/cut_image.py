"""A window of a cube, turned the way of another image, read part by part.

Shapes: C bands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import iterate_windows, physical_values
from hyperfuse.errors import ValueRangeError

EVERYTHING = slice(None)


@dataclass(frozen=True)
class CutImage:
    """A window of a cube, turned where the other image is: reads physical values, NaN where there are none."""

    cube: xr.DataArray
    rows: slice
    columns: slice
    row_direction: int = 1
    column_direction: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.cube.sizes["band"], self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    def values(self, rows: slice, columns: slice, bands: slice | NDArray[np.int64] = EVERYTHING) -> NDArray[np.float32]:
        source = _source_slice(rows, self.rows, self.row_direction), _source_slice(columns, self.columns, self.column_direction)
        values: NDArray[np.float32] = physical_values(self.cube, *source, bands)
        return values[:, :: self.row_direction, :: self.column_direction]

    def thinned(self, every: int) -> NDArray[np.float32]:
        """All bands of every n-th row and column, read row by row where they are far apart."""
        rows, columns = (slice(part.start, part.stop, every) for part in (self.rows, self.columns))
        values: NDArray[np.float32] = physical_values(self.cube, rows, columns)
        return values[:, :: self.row_direction, :: self.column_direction]

    def is_missing(self, rows: NDArray[np.int64], columns: NDArray[np.int64], bands: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(rows, columns) Where none of these bands has a value. Pixels count within the cut but may lie beyond it."""
        source_rows = _source_pixels(rows, self.rows, self.row_direction, self.cube.sizes["y"])
        source_columns = _source_pixels(columns, self.columns, self.column_direction, self.cube.sizes["x"])
        # Each pixel is read once, however many fine ones lie on it.
        (needed_rows, row_of), (needed_columns, column_of) = (
            np.unique(axis, return_inverse=True) for axis in (source_rows, source_columns)
        )
        values = physical_values(self.cube.isel(y=needed_rows, x=needed_columns), bands=bands)
        missing: NDArray[np.bool_] = ~np.isfinite(values).any(axis=0)
        return missing[row_of][:, column_of]


def _source_slice(part: slice, cut: slice, direction: int) -> slice:
    """A part of a cut and perhaps turned axis, as a slice of the uncut one."""
    start, stop, step = part.indices(cut.stop - cut.start)
    assert step == 1
    stop = max(start, stop)
    return slice(cut.start + start, cut.start + stop) if direction > 0 else slice(cut.stop - stop, cut.stop - start)


def _source_pixels(pixels: NDArray[np.int64], cut: slice, direction: int, size: int) -> NDArray[np.int64]:
    source: NDArray[np.int64] = np.clip(cut.start + pixels if direction > 0 else cut.stop - 1 - pixels, 0, size - 1)
    return source


def require_values(image: CutImage, name: str) -> NDArray[np.bool_]:
    """Which bands hold any value; read by windows, and only the bands that were empty so far."""
    found = np.zeros(image.shape[0], dtype=bool)
    for rows, columns in iterate_windows(image.cube.isel(y=image.rows, x=image.columns)):
        empty = np.flatnonzero(~found)
        if not empty.size:
            break
        found[empty] = np.isfinite(image.values(rows, columns, empty)).any(axis=(1, 2))
    if not found.any():
        raise ValueRangeError(
            f"the {name} holds nothing but nodata or NaN in the overlap", "some valid pixels", "check nodata and extent"
        )
    return found
