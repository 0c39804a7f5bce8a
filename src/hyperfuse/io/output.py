"""How a cube is stored (which bands, which numbers) and how its provenance is recorded, in every format alike.

A selection of bands is a list of entries separated by commas, taken in the order in which they are written, each band
once:

    12  1-50         by number, counted from 1 as GDAL does      660nm  0.66um    the band nearest to a wavelength
    400-1000nm       every band centred within a range           good             leave the bad ones out

Provenance is a set of attributes `hyperfuse_method`, `hyperfuse_version`, ..., which every conversion carries along.
"""

from __future__ import annotations

import math
import os
import re
import threading
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse import compiled
from hyperfuse.config import OutputConfig
from hyperfuse.errors import BandError, OptionError
from hyperfuse.io.cube import (
    NANOMETRES_PER_UNIT,
    Lengths,
    WindowReader,
    as_cube,
    fitting_nodata,
    lazy_variable,
    missing_values,
    nodata_of,
    physical_values,
    place_cube,
    sample_of,
    usual_nodata,
    warn_of_underflow,
)
from hyperfuse.io.grid import plain_variable

# Integers must keep a difference between values, and most values must fit: anything else is a slip of the scale factor.
FEWEST_STEPS = 2
LARGEST_CLIPPED_SHARE = 0.5
LARGEST_ROUNDING = 1e-3
UNCHANGED = OutputConfig()
RED_GREEN_BLUE_NM = (650.0, 550.0, 470.0)
# A band further than this from a colour does not show it.
FAR_NM = 100.0
PREFIX = "hyperfuse_"
OWN_NAME = re.compile(r"hyperfuse_[a-z_]+")
SCALING = ("scale", "offset")
GOOD = "good"
GRAMMAR = "numbers from 1 (1-50,60), wavelengths (400-1000nm, 0.4-1.0um, 660nm) or good, separated by commas"
NUMBERS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")
LENGTHS = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-zµμ]*)(?:\s*-\s*(\d+\.?\d*|\.\d+)\s*([a-zµμ]*))?")
# 0.4 um times 1000 is not quite 400 nm.
ROUNDING_NM = 1e-6


class Clipping:
    """Counts the values that did not fit into their data type, over all blocks of a cube."""

    def __init__(self) -> None:
        self.values = 0
        self.clipped = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        """Start a count of its own in another process."""
        return Clipping, ()

    def count(self, values: int, clipped: int) -> None:
        with self._lock:
            self.values += values
            self.clipped += clipped

    def report(self, target: xr.DataArray) -> None:
        """Warn once for the whole cube if anything was clipped."""
        if self.clipped:
            warnings.warn(
                f"{self.clipped} of {self.values} values ({100 * self.clipped / self.values:.2g} %) lay outside "
                f"{_range_text(target)} and were clipped",
                stacklevel=2,
            )


def select_bands(cube: xr.DataArray, selection: str) -> NDArray[np.int64]:
    """Return the positions (from 0) of the bands that a selection means."""
    entries = [entry.strip() for entry in selection.lower().split(",")]
    chosen = [_entry(cube, entry, selection) for entry in entries if entry != GOOD]
    positions = np.concatenate(chosen) if chosen else np.arange(cube.sizes["band"])
    if GOOD in entries:
        positions = positions[cube["good"].values[positions]]
        if not positions.size:
            got = f"bands {selection}: every one of them is flagged bad"
            raise BandError(got, "at least one good band", "leave out `good`")
    return np.array(list(dict.fromkeys(positions.tolist())), dtype=np.int64)


def check_selection(selection: str) -> None:
    """Raise `OptionError` for a selection that means nothing in any cube."""
    for entry in (part.strip() for part in selection.lower().split(",")):
        if entry != GOOD and not NUMBERS.fullmatch(entry):
            _lengths_nm(entry, selection)


