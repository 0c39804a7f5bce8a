"""Values -> the numbers that a file stores: scaled, rounded, kept inside the data type and off the nodata value.

Band by band, so that the double precision that this needs costs the memory of one band.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.nodata import missing_values, nodata_of


class Clipping:
    """Counts the values that did not fit into their data type, over all blocks of a cube."""

    def __init__(self) -> None:
        self.values = 0
        self.clipped = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        """In another process it counts for itself."""
        return Clipping, ()

    def count(self, values: int, clipped: int) -> None:
        with self._lock:
            self.values += values
            self.clipped += clipped

    def report(self, target: xr.DataArray) -> None:
        """One warning for the whole cube, or none."""
        if self.clipped:
            share = 100 * self.clipped / self.values
            warnings.warn(
                f"{self.clipped} of {self.values} values ({share:.2g} %) lay beyond {range_text(target)} and were clipped",
                stacklevel=2,
            )


def to_stored(physical: NDArray[Any], target: xr.DataArray, clipping: Clipping | None = None) -> NDArray[Any]:
    """Physical values, NaN where there are none, as the cube `target` stores them. Its values are not looked at."""
    stored = np.empty(physical.shape, target.dtype)
    nodata, scales, offsets = nodata_of(target), target["scale"].values, target["offset"].values
    for band, (scale, offset) in enumerate(zip(scales, offsets, strict=True)):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            wanted = (physical[band].astype(np.float64) - offset) / scale
        stored[band] = _fitted(wanted, ~np.isfinite(physical[band]), target.dtype, nodata, clipping)
    return stored


def stored_again(block: NDArray[Any], source: xr.DataArray, target: xr.DataArray, clipping: Clipping | None = None) -> NDArray[Any]:
    """A block of values as `source` stores them, as `target`, with the same bands, stores them."""
    stored = np.empty(block.shape, target.dtype)
    source_nodata, nodata = nodata_of(source), nodata_of(target)
    columns = (cube[name].values for cube in (source, target) for name in ("scale", "offset"))
    for band, (old_scale, old_offset, scale, offset) in enumerate(zip(*columns, strict=True)):
        missing = missing_values(block[band], source_nodata)
        wanted = block[band]
        if (old_scale, old_offset) != (scale, offset):
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                wanted = (wanted.astype(np.float64) * old_scale + (old_offset - offset)) / scale
        stored[band] = _fitted(wanted, missing, target.dtype, nodata, clipping)
    return stored


def limits_of(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Smallest and largest number of a data type."""
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return limits.min, limits.max


def _fitted(
    wanted: NDArray[Any], missing: NDArray[np.bool_], dtype: np.dtype[Any], nodata: float | None, clipping: Clipping | None
) -> NDArray[Any]:
    """One band. Whole numbers stay whole numbers on their way: float64 does not hold all those of 64 bits."""
    low, high = limits_of(dtype)
    if wanted.dtype.kind == "f":
        missing = missing | ~np.isfinite(wanted)
        wanted = np.where(missing, 0, wanted if dtype.kind == "f" else wanted.astype(np.float64).round())
        # float64 cannot name the largest 64-bit integers; the next smaller float can be cast.
        high = np.nextafter(float(high), 0) if dtype.itemsize == 8 and dtype.kind != "f" else high
    elif dtype.kind != "f":
        wanted = np.where(missing, wanted.dtype.type(0), wanted)
        own_low, own_high = limits_of(wanted.dtype)
        low, high = max(low, own_low), min(high, own_high)
    if clipping is not None:
        clipping.count(int(missing.size - missing.sum()), int(np.count_nonzero((wanted < low) | (wanted > high))))
    values: NDArray[Any] = np.clip(wanted, low, high).astype(dtype)
    if nodata is not None:
        values[~missing & (values == nodata)] = _beside(nodata, dtype)
        values[missing] = nodata
    elif dtype.kind == "f":
        values[missing] = np.nan
    return values


def _beside(nodata: float, dtype: np.dtype[Any]) -> Any:
    """The number next to nodata, for a measurement that happens to equal it."""
    if dtype.kind == "f":
        return np.nextafter(dtype.type(nodata), dtype.type(0 if nodata else 1))
    return dtype.type(nodata + 1 if nodata < np.iinfo(dtype).max else nodata - 1)


def range_text(target: xr.DataArray) -> str:
    low, high = limits_of(target.dtype)
    scale, offset = target["scale"].values, target["offset"].values
    if (scale != scale[0]).any() or (offset != offset[0]).any():
        return f"{target.dtype.name} with the scale factor of each band"
    reach = sorted((low * scale[0] + offset[0], high * scale[0] + offset[0]))
    return f"{target.dtype.name} with a scale factor of {scale[0]:g} ({reach[0]:.6g} to {reach[1]:.6g})"
