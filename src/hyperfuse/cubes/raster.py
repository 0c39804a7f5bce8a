"""Reading rasters through GDAL (rasterio): GeoTIFF, COG, ENVI and whatever else it opens, with all spectral metadata."""

from __future__ import annotations

import json
import re
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.lazy import lazy_variable
from hyperfuse.cubes.units import numbers, parse_braced_list, to_nanometres
from hyperfuse.errors import BandError, CubeFileError

AUTOMATIC_DESCRIPTION = re.compile(r"B\d{3,} \d+\.\d nm|Band \d+")
# Tags that say how GDAL stores or derived something, not what the scene is.
STORAGE_TAGS = {"AREA_OR_POINT", "wavelength_units", "TIFFTAG_RESOLUTIONUNIT", "HYPERFUSE_NODATA", "OVR_RESAMPLING_ALG"}
ENVI_OWN_KEY = "hyperfuse"


@dataclass(frozen=True)
class RasterReader:
    path: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        window = Window(columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start)
        with opened_raster(Path(self.path)) as source:
            values: NDArray[Any] = source.read([int(band) + 1 for band in bands], window=window, out_dtype=self.dtype)
        return values


@contextmanager
def opened_raster(path: Path) -> Iterator[Any]:
    """A rasterio dataset; GDAL's complaints, also those of later reads, become one `CubeFileError`."""
    try:
        with warnings.catch_warnings(), rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=16):
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(path) as source:
                yield source
    except (RasterioError, ValueError, MemoryError) as error:
        reason = str(error.__cause__ or error).replace(str(path), path.name).splitlines()[0]
        raise CubeFileError(f"{path} cannot be read: {reason}", "a whole raster file", "fetch or export it again") from error


def read_raster(path: Path, data_path: Path | None = None) -> xr.DataArray:
    """A lazy cube of `path`; `data_path` is where the pixels are when that is another file (ENVI's header named by the user)."""
    data_path = data_path or path
    with opened_raster(data_path) as source:
        dtype = _common_dtype(source, path)
        reader = RasterReader(str(data_path), (source.count, source.height, source.width), dtype)
        envi = source.tags(ns="ENVI")
        exact = _exact_envi_record(envi, source.count)
        band_tags = [source.tags(band) | source.tags(band, ns="IMAGERY") for band in source.indexes]
        scale, offset = _scale_and_offset(source, envi)
        return make_cube(
            lazy_variable(reader),
            wavelength_nm=_wavelengths(band_tags, envi, source.count, path),
            fwhm_nm=_fwhms(band_tags, envi, source.count, path),
            good=_good_bands(band_tags, envi, source.count),
            band_names=exact.get("band_name") or _names(source, envi),
            scale=scale,
            offset=offset,
            nodata=_nodata(source, envi, dtype, exact),
            crs=CRS.from_wkt(exact["crs"]) if exact.get("crs") else source.crs,
            transform=_transform(source, exact),
            attributes=exact.get("attributes") or _attributes(source, envi),
        )


def _common_dtype(source: Any, path: Path) -> np.dtype[Any]:
    dtype = np.result_type(*{np.dtype(name) for name in source.dtypes})
    if dtype.kind not in "iuf":
        raise CubeFileError(f"{path} holds values of type {dtype}", "integers or real numbers", "convert it first")
    return dtype


def _wavelengths(band_tags: list[dict[str, str]], envi: Mapping[str, str], bands: int, path: Path) -> NDArray[np.float64] | None:
    """Band tags first, then ENVI's own list, then IMAGERY, which GDAL rounds to thousandths of a micrometre."""
    texts = [tags.get("wavelength") for tags in band_tags]
    if any(texts) and "wavelength" not in envi:
        values = numbers([text or "nan" for text in texts])
        units = {tags["wavelength_units"] for tags in band_tags if "wavelength_units" in tags}
        if values is not None:
            return to_nanometres(values, units.pop() if len(units) == 1 else None, str(path))
    return _envi_lengths("wavelength", envi, bands, path) if "wavelength" in envi else _imagery("CENTRAL_WAVELENGTH_UM", band_tags)


def _fwhms(band_tags: list[dict[str, str]], envi: Mapping[str, str], bands: int, path: Path) -> NDArray[np.float64] | None:
    texts = [tags.get("fwhm") for tags in band_tags]
    if any(texts) and "fwhm" not in envi:
        values = numbers([text or "nan" for text in texts])
        units = {tags["wavelength_units"] for tags in band_tags if "wavelength_units" in tags}
        if values is not None and units:
            return to_nanometres(values, units.pop(), str(path))
    return _envi_lengths("fwhm", envi, bands, path) if "fwhm" in envi else _imagery("FWHM_UM", band_tags)


