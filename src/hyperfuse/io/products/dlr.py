"""EnMAP and DESIS, delivered by DLR: one image of all bands and an XML file that describes each of them.

EnMAP L2A and L1C have one orthorectified image of 224 bands, L1B one image per detector, in sensor geometry. L2A bands
are sorted by wavelength, so the two detectors alternate where they overlap. DESIS (L2A, L1C, L1B) has up to 235 bands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.products.product import Band, Product, ProductFile, ProductFiles, XmlMetadata, identity, make_product
from hyperfuse.io.products.rasters import layer_names, open_layer, read_info, stack

ENMAP_KEY = re.compile(r"ENMAP\d\d-.*-METADATA\.XML(\.XML)?", re.IGNORECASE)
ENMAP_IMAGE = re.compile(r"ENMAP\d\d-.*-SPECTRAL_IMAGE(_VNIR|_SWIR)?(_COG)?\.\w+", re.IGNORECASE)
ENMAP_TAGS = ("wavelengthCenterOfBand", "FWHMOfBand", "GainOfBand", "OffsetOfBand")
ENMAP_RADIANCE = "radiance at the sensor, W m-2 sr-1 nm-1"
DESIS_KEY = re.compile(r"DESIS-HSI-.*-METADATA\.xml", re.IGNORECASE)
DESIS_IMAGE = re.compile(r"(DESIS-HSI-.*)-SPECTRAL_IMAGE\.(tiff?|hdr)", re.IGNORECASE)
DESIS_TAGS = ("wavelengthCenterOfBand", "wavelengthWidthOfBand", "gainOfBand", "offsetOfBand")
DESIS_RADIANCE = "radiance at the sensor, mW cm-2 sr-1 um-1"
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


def find_image(files: ProductFiles, key: ProductFile, part: str) -> ProductFile:
    """Find `PREFIX-PART.TIF` of `PREFIX-METADATA.XML`, or its cloud-optimised copy."""
    prefix = _prefix(key)
    pattern = re.compile(rf"{re.escape(prefix)}-{part}(_COG)?{IMAGE_SUFFIXES}", re.IGNORECASE)
    image = next((file for file in files if pattern.fullmatch(file.base_name)), None)
    if image is None:
        raise files.incomplete(f"{prefix}-{part}")
    return image


def image_product(
    image: ProductFile,
    bands: Sequence[Band],
    xml: XmlMetadata,
    attributes: Mapping[str, str],
    others: Iterable[str],
    *,
    selected: Sequence[int] | None = None,
    flagged: str = "",
    is_map: bool = True,
) -> Product:
    """Build the product of one image that holds all of `bands`, of which some may be selected."""
    info = read_info(image)
    if info.bands != len(bands):
        raise image.damaged(f" has {info.bands} bands, {xml.file.base_name} describes {len(bands)}")
    selected = range(len(bands)) if selected is None else selected
    reader, _ = stack([info] * len(selected), [index + 1 for index in selected])
    fill = info.nodata
    if fill is None:
        fill = xml.number("specific/backgroundValue") if xml.text("specific/backgroundValue") else FILL
    return make_product(
        reader,
        [bands[index] for index in selected],
        attributes,
        _prefix(xml.file),
        nodata=fill,
        grid=info.grid if is_map else (None, None),
        flagged=flagged,
        others=others,
    )


def find_key(files: ProductFiles, image: ProductFile, pattern: re.Pattern[str]) -> ProductFile | None:
    """Find the metadata file beside an image."""
    prefix = _prefix(image).upper()
    return next((f for f in files if pattern.fullmatch(f.base_name) and _prefix(f).upper() == prefix), None)


def _prefix(file: ProductFile) -> str:
    return re.split("-METADATA|-SPECTRAL_IMAGE", file.base_name, flags=re.IGNORECASE)[0]


def _attributes(mission: str, level: str, acquired: str | None, radiance: str) -> dict[str, str]:
    return identity(f"{mission} {level}", mission, acquired, "surface reflectance" if level == "L2A" else radiance)


def open_enmap(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    level = (re.search(r"_(L\d[ABC])-", key.base_name) or ["", xml.text("base/level") or ""])[1]
    if level not in LEVELS:
        raise CubeFileError(f"{key} is EnMAP of level {level or 'unknown'}", f"one of {', '.join(LEVELS)}")
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
    acquired = xml.text("specific/datatakeStart", "base/temporalCoverage/startTime")
    attributes = _attributes("EnMAP", level, acquired, ENMAP_RADIANCE)
    image = find_image(files, key, f"SPECTRAL_IMAGE_{chosen}" if level == "L1B" else "SPECTRAL_IMAGE")
    others = [*DETECTORS, *layer_names(files, [image])]
    if level == "L1B":
        # L1B images have a transform, but it is not that of a map.
        bands = [band for band in bands if band.detector == chosen]
        return image_product(image, bands, xml, attributes, others, flagged=FLAGGED, is_map=False)
    selected = [index for index, band in enumerate(bands) if chosen in ("", band.detector)]
    return image_product(image, bands, xml, attributes, others, selected=selected, flagged=FLAGGED)


def open_enmap_image(files: ProductFiles, image: ProductFile, variable: str | None) -> Product | None:
    key = find_key(files, image, ENMAP_KEY)
    detector = re.search("_(VNIR|SWIR)", image.base_name, re.IGNORECASE)
    return open_enmap(files, key, variable or (detector[1] if detector else None)) if key else None


def open_desis(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    level = (re.search(r"-(L\d[ABC])-", key.base_name) or ["", ""])[1]
    if level not in LEVELS:
        raise CubeFileError(f"{key} is DESIS of level {level or 'unknown'}", f"one of {', '.join(LEVELS)}")
    if variable is not None:
        return Product(open_layer(files, variable, ()))
    bands = read_bands(xml, "band", DESIS_TAGS, detector="DESIS")
    attributes = _attributes("DESIS", level, xml.text("base/temporalCoverage/startTime"), DESIS_RADIANCE)
    image = find_image(files, key, "SPECTRAL_IMAGE")
    return image_product(image, bands, xml, attributes, layer_names(files, [image]))


def open_desis_image(files: ProductFiles, image: ProductFile, variable: str | None) -> Product | None:
    key = find_key(files, image, DESIS_KEY)
    return open_desis(files, key, variable) if key else None


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
