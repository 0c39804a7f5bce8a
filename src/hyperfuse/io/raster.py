"""Read rasters through GDAL (rasterio): GeoTIFF, COG, ENVI and everything else it opens, with all spectral metadata.

What a raster format cannot hold exactly (64-bit nodata, names with commas, ...) lies beside it as a record
{field: [exact, native]}. On reading, the exact value counts as long as the format still gives the native value of the
time of writing; where somebody has edited, warped or subset the file since, the format's own value wins.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import rasterio
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from hyperfuse.errors import BandError, CubeFileError
from hyperfuse.io.cube import (
    Lengths,
    fitting_nodata,
    lazy_variable,
    lengths_in_nanometres,
    make_cube,
    nodata_of,
    promises_too_much,
    text_attributes,
)
from hyperfuse.io.grid import grid_of

GDAL_ERRORS = (RasterioError, CPLE_BaseError)
MOST_BLOCKS_CHECKED = 20_000
RECORD_TAG = "HYPERFUSE_EXACT"
ENVI_RECORD_KEY = "hyperfuse"
# Tags of how GDAL stores or derived something, not of the scene.
STORAGE_TAGS = {"AREA_OR_POINT", "wavelength_units", "TIFFTAG_RESOLUTIONUNIT", "OVR_RESAMPLING_ALG", RECORD_TAG}
GDAL_ENVI_NAME = re.compile(r"Band \d+")

DATA_SUFFIXES = (".img", "", ".dat", ".bsq", ".bil", ".bip", ".raw", ".bin", ".sli")
BYTES_OF_DATA_TYPE = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 9: 16, 12: 2, 13: 4, 14: 8, 15: 8}
INTERLEAVES = ("bsq", "bil", "bip")
LARGEST_HEADER = 16 * 2**20
HEADER_LINE = re.compile(
    r"^[ \t]*(samples|lines|bands|data[ _]type|header[ _]offset|interleave|file compression)[ \t]*=([^\r\n]*)",
    re.IGNORECASE | re.MULTILINE,
)

BandTags = list[dict[str, str]]


def open_raster(path: Path) -> xr.DataArray:
    """Open a raster as a lazy cube: ENVI by its header or its data, GeoTIFF, and whatever else GDAL opens."""
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
    """Open `path` as a lazy cube; `data_path` is the file of the pixels where that is another one (ENVI's header)."""
    data_path = data_path or path
    with raster_dataset(data_path, driver) as source:
        dtype = _common_dtype(source, path)
        _check_blocks(source, data_path)
        check_truncated(source, data_path)
        tags = [source.tags(band) | source.tags(band, ns="IMAGERY") for band in source.indexes]
        wavelength, fwhm = _lengths(source, tags, path)
        folded = source.tags(ns="ENVI").get(ENVI_RECORD_KEY, "")
        record = "".join(folded.split()).strip("{}") or source.tags().get(RECORD_TAG)
        described = native_description(source, dtype, wavelength).with_exact_values(record)
        reader = RasterReader(str(data_path), driver, (source.count, source.height, source.width), dtype)
        return make_cube(
            lazy_variable(reader),
            wavelength_nm=wavelength,
            fwhm_nm=fwhm,
            good=_good_bands(source, tags),
            band_names=described.band_name,
            scale=described.scale,
            offset=described.offset,
            nodata=described.nodata_number(),
            crs=described.crs,
            transform=Affine(*described.transform) if described.transform else None,
            attributes=described.attributes,
        )


@dataclass(frozen=True)
class RasterReader:
    """`WindowReader` of a raster file."""

    path: str
    driver: str | None
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        window = Window.from_slices(rows, columns)
        with raster_dataset(Path(self.path), self.driver) as source:
            values: NDArray[Any] = source.read([int(band) + 1 for band in bands], window=window, out_dtype=self.dtype)
        return values


@contextmanager
def raster_dataset(path: Path, driver: str | None = None) -> Iterator[Any]:
    """Open a rasterio dataset; errors of GDAL, also of later reads, become one `CubeFileError`."""
    try:
        with warnings.catch_warnings(), rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=16):
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(path, driver=driver) as source:
                yield source
    except (*GDAL_ERRORS, ValueError, OverflowError, MemoryError) as error:
        got = f"{path} cannot be read: {gdal_message(error, path)}"
        raise CubeFileError(got, "a whole raster file", "fetch it again") from error


def gdal_message(error: BaseException, path: Path) -> str:
    """Return GDAL's own message on one line."""
    text = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
    return text.replace(str(path), path.name)[:200]