def _envi_lengths(key: str, envi: Mapping[str, str], bands: int, path: Path) -> NDArray[np.float64] | None:
    values = numbers(parse_braced_list(envi[key]))
    if values is None:
        return None
    if values.size != bands:
        raise BandError(
            f"{path}: {key} list of {values.size} entries for {bands} bands", f"{bands} entries", f"mend `{key}` in the header"
        )
    unit = envi.get("wavelength_units")
    if key == "wavelength" or unit:
        return to_nanometres(values, unit, str(path))
    # The one warning about the missing unit was given for the wavelengths; the widths follow the same guess.
    centres = numbers(parse_braced_list(envi.get("wavelength", "")))
    micrometres = centres is not None and centres.size > 0 and float(centres.max()) < 100
    return values * 1e3 if micrometres else values


def _imagery(key: str, band_tags: list[dict[str, str]]) -> NDArray[np.float64] | None:
    texts = [tags.get(key) for tags in band_tags]
    values = numbers([text or "nan" for text in texts]) if any(texts) else None
    return None if values is None else np.round(values * 1e3, 6)


def _good_bands(band_tags: list[dict[str, str]], envi: Mapping[str, str], bands: int) -> NDArray[np.bool_] | None:
    multipliers = (
        parse_braced_list(envi["bbl"])
        if "bbl" in envi
        else [tags.get("bbl", tags.get("BadBandMultiplier", "1")) for tags in band_tags]
    )
    values = numbers(multipliers)
    return values != 0 if values is not None and values.size == bands else None


def _names(source: Any, envi: Mapping[str, str]) -> list[str]:
    """Band names without those that GDAL or hyperfuse made up (and without the wavelength that GDAL's ENVI driver appends)."""
    names = [description or "" for description in source.descriptions]
    listed = parse_braced_list(envi.get("band_names", ""))
    if len(listed) == len(names):
        names = listed
    return ["" if AUTOMATIC_DESCRIPTION.fullmatch(name) else name for name in names]


def _scale_and_offset(source: Any, envi: Mapping[str, str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    scale, offset = np.array(source.scales, dtype=np.float64), np.array(source.offsets, dtype=np.float64)
    factor = numbers([envi.get("reflectance_scale_factor", "")])
    if factor is not None and factor[0] > 0 and (scale == 1).all() and "data_gain_values" not in envi:
        scale = scale / factor[0]
    return scale, offset


def _nodata(source: Any, envi: Mapping[str, str], dtype: np.dtype[Any], exact: Mapping[str, Any]) -> float | None:
    text = exact.get("nodata") or source.tags().get("HYPERFUSE_NODATA") or envi.get("data_ignore_value")
    if text is None:
        nodata = source.nodata
        if nodata is None or dtype.kind == "f":
            return None if nodata is None else float(nodata)
        text = repr(nodata)
    try:
        value: float = float(text) if dtype.kind == "f" else int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
    except ValueError:
        return None
    if dtype.kind != "f":
        # A nodata value that the data type cannot hold never occurs among the pixels.
        limits = np.iinfo(dtype)
        if value != value or value != int(value) or not limits.min <= int(value) <= limits.max:
            return None
        return int(value)
    return value


def _transform(source: Any, exact: Mapping[str, Any]) -> Affine | None:
    native = None if source.transform.is_identity and source.crs is None else source.transform
    if not exact.get("transform"):
        return native
    own = Affine(*exact["transform"])
    rotated = own.b != 0 or own.d != 0
    moved = native is not None and not (~own @ native).almost_equals(Affine.identity(), 1e-6)
    # ENVI's map info knows no shear, and a header edited by hand must win over our exact copy.
    return native if moved and not rotated else own


def _attributes(source: Any, envi: Mapping[str, str]) -> dict[str, str]:
    tags = {key: value for key, value in source.tags().items() if key not in STORAGE_TAGS and not re.fullmatch(r"Band_\d+", key)}
    for key in ("sensor_type", "acquisition_time"):
        if key in envi:
            tags[key] = envi[key].strip("{} ")
    return tags


def _exact_envi_record(envi: Mapping[str, str], bands: int) -> dict[str, Any]:
    """What ENVI's own keys cannot hold exactly, written by `raster_writing` as one quoted JSON text."""
    text = envi.get(ENVI_OWN_KEY, "").strip("{} ")
    try:
        record = json.loads(urllib.parse.unquote(text)) if text else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) and len(record.get("band_name", [])) == bands else {}
