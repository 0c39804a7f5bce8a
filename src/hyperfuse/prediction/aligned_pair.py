"""Two cubes of the same place -> two arrays that share orientation and extent, and how the one lies in the other.

The MSI's grid is never resampled. The HSI is placed on it by the two transforms; what lies outside the overlap is cut off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import physical_values
from hyperfuse.cubes.grid import Grid, grid_of, place, require_finer
from hyperfuse.errors import GridError, ValueRangeError

SMALLEST_HSI = 2
# An HSI pixel at the edge of the MSI that is covered less than this saw too much ground that the MSI does not show.
SMALLEST_COVERAGE = 0.7


@dataclass(frozen=True)
class AlignedPair:
    """Physical values, NaN where there are none; numbers in pairs are (y, x)."""

    hsi: NDArray[np.float32]  # (C, h, w)
    msi: NDArray[np.float32]  # (M, H, W)
    usable_bands: NDArray[np.bool_]  # (C,) False for bad bands and bands without a single value
    scale: tuple[float, float]
    grid_shift: tuple[float, float]
    """Where the HSI looks, in fine pixels, beyond grids that share their top left corner (see `degradation/point_spread.py`)."""
    fine_rows: slice
    fine_columns: slice
    """The part of the MSI's grid that the pair covers."""


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
    values = _values_of(hsi, rows.coarse, columns.coarse, "HSI")
    pair = AlignedPair(
        hsi=values[:, :: rows.direction, :: columns.direction],
        msi=_values_of(msi, rows.fine, columns.fine, "MSI"),
        usable_bands=hsi["good"].values & np.isfinite(values).any(axis=(1, 2)),
        scale=placement.scale,
        grid_shift=(rows.shift, columns.shift),
        fine_rows=rows.fine,
        fine_columns=columns.fine,
    )
    if not pair.usable_bands.any():
        raise ValueRangeError("every HSI band is flagged bad or empty", "at least one good band", "mend the bad-band list")
    return pair


def scale_of(hsi: Grid, msi: Grid) -> tuple[float, float]:
    return place(hsi, msi).scale


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


def _values_of(cube: xr.DataArray, rows: slice, columns: slice, name: str) -> NDArray[Any]:
    values = physical_values(cube, rows, columns)
    if not np.isfinite(values).any():
        raise ValueRangeError(
            f"the {name} holds nothing but nodata or NaN in the overlap", "some valid pixels", "check nodata and extent"
        )
    return values
