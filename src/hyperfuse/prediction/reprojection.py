"""An HSI whose grid is turned or bent against the MSI's, resampled once onto a coarse grid parallel to the MSI's axes.

Lazy: a window is computed when it is read, by cubic splines, from the part of the HSI that it needs. The slight blur that this adds
becomes part of the point spread that the estimation finds.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.cubes.cube import physical_values, window_of
from hyperfuse.cubes.grid import Grid, Positions, crs_name, grid_nodes, grid_of, positions_in
from hyperfuse.errors import GridError
from hyperfuse.prediction.derived_cubes import DERIVED_TYPE, derived_cube
from hyperfuse.prediction.spline_sampling import interpolated, needed_window, within

# HSI pixels around the MSI that are worth keeping.
MARGIN = 4


def parallel_to(msi: Grid, hsi: xr.DataArray, *, keep_all: bool) -> xr.DataArray:
    """The HSI on a grid parallel to the MSI's, of about its own pixel size; around the MSI, or with `keep_all` all of it."""
    source = grid_of(hsi)
    if not keep_all:
        hsi = window_of(hsi, *_window_around(source, msi))
        source = grid_of(hsi)
    target = coarse_grid_along(msi, source)
    height, width = target.pixel_size
    warnings.warn(
        f"the HSI's grid ({crs_name(source.crs)}) is not parallel to the MSI's ({crs_name(msi.crs)}): the HSI is resampled by "
        f"cubic splines onto pixels of {width:.6g} x {height:.6g} along the MSI's axes",
        stacklevel=2,
    )
    return derived_cube(ResampledReader(hsi, source, target), hsi, target)


def coarse_grid_along(msi: Grid, hsi: Grid) -> Grid:
    """Parallel to the MSI's grid, around all of the HSI, with pixels like those of the HSI, one of them exactly in its middle."""
    assert msi.transform is not None
    middle = np.array([[(hsi.height - 1) // 2], [(hsi.width - 1) // 2]], dtype=np.float64)
    steps = np.array([[0, 0.5, -0.5, 0, 0], [0, 0, 0, 0.5, -0.5]])
    rows, columns = positions_in(msi, hsi, *(middle + steps))
    if not (np.isfinite(rows).all() and np.isfinite(columns).all()):
        raise GridError(f"HSI outside of the MSI's {crs_name(msi.crs)}", "two images of the same place")
    # How far one HSI pixel reaches in fine pixels: the stretching part of the local map between the grids, without its turn.
    jacobian = np.array([[rows[1] - rows[2], rows[3] - rows[4]], [columns[1] - columns[2], columns[3] - columns[4]]])
    values, axes = np.linalg.eigh(jacobian @ jacobian.T)
    scale_y, scale_x = (axes @ np.diag(np.sqrt(values)) @ axes.T).diagonal()
    edge_rows, edge_columns = (axis[np.isfinite(axis)] for axis in positions_in(msi, hsi, *grid_nodes(hsi)))
    top, height = _span(edge_rows, float(rows[0]), float(scale_y))
    left, width = _span(edge_columns, float(columns[0]), float(scale_x))
    return Grid(height, width, msi.transform @ Affine.translation(left, top) @ Affine.scale(scale_x, scale_y), msi.crs)


def _span(covered: Positions, centre: float, size: float) -> tuple[float, int]:
    """Where pixels of this size, one centred at `centre`, must begin to cover these fine positions, and how many are needed."""
    first = math.floor((covered.min() - centre) / size + 0.5 + 1e-6)
    stop = math.ceil((covered.max() - centre) / size + 0.5 - 1e-6)
    return centre + 0.5 + (first - 0.5) * size, stop - first


def _window_around(hsi: Grid, msi: Grid) -> tuple[slice, slice]:
    windows = []
    for positions, size in zip(positions_in(hsi, msi, *grid_nodes(msi)), (hsi.height, hsi.width), strict=True):
        finite = positions[np.isfinite(positions)]
        windows.append(slice(max(0, math.floor(finite.min()) - MARGIN), min(size, math.ceil(finite.max()) + MARGIN + 1)))
    return windows[0], windows[1]


@dataclass(frozen=True)
class ResampledReader:
    """A cube at the pixel centres of another georeferenced grid; missing where its own pixel underneath is missing."""

    cube: xr.DataArray
    source: Grid
    target: Grid

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.cube.sizes["band"], self.target.height, self.target.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return DERIVED_TYPE

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        nodes = np.meshgrid(np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop), indexing="ij")
        positions = positions_in(self.source, self.target, nodes[0], nodes[1])
        needed = needed_window(positions, (self.source.height, self.source.width))
        if needed is None:
            return np.full((len(bands), *nodes[0].shape), np.nan, dtype=np.float32)
        return interpolated(physical_values(self.cube, *needed, bands), within(positions, needed))