class Description(BaseModel):
    """The fields that raster formats are known to change, as JSON can hold them."""

    model_config = ConfigDict(strict=True)

    band_name: list[str]
    scale: list[float]
    offset: list[float]
    nodata: str | None
    crs: str | None
    transform: list[float] | None
    attributes: dict[str, str]

    @classmethod
    def of(cls, cube: xr.DataArray) -> Description:
        grid, nodata = grid_of(cube), nodata_of(cube)
        return cls(
            band_name=[str(name) for name in cube["band_name"].values],
            scale=cube["scale"].values.tolist(),
            offset=cube["offset"].values.tolist(),
            nodata=None if nodata is None else repr(nodata),
            crs=grid.crs.to_wkt() if grid.crs else None,
            transform=None if grid.transform is None else [float(number) for number in grid.transform[:6]],
            attributes=text_attributes(cube),
        )

    def nodata_number(self) -> float | None:
        if self.nodata is None:
            return None
        return int(self.nodata) if re.fullmatch(r"-?\d+", self.nodata) else float(self.nodata)

    def record(self, native: Description) -> str | None:
        """Return the differences as a text of letters, digits and percent signs, or None where there are none."""
        pairs = {name: [value, getattr(native, name)] for name, value in self.model_dump().items()}
        different = {name: pair for name, pair in pairs.items() if not _is_same(name, *pair)}
        return urllib.parse.quote(json.dumps(different), safe="") if different else None

    def with_exact_values(self, record: str | None) -> Description:
        """Return this native description with the values of a record as far as they still apply."""
        try:
            pairs = json.loads(urllib.parse.unquote(record or "{}")).items()
            kept = {
                name: exact
                for name, (exact, native) in pairs
                if name in Description.model_fields and _is_same(name, getattr(self, name), native)
            }
            described = Description(**self.model_dump() | kept)
            described.nodata_number()
            if described.crs:
                CRS.from_wkt(described.crs)
        except (AttributeError, TypeError, ValueError, CRSError):
            return self
        lengths = [len(each) for each in (described.band_name, described.scale, described.offset)]
        whole = lengths == [len(self.scale)] * 3 and len(described.transform or range(6)) == 6
        return described if whole else self


def _is_same(name: str, first: Any, second: Any) -> bool:
    if name == "crs" and isinstance(first, str) and isinstance(second, str):
        try:
            return bool(CRS.from_wkt(first) == CRS.from_wkt(second))
        except CRSError:
            return False
    return bool(first == second)


def native_description(source: Any, dtype: np.dtype[Any], wavelength_nm: Lengths | None) -> Description:
    """Describe a rasterio dataset by what the format itself holds, without our record."""
    envi = source.tags(ns="ENVI")
    scale, offset = _scale_and_offset(source, envi)
    nodata = _nodata(source, envi, dtype)
    has_place = source.crs or not source.transform.is_identity
    return Description(
        band_name=_names(source, envi, wavelength_nm),
        scale=scale.tolist(),
        offset=offset.tolist(),
        nodata=None if nodata is None else repr(nodata),
        crs=source.crs.to_wkt() if source.crs else None,
        transform=[float(number) for number in source.transform[:6]] if has_place else None,
        attributes=_attributes(source, envi),
    )


def automatic_description(index: int, wavelength_nm: float) -> str:
    """Name a band without a name in a GeoTIFF: "B012 553.2 nm"; index counts from 1."""
    return "" if np.isnan(wavelength_nm) else f"B{index:03d} {wavelength_nm:.1f} nm"


def _lengths(source: Any, tags: BandTags, path: Path) -> tuple[Lengths | None, Lengths | None]:
    """Wavelengths and widths in nm: ENVI's own lists, then band tags, then IMAGERY, which GDAL rounds for ENVI."""
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


def _envi_list(key: str, envi: Mapping[str, str], bands: int, path: Path) -> Lengths | None:
    if key not in envi:
        return None
    values = braced_numbers(envi[key])
    if values is None:
        warnings.warn(f"{path}: `{key}` is not a list of numbers and is left out", stacklevel=4)
    elif values.size != bands:
        got = f"{path}: {key} list of {values.size} entries for {bands} bands"
        raise BandError(got, f"{bands} entries", f"fix `{key}` in the header")
    return values


