"""EnMAP: L2A and L1C (one image of 224 bands on a map), L1B (an image of each detector, in its own geometry).

In L2A the bands come in the order of their wavelengths, so where the two detectors overlap they alternate.

What EnMAP and DESIS, both delivered by DLR, share: one image of all bands and an XML file that describes each band.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.cube import fitting_nodata, make_cube
from hyperfuse.io.lazy import lazy_variable
from hyperfuse.io.products.delivery import DeliveredFile, Delivery
from hyperfuse.io.products.product import (
    Product,
    XmlMetadata,
    detector_note,
    flag_note,
    formula,
    identity,
    selection_note,
)
from hyperfuse.io.products.rasters import facts_of, layer, layer_names, stacked

FILL = -32768
IMAGE_SUFFIXES = r"\.(tiff?|geotiff|bsq|bil|bip|jp2|jpeg2000)"

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class BandWords:
    """The names of the elements that describe a band."""

    band: str
    width: str
    gain: str
    offset: str


@dataclass(frozen=True)
class BandTable:
    wavelength_nm: Numbers
    fwhm_nm: Numbers
    gain: Numbers
    offset: Numbers

    def part(self, chosen: NDArray[np.int64]) -> BandTable:
        return BandTable(self.wavelength_nm[chosen], self.fwhm_nm[chosen], self.gain[chosen], self.offset[chosen])


def read_band_table(xml: XmlMetadata, words: BandWords) -> BandTable:
    """Physical = stored * gain + offset, of reflectance and of radiance alike."""
    path = f"specific/bandCharacterisation/{words.band}"
    bands = xml.all(path)
    if not bands:
        raise CubeFileError(f"{xml.file.shown} has no {path}", "a description of each band", "fetch it again")
    names = ("wavelengthCenterOfBand", words.width, words.gain, words.offset)
    return BandTable(*(np.array([xml.child_number(band, name) for band in bands]) for name in names))


def find_image(delivery: Delivery, key: DeliveredFile, part: str) -> DeliveredFile:
    """`PREFIX-PART.TIF` beside `PREFIX-METADATA.XML`, also as the cloud-optimised copy that archives publish."""
    prefix = re.split("-METADATA", key.base_name, flags=re.IGNORECASE)[0]
    pattern = re.compile(rf"{re.escape(prefix)}-{part}(_COG)?{IMAGE_SUFFIXES}", re.IGNORECASE)
    found = next((file for file in delivery if pattern.fullmatch(file.base_name)), None)
    if found is None:
        raise CubeFileError(
            f"{delivery.path} is incomplete: {prefix}-{part} is missing",
            "the image beside its metadata",
            "fetch it again",
        )
    return found


def image_cube(
    file: DeliveredFile,
    table: BandTable,
    xml: XmlMetadata,
    good: NDArray[np.bool_],
    names: list[str],
    attributes: dict[str, str],
    *,
    on_map: bool = True,
) -> xr.DataArray:
    facts = facts_of(file)
    if facts.bands != table.gain.size:
        raise CubeFileError(
            f"{file.shown} has {facts.bands} bands, {xml.file.base_name} describes {table.gain.size}",
            "an image and metadata of one product",
            "fetch it again",
        )
    reader, _ = stacked([facts] * facts.bands, range(1, facts.bands + 1))
    fill = facts.nodata
    if fill is None:
        fill = xml.number("specific/backgroundValue") if xml.text("specific/backgroundValue") else FILL
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=table.wavelength_nm,
        fwhm_nm=table.fwhm_nm,
        good=good,
        band_names=names,
        scale=table.gain,
        offset=table.offset,
        nodata=fitting_nodata(fill, facts.dtype),
        crs=facts.crs if on_map else None,
        transform=facts.transform if on_map else None,
        attributes=attributes,
    )


def scaling_note(table: BandTable) -> str:
    if len({*table.gain}) == 1 and len({*table.offset}) == 1:
        return formula(table.gain[0], table.offset[0])
    return "stored * gain + offset, which differ by band"


KEY = re.compile(r"ENMAP\d\d-.*-METADATA\.XML(\.XML)?", re.IGNORECASE)
IMAGE = re.compile(r"(ENMAP\d\d-.*)-SPECTRAL_IMAGE(_VNIR|_SWIR)?(_COG)?\.\w+", re.IGNORECASE)
WORDS = BandWords("bandID", "FWHMOfBand", "GainOfBand", "OffsetOfBand")
DETECTORS = ("VNIR", "SWIR")
QUANTITIES = {"L2A": "surface reflectance", "L1C": "radiance at the sensor, W m-2 sr-1 nm-1"}


def open_enmap(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product:
    xml = XmlMetadata(key)
    level = _level(xml)
    chosen = (variable or "").upper()
    if variable is not None and chosen not in DETECTORS:
        return Product(layer(delivery, variable, DETECTORS))
    if level == "L1B" and not chosen:
        raise OptionError(
            f"{delivery.path} is EnMAP L1B, whose two detectors do not look at the same ground",
            "one of them",
            "add --variable VNIR or --variable SWIR",
        )
    table = read_band_table(xml, WORDS)
    detectors = _detectors(xml, table.gain.size)
    good = _good_bands(xml, table.gain.size)
    quantity = QUANTITIES.get(level, QUANTITIES["L1C"])
    facts = identity(
        f"EnMAP {level}", "EnMAP", xml.text("specific/datatakeStart", "base/temporalCoverage/startTime"), quantity
    )
    bands = np.flatnonzero(detectors == chosen) if chosen else np.arange(detectors.size)
    names = [f"B{number:03d} {detector}" for number, detector in enumerate(detectors, start=1)]
    if level == "L1B":
        image = find_image(delivery, key, f"SPECTRAL_IMAGE_{chosen}")
        # L1B images carry numbers where a transform would be, but lie on no map.
        cube = image_cube(
            image, table.part(bands), xml, good[bands], [names[band] for band in bands], facts, on_map=False
        )
    else:
        image = find_image(delivery, key, "SPECTRAL_IMAGE")
        cube = image_cube(image, table, xml, good, names, facts)
        cube = cube.isel(band=bands) if chosen else cube
    notes = {
        "product": f"EnMAP {level}, {key.base_name.partition('-METADATA')[0]}",
        "detectors": detector_note(list(detectors), table.wavelength_nm),
        "scaling": scaling_note(table.part(bands)),
        "flags": flag_note(
            good[bands], "the product holds nothing but nodata in them (water vapour), or does not expect them"
        ),
        "geometry": "that of the sensor, without a place on the map" if level == "L1B" else "on a map",
        "also in it": selection_note([*DETECTORS, *layer_names(delivery, [image])]),
    }
    return Product(cube, notes)


def _level(xml: XmlMetadata) -> str:
    named = re.search(r"_(L\d[ABC])-", xml.file.base_name)
    level = named[1] if named else (xml.text("base/level") or "")
    if level not in ("L1B", "L1C", "L2A"):
        raise CubeFileError(f"{xml.file.shown} is EnMAP of level {level or 'unknown'}", "L1B, L1C or L2A")
    return level


def _detectors(xml: XmlMetadata, bands: int) -> NDArray[np.str_]:
    """Which detector saw each band: from the lists of channels, or where they are missing, by their number."""
    detectors = np.full(bands, "", dtype="<U4")
    for name, numbers in _channels(xml).items():
        for number in numbers:
            if 1 <= number <= bands:
                detectors[number - 1] = name
    if (detectors == "").any():
        vnir = int(float(xml.text("specific/numberOfVNIRBands") or bands))
        fallback = np.where(np.arange(bands) < vnir, "VNIR", "SWIR")
        detectors = np.where(detectors == "", fallback, detectors)
    return detectors


def _channels(xml: XmlMetadata) -> dict[str, list[int]]:
    """The numbers of the bands that each detector should have; nothing where both lists count from 1 and so name no
    band.
    """
    paths = {name: f"specific/{name.lower()}ProductQuality/expectedChannelsList" for name in DETECTORS}
    channels = {
        name: [int(xml.to_number(entry, path)) for entry in (xml.text(path) or "").split(",") if entry.strip()]
        for name, path in paths.items()
    }
    vnir, swir = channels.values()
    return {} if set(vnir) & set(swir) else channels


def _good_bands(xml: XmlMetadata, bands: int) -> NDArray[np.bool_]:
    """False for bands that the processor left empty: their statistics are those of the fill value."""
    good = np.ones(bands, dtype=bool)
    expected = {number for numbers in _channels(xml).values() for number in numbers}
    if expected:
        good &= np.isin(np.arange(1, bands + 1), list(expected))
    statistics = xml.all("product/bandStatistics/bandID")
    for index, band in enumerate(statistics if len(statistics) == bands else ()):
        if xml.child_number(band, "stdDeviation") == 0 and xml.child_number(band, "mean") <= FILL:
            good[index] = False
    return good
