"""From the arrays in a container (HDF5, NetCDF, Zarr, .mat, .npz) to one cube: which array, which axis, which wavelengths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.lazy import lazy_variable
from hyperfuse.cubes.units import to_nanometres
from hyperfuse.errors import BandError, CubeFileError, OptionError

BAND_DIM = re.compile(r"(?:n_?)?(?:bands?|wavelengths?|wl|lambda|spectral.*|channels?|wvl)", re.IGNORECASE)
WAVELENGTH_NAMES = ("wavelength_nm", "wavelength", "wavelengths", "wavelength_um", "wl", "wvl", "lambda", "centers", "band_centers")
FWHM_NAMES = ("fwhm_nm", "fwhm", "fwhms", "fwhm_um", "bandwidth")
GOOD_NAMES = ("good", "good_bands", "good_wavelengths", "bbl")
NAME_NAMES = ("band_name", "band_names")
SCALE_NAMES = ("band_scale", "scale")
OFFSET_NAMES = ("band_offset", "offset")
# Where nothing labels the axes: MATLAB and numpy people store (rows, columns, bands).
LAST = -1
LARGEST_SIDE_ARRAY = 1_000_000


class LoadPart(Protocol):
    """Reads part of an n-dimensional array: `load((slice, slice, slice))`."""

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]: ...


@dataclass(frozen=True)
class InMemory:
    """`LoadPart` for an array that had to be read anyway."""

    array: NDArray[Any]

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        return np.asarray(self.array[key])


@dataclass(frozen=True)
class FoundArray:
    """An array of a container, not yet read."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: LoadPart
    dims: tuple[str, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.name.rsplit("/", 1)[-1].rsplit(".", 1)[-1].lower()

    def values(self) -> NDArray[Any]:
        return self.load(tuple(slice(None) for _ in self.shape))


@dataclass(frozen=True)
class TransposedReader:
    """Reads windows of a 3-D array whose axes come in any order; `axes` says where band, y and x are."""

    found: FoundArray
    axes: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        band, y, x = self.axes
        return self.found.shape[band], self.found.shape[y], self.found.shape[x]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.found.dtype

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        first, last = int(bands.min()), int(bands.max()) + 1
        key: list[Any] = [None, None, None]
        for axis, part in zip(self.axes, (slice(first, last), rows, columns), strict=True):
            key[axis] = part
        return self.found.load(tuple(key)).transpose(self.axes)[bands - first]


def cube_from_arrays(
    path: Path, arrays: Sequence[FoundArray], variable: str | None, band_axis: int | None, default_band_axis: int | None = None
) -> xr.DataArray:
    """The one 3-D array (or the one named), turned to (band, y, x), with what its neighbours tell about its bands and place."""
    found = _choose(path, arrays, variable)
    sides = _side_arrays(found, arrays)
    axes = _axes(found, sides, band_axis, default_band_axis)
    reader = TransposedReader(found, axes)
    bands = reader.shape[0]
    attributes = dict(found.attributes)
    crs, transform = _place(found, sides)
    scale = _column(path, sides, SCALE_NAMES, bands)
    offset = _column(path, sides, OFFSET_NAMES, bands)
    nodata = attributes.pop("_FillValue", attributes.pop("missing_value", _scalar(sides, "nodata")))
    good = _column(path, sides, GOOD_NAMES, bands)
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=_lengths(path, sides, WAVELENGTH_NAMES, bands),
        fwhm_nm=_lengths(path, sides, FWHM_NAMES, bands),
        good=None if good is None else good.astype(bool),
        band_names=_names(sides, bands),
        scale=attributes.pop("scale_factor", 1.0) if scale is None else scale,
        offset=attributes.pop("add_offset", 0.0) if offset is None else offset,
        nodata=_fitting_nodata(nodata, found.dtype),
        crs=crs,
        transform=transform,
        attributes=_texts(attributes) | _own_attributes(sides),
    )


