"""EnMAP and DESIS, delivered by DLR: one image of all bands and an XML file that describes each of them.

EnMAP L2A and L1C have one orthorectified image of 224 bands, L1B one image per detector, in sensor geometry. L2A bands
are sorted by wavelength, so the two detectors alternate where they overlap. DESIS (L2A, L1C, L1B) has up to 235 bands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.products.product import Band, Product, ProductFile, ProductFiles, XmlMetadata, identity, make_product
from hyperfuse.io.products.rasters import layer_names, open_layer, read_info, stack

ENMAP_KEY = re.compile(r"ENMAP\d\d-.*-METADATA\.XML(\.XML)?", re.IGNORECASE)
ENMAP_IMAGE = re.compile(r"ENMAP\d\d-.*-SPECTRAL_IMAGE(_VNIR|_SWIR)?(_COG)?\.\w+", re.IGNORECASE)
ENMAP_TAGS = ("wavelengthCenterOfBand", "FWHMOfBand", "GainOfBand", "OffsetOfBand")
DESIS_KEY = re.compile(r"DESIS-HSI-.*-METADATA\.xml", re.IGNORECASE)
DESIS_IMAGE = re.compile(r"(DESIS-HSI-.*)-SPECTRAL_IMAGE\.(tiff?|hdr)", re.IGNORECASE)
DESIS_TAGS = ("wavelengthCenterOfBand", "wavelengthWidthOfBand", "gainOfBand", "offsetOfBand")
START_OF_COVERAGE = "base/temporalCoverage/startTime"
ACQUIRED = {"EnMAP": ("specific/datatakeStart", START_OF_COVERAGE), "DESIS": (START_OF_COVERAGE,)}
RADIANCE = {
    "EnMAP": "radiance at the sensor, W m-2 sr-1 nm-1",
    "DESIS": "radiance at the sensor, mW cm-2 sr-1 um-1",
}
LEVELS = ("L2A", "L1C", "L1B")
DETECTORS = ("VNIR", "SWIR")
FLAGGED = "the product has only nodata in them (water vapour), or does not expect them"
FILL = -32768
IMAGE_SUFFIXES = r"\.(tiff?|geotiff|bsq|bil|bip|jp2|jpeg2000)"


def read_bands(xml: XmlMetadata, band_tag: str, column_tags: Sequence[str], detector: str = "") -> list[Band]:
    """Read the band table; `column_tags` name the elements of centre, width, gain and offset of a band."""
    path = f"specific/bandCharacterisation/{band_tag}"
    rows = [[xml.child_number(element, tag) for tag in column_tags] for element in xml.root.findall(path)]
    bands = [
        Band(f"B{number:03d}", wavelength, fwhm, gain, offset, detector=detector)
        for number, (wavelength, fwhm, gain, offset) in enumerate(rows, start=1)
    ]
    if not bands:
        raise xml.file.damaged(f" has no {path}", "a description of each band")
    return bands


def image_product(
    files: ProductFiles,
    xml: XmlMetadata,
    mission: str,
    level: str,
    bands: Sequence[Band],
    *,
    part: str = "SPECTRAL_IMAGE",
    selected: Sequence[int] | None = None,
    others: Iterable[str] = (),
) -> Product:
    """Build the product of `PREFIX-PART.TIF`, which holds all of `bands`, of which some may be selected."""
    pattern = re.compile(rf"{re.escape(_prefix(xml.file))}-{part}(_COG)?{IMAGE_SUFFIXES}", re.IGNORECASE)
    image = next((file for file in files if pattern.fullmatch(file.base_name)), None)
    if image is None:
        raise files.incomplete(f"{_prefix(xml.file)}-{part}")
    info = read_info(image)
    if info.bands != len(bands):
        raise image.damaged(f" has {info.bands} bands, {xml.file.base_name} describes {len(bands)}")
    selected = range(len(bands)) if selected is None else selected
    reader, _ = stack([info] * len(selected), [index + 1 for index in selected])
    fill = info.nodata
    if fill is None:
        fill = xml.number("specific/backgroundValue") if xml.text("specific/backgroundValue") else FILL
    quantity = "surface reflectance" if level == "L2A" else RADIANCE[mission]
    return make_product(
        reader,
        [bands[index] for index in selected],
        identity(f"{mission} {level}", mission, xml.text(*ACQUIRED[mission]), quantity),
        _prefix(xml.file),
        nodata=fill,
        # L1B images have a transform, but it is not that of a map.
        grid=(None, None) if mission == "EnMAP" and level == "L1B" else info.grid,
        flagged=FLAGGED,
        others=dict.fromkeys([*others, *layer_names(files, [image])]),
    )


def _prefix(file: ProductFile) -> str:
    return re.split("-METADATA|-SPECTRAL_IMAGE", file.base_name, flags=re.IGNORECASE)[0]


def _require_level(mission: str, xml: XmlMetadata) -> str:
    level = (re.search(r"[-_](L\d[ABC])-", xml.file.base_name) or ["", xml.text("base/level") or ""])[1]
    if level not in LEVELS:
        raise CubeFileError(f"{xml.file} is {mission} of level {level or 'unknown'}", f"one of {', '.join(LEVELS)}")
    return level


def open_enmap(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    level = _require_level("EnMAP", xml)
    chosen = (variable or "").upper()
    if variable is not None and chosen not in DETECTORS:
        return Product(open_layer(files, variable, DETECTORS))
    if level == "L1B" and not chosen:
        got = f"{files.path} is EnMAP L1B, whose two detectors are not co-registered"
        raise OptionError(got, "one of them", "add --variable VNIR or --variable SWIR")
    bands = read_bands(xml, "bandID", ENMAP_TAGS)
    rows = zip(bands, _detectors(xml, len(bands)), _good_bands(xml, len(bands)), strict=True)
    bands = [
        replace(band, name=f"{band.name} {detector}", detector=str(detector), good=bool(good))
        for band, detector, good in rows
    ]
    if level == "L1B":
        bands = [band for band in bands if band.detector == chosen]
        return image_product(files, xml, "EnMAP", level, bands, part=f"SPECTRAL_IMAGE_{chosen}", others=DETECTORS)
    selected = [index for index, band in enumerate(bands) if chosen in ("", band.detector)]
    return image_product(files, xml, "EnMAP", level, bands, selected=selected, others=DETECTORS)


def open_desis(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    level = _require_level("DESIS", xml)
    if variable is not None:
        return Product(open_layer(files, variable, ()))
    return image_product(files, xml, "DESIS", level, read_bands(xml, "band", DESIS_TAGS, detector="DESIS"))


def open_image(files: ProductFiles, image: ProductFile, variable: str | None) -> Product | None:
    """Open the product of an image by the metadata file beside it."""
    detector = re.search("_(VNIR|SWIR)", image.base_name, re.IGNORECASE)
    for file in files:
        if _prefix(file).upper() == _prefix(image).upper():
            if ENMAP_KEY.fullmatch(file.base_name):
                return open_enmap(files, file, variable or (detector[1] if detector else None))
            if DESIS_KEY.fullmatch(file.base_name):
                return open_desis(files, file, variable)
    return None


def _detectors(xml: XmlMetadata, bands: int) -> NDArray[np.str_]:
    """Assign each band to a detector by the lists of channels; without them, by its number."""
    vnir = int(float(xml.text("specific/numberOfVNIRBands") or bands))
    detectors = np.where(np.arange(bands) < vnir, "VNIR", "SWIR")
    for name, numbers in _channels(xml).items():
        detectors[[number - 1 for number in numbers if 1 <= number <= bands]] = name
    return detectors


def _channels(xml: XmlMetadata) -> dict[str, list[int]]:
    """Return the band numbers that each detector should have; none if both lists count from 1 (L1B)."""
    paths = {name: f"specific/{name.lower()}ProductQuality/expectedChannelsList" for name in DETECTORS}
    channels = {
        name: [int(xml.file.parse_number(entry, path)) for entry in (xml.text(path) or "").split(",") if entry.strip()]
        for name, path in paths.items()
    }
    vnir, swir = channels.values()
    return {} if set(vnir) & set(swir) else channels


def _good_bands(xml: XmlMetadata, bands: int) -> NDArray[np.bool_]:
    """Flag the bands that the processor left empty: their statistics are those of the fill value."""
    good = np.ones(bands, dtype=bool)
    expected = [number for numbers in _channels(xml).values() for number in numbers]
    if expected:
        good &= np.isin(np.arange(1, bands + 1), expected)
    statistics = xml.root.findall("product/bandStatistics/bandID")
    for index, band in enumerate(statistics if len(statistics) == bands else ()):
        if xml.child_number(band, "stdDeviation") == 0 and xml.child_number(band, "mean") <= FILL:
            good[index] = False
    return good
