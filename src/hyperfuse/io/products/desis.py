"""DESIS: L2A, L1C and L1B, one image of up to 235 bands and its METADATA.xml."""

from __future__ import annotations

import re

import numpy as np

from hyperfuse.errors import CubeFileError
from hyperfuse.io.products.delivery import DeliveredFile, Delivery
from hyperfuse.io.products.enmap import BandWords, find_image, image_cube, read_band_table, scaling_note
from hyperfuse.io.products.product import Product, XmlMetadata, flag_note, identity, selection_note
from hyperfuse.io.products.rasters import layer, layer_names

KEY = re.compile(r"DESIS-HSI-.*-METADATA\.xml", re.IGNORECASE)
IMAGE = re.compile(r"(DESIS-HSI-.*)-SPECTRAL_IMAGE\.(tiff?|hdr)", re.IGNORECASE)
WORDS = BandWords("band", "wavelengthWidthOfBand", "gainOfBand", "offsetOfBand")
QUANTITIES = {
    "L2A": "surface reflectance",
    "L1C": "radiance at the sensor, mW cm-2 sr-1 um-1",
    "L1B": "radiance at the sensor, mW cm-2 sr-1 um-1",
}


def open_desis(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    level = (re.search(r"-(L\d[ABC])-", key.base_name) or ["", ""])[1]
    if level not in QUANTITIES:
        raise CubeFileError(f"{key.shown} is DESIS of level {level or 'unknown'}", f"one of {', '.join(QUANTITIES)}")
    if variable is not None:
        return Product(layer(delivery, variable, ()))
    table = read_band_table(xml, WORDS)
    good = np.ones(table.gain.size, dtype=bool)
    quantity = QUANTITIES[level]
    facts = identity(f"DESIS {level}", "DESIS", xml.text("base/temporalCoverage/startTime"), quantity)
    names = [f"B{number:03d}" for number in range(1, table.gain.size + 1)]
    image = find_image(delivery, key, "SPECTRAL_IMAGE")
    cube = image_cube(image, table, xml, good, names, facts)
    notes = {
        "product": f"DESIS {level}, {key.base_name.partition('-METADATA')[0]}",
        "detectors": f"one of {table.gain.size} bands",
        "scaling": scaling_note(table),
        "flags": flag_note(good, ""),
        "also in it": selection_note(layer_names(delivery, [image])),
    }
    return Product(cube, notes)
