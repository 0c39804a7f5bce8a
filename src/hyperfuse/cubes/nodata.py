"""The stored value that means 'nothing was measured', as a number that the data type can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray


def nodata_of(cube: xr.DataArray) -> float | None:
    """Nodata as a plain number of the cube's own data type, or None. What the type cannot hold occurs in no pixel: that is None."""
    if "_FillValue" in cube.attrs and "_FillValue" not in cube.encoding:
        # Not through rioxarray, which refuses 1e20 for float32, as CF files often have it: the nearest float32 is another number.
        return fitting_nodata(cube.attrs["_FillValue"], cube.dtype)
    try:
        return fitting_nodata(cube.rio.nodata, cube.dtype)
    except (OverflowError, TypeError, ValueError):
        return fitting_nodata(cube.attrs.get("missing_value"), cube.dtype)


def fitting_nodata(value: Any, dtype: np.dtype[Any]) -> float | None:
    """The number of this data type that a nodata value means, or None where there is none."""
    number = np.asarray(value).ravel()
    if value is None or number.size != 1 or number.dtype.kind not in "iuf":
        return None
    nodata = number[0].item()
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            nearest = float(dtype.type(nodata))
        return None if np.isinf(nearest) and not np.isinf(nodata) else nearest
    limits = np.iinfo(dtype)
    whole = np.isfinite(nodata) and nodata == int(nodata)
    return int(nodata) if whole and limits.min <= int(nodata) <= limits.max else None


def usual_nodata(dtype: np.dtype[Any]) -> float:
    """For values that have no nodata of their own: NaN, or the integer least likely to be a measurement."""
    if dtype.kind == "f":
        return float("nan")
    limits = np.iinfo(dtype)
    return int(limits.min) if limits.min < 0 else int(limits.max)


def missing_values(stored: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Where stored values mean 'nothing was measured': nodata, NaN and infinities."""
    missing = ~np.isfinite(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)
    nodata = fitting_nodata(nodata, stored.dtype)
    if nodata is not None and not np.isnan(nodata):
        missing |= stored == stored.dtype.type(nodata)
    return missing
