"""Write rasters window by window with every band's metadata: GeoTIFF and COG through GDAL (rasterio), ENVI directly.

ENVI's pixels do not go through GDAL: its blocks there are single rows of single bands, and each would be read, changed
and written again for every window that is narrower than the image.
"""

from __future__ import annotations

import errno
import logging
import os
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
from hyperfuse.io.atomic import GuardedOpener, WriteWindow
from hyperfuse.io.cube import nodata_of, text_attributes
from hyperfuse.io.grid import grid_of
from hyperfuse.io.output import OWN_NAME
from hyperfuse.io.raster import (
    ENVI_RECORD_KEY,
    GDAL_ERRORS,
    RECORD_TAG,
    Description,
    automatic_description,
    gdal_message,
    missing_blocks,
    native_description,
)

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
LONGEST_LINE = 2000
# Compressions that gain by storing differences between neighbours.
WITH_PREDICTOR = ("deflate", "zstd", "lzw")
# Axes of a (band, y, x) block in the order of the file.
FILE_AXES = {"bsq": (0, 1, 2), "bil": (1, 0, 2), "bip": (1, 2, 0)}
# What the cube itself decides, and rasterio would take from the options as well.
NOT_AN_OPTION = {"driver", "count", "height", "width", "dtype", "crs", "transform", "nodata"}


def raw_writer(file: FileIO, shape: tuple[int, ...], interleave: str, offset: int = 0) -> WriteWindow:
    """Write windows into a file of plain numbers, in the order bsq, bil or bip, behind `offset` bytes of header."""
    axes = FILE_AXES[interleave]
    _, middle_size, inner_size = (shape[axis] for axis in axes)

    def write(rows: slice, columns: slice, block: NDArray[Any]) -> None:
        window = (slice(0, shape[0]), rows, columns)
        outer, middle, inner = (window[axis] for axis in axes)
        is_joined = inner.stop - inner.start == inner_size
        for place, plane in enumerate(np.ascontiguousarray(block.transpose(axes)), start=outer.start):
            start = (place * middle_size + middle.start) * inner_size + inner.start
            for line, piece in enumerate([plane] if is_joined else plane):
                left = piece.data.cast("B")
                file.seek(offset + (start + line * inner_size) * piece.itemsize)
                while left:
                    left = left[file.write(left) :]

    return write


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
            place = _place(template)
            target = rasterio.open(path, "w", opener=opener, height=height, width=width, **profile, **place)
        with target:
            _set_scaling(target, template)
            yield target


def _place(template: xr.DataArray) -> dict[str, Any]:
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
    """Raise for an option that GDAL does not know; it only logs a warning, which nobody would see."""
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


@contextmanager
def _not_georeferenced() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


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
        with memory.open(driver="GTiff", height=1, width=1, **_place(template)) as target:
            _set_scaling(target, template)
            _tag_tiff(target, template, None)
        with memory.open() as source:
            native = native_description(source, template.dtype, template["wavelength"].values)
    return Description.of(template).record(native)


def _tag_tiff(target: Any, template: xr.DataArray, record: str | None) -> None:
    # GDAL keeps tags as NAME=VALUE lines: a name that would break them goes into the record alone.
    named = {key: text for key, text in text_attributes(template).items() if re.fullmatch(r"[A-Za-z_][\w .-]*", key)}
    target.update_tags(**named | ({} if record is None else {RECORD_TAG: record}))
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
    for index, name in enumerate(template["band_name"].values, start=1):
        target.set_band_description(index, " ".join(re.sub(r"[,{}=]", ";", str(name)).split()) or f"Band {index}")
    target.update_tags(ns="ENVI", **keys)


def _complete_header(header: Path, data: Path, template: xr.DataArray) -> None:
    """Replace the temporary path that GDAL puts into the description, and append the record."""
    text = header.read_text(encoding="utf-8", errors="surrogateescape")
    title = re.sub(r"[{}]", ";", header.stem)
    text = re.sub(r"\Adescription = \{.*?\}\n(?=samples)", "", text.removeprefix("ENVI\n"), count=1, flags=re.DOTALL)
    lines = [f"ENVI\ndescription = {{{title}}}", *(_folded(line) for line in text.rstrip().splitlines())]
    header.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    with _gdal_errors(data), _not_georeferenced(), rasterio.open(data, driver="ENVI") as written:
        native = native_description(written, template.dtype, template["wavelength"].values)
    record = Description.of(template).record(native)
    if record:
        pieces = "\n".join(record[start : start + LONGEST_LINE] for start in range(0, len(record), LONGEST_LINE))
        with header.open("a", encoding="utf-8") as stream:
            stream.write(f"{ENVI_RECORD_KEY} = {{{pieces}}}\n")


def _folded(line: str) -> str:
    """Fold a long list over several lines: GDAL does not read lines of more than ten thousand characters."""
    lines = [""]
    for entry in line.split(","):
        if len(lines[-1]) > LONGEST_LINE:
            lines.append(entry.lstrip())
        else:
            lines[-1] += f",{entry}"
    return ",\n".join(lines).removeprefix(",")
