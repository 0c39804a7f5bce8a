"""Rasters through GDAL (rasterio), with every band's metadata: GeoTIFF, COG and ENVI; others that it opens are read.

What a raster format cannot store exactly (64-bit nodata, names with commas, ...) is kept beside it as a record
{field: [exact, native]}. On reading, the exact value counts as long as the format still gives the native value of the
time of writing; where the file has been edited, warped or subset since, the format's own value wins.

ENVI's pixels are not written through GDAL: its blocks there are single rows of single bands, and each would be read,
changed and written again for every window that is narrower than the image.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
import rasterio.shutil
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, Interleaving, Resampling
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError
from rasterio.io import MemoryFile
from rasterio.windows import Window

from hyperfuse.errors import BandError, CubeFileError, CubeWriteError, OptionError
from hyperfuse.io.atomic import GuardedOpener, WriteWindow
from hyperfuse.io.cube import (
    Lengths,
    WindowReader,
    fitting_nodata,
    lazy_variable,
    lengths_in_nanometres,
    make_cube,
    nodata_of,
    numbers,
    text_attributes,
)
from hyperfuse.io.envi import (
    FILE_AXES,
    LONGEST_LINE,
    braced_numbers,
    check_header,
    esri_wavelengths,
    find_data,
    find_header,
    fold_line,
    parse_braced_list,
    raw_writer,
)
from hyperfuse.io.grid import grid_of
from hyperfuse.io.output import OWN_NAME, colour_bands
from hyperfuse.io.stac import stac_bands

if TYPE_CHECKING:
    from hyperfuse.io.products.product import ProductFile

GDAL_ERRORS = (RasterioError, CPLE_BaseError)
# GDAL's words for a file of no format that it knows, and what can be done about it.
UNRECOGNISED = "not recognized as being in a supported file format"
UNDERSTOOD = "ENVI, GeoTIFF, NetCDF, HDF5, Zarr, MATLAB, NumPy, another raster of GDAL or an agency's product"
CONVERT = "if it is whole, convert it to one of these, such as with gdal_translate"
HINTS = {
    (".txt", ".csv", ".tab", ".xml", ".json"): "name the image; a table of wavelengths is given by --wavelengths FILE",
    (
        ".raw",
        ".bin",
        ".dat",
        ".img",
        ".bsq",
        ".bil",
        ".bip",
        ".fla",
    ): "plain numbers need an ENVI header, NAME.hdr, beside them",
    (".hdf", ".l1r"): "HDF4 is not supported: convert it with gdal_translate",
}
MOST_BLOCKS_CHECKED = 20_000
CRISM_FILL = 65535
RECORD_TAG = "HYPERFUSE_EXACT"
ENVI_RECORD_KEY = "hyperfuse"
# Tags of how GDAL stores or derived something, not of the scene.
STORAGE_TAGS = {"area_or_point", "tifftag_resolutionunit", "ovr_resampling_alg", RECORD_TAG.lower()}
# Tags of single bands or of the dataset that fill the band table, spelled as in `_normalised`.
CENTRE_TAGS = ("wavelength", "wavelengths", "center_wavelength", "central_wavelength")
WIDTH_TAGS = ("fwhm", "fwhms", "full_width_half_max")
UNIT_TAGS = ("wavelength_units", "wavelength_unit", "wavelengths_units")
TABLE_TAGS = {*CENTRE_TAGS, *WIDTH_TAGS, *UNIT_TAGS, "bbl"}
GDAL_ENVI_NAME = re.compile(r"Band \d+")

BLOCK = 256
# Each thread that compresses has a block of its own, which in a COG may be large: on a machine of many cores all of
# them would take gigabytes.
PLAIN_THREADS, COG_THREADS = "4", "2"
# Larger integers are rounded on their way through GDAL's floating-point nodata.
LARGEST_EXACT_NODATA = 2**53
ENVI_TYPES = {"uint8", "int16", "int32", "float32", "float64", "uint16", "uint32", "int64", "uint64"}
TIFF_TYPES = ENVI_TYPES | {"int8"}
LARGEST_COG_BLOCK = 16 * 2**20
# For tiles at the edges, and bands that compress less well together.
COG_OVER_PLAIN = 1.2
# Compressions that gain by storing differences between neighbours.
WITH_PREDICTOR = ("deflate", "zstd", "lzw")
# What the cube itself decides, and rasterio would take from the options as well.
NOT_AN_OPTION = {"driver", "count", "height", "width", "dtype", "crs", "transform", "nodata"}

# Where tags of a single band lie.
DOMAINS = (None, "IMAGERY", "ENVI")

BandTags = list[dict[str, str]]


def open_raster(path: Path, member: ProductFile | None = None) -> xr.DataArray:
    """Open a raster as a lazy cube: ENVI by its header or its data, GeoTIFF, and whatever else GDAL opens.

    `member` is the file in an archive that was unpacked to `path`; another process unpacks it again.
    """
    suffix = path.suffix.lower()
    if suffix == ".hdr":
        data = find_data(path)
        check_header(path, data)
        return read_raster(path, data, "ENVI")
    if suffix in (".tif", ".tiff"):
        return read_raster(path, driver="GTiff")
    header = find_header(path)
    if header is None:
        # Images of planetary missions are described by a label beside them (PDS3).
        labels = (path.with_suffix(suffix) for suffix in (".lbl", ".LBL") if suffix != path.suffix)
        return read_raster(path, next((label for label in labels if label.is_file()), path))
    check_header(header, path)
    return read_raster(path, driver="ENVI", member=member)


def read_raster(
    path: Path, data_path: Path | None = None, driver: str | None = None, member: ProductFile | None = None
) -> xr.DataArray:
    """Open `path` as a lazy cube; `data_path` is the file of the pixels where that is another one (ENVI's header)."""
    data_path = data_path or path
    with raster_dataset(data_path, driver) as source:
        dtype = _common_dtype(source, path)
        check_truncated(source, data_path)
        tags = [_normalised(*(source.tags(band, ns=domain) for domain in DOMAINS)) for band in source.indexes]
        beside = stac_bands(path, source.count) or esri_wavelengths(path, source.count)
        wavelength, fwhm = _lengths(source, tags, beside, path)
        folded = source.tags(ns="ENVI").get(ENVI_RECORD_KEY, "")
        record = "".join(folded.split()).strip("{}") or source.tags().get(RECORD_TAG)
        described = native_description(source, dtype, wavelength).with_exact_values(record)
        read = partial(_read_window, member or data_path, driver, dtype)
        together = source.count if source.interleaving == Interleaving.pixel else 1
        shape, block = (source.count, source.height, source.width), (together, *source.block_shapes[0])
        reader = WindowReader(shape, dtype, read, block)
        return make_cube(
            lazy_variable(reader),
            wavelength_nm=wavelength,
            fwhm_nm=fwhm,
            good=_good_bands(source, tags),
            band_names=described.band_name if any(described.band_name) else beside.get("band_name"),
            scale=described.scale,
            offset=described.offset,
            nodata=described.nodata_number(),
            crs=described.crs,
            transform=Affine(*described.transform) if described.transform else None,
            attributes=described.attributes,
        )


def _read_window(
    file: Path | ProductFile,
    driver: str | None,
    dtype: np.dtype[Any],
    bands: NDArray[np.int64],
    rows: slice,
    columns: slice,
) -> NDArray[Any]:
    with raster_dataset(file if isinstance(file, Path) else file.gdal_path(), driver) as source:
        window = Window.from_slices(rows, columns)
        values: NDArray[Any] = source.read([int(band) + 1 for band in bands], window=window, out_dtype=dtype)
    return values


@contextmanager
def raster_dataset(path: Path, driver: str | None = None) -> Iterator[Any]:
    """Open a rasterio dataset; errors of GDAL, also of later reads, become one `CubeFileError`."""
    try:
        pool = rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=16)
        with _not_georeferenced(), pool, rasterio.open(path, driver=driver) as source:
            yield source
    except (*GDAL_ERRORS, ValueError, OverflowError, MemoryError) as error:
        if driver is None and UNRECOGNISED in str(error):
            remedy = next((hint for suffixes, hint in HINTS.items() if path.suffix.lower() in suffixes), CONVERT)
            raise CubeFileError(f"{path} is not understood", UNDERSTOOD, remedy) from error
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
    envi = _normalised(source.tags(ns="ENVI"))
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


