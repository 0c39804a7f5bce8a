"""Sentinel-2 L1C and L2A (.SAFE): a JPEG 2000 file for each band, of 10, 20 or 60 m, on nested grids of one tile."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.products.delivery import DeliveredFile, Delivery
from hyperfuse.io.products.product import Product, XmlMetadata, flag_note, formula, identity, selection_note
from hyperfuse.io.products.rasters import FILL, BandFile, band_cube, chosen_bands, layer, plain_band

KEY = re.compile(r"MTD_MSIL(1C|2A)\.xml", re.IGNORECASE)
RESOLUTIONS = {
    10: ("B2", "B3", "B4", "B8"),
    20: ("B5", "B6", "B7", "B8A", "B11", "B12"),
    60: ("B1", "B9", "B10"),
}
# In the order in which the metadata count them.
BANDS = ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12")
CIRRUS = "B10"
DEFAULT = "10m"
LIST = "a list such as B2,B8A,B11"
LAYER = re.compile(r"(SCL|MSK_CLDPRB|MSK_SNWPRB|AOT|WVP)_\d\dm$")
# Centre and width in nm of ESA's tables, for products that do not tell (the oldest L2A); 2C's is nearest to 2A's.
WAVELENGTHS = {
    "Sentinel-2A": (442.7, 492.7, 559.8, 664.6, 704.1, 740.5, 782.8, 832.8, 864.7, 945.1, 1373.5, 1613.7, 2202.4),
    "Sentinel-2B": (442.3, 492.3, 558.9, 664.9, 703.8, 739.1, 779.7, 832.9, 864.0, 943.2, 1376.9, 1610.4, 2185.7),
}
WIDTHS = (20.0, 65.0, 35.0, 30.0, 14.0, 14.0, 19.0, 105.0, 21.0, 19.0, 29.0, 90.0, 174.0)


def open_sentinel2(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    product = delivery.beside(key)
    level = key.base_name[len("MTD_MSI") : -len(".xml")].upper()
    files = _band_files(xml)
    sets = {f"{metres}m": [band for band in bands if band in files] for metres, bands in RESOLUTIONS.items()}
    sets["all"] = [band for band in BANDS if band in files]
    chosen = chosen_bands(variable or DEFAULT, sets, BANDS)
    if chosen is None:
        assert variable is not None
        return Product(layer(product, variable, [*sets, LIST]))
    lost = [band for band in chosen if band not in files]
    if lost or not chosen:
        raise OptionError(f"no {', '.join(lost) or variable} in {delivery.path}", f"some of {', '.join(files)}")
    spacecraft = xml.text(".//SPACECRAFT_NAME") or "Sentinel-2A"
    bands = [_band_file(band, product.require(files[band], key.base_name), xml, spacecraft) for band in chosen]
    quantity = "surface reflectance" if level == "L2A" else "reflectance at the top of the atmosphere"
    acquired = xml.text(".//DATATAKE_SENSING_START", ".//PRODUCT_START_TIME")
    cube = band_cube(bands, identity(f"Sentinel-2 {level}", spacecraft, acquired, quantity), _nodata(xml))
    notes = {
        "product": f"Sentinel-2 {level}, {xml.text('.//PRODUCT_URI') or delivery.path.name}",
        "bands": _grid_note(chosen),
        "scaling": formula(bands[0].scale, bands[0].offset),
        "flags": flag_note(cube["good"].values, "B10 sees clouds, not the ground"),
        "also in it": selection_note([*(name for name, held in sets.items() if held), LIST, *_layers(product)]),
    }
    return Product(cube, notes)


def _grid_note(chosen: list[str]) -> str:
    finest = min(map(_metres, chosen))
    coarse = [band for band in chosen if _metres(band) > finest]
    repeated = f"; each pixel of {', '.join(coarse)} is repeated onto it, not interpolated" if coarse else ""
    return f"{', '.join(chosen)} on a grid of {finest} m{repeated}"


def _band_files(xml: XmlMetadata) -> dict[str, str]:
    """The image of each band at its own resolution, as the metadata name it."""
    paths = [
        PurePosixPath((image.text or "").strip())
        for tag in ("IMAGE_FILE", "IMAGE_FILE_2A")
        for image in xml.all(f".//{tag}")
    ]
    if len({path.parts[:2] for path in paths}) > 1:
        raise CubeFileError(
            f"{xml.file.shown} lists several tiles", "a product of one tile (since 2016)", "split it first"
        )
    files: dict[str, str] = {}
    for path in paths:
        found = re.search(r"_B(\d[\dA])(?:_(\d\d)m)?$", path.name)
        if found:
            band = plain_band(f"B{found[1]}")
            if band in BANDS and (found[2] is None or int(found[2]) == _metres(band)):
                files[band] = f"{path.name}.jp2"
    if not files:
        raise CubeFileError(
            f"{xml.file.shown} lists no IMAGE_FILE of a band", "the metadata as delivered", "fetch it again"
        )
    return {band: files[band] for band in BANDS if band in files}


def _band_file(band: str, image: DeliveredFile, xml: XmlMetadata, spacecraft: str) -> BandFile:
    number = BANDS.index(band)
    quantification = xml.number(".//BOA_QUANTIFICATION_VALUE", ".//QUANTIFICATION_VALUE")
    if quantification <= 0:
        raise CubeFileError(
            f"{xml.file.shown}: QUANTIFICATION_VALUE is {quantification:g}", "a number above zero", "fetch it again"
        )
    offset = xml.text(f".//BOA_ADD_OFFSET[@band_id='{number}']", f".//RADIO_ADD_OFFSET[@band_id='{number}']")
    added = xml.to_number(offset, "ADD_OFFSET") if offset else 0.0
    wavelength, width = _spectral(band, xml, spacecraft)
    return BandFile(band, image, wavelength, width, 1 / quantification, added / quantification, good=band != CIRRUS)


def _spectral(band: str, xml: XmlMetadata, spacecraft: str) -> tuple[float, float]:
    """Centre, and the width at half of the response that the product brings along."""
    described = next((each for each in xml.all(".//Spectral_Information") if each.get("physicalBand") == band), None)
    number = BANDS.index(band)
    if described is None:
        return WAVELENGTHS.get(spacecraft, WAVELENGTHS["Sentinel-2A"])[number], WIDTHS[number]
    centre = xml.child_number(described, "Wavelength/CENTRAL")
    srf = [
        xml.to_number(text, "Spectral_Response")
        for text in (described.findtext("Spectral_Response/VALUES") or "").split()
    ]
    if not srf or max(srf) <= 0:
        return centre, WIDTHS[number]
    return centre, _samples_above_half(np.array(srf)) * xml.child_number(described, "Spectral_Response/STEP")


def _samples_above_half(srf: NDArray[np.float64]) -> float:
    """From where a response first reaches half of its maximum to where it last does, in samples; 0 beyond both ends."""
    half = srf.max() / 2
    padded = np.concatenate([[0.0], srf, [0.0]])
    above = np.flatnonzero(padded >= half)
    first, last = above[0], above[-1]
    before = (padded[first] - half) / (padded[first] - padded[first - 1])
    after = (padded[last] - half) / (padded[last] - padded[last + 1])
    return float(last - first + before + after)


def _nodata(xml: XmlMetadata) -> float:
    for special in xml.all(".//Special_Values"):
        if (special.findtext("SPECIAL_VALUE_TEXT") or "").strip() == "NODATA":
            return xml.child_number(special, "SPECIAL_VALUE_INDEX")
    return FILL


def _metres(band: str) -> int:
    return next(metres for metres, bands in RESOLUTIONS.items() if band in bands)


def _layers(product: Delivery) -> list[str]:
    found = (LAYER.search(PurePosixPath(file.name).stem) for file in product if file.base_name.lower().endswith(".jp2"))
    return sorted({name[0] for name in found if name})