def _entry(cube: xr.DataArray, entry: str, selection: str) -> NDArray[np.int64]:
    centres: Lengths = cube["wavelength"].values
    matched = NUMBERS.fullmatch(entry)
    if matched:
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if not 1 <= first <= last <= centres.size:
            got = f"band {first}" if first == last else f"bands {first}-{last}"
            remedy = "numbers count from 1; a wavelength needs its unit (400-1000nm)"
            expected = f"1 to {centres.size}, the smaller number first"
            raise BandError(f"{got} of a cube of {centres.size}", expected, remedy)
        return np.arange(first - 1, last)
    low, high = _lengths_nm(entry, selection)
    if np.isnan(centres).all():
        got = f"bands {entry} of a cube whose wavelengths are unknown"
        raise BandError(got, "band numbers", f"choose from 1-{centres.size}")
    present = f"a cube of {centres.size} bands from {np.nanmin(centres):g} to {np.nanmax(centres):g} nm"
    if high is not None:
        inside = np.flatnonzero((centres >= low - ROUNDING_NM) & (centres <= high + ROUNDING_NM))
        if not inside.size:
            raise BandError(f"no band between {low:g} and {high:g} nm in {present}", remedy="choose another range")
        return inside
    # A wavelength outside all bands by more than their usual distance is a mistake.
    known = np.sort(centres[np.isfinite(centres)])
    usual = float(np.median(np.diff(known))) if known.size > 1 else known[0] / 10
    if not known[0] - usual <= low <= known[-1] + usual:
        raise BandError(f"no band near {low:g} nm in {present}", remedy="choose another wavelength")
    return np.array([np.nanargmin(np.abs(centres - low))])


def _lengths_nm(entry: str, selection: str) -> tuple[float, float | None]:
    """One wavelength, or the two ends of a range, in nm; the first may take its unit from the second."""
    match = LENGTHS.fullmatch(entry)
    units = [match[2] or match[4] or "", match[4] or match[2] or ""] if match else []
    if match is None or not NANOMETRES_PER_UNIT.keys() >= set(units):
        raise OptionError(f"bands {selection!r}: {entry!r} is not a selection", GRAMMAR)
    low = float(match[1]) * NANOMETRES_PER_UNIT[units[0]]
    high = None if match[3] is None else float(match[3]) * NANOMETRES_PER_UNIT[units[1]]
    if high is not None and high < low:
        raise OptionError(f"bands {entry}: from {low:g} to {high:g} nm", "the smaller wavelength first")
    return low, high


def colour_bands(cube: xr.DataArray) -> tuple[int, int, int] | None:
    """Return the good bands nearest to 650, 550 and 470 nm, counted from 0; None where no three show these colours."""
    bands = np.flatnonzero(cube["good"].values & np.isfinite(cube["wavelength"].values))
    bands = bands if bands.size else np.flatnonzero(np.isfinite(cube["wavelength"].values))
    distance = np.abs(cube["wavelength"].values[bands, None] - np.array(RED_GREEN_BLUE_NM))
    if not bands.size or (distance.min(axis=0) > FAR_NM).any():
        return None
    red, green, blue = (int(band) for band in bands[distance.argmin(axis=0)])
    return (red, green, blue) if len({red, green, blue}) == 3 else None


def output_template(source: xr.DataArray, output: OutputConfig) -> xr.DataArray:
    """Return an empty cube that describes how `source` is to be stored; its zeros take no memory."""
    chosen = slice(None) if output.bands is None else select_bands(source, output.bands)
    # Without the values, which a selection would copy.
    coords = source.coords.to_dataset().isel(band=chosen).coords
    bands, dtype = coords.sizes["band"], np.dtype(output.dtype or source.dtype)
    values = np.broadcast_to(np.zeros((), dtype), (bands, *source.shape[1:]))
    attributes = {key: value for key, value in source.attrs.items() if key != "_FillValue"}
    template = xr.DataArray(plain_variable(source.dims, values), coords=coords, attrs=attributes)
    if output.scale_factor is not None:
        scaling = {"scale": ("band", np.full(bands, output.scale_factor)), "offset": ("band", np.zeros(bands))}
        template = template.assign_coords(scaling)
    return place_cube(template, None, None, _nodata_for(source, dtype, output.nodata))


def selected(cube: xr.DataArray, output: OutputConfig) -> xr.DataArray:
    """Return the bands to be stored, still lazy."""
    return cube if output.bands is None else cube.isel(band=select_bands(cube, output.bands))


def converted(cube: xr.DataArray, output: OutputConfig) -> tuple[xr.DataArray, Clipping]:
    """Return the cube as it is to be stored, converted window by window on reading, and the count of clipped values.

    A nodata value for a cube that has none declares it: the pixels that hold it have no data.
    """
    cube, clipping = as_cube(cube), Clipping()
    declared = fitting_nodata(output.nodata, cube.dtype) if nodata_of(cube) is None else None
    cube = cube if declared is None else place_cube(cube, None, None, declared)
    template, part = output_template(cube, output), selected(cube, output)
    # A newly declared nodata value also replaces NaN.
    if _is_stored_alike(part, template) and (declared is None or cube.dtype.kind != "f"):
        return part, clipping
    check_fits(part, template)
    bands, height, width = part.shape
    read = partial(_read_converted, part, template, clipping)
    lazy = lazy_variable(WindowReader((bands, height, width), template.dtype, read))
    result = xr.DataArray(lazy, coords=template.coords, attrs=template.attrs)
    result.encoding = template.encoding
    return result, clipping


