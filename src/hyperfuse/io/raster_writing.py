"""Writing rasters through GDAL (rasterio), window by window, with every band's metadata: GeoTIFF, COG, ENVI.

Windows straight into a file of plain numbers, as ENVI has it.

Not through GDAL: its blocks there are single rows of single bands, and a window that is narrower than the image would
have every one of them read, changed and written again.

Overviews: smaller versions of an image inside its GeoTIFF, so that a viewer shows a large scene at once.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
import xarray as xr
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile
from rasterio.windows import Window

from hyperfuse.errors import CubeWriteError, OptionError
from hyperfuse.io.atomic import GuardedOpener
from hyperfuse.io.cube import nodata_of
from hyperfuse.io.grid import grid_of
from hyperfuse.io.hdf5 import reserve
from hyperfuse.io.provenance import describe, record_text, text_attributes
from hyperfuse.io.raster import (
    ENVI_RECORD_KEY,
    GDAL_ERRORS,
    RECORD_TAG,
    automatic_description,
    missing_blocks,
    natively_described,
    reason,
)


class RawWriter:
    """`interleave` is bsq (band by band), bil (row by row, in it band by band) or bip (pixel by pixel)."""

    def __init__(self, file: FileIO, shape: tuple[int, int, int], dtype: np.dtype[Any], interleave: str) -> None:
        self._file = file
        self._bands, self._height, self._width = shape
        self._itemsize = dtype.itemsize
        self._interleave = interleave

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        is_wide = columns.stop - columns.start == self._width
        if self._interleave == "bip":
            pixels = np.ascontiguousarray(block.transpose(1, 2, 0))
            starts = [(row * self._width + columns.start) * self._bands for row in range(rows.start, rows.stop)]
            self._put(starts, pixels, joined=is_wide)
        elif self._interleave == "bil":
            lines = np.ascontiguousarray(block.transpose(1, 0, 2))
            for row, line in zip(range(rows.start, rows.stop), lines, strict=True):
                starts = [(row * self._bands + band) * self._width + columns.start for band in range(self._bands)]
                self._put(starts, line, joined=is_wide)
        else:
            for band, plane in enumerate(np.ascontiguousarray(block)):
                starts = [
                    (band * self._height + row) * self._width + columns.start for row in range(rows.start, rows.stop)
                ]
                self._put(starts, plane, joined=is_wide)

    def _put(self, starts: list[int], pieces: NDArray[Any], *, joined: bool) -> None:
        """Pieces at their places, counted in values; where they follow each other, all in one go."""
        if joined:
            self._put_bytes(starts[0], pieces)
            return
        for start, piece in zip(starts, pieces, strict=True):
            self._put_bytes(start, piece)

    def _put_bytes(self, start: int, values: NDArray[Any]) -> None:
        left = values.data.cast("B")
        self._file.seek(start * self._itemsize)
        while left:
            left = left[self._file.write(left) :]


@contextmanager
def raw_writer(path: Path, shape: tuple[int, int, int], dtype: np.dtype[Any], interleave: str) -> Iterator[RawWriter]:
    """Into a file that exists."""
    with path.open("r+b", buffering=0) as file:
        yield RawWriter(file, shape, dtype, interleave)


# As GDAL itself decides: the last overview fits into one block.
SMALLEST_OVERVIEW = 256


def overview_factors(height: int, width: int) -> list[int]:
    """2, 4, 8, ... until the longer side fits into one block; none for an image that does so itself."""
    factors: list[int] = []
    while max(height, width) > SMALLEST_OVERVIEW * 2 ** len(factors):
        factors.append(2 ** (len(factors) + 1))
    return factors


def add_overviews(path: Path, opener: GuardedOpener) -> None:
    """Averages of the valid pixels, block by block, compressed as the image is."""
    # One thread, whatever the environment says: GDAL's workers would call our Python file while this thread waits for
    # them.
    with warnings.catch_warnings(), rasterio.Env(GDAL_NUM_THREADS="1"):
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "r+", driver="GTiff", opener=opener) as target:
            target.build_overviews(overview_factors(target.height, target.width), Resampling.average)
    opener.raise_error()


BLOCK = 256
# Each thread that compresses has a block of its own, which in a cloud-optimised file may be large: as many threads as a
# machine of many cores has would take gigabytes.
PLAIN_THREADS, COG_THREADS = "4", "2"
# Integers beyond this are rounded on their way through GDAL's floating-point nodata.
LARGEST_EXACT_NODATA = 2**53
ENVI_TYPES = {"uint8", "int16", "int32", "float32", "float64", "uint16", "uint32", "int64", "uint64"}
TIFF_TYPES = ENVI_TYPES | {"int8"}
LARGEST_COG_BLOCK = 16 * 2**20
# For tiles at the edges, and bands that compress less well together.
COG_OVER_PLAIN = 1.2
LONGEST_LINE = 2000
# Compressions that gain by storing differences between neighbours.
WITH_PREDICTOR = ("deflate", "zstd", "lzw")
INTERLEAVES = ("bsq", "bil", "bip")
# What the cube itself decides, and rasterio would take from the options as well.
NOT_AN_OPTION = {"driver", "count", "height", "width", "dtype", "crs", "transform", "nodata"}


class RasterWriter:
    def __init__(self, target: Any, opener: GuardedOpener | None = None) -> None:
        self._target = target
        self._opener = opener

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        window = Window(columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start)
        self._target.write(block, window=window)
        if self._opener is not None:
            self._opener.raise_error()


@contextmanager
def created_geotiff(
    path: Path, template: xr.DataArray, options: Mapping[str, str], *, cog: bool = False, overviews: bool = False
) -> Iterator[RasterWriter]:
    """A tiled, compressed GeoTIFF; a cloud-optimised one, which always has overviews, is a copy made at the end."""
    profile = {
        "driver": "GTiff",
        "bigtiff": "IF_SAFER",
        "compress": "deflate",
        "interleave": "band",
        "num_threads": PLAIN_THREADS,
    }
    profile["predictor"] = "3" if template.dtype.kind == "f" else "2"
    block = _cog_block(template) if cog else BLOCK
    if min(template.sizes["y"], template.sizes["x"]) >= block:
        profile |= {"tiled": "yes", "blockxsize": str(block), "blockysize": str(block)}
    chosen = _own_options(options)
    if chosen.get("compress", "deflate").lower() not in WITH_PREDICTOR:
        del profile["predictor"]
    first = path.with_name(f"plain.{path.name}") if cog else path
    _require_type(template.dtype.name, "GeoTIFF", TIFF_TYPES)
    record = _record_for_tiff(template)
    opener = GuardedOpener()
    with _created(first, template, profile | ({} if cog else chosen), opener) as target:
        _tag_tiff(target, template, record)
        yield RasterWriter(target, opener)
    opener.raise_error()
    if overviews or cog:
        with _gdal_errors(path):
            add_overviews(first, opener)
    _verify_tiff(first)
    if cog:
        _copy_to_cog(first, path, {"blocksize": str(block)} | chosen)


def _copy_to_cog(plain: Path, path: Path, chosen: Mapping[str, str]) -> None:
    """Block by block, overviews and all: made by the copy itself, overviews would be compressed again for every band."""
    _require_space(plain.stat().st_size * COG_OVER_PLAIN, path)
    settings = {"compress": "deflate", "bigtiff": "IF_SAFER", "predictor": "yes", "num_threads": COG_THREADS} | dict(
        chosen
    )
    with _gdal_errors(path), _refused_options(path), rasterio.Env(GDAL_PAM_ENABLED="NO"):
        rasterio.shutil.copy(plain, path, driver="COG", **settings)
    plain.unlink()
    _verify_tiff(path)


@contextmanager
def created_envi(header: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[RawWriter]:
    """`scene.hdr` with its pixels in `scene.img`."""
    data = header.with_suffix(".img")
    profile = {"driver": "ENVI", "interleave": "bsq"} | _own_options(options)
    if profile["interleave"].lower() not in INTERLEAVES:
        raise OptionError(f"INTERLEAVE={profile['interleave']}", f"one of {', '.join(INTERLEAVES)}")
    require_envi_type(template.dtype.name)
    with _created(data, template, profile) as target:
        reserve(data, template.nbytes)
        _tag_envi(target, template)
        bands, height, width = template.shape
        with raw_writer(data, (bands, height, width), template.dtype, profile["interleave"].lower()) as writer:
            yield writer
    if data.stat().st_size < template.nbytes:
        raise OSError(errno.ENOSPC, "No space left on device", str(data))
    _complete_header(header, data, template)


@contextmanager
def _created(
    path: Path, template: xr.DataArray, profile: Mapping[str, str], opener: GuardedOpener | None = None
) -> Iterator[Any]:
    bands, height, width = template.shape
    shape: dict[str, Any] = {"count": bands, "height": height, "width": width, "dtype": template.dtype.name}
    with _gdal_errors(path), rasterio.Env(GDAL_PAM_ENABLED="NO"):
        with _refused_options(path), warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            target = rasterio.open(path, "w", opener=opener, **profile, **shape, **_place_and_nodata(template))
        with target:
            target.scales = tuple(template["scale"].values)
            target.offsets = tuple(template["offset"].values)
            yield target


def require_envi_type(dtype: str) -> None:
    _require_type(dtype, "ENVI", ENVI_TYPES)


def _require_type(dtype: str, format_name: str, types: set[str]) -> None:
    if dtype not in types:
        raise CubeWriteError(
            f"{format_name} cannot hold {dtype}", f"one of {', '.join(sorted(types))}", "choose another --dtype"
        )


def _place_and_nodata(template: xr.DataArray) -> dict[str, Any]:
    grid = grid_of(template)
    place = {"crs": grid.crs} if grid.transform is None else {"crs": grid.crs, "transform": grid.transform}
    nodata = nodata_of(template)
    rounded = nodata is not None and template.dtype.kind != "f" and abs(nodata) > LARGEST_EXACT_NODATA
    return place | {"nodata": None if rounded else nodata}


def _own_options(options: Mapping[str, str]) -> dict[str, str]:
    chosen = {key.lower(): value for key, value in options.items()}
    refused = sorted(NOT_AN_OPTION & set(chosen))
    if refused:
        raise OptionError(
            f"--co {refused[0].upper()}=...", "an option of the format", "the cube itself decides this one"
        )
    return chosen


@contextmanager
def _refused_options(path: Path) -> Iterator[None]:
    """GDAL only logs a warning about an option that it does not know: a typing mistake that nobody would see."""
    complaints: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "creation option" in record.getMessage():
                complaints.append(record.getMessage().rpartition(" in ")[2])

    listener, log = Listener(), logging.getLogger("rasterio._env")
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
    if complaints:
        raise OptionError(complaints[0], f"an option that {path.suffix} knows", "check --co NAME=VALUE")


@contextmanager
def _gdal_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except GDAL_ERRORS as error:
        raise CubeWriteError(
            f"cannot write {path.name}: {reason(error, path)}",
            remedy="nothing was left behind; check space and options",
        ) from error


def _verify_tiff(path: Path) -> None:
    """GDAL keeps quiet about blocks that did not fit on the disk when a file is closed: look at every block's presence."""
    with _gdal_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, driver="GTiff") as written:
            if missing_blocks(written, path, all_rows=True):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            written.read(1, window=Window(written.width - 1, written.height - 1, 1, 1))