def _normalised(*domains: Mapping[str, str]) -> dict[str, str]:
    """Tags under one spelling: some writers use capitals, or blanks for underscores ("wavelength units")."""
    return {key.strip().lower().replace(" ", "_"): value for tags in domains for key, value in tags.items()}


def _lengths(
    source: Any, tags: BandTags, beside: Mapping[str, Any], path: Path
) -> tuple[Lengths | None, Lengths | None]:
    """Wavelengths and widths in nm from the first place that has them; GDAL rounds those in IMAGERY for ENVI."""
    described = {key: text for key, text in _normalised(source.tags()).items() if _has_entries(text, source.count)}
    for listed in (_normalised(source.tags(ns="ENVI")), described):
        centres, widths = (_listed(keys, listed, source.count, path) for keys in (CENTRE_TAGS, WIDTH_TAGS))
        if centres is not None or widths is not None:
            unit = _first(UNIT_TAGS, listed) or _first(UNIT_TAGS, _normalised(source.tags()))
            return lengths_in_nanometres(centres, widths, unit, None, str(path))
    centres, widths = _tag_column(CENTRE_TAGS, tags), _tag_column(WIDTH_TAGS, tags)
    if centres is None and widths is None:
        imagery = _imagery("central_wavelength_um", tags), _imagery("fwhm_um", tags)
        is_known = any(each is not None for each in imagery)
        return imagery if is_known else (beside.get("wavelength"), beside.get("fwhm"))
    units = {unit for each in tags if (unit := _first(UNIT_TAGS, each))}
    centres, widths = lengths_in_nanometres(centres, widths, units.pop() if len(units) == 1 else None, None, str(path))
    return centres, _imagery("fwhm_um", tags) if widths is None else widths


