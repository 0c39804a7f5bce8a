"""Hyperion on EO-1: L1T and L1Gst, a GeoTIFF for each of 242 bands; and cubes of it whose makers left the wavelengths out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import xarray as xr

from hyperfuse.cubes.cube import wavelengths_nm
from hyperfuse.cubes.products import hyperion_bands as table
from hyperfuse.cubes.products.band_files import BandFile, band_cube, chosen_bands
from hyperfuse.cubes.products.delivery import DeliveredFile, Delivery
from hyperfuse.cubes.products.metadata import Groups, number_of, read_groups
from hyperfuse.cubes.products.product import Product, detector_note, flag_note, identity, selection_note
from hyperfuse.cubes.products.rasters import layer
from hyperfuse.errors import CubeFileError

METADATA = re.compile(r"(EO1H\w+?)_MTL(_L1\w+\.TXT|\.L1\w+)", re.IGNORECASE)
BAND = re.compile(r"(EO1H\w+?)_B(\d{3})_(L1\w+)\.TIF", re.IGNORECASE)
CUBE = re.compile(r"EO1H\w{18}.*", re.IGNORECASE)
SCALING = "RADIANCE_SCALING"
QUANTITY = "radiance at the sensor, W m-2 sr-1 um-1"
WHY_BAD = "not calibrated (only 8-57 and 77-224 are)"
SETS = {
    "VNIR": [f"B{number}" for number in range(1, table.VNIR_BANDS + 1)],
    "SWIR": [f"B{number}" for number in range(table.VNIR_BANDS + 1, table.BANDS + 1)],
}
ALL = [*SETS["VNIR"], *SETS["SWIR"]]


def hyperion_keys(delivery: Delivery) -> list[DeliveredFile]:
    """The metadata file of each scene, or where that is missing, its first band."""
    metadata = [file for file in delivery if METADATA.fullmatch(file.base_name)]
    first_bands = [file for file in delivery if (band := BAND.fullmatch(file.base_name)) and band[2] == "001"]
    return metadata or first_bands


def open_hyperion(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product:
    named = METADATA.fullmatch(key.base_name)
    groups: Groups = read_groups(key) if named else {}
    files, level = _band_files(delivery, key, groups)
    chosen = ALL if variable is None else chosen_bands(variable, SETS, ALL)
    if chosen is None:
        assert variable is not None
        return Product(layer(delivery, variable, [*SETS, "a list such as B8,B9"]))
    numbers = np.array([int(band[1:]) for band in chosen])
    factors = {detector: _factor(detector, groups, key) for detector in SETS}
    detectors = ["VNIR" if number <= table.VNIR_BANDS else "SWIR" for number in numbers]
    bands = [
        BandFile(
            name=f"B{number:03d} {detector}",
            file=files[number],
            wavelength_nm=table.WAVELENGTH_NM[number - 1],
            fwhm_nm=table.FWHM_NM[number - 1],
            scale=1 / factors[detector],
            good=bool(table.GOOD[number - 1]),
        )
        for number, detector in zip(numbers.tolist(), detectors, strict=True)
    ]
    acquired = groups.get("PRODUCT_METADATA", {}).get("ACQUISITION_DATE")
    cube = band_cube(bands, identity(f"Hyperion {level}", "Hyperion", acquired, QUANTITY))
    notes = {
        "product": f"Hyperion {level}, {key.base_name.partition('_')[0]}",
        "detectors": detector_note(detectors, cube["wavelength"].values),
        "scaling": f"stored / {factors['VNIR']:g} (VNIR), stored / {factors['SWIR']:g} (SWIR)",
        "flags": flag_note(cube["good"].values, WHY_BAD),
        "also in it": selection_note([*SETS, "a list such as B8,B9,B10"]),
    }
    return Product(cube, notes)


def completed(cube: xr.DataArray, path: Path) -> Product | None:
    """A cube of all 242 bands, or of the 198 calibrated ones, that says nothing of its wavelengths; None for any other."""
    kept = {table.BANDS: np.ones(table.BANDS, dtype=bool), int(table.GOOD.sum()): table.GOOD}.get(cube.sizes["band"])
    if kept is None or wavelengths_nm(cube) is not None:
        return None
    columns = {"wavelength": table.WAVELENGTH_NM[kept], "fwhm": table.FWHM_NM[kept], "good": table.GOOD[kept] & cube["good"].values}
    cube = cube.assign_coords({name: ("band", column) for name, column in columns.items()})
    cube.attrs = identity("Hyperion", "Hyperion", None, "") | cube.attrs
    notes = {
        "product": f"Hyperion, {path.name}: wavelengths from the table of the sensor's bands",
        "flags": flag_note(cube["good"].values, WHY_BAD),
    }
    return Product(cube, notes)


def refuse_hdf4(path: Path) -> None:
    if path.suffix.lower() == ".l1r":
        raise CubeFileError(
            f"{path} is Hyperion L1R in HDF4, which is not read",
            "L1T or L1Gst in GeoTIFF, or ENVI",
            "convert it with gdal_translate",
        )


def _band_files(delivery: Delivery, key: DeliveredFile, groups: Groups) -> tuple[dict[int, DeliveredFile], str]:
    scene = (METADATA.fullmatch(key.base_name) or BAND.fullmatch(key.base_name) or ["", ""])[1].upper()
    files: dict[int, DeliveredFile] = {}
    level = ""
    for file in delivery:
        found = BAND.fullmatch(file.base_name)
        if found and found[1].upper() == scene:
            files[int(found[2])] = file
            level = found[3].upper()
    for name in groups.get("PRODUCT_METADATA", {}).values():
        if BAND.fullmatch(name):
            delivery.require(name, key.base_name)
    missing = [number for number in range(1, table.BANDS + 1) if number not in files]
    if missing:
        raise CubeFileError(
            f"{delivery.path} is incomplete: {len(missing)} of {table.BANDS} bands are missing, the first is B{missing[0]:03d}",
            "the whole product",
            "fetch it again",
        )
    return files, level


def _factor(detector: str, groups: Groups, key: DeliveredFile) -> float:
    name = f"SCALING_FACTOR_{detector}"
    text = groups.get(SCALING, {}).get(name)
    factor = number_of(text, name, key) if text else {"VNIR": 40.0, "SWIR": 80.0}[detector]
    if factor <= 0:
        raise CubeFileError(f"{key.shown}: {name} is {factor:g}", "more than zero", "fetch it again")
    return factor
