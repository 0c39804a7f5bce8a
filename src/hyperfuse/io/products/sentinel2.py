"""Sentinel-2 L1C and L2A (.SAFE): a JPEG 2000 file for each band, of 10, 20 or 60 m, on nested grids."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError
from hyperfuse.io.products.product import (
    SENSOR_BANDS,
    Band,
    Product,
    ProductFile,
    ProductFiles,
    XmlMetadata,
    identity,
    make_product,
)
from hyperfuse.io.products.rasters import normalise_band_name, open_layer, read_info, select_bands, stack

KEY = re.compile(r"MTD_MSIL(1C|2A)\.xml", re.IGNORECASE)
RESOLUTIONS = {10: ("B2", "B3", "B4", "B8"), 20: ("B5", "B6", "B7", "B8A", "B11", "B12"), 60: ("B1", "B9", "B10")}
METRES = {band: metres for metres, bands in RESOLUTIONS.items() for band in bands}
# In the order of the band_id attribute.
BANDS = tuple(SENSOR_BANDS["Sentinel-2A"])
CIRRUS = "B10"
DEFAULT = "10m"
LIST = "a list such as B2,B8A,B11"
LAYER = re.compile(r"(SCL|MSK_CLDPRB|MSK_SNWPRB|AOT|WVP)_\d\dm$")
FILL = 0.0


def open_sentinel2(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    product = files.beside(key)
    level = key.base_name[len("MTD_MSI") : -len(".xml")].upper()
    images = _band_images(xml)
    sets = {f"{metres}m": [band for band in bands if band in images] for metres, bands in RESOLUTIONS.items()}
    sets["all"] = list(images)
    chosen = select_bands(variable or DEFAULT, sets, BANDS, images, files.path)
    if chosen is None:
        return Product(open_layer(product, variable or "", [*sets, LIST]))
    spacecraft = xml.text(".//SPACECRAFT_NAME") or "Sentinel-2A"
    quantity = "surface reflectance" if level == "L2A" else "reflectance at the top of the atmosphere"
    acquired = xml.text(".//DATATAKE_SENSING_START", ".//PRODUCT_START_TIME")
    reader, finest = stack([read_info(product.require(images[band], key.base_name)) for band in chosen])
    metres = min(METRES[band] for band in chosen)
    coarse = [band for band in chosen if METRES[band] > metres]
    repeated = f"; pixels of {', '.join(coarse)} are repeated, not interpolated" if coarse else ""
    return make_product(
        reader,
        [_band(band, xml, spacecraft) for band in chosen],
        identity(f"Sentinel-2 {level}", spacecraft, acquired, quantity),
        xml.text(".//PRODUCT_URI") or files.path.name,
        nodata=_nodata(xml),
        grid=finest.grid,
        flagged="B10 (cirrus) does not see the ground",
        others=[*(name for name, bands in sets.items() if bands), LIST, *_layers(product)],
        notes={"bands": f"{', '.join(chosen)} on a grid of {metres} m{repeated}"},
    )


def _band_images(xml: XmlMetadata) -> dict[str, str]:
    """Return the file name of each band at its native resolution."""
    elements = [*xml.root.findall(".//IMAGE_FILE"), *xml.root.findall(".//IMAGE_FILE_2A")]
    paths = [PurePosixPath((element.text or "").strip()) for element in elements]
    if len({path.parts[:2] for path in paths}) > 1:
        got = f"{xml.file} lists several tiles"
        raise CubeFileError(got, "a product of one tile (since 2016)", "split it into tiles first")
    images: dict[str, str] = {}
    for path in paths:
        match = re.search(r"_B(\d[\dA])(?:_(\d\d)m)?$", path.name)
        band = normalise_band_name(f"B{match[1]}") if match else ""
        if match and band in BANDS and (match[2] is None or int(match[2]) == METRES[band]):
            images[band] = f"{path.name}.jp2"
    if not images:
        raise xml.file.damaged(" lists no IMAGE_FILE of a band")
    return {band: images[band] for band in BANDS if band in images}


def _band(band: str, xml: XmlMetadata, spacecraft: str) -> Band:
    number = BANDS.index(band)
    quantification = xml.number(*(f".//{prefix}QUANTIFICATION_VALUE" for prefix in ("BOA_", "L2A_BOA_", "")))
    if quantification <= 0:
        raise xml.file.damaged(f": QUANTIFICATION_VALUE is {quantification:g}", "a positive number")
    offset = xml.text(f".//BOA_ADD_OFFSET[@band_id='{number}']", f".//RADIO_ADD_OFFSET[@band_id='{number}']")
    added = xml.file.parse_number(offset, "ADD_OFFSET") if offset else 0.0
    wavelength, width = _wavelength_and_width(band, xml, spacecraft)
    return Band(band, wavelength, width, 1 / quantification, added / quantification, good=band != CIRRUS)


def _wavelength_and_width(band: str, xml: XmlMetadata, spacecraft: str) -> tuple[float, float]:
    """Return the centre of a band and the FWHM of the SRF in the metadata; ESA's table where they are missing."""
    described = next(
        (each for each in xml.root.findall(".//Spectral_Information") if each.get("physicalBand") == band), None
    )
    usual = SENSOR_BANDS.get(spacecraft, SENSOR_BANDS["Sentinel-2A"])[band]
    if described is None:
        return usual
    centre = xml.child_number(described, "Wavelength/CENTRAL")
    texts = (described.findtext("Spectral_Response/VALUES") or "").split()
    srf = np.array([xml.file.parse_number(text, "Spectral_Response") for text in texts])
    if not srf.size or srf.max() <= 0:
        return centre, usual[1]
    return centre, _full_width_at_half_maximum(srf) * xml.child_number(described, "Spectral_Response/STEP")


def _full_width_at_half_maximum(srf: NDArray[np.float64]) -> float:
    """Return the FWHM in samples, between the outermost crossings; the SRF is zero outside of its samples."""
    half = srf.max() / 2
    padded = np.concatenate([[0.0], srf, [0.0]])
    above = np.flatnonzero(padded >= half)
    first, last = above[0], above[-1]
    before = (padded[first] - half) / (padded[first] - padded[first - 1])
    after = (padded[last] - half) / (padded[last] - padded[last + 1])
    return float(last - first + before + after)


def _nodata(xml: XmlMetadata) -> float:
    for special in xml.root.findall(".//Special_Values"):
        if (special.findtext("SPECIAL_VALUE_TEXT") or "").strip() == "NODATA":
            return xml.child_number(special, "SPECIAL_VALUE_INDEX")
    return FILL


def _layers(product: ProductFiles) -> list[str]:
    matches = (LAYER.search(file.stem) for file in product if file.base_name.lower().endswith(".jp2"))
    return sorted({match[0] for match in matches if match})