def _has_entries(text: str, bands: int) -> bool:
    values = braced_numbers(text)
    return values is not None and values.size == bands


def _first(keys: Sequence[str], tags: Mapping[str, str]) -> str | None:
    return next((tags[key] for key in keys if tags.get(key)), None)


def _listed(keys: Sequence[str], tags: Mapping[str, str], bands: int, path: Path) -> Lengths | None:
    """A list of numbers, one per band, among the tags of a dataset."""
    key = next((key for key in keys if key in tags), None)
    if key is None:
        return None
    values = braced_numbers(tags[key])
    if values is None:
        warnings.warn(f"{path}: `{key}` is not a list of numbers and is left out", stacklevel=4)
    elif values.size != bands:
        got = f"{path}: {key} list of {values.size} entries for {bands} bands"
        raise BandError(got, f"{bands} entries", f"fix `{key}` in the header")
    return values


def _tag_column(keys: Sequence[str], tags: BandTags) -> Lengths | None:
    texts = [_first(keys, each) for each in tags]
    return numbers([text or "nan" for text in texts]) if any(texts) else None


def _imagery(key: str, tags: BandTags) -> Lengths | None:
    values = _tag_column([key], tags)
    return None if values is None else np.round(values * 1e3, 6)


def _good_bands(source: Any, tags: BandTags) -> NDArray[np.bool_] | None:
    listed = _normalised(source.tags(), source.tags(ns="ENVI")).get("bbl")
    if listed is not None:
        values = braced_numbers(listed)
    else:
        values = numbers([each.get("bbl", each.get("badbandmultiplier", "1")) for each in tags])
    return values != 0 if values is not None and values.size == source.count else None


def _names(source: Any, envi: Mapping[str, str], wavelength_nm: Lengths | None) -> list[str]:
    """Band names without generated ones; not GDAL's descriptions of ENVI bands, to which it appends wavelengths."""
    names = [description or "" for description in source.descriptions]
    listed = parse_braced_list(envi.get("band_names", ""))
    if source.driver == "ENVI" or len(listed) == len(names):
        names = listed if len(listed) == len(names) else [""] * len(names)
        names = ["" if GDAL_ENVI_NAME.fullmatch(name) else name for name in names]
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
    text = _first(("data_ignore_value", "no_data_value"), envi) or ""
    if re.fullmatch(r"\s*[-+]?\d{1,20}\s*", text):
        return fitting_nodata(int(text), dtype)
    if source.tags().get("INSTRUMENT_ID") == "CRISM":
        # Its labels do not say so, and GDAL takes another value for images of PDS3.
        return fitting_nodata(CRISM_FILL, dtype)
    listed = numbers([text]) if text else None
    return fitting_nodata(source.nodata if listed is None else listed[0], dtype)


def _attributes(source: Any, envi: Mapping[str, str]) -> dict[str, str]:
    tags = source.tags().items()
    attributes = {
        key: value
        for key, value in tags
        if value
        and next(iter(_normalised({key: ""}))) not in STORAGE_TAGS | TABLE_TAGS
        and not re.fullmatch(r"Band_\d+", key)
    }
    return attributes | {key: envi[key].strip("{} ") for key in ("sensor_type", "acquisition_time") if key in envi}


