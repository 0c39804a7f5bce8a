"""What a cube should look like in its file: which bands, in which numbers. The same for everything that writes cubes.

Values -> the numbers that a file stores: scaled, rounded, kept inside the data type and off the nodata value.

Band by band, so that the double precision that this needs costs the memory of one band.
"""

from __future__ import annotations

import math
import threading
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.io.bands import check_selection, select_bands
from hyperfuse.io.cube import (
    as_cube,
    fitting_nodata,
    missing_values,
    nodata_of,
    physical_values,
    place_cube,
    usual_nodata,
)
from hyperfuse.io.lazy import lazy_variable
from hyperfuse.io.summary import sample_of


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


def stored_again(
    block: NDArray[Any], source: xr.DataArray, target: xr.DataArray, clipping: Clipping | None = None
) -> NDArray[Any]:
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
    wanted: NDArray[Any],
    missing: NDArray[np.bool_],
    dtype: np.dtype[Any],
    nodata: float | None,
    clipping: Clipping | None,
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
    halo = sorted((low * scale[0] + offset[0], high * scale[0] + offset[0]))
    return f"{target.dtype.name} with a scale factor of {scale[0]:g} ({halo[0]:.6g} to {halo[1]:.6g})"


DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
COMPRESSIONS = ("deflate", "zstd", "lzw", "none")
# Integers must keep a difference between values, and most values must fit: anything else is a slip of the scale factor.
FEWEST_STEPS = 2
LARGEST_CLIPPED_SHARE = 0.5
LARGEST_ROUNDING = 1e-3