def parse_braced_list(text: str) -> list[str]:
    """Parse the entries of an ENVI list such as "{ 400.1, 500.2 }"."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    return [entry.strip() for entry in inner.split(",")] if inner else []


def braced_numbers(text: str) -> Lengths | None:
    """Parse an ENVI list of numbers, or return None; many writers leave a comma behind the last entry."""
    entries = parse_braced_list(text)
    return numbers(entries[:-1] if len(entries) > 1 and not entries[-1] else entries)


def numbers(entries: Sequence[str]) -> Lengths | None:
    """Return entries as numbers, or None where one of them is not."""
    try:
        return np.array([float(entry) for entry in entries], dtype=np.float64)
    except ValueError:
        return None


def _tag_column(key: str, tags: BandTags) -> Lengths | None:
    texts = [each.get(key) for each in tags]
    return numbers([text or "nan" for text in texts]) if any(texts) else None


def _imagery(key: str, tags: BandTags) -> Lengths | None:
    values = _tag_column(key, tags)
    return None if values is None else np.round(values * 1e3, 6)


def _good_bands(source: Any, tags: BandTags) -> NDArray[np.bool_] | None:
    envi = source.tags(ns="ENVI")
    if "bbl" in envi:
        values = braced_numbers(envi["bbl"])
    else:
        values = numbers([each.get("bbl", each.get("BadBandMultiplier", "1")) for each in tags])
    return values != 0 if values is not None and values.size == source.count else None


def _names(source: Any, envi: Mapping[str, str], wavelength_nm: Lengths | None) -> list[str]:
    """Band names without generated ones; not GDAL's descriptions of ENVI bands, to which it appends wavelengths."""
    names = [description or "" for description in source.descriptions]
    if envi:
        listed = parse_braced_list(envi.get("band_names", ""))
        names = listed if len(listed) == len(names) else names
        return ["" if GDAL_ENVI_NAME.fullmatch(name) else name for name in names]
    centres = np.full(len(names), np.nan) if wavelength_nm is None else wavelength_nm
    generated = [automatic_description(index, centre) for index, centre in enumerate(centres, start=1)]
    return ["" if name == automatic else name for name, automatic in zip(names, generated, strict=True)]


def _scale_and_offset(source: Any, envi: Mapping[str, str]) -> tuple[Lengths, Lengths]:
    scale, offset = np.array(source.scales, dtype=np.float64), np.array(source.offsets, dtype=np.float64)
    factor = numbers([envi.get("reflectance_scale_factor", "")])
    if factor is not None and 0 < factor[0] < np.inf and (scale == 1).all() and "data_gain_values" not in envi:
        scale = scale / factor[0]
    return scale, offset


def _nodata(source: Any, envi: Mapping[str, str], dtype: np.dtype[Any]) -> float | None:
    text = envi.get("data_ignore_value", "")
    if re.fullmatch(r"\s*[-+]?\d{1,20}\s*", text):
        return fitting_nodata(int(text), dtype)
    listed = numbers([text]) if text else None
    return fitting_nodata(source.nodata if listed is None else listed[0], dtype)


def _attributes(source: Any, envi: Mapping[str, str]) -> dict[str, str]:
    tags = source.tags().items()
    attributes = {key: value for key, value in tags if key not in STORAGE_TAGS and not re.fullmatch(r"Band_\d+", key)}
    return attributes | {key: envi[key].strip("{} ") for key in ("sensor_type", "acquisition_time") if key in envi}


def _common_dtype(source: Any, path: Path) -> np.dtype[Any]:
    if source.count == 0:
        raise CubeFileError(f"{path} has no bands", "at least one", "name one of its subdatasets")
    dtype = np.result_type(*{np.dtype(name) for name in source.dtypes})
    if dtype.kind not in "iuf":
        raise CubeFileError(f"{path} holds values of type {dtype}", "integers or real numbers", "convert it first")
    return dtype


def _check_blocks(source: Any, path: Path) -> None:
    """Refuse blocks that the file cannot hold: GDAL allocates a whole one, of all bands if they are interleaved."""
    height, width = source.block_shapes[0]
    together = source.count if str(source.profile.get("interleave")) == "pixel" else 1
    if promises_too_much(height * width * together * np.dtype(source.dtypes[0]).itemsize, _held_bytes(path)):
        got = f"{path} promises blocks of {height} x {width} pixels, {together} bands together"
        raise CubeFileError(got, "a whole file", "fetch it again")


def check_truncated(source: Any, path: Path) -> None:
    """Refuse a GeoTIFF whose last blocks lie behind the end of the file."""
    if source.driver == "GTiff" and missing_blocks(source, path, all_rows=False):
        got = f"{path} is truncated: its last pixels lie behind its end"
        raise CubeFileError(got, "a whole file", "fetch it again")


