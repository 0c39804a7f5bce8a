"""Hyperion on EO-1: L1T and L1Gst, a GeoTIFF for each of 242 bands; and other cubes of it without wavelengths.

Neither the GeoTIFFs nor the metadata of Hyperion have wavelengths, but they are the same for all scenes (USGS). Bands
1-70 are VNIR, 71-242 SWIR; only 8-57 and 77-224 are calibrated, the others are zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hyperfuse.errors import CubeFileError
from hyperfuse.io.cube import wavelengths_nm
from hyperfuse.io.products.product import (
    SENSOR_BANDS,
    Band,
    MtlMetadata,
    Product,
    ProductFile,
    ProductFiles,
    describe,
    identity,
    make_product,
)
from hyperfuse.io.products.rasters import is_envi_or_tiff, open_layer, read_info, select_bands, stack
from hyperfuse.io.raster import open_raster

WAVELENGTH_NM, FWHM_NM = np.array(list(SENSOR_BANDS["Hyperion"].values())).T
_NUMBERS = np.arange(1, 243)
GOOD = ((_NUMBERS >= 8) & (_NUMBERS <= 57)) | ((_NUMBERS >= 77) & (_NUMBERS <= 224))

METADATA = r"(EO1H\w+?)_MTL(?:_L1\w+\.TXT|\.L1\w+)"
FIRST_BAND = r"(EO1H\w+?)_B001_L1\w+\.TIF"
KEY = re.compile(f"{METADATA}|{FIRST_BAND}", re.IGNORECASE)
BAND = re.compile(r"(EO1H\w+?)_B(\d{3})_(L1\w+)\.TIF", re.IGNORECASE)
IMAGE = re.compile(r"EO1H\w{18}.*|.*\.L1R", re.IGNORECASE)
SETS = {"VNIR": [f"B{number}" for number in range(1, 71)], "SWIR": [f"B{number}" for number in range(71, 243)]}
BANDS = [*SETS["VNIR"], *SETS["SWIR"]]
LIST = "a list such as B8,B9,B10"
QUANTITY = "radiance at the sensor, W m-2 sr-1 um-1"
FLAGGED = "not calibrated (only 8-57 and 77-224 are)"
FILL = 0.0


def choose_keys(keys: Iterable[ProductFile]) -> list[ProductFile]:
    """Keep the metadata file of each scene; without any, the first band."""
    keys = list(keys)
    return [key for key in keys if not BAND.fullmatch(key.base_name)] or keys


def open_hyperion(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    mtl = None if BAND.fullmatch(key.base_name) else MtlMetadata(key)
    images, level = _band_images(files, key)
    chosen = BANDS if variable is None else select_bands(variable, SETS, BANDS, images, files.path)
    if chosen is None:
        return Product(open_layer(files, variable or "", [*SETS, LIST]))
    reader, first = stack([read_info(images[name]) for name in chosen])
    acquired = mtl.get("PRODUCT_METADATA", "ACQUISITION_DATE") if mtl else None
    return make_product(
        reader,
        [_band(name, mtl) for name in chosen],
        identity(f"Hyperion {level}", "Hyperion", acquired, QUANTITY),
        key.base_name.partition("_")[0],
        nodata=FILL,
        grid=first.grid,
        flagged=FLAGGED,
        others=[*SETS, LIST],
    )


def open_image(files: ProductFiles, image: ProductFile, variable: str | None) -> Product | None:
    """Add the wavelengths to a cube of all 242 or the 198 calibrated bands that has none; None for any other file."""
    path = Path(image.container)
    if path.suffix.lower() == ".l1r":
        got = f"{path} is Hyperion L1R in HDF4, which is not supported"
        raise CubeFileError(got, "L1T or L1Gst in GeoTIFF, or ENVI", "convert it with gdal_translate")
    if variable is not None or BAND.fullmatch(path.name) or not is_envi_or_tiff(path):
        return None
    cube = open_raster(path)
    kept = {GOOD.size: np.ones_like(GOOD), int(GOOD.sum()): GOOD}.get(cube.sizes["band"])
    if kept is None or wavelengths_nm(cube) is not None:
        return None
    columns = {"wavelength": WAVELENGTH_NM[kept], "fwhm": FWHM_NM[kept], "good": GOOD[kept] & cube["good"].values}
    cube = cube.assign_coords({name: ("band", column) for name, column in columns.items()})
    cube.attrs = identity("Hyperion", "Hyperion", None, "") | cube.attrs
    return Product(cube, describe(cube, f"{path.name}: wavelengths from the band table of the sensor", (), FLAGGED))


def _band_images(files: ProductFiles, key: ProductFile) -> tuple[dict[str, ProductFile], str]:
    match = KEY.fullmatch(key.base_name)
    scene = (match[1] or match[2]).upper() if match else ""
    images: dict[str, ProductFile] = {}
    level = ""
    for file in files:
        band = BAND.fullmatch(file.base_name)
        if band and band[1].upper() == scene:
            images[f"B{int(band[2])}"] = file
            level = band[3].upper()
    missing = [name for name in BANDS if name not in images]
    if missing:
        raise files.incomplete(f"{missing[0]} of {scene} (and {len(missing) - 1} more bands)")
    return images, level


def _band(name: str, mtl: MtlMetadata | None) -> Band:
    index = int(name[1:]) - 1
    detector = "VNIR" if name in SETS["VNIR"] else "SWIR"
    factor = 40.0 if detector == "VNIR" else 80.0
    tag = f"SCALING_FACTOR_{detector}"
    if mtl and mtl.get("RADIANCE_SCALING", tag):
        factor = mtl.number("RADIANCE_SCALING", tag)
        if factor <= 0:
            raise mtl.file.damaged(f": {tag} is {factor:g}", "a positive number")
    label = f"B{index + 1:03d} {detector}"
    return Band(label, WAVELENGTH_NM[index], FWHM_NM[index], 1 / factor, good=bool(GOOD[index]), detector=detector)
