"""Cubes computed from other cubes window by window, when they are read: physical values with NaN where there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.grid import Grid
from hyperfuse.cubes.lazy import WindowReader, lazy_variable

DERIVED_TYPE: np.dtype[Any] = np.dtype(np.float32)


def derived_cube(reader: WindowReader, like: xr.DataArray, grid: Grid) -> xr.DataArray:
    """What `reader` gives, on this grid, with the bands of `like`."""
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=like["wavelength"].values,
        fwhm_nm=like["fwhm"].values,
        good=like["good"].values,
        band_names=[str(name) for name in like["band_name"].values],
        nodata=float("nan"),
        crs=grid.crs,
        transform=grid.transform,
    )
