"""From the arrays in a container to one cube: which array, and which of its axes are which.

The arrays in a container (HDF5, NetCDF, Zarr, .mat, .npz), not yet read, and windows of them.

What the small arrays and attributes beside a cube tell about its bands, values and place. What makes no sense is left
out.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from pyproj.exceptions import CRSError as ProjectionError
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.bands import lengths_in_nanometres
from hyperfuse.io.cube import fitting_nodata, make_cube
from hyperfuse.io.grid import transform_from_axes, transform_from_text
from hyperfuse.io.lazy import covering, delivered_dtype, lazy_variable, stretches


class LoadPart(Protocol):
    """Reads part of an n-dimensional array: `load((slice, slice, slice))`."""

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class InMemory:
    """`LoadPart` for an array that had to be read anyway."""

    array: NDArray[Any]

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        return np.asarray(self.array[key])


@dataclass(frozen=True, eq=False)
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

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

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
        parts = [self._read_stretch(part, rows, columns) for part in stretches(bands)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read_stretch(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        stretch, inner = covering(bands)
        key: list[Any] = [None, None, None]
        for axis, part in zip(self.axes, (stretch, rows, columns), strict=True):
            key[axis] = part
        values: NDArray[Any] = self.found.load(tuple(key)).transpose(self.axes)[inner]
        return values


Sides = Mapping[str, FoundArray]


WAVELENGTH_NAMES = ("wavelength_nm", "wavelength", "wavelengths", "wavelength_um")
# Names that may as well mean something else: they count where they fit.
VAGUE_WAVELENGTH_NAMES = ("wl", "wvl", "lambda", "centers", "band_centers")
LARGEST_SIDE_BYTES = 32 * 2**20
FWHM_NAMES = ("fwhm_nm", "fwhm", "fwhms", "fwhm_um")
GOOD_NAMES = ("good", "good_bands", "good_wavelengths", "bbl")
NAME_NAMES = ("band_name", "band_names")
SCALE_NAMES = ("band_scale", "scale")
OFFSET_NAMES = ("band_offset", "offset")
X_NAMES = ("x", "lon", "longitude")
Y_NAMES = ("y", "lat", "latitude")
# Attributes that describe the storage, or that have a place of their own in a cube.
STORAGE_ATTRIBUTES = {
    "CLASS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_ARRAY_DIMENSIONS",
    "_FillValue",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_nc3_strict",
    "add_offset",
    "coordinates",
    "grid_mapping",
    "missing_value",
    "scale_factor",
}
# The attributes of ours that a container cannot hold under their own names, as one JSON text.
OTHER_ATTRIBUTES = "hyperfuse_other_attributes"

Lengths = NDArray[np.float64]


def lengths(path: Path, sides: Sides, bands: int) -> tuple[Lengths | None, Lengths | None]:
    """Wavelengths and widths in nm."""
    centres = _vector(path, sides, WAVELENGTH_NAMES, bands) or _fitting_vector(sides, VAGUE_WAVELENGTH_NAMES, bands)
    widths = _vector(path, sides, FWHM_NAMES, bands) or _fitting_vector(sides, ("bandwidth",), bands)
    (wavelength, unit), (fwhm, fwhm_unit) = _with_unit(centres), _with_unit(widths)
    return lengths_in_nanometres(wavelength, fwhm, unit, fwhm_unit, str(path))


def good_bands(path: Path, sides: Sides, bands: int) -> NDArray[np.bool_] | None:
    values = _column(path, sides, GOOD_NAMES, bands)
    return None if values is None else values.astype(bool)


def scale_and_offset(path: Path, found: FoundArray, sides: Sides, bands: int) -> tuple[Any, Any]:
    """Per band where there are such arrays, else CF's two numbers for all."""
    scale = _column(path, sides, SCALE_NAMES, bands)
    offset = _column(path, sides, OFFSET_NAMES, bands)
    uniform_scale, uniform_offset = (_number(found.attributes.get(key)) for key in ("scale_factor", "add_offset"))
    return uniform_scale if scale is None else scale, uniform_offset if offset is None else offset


