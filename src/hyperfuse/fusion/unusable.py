"""Clouds and other areas that must not be used, given as a raster on any grid: everything that is not 0 there is
unusable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.warp import reproject

from hyperfuse.errors import GridError
from hyperfuse.fusion.resample import DERIVED_TYPE, derived_cube
from hyperfuse.io.cube import physical_values
from hyperfuse.io.grid import Grid, crs_name, grid_nodes, grid_of, positions_in, same_crs, window_of_grid

# Where no CRS is needed to compare two grids, GDAL wants one all the same.
ANY_CRS = CRS.from_epsg(3857)
# GDAL takes a transform of pixels counted from the corner for none at all.
OFF_THE_CORNER = Affine.translation(1000, 1000)


def without_masked(cube: xr.DataArray, mask: xr.DataArray) -> xr.DataArray:
    """The cube, lazily, missing wherever it touches a pixel of the mask that is not 0. Beyond the mask's edges it stays
    usable.

    A mask without georeference, or for a cube without, covers the same extent as the cube.
    """
    grid, mask_grid = grid_of(cube), grid_of(mask)
    if grid.transform is None or mask_grid.transform is None:
        placed = Grid(grid.height, grid.width, Affine.identity(), None)
        shrink = Affine.scale(grid.width / mask_grid.width, grid.height / mask_grid.height)
        reader = MaskedReader(cube, placed, mask, Grid(mask_grid.height, mask_grid.width, shrink, None))
    else:
        _require_overlap(mask_grid, grid)
        reader = MaskedReader(cube, grid, mask, mask_grid)
    return derived_cube(reader, cube, grid)


@dataclass(frozen=True)
class MaskedReader:
    cube: xr.DataArray
    grid: Grid
    mask: xr.DataArray
    mask_grid: Grid

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.cube.sizes["band"], self.grid.height, self.grid.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return DERIVED_TYPE

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        values: NDArray[np.float32] = physical_values(self.cube, rows, columns, bands)
        values[:, self._unusable(window_of_grid(self.grid, rows, columns))] = np.nan
        return values

    def _unusable(self, window: Grid) -> NDArray[np.bool_]:
        """(rows, columns) of a window of the cube."""
        rows, columns = _touched_pixels(self.mask_grid, window)
        if rows.stop <= rows.start or columns.stop <= columns.start:
            return np.zeros((window.height, window.width), dtype=bool)
        marked = (self.mask.isel(y=rows, x=columns).values != 0).any(axis=0)
        return _marked_on(window, marked, window_of_grid(self.mask_grid, rows, columns))


def _marked_on(target: Grid, marked: NDArray[np.bool_], source: Grid) -> NDArray[np.bool_]:
    """Which pixels of a grid touch a marked pixel of another."""
    result = np.zeros((target.height, target.width), dtype=np.uint8)
    assert source.transform is not None
    assert target.transform is not None
    same = same_crs(source.crs, target.crs)
    base = OFF_THE_CORNER if same else Affine.identity()
    reproject(
        marked.astype(np.uint8),
        result,
        src_transform=base @ source.transform,
        src_crs=ANY_CRS if same else source.crs,
        dst_transform=base @ target.transform,
        dst_crs=ANY_CRS if same else target.crs,
        resampling=Resampling.max,
        # The exact way for every pixel: windows must not differ from the whole.
        tolerance=0.0,
    )
    return result > 0


def _touched_pixels(mask: Grid, window: Grid) -> tuple[slice, slice]:
    """Rows and columns of the mask that a window of the cube may touch; empty where they are apart."""
    touched = []
    for positions, size in zip(positions_in(mask, window, *grid_nodes(window)), (mask.height, mask.width), strict=True):
        finite = positions[np.isfinite(positions)]
        first, last = (finite.min(), finite.max()) if finite.size else (size, size)
        touched.append(slice(max(0, math.floor(first) - 1), min(size, math.ceil(last) + 2)))
    return touched[0], touched[1]


def _require_overlap(mask: Grid, cube: Grid) -> None:
    if any(part.stop <= part.start for part in _touched_pixels(mask, cube)):
        raise GridError(
            f"a mask ({crs_name(mask.crs)}) that lies beside its image ({crs_name(cube.crs)})",
            "a mask of the same place",
            "check its coordinates with `hyperfuse info`",
        )
