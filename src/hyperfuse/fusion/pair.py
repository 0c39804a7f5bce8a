"""Two cubes of the same place as an aligned pair: same orientation, same extent, read window by window.

The MSI's grid is never resampled; the HSI is placed on it by the two transforms, and what lies outside the overlap is
cut off. Pixels of the two parallel grids are matched one axis at a time; fine positions count pixels of the MSI and may
lie outside it. Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.config import PairConfig
from hyperfuse.errors import GridError, OptionError, ValueRangeError
from hyperfuse.fusion.regrid import parallel_to, without_fill_values, without_masked
from hyperfuse.io.cube import iterate_windows, physical_values
from hyperfuse.io.grid import (
    Grid,
    crs_name,
    fine_grid,
    grid_nodes,
    grid_of,
    parallel_placement,
    place,
    positions_in,
    require_finer,
    window_of_grid,
)

SMALLEST_HSI = 2
# An HSI pixel at the edge of the MSI that is covered by less than this shows too much that the MSI does not.
SMALLEST_COVERAGE = 0.7
INTERSECTION, WHOLE_MSI, WHOLE_HSI = "intersection", "msi", "hsi"
# Rounding errors of transforms, in pixels.
ROUNDING = 1e-6
# Bounds are often rounded: exceeding a pixel's edge by this much does not include the next pixel.
SNAPPED = 0.01


@dataclass(frozen=True)
class AxisOverlap:
    """The pixels of the pair, and those of the fused image, along one axis."""

    coarse: slice
    fine: slice
    output: slice
    direction: int  # -1 where the HSI is flipped
    shift: float
    """Of the coarse grid against one that shares its first corner with the fine grid, in fine pixels."""

    @property
    def fine_in_output(self) -> slice:
        return slice(self.fine.start - self.output.start, self.fine.stop - self.output.start)


def _overlap(
    start: float, step: float, coarse_size: int, fine_size: int, extent: str, bounds: tuple[int, int] | None
) -> AxisOverlap:
    """Fine pixel i lies at coarse index start + i * step; the pair has the fine pixels with centres inside the HSI.

    Coarse pixels at the ends that are only partly covered are left out where enough others remain: the methods would
    otherwise attribute what lies beyond the edge to the fine pixels before it.
    """
    direction = 1 if step > 0 else -1
    edges = sorted(((-0.5 - start) / step, (coarse_size - 0.5 - start) / step))
    in_hsi = math.ceil(edges[0] - ROUNDING), math.ceil(edges[1] - ROUNDING)
    in_both = max(0, in_hsi[0]), min(fine_size, in_hsi[1])
    wanted = {INTERSECTION: in_both, WHOLE_MSI: (0, fine_size), WHOLE_HSI: in_hsi}[extent]
    in_msi = 0, fine_size
    if bounds is not None:
        wanted, in_both, in_msi = (
            (max(start, bounds[0]), min(stop, bounds[1])) for start, stop in (wanted, in_both, in_msi)
        )
    first_coarse, stop_coarse = _coarse_pixels(start, step, coarse_size, in_both, in_msi, bounded=bounds is not None)
    scale = 1 / abs(step)
    # Position of the first fine pixel of the overlap in the cut (and flipped) coarse image.
    index = start + in_both[0] * step
    inner = index - first_coarse if direction > 0 else stop_coarse - 1 - index
    shift = 0.5 - (inner + 0.5) * scale
    return AxisOverlap(
        coarse=slice(first_coarse, stop_coarse),
        fine=slice(*in_both),
        output=slice(*wanted),
        direction=direction,
        shift=0.0 if abs(shift) < ROUNDING else shift,
    )


def _coarse_pixels(
    start: float, step: float, coarse_size: int, fine: tuple[int, int], covering: tuple[int, int], *, bounded: bool
) -> tuple[int, int]:
    """First and one past the last coarse pixel that fine pixels touch and that `covering` ones cover sufficiently."""
    reached = sorted((start + fine[0] * step, start + (fine[1] - 1) * step))
    first = max(0, math.floor(reached[0] + 0.5 + ROUNDING))
    stop = min(coarse_size, math.floor(reached[1] + 0.5 + ROUNDING) + 1)
    shared = max(0, stop - first) if fine[1] > fine[0] else 0
    if shared < SMALLEST_HSI:
        got = f"the two images share only {shared} HSI pixels along an axis{' within the bounds' if bounded else ''}"
        raise GridError(got, "at least 2x2 HSI pixels in common", "check their coordinates with `hyperfuse info`")

    def coverage(index: int) -> float:
        """The share of a coarse pixel's width inside these fine pixels; pixel i extends from i - 0.5 to i + 0.5."""
        left, right = sorted(((index - 0.5 - start) / step, (index + 0.5 - start) / step))
        return (min(right, covering[1] - 0.5) - max(left, covering[0] - 0.5)) / (right - left)

    covered = [index for index in range(first, stop) if coverage(index) > SMALLEST_COVERAGE]
    return (covered[0], covered[-1] + 1) if len(covered) >= SMALLEST_HSI else (first, stop)