def _common_dtype(source: Any, path: Path) -> np.dtype[Any]:
    if source.count == 0:
        raise CubeFileError(f"{path} has no bands", "at least one", "name one of its subdatasets")
    dtype = np.result_type(*{np.dtype(name) for name in source.dtypes})
    if dtype.kind not in "iuf":
        raise CubeFileError(f"{path} holds values of type {dtype}", "integers or real numbers", "convert it first")
    return dtype


def check_truncated(source: Any, path: Path) -> None:
    """Refuse a GeoTIFF whose last blocks lie beyond the end of the file."""
    if source.driver == "GTiff" and missing_blocks(source, path, all_rows=False):
        got = f"{path} is truncated: its last pixels lie beyond its end"
        raise CubeFileError(got, "a whole file", "fetch it again")


def missing_blocks(source: Any, path: Path, *, all_rows: bool) -> int:
    """Count the blocks of a TIFF beyond the end of the file, of all rows or the last; unwritten ones do not count."""
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


@contextmanager
def created_geotiff(
    path: Path, template: xr.DataArray, options: Mapping[str, str], *, cog: bool = False, overviews: bool = False
) -> Iterator[WriteWindow]:
    """Create a tiled, compressed GeoTIFF; a COG, which always has overviews, is a copy made at the end."""
    require_type(template.dtype.name, "GeoTIFF", TIFF_TYPES)
    chosen = _format_options(options)
    profile = {
        "driver": "GTiff",
        "bigtiff": "IF_SAFER",
        "compress": "deflate",
        "interleave": "band",
        "num_threads": PLAIN_THREADS,
    }
    if chosen.get("compress", "deflate").lower() in WITH_PREDICTOR:
        profile["predictor"] = "3" if template.dtype.kind == "f" else "2"
    block = _cog_block(template) if cog else BLOCK
    if min(template.sizes["y"], template.sizes["x"]) >= block:
        profile |= {"tiled": "yes", "blockxsize": str(block), "blockysize": str(block)}
    first = path.with_name(f"plain.{path.name}") if cog else path
    record = _record_for_tiff(template)
    opener = GuardedOpener()
    with _created(first, template, profile | ({} if cog else chosen), opener) as target:
        _tag_tiff(target, template, record)

        def write(rows: slice, columns: slice, block: NDArray[Any]) -> None:
            target.write(block, window=Window.from_slices(rows, columns))
            opener.raise_error()

        yield write
    opener.raise_error()
    if overviews or cog:
        # One thread, whatever the environment says: GDAL's workers would call our Python file while this one waits.
        with _gdal_errors(first), _not_georeferenced(), rasterio.Env(GDAL_NUM_THREADS="1"):
            with rasterio.open(first, "r+", driver="GTiff", opener=opener) as target:
                target.build_overviews(overview_factors(target.height, target.width), Resampling.average)
            opener.raise_error()
    _verify_tiff(first)
    if cog:
        _copy_to_cog(first, path, {"blocksize": str(block)} | chosen)


