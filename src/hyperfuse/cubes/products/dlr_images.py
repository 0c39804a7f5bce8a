"""What EnMAP and DESIS, both delivered by DLR, share: one image of all bands and an XML file that describes each band."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.lazy import lazy_variable
from hyperfuse.cubes.nodata import fitting_nodata
from hyperfuse.cubes.products.delivery import DeliveredFile, Delivery
from hyperfuse.cubes.products.metadata import XmlMetadata
from hyperfuse.cubes.products.product import formula
from hyperfuse.cubes.products.rasters import facts_of, stacked
from hyperfuse.errors import CubeFileError

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
            f"{delivery.path} is incomplete: {prefix}-{part} is missing", "the image beside its metadata", "fetch it again"
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