def names(sides: Sides, bands: int) -> list[str] | None:
    for name in NAME_NAMES:
        if name in sides:
            values = [text(value) or "" for value in np.atleast_1d(sides[name].values()).ravel()]
            if len(values) == 1 and values[0].startswith("["):
                listed = _json(values[0])
                if isinstance(listed, list) and len(listed) == bands:
                    return [str(entry) for entry in listed]
            if len(values) == bands:
                return values
    return None


def nodata(found: FoundArray, sides: Sides) -> Any:
    own = [found.attributes[key] for key in ("_FillValue", "missing_value") if key in found.attributes]
    return own[0] if own else _scalar(sides, "nodata")


def place(found: FoundArray, sides: Sides, axes: tuple[int, int, int]) -> tuple[CRS | None, Affine | None]:
    mapping = (text(found.attributes.get("grid_mapping")) or "spatial_ref").lower()
    reference = sides[mapping].attributes if mapping in sides else {}
    wkt = text(reference.get("crs_wkt")) or text(reference.get("spatial_ref")) or text(_scalar(sides, "crs_wkt"))
    crs = _crs_from_wkt(wkt) if wkt else _crs_from_cf(reference)
    numbers = text(reference.get("GeoTransform")) or text(_scalar(sides, "geo_transform"))
    transform = transform_from_text(numbers) if numbers else None
    if transform is not None:
        return crs, transform
    x, y = (_axis(found, sides, axis, candidates) for axis, candidates in ((axes[2], X_NAMES), (axes[1], Y_NAMES)))
    if x is None or y is None:
        return crs, None
    if crs is None and all((text(side.attributes.get("units")) or "").startswith("degrees_") for side in (x, y)):
        crs = CRS.from_epsg(4326)
    return crs, transform_from_axes(x.values().ravel(), y.values().ravel(), crs is not None)


def attributes(found: FoundArray, sides: Sides) -> dict[str, Any]:
    """Attributes that describe the scene, without those that describe the storage."""
    own = {
        key: value
        for key, value in found.attributes.items()
        if key not in STORAGE_ATTRIBUTES | {OTHER_ATTRIBUTES} and not key.startswith("MATLAB")
    }
    plain = {key: _plain(value) for key, value in own.items()}
    texts = {key: text(_scalar(sides, key)) for key in ("sensor", "wavelength_source")}
    named = {key: value for key, value in texts.items() if value}
    return plain | named | _table(found.attributes.get(OTHER_ATTRIBUTES)) | _table(_scalar(sides, "attributes"))


def text(value: Any) -> str | None:
    if isinstance(value, np.ndarray):
        value = value.ravel()[0] if value.size == 1 else None
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value).encode("utf-8", "replace").decode("utf-8", "replace") if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    decoded = text(value)
    if decoded is not None:
        return decoded
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _json(written: str | None) -> Any:
    try:
        return json.loads(written) if written else None
    except (ValueError, RecursionError):
        return None


def _table(value: Any) -> dict[str, Any]:
    table = _json(text(value))
    return table if isinstance(table, dict) else {}


def _vector(path: Path, sides: Sides, candidates: Sequence[str], bands: int) -> FoundArray | None:
    """The list under one of these names; a list that does not fit the bands is an error, a table or nothing at all is
    not.
    """
    for name in candidates:
        side = sides.get(name)
        if side is not None and side.dtype.kind in "iuf" and side.size and side.size == max(side.shape, default=1):
            if side.size != bands:
                raise BandError(
                    f"{path}: {side.name} list of {side.size} entries for {bands} bands",
                    f"{bands} entries",
                    "mend or remove it",
                )
            return side
    return None