def _read_converted(
    source: xr.DataArray,
    template: xr.DataArray,
    clipping: Clipping,
    bands: NDArray[np.int64],
    rows: slice,
    columns: slice,
) -> NDArray[Any]:
    part = source.isel(band=bands, y=rows, x=columns)
    return to_stored(part.values, template.isel(band=bands), clipping, part)


def to_stored(
    values: NDArray[Any], target: xr.DataArray, clipping: Clipping | None = None, source: xr.DataArray | None = None
) -> NDArray[Any]:
    """Convert (band, y, x) values to the numbers that `target` stores: scaled, rounded, clipped, apart from nodata.

    `values` are physical with NaN for no data or, with `source`, as that cube stores them. Band by band, so that double
    precision costs the memory of one band.
    """
    stored, dtype = np.empty(values.shape, target.dtype), target.dtype
    nodata, source_nodata = nodata_of(target), None if source is None else nodata_of(source)
    new = [target[name].values for name in SCALING]
    old = [np.ones_like(new[0]), np.zeros_like(new[1])] if source is None else [source[name].values for name in SCALING]
    limits = _limits(dtype)
    is_simple = source is None and values.dtype == np.float32 and values.flags.c_contiguous
    quickly = compiled.rounding_to(dtype, nodata) if is_simple else None
    # Usually all bands are stored alike and all values fit.
    are_alike = len(values) > 0 and not new[1].any() and bool((new[0] == new[0][0]).all())
    if quickly is not None and are_alike and quickly(values, new[0][0], stored):
        if clipping is not None:
            clipping.count(values.size, 0)
        return stored
    for band, (scale, offset, old_scale, old_offset) in enumerate(zip(*new, *old, strict=True)):
        numbers = values[band]
        if quickly is not None and offset == 0 and quickly(numbers, scale, stored[band]):
            if clipping is not None:
                clipping.count(numbers.size, 0)
            continue
        if (old_scale, old_offset) != (scale, offset):
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                if old_scale == 1 and old_offset == offset:
                    numbers = np.divide(numbers, scale, dtype=np.float64)
                else:
                    numbers = np.multiply(numbers, old_scale, dtype=np.float64)
                    numbers += old_offset - offset
                    numbers /= scale
        if source_nodata is None and numbers.dtype == np.float64 and dtype.kind in "iu" and dtype.itemsize < 8:
            # Usually all values fit, none is missing and none equals nodata: comparisons with NaN are false.
            np.rint(numbers, out=numbers)
            smallest, largest = numbers.min(initial=limits[1]), numbers.max(initial=limits[0])
            is_clear = nodata is None or not smallest <= nodata <= largest
            if limits[0] <= smallest and largest <= limits[1] and is_clear:
                stored[band] = numbers
                if clipping is not None:
                    clipping.count(numbers.size, 0)
                continue
        missing = missing_values(values[band], source_nodata)
        stored[band] = _fitted(numbers, missing, dtype, nodata, clipping)
    return stored


def _fitted(
    numbers: NDArray[Any],
    missing: NDArray[np.bool_],
    dtype: np.dtype[Any],
    nodata: float | None,
    clipping: Clipping | None,
) -> NDArray[Any]:
    """Convert one band. Integers stay integers on their way: float64 does not hold all those of 64 bits."""
    low, high = _limits(dtype)
    if numbers.dtype.kind == "f":
        missing = missing | ~np.isfinite(numbers)
        numbers = np.where(missing, 0, numbers if dtype.kind == "f" else numbers.astype(np.float64).round())
        # float64 cannot represent the largest 64-bit integers; the next smaller float can be cast.
        high = np.nextafter(float(high), 0) if dtype.itemsize == 8 and dtype.kind != "f" else high
    elif dtype.kind != "f":
        numbers = np.where(missing, numbers.dtype.type(0), numbers)
        own_low, own_high = _limits(numbers.dtype)
        low, high = max(low, own_low), min(high, own_high)
    if clipping is not None:
        clipping.count(int(missing.size - missing.sum()), int(np.count_nonzero((numbers < low) | (numbers > high))))
    values: NDArray[Any] = np.clip(numbers, low, high).astype(dtype)
    if dtype.kind == "f":
        warn_of_underflow(numbers, values)
    if nodata is not None:
        # A measurement that happens to equal nodata moves to the number next to it.
        if dtype.kind == "f":
            neighbour = np.nextafter(dtype.type(nodata), dtype.type(0 if nodata else 1))
        else:
            neighbour = dtype.type(nodata + 1 if nodata < np.iinfo(dtype).max else nodata - 1)
        values[~missing & (values == nodata)] = neighbour
        values[missing] = nodata
    elif dtype.kind == "f":
        values[missing] = np.nan
    return values


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return limits.min, limits.max


