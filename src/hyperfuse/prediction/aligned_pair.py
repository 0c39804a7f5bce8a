"""Two cubes of the same place -> a pair that shares orientation and extent, read by windows, and how the one lies in the other.

The MSI's grid is never resampled. The HSI is placed on it by the two transforms; what lies outside the overlap is cut off.
Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import iterate_windows, physical_values
from hyperfuse.cubes.grid import Grid, fine_grid, grid_of, place, require_finer
from hyperfuse.errors import GridError, ValueRangeError

SMALLEST_HSI = 2
# An HSI pixel at the edge of the MSI that is covered less than this saw too much ground that the MSI does not show.
SMALLEST_COVERAGE = 0.7
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


@dataclass(frozen=True)
class AlignedPair:
    """Holds no values but knows where to read them, so it may travel to another process; numbers in pairs are (y, x)."""

    hsi_source: CutImage
    msi_source: CutImage
    usable_bands: NDArray[np.bool_]  # (C,) False for bad bands and bands without a single value
    scale: tuple[float, float]
    grid_shift: tuple[float, float]
    """Where the HSI looks, in fine pixels, beyond grids that share their top left corner (see `degradation/point_spread.py`)."""
    output_grid: Grid
    """What the fused image covers: a part of the MSI's grid, or that grid continued."""
    fine_rows: slice
    fine_columns: slice
    """The part of the output grid that the pair covers; beyond it the fused image is nodata."""

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
        """(M, ...) The same of the cut MSI."""
        return self.msi_source.values(rows, columns)

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


def align_pair(hsi: xr.DataArray, msi: xr.DataArray) -> AlignedPair:
    """Cut both images to their overlap, turn the HSI the MSI's way, and refuse what cannot be fused."""
    hsi_grid, msi_grid = grid_of(hsi), grid_of(msi)
    for name, grid in (("HSI", hsi_grid), ("MSI", msi_grid)):
        if min(grid.height, grid.width) < SMALLEST_HSI:
            raise GridError(
                f"{name} of {grid.height}x{grid.width} pixels", "at least 2x2 pixels", "fuse a larger part of the scene"
            )
    placement = place(hsi_grid, msi_grid)
    require_finer(hsi_grid, msi_grid, placement)
    rows = _overlap(placement.start_y, placement.step_y, hsi_grid.height, msi_grid.height)
    columns = _overlap(placement.start_x, placement.step_x, hsi_grid.width, msi_grid.width)
    hsi_source = CutImage(hsi, rows.coarse, columns.coarse, rows.direction, columns.direction)
    msi_source = CutImage(msi, rows.fine, columns.fine)
    _require_values(msi_source, "MSI")
    usable_bands = hsi["good"].values & _require_values(hsi_source, "HSI")
    if not usable_bands.any():
        raise ValueRangeError("every HSI band is flagged bad or empty", "at least one good band", "mend the bad-band list")
    return AlignedPair(
        hsi_source=hsi_source,
        msi_source=msi_source,
        usable_bands=usable_bands,
        scale=placement.scale,
        grid_shift=(rows.shift, columns.shift),
        output_grid=fine_grid(hsi_grid, msi_grid),
        fine_rows=rows.fine,
        fine_columns=columns.fine,
    )


def _source_slice(part: slice, cut: slice, direction: int) -> slice:
    """A part of a cut and perhaps turned axis, as a slice of the uncut one."""
    start, stop, step = part.indices(cut.stop - cut.start)
    assert step == 1
    stop = max(start, stop)
    return slice(cut.start + start, cut.start + stop) if direction > 0 else slice(cut.stop - stop, cut.stop - start)


@dataclass(frozen=True)
class _AxisOverlap:
    coarse: slice
    fine: slice
    direction: int
    shift: float


def _overlap(start: float, step: float, coarse_size: int, fine_size: int) -> _AxisOverlap:
    """Along one axis: the fine pixels whose centres lie inside the coarse image, and the coarse pixels that they touch.

    At the ends, coarse pixels that are only partly covered are left out where enough others remain: the methods would look for
    their share of the ground beyond the edge in the fine pixels before it.
    """
    direction = 1 if step > 0 else -1
    # Fine pixel i lies at coarse index start + i * step; inside means -0.5 <= index < coarse_size - 0.5.
    edges = sorted(((-0.5 - start) / step, (coarse_size - 0.5 - start) / step))
    first_fine = max(0, math.ceil(edges[0] - 1e-6))
    stop_fine = min(fine_size, math.ceil(edges[1] - 1e-6))
    reached = sorted((start + first_fine * step, start + (stop_fine - 1) * step))
    first_coarse = max(0, math.floor(reached[0] + 0.5 + 1e-6))
    stop_coarse = min(coarse_size, math.floor(reached[1] + 0.5 + 1e-6) + 1)
    if stop_fine - first_fine < 1 or stop_coarse - first_coarse < SMALLEST_HSI:
        raise GridError(
            f"the two images share only {max(0, stop_coarse - first_coarse)} HSI pixels along an axis",
            "at least 2x2 HSI pixels in common",
            "check their coordinates with `hyperfuse info`",
        )
    covered = [index for index in range(first_coarse, stop_coarse) if _coverage(index, start, step, fine_size) > SMALLEST_COVERAGE]
    if len(covered) >= SMALLEST_HSI:
        first_coarse, stop_coarse = covered[0], covered[-1] + 1
    scale = 1 / abs(step)
    # Position of the first fine pixel of the overlap in the cut (and turned) coarse image.
    index = start + first_fine * step
    inner = index - first_coarse if direction > 0 else stop_coarse - 1 - index
    shift = 0.5 - (inner + 0.5) * scale
    return _AxisOverlap(slice(first_coarse, stop_coarse), slice(first_fine, stop_fine), direction, _rounded_to_zero(shift))


def _coverage(index: int, start: float, step: float, fine_size: int) -> float:
    """Which share of a coarse pixel's width lies in the fine image, whose pixel i reaches from i - 0.5 to i + 0.5."""
    first, last = sorted(((index - 0.5 - start) / step, (index + 0.5 - start) / step))
    return (min(last, fine_size - 0.5) - max(first, -0.5)) / (last - first)


def _rounded_to_zero(shift: float) -> float:
    """Transforms carry rounding errors; a millionth of a pixel is none."""
    return 0.0 if abs(shift) < 1e-6 else shift


def _require_values(image: CutImage, name: str) -> NDArray[np.bool_]:
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
