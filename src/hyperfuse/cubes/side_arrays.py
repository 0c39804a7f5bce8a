"""What the small arrays and attributes beside a cube tell about its bands, values and place. What makes no sense is left out."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from pyproj.exceptions import CRSError as ProjectionError
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.cubes.found_arrays import FoundArray, Sides
from hyperfuse.cubes.transforms import transform_from_axes, transform_from_text
from hyperfuse.cubes.units import lengths_in_nanometres
from hyperfuse.errors import BandError

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
    """The list under one of these names; a list that does not fit the bands is an error, a table or nothing at all is not."""
    for name in candidates:
        side = sides.get(name)
        if side is not None and side.dtype.kind in "iuf" and side.size and side.size == max(side.shape, default=1):
            if side.size != bands:
                raise BandError(
                    f"{path}: {side.name} list of {side.size} entries for {bands} bands", f"{bands} entries", "mend or remove it"
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
            warnings.warn(f"{path}: {side.name} has {side.size} entries for {bands} bands and is left out", stacklevel=4)
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