def _fine_bounds(msi: Grid, config: PairConfig) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The bounds as fine rows and columns, first and one past the last, rounded outwards to whole pixels."""
    if config.bounds is None:
        return None, None
    if msi.transform is None:
        raise OptionError("bounds for an MSI without georeference", "a georeferenced MSI", "leave out --bounds")
    xmin, ymin, xmax, ymax = config.bounds
    # The box as an image of one pixel, including its interior, because edges may curve in another CRS.
    box = Grid(1, 1, Affine(xmax - xmin, 0, xmin, 0, ymax - ymin, ymin), _bounds_crs(msi, config))
    rows, columns = (axis[np.isfinite(axis)] for axis in positions_in(msi, box, *grid_nodes(box)))
    if not rows.size:
        got = f"bounds outside of {crs_name(msi.crs)}"
        raise OptionError(got, "bounds around the images", "check --bounds and --bounds-crs")
    y, x = ((math.floor(axis.min() + 0.5 + SNAPPED), math.ceil(axis.max() + 0.5 - SNAPPED)) for axis in (rows, columns))
    return y, x


def _bounds_crs(msi: Grid, config: PairConfig) -> CRS | None:
    if config.bounds_crs is None:
        return msi.crs
    if msi.crs is None:
        got = "a CRS for bounds of an MSI that has none"
        raise OptionError(got, "bounds in the MSI's coordinates", "leave out --bounds-crs")
    try:
        return CRS.from_user_input(config.bounds_crs)
    except CRSError as error:
        raise OptionError(f"bounds in {config.bounds_crs!r}", "a CRS such as EPSG:4326") from error


FIRST_LOOK = 16  # pixels along a side in which most bands of most images have a value
EVERYTHING = slice(None)


@dataclass(frozen=True)
class CutImage:
    """A window of a cube, flipped to the orientation of the other image: physical values, NaN where missing."""

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
        return self._flipped(physical_values(self.cube, *source, bands))

    def thinned(self, every: int) -> NDArray[np.float32]:
        """All bands of every n-th row and column."""
        rows, columns = (slice(part.start, part.stop, every) for part in (self.rows, self.columns))
        return self._flipped(physical_values(self.cube, rows, columns))

    def _flipped(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.ascontiguousarray(values[:, :: self.row_direction, :: self.column_direction])

    def is_missing(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], bands: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """(rows, columns) Where none of these bands has a value; pixels count from the cut but may lie outside it."""
        rows = self.rows.start + rows if self.row_direction > 0 else self.rows.stop - 1 - rows
        columns = self.columns.start + columns if self.column_direction > 0 else self.columns.stop - 1 - columns
        # Each pixel is read once, however many fine ones lie on it.
        (needed_rows, row_of), (needed_columns, column_of) = (
            np.unique(np.clip(pixels, 0, self.cube.sizes[axis] - 1), return_inverse=True)
            for pixels, axis in ((rows, "y"), (columns, "x"))
        )
        values = physical_values(self.cube.isel(y=needed_rows, x=needed_columns), bands=bands)
        missing: NDArray[np.bool_] = ~np.isfinite(values).any(axis=0)
        return missing[row_of][:, column_of]


def _source_slice(part: slice, cut: slice, direction: int) -> slice:
    """A part of a cut and possibly flipped axis, as a slice of the uncut one."""
    start, stop, _ = part.indices(cut.stop - cut.start)
    stop = max(start, stop)
    return slice(cut.start + start, cut.start + stop) if direction > 0 else slice(cut.stop - stop, cut.stop - start)


def require_values(image: CutImage, name: str) -> NDArray[np.bool_]:
    """Which bands have any value; windows are read only for bands that were empty so far."""
    has_values = np.zeros(image.shape[0], dtype=bool)
    middle = [slice(size // 2, size // 2 + FIRST_LOOK) for size in image.shape[1:]]
    for rows, columns in (middle, *iterate_windows(image.cube.isel(y=image.rows, x=image.columns))):
        empty = np.flatnonzero(~has_values)
        if not empty.size:
            break
        has_values[empty] = np.isfinite(image.values(rows, columns, empty)).any(axis=(1, 2))
    if not has_values.any():
        got = f"the {name} contains only nodata or NaN in the overlap"
        raise ValueRangeError(got, "some valid pixels", "check nodata and extent")
    return has_values


DEFAULTS = PairConfig()


@dataclass(frozen=True)
class AlignedPair:
    """Two images on parallel grids. Holds no values, so it can be sent to another process; pairs are (y, x)."""

    hsi_source: CutImage
    msi_source: CutImage
    usable_bands: NDArray[np.bool_]  # (C,) False for bad bands and bands without a single value
    scale: tuple[float, float]
    grid_shift: tuple[float, float]
    """Of the coarse grid against one that shares its top left corner with the fine grid, in fine pixels."""
    output_grid: Grid
    """The grid of the fused image: a part of the MSI's grid, or its extension."""
    fine_rows: slice
    fine_columns: slice
    """The part of the output grid that the pair covers; the rest of the fused image is nodata."""
    known_offset: tuple[float, float] = (0.0, 0.0)
    """The known shift of the HSI against its georeference, fine pixels; the cut includes it, `grid_shift` does not."""
    rotated_hsi: xr.DataArray | None = None
    """The HSI before it was resampled onto a grid parallel to the MSI's, where that was necessary."""
    msi_weight: xr.DataArray | None = None
    """How far the MSI is used, (1, H, W) from 0 to 1, where the expected error depends on it."""

    @property
    def coarse_shape(self) -> tuple[int, int, int]:
        return self.hsi_source.shape

    @property
    def fine_shape(self) -> tuple[int, int, int]:
        return self.msi_source.shape

    def hsi_values(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """(C, ...) Physical values of a window of the HSI, NaN where missing."""
        return self.hsi_source.values(rows, columns)

    def usable_values(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """The same of the usable bands alone."""
        values = self.hsi_values(rows, columns)
        return values if self.usable_bands.all() else values[self.usable_bands]

    def msi_values(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """(M, ...) The same of the MSI, also NaN over missing HSI pixels that were left out at the edges of the cut."""
        values = self.msi_source.values(rows, columns)
        underneath = self._underneath(0, rows), self._underneath(1, columns)
        sizes = self.coarse_shape[1:]
        outside = [(pixels < 0) | (pixels >= size) for pixels, size in zip(underneath, sizes, strict=True)]
        everywhere = [np.ones_like(axis) for axis in outside]
        for chosen in ((outside[0], everywhere[1]), (everywhere[0], outside[1])):
            if all(axis.any() for axis in chosen):
                pixels = [axis[part] for axis, part in zip(underneath, chosen, strict=True)]
                missing = self.hsi_source.is_missing(pixels[0], pixels[1], np.flatnonzero(self.usable_bands))
                unsupported = np.zeros(values.shape[1:], dtype=bool)
                unsupported[np.ix_(*chosen)] = missing
                values[:, unsupported] = np.nan
        return values

    def _underneath(self, axis: int, fine: slice) -> NDArray[np.int64]:
        """The coarse pixel, counted from the cut and possibly outside it, that contains each fine pixel."""
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
        """Without the values that were read."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def align_pair(
    hsi: xr.DataArray,
    msi: xr.DataArray,
    config: PairConfig = DEFAULTS,
    *,
    mask: xr.DataArray | None = None,
    hsi_mask: xr.DataArray | None = None,
) -> AlignedPair:
    """Cut both images to what they share, flip the HSI to the MSI's orientation, refuse what cannot be fused.

    Of `config`, the extent, the bounds and a known shift are used. Where a mask is not 0, its image (`mask` is the
    MSI's) is not used.
    """
    for name, cube in (("HSI", hsi), ("MSI", msi)):
        if min(cube.sizes["y"], cube.sizes["x"]) < SMALLEST_HSI:
            size = f"{cube.sizes['y']}x{cube.sizes['x']}"
            raise GridError(f"{name} of {size} pixels", "at least 2x2 pixels", "fuse a larger part of the scene")
    hsi, msi = (
        cube if given is None else without_masked(cube, given) for cube, given in ((hsi, hsi_mask), (msi, mask))
    )
    hsi, msi = without_fill_values(hsi, "HSI"), without_fill_values(msi, "MSI")
    msi_grid = grid_of(msi)
    placement, rotated_hsi = parallel_placement(grid_of(hsi), msi_grid), None
    if placement is None:
        rotated_hsi, hsi = hsi, parallel_to(msi_grid, hsi, keep_all=config.extent == WHOLE_HSI)
        placement = place(grid_of(hsi), msi_grid)
    hsi_grid = grid_of(hsi)
    require_finer(hsi_grid, msi_grid, placement, allow_equal=config.allow_scale_1)
    offset = config.known_offset or (0.0, 0.0)
    require_possible_shift(offset, (msi_grid.height, msi_grid.width))
    moved, bounds = placement.moved(offset), _fine_bounds(msi_grid, config)
    rows = _overlap(moved.start_y, moved.step_y, hsi_grid.height, msi_grid.height, config.extent, bounds[0])
    columns = _overlap(moved.start_x, moved.step_x, hsi_grid.width, msi_grid.width, config.extent, bounds[1])
    hsi_source = CutImage(hsi, rows.coarse, columns.coarse, rows.direction, columns.direction)
    msi_source = CutImage(msi, rows.fine, columns.fine)
    require_values(msi_source, "MSI")
    usable_bands = hsi["good"].values & require_values(hsi_source, "HSI")
    if not usable_bands.any():
        got = "every HSI band is flagged bad or empty"
        raise ValueRangeError(got, "at least one good band", "fix the bad-band list")
    return AlignedPair(
        hsi_source=hsi_source,
        msi_source=msi_source,
        usable_bands=usable_bands,
        scale=placement.scale,
        grid_shift=(rows.shift - offset[0], columns.shift - offset[1]),
        output_grid=window_of_grid(fine_grid(hsi_grid, msi_grid), rows.output, columns.output),
        fine_rows=rows.fine_in_output,
        fine_columns=columns.fine_in_output,
        known_offset=offset,
        rotated_hsi=rotated_hsi,
    )


def require_possible_shift(shift: tuple[float, float], fine_size: tuple[int, int]) -> None:
    # Written so that NaN fails too.
    if not all(abs(distance) < size / 2 for distance, size in zip(shift, fine_size, strict=True)):
        raise OptionError(f"shift of {shift[0]:g} {shift[1]:g} fine pixels", "less than half of the MSI", "fix --shift")
