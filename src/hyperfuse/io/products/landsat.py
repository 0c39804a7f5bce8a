"""Landsat 4 to 9, Level 1 and 2: a GeoTIFF for each band and an MTL file (.txt, .json or .xml).

Collection 2 is read as it is; the metadata of Collection 1 and of scenes before the collections are renamed to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.products.product import (
    SENSOR_BANDS,
    Band,
    BandTable,
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
PAN, CIRRUS = "B8", "B9"
SENSORS: dict[str, BandTable] = {name: table for name, table in SENSOR_BANDS.items() if name.startswith("Landsat")}
THERMAL_NM = 3000.0
LIST = "a list such as B2,B3,B4"
FILL = 0.0
COLLECTION_1 = "PRODUCT_METADATA"
LEVEL_1 = "LEVEL1_RADIOMETRIC_RESCALING"
# Groups of scenes before 2012, whose keys end in BAND1; 61 and 62 are the two gains of band 6.
FORMER_GROUPS = ("PRODUCT_PARAMETERS", "MIN_MAX_RADIANCE", "MIN_MAX_PIXEL_VALUE")
FORMER_FILE = re.compile(r"BAND(\d)(\d?)_FILE_NAME")
RADIANCE = ("radiance at the sensor, W m-2 sr-1 um-1", LEVEL_1, "RADIANCE")
# By level and whether the band is thermal: the quantity, and the group and name of its scaling.
QUANTITIES = {
    ("L1", False): ("reflectance at the top of the atmosphere", LEVEL_1, "REFLECTANCE"),
    ("L1", True): RADIANCE,
    ("L2", False): ("surface reflectance", "LEVEL2_SURFACE_REFLECTANCE_PARAMETERS", "REFLECTANCE"),
    ("L2", True): ("surface temperature, K", "LEVEL2_SURFACE_TEMPERATURE_PARAMETERS", "TEMPERATURE"),
}


def sets_of(table: BandTable) -> dict[str, list[str]]:
    """The selections of a sensor's bands that have a name."""
    thermal = [band for band in table if table[band][0] > THERMAL_NM]
    reflective = [band for band in table if band not in (*thermal, PAN, CIRRUS)]
    return {"reflective": reflective, "pan": [PAN] if PAN in table else [], "thermal": thermal}


def choose_keys(keys: Iterable[ProductFile]) -> list[ProductFile]:
    """Keep one of the three forms in which the metadata of a scene come."""
    forms = ("xml", "json", "txt")
    preferred = sorted(keys, key=lambda key: forms.index(key.base_name.rpartition(".")[2].lower()))
    return list({key.name.rpartition(".")[0]: key for key in preferred}.values())