@dataclass(frozen=True)
class OutputOptions:
    """How a cube is stored; None leaves it as it is.

    `bands`: a selection such as "400-1000nm,good" (see `cubes/band_selection.py`). `dtype`: uint8 ... float64.
    `scale_factor`: stored = physical / factor, for all bands, without an offset; 1 stores physical values. `nodata`:
    the stored value for pixels without data. `compress`: deflate, zstd, lzw or none. `overviews`: smaller versions
    inside a GeoTIFF. `stac`: a STAC item beside the file.
    """

    bands: str | None = None
    dtype: str | None = None
    scale_factor: float | None = None
    nodata: float | None = None
    compress: str | None = None
    overviews: bool = False
    stac: bool = False

    def __post_init__(self) -> None:
        if self.bands is not None:
            check_selection(self.bands)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise OptionError(f"data type {self.dtype!r}", f"one of {', '.join(DTYPES)}")
        factor = self.scale_factor
        if factor is not None and not (math.isfinite(factor) and factor > 0):
            raise OptionError(
                f"scale factor {factor:g}", "a number above 0 (stored = physical / factor)", "for example 0.0001"
            )
        if self.compress is not None and self.compress not in COMPRESSIONS:
            raise OptionError(f"compression {self.compress!r}", f"one of {', '.join(COMPRESSIONS)}")

    def asked_for(self) -> dict[str, Any]:
        """By name, without what was left alone."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}

    def for_the_file(self) -> OutputOptions:
        """For a cube that has its bands and numbers already."""
        return replace(self, bands=None, dtype=None, scale_factor=None, nodata=None)


AS_IT_IS = OutputOptions()


def output_template(source: xr.DataArray, output: OutputOptions) -> xr.DataArray:
    """A cube like `source` (whose values are not looked at) as `output` wants it, with zeros that take no memory."""
    part = selected(source, output)
    dtype = np.dtype(output.dtype or source.dtype)
    values = np.broadcast_to(np.zeros((), dtype), part.shape)
    attributes = {key: value for key, value in part.attrs.items() if key != "_FillValue"}
    template = xr.DataArray(values, dims=part.dims, coords=part.coords, attrs=attributes)
    if output.scale_factor is not None:
        bands = part.sizes["band"]
        scaling = {"scale": ("band", np.full(bands, output.scale_factor)), "offset": ("band", np.zeros(bands))}
        template = template.assign_coords(scaling)
    return place_cube(template, None, None, _nodata_for(source, dtype, output.nodata))


def selected(cube: xr.DataArray, output: OutputOptions) -> xr.DataArray:
    """The wanted bands, still lazy."""
    return cube if output.bands is None else cube.isel(band=select_bands(cube, output.bands))


def converted(cube: xr.DataArray, output: OutputOptions) -> tuple[xr.DataArray, Clipping]:
    """The cube as `output` wants it, converted when a window of it is read, and the count of what was clipped then.

    A nodata value for a cube that has none declares it: the pixels that hold it have no data.
    """
    cube, clipping = as_cube(cube), Clipping()
    declared = fitting_nodata(output.nodata, cube.dtype) if nodata_of(cube) is None else None
    cube = cube if declared is None else place_cube(cube, None, None, declared)
    template = output_template(cube, output)
    part = selected(cube, output)
    # NaN beside a newly declared nodata is to become that.
    if is_stored_alike(part, template) and (declared is None or cube.dtype.kind != "f"):
        return part, clipping
    refuse_unfit(part, template)
    reader = _ConvertedReader(part, template, clipping)
    lazy = xr.DataArray(lazy_variable(reader), coords=template.coords, attrs=template.attrs)
    lazy.encoding = template.encoding
    return lazy, clipping


@dataclass(frozen=True)
class _ConvertedReader:
    source: xr.DataArray
    template: xr.DataArray
    clipping: Clipping

    @property
    def shape(self) -> tuple[int, int, int]:
        bands, height, width = self.source.shape
        return bands, height, width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.template.dtype

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        part = self.source.isel(band=bands, y=rows, x=columns)
        return stored_again(part.values, part, self.template.isel(band=bands), self.clipping)


def is_stored_alike(first: xr.DataArray, second: xr.DataArray) -> bool:
    nodata, other = nodata_of(first), nodata_of(second)
    same_nodata = nodata == other or (
        nodata is not None and other is not None and math.isnan(nodata) and math.isnan(other)
    )
    same_scaling = all(np.array_equal(first[name].values, second[name].values) for name in ("scale", "offset"))
    return first.dtype == second.dtype and same_scaling and same_nodata


def refuse_unfit(source: xr.DataArray, target: xr.DataArray) -> None:
    """Say before the work that integers cannot hold these values: judged by a sample of the source, which has the same
    bands.
    """
    if target.dtype.kind == "f" or is_stored_alike(source, target):
        return
    values = physical_values(sample_of(source), dtype=np.float64)
    scale, offset = (sample_of(target)[name].values.reshape(-1, 1, 1) for name in ("scale", "offset"))
    steps = ((values - offset) / scale)[np.isfinite(values)]
    if not steps.size:
        return
    low, high = limits_of(target.dtype)
    clipped = float(np.mean((steps.round() < low) | (steps.round() > high)))
    what = f"values from {np.nanmin(values):.4g} to {np.nanmax(values):.4g} as {target.dtype.name}"
    if clipped > LARGEST_CLIPPED_SHARE:
        raise OptionError(
            f"{what}: {clipped:.0%} of them do not fit",
            f"most within {range_text(target)}",
            "mend --dtype or --scale-factor",
        )
    if np.abs(steps).max() < FEWEST_STEPS and np.abs(steps - steps.round()).max() > LARGEST_ROUNDING:
        largest = float(np.nanmax(np.abs(values))) or 1.0
        remedy = f"add --scale-factor {10.0 ** math.ceil(math.log10(largest / high)):g}, or choose --dtype float32"
        raise OptionError(f"{what} in steps of {scale.max():g}: no difference would remain", "smaller steps", remedy)


def _nodata_for(source: xr.DataArray, dtype: np.dtype[Any], wanted: float | None) -> float | None:
    """The wanted value, else the source's own; where that does not fit, or where NaN has no place, a usual one."""
    if wanted is not None:
        fitting = fitting_nodata(wanted, dtype)
        if fitting is None:
            low, high = limits_of(dtype)
            kind = "a number" if dtype.kind == "f" else "a whole number"
            raise OptionError(
                f"nodata {wanted:g} for {dtype.name} values", f"{kind} from {low} to {high}", "mend --nodata or --dtype"
            )
        return fitting
    own = nodata_of(source)
    if own is None and (source.dtype.kind != "f" or dtype.kind == "f"):
        return None
    fitting = fitting_nodata(own, dtype)
    if fitting is not None:
        return fitting
    usual = usual_nodata(dtype)
    if own is not None and not math.isnan(own):
        warnings.warn(f"nodata {own:g} does not fit into {dtype.name}: it becomes {usual:g}", stacklevel=2)
    return usual
