"""EMIT: NetCDF-4 in the sensor's geometry, with a table that says which of its pixels belongs to each pixel of a map."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import rasterio
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.errors import CubeFileError
from hyperfuse.io.arrays import FoundArray, TransposedReader
from hyperfuse.io.cube import fitting_nodata, make_cube
from hyperfuse.io.lazy import WindowReader, lazy_variable
from hyperfuse.io.products.delivery import DeliveredFile, Delivery
from hyperfuse.io.products.product import Product, flag_note, identity, selection_note
from hyperfuse.io.products.swath import (
    Attributes,
    LoadDelivered,
    LookedUpReader,
    StoredLookup,
    arrays_of,
    opened_attributes,
)

KEY = re.compile(r"EMIT_L\d\w_(RFL|RAD)_\w+\.nc", re.IGNORECASE)
PARAMETERS = "sensor_band_parameters"
TABLES = ("location/glt_x", "location/glt_y")
CUBES = {
    "reflectance": ("L2A", "surface reflectance"),
    "radiance": ("L1B", "radiance at the sensor, uW cm-2 sr-1 nm-1"),
    "reflectance_uncertainty": ("L2A", "uncertainty of the surface reflectance"),
}
SWATH = "SWATH"
FILL = -9999.0


def is_emit(source: Any) -> bool:
    """Of an open HDF5 file."""
    return all(table in source for table in TABLES) and any(name in source for name in CUBES)


def open_emit(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product | None:
    """None for a variable that is an array of the file: that is read as of any other container."""
    with opened_attributes(key) as attributes:
        if not is_emit(attributes.source) or (variable or SWATH).upper() not in (
            SWATH,
            *(name.upper() for name in CUBES),
        ):
            return None
        arrays = {found.name: found for found in arrays_of(key)}
        name = next(name for name in CUBES if name in arrays)
        return _opened(arrays, name, attributes, on_map=(variable or "").upper() != SWATH)


def _opened(arrays: dict[str, FoundArray], name: str, attributes: Attributes, *, on_map: bool) -> Product:
    found = arrays[name]
    if len(found.shape) != 3 or found.dtype.kind != "f":
        raise CubeFileError(
            f"{attributes.file.shown}: {name} is {found.dtype} of shape {found.shape}",
            "rows, columns and bands",
            "fetch it again",
        )
    level, quantity = CUBES[name]
    bands = found.shape[2]
    wavelength, fwhm = (_column(arrays, word, bands, attributes) for word in ("wavelengths", "fwhm"))
    flags = (
        _column(arrays, "good_wavelengths", bands, attributes)
        if f"{PARAMETERS}/good_wavelengths" in arrays
        else np.ones(bands)
    )
    fill = fitting_nodata(found.attributes.get("_FillValue", FILL), found.dtype)
    reader: WindowReader = TransposedReader(found, (2, 0, 1))
    place: dict[str, Any] = {}
    if on_map:
        lookup = _lookup(arrays, attributes)
        reader = LookedUpReader(reader, lookup, FILL if fill is None else fill)
        place = {"crs": _crs(attributes), "transform": _transform(attributes)}
    cube = make_cube(
        lazy_variable(reader),
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        good=flags != 0,
        nodata=fill,
        attributes=identity(f"EMIT {level}", "EMIT", attributes.text("time_coverage_start"), quantity),
        **place,
    )
    return Product(cube, _notes(cube, attributes, name, on_map=on_map))


def _notes(cube: xr.DataArray, attributes: Attributes, name: str, *, on_map: bool) -> dict[str, str]:
    level, _ = CUBES[name]
    return {
        "product": f"EMIT {level}, {attributes.text('granule_id') or attributes.file.base_name}",
        "detectors": f"one of {cube.sizes['band']} bands",
        "scaling": "stored as it is",
        "flags": flag_note(cube["good"].values, "good_wavelengths says so (water vapour)"),
        "geometry": "placed on a map by the table that is in it"
        if on_map
        else "that of the sensor, without a place on the map",
        "also in it": selection_note(["swath", "or the name of any array"]),
    }


def _column(arrays: dict[str, FoundArray], word: str, bands: int, attributes: Attributes) -> NDArray[np.float64]:
    found = arrays.get(f"{PARAMETERS}/{word}")
    if found is None or found.shape != (bands,) or found.dtype.kind not in "iufb":
        raise CubeFileError(
            f"{attributes.file.shown} has no {PARAMETERS}/{word} for {bands} bands", "a whole product", "fetch it again"
        )
    return found.values().astype(np.float64)


def _lookup(arrays: dict[str, FoundArray], attributes: Attributes) -> StoredLookup:
    columns, rows = (arrays[name] for name in TABLES)
    if rows.shape != columns.shape or len(rows.shape) != 2 or {rows.dtype.kind, columns.dtype.kind} - {"i", "u"}:
        raise CubeFileError(
            f"{attributes.file.shown}: {TABLES[0]} and {TABLES[1]} do not fit each other", "two tables of one size"
        )
    from_rows, from_columns = (LoadDelivered(attributes.file, found.name) for found in (rows, columns))
    return StoredLookup(from_rows, from_columns, shape=(rows.shape[0], rows.shape[1]))


def _crs(attributes: Attributes) -> CRS:
    wkt = attributes.text("spatial_ref")
    try:
        # In this environment GDAL keeps its own complaints to itself.
        with rasterio.Env():
            return CRS.from_wkt(wkt) if wkt else CRS.from_epsg(4326)
    except CRSError as error:
        raise CubeFileError(
            f"{attributes.file.shown}: spatial_ref is no coordinate system", "WKT", "fetch it again"
        ) from error


def _transform(attributes: Attributes) -> Affine:
    numbers = attributes.numbers("geotransform")
    if numbers.size != 6:
        raise CubeFileError(
            f"{attributes.file.shown}: geotransform holds {numbers.size} numbers", "6", "fetch it again"
        )
    return Affine.from_gdal(*map(float, numbers))