def _cog_block(template: xr.DataArray) -> int:
    """COG keeps all bands of a block together: with hundreds of them the usual 512 pixels are far too many to read at
    once.
    """
    pixel_bytes = template.sizes["band"] * template.dtype.itemsize
    return next((size for size in (512, 256) if size * size * pixel_bytes <= LARGEST_COG_BLOCK), 128)


def _require_space(size: float, path: Path) -> None:
    if shutil.disk_usage(path.parent).free < size:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def _record_for_tiff(template: xr.DataArray) -> str | None:
    """What GeoTIFF bends of this description: found out with one pixel in memory, because a COG must not be edited
    afterwards.
    """
    shape: dict[str, Any] = {"count": template.sizes["band"], "height": 1, "width": 1, "dtype": template.dtype.name}
    with warnings.catch_warnings(), _gdal_errors(Path("GeoTIFF")), MemoryFile() as memory:
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with memory.open(driver="GTiff", **shape, **_place_and_nodata(template)) as target:
            target.scales = tuple(template["scale"].values)
            target.offsets = tuple(template["offset"].values)
            _tag_tiff(target, template, None)
        with memory.open() as source:
            native = natively_described(source, template.dtype, template["wavelength"].values)
    return record_text(describe(template), native)


def _tag_tiff(target: Any, template: xr.DataArray, record: str | None) -> None:
    texts = describe(template).attributes
    # GDAL keeps tags as NAME=VALUE lines: a name that is none goes into the record alone.
    named = {key: text for key, text in texts.items() if re.fullmatch(r"[A-Za-z_][\w .-]*", key)}
    target.update_tags(**named | ({} if record is None else {RECORD_TAG: record}))
    for index, (wavelength, fwhm, good, name) in enumerate(_band_rows(template), start=1):
        tags = {} if good else {"bbl": "0"}
        imagery = {}
        if not np.isnan(wavelength):
            tags |= {"wavelength": repr(float(wavelength)), "wavelength_units": "Nanometers"}
            imagery["CENTRAL_WAVELENGTH_UM"] = f"{wavelength / 1e3:.6f}"
        if not np.isnan(fwhm):
            tags |= {"fwhm": repr(float(fwhm)), "wavelength_units": "Nanometers"}
            imagery["FWHM_UM"] = f"{fwhm / 1e3:.6f}"
        description = name or automatic_description(index, wavelength)
        if description:
            target.set_band_description(index, description)
        target.update_tags(index, **tags)
        if imagery:
            target.update_tags(index, ns="IMAGERY", **imagery)


