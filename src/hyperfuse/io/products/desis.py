"""DESIS L2A, L1C and L1B: one image of up to 235 bands and its METADATA.xml."""

from __future__ import annotations

import re

from hyperfuse.errors import CubeFileError
from hyperfuse.io.products.enmap import BandTags, find_image, find_key, image_product, read_bands
from hyperfuse.io.products.product import Product, ProductFile, ProductFiles, XmlMetadata, identity
from hyperfuse.io.products.rasters import layer_names, open_layer

KEY = re.compile(r"DESIS-HSI-.*-METADATA\.xml", re.IGNORECASE)
IMAGE = re.compile(r"(DESIS-HSI-.*)-SPECTRAL_IMAGE\.(tiff?|hdr)", re.IGNORECASE)
TAGS = BandTags("band", "wavelengthWidthOfBand", "gainOfBand", "offsetOfBand")
RADIANCE = "radiance at the sensor, mW cm-2 sr-1 um-1"
QUANTITIES = {"L2A": "surface reflectance", "L1C": RADIANCE, "L1B": RADIANCE}


def open_desis(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    level = (re.search(r"-(L\d[ABC])-", key.base_name) or ["", ""])[1]
    if level not in QUANTITIES:
        raise CubeFileError(f"{key} is DESIS of level {level or 'unknown'}", f"one of {', '.join(QUANTITIES)}")
    if variable is not None:
        return Product(open_layer(files, variable, ()))
    bands = read_bands(xml, TAGS, detector="DESIS")
    attributes = identity(f"DESIS {level}", "DESIS", xml.text("base/temporalCoverage/startTime"), QUANTITIES[level])
    image = find_image(files, key, "SPECTRAL_IMAGE")
    return image_product(image, bands, xml, attributes, layer_names(files, [image]))


def open_image(files: ProductFiles, image: ProductFile, variable: str | None) -> Product | None:
    key = find_key(files, image, KEY)
    return open_desis(files, key, variable) if key else None
