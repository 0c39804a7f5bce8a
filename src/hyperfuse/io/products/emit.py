"""EMIT: NetCDF-4 in sensor geometry, with a geometry lookup table that places its pixels on a map."""

from __future__ import annotations

import re

import numpy as np
from affine import Affine

from hyperfuse.io.arrays import transposed
from hyperfuse.io.cube import fitting_nodata
from hyperfuse.io.hdf5 import LoadDataset, opened_hdf5
from hyperfuse.io.products.product import Band, MapGrid, Product, ProductFile, ProductFiles, identity, make_product
from hyperfuse.io.products.swath import ANY_ARRAY, SENSOR_GEOMETRY, Hdf5Metadata, StoredLookup, on_map

KEY = re.compile(r"EMIT_L\d\w_(RFL|RAD)_\w+\.nc", re.IGNORECASE)
BANDS = "sensor_band_parameters"
GLT_X, GLT_Y = "location/glt_x", "location/glt_y"
CUBES = {
    "reflectance": ("L2A", "surface reflectance"),
    "radiance": ("L1B", "radiance at the sensor, uW cm-2 sr-1 nm-1"),
    "reflectance_uncertainty": ("L2A", "uncertainty of the surface reflectance"),
}
FILL = -9999.0


def open_emit(files: ProductFiles, key: ProductFile, variable: str | None) -> Product | None:
    """Return None for a file of another product, or a variable that is the name of an array."""
    chosen = (variable or "").lower()
    with opened_hdf5(key.local_path()) as source:
        name = next((name for name in CUBES if name in source), None) if GLT_X in source and GLT_Y in source else None
    if name is None or chosen not in ("", SENSOR_GEOMETRY, *CUBES):
        return None
    metadata = Hdf5Metadata(key)
    array = metadata.array(name, (None, None, None), "f")
    count = array.shape[2]
    columns = [metadata.array(f"{BANDS}/{column}", (count,), "iufb").values() for column in ("wavelengths", "fwhm")]
    flags = f"{BANDS}/good_wavelengths"
    good = metadata.array(flags, (count,), "iufb").values() if flags in metadata.arrays else np.ones(count)
    bands = [
        Band("", float(wavelength), float(fwhm), good=bool(flag), detector="EMIT")
        for wavelength, fwhm, flag in zip(*columns, good, strict=True)
    ]
    fill = fitting_nodata(array.attributes.get("_FillValue", FILL), array.dtype)
    reader = transposed(array, (2, 0, 1))
    grid: MapGrid = (None, None)
    notes = {}
    if chosen != SENSOR_GEOMETRY:
        height, width = metadata.array(GLT_Y, (None, None), "iu").shape
        metadata.array(GLT_X, (height, width), "iu")
        lookup = StoredLookup(LoadDataset(key, GLT_Y), LoadDataset(key, GLT_X), (height, width))
        reader = on_map(reader, lookup, FILL if fill is None else fill)
        crs = metadata.crs("spatial_ref", metadata.text("spatial_ref") or "EPSG:4326")
        grid = crs, Affine.from_gdal(*map(float, metadata.numbers("geotransform", 6)))
        notes["geometry"] = "map, by the geometry lookup table of the product"
    level, quantity = CUBES[name]
    return make_product(
        reader,
        bands,
        identity(f"EMIT {level}", "EMIT", metadata.text("time_coverage_start"), quantity),
        metadata.text("granule_id") or key.base_name,
        nodata=fill,
        grid=grid,
        flagged="by good_wavelengths (water vapour)",
        others=[SENSOR_GEOMETRY, ANY_ARRAY],
        notes=notes,
    )