def _tag_envi(target: Any, template: xr.DataArray) -> None:
    keys = {
        # Other programs do not read our record: how the cube was made is said in plain words too.
        key: "{" + re.sub(r"[{}]", ";", " ".join(text.split())) + "}"
        for key, text in text_attributes(template).items()
        if re.fullmatch(r"hyperfuse_[a-z_]+", key)
    }
    for key in ("wavelength", "fwhm"):
        values = template[key].values
        if not np.isnan(values).all():
            keys[key] = "{" + ", ".join(repr(float(value)) for value in values) + "}"
            keys["wavelength_units"] = "Nanometers"
    good = template["good"].values
    if not good.all():
        keys["bbl"] = "{" + ", ".join("1" if flag else "0" for flag in good) + "}"
    scale = template["scale"].values
    if scale[0] > 0 and scale[0] != 1 and (scale == scale[0]).all() and (template["offset"].values == 0).all():
        keys["reflectance_scale_factor"] = f"{1 / scale[0]:.12g}"
    for index, name in enumerate(template["band_name"].values, start=1):
        target.set_band_description(index, " ".join(re.sub(r"[,{}=]", ";", str(name)).split()) or f"Band {index}")
    target.update_tags(ns="ENVI", **keys)


def _complete_header(header: Path, data: Path, template: xr.DataArray) -> None:
    """Our name instead of the path of the moment that GDAL puts there, and at the end what ENVI's own keys bend."""
    text = header.read_text(encoding="utf-8", errors="surrogateescape")
    title = re.sub(r"[{}]", ";", header.stem)
    text = re.sub(r"\Adescription = \{.*?\}\n(?=samples)", "", text.removeprefix("ENVI\n"), count=1, flags=re.DOTALL)
    lines = [f"ENVI\ndescription = {{{title}}}", *(_folded(line) for line in text.rstrip().splitlines())]
    header.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    with _gdal_errors(data), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(data, driver="ENVI") as written:
            native = natively_described(written, template.dtype, template["wavelength"].values)
    record = record_text(describe(template), native)
    if record:
        pieces = "\n".join(record[start : start + LONGEST_LINE] for start in range(0, len(record), LONGEST_LINE))
        with header.open("a", encoding="utf-8") as stream:
            stream.write(f"{ENVI_RECORD_KEY} = {{{pieces}}}\n")


def _folded(line: str) -> str:
    """A long list over several lines: GDAL does not read lines of more than ten thousand characters."""
    entries = line.split(",")
    lines = [entries[0]]
    for entry in entries[1:]:
        if len(lines[-1]) > LONGEST_LINE:
            lines[-1] += ","
            lines.append(entry.lstrip())
        else:
            lines[-1] += f",{entry}"
    return "\n".join(lines)


def _band_rows(template: xr.DataArray) -> list[tuple[float, float, bool, str]]:
    columns = (template[name].values for name in ("wavelength", "fwhm", "good", "band_name"))
    return list(zip(*columns, strict=True))