@contextmanager
def created_envi(header: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[WriteWindow]:
    """Create `scene.hdr` with its pixels in `scene.img`."""
    require_type(template.dtype.name, "ENVI", ENVI_TYPES)
    data = header.with_suffix(".img")
    profile = {"driver": "ENVI", "interleave": "bsq"} | _format_options(options)
    interleave = profile["interleave"].lower()
    if interleave not in FILE_AXES:
        raise OptionError(f"INTERLEAVE={profile['interleave']}", f"one of {', '.join(FILE_AXES)}")
    with _created(data, template, profile) as target:
        _reserve(data, template.nbytes)
        _tag_envi(target, template)
        with data.open("r+b", buffering=0) as file:
            yield raw_writer(file, template.shape, interleave)
    if data.stat().st_size < template.nbytes:
        raise _no_space(data)
    _complete_header(header, data, template)


def require_type(dtype: str, format_name: str, types: set[str]) -> None:
    """Raise `CubeWriteError` for a data type that the format does not know."""
    if dtype not in types:
        expected = f"one of {', '.join(sorted(types))}"
        raise CubeWriteError(f"{format_name} cannot hold {dtype}", expected, "choose another --dtype")


@contextmanager
def _created(
    path: Path, template: xr.DataArray, profile: Mapping[str, str], opener: GuardedOpener | None = None
) -> Iterator[Any]:
    _, height, width = template.shape
    with _gdal_errors(path), rasterio.Env(GDAL_PAM_ENABLED="NO"):
        with _refused_options(path), _not_georeferenced():
            shape = _profile(template)
            target = rasterio.open(path, "w", opener=opener, height=height, width=width, **profile, **shape)
        with target:
            _set_scaling(target, template)
            yield target


def _profile(template: xr.DataArray) -> dict[str, Any]:
    """What rasterio needs to know besides the size: bands, data type, CRS, transform and nodata."""
    grid, nodata = grid_of(template), nodata_of(template)
    is_rounded = nodata is not None and template.dtype.kind != "f" and abs(nodata) > LARGEST_EXACT_NODATA
    place = {
        "count": template.sizes["band"],
        "dtype": template.dtype.name,
        "crs": grid.crs,
        "nodata": None if is_rounded else nodata,
    }
    return place if grid.transform is None else place | {"transform": grid.transform}


def _set_scaling(target: Any, template: xr.DataArray) -> None:
    target.scales = tuple(template["scale"].values)
    target.offsets = tuple(template["offset"].values)


def _format_options(options: Mapping[str, str]) -> dict[str, str]:
    chosen = {key.lower(): value for key, value in options.items()}
    refused = sorted(NOT_AN_OPTION & set(chosen))
    if refused:
        got = f"--co {refused[0].upper()}=..."
        raise OptionError(got, "an option of the format", "the cube itself decides this one")
    return chosen


@contextmanager
def _refused_options(path: Path) -> Iterator[None]:
    """Raise for an option that GDAL does not know; it only logs a warning, which users do not see."""
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "creation option" in record.getMessage():
                messages.append(record.getMessage().rpartition(" in ")[2])

    listener, log = Listener(), logging.getLogger("rasterio._env")
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
    if messages:
        raise OptionError(messages[0], f"an option that {path.suffix} knows", "check --co NAME=VALUE")


@contextmanager
def _gdal_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except GDAL_ERRORS as error:
        got = f"cannot write {path.name}: {gdal_message(error, path)}"
        raise CubeWriteError(got, remedy="nothing was left behind; check space and options") from error


def _not_georeferenced() -> AbstractContextManager[Any]:
    return warnings.catch_warnings(action="ignore", category=NotGeoreferencedWarning)


def _no_space(path: Path) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", str(path))


def _reserve(path: Path, size: int) -> None:
    """Allocate the space of a file before it is filled, so that a full disk shows now and not as holes in the file."""
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


def overview_factors(height: int, width: int) -> list[int]:
    """Return 2, 4, 8, ... until the longer side fits into one block, as GDAL itself does."""
    return [2**level for level in range(1, 32) if max(height, width) > BLOCK * 2 ** (level - 1)]


def _verify_tiff(path: Path) -> None:
    """Check that every block is there: GDAL does not report those that did not fit on the disk on closing."""
    with _gdal_errors(path), _not_georeferenced(), rasterio.open(path, driver="GTiff") as written:
        if missing_blocks(written, path, all_rows=True):
            raise _no_space(path)
        written.read(1, window=Window(written.width - 1, written.height - 1, 1, 1))


def _cog_block(template: xr.DataArray) -> int:
    """Choose a block size: COG interleaves all bands of a block, and with hundreds of them 512 pixels are too many."""
    pixel_bytes = template.sizes["band"] * template.dtype.itemsize
    return next((size for size in (512, 256) if size * size * pixel_bytes <= LARGEST_COG_BLOCK), 128)


def _copy_to_cog(plain: Path, path: Path, chosen: Mapping[str, str]) -> None:
    """Copy with the overviews: made by the copy itself, they would be compressed again for every band."""
    if shutil.disk_usage(path.parent).free < plain.stat().st_size * COG_OVER_PLAIN:
        raise _no_space(path)
    settings = {"compress": "deflate", "bigtiff": "IF_SAFER", "predictor": "yes", "num_threads": COG_THREADS}
    with _gdal_errors(path), _refused_options(path), rasterio.Env(GDAL_PAM_ENABLED="NO"):
        rasterio.shutil.copy(plain, path, driver="COG", **settings | dict(chosen))
    plain.unlink()
    _verify_tiff(path)


def _record_for_tiff(template: xr.DataArray) -> str | None:
    """Find out with one pixel in memory what GeoTIFF cannot hold exactly, because a COG must not be edited later."""
    with _not_georeferenced(), _gdal_errors(Path("GeoTIFF")), MemoryFile() as memory:
        with memory.open(driver="GTiff", height=1, width=1, **_profile(template)) as target:
            _set_scaling(target, template)
            _tag_tiff(target, template, None)
        with memory.open() as source:
            native = native_description(source, template.dtype, template["wavelength"].values)
    return Description.of(template).record(native)


def _tag_tiff(target: Any, template: xr.DataArray, record: str | None) -> None:
    # GDAL keeps tags as NAME=VALUE lines: a name that would break them goes into the record alone.
    named = {key: text for key, text in text_attributes(template).items() if re.fullmatch(r"[A-Za-z_][\w .-]*", key)}
    target.update_tags(**named | ({} if record is None else {RECORD_TAG: record}))
    coloured = colour_bands(template)
    if coloured is not None:
        # Viewers show these bands at once.
        marks = dict(zip(coloured, (ColorInterp.red, ColorInterp.green, ColorInterp.blue), strict=True))
        target.colorinterp = [marks.get(band, ColorInterp.undefined) for band in range(target.count)]
    columns = (template[name].values for name in ("wavelength", "fwhm", "good", "band_name"))
    for index, (wavelength, fwhm, good, name) in enumerate(zip(*columns, strict=True), start=1):
        tags, imagery = {} if good else {"bbl": "0"}, {}
        for key, prefix, length in (("wavelength", "CENTRAL_WAVELENGTH", wavelength), ("fwhm", "FWHM", fwhm)):
            if not np.isnan(length):
                tags |= {key: repr(float(length)), "wavelength_units": "Nanometers"}
                imagery[f"{prefix}_UM"] = f"{length / 1e3:.6f}"
        description = name or automatic_description(index, wavelength)
        if description:
            target.set_band_description(index, description)
        target.update_tags(index, **tags)
        if imagery:
            target.update_tags(index, ns="IMAGERY", **imagery)


def _tag_envi(target: Any, template: xr.DataArray) -> None:
    # Other programs do not read our record: provenance also goes into plain keys.
    keys = {
        key: "{" + re.sub(r"[{}]", ";", " ".join(text.split())) + "}"
        for key, text in text_attributes(template).items()
        if OWN_NAME.fullmatch(key)
    }
    for key in ("wavelength", "fwhm"):
        values = template[key].values
        if not np.isnan(values).all():
            keys[key] = "{" + ", ".join(repr(float(value)) for value in values) + "}"
            keys["wavelength_units"] = "Nanometers"
    good, scale = template["good"].values, template["scale"].values
    if not good.all():
        keys["bbl"] = "{" + ", ".join("1" if flag else "0" for flag in good) + "}"
    if scale[0] > 0 and scale[0] != 1 and (scale == scale[0]).all() and (template["offset"].values == 0).all():
        keys["reflectance_scale_factor"] = f"{1 / scale[0]:.12g}"
    coloured = colour_bands(template)
    if coloured is not None:
        keys["default_bands"] = "{" + ", ".join(str(band + 1) for band in coloured) + "}"
    names = zip(template["band_name"].values, template["wavelength"].values, strict=True)
    for index, (name, wavelength) in enumerate(names, start=1):
        described = " ".join(re.sub(r"[,{}=]", ";", str(name)).split()) or automatic_description(index, wavelength)
        target.set_band_description(index, described or f"Band {index}")
    target.update_tags(ns="ENVI", **keys)


def _complete_header(header: Path, data: Path, template: xr.DataArray) -> None:
    """Replace the temporary path that GDAL puts into the description, and append the record."""
    text = header.read_text(encoding="utf-8", errors="surrogateescape")
    title = re.sub(r"[{}]", ";", header.stem)
    text = re.sub(r"\Adescription = \{.*?\}\n(?=samples)", "", text.removeprefix("ENVI\n"), count=1, flags=re.DOTALL)
    lines = [f"ENVI\ndescription = {{{title}}}", *(fold_line(line) for line in text.rstrip().splitlines())]
    header.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    with _gdal_errors(data), _not_georeferenced(), rasterio.open(data, driver="ENVI") as written:
        native = native_description(written, template.dtype, template["wavelength"].values)
    record = Description.of(template).record(native)
    if record:
        pieces = "\n".join(record[start : start + LONGEST_LINE] for start in range(0, len(record), LONGEST_LINE))
        with header.open("a", encoding="utf-8") as stream:
            stream.write(f"{ENVI_RECORD_KEY} = {{{pieces}}}\n")
