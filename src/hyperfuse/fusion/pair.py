"""Two cubes of the same place -> a pair that shares orientation and extent, read by windows, and how the one lies in
the other.

The MSI's grid is never resampled. The HSI is placed on it by the two transforms; what lies outside the overlap is cut
off. Shapes: C bands, M msi bands, h w coarse, H W fine.

A window of a cube, turned the way of another image, read part by part.

Shapes: C bands.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import GridError, OptionError, ValueRangeError
from hyperfuse.fusion.overlap import SMALLEST_HSI, WHOLE_HSI, Area, AxisOverlap, overlaps
from hyperfuse.fusion.resample import parallel_to
from hyperfuse.fusion.unusable import without_masked
from hyperfuse.io.cube import iterate_windows, physical_values
from hyperfuse.io.grid import Grid, fine_grid, grid_of, parallel_placement, place, require_finer, window_of_grid

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
        source = (
            _source_slice(rows, self.rows, self.row_direction),
            _source_slice(columns, self.columns, self.column_direction),
        )
        values: NDArray[np.float32] = physical_values(self.cube, *source, bands)
        return values[:, :: self.row_direction, :: self.column_direction]

    def thinned(self, every: int) -> NDArray[np.float32]:
        """All bands of every n-th row and column, read row by row where they are far apart."""
        rows, columns = (slice(part.start, part.stop, every) for part in (self.rows, self.columns))
        values: NDArray[np.float32] = physical_values(self.cube, rows, columns)
        return values[:, :: self.row_direction, :: self.column_direction]

    def is_missing(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], bands: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
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


WHAT_BOTH_SHOW = Area()


@dataclass(frozen=True)
class AlignedPair:
    """Holds no values but knows where to read them, so it may travel to another process; numbers in pairs are (y, x)."""

    hsi_source: CutImage
    msi_source: CutImage
    usable_bands: NDArray[np.bool_]  # (C,) False for bad bands and bands without a single value
    scale: tuple[float, float]
    grid_shift: tuple[float, float]
    """Where the HSI looks, in fine pixels, beyond grids that share their top left corner (see
    `degradation/point_spread.py`).
    """
    output_grid: Grid
    """What the fused image covers: a part of the MSI's grid, or that grid continued."""
    fine_rows: slice
    fine_columns: slice
    """The part of the output grid that the pair covers; beyond it the fused image is nodata."""
    known_offset: tuple[float, float] = (0.0, 0.0)
    """How far beyond its georeference the HSI was said to look, fine pixels; the cut has followed it, `grid_shift` has
    not.
    """
    turned_hsi: xr.DataArray | None = None
    """The HSI before it was resampled onto a grid parallel to the MSI's, where that was needed."""

    @property
    def coarse_shape(self) -> tuple[int, int, int]:
        return self.hsi_source.shape

    @property
    def fine_shape(self) -> tuple[int, int, int]:
        return self.msi_source.shape

    def hsi_values(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """(C, ...) Physical values of a window of the cut and turned HSI, NaN where there are none."""
        return self.hsi_source.values(rows, columns)

    def msi_values(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """(M, ...) The same of the cut MSI, also NaN over HSI pixels that are missing and were left out at the edges of
        the cut.
        """
        values = self.msi_source.values(rows, columns)
        underneath = self._underneath(0, rows), self._underneath(1, columns)
        beyond = [
            (pixels < 0) | (pixels >= size) for pixels, size in zip(underneath, self.coarse_shape[1:], strict=True)
        ]
        everywhere = [np.ones_like(axis) for axis in beyond]
        for chosen in ((beyond[0], everywhere[1]), (everywhere[0], beyond[1])):
            if all(axis.any() for axis in chosen):
                pixels = [axis[part] for axis, part in zip(underneath, chosen, strict=True)]
                missing = self.hsi_source.is_missing(pixels[0], pixels[1], np.flatnonzero(self.usable_bands))
                unsupported = np.zeros(values.shape[1:], dtype=bool)
                unsupported[np.ix_(*chosen)] = missing
                values[:, unsupported] = np.nan
        return values

    def _underneath(self, axis: int, fine: slice) -> NDArray[np.int64]:
        """The coarse pixel, counted within the cut, in which each fine pixel lies as far as is known; it may lie
        beyond.
        """
        shift = self.grid_shift[axis] + self.known_offset[axis]
        centres = np.arange(*fine.indices(self.fine_shape[1 + axis]), dtype=np.float64) + 0.5 - shift
        pixels: NDArray[np.int64] = np.floor(centres / self.scale[axis] + 1e-6).astype(np.int64)
        return pixels

    @cached_property
    def hsi(self) -> NDArray[np.float32]:
        """(C, h, w) All of it, in memory."""
        return self.hsi_values(EVERYTHING, EVERYTHING)

    @cached_property
    def msi(self) -> NDArray[np.float32]:
        """(M, H, W)"""
        return self.msi_values(EVERYTHING, EVERYTHING)

    def __getstate__(self) -> dict[str, Any]:
        """What was read stays behind when the pair travels."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def align_pair(
    hsi: xr.DataArray,
    msi: xr.DataArray,
    area: Area = WHAT_BOTH_SHOW,
    *,
    mask: xr.DataArray | None = None,
    hsi_mask: xr.DataArray | None = None,
    known_offset: tuple[float, float] | None = None,
) -> AlignedPair:
    """Cut both images to what they share, turn the HSI the MSI's way, and refuse what cannot be fused.

    `area` says what the fused image covers; where a mask is not 0, its image (`mask` is the MSI's) is not used.
    `known_offset` is how far beyond its georeference, (down, right) in fine pixels, the HSI is known to look.
    """
    for name, cube in (("HSI", hsi), ("MSI", msi)):
        if min(cube.sizes["y"], cube.sizes["x"]) < SMALLEST_HSI:
            size = f"{cube.sizes['y']}x{cube.sizes['x']}"
            raise GridError(f"{name} of {size} pixels", "at least 2x2 pixels", "fuse a larger part of the scene")
    hsi, msi = (
        cube if given is None else without_masked(cube, given) for cube, given in ((hsi, hsi_mask), (msi, mask))
    )
    msi_grid = grid_of(msi)
    placement, turned_hsi = parallel_placement(grid_of(hsi), msi_grid), None
    if placement is None:
        turned_hsi, hsi = hsi, parallel_to(msi_grid, hsi, keep_all=area.extent == WHOLE_HSI)
        placement = place(grid_of(hsi), msi_grid)
    hsi_grid = grid_of(hsi)
    require_finer(hsi_grid, msi_grid, placement)
    offset = known_offset or (0.0, 0.0)
    require_possible_shift(offset, (msi_grid.height, msi_grid.width))
    rows, columns = overlaps(hsi_grid, msi_grid, placement.moved(offset), area)
    hsi_source = CutImage(hsi, rows.coarse, columns.coarse, rows.direction, columns.direction)
    msi_source = CutImage(msi, rows.fine, columns.fine)
    require_values(msi_source, "MSI")
    usable_bands = hsi["good"].values & require_values(hsi_source, "HSI")
    if not usable_bands.any():
        raise ValueRangeError(
            "every HSI band is flagged bad or empty", "at least one good band", "mend the bad-band list"
        )
    return AlignedPair(
        hsi_source=hsi_source,
        msi_source=msi_source,
        usable_bands=usable_bands,
        scale=placement.scale,
        grid_shift=(rows.shift - offset[0], columns.shift - offset[1]),
        output_grid=window_of_grid(fine_grid(hsi_grid, msi_grid), rows.output, columns.output),
        fine_rows=_within(rows),
        fine_columns=_within(columns),
        known_offset=offset,
        turned_hsi=turned_hsi,
    )


def require_possible_shift(shift: tuple[float, float], fine_size: tuple[int, int]) -> None:
    # Written so that NaN fails too.
    if not all(abs(distance) < size / 2 for distance, size in zip(shift, fine_size, strict=True)):
        raise OptionError(
            f"shift of {shift[0]:g} {shift[1]:g} fine pixels", "less than half of the MSI", "mend --shift"
        )


def _within(axis: AxisOverlap) -> slice:
    return slice(axis.fine.start - axis.output.start, axis.fine.stop - axis.output.start)
