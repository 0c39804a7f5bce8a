"""Landsat 8 and 9, Collection 2, Level 1 and 2: a GeoTIFF for each band and an MTL file (.txt, .json or .xml)."""

from __future__ import annotations

import math
import re

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.products.delivery import DeliveredFile, Delivery
from hyperfuse.io.products.product import (
    Groups,
    Product,
    entry,
    flag_note,
    formula,
    identity,
    number_of,
    read_groups,
    selection_note,
)
from hyperfuse.io.products.rasters import BandFile, band_cube, chosen_bands, layer, layer_names

KEY = re.compile(r"L[CO]0[89]_L[12]\w\w_\w+_MTL\.(txt|json|xml)", re.IGNORECASE)
# Middle and width at half of the maximum, nm: OLI as in Barsi et al. 2014, the others from the responses that USGS
# publishes.
OLI = {
    "B1": (442.96, 15.98),
    "B2": (482.04, 60.04),
    "B3": (561.41, 57.33),
    "B4": (654.59, 37.47),
    "B5": (864.67, 28.25),
    "B6": (1608.86, 84.72),
    "B7": (2200.73, 186.66),
    "B8": (589.50, 172.40),
    "B9": (1373.43, 20.39),
    "B10": (10889.7, 580.8),
    "B11": (12005.2, 997.9),
}
OLI2 = {
    "B1": (442.7, 15.5),
    "B2": (481.8, 59.9),
    "B3": (561.0, 56.3),
    "B4": (654.3, 36.7),
    "B5": (864.6, 28.7),
    "B6": (1608.1, 86.1),
    "B7": (2200.1, 189.5),
    "B8": (589.2, 172.6),
    "B9": (1374.1, 20.8),
    "B10": (10825.9, 746.3),
    "B11": (12036.8, 918.2),
}
SENSORS = {"LANDSAT_8": ("Landsat-8", OLI), "LANDSAT_9": ("Landsat-9", OLI2)}
REFLECTIVE = ("B1", "B2", "B3", "B4", "B5", "B6", "B7")
THERMAL = ("B10", "B11")
SETS = {"reflective": REFLECTIVE, "pan": ("B8",), "thermal": THERMAL}
CIRRUS = "B9"
LIST = "a list such as B2,B3,B4"
ROOT_OF_COLLECTION_1 = "PRODUCT_METADATA"


def open_landsat(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product:
    groups = read_groups(key)
    if ROOT_OF_COLLECTION_1 in groups:
        raise CubeFileError(
            f"{key.shown} is of Landsat Collection 1", "Collection 2", "fetch the scene from Collection 2"
        )
    level = entry(groups, "PRODUCT_CONTENTS", "PROCESSING_LEVEL", key)
    spacecraft = entry(groups, "IMAGE_ATTRIBUTES", "SPACECRAFT_ID", key)
    if spacecraft not in SENSORS:
        raise CubeFileError(f"{key.shown} is of {spacecraft}", "LANDSAT_8 or LANDSAT_9")
    sensor, wavelengths = SENSORS[spacecraft]
    files = _band_files(groups)
    sets = {name: held for name, bands in SETS.items() if (held := [band for band in bands if band in files])}
    chosen = chosen_bands(variable or "reflective", sets, list(OLI))
    if chosen is None:
        assert variable is not None
        return Product(layer(delivery, variable, [*sets, LIST]))
    lost = [band for band in chosen if band not in files]
    if lost or not chosen:
        raise OptionError(f"no {', '.join(lost) or variable} in {delivery.path}", f"some of {', '.join(files)}")
    _refuse_mixture(chosen, delivery)
    bands = []
    for band in chosen:
        file = delivery.require(files[band], key.base_name)
        bands.append(BandFile(band, file, *wavelengths[band], *_scaling(band, groups, key), good=band != CIRRUS))
    quantity = _quantity(chosen[0], level)
    cube = band_cube(bands, identity(f"Landsat {level}", sensor, _acquired(groups), quantity))
    sun = " (divided by the sine of the sun's elevation)" if "top" in quantity else ""
    notes = {
        "product": f"Landsat Collection 2 {level}, {groups['PRODUCT_CONTENTS'].get('LANDSAT_PRODUCT_ID', key.base_name)}",
        "bands": f"{', '.join(chosen)} of {', '.join(files)}",
        "scaling": f"{formula(bands[0].scale, bands[0].offset)}{sun}",
        "flags": flag_note(cube["good"].values, "B9 sees clouds, not the ground"),
        "also in it": selection_note([*sets, LIST, *_quality_layers(delivery)]),
    }
    return Product(cube, notes)


def _band_files(groups: Groups) -> dict[str, str]:
    contents = groups["PRODUCT_CONTENTS"]
    named = {
        band: contents.get(f"FILE_NAME_BAND_{band[1:]}", contents.get(f"FILE_NAME_BAND_ST_{band}")) for band in OLI
    }
    return {band: name for band, name in named.items() if name}


def _scaling(band: str, groups: Groups, key: DeliveredFile) -> tuple[float, float]:
    """Level 1: reflectance for a sun in the zenith, divided here by the sine of its elevation, or radiance of thermal
    bands.
    """
    if groups["PRODUCT_CONTENTS"]["PROCESSING_LEVEL"].startswith("L2"):
        if band in THERMAL:
            return _pair(groups, "LEVEL2_SURFACE_TEMPERATURE_PARAMETERS", "TEMPERATURE", f"ST_{band}", key)
        return _pair(groups, "LEVEL2_SURFACE_REFLECTANCE_PARAMETERS", "REFLECTANCE", band[1:], key)
    if band in THERMAL:
        return _pair(groups, "LEVEL1_RADIOMETRIC_RESCALING", "RADIANCE", band[1:], key)
    scale, offset = _pair(groups, "LEVEL1_RADIOMETRIC_RESCALING", "REFLECTANCE", band[1:], key)
    elevation = number_of(entry(groups, "IMAGE_ATTRIBUTES", "SUN_ELEVATION", key), "SUN_ELEVATION", key)
    sine = math.sin(math.radians(elevation))
    if sine <= 0:
        raise CubeFileError(
            f"{key.shown}: SUN_ELEVATION is {elevation:g}", "a sun above the horizon", "choose --variable thermal"
        )
    return scale / sine, offset / sine


def _pair(groups: Groups, group: str, quantity: str, band: str, key: DeliveredFile) -> tuple[float, float]:
    names = [f"{quantity}_{word}_BAND_{band}" for word in ("MULT", "ADD")]
    scale, offset = (number_of(entry(groups, group, name, key), name, key) for name in names)
    return scale, offset


def _quantity(band: str, level: str) -> str:
    if level.startswith("L2"):
        return "surface temperature, K" if band in THERMAL else "surface reflectance"
    return "radiance at the sensor, W m-2 sr-1 um-1" if band in THERMAL else "reflectance at the top of the atmosphere"


def _refuse_mixture(chosen: list[str], delivery: Delivery) -> None:
    thermal = [band for band in chosen if band in THERMAL]
    if thermal and len(thermal) < len(chosen):
        raise OptionError(
            f"{', '.join(chosen)} of {delivery.path}", "bands of one kind, reflective or thermal", "choose one kind"
        )


def _acquired(groups: Groups) -> str | None:
    facts = groups.get("IMAGE_ATTRIBUTES", {})
    date, time = facts.get("DATE_ACQUIRED"), facts.get("SCENE_CENTER_TIME", "")
    return f"{date}T{time}" if date and time else date


def _quality_layers(delivery: Delivery) -> list[str]:
    return [name for name in layer_names(delivery) if "QA" in name]
