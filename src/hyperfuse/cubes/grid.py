"""Where pixels lie: the grid of one image, and how the grids of two images relate.

Pixel centres are the convention everywhere: pixel i covers [i, i + 1) of the affine transform and has its centre at i + 0.5.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS

from hyperfuse.cubes.transforms import PIXEL_TOLERANCE, current_transform
from hyperfuse.errors import GridError

__all__ = ["PIXEL_TOLERANCE", "Grid", "Placement", "fine_grid", "grid_of", "place", "require_finer"]


@dataclass(frozen=True)
class Grid:
    height: int
    width: int
    transform: Affine | None
    crs: CRS | None

    @property
    def pixel_size(self) -> tuple[float, float]:
        """Height and width of a pixel in units of the CRS (1, 1 where the image has no georeference)."""
        t = self.transform or Affine.identity()
        return float(np.hypot(t.b, t.e)), float(np.hypot(t.a, t.d))


@dataclass(frozen=True)
class Placement:
    """Fine pixel i along an axis has its centre at coarse pixel index `start + i * step` (0 is the centre of the first)."""

    start_y: float
    step_y: float
    start_x: float
    step_x: float

    @property
    def scale(self) -> tuple[float, float]:
        """How many fine pixels make a coarse one, along y and x."""
        return 1 / abs(self.step_y), 1 / abs(self.step_x)

    def coarse_rows(self, fine_rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start_y + fine_rows * self.step_y

    def coarse_columns(self, fine_columns: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start_x + fine_columns * self.step_x


def grid_of(cube: xr.DataArray) -> Grid:
    """The grid of a cube as it is now, also after slicing by hand."""
    return Grid(cube.sizes["y"], cube.sizes["x"], current_transform(cube), cube.rio.crs)


def place(hsi: Grid, msi: Grid) -> Placement:
    """How the MSI's pixels lie in the HSI's. Without georeference on both, the two are taken to cover the same extent."""
    if hsi.transform is None or msi.transform is None:
        if (hsi.transform is None) != (msi.transform is None):
            warnings.warn("only one of the two images is georeferenced: they are taken to cover the same extent", stacklevel=2)
        return _same_extent(hsi, msi)
    _require_one_crs(hsi, msi)
    fine_to_coarse = ~hsi.transform @ msi.transform
    turn = max(abs(fine_to_coarse.b) * msi.width, abs(fine_to_coarse.d) * msi.height)
    if turn > 0.5:
        raise GridError(
            f"the two grids are turned against each other by up to {turn:.1f} coarse pixels",
            "grids with parallel axes",
            "warp the HSI onto a north-up grid first (gdalwarp)",
        )
    start_x, start_y = fine_to_coarse @ (0.5, 0.5)
    placement = Placement(start_y - 0.5, fine_to_coarse.e, start_x - 0.5, fine_to_coarse.a)
    _require_overlap(placement, hsi, msi)
    return placement


def fine_grid(hsi: Grid, msi: Grid) -> Grid:
    """The grid of the fused image: the MSI's, georeferenced through the HSI where the MSI itself is not."""
    if msi.transform is not None or hsi.transform is None:
        return Grid(msi.height, msi.width, msi.transform, msi.crs or hsi.crs)
    shrink = Affine.scale(hsi.width / msi.width, hsi.height / msi.height)
    return Grid(msi.height, msi.width, hsi.transform @ shrink, hsi.crs)


def require_finer(hsi: Grid, msi: Grid, placement: Placement) -> None:
    if min(placement.scale) < 1 - PIXEL_TOLERANCE:
        raise GridError(
            f"the HSI's pixels are finer than the MSI's (scale {min(placement.scale):.3g}; HSI {hsi.width}x{hsi.height}, "
            f"MSI {msi.width}x{msi.height})",
            "an MSI with smaller pixels than the HSI's",
            "give the coarse HSI first and the fine MSI second",
        )


def _same_extent(hsi: Grid, msi: Grid) -> Placement:
    step_y, step_x = hsi.height / msi.height, hsi.width / msi.width
    return Placement(0.5 * step_y - 0.5, step_y, 0.5 * step_x - 0.5, step_x)


def _require_one_crs(hsi: Grid, msi: Grid) -> None:
    if hsi.crs is not None and msi.crs is not None and hsi.crs != msi.crs:
        raise GridError(
            f"HSI in {_crs_name(hsi.crs)}, MSI in {_crs_name(msi.crs)}",
            "one coordinate reference system",
            "reproject the HSI to the MSI's with gdalwarp or rioxarray",
        )


def _require_overlap(placement: Placement, hsi: Grid, msi: Grid) -> None:
    rows = sorted(placement.coarse_rows(np.array([-0.5, msi.height - 0.5])))
    columns = sorted(placement.coarse_columns(np.array([-0.5, msi.width - 0.5])))
    if rows[1] <= -0.5 or rows[0] >= hsi.height - 0.5 or columns[1] <= -0.5 or columns[0] >= hsi.width - 0.5:
        raise GridError(
            "the two images do not overlap: in HSI pixels the MSI covers "
            f"rows {rows[0]:.0f} to {rows[1]:.0f}, columns {columns[0]:.0f} to {columns[1]:.0f} of {hsi.height}x{hsi.width}",
            "two images of the same place",
            "check their coordinates with `hyperfuse info`",
        )


def _crs_name(crs: CRS) -> str:
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.to_wkt()[:60]