def _fitting_vector(sides: Sides, candidates: Sequence[str], bands: int) -> FoundArray | None:
    present = [sides[name] for name in candidates if name in sides]
    return next((side for side in present if side.dtype.kind in "iuf" and side.size == bands), None)


def _with_unit(side: FoundArray | None) -> tuple[Lengths | None, str | None]:
    if side is None:
        return None, None
    suffix = next((unit for unit in ("nm", "um") if side.short_name.endswith(f"_{unit}")), None)
    unit = suffix or text(side.attributes.get("units")) or text(side.attributes.get("unit"))
    return side.values().astype(np.float64).ravel(), unit


def _column(path: Path, sides: Sides, candidates: Sequence[str], bands: int) -> NDArray[Any] | None:
    """One number per band, or one for all."""
    for side in (sides[name] for name in candidates if name in sides):
        if side.dtype.kind in "iufb" and side.size in (1, bands):
            values = side.values().ravel()
            return np.repeat(values, bands) if values.size == 1 else values
        if side.size:
            warnings.warn(
                f"{path}: {side.name} has {side.size} entries for {bands} bands and is left out", stacklevel=4
            )
    return None


def _axis(found: FoundArray, sides: Sides, axis: int, candidates: Sequence[str]) -> FoundArray | None:
    """The coordinates along an axis: those that carry its dimension's name, else those with a usual name."""
    labelled = (found.dims[axis].lower(),) if found.dims else ()
    for name in (*labelled, *candidates):
        side = sides.get(name)
        if side is not None and side.dtype.kind in "iuf" and side.shape == (found.shape[axis],):
            return side
    return None


def _crs_from_wkt(wkt: str) -> CRS | None:
    try:
        return CRS.from_wkt(wkt)
    except CRSError:
        return None


def _crs_from_cf(reference: Mapping[str, Any]) -> CRS | None:
    if "grid_mapping_name" not in reference:
        return None
    import pyproj

    try:
        return CRS.from_wkt(pyproj.CRS.from_cf(dict(reference)).to_wkt())
    except (ProjectionError, CRSError, KeyError, ValueError, TypeError):
        return None


def _number(value: Any) -> float | None:
    number = np.asarray(value).ravel() if value is not None else np.empty(0)
    return float(number[0]) if number.size == 1 and number.dtype.kind in "iuf" and math.isfinite(number[0]) else None


def _scalar(sides: Sides, name: str) -> Any:
    values = sides[name].values().ravel() if name in sides and sides[name].size == 1 else np.empty(0)
    return values[0] if values.size == 1 else None


BAND_DIM = re.compile(r"(?:n_?)?(?:bands?|wavelengths?|wl|lambda|spectral.*|channels?|wvl)", re.IGNORECASE)
X_DIM = re.compile(r"x|lon|longitude|columns?|cols?|samples?|easting|crosstrack|cross_track", re.IGNORECASE)
Y_DIM = re.compile(r"y|lat|latitude|rows?|lines?|northing|downtrack|down_track", re.IGNORECASE)
# Where nothing labels the axes: MATLAB and numpy people store (rows, columns, bands).
LAST = -1


def cube_from_arrays(
    path: Path,
    arrays: Sequence[FoundArray],
    variable: str | None,
    band_axis: int | None,
    default_band_axis: int | None = None,
) -> xr.DataArray:
    """The one 3-D array (or the one named), turned to (band, y, x), with what its neighbours tell about its bands and
    place.
    """
    found = _choose(path, arrays, variable)
    sides = _sides(found, arrays)
    reader = TransposedReader(found, _axes(found, sides, band_axis, default_band_axis))
    bands = reader.shape[0]
    wavelength, fwhm = lengths(path, sides, bands)
    scale, offset = scale_and_offset(path, found, sides, bands)
    crs, transform = place(found, sides, reader.axes)
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        good=good_bands(path, sides, bands),
        band_names=names(sides, bands),
        scale=scale,
        offset=offset,
        nodata=fitting_nodata(nodata(found, sides), delivered_dtype(found.dtype)),
        crs=crs,
        transform=transform,
        attributes=attributes(found, sides),
    )