def _choose(path: Path, arrays: Sequence[FoundArray], variable: str | None) -> FoundArray:
    cubes = [array for array in arrays if len(array.shape) == 3 and array.dtype.kind in "iuf" and 0 not in array.shape]
    if variable is not None:
        named = [array for array in arrays if array.name.strip("/") == variable.strip("/")]
        if not named:
            raise OptionError(f"no variable {variable!r} in {path}", f"one of {_listed(arrays)}")
        if named[0] not in cubes:
            raise CubeFileError(
                f"{variable} in {path} is {_described(named[0])}", "a 3-D array of numbers", f"there are {_listed(cubes)}"
            )
        return named[0]
    if not cubes:
        raise CubeFileError(
            f"no 3-D array of numbers in {path}; it holds {_listed(arrays)}", "one 3-D array", "export the cube itself"
        )
    if len(cubes) > 1:
        raise CubeFileError(f"{len(cubes)} 3-D arrays in {path}", "one", f"name it with --variable: {_listed(cubes)}")
    return cubes[0]


def _side_arrays(found: FoundArray, arrays: Sequence[FoundArray]) -> dict[str, FoundArray]:
    """Small arrays by their short names; those of the cube's own group win over those further away."""
    small = [array for array in arrays if array is not found and int(np.prod(array.shape)) <= LARGEST_SIDE_ARRAY]
    group = found.name.rpartition("/")[0]
    small.sort(key=lambda array: array.name.rpartition("/")[0] == group)
    return {array.short_name: array for array in small}


def _axes(found: FoundArray, sides: Mapping[str, FoundArray], band_axis: int | None, default: int | None) -> tuple[int, int, int]:
    if band_axis is not None:
        if not -3 <= band_axis < 3:
            raise OptionError(f"band axis {band_axis}", "0, 1 or 2")
        band = band_axis % 3
    else:
        band = _band_axis(found, sides, default)
    y, x = (axis for axis in range(3) if axis != band)
    if found.dims and found.dims[y].lower() in ("x", "lon", "longitude", "columns", "samples"):
        y, x = x, y
    return band, y, x


def _band_axis(found: FoundArray, sides: Mapping[str, FoundArray], default: int | None) -> int:
    if found.dims:
        labelled = [axis for axis, dim in enumerate(found.dims) if BAND_DIM.fullmatch(dim)]
        if labelled:
            return labelled[0]
    for name in WAVELENGTH_NAMES:
        count = int(np.prod(sides[name].shape)) if name in sides else 0
        matching = [axis for axis in range(3) if found.shape[axis] == count]
        if count and len(matching) == 1:
            return matching[0]
    if default is not None:
        return default % 3
    # Unlabelled: a first axis shorter than both others is the bands of a band-sequential array.
    return 0 if found.shape[0] < min(found.shape[1:]) else 2


def _lengths(path: Path, sides: Mapping[str, FoundArray], names: Sequence[str], bands: int) -> NDArray[np.float64] | None:
    for name in names:
        if name in sides and sides[name].dtype.kind in "iuf":
            array = sides[name]
            values = array.values().astype(np.float64).ravel()
            if values.size == 0:
                continue
            _require_length(path, array.name, values.size, bands)
            if np.isnan(values).all():
                return None
            suffix = next((unit for unit in ("nm", "um") if name.endswith(f"_{unit}")), None)
            unit = suffix or _text(array.attributes.get("units")) or _text(array.attributes.get("unit"))
            return to_nanometres(values, unit, str(path))
    return None


def _column(path: Path, sides: Mapping[str, FoundArray], names: Sequence[str], bands: int) -> NDArray[Any] | None:
    for name in names:
        if name in sides and sides[name].dtype.kind in "iufb":
            values = sides[name].values().ravel()
            if values.size:
                _require_length(path, sides[name].name, values.size, bands)
                return values
    return None


def _names(sides: Mapping[str, FoundArray], bands: int) -> list[str] | None:
    for name in NAME_NAMES:
        if name in sides:
            values = [_text(value) or "" for value in np.atleast_1d(sides[name].values()).ravel()]
            if len(values) == bands:
                return values
            if len(values) == 1 and values[0].startswith("["):
                listed = json.loads(values[0])
                return [str(entry) for entry in listed] if len(listed) == bands else None
    return None