def missing_blocks(source: Any, path: Path, *, all_rows: bool) -> int:
    """Count the blocks of a TIFF behind the end of the file, of all rows or the last; unwritten ones do not count."""
    size = _held_bytes(path)
    height, width = source.block_shapes[0]
    rows, columns = -(-source.height // height), -(-source.width // width)
    bands = source.indexes[:1] if str(source.profile.get("interleave")) == "pixel" else source.indexes
    blocks = [(band, y, x) for band in bands for y in range(0 if all_rows else rows - 1, rows) for x in range(columns)]
    missing = 0
    for band, y, x in blocks if all_rows else blocks[-MOST_BLOCKS_CHECKED:]:
        offset, length = (source.get_tag_item(f"BLOCK_{key}_{x}_{y}", "TIFF", bidx=band) for key in ("OFFSET", "SIZE"))
        missing += offset is not None and length is not None and int(offset) + int(length) > size
    return missing


def _held_bytes(path: Path) -> int:
    """Size of a file, or of the part of a file that GDAL is to read: /vsisubfile/OFFSET_SIZE,FILE."""
    part = re.match(r"/vsisubfile/\d+_(\d+),", str(path))
    return int(part[1]) if part else path.stat().st_size


def find_header(data: Path) -> Path | None:
    """Find the ENVI header beside a data file: `scene.hdr` or `scene.img.hdr`."""
    for header in (data.with_name(data.name + ".hdr"), data.with_suffix(".hdr")):
        if header.is_file() and header != data and _is_envi_header(header):
            return header
    return None


def find_data(header: Path) -> Path:
    """Find the data file beside an ENVI header; among several, the one of the size that the header promises."""
    stem = header.with_suffix("")
    names = [stem.name + suffix for suffix in dict.fromkeys((*DATA_SUFFIXES, *map(str.upper, DATA_SUFFIXES)))]
    candidates = [path for path in map(stem.with_name, names) if path.is_file()]
    if not candidates:
        tried = ", ".join(sorted(names))
        raise CubeFileError(f"{header} has no data file beside it", f"one of {tried}", "put both files into one folder")
    if len(candidates) == 1:
        return candidates[0]
    promised = _promised_bytes(header)
    return next((path for path in candidates if path.stat().st_size == promised), candidates[0])


def check_header(header: Path, data: Path) -> None:
    """Refuse an ENVI header that promises more pixels than the data file holds, before memory is allocated for them."""
    promised, held = _promised_bytes(header), data.stat().st_size
    if held < promised:
        got = f"{data} holds {held} bytes, but its header promises {promised}"
        remedy = "fetch the data again or fix samples, lines, bands, data type in the header"
        raise CubeFileError(got, "a whole file and a header that fits", remedy)


def _promised_bytes(header: Path) -> int:
    """Size that the data file of this header must have; 0 where it is compressed, so that nothing is known."""
    if header.stat().st_size > LARGEST_HEADER or not _is_envi_header(header):
        got = f"{header} is not an ENVI header"
        raise CubeFileError(got, "a text file that begins with ENVI", "name the header of an ENVI file")
    text = header.read_text(encoding="utf-8", errors="replace")
    if text.rfind("{") > text.rfind("}"):
        # GDAL leaves out a list without an end.
        raise CubeFileError(f"{header} ends in the middle of a {{list}}", "a whole header", "fetch it again")
    entries: dict[str, set[str]] = {}
    for key, value in HEADER_LINE.findall(text):
        entries.setdefault(key.lower().replace("_", " "), set()).add(value.strip())
    for value in entries.get("interleave", ()):
        # GDAL takes an unknown interleave for bsq.
        if value.lower() not in INTERLEAVES:
            _refuse_header(header, f"interleave = {value[:40]}", f"one of {', '.join(INTERLEAVES)}")
    sizes = [_integer(entries, key, header) for key in ("samples", "lines", "bands")]
    data_type, offset = _integer(entries, "data type", header), _integer(entries, "header offset", header, default=0)
    if data_type not in BYTES_OF_DATA_TYPE:
        _refuse_header(header, f"data type = {data_type}", f"one of {', '.join(map(str, BYTES_OF_DATA_TYPE))}")
    if min(sizes) < 1 or offset < 0:
        got = ", ".join(map(str, (*sizes, offset)))
        _refuse_header(header, f"samples, lines, bands, header offset = {got}", "at least 1, 1, 1, 0")
    if any(value.startswith("1") for value in entries.get("file compression", ())):
        return 0
    return offset + math.prod(sizes) * BYTES_OF_DATA_TYPE[data_type]


def _is_envi_header(header: Path) -> bool:
    with header.open("rb") as file:
        return file.read(16).lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"ENVI")


def _integer(entries: Mapping[str, set[str]], key: str, header: Path, default: int | None = None) -> int:
    values = sorted(entries.get(key, ()))
    if len(values) > 1:
        _refuse_header(header, f"`{key}` given more than once: {', '.join(values)[:60]}", "one value")
    if not values and default is not None:
        return default
    if not values or not re.fullmatch(r"[-+]?\d{1,18}", values[0]):
        got = f"`{key} = {values[0][:40]}`" if values else f"no `{key}`"
        _refuse_header(header, got, f"`{key} = ` and a whole number")
    return int(values[0])


def _refuse_header(header: Path, got: str, expected: str) -> NoReturn:
    raise CubeFileError(f"{header}: {got}", expected, "fix the header")