def _choose(path: Path, arrays: Sequence[FoundArray], variable: str | None) -> FoundArray:
    cubes = [
        array for array in arrays if len(array.shape) == 3 and _holds_numbers(array.dtype) and min(array.shape) > 0
    ]
    if variable is not None:
        named = [array for array in arrays if _plain_chosen_array(array.name) == _plain_chosen_array(variable)]
        if not named:
            raise OptionError(f"no variable {variable!r} in {path}", f"one of {_listed(arrays)}")
        if named[0] not in cubes:
            raise CubeFileError(
                f"{variable} in {path} is {_described(named[0])}",
                "a 3-D array of numbers",
                f"there are {_listed(cubes)}",
            )
        return named[0]
    if not cubes:
        raise CubeFileError(
            f"no 3-D array of numbers in {path}; it holds {_listed(arrays)}", "one 3-D array", "export the cube itself"
        )
    if len(cubes) > 1:
        raise CubeFileError(
            f"{len(cubes)} 3-D arrays in {path}",
            "one",
            f"name it as --help says, such as with --variable: {_listed(cubes)}",
        )
    return cubes[0]


def _holds_numbers(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.itemsize <= 8


def _plain_chosen_array(name: str) -> str:
    """The fields of a MATLAB struct are `struct.field` in version 5 and `struct/field` in 7.3: one spelling for both."""
    return name.strip("/").replace("/", ".")


def _sides(found: FoundArray, arrays: Sequence[FoundArray]) -> Sides:
    """Small arrays by their short names; those of the cube's own group win over those further away."""
    small = [array for array in arrays if array is not found and array.nbytes <= LARGEST_SIDE_BYTES]
    group = _plain_chosen_array(found.name).rpartition(".")[0]
    small.sort(key=lambda array: _plain_chosen_array(array.name).rpartition(".")[0] == group)
    return {array.short_name: array for array in small}


def _axes(found: FoundArray, sides: Sides, band_axis: int | None, default: int | None) -> tuple[int, int, int]:
    if band_axis is not None:
        if not -3 <= band_axis < 3:
            raise OptionError(f"band axis {band_axis}", "0, 1 or 2")
        band = band_axis % 3
    else:
        band = _band_axis(found, sides, default)
    y, x = (axis for axis in range(3) if axis != band)
    if found.dims and (X_DIM.fullmatch(found.dims[y]) or Y_DIM.fullmatch(found.dims[x])):
        y, x = x, y
    return band, y, x


def _band_axis(found: FoundArray, sides: Sides, default: int | None) -> int:
    dims = found.dims or ("", "", "")
    labelled = [axis for axis, dim in enumerate(dims) if BAND_DIM.fullmatch(dim)]
    in_place = [axis for axis, dim in enumerate(dims) if X_DIM.fullmatch(dim) or Y_DIM.fullmatch(dim)]
    if labelled:
        return labelled[0]
    if len(in_place) == 2:
        return 3 - sum(in_place)
    for name in (*WAVELENGTH_NAMES, *VAGUE_WAVELENGTH_NAMES):
        count = sides[name].size if name in sides else 0
        matching = [axis for axis in range(3) if found.shape[axis] == count]
        if count and len(matching) == 1:
            return matching[0]
    if default is not None:
        return default % 3
    # Unlabelled: a first axis shorter than both others is the bands of a band-sequential array.
    return 0 if found.shape[0] < min(found.shape[1:]) else 2


def _described(array: FoundArray) -> str:
    return f"{array.name} ({'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype})"


def _listed(arrays: Sequence[FoundArray]) -> str:
    shown = [_described(array) for array in arrays[:8]]
    return ", ".join(shown) + (f" and {len(arrays) - 8} more" if len(arrays) > 8 else "") if shown else "nothing"