def open_landsat(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    mtl = MtlMetadata(key)
    if COLLECTION_1 in mtl.groups:
        _rename_to_collection_2(mtl)
    level = mtl.text("PRODUCT_CONTENTS", "PROCESSING_LEVEL")
    sensor = re.sub(r"LANDSAT_?", "Landsat-", mtl.text("IMAGE_ATTRIBUTES", "SPACECRAFT_ID").upper())
    instrument = mtl.get("IMAGE_ATTRIBUTES", "SENSOR_ID") or ""
    if sensor not in SENSORS or instrument.startswith("MSS"):
        raise CubeFileError(f"{key} is of {sensor} {instrument}".rstrip(), f"TM, ETM+ or OLI of {', '.join(SENSORS)}")
    table = SENSORS[sensor]
    images = _band_images(mtl, table)
    sets = {name: held for name, bands in sets_of(table).items() if (held := [b for b in bands if b in images])}
    chosen = select_bands(variable or "reflective", sets, list(table), images, files.path)
    if chosen is None:
        return Product(open_layer(files, variable or "", [*sets, LIST]))
    is_thermal = {table[band][0] > THERMAL_NM for band in chosen}
    if len(is_thermal) > 1:
        got = f"{', '.join(chosen)} of {files.path}"
        raise OptionError(got, "bands of one kind, reflective or thermal", "choose one kind")
    reader, finest = stack([read_info(files.require(images[band], key.base_name)) for band in chosen])
    quantity, group, term = _quantity(mtl, level, is_thermal.pop())
    sine = _sine_of_elevation(mtl) if (group, term) == (LEVEL_1, "REFLECTANCE") else 1.0
    scalings = [_scaling(mtl, band, group, term) for band in chosen]
    bands = [
        Band(band, *table[band], scale / sine, offset / sine, good=band != CIRRUS)
        for band, (scale, offset) in zip(chosen, scalings, strict=True)
    ]
    date, time = (mtl.get("IMAGE_ATTRIBUTES", name) for name in ("DATE_ACQUIRED", "SCENE_CENTER_TIME"))
    notes = {"bands": f"{', '.join(chosen)} of {', '.join(images)}"}
    if sine != 1.0:
        scaling = format_scaling(bands[0].scale, bands[0].offset)
        notes["scaling"] = f"{scaling} (divided by the sine of the sun's elevation)"
    return make_product(
        reader,
        bands,
        identity(f"Landsat {level}", sensor, f"{date}T{time}" if date and time else date, quantity),
        mtl.get("PRODUCT_CONTENTS", "LANDSAT_PRODUCT_ID") or key.base_name,
        nodata=FILL,
        grid=finest.grid,
        flagged="B9 (cirrus) does not see the ground",
        others=[*sets, LIST, *(name for name in layer_names(files) if "QA" in name)],
        notes=notes,
    )


def _rename_to_collection_2(mtl: MtlMetadata) -> None:
    groups, product = mtl.groups, mtl.groups[COLLECTION_1]
    former: dict[str, str] = {}
    for name in FORMER_GROUPS:
        former |= groups.get(name, {})
    level = product.get("DATA_TYPE") or product.get("PRODUCT_TYPE", "")
    date = product.get("ACQUISITION_DATE", "")
    groups["PRODUCT_CONTENTS"] = {"PROCESSING_LEVEL": level} | groups.get("METADATA_FILE_INFO", {}) | product
    groups["IMAGE_ATTRIBUTES"] = {"DATE_ACQUIRED": date} | former | product | groups.get("IMAGE_ATTRIBUTES", {})
    groups[LEVEL_1] = groups.get("RADIOMETRIC_RESCALING", {})
    for key in list(product):
        if match := FORMER_FILE.fullmatch(key):
            band = f"{match[1]}_VCID_{match[2]}" if match[2] else match[1]
            groups["PRODUCT_CONTENTS"][f"FILE_NAME_BAND_{band}"] = product[key]
            low, high, first, last = (
                mtl.file.parse_number(former.get(f"{term}_BAND{match[1]}{match[2]}", ""), term)
                for term in ("LMIN", "LMAX", "QCALMIN", "QCALMAX")
            )
            scale = (high - low) / (last - first) if last > first else math.nan
            groups[LEVEL_1][f"RADIANCE_MULT_BAND_{band}"] = str(scale)
            groups[LEVEL_1][f"RADIANCE_ADD_BAND_{band}"] = str(low - scale * first)


def _band_images(mtl: MtlMetadata, table: BandTable) -> dict[str, str]:
    contents = mtl.groups["PRODUCT_CONTENTS"]
    names = {
        band: contents.get(f"FILE_NAME_BAND_{band[1:]}", contents.get(f"FILE_NAME_BAND_ST_{band}")) for band in table
    }
    return {band: name for band, name in names.items() if name}


def _quantity(mtl: MtlMetadata, level: str, is_thermal: bool) -> tuple[str, str, str]:
    quantity = QUANTITIES["L2" if level.startswith("L2") else "L1", is_thermal]
    # Early metadata of TM and ETM+ have no scaling to reflectance.
    has_reflectance = any(key.startswith("REFLECTANCE_MULT") for key in mtl.groups.get(LEVEL_1, {}))
    return quantity if quantity[1] != LEVEL_1 or has_reflectance else RADIANCE


def _scaling(mtl: MtlMetadata, band: str, group: str, term: str) -> tuple[float, float]:
    number = f"ST_{band}" if term == "TEMPERATURE" else band[1:]
    return mtl.number(group, f"{term}_MULT_BAND_{number}"), mtl.number(group, f"{term}_ADD_BAND_{number}")


def _sine_of_elevation(mtl: MtlMetadata) -> float:
    """Level 1 reflectance is stored for a sun at the zenith and is divided by this."""
    elevation = mtl.number("IMAGE_ATTRIBUTES", "SUN_ELEVATION")
    sine = math.sin(math.radians(elevation))
    if sine <= 0:
        got = f"{mtl.file}: SUN_ELEVATION is {elevation:g}"
        raise CubeFileError(got, "a sun above the horizon", "choose --variable thermal")
    return sine
