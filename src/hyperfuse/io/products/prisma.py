"""PRISMA: one HDF-EOS5 file with a VNIR and a SWIR cube, both (row, band, column) with falling wavelengths.

L2D lies on a map. L1, L2B and L2C are in the sensor's geometry with a latitude and longitude for each pixel, by which
they are placed on one. Slots of the arrays whose wavelength is zero hold no band and are left out; the others keep
their slot's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.errors import CubeFileError
from hyperfuse.io.arrays import FoundArray, TransposedReader
from hyperfuse.io.cube import make_cube
from hyperfuse.io.lazy import WindowReader, lazy_variable
from hyperfuse.io.products.delivery import DeliveredFile, Delivery
from hyperfuse.io.products.product import Product, detector_note, flag_note, formula, identity, selection_note
from hyperfuse.io.products.swath import (
    Attributes,
    JoinedReader,
    LoadDelivered,
    LookedUpReader,
    arrays_of,
    nearest_lookup,
    opened_attributes,
)

KEY = re.compile(r"PRS_L\w+\.he5", re.IGNORECASE)
SWATHS = "HDFEOS/SWATHS"
DETECTORS = ("VNIR", "SWIR")
SELECTIONS = (*DETECTORS, "PAN")
SWATH = "SWATH"
PIXEL, PAN_PIXEL = 30.0, 5.0
FILL = 0
LARGEST_COUNT = 65535
QUANTITIES = {
    "L1": "radiance at the sensor, W m-2 sr-1 um-1",
    "L2B": "radiance at the ground, W m-2 sr-1 um-1",
    "L2C": "surface reflectance",
    "L2D": "surface reflectance",
}


@dataclass(frozen=True)
class Detector:
    """The bands of one cube, from short waves to long ones."""

    name: str
    reader: TransposedReader
    slots: NDArray[np.int64]
    wavelength_nm: NDArray[np.float64]
    fwhm_nm: NDArray[np.float64]
    good: NDArray[np.bool_]
    scale: float
    offset: float


def is_prisma(source: Any) -> bool:
    """Of an open HDF5 file."""
    return _swath_level(source) is not None


def open_prisma(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product | None:
    """None for a variable that is an array of the file: that is read as of any other container."""
    chosen = (variable or "").upper()
    if chosen not in ("", SWATH, *SELECTIONS):
        return None
    arrays = {found.name: found for found in arrays_of(key)}
    with opened_attributes(key) as attributes:
        level = _swath_level(attributes.source)
        if level is None:
            return None
        if chosen == "PAN":
            return _panchromatic(arrays, attributes, level)
        names = (chosen,) if chosen in DETECTORS else DETECTORS
        detectors = [_detector(name, arrays, attributes, level) for name in names]
        return _joined(detectors, attributes, level, on_map=chosen != SWATH)


def _swath_level(source: Any) -> str | None:
    swaths = source.get(SWATHS, {})
    names = [re.fullmatch(r"PRS_(L\d[ABCD]?)_HCO", name) for name in (swaths.keys() if hasattr(swaths, "keys") else ())]
    return next((name[1] for name in names if name and name[1] in QUANTITIES), None)


def _detector(name: str, arrays: dict[str, FoundArray], attributes: Attributes, level: str) -> Detector:
    cube = _array(arrays, f"{SWATHS}/PRS_{level}_HCO/Data Fields/{name}_Cube", attributes, dimensions=3)
    word = name.capitalize()
    wavelength, fwhm = (attributes.numbers(f"List_{kind}_{word}") for kind in ("Cw", "Fwhm"))
    if not cube.shape[1] == wavelength.size == fwhm.size:
        raise CubeFileError(
            f"{attributes.file.shown}: {name}_Cube has {cube.shape[1]} bands, {wavelength.size} wavelengths, {fwhm.size} widths",
            "one of each for every band",
            "fetch it again",
        )
    flags = (
        attributes.numbers(f"List_Cw_{word}_Flags")
        if f"List_Cw_{word}_Flags" in attributes
        else np.ones(wavelength.size)
    )
    slots = np.flatnonzero(wavelength > 0)
    slots = slots[np.argsort(wavelength[slots], kind="stable")]
    good = flags[slots] != 0 if flags.size == wavelength.size else np.ones(slots.size, dtype=bool)
    scale, offset = _scaling(attributes, level, word)
    return Detector(name, TransposedReader(cube, (1, 0, 2)), slots, wavelength[slots], fwhm[slots], good, scale, offset)


def _scaling(attributes: Attributes, level: str, word: str) -> tuple[float, float]:
    """L1 stores (radiance + offset) * factor; level 2 spreads the range from its minimum to its maximum over the
    counts.
    """
    if level == "L1":
        return 1 / (attributes.number(f"ScaleFactor_{word}") or 1.0), -attributes.number(f"Offset_{word}")
    lowest, highest = (attributes.number(f"L2Scale{word}{end}") for end in ("Min", "Max"))
    return (highest - lowest) / LARGEST_COUNT, lowest


def _joined(detectors: list[Detector], attributes: Attributes, level: str, *, on_map: bool) -> Product:
    wavelength, fwhm, good = (
        np.concatenate([getattr(detector, column) for detector in detectors])
        for column in ("wavelength_nm", "fwhm_nm", "good")
    )
    counts = [detector.slots.size for detector in detectors]
    reader: WindowReader = JoinedReader(
        tuple((detector.reader, tuple(map(int, detector.slots))) for detector in detectors)
    )
    reader, crs, transform, geometry = _placed(reader, attributes, level, on_map=on_map)
    quantity = QUANTITIES[level]
    cube = make_cube(
        lazy_variable(reader),
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        good=good,
        band_names=[f"{detector.name} {slot + 1}" for detector in detectors for slot in detector.slots],
        scale=np.repeat([detector.scale for detector in detectors], counts),
        offset=np.repeat([detector.offset for detector in detectors], counts),
        nodata=FILL,
        crs=crs,
        transform=transform,
        attributes=_identity(attributes, level, quantity),
    )
    unused = sum(detector.reader.shape[0] - detector.slots.size for detector in detectors)
    notes = {
        "product": f"PRISMA {level}, {_name(attributes)}",
        "detectors": detector_note([d.name for d in detectors for _ in d.slots], wavelength)
        + f"; {unused} unused slots left out",
        "scaling": "; ".join(f"{d.name} {formula(d.scale, d.offset)}" for d in detectors),
        "flags": flag_note(good, "List_Cw_..._Flags say so"),
        "geometry": geometry,
        "also in it": selection_note([*SELECTIONS, *([] if level == "L2D" else ["swath"]), "or the name of any array"]),
    }
    return Product(cube, notes)


def _placed(
    reader: WindowReader, attributes: Attributes, level: str, *, on_map: bool
) -> tuple[WindowReader, CRS | None, Affine | None, str]:
    if level == "L2D":
        return reader, _crs(attributes), _map_transform(attributes, reader.shape[1:], PIXEL), "on a map"
    if not on_map:
        return reader, None, None, "that of the sensor, without a place on the map"
    folder = f"{SWATHS}/PRS_{level}_HCO/Geolocation Fields"
    tail = "_VNIR" if level == "L1" else ""
    tables = []
    for word in ("Latitude", "Longitude"):
        name = f"{folder}/{word}{tail}"
        if name not in attributes.source or attributes.source[name].shape != reader.shape[1:]:
            raise CubeFileError(
                f"{attributes.file.shown} has no {name} for its pixels",
                "a place for each",
                "add --variable swath to read it without",
            )
        tables.append(LoadDelivered(attributes.file, name))
    lookup = nearest_lookup(tables[0], tables[1], PIXEL)
    how = "placed on a map by the latitude and longitude of its pixels, each pixel of the map the nearest of them"
    return LookedUpReader(reader, lookup, FILL), lookup.crs, lookup.transform, how


def _panchromatic(arrays: dict[str, FoundArray], attributes: Attributes, level: str) -> Product:
    found = _array(arrays, f"{SWATHS}/PRS_{level}_PCO/Data Fields/Cube", attributes, dimensions=2)
    flat = FoundArray(found.name, (1, *found.shape), found.dtype, _OneBand(found))
    scale, offset = _scaling(attributes, level, "Pan")
    quantity = QUANTITIES[level]
    on_map = level == "L2D"
    cube = make_cube(
        lazy_variable(TransposedReader(flat, (0, 1, 2))),
        wavelength_nm=[550.0],
        fwhm_nm=[300.0],
        band_names=["PAN"],
        scale=scale,
        offset=offset,
        nodata=FILL,
        crs=_crs(attributes) if on_map else None,
        transform=_map_transform(attributes, found.shape, PAN_PIXEL) if on_map else None,
        attributes=_identity(attributes, level, quantity),
    )
    notes = {
        "product": f"PRISMA {level}, {_name(attributes)}, the panchromatic image (400-700 nm)",
        "scaling": formula(scale, offset),
        "geometry": "on a map" if on_map else "that of the sensor, without a place on the map",
    }
    return Product(cube, notes)


@dataclass(frozen=True)
class _OneBand:
    """A 2-D array as the one band of a cube."""

    found: FoundArray

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        return np.asarray(self.found.load(key[1:])[np.newaxis][key[0]])


def _array(arrays: dict[str, FoundArray], name: str, attributes: Attributes, dimensions: int) -> FoundArray:
    found = arrays.get(name)
    if found is None or len(found.shape) != dimensions or found.dtype.kind not in "iuf":
        raise CubeFileError(
            f"{attributes.file.shown} has no {name} of {dimensions} dimensions", "a whole product", "fetch it again"
        )
    return found


def _name(attributes: Attributes) -> str:
    return attributes.text("Product_Name") or attributes.file.base_name


def _identity(attributes: Attributes, level: str, quantity: str) -> dict[str, str]:
    return identity(f"PRISMA {level}", "PRISMA", attributes.text("Product_StartTime"), quantity)


def _crs(attributes: Attributes) -> CRS:
    code = attributes.number("Epsg_Code")
    try:
        # In this environment GDAL keeps its own complaints to itself.
        with rasterio.Env():
            return CRS.from_epsg(int(code))
    except CRSError as error:
        raise CubeFileError(
            f"{attributes.file.shown}: Epsg_Code is {code:g}", "a known one", "fetch it again"
        ) from error


def _map_transform(attributes: Attributes, shape: tuple[int, ...], pixel: float) -> Affine:
    """The corners are the centres of the corner pixels of the 30 m grid; the panchromatic image covers the same ground.

    Whoever wrote the edges of the image instead has them one pixel further apart.
    """
    corners = [
        attributes.number(f"Product_{corner}corner_{axis}")
        for corner in ("UL", "LR")
        for axis in ("easting", "northing")
    ]
    left, top, right, bottom = corners
    pixels_x, pixels_y = shape[1] * pixel / PIXEL, shape[0] * pixel / PIXEL
    # How far the corners are from where they belong, in metres.
    beyond = {
        gap: max(abs(right - left - PIXEL * (pixels_x - gap)), abs(top - bottom - PIXEL * (pixels_y - gap)))
        for gap in (1, 0)
    }
    gap = min(beyond, key=lambda gap: beyond[gap])
    if beyond[gap] > PIXEL / 2:
        raise CubeFileError(
            f"{attributes.file.shown}: its corners are {right - left:g} x {top - bottom:g} m apart",
            f"{pixels_x:g} x {pixels_y:g} pixels of {PIXEL:g} m",
            "fetch it again",
        )
    return Affine(pixel, 0.0, left - gap * PIXEL / 2, 0.0, -pixel, top + gap * PIXEL / 2)
