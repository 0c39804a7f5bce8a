"""What a raster says about its bands, values and place, in the words of GDAL, ENVI and others."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperfuse.cubes.exact_record import Description, crs_text, transform_list
from hyperfuse.cubes.nodata import fitting_nodata
from hyperfuse.cubes.units import braced_numbers, lengths_in_nanometres, numbers, parse_braced_list
from hyperfuse.errors import BandError

RECORD_TAG = "HYPERFUSE_EXACT"
ENVI_RECORD_KEY = "hyperfuse"
# Tags that say how GDAL stores or derived something, not what the scene is.
STORAGE_TAGS = {"AREA_OR_POINT", "wavelength_units", "TIFFTAG_RESOLUTIONUNIT", "OVR_RESAMPLING_ALG", RECORD_TAG}
GDAL_ENVI_NAME = re.compile(r"Band \d+")

BandTags = list[dict[str, str]]
Lengths = NDArray[np.float64]


def automatic_description(index: int, wavelength_nm: float) -> str:
    """What a band without a name is called in a GeoTIFF: "B012 553.2 nm"; index counts from 1."""
    return "" if np.isnan(wavelength_nm) else f"B{index:03d} {wavelength_nm:.1f} nm"


def band_tags(source: Any) -> BandTags:
    return [source.tags(band) | source.tags(band, ns="IMAGERY") for band in source.indexes]


def lengths(source: Any, tags: BandTags, path: Path) -> tuple[Lengths | None, Lengths | None]:
    """Wavelengths and widths in nm: ENVI's own lists, then band tags, then IMAGERY, which GDAL rounds for ENVI files."""
    envi = source.tags(ns="ENVI")
    if "wavelength" in envi or "fwhm" in envi:
        centres, widths = (_envi_list(key, envi, source.count, path) for key in ("wavelength", "fwhm"))
        return lengths_in_nanometres(centres, widths, envi.get("wavelength_units"), None, str(path))
    centres, widths = _tag_column("wavelength", tags), _tag_column("fwhm", tags)
    if centres is None and widths is None:
        return _imagery("CENTRAL_WAVELENGTH_UM", tags), _imagery("FWHM_UM", tags)
    units = {each["wavelength_units"] for each in tags if "wavelength_units" in each}
    centres, widths = lengths_in_nanometres(centres, widths, units.pop() if len(units) == 1 else None, None, str(path))
    return centres, _imagery("FWHM_UM", tags) if widths is None else widths


def good_bands(source: Any, tags: BandTags) -> NDArray[np.bool_] | None:
    envi = source.tags(ns="ENVI")
    if "bbl" in envi:
        values = braced_numbers(envi["bbl"])
    else:
        values = numbers([each.get("bbl", each.get("BadBandMultiplier", "1")) for each in tags])
    return values != 0 if values is not None and values.size == source.count else None


def natively_described(source: Any, dtype: np.dtype[Any], wavelength_nm: Lengths | None) -> Description:
    """What the format itself says, without our record."""
    envi = source.tags(ns="ENVI")
    scale, offset = _scale_and_offset(source, envi)
    nodata = _nodata(source, envi, dtype)
    placed = not (source.transform.is_identity and not source.crs)
    return Description(
        band_name=_names(source, envi, wavelength_nm),
        scale=scale.tolist(),
        offset=offset.tolist(),
        nodata=None if nodata is None else repr(nodata),
        crs=crs_text(source.crs),
        transform=transform_list(source.transform) if placed else None,
        attributes=_attributes(source, envi),
    )


def record_of(source: Any) -> str | None:
    folded = source.tags(ns="ENVI").get(ENVI_RECORD_KEY, "")
    text = "".join(folded.split()).strip("{}") or source.tags().get(RECORD_TAG)
    return str(text) if text else None


def _envi_list(key: str, envi: Mapping[str, str], bands: int, path: Path) -> Lengths | None:
    if key not in envi:
        return None
    values = braced_numbers(envi[key])
    if values is None:
        warnings.warn(f"{path}: `{key}` is no list of numbers and is left out", stacklevel=4)
        return None
    if values.size != bands:
        raise BandError(
            f"{path}: {key} list of {values.size} entries for {bands} bands", f"{bands} entries", f"mend `{key}` in the header"
        )
    return values


def _tag_column(key: str, tags: BandTags) -> Lengths | None:
    texts = [each.get(key) for each in tags]
    return numbers([text or "nan" for text in texts]) if any(texts) else None


def _imagery(key: str, tags: BandTags) -> Lengths | None:
    values = _tag_column(key, tags)
    return None if values is None else np.round(values * 1e3, 6)


def _names(source: Any, envi: Mapping[str, str], wavelength_nm: Lengths | None) -> list[str]:
    """Band names without those that GDAL or hyperfuse made up (and without the wavelength that GDAL's ENVI driver appends)."""
    names = [description or "" for description in source.descriptions]
    listed = parse_braced_list(envi.get("band_names", ""))
    if envi:
        names = listed if len(listed) == len(names) else names
        return ["" if GDAL_ENVI_NAME.fullmatch(name) else name for name in names]
    centres = np.full(len(names), np.nan) if wavelength_nm is None else wavelength_nm
    made_up = [automatic_description(index, centre) for index, centre in enumerate(centres, start=1)]
    return ["" if name == automatic else name for name, automatic in zip(names, made_up, strict=True)]


def _scale_and_offset(source: Any, envi: Mapping[str, str]) -> tuple[Lengths, Lengths]:
    scale, offset = np.array(source.scales, dtype=np.float64), np.array(source.offsets, dtype=np.float64)
    factor = numbers([envi.get("reflectance_scale_factor", "")])
    usable = factor is not None and np.isfinite(factor[0]) and factor[0] > 0
    if factor is not None and usable and (scale == 1).all() and "data_gain_values" not in envi:
        scale = scale / factor[0]
    return scale, offset


def _nodata(source: Any, envi: Mapping[str, str], dtype: np.dtype[Any]) -> float | None:
    text = envi.get("data_ignore_value", "")
    if re.fullmatch(r"\s*[-+]?\d{1,20}\s*", text):
        return fitting_nodata(int(text), dtype)
    listed = numbers([text]) if text else None
    return fitting_nodata(source.nodata if listed is None else listed[0], dtype)


def _attributes(source: Any, envi: Mapping[str, str]) -> dict[str, str]:
    tags = {key: value for key, value in source.tags().items() if key not in STORAGE_TAGS and not re.fullmatch(r"Band_\d+", key)}
    for key in ("sensor_type", "acquisition_time"):
        if key in envi:
            tags[key] = envi[key].strip("{} ")
    return tags