def _place(found: FoundArray, sides: Mapping[str, FoundArray]) -> tuple[CRS | None, Affine | None]:
    mapping = _text(found.attributes.get("grid_mapping")) or "spatial_ref"
    reference = sides[mapping.lower()].attributes if mapping.lower() in sides else {}
    wkt = _text(reference.get("crs_wkt")) or _text(reference.get("spatial_ref")) or _text(_scalar(sides, "crs_wkt"))
    numbers = _text(reference.get("GeoTransform")) or _text(_scalar(sides, "geo_transform"))
    try:
        crs = CRS.from_wkt(wkt) if wkt else None
    except CRSError:
        crs = None
    if numbers:
        return crs, Affine.from_gdal(*(float(number) for number in numbers.split()))
    return crs, _transform_from_axes(sides)


def _transform_from_axes(sides: Mapping[str, FoundArray]) -> Affine | None:
    """Pixel centres on evenly spaced x and y axes make a transform."""
    axes = []
    for names in (("x", "lon", "longitude"), ("y", "lat", "latitude")):
        side = next((sides[name] for name in names if name in sides and len(sides[name].shape) == 1), None)
        if side is None or side.shape[0] < 2 or side.dtype.kind not in "iuf":
            return None
        centres = side.values().astype(np.float64)
        step = (centres[-1] - centres[0]) / (centres.size - 1)
        if step == 0 or not np.allclose(np.diff(centres), step, rtol=1e-3):
            return None
        axes.append((centres[0] - step / 2, step))
    (left, step_x), (top, step_y) = axes
    return Affine(step_x, 0.0, left, 0.0, step_y, top)


def _own_attributes(sides: Mapping[str, FoundArray]) -> dict[str, Any]:
    text = _text(_scalar(sides, "attributes"))
    try:
        stored = json.loads(text) if text else {}
    except ValueError:
        stored = {}
    texts = {key: _text(_scalar(sides, key)) for key in ("sensor", "wavelength_source")}
    return {key: value for key, value in texts.items() if value} | stored


def _texts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that describe the scene, without those that describe the storage."""
    storage = {
        "grid_mapping",
        "coordinates",
        "DIMENSION_LIST",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_ARRAY_DIMENSIONS",
        "CLASS",
        "NAME",
    }
    kept = {key: value for key, value in attributes.items() if key not in storage and not key.startswith("MATLAB")}
    return {key: text if (text := _text(value)) is not None else value for key, value in kept.items()}


def _scalar(sides: Mapping[str, FoundArray], name: str) -> Any:
    values = sides[name].values().ravel() if name in sides else np.empty(0)
    return values[0] if values.size == 1 else None


def _text(value: Any) -> str | None:
    if isinstance(value, np.ndarray):
        value = value.ravel()[0] if value.size == 1 else None
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value) if isinstance(value, str) else None


def _fitting_nodata(value: Any, dtype: np.dtype[Any]) -> float | None:
    if value is None:
        return None
    number = np.asarray(value).ravel()
    if number.size != 1 or number.dtype.kind not in "iuf":
        return None
    nodata = number[0].item()
    if dtype.kind == "f":
        return float(nodata)
    limits = np.iinfo(dtype)
    return int(nodata) if nodata == nodata and limits.min <= nodata <= limits.max else None


def _require_length(path: Path, name: str, entries: int, bands: int) -> None:
    if entries != bands:
        raise BandError(f"{path}: {name} list of {entries} entries for {bands} bands", f"{bands} entries", "mend or remove it")


def _described(array: FoundArray) -> str:
    return f"{array.name} ({'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype})"


def _listed(arrays: Sequence[FoundArray]) -> str:
    shown = [_described(array) for array in arrays[:8]]
    return ", ".join(shown) + (f" and {len(arrays) - 8} more" if len(arrays) > 8 else "") if shown else "nothing"
