"""Reading rasters through GDAL (rasterio): GeoTIFF, COG, ENVI and whatever else it opens, with all spectral metadata.

What a raster says about its bands, values and place, in the words of GDAL, ENVI and others.
"""

from __future__ import annotations

import re
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
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from hyperfuse.errors import BandError, CubeFileError
from hyperfuse.io.bands import braced_numbers, lengths_in_nanometres, numbers, parse_braced_list
from hyperfuse.io.cube import fitting_nodata, make_cube
from hyperfuse.io.envi import check_header, find_data, find_header
from hyperfuse.io.lazy import lazy_variable, promises_too_much
from hyperfuse.io.provenance import Description, crs_text, transform_list, with_exact_values

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
            f"{path}: {key} list of {values.size} entries for {bands} bands",
            f"{bands} entries",
            f"mend `{key}` in the header",
        )
    return values


def _tag_column(key: str, tags: BandTags) -> Lengths | None:
    texts = [each.get(key) for each in tags]
    return numbers([text or "nan" for text in texts]) if any(texts) else None


def _imagery(key: str, tags: BandTags) -> Lengths | None:
    values = _tag_column(key, tags)
    return None if values is None else np.round(values * 1e3, 6)


def _names(source: Any, envi: Mapping[str, str], wavelength_nm: Lengths | None) -> list[str]:
    """Band names without those that GDAL or hyperfuse made up (and without the wavelength that GDAL's ENVI driver
    appends).
    """
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
    tags = {
        key: value
        for key, value in source.tags().items()
        if key not in STORAGE_TAGS and not re.fullmatch(r"Band_\d+", key)
    }
    for key in ("sensor_type", "acquisition_time"):
        if key in envi:
            tags[key] = envi[key].strip("{} ")
    return tags


GDAL_ERRORS = (RasterioError, CPLE_BaseError)
MOST_BLOCKS_CHECKED = 20_000


@dataclass(frozen=True)
class RasterReader:
    path: str
    driver: str | None
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        window = Window(columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start)
        with opened_raster(Path(self.path), self.driver) as source:
            values: NDArray[Any] = source.read([int(band) + 1 for band in bands], window=window, out_dtype=self.dtype)
        return values


@contextmanager
def opened_raster(path: Path, driver: str | None = None) -> Iterator[Any]:
    """A rasterio dataset; GDAL's complaints, also those of later reads, become one `CubeFileError`."""
    try:
        with warnings.catch_warnings(), rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=16):
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(path, driver=driver) as source:
                yield source
    except (*GDAL_ERRORS, ValueError, OverflowError, MemoryError) as error:
        raise CubeFileError(
            f"{path} cannot be read: {reason(error, path)}", "a whole raster file", "fetch it again"
        ) from error


def reason(error: BaseException, path: Path) -> str:
    """GDAL's own words, on one line."""
    text = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
    return text.replace(str(path), path.name)[:200]


def open_raster_file(path: Path) -> xr.DataArray:
    """A raster by its name: ENVI by its header or its data, GeoTIFF, and whatever else GDAL opens."""
    suffix = path.suffix.lower()
    if suffix == ".hdr":
        data = find_data(path)
        check_header(path, data)
        return read_raster(path, data, "ENVI")
    if suffix in (".tif", ".tiff"):
        return read_raster(path, driver="GTiff")
    header = find_header(path)
    if header is None:
        return read_raster(path)
    check_header(header, path)
    return read_raster(path, driver="ENVI")


def read_raster(path: Path, data_path: Path | None = None, driver: str | None = None) -> xr.DataArray:
    """A lazy cube of `path`; `data_path` is where the pixels are when that is another file (ENVI's header named by the
    user).
    """
    data_path = data_path or path
    with opened_raster(data_path, driver) as source:
        dtype = _common_dtype(source, path)
        _refuse_huge_blocks(source, data_path)
        refuse_truncated(source, data_path)
        tags = band_tags(source)
        wavelength, fwhm = lengths(source, tags, path)
        described = with_exact_values(natively_described(source, dtype, wavelength), record_of(source))
        reader = RasterReader(str(data_path), driver, (source.count, source.height, source.width), dtype)
        return make_cube(
            lazy_variable(reader),
            wavelength_nm=wavelength,
            fwhm_nm=fwhm,
            good=good_bands(source, tags),
            band_names=described.band_name,
            scale=described.scale,
            offset=described.offset,
            nodata=described.nodata_number(),
            crs=CRS.from_wkt(described.crs) if described.crs else None,
            transform=Affine(*described.transform) if described.transform else None,
            attributes=described.attributes,
        )


def held_bytes(path: Path) -> int:
    """The size of a file, or of the stretch of a file that GDAL is to read: /vsisubfile/OFFSET_SIZE,FILE."""
    stretch = re.match(r"/vsisubfile/\d+_(\d+),", str(path))
    return int(stretch[1]) if stretch else path.stat().st_size


def missing_blocks(source: Any, path: Path, *, all_rows: bool) -> int:
    """How many blocks of a TIFF lie beyond the end of the file, of all or of the last row; blocks never written do not
    count.
    """
    size = held_bytes(path)
    height, width = source.block_shapes[0]
    rows, columns = -(-source.height // height), -(-source.width // width)
    looked_at = range(rows) if all_rows else range(rows - 1, rows)
    bands = source.indexes[:1] if str(source.profile.get("interleave")) == "pixel" else source.indexes
    places = [(band, y, x) for band in bands for y in looked_at for x in range(columns)]
    beyond = 0
    for band, y, x in places if all_rows else places[-MOST_BLOCKS_CHECKED:]:
        offset, length = (
            source.get_tag_item(f"BLOCK_{word}_{x}_{y}", "TIFF", bidx=band) for word in ("OFFSET", "SIZE")
        )
        beyond += offset is not None and length is not None and int(offset) + int(length) > size
    return beyond


def _common_dtype(source: Any, path: Path) -> np.dtype[Any]:
    if source.count == 0:
        raise CubeFileError(f"{path} has no bands", "at least one", "name one of its subdatasets")
    dtype = np.result_type(*{np.dtype(name) for name in source.dtypes})
    if dtype.kind not in "iuf":
        raise CubeFileError(f"{path} holds values of type {dtype}", "integers or real numbers", "convert it first")
    return dtype


def _refuse_huge_blocks(source: Any, path: Path) -> None:
    """GDAL allocates a whole block, of all bands if they are stored together, however long the file is."""
    height, width = source.block_shapes[0]
    together = source.count if str(source.profile.get("interleave")) == "pixel" else 1
    if promises_too_much(height * width * together * np.dtype(source.dtypes[0]).itemsize, held_bytes(path)):
        raise CubeFileError(
            f"{path} promises blocks of {height} x {width} pixels, {together} bands together",
            "a whole file",
            "fetch it again",
        )


def refuse_truncated(source: Any, path: Path) -> None:
    if source.driver == "GTiff" and missing_blocks(source, path, all_rows=False):
        raise CubeFileError(
            f"{path} is truncated: its last pixels lie beyond its end", "a whole file", "fetch it again"
        )
