"""Landsat 8 and 9, Level 1 and 2: a GeoTIFF for each band and an MTL file (.txt, .json or .xml).

Collection 2 is read as it is; the metadata of Collection 1 and of scenes before the collections are renamed to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.products.product import (
    Band,
    MtlMetadata,
    Product,
    ProductFile,
    ProductFiles,
    format_scaling,
    identity,
    make_product,
)
from hyperfuse.io.products.rasters import layer_names, open_layer, read_info, select_bands, stack

KEY = re.compile(r"(?!EO1)[\w.-]*MTL\.(txt|json|xml)", re.IGNORECASE)
# How the text form begins, whatever its name: GROUP = LANDSAT_METADATA_FILE, GROUP = L1_METADATA_FILE.
SIGNATURE = b"GROUP = L"
# Centre and FWHM in nm: OLI after Barsi et al. 2014, the others from the SRFs published by USGS.
BANDS = ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B10", "B11")
OLI_NM = (442.96, 482.04, 561.41, 654.59, 864.67, 1608.86, 2200.73, 589.5, 1373.43, 10889.7, 12005.2)
OLI_FWHM_NM = (15.98, 60.04, 57.33, 37.47, 28.25, 84.72, 186.66, 172.4, 20.39, 580.8, 997.9)
OLI2_NM = (442.7, 481.8, 561.0, 654.3, 864.6, 1608.1, 2200.1, 589.2, 1374.1, 10825.9, 12036.8)
OLI2_FWHM_NM = (15.5, 59.9, 56.3, 36.7, 28.7, 86.1, 189.5, 172.6, 20.8, 746.3, 918.2)
SENSORS = {"LANDSAT_8": ("Landsat-8", OLI_NM, OLI_FWHM_NM), "LANDSAT_9": ("Landsat-9", OLI2_NM, OLI2_FWHM_NM)}
THERMAL = ("B10", "B11")
SETS = {"reflective": ("B1", "B2", "B3", "B4", "B5", "B6", "B7"), "pan": ("B8",), "thermal": THERMAL}
CIRRUS = "B9"
LIST = "a list such as B2,B3,B4"
FILL = 0.0
COLLECTION_1 = "PRODUCT_METADATA"
LEVEL_1 = "LEVEL1_RADIOMETRIC_RESCALING"
# By level and whether the band is thermal: the quantity, and the group and name of its scaling.
QUANTITIES = {
    ("L1", False): ("reflectance at the top of the atmosphere", LEVEL_1, "REFLECTANCE"),
    ("L1", True): ("radiance at the sensor, W m-2 sr-1 um-1", LEVEL_1, "RADIANCE"),
    ("L2", False): ("surface reflectance", "LEVEL2_SURFACE_REFLECTANCE_PARAMETERS", "REFLECTANCE"),
    ("L2", True): ("surface temperature, K", "LEVEL2_SURFACE_TEMPERATURE_PARAMETERS", "TEMPERATURE"),
}


def choose_keys(keys: Iterable[ProductFile]) -> list[ProductFile]:
    """Keep one of the three forms in which the metadata of a scene come."""
    forms = ("xml", "json", "txt")
    preferred = sorted(keys, key=lambda key: forms.index(key.base_name.rpartition(".")[2].lower()))
    return list({key.name.rpartition(".")[0]: key for key in preferred}.values())


def open_landsat(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    mtl = MtlMetadata(key)
    if COLLECTION_1 in mtl.groups:
        _rename_to_collection_2(mtl.groups)
    level = mtl.text("PRODUCT_CONTENTS", "PROCESSING_LEVEL")
    spacecraft = mtl.text("IMAGE_ATTRIBUTES", "SPACECRAFT_ID")
    if spacecraft not in SENSORS:
        raise CubeFileError(f"{key} is of {spacecraft}", "LANDSAT_8 or LANDSAT_9")
    sensor, wavelengths, widths = SENSORS[spacecraft]
    images = _band_images(mtl)
    sets = {name: held for name, bands in SETS.items() if (held := [band for band in bands if band in images])}
    chosen = select_bands(variable or "reflective", sets, BANDS, images, files.path)
    if chosen is None:
        return Product(open_layer(files, variable or "", [*sets, LIST]))
    thermal = chosen[0] in THERMAL
    if any((band in THERMAL) != thermal for band in chosen):
        got = f"{', '.join(chosen)} of {files.path}"
        raise OptionError(got, "bands of one kind, reflective or thermal", "choose one kind")
    reader, finest = stack([read_info(files.require(images[band], key.base_name)) for band in chosen])
    bands = [
        Band(band, wavelengths[index], widths[index], *_scaling(band, mtl), good=band != CIRRUS)
        for band, index in zip(chosen, map(BANDS.index, chosen), strict=True)
    ]
    date, time = (mtl.get("IMAGE_ATTRIBUTES", name) for name in ("DATE_ACQUIRED", "SCENE_CENTER_TIME"))
    acquired = f"{date}T{time}" if date and time else date
    quantity = QUANTITIES["L2" if level.startswith("L2") else "L1", thermal][0]
    notes = {"bands": f"{', '.join(chosen)} of {', '.join(images)}"}
    if not level.startswith("L2") and not thermal:
        scaling = format_scaling(bands[0].scale, bands[0].offset)
        notes["scaling"] = f"{scaling} (divided by the sine of the sun's elevation)"
    return make_product(
        reader,
        bands,
        identity(f"Landsat {level}", sensor, acquired, quantity),
        mtl.get("PRODUCT_CONTENTS", "LANDSAT_PRODUCT_ID") or key.base_name,
        nodata=FILL,
        grid=finest.grid,
        flagged="B9 (cirrus) does not see the ground",
        others=[*sets, LIST, *(name for name in layer_names(files) if "QA" in name)],
        notes=notes,
    )


def _rename_to_collection_2(groups: dict[str, dict[str, str]]) -> None:
    product = groups[COLLECTION_1]
    level = product.get("DATA_TYPE", "")
    groups["PRODUCT_CONTENTS"] = {"PROCESSING_LEVEL": level} | groups.get("METADATA_FILE_INFO", {}) | product
    groups["IMAGE_ATTRIBUTES"] = product | groups.get("IMAGE_ATTRIBUTES", {})
    groups[LEVEL_1] = groups.get("RADIOMETRIC_RESCALING", {})


def _band_images(mtl: MtlMetadata) -> dict[str, str]:
    contents = mtl.groups["PRODUCT_CONTENTS"]
    names = {
        band: contents.get(f"FILE_NAME_BAND_{band[1:]}", contents.get(f"FILE_NAME_BAND_ST_{band}")) for band in BANDS
    }
    return {band: name for band, name in names.items() if name}


def _scaling(band: str, mtl: MtlMetadata) -> tuple[float, float]:
    """Return scale and offset; Level 1 reflectance is stored for a sun at the zenith and corrected here."""
    level = "L2" if mtl.text("PRODUCT_CONTENTS", "PROCESSING_LEVEL").startswith("L2") else "L1"
    _, group, name = QUANTITIES[level, band in THERMAL]
    number = f"ST_{band}" if name == "TEMPERATURE" else band[1:]
    scale, offset = (mtl.number(group, f"{name}_{term}_BAND_{number}") for term in ("MULT", "ADD"))
    if level == "L2" or band in THERMAL:
        return scale, offset
    elevation = mtl.number("IMAGE_ATTRIBUTES", "SUN_ELEVATION")
    sine = math.sin(math.radians(elevation))
    if sine <= 0:
        got = f"{mtl.file}: SUN_ELEVATION is {elevation:g}"
        raise CubeFileError(got, "a sun above the horizon", "choose --variable thermal")
    return scale / sine, offset / sine
