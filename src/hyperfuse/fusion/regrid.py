"""Cubes computed from other cubes, lazily: an HSI resampled onto a grid parallel to the MSI's, an image with a mask.

A window is computed when it is read, by cubic splines from the part of the source that it needs. The slight blur of the
resampling becomes part of the estimated PSF. Shapes: n planes; positions are pairs (rows, columns) of any one shape, in
pixels, with 0 at the centre of the first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.warp import reproject
from scipy.ndimage import distance_transform_edt, map_coordinates, spline_filter

from hyperfuse.errors import GridError
from hyperfuse.io.cube import WindowReader, lazy_variable, make_cube, physical_values, spread_slices, window_of
from hyperfuse.io.grid import Grid, Positions, crs_name, grid_nodes, grid_of, positions_in, same_crs, window_of_grid

FLOAT32: np.dtype[Any] = np.dtype(np.float32)
ComputeWindow = Callable[[NDArray[np.int64], slice, slice], NDArray[np.float32]]


def derived_cube(compute: ComputeWindow, like: xr.DataArray, grid: Grid) -> xr.DataArray:
    """A lazy cube on this grid with the bands of `like`."""
    return make_cube(
        lazy_variable(WindowReader((like.sizes["band"], grid.height, grid.width), FLOAT32, compute)),
        wavelength_nm=like["wavelength"].values,
        fwhm_nm=like["fwhm"].values,
        good=like["good"].values,
        band_names=[str(name) for name in like["band_name"].values],
        nodata=float("nan"),
        crs=grid.crs,
        transform=grid.transform,
    )


PixelPositions = tuple[NDArray[np.float64], NDArray[np.float64]]
Window = tuple[slice, slice]
# Spline coefficients depend on all pixels, by a factor of 0.27 per pixel of distance: farther ones are below float32.
SURROUNDINGS = 12
PADDING = 6


def needed_window(positions: PixelPositions, size: tuple[int, int]) -> Window | None:
    """The part of an image that interpolation at these positions needs; None where all lie outside."""
    inside = _inside(positions, size)
    if not inside.any():
        return None
    parts = []
    for axis, length in zip(positions, size, strict=True):
        first, last = math.floor(axis[inside].min()) - SURROUNDINGS, math.ceil(axis[inside].max()) + SURROUNDINGS
        parts.append(slice(max(0, first), min(length, last + 1)))
    return parts[0], parts[1]


def within(positions: PixelPositions, window: Window) -> PixelPositions:
    """Positions relative to the window's first pixel."""
    return positions[0] - window[0].start, positions[1] - window[1].start


def interpolated(planes: NDArray[np.float32], positions: PixelPositions) -> NDArray[np.float32]:
    """(n, ...) of (n, h, w) by cubic splines; NaN outside the image and where the nearest pixel is missing."""
    values = np.full((len(planes), *positions[0].shape), np.nan, dtype=np.float32)
    inside = _inside(positions, (planes.shape[1], planes.shape[2]))
    at = [axis[inside] for axis in positions]
    known = np.isfinite(planes)
    nearest = tuple(
        np.rint(axis).astype(np.int64).clip(0, size - 1) for axis, size in zip(at, planes.shape[1:], strict=True)
    )
    for plane, mask, result in zip(filled_from_nearest(planes), known, values, strict=True):
        # Odd reflection continues a slope half a pixel beyond the outermost centres.
        padding = min(PADDING, *(size - 1 for size in plane.shape))
        coefficients = spline_filter(
            np.pad(plane, padding, mode="reflect", reflect_type="odd"), 3, np.float64, mode="mirror"
        )
        smooth = map_coordinates(coefficients, [axis + padding for axis in at], order=3, mode="mirror", prefilter=False)
        result[inside] = np.where(mask[nearest], smooth, np.nan)
    return values


