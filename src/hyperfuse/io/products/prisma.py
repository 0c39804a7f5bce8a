"""PRISMA: one HDF-EOS5 file with a VNIR and a SWIR cube, both (row, band, column) with decreasing wavelengths.

L2D is orthorectified. L1, L2B and L2C are in sensor geometry and placed on a map by the latitude and longitude of each
pixel. Slots of the arrays whose wavelength is zero have no band and are left out.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from affine import Affine

from hyperfuse.errors import CubeFileError
from hyperfuse.io.arrays import transposed
from hyperfuse.io.cube import WindowReader
from hyperfuse.io.hdf5 import LoadDataset, opened_hdf5
from hyperfuse.io.products.product import Band, MapGrid, Product, ProductFile, ProductFiles, identity, make_product
from hyperfuse.io.products.swath import (
    ANY_ARRAY,
    SENSOR_GEOMETRY,
    Hdf5Metadata,
    NearestLookup,
    joined,
    on_map,
)

KEY = re.compile(r"PRS_L\w+\.he5", re.IGNORECASE)
SWATHS = "HDFEOS/SWATHS"
DETECTORS = ("VNIR", "SWIR")
PANCHROMATIC = "PAN"
PIXEL, PAN_PIXEL = 30.0, 5.0
FILL = 0
LARGEST_COUNT = 65535
QUANTITIES = {
    "L1": "radiance at the sensor, W m-2 sr-1 um-1",
    "L2B": "radiance at the ground, W m-2 sr-1 um-1",
    "L2C": "surface reflectance",
    "L2D": "surface reflectance",
}


def open_prisma(files: ProductFiles, key: ProductFile, variable: str | None) -> Product | None:
    """Return None for a file of another product, or a variable that is the name of an array."""
    with opened_hdf5(key.local_path()) as source:
        level = _read_level(source)
    chosen = (variable or "").upper()
    if level is None or chosen not in ("", SENSOR_GEOMETRY.upper(), PANCHROMATIC, *DETECTORS):
        return None
    metadata = Hdf5Metadata(key)
    others = [*DETECTORS, PANCHROMATIC, *([] if level == "L2D" else [SENSOR_GEOMETRY]), ANY_ARRAY]
    scene = metadata.text("Product_Name") or key.base_name
    notes = {}
    if chosen == PANCHROMATIC:
        bands, reader, grid = _open_panchromatic(metadata, level)
        scene = f"{scene}, panchromatic (400-700 nm)"
    else:
        detectors = [chosen] if chosen in DETECTORS else DETECTORS
        parts = [_open_detector(detector, metadata, level) for detector in detectors]
        bands = [band for part in parts for band in part[0]]
        is_swath = chosen == SENSOR_GEOMETRY.upper()
        reader, grid = _place(joined(tuple(part[1:] for part in parts)), metadata, level, sensor_geometry=is_swath)
        if level != "L2D" and not is_swath:
            notes["geometry"] = "map, nearest pixel by latitude and longitude"
        unused = sum(part.shape[0] - len(slots) for _, part, slots in parts)
        notes["left out"] = f"{unused} slots without a wavelength"
    return make_product(
        reader,
        bands,
        identity(f"PRISMA {level}", "PRISMA", metadata.text("Product_StartTime"), QUANTITIES[level]),
        scene,
        nodata=FILL,
        grid=grid,
        flagged="by List_Cw_..._Flags",
        others=others,
        notes=notes,
    )


def _read_level(source: Any) -> str | None:
    swaths = source.get(SWATHS, {})
    names = [re.fullmatch(r"PRS_(L\d[ABCD]?)_HCO", name) for name in (swaths.keys() if hasattr(swaths, "keys") else ())]
    return next((name[1] for name in names if name and name[1] in QUANTITIES), None)


def _open_detector(
    detector: str, metadata: Hdf5Metadata, level: str
) -> tuple[list[Band], WindowReader, tuple[int, ...]]:
    """Return the bands by increasing wavelength, the reader of all slots of the array, and the slots of the bands."""
    array = metadata.array(f"{SWATHS}/PRS_{level}_HCO/Data Fields/{detector}_Cube", (None, None, None))
    suffix = detector.capitalize()
    wavelength, fwhm = (metadata.numbers(f"List_{kind}_{suffix}") for kind in ("Cw", "Fwhm"))
    if not array.shape[1] == wavelength.size == fwhm.size:
        problem = f": {detector}_Cube has {array.shape[1]} bands, {wavelength.size} wavelengths, {fwhm.size} widths"
        raise metadata.file.damaged(problem, "one of each for every band")
    flags = f"List_Cw_{suffix}_Flags"
    good = np.ones(wavelength.size, dtype=bool)
    if flags in metadata.attributes and metadata.numbers(flags).size == good.size:
        good = metadata.numbers(flags) != 0
    scaling = _scaling(metadata, level, suffix)
    slots = [int(slot) for slot in np.argsort(wavelength, kind="stable") if wavelength[slot] > 0]
    bands = [
        Band(f"{detector} {slot + 1}", wavelength[slot], fwhm[slot], *scaling, good=bool(good[slot]), detector=detector)
        for slot in slots
    ]
    return bands, transposed(array, (1, 0, 2)), tuple(slots)


def _scaling(metadata: Hdf5Metadata, level: str, suffix: str) -> tuple[float, float]:
    """Return scale and offset: L1 stores (radiance + offset) * factor, L2 maps minimum and maximum to 0 and 65535."""
    if level == "L1":
        return 1 / (metadata.number(f"ScaleFactor_{suffix}") or 1.0), -metadata.number(f"Offset_{suffix}")
    lowest, highest = (metadata.number(f"L2Scale{suffix}{end}") for end in ("Min", "Max"))
    return (highest - lowest) / LARGEST_COUNT, lowest


def _place(
    reader: WindowReader, metadata: Hdf5Metadata, level: str, *, sensor_geometry: bool
) -> tuple[WindowReader, MapGrid]:
    if level == "L2D":
        return reader, _map_grid(metadata, reader.shape[1:], PIXEL)
    if sensor_geometry:
        return reader, (None, None)
    tables = []
    for coordinate in ("Latitude", "Longitude"):
        name = f"{SWATHS}/PRS_{level}_HCO/Geolocation Fields/{coordinate}{'_VNIR' if level == 'L1' else ''}"
        if name not in metadata.arrays or metadata.arrays[name].shape != reader.shape[1:]:
            got = f"{metadata.file} has no {name} for its pixels"
            remedy = f"add --variable {SENSOR_GEOMETRY} to read it in sensor geometry"
            raise CubeFileError(got, "coordinates of each pixel", remedy)
        tables.append(LoadDataset(metadata.file, name))
    lookup = NearestLookup.covering(tables[0], tables[1], PIXEL)
    return on_map(reader, lookup, FILL), (lookup.crs, lookup.transform)


def _open_panchromatic(metadata: Hdf5Metadata, level: str) -> tuple[list[Band], WindowReader, MapGrid]:
    array = metadata.array(f"{SWATHS}/PRS_{level}_PCO/Data Fields/Cube", (None, None))
    bands = [Band("PAN", 550.0, 300.0, *_scaling(metadata, level, "Pan"))]
    grid = _map_grid(metadata, array.shape, PAN_PIXEL) if level == "L2D" else (None, None)
    return bands, transposed(array.as_cube(), (0, 1, 2)), grid


def _map_grid(metadata: Hdf5Metadata, shape: tuple[int, ...], pixel: float) -> MapGrid:
    """Compute the grid from the corners: centres of the corner pixels at 30 m, or edges of the image."""
    crs = metadata.crs("Epsg_Code", int(metadata.number("Epsg_Code")))
    left, top, right, bottom = (
        metadata.number(f"Product_{corner}corner_{axis}") for corner in ("UL", "LR") for axis in ("easting", "northing")
    )
    pixels_x, pixels_y = shape[1] * pixel / PIXEL, shape[0] * pixel / PIXEL
    # By how many metres the corners miss the image if they are `gap` pixels less than its size apart.
    errors = {
        gap: max(abs(right - left - PIXEL * (pixels_x - gap)), abs(top - bottom - PIXEL * (pixels_y - gap)))
        for gap in (1, 0)
    }
    gap = min(errors, key=lambda gap: errors[gap])
    if errors[gap] > PIXEL / 2:
        problem = f": its corners are {right - left:g} x {top - bottom:g} m apart"
        raise metadata.file.damaged(problem, f"{pixels_x:g} x {pixels_y:g} pixels of {PIXEL:g} m")
    return crs, Affine(pixel, 0.0, left - gap * PIXEL / 2, 0.0, -pixel, top + gap * PIXEL / 2)