def _range_text(target: xr.DataArray) -> str:
    low, high = _limits(target.dtype)
    scale, offset = target["scale"].values, target["offset"].values
    if (scale != scale[0]).any() or (offset != offset[0]).any():
        return f"{target.dtype.name} with the scale factor of each band"
    ends = sorted((low * scale[0] + offset[0], high * scale[0] + offset[0]))
    return f"{target.dtype.name} with a scale factor of {scale[0]:g} ({ends[0]:.6g} to {ends[1]:.6g})"


def _is_stored_alike(first: xr.DataArray, second: xr.DataArray) -> bool:
    nodata, other = nodata_of(first), nodata_of(second)
    both_nan = nodata is not None and other is not None and math.isnan(nodata) and math.isnan(other)
    same_scaling = all(np.array_equal(first[name].values, second[name].values) for name in SCALING)
    return first.dtype == second.dtype and same_scaling and (nodata == other or both_nan)


def check_fits(source: xr.DataArray, target: xr.DataArray) -> None:
    """Raise `OptionError` where the integers of `target` cannot hold the values, judged by a sample of `source`."""
    if target.dtype.kind == "f" or _is_stored_alike(source, target):
        return
    values = physical_values(sample_of(source), dtype=np.float64)
    scale, offset = (sample_of(target)[name].values.reshape(-1, 1, 1) for name in SCALING)
    steps = ((values - offset) / scale)[np.isfinite(values)]
    if not steps.size:
        return
    low, high = _limits(target.dtype)
    clipped = float(np.mean((steps.round() < low) | (steps.round() > high)))
    what = f"values from {np.nanmin(values):.4g} to {np.nanmax(values):.4g} as {target.dtype.name}"
    if clipped > LARGEST_CLIPPED_SHARE:
        got = f"{what}: {clipped:.0%} of them do not fit"
        raise OptionError(got, f"most within {_range_text(target)}", "change --dtype or --scale-factor")
    if np.abs(steps).max() < FEWEST_STEPS and np.abs(steps - steps.round()).max() > LARGEST_ROUNDING:
        largest = float(np.nanmax(np.abs(values))) or 1.0
        remedy = f"add --scale-factor {10.0 ** math.ceil(math.log10(largest / high)):g}, or choose --dtype float32"
        raise OptionError(f"{what} in steps of {scale.max():g}: no difference would remain", "smaller steps", remedy)


def _nodata_for(source: xr.DataArray, dtype: np.dtype[Any], requested: float | None) -> float | None:
    """Return the requested value, else the source's own; where that does not fit, or NaN has no place, a usual one."""
    if requested is not None:
        fitting = fitting_nodata(requested, dtype)
        if fitting is None:
            low, high = _limits(dtype)
            kind = "a number" if dtype.kind == "f" else "a whole number"
            got = f"nodata {requested:g} for {dtype.name} values"
            raise OptionError(got, f"{kind} from {low} to {high}", "change --nodata or --dtype")
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


def provenance(
    *,
    method: str | None = None,
    weights: str | None = None,
    inputs: Mapping[str, str | os.PathLike[str]] | None = None,
    options: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the attributes that record how a cube was made.

    `weights` is a digest; `inputs` maps roles to files, of which the names are kept; options of None are left out.
    """
    given = [f"{key}={value}" for key, value in (options or {}).items() if value is not None]
    record = {
        "method": method,
        "weights": weights,
        "version": version("hyperfuse"),
        "date": time_of_writing(),
        "options": " ".join(given),
    }
    record |= {role: Path(path).name for role, path in (inputs or {}).items()} | dict(facts or {})
    return {f"{PREFIX}{key}": text for key, text in record.items() if text}


def provenance_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the provenance among the attributes of a cube, without the prefix."""
    return {key.removeprefix(PREFIX): text for key, text in attributes.items() if OWN_NAME.fullmatch(key)}


def time_of_writing() -> str:
    """Return the time in UTC; SOURCE_DATE_EPOCH (seconds since 1970) makes outputs reproducible."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(fixed), UTC) if fixed.isdecimal() else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