def filled_from_nearest(planes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Missing pixels take the value of the nearest known one, whatever window is read; an empty plane becomes 0."""
    known = np.isfinite(planes)
    if known.all():
        return planes
    filled = planes.copy()
    previous, nearest = known[0], _nearest_known(known[0])
    for plane, mask in zip(filled, known, strict=True):
        if mask.all():
            continue
        if not mask.any():
            plane[:] = 0
            continue
        # Most bands miss the same pixels.
        if not np.array_equal(mask, previous):
            previous, nearest = mask, _nearest_known(mask)
        plane[:] = plane[nearest[0], nearest[1]]
    return filled


def _inside(positions: PixelPositions, size: tuple[int, int]) -> NDArray[np.bool_]:
    rows, columns = positions
    inside: NDArray[np.bool_] = (rows > -0.5) & (rows < size[0] - 0.5) & (columns > -0.5) & (columns < size[1] - 0.5)
    return inside


def _nearest_known(known: NDArray[np.bool_]) -> NDArray[Any]:
    """(2, rows, columns) Row and column of the nearest known pixel."""
    indices: NDArray[Any] = distance_transform_edt(~known, return_distances=False, return_indices=True)
    return indices


# HSI pixels kept around the MSI.
HALO = 4


def parallel_to(msi: Grid, hsi: xr.DataArray, *, keep_all: bool) -> xr.DataArray:
    """The HSI on a grid parallel to the MSI's with about its own pixel size; cut around the MSI unless `keep_all`."""
    source = grid_of(hsi)
    if not keep_all:
        hsi = window_of(hsi, *_window_around(source, msi, HALO))
        source = grid_of(hsi)
    target = coarse_grid_along(msi, source)
    height, width = target.pixel_size
    warnings.warn(
        f"the HSI's grid ({crs_name(source.crs)}) is not parallel to the MSI's ({crs_name(msi.crs)}): the HSI is "
        f"resampled by cubic splines onto pixels of {width:.6g} x {height:.6g} along the MSI's axes",
        stacklevel=2,
    )
    return derived_cube(partial(_resampled_window, hsi, source, target), hsi, target)


def coarse_grid_along(msi: Grid, hsi: Grid) -> Grid:
    """A grid parallel to the MSI's around the HSI, with pixels of its size, one of them centred on its middle."""
    assert msi.transform is not None
    middle = np.array([[(hsi.height - 1) // 2], [(hsi.width - 1) // 2]], dtype=np.float64)
    steps = np.array([[0, 0.5, -0.5, 0, 0], [0, 0, 0, 0.5, -0.5]])
    rows, columns = positions_in(msi, hsi, *(middle + steps))
    if not (np.isfinite(rows).all() and np.isfinite(columns).all()):
        raise GridError(f"HSI outside of the MSI's {crs_name(msi.crs)}", "two images of the same place")
    # The size of an HSI pixel in fine pixels: the stretch of the local map between the grids, without its rotation.
    jacobian = np.array([[rows[1] - rows[2], rows[3] - rows[4]], [columns[1] - columns[2], columns[3] - columns[4]]])
    values, axes = np.linalg.eigh(jacobian @ jacobian.T)
    scale_y, scale_x = (axes @ np.diag(np.sqrt(values)) @ axes.T).diagonal()
    edge_rows, edge_columns = (axis[np.isfinite(axis)] for axis in positions_in(msi, hsi, *grid_nodes(hsi)))
    top, height = _span(edge_rows, float(rows[0]), float(scale_y))
    left, width = _span(edge_columns, float(columns[0]), float(scale_x))
    return Grid(height, width, msi.transform @ Affine.translation(left, top) @ Affine.scale(scale_x, scale_y), msi.crs)


def _span(covered: Positions, centre: float, size: float) -> tuple[float, int]:
    """Start and number of pixels of this size, one centred at `centre`, that cover these fine positions."""
    first = math.floor((covered.min() - centre) / size + 0.5 + 1e-6)
    stop = math.ceil((covered.max() - centre) / size + 0.5 - 1e-6)
    return centre + 0.5 + (first - 0.5) * size, stop - first


def _window_around(grid: Grid, other: Grid, margin: int) -> Window:
    """Rows and columns of a grid that another may touch, and a margin; empty where they do not overlap."""
    windows = []
    for positions, size in zip(positions_in(grid, other, *grid_nodes(other)), (grid.height, grid.width), strict=True):
        finite = positions[np.isfinite(positions)]
        first, last = (finite.min(), finite.max()) if finite.size else (size, size)
        windows.append(slice(max(0, math.floor(first) - margin), min(size, math.ceil(last) + margin + 1)))
    return windows[0], windows[1]


def _resampled_window(
    cube: xr.DataArray, source: Grid, target: Grid, bands: NDArray[np.int64], rows: slice, columns: slice
) -> NDArray[np.float32]:
    """A cube at the pixel centres of another georeferenced grid; missing where its nearest pixel is."""
    nodes = np.meshgrid(np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop), indexing="ij")
    positions = positions_in(source, target, nodes[0], nodes[1])
    needed = needed_window(positions, (source.height, source.width))
    if needed is None:
        return np.full((len(bands), *nodes[0].shape), np.nan, dtype=np.float32)
    return interpolated(physical_values(cube, *needed, bands), within(positions, needed))


# GDAL wants a CRS even where none is needed to compare two grids.
ANY_CRS = CRS.from_epsg(3857)
# GDAL takes a transform of plain pixel coordinates for no georeference.
AWAY_FROM_ORIGIN = Affine.translation(1000, 1000)


def without_masked(cube: xr.DataArray, mask: xr.DataArray) -> xr.DataArray:
    """The cube, lazily, without the pixels that touch a pixel of the mask that is not 0.

    Outside the mask's extent the cube is kept. A mask without georeference, or for a cube without, covers the same
    extent as the cube.
    """
    grid, mask_grid = grid_of(cube), grid_of(mask)
    placed = grid
    if grid.transform is None or mask_grid.transform is None:
        placed = Grid(grid.height, grid.width, Affine.identity(), None)
        shrink = Affine.scale(grid.width / mask_grid.width, grid.height / mask_grid.height)
        mask_grid = Grid(mask_grid.height, mask_grid.width, shrink, None)
    elif any(part.stop <= part.start for part in _window_around(mask_grid, grid, 1)):
        got = f"a mask ({crs_name(mask_grid.crs)}) that lies beside its image ({crs_name(grid.crs)})"
        raise GridError(got, "a mask of the same place", "check its coordinates with `hyperfuse info`")
    return derived_cube(partial(_masked_window, cube, placed, mask, mask_grid), cube, grid)


def _masked_window(
    cube: xr.DataArray,
    grid: Grid,
    mask: xr.DataArray,
    mask_grid: Grid,
    bands: NDArray[np.int64],
    rows: slice,
    columns: slice,
) -> NDArray[np.float32]:
    values: NDArray[np.float32] = physical_values(cube, rows, columns, bands)
    window = window_of_grid(grid, rows, columns)
    mask_rows, mask_columns = _window_around(mask_grid, window, 1)
    if mask_rows.stop > mask_rows.start and mask_columns.stop > mask_columns.start:
        marked = (mask.isel(y=mask_rows, x=mask_columns).values != 0).any(axis=0)
        values[:, _marked_on(window, marked, window_of_grid(mask_grid, mask_rows, mask_columns))] = np.nan
    return values


# Fill values that a file does not declare, as multiples of the largest of the usual values (1st to 99th percentile) of
# their band: negative values among positive ones, and any others. Bright things exist, very negative ones do not.
LARGEST_NEGATIVE, LARGEST_OTHER = 1.0, 1000.0
POSITIVE = -0.1  # the 1st percentile, as a multiple of the 99th, down to which a band counts as positive
# A cube of at most this many values is searched completely, a larger one in windows of this side.
SEARCHED_VALUES, SEARCHED_SIDE, SEARCHED_WINDOWS = 10_000_000, 16, 6
FEWEST_VALUES = 16


def without_fill_values(cube: xr.DataArray, name: str) -> xr.DataArray:
    """The cube, lazily, without undeclared fill values such as -9999; the cube itself where none are found."""
    size = cube.sizes["y"], cube.sizes["x"]
    is_searched = math.prod(cube.shape) <= SEARCHED_VALUES
    if is_searched:
        sample = physical_values(cube).reshape(len(cube), -1)
    else:
        rows, columns = (spread_slices(length, SEARCHED_SIDE, SEARCHED_WINDOWS) for length in size)
        parts = [physical_values(cube, row, column).reshape(len(cube), -1) for row in rows for column in columns]
        sample = np.concatenate(parts, axis=1)
    limits = np.array([_possible_range(band) for band in sample], dtype=np.float32)
    outside = int(((sample < limits[:, :1]) | (sample > limits[:, 1:])).sum())
    if outside == 0:
        return cube
    count = f"{outside:,} values" if is_searched else f"{outside / sample.size:.2%} of the values"
    warnings.warn(f"{count} of the {name} are far outside the range of their band: taken as missing", stacklevel=2)
    return derived_cube(partial(_possible_window, cube, limits), cube, grid_of(cube))


def _possible_range(values: NDArray[np.float32]) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if known.size < FEWEST_VALUES:
        return -math.inf, math.inf
    low, high = (float(value) for value in np.percentile(known, (1, 99)))
    largest = max(abs(low), abs(high))
    if largest == 0:
        return -math.inf, math.inf
    is_positive = high > 0 and low >= POSITIVE * high
    return -(LARGEST_NEGATIVE if is_positive else LARGEST_OTHER) * largest, LARGEST_OTHER * largest


def _possible_window(
    cube: xr.DataArray, limits: NDArray[np.float32], bands: NDArray[np.int64], rows: slice, columns: slice
) -> NDArray[np.float32]:
    values: NDArray[np.float32] = physical_values(cube, rows, columns, bands)
    low, high = limits[bands].T[:, :, None, None]
    values[(values < low) | (values > high)] = np.nan
    return values


def _marked_on(target: Grid, marked: NDArray[np.bool_], source: Grid) -> NDArray[np.bool_]:
    """The pixels of a grid that touch a marked pixel of another."""
    result = np.zeros((target.height, target.width), dtype=np.uint8)
    assert source.transform is not None
    assert target.transform is not None
    same = same_crs(source.crs, target.crs)
    base = AWAY_FROM_ORIGIN if same else Affine.identity()
    reproject(
        marked.astype(np.uint8),
        result,
        src_transform=base @ source.transform,
        src_crs=ANY_CRS if same else source.crs,
        dst_transform=base @ target.transform,
        dst_crs=ANY_CRS if same else target.crs,
        resampling=Resampling.max,
        # Exact for every pixel: windows must not differ from the whole.
        tolerance=0.0,
    )
    return result > 0
