"""Rasters of a product: stacks of bands from one or many files, band selections, and the other layers beside them."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.cube import WindowReader, reading
from hyperfuse.io.grid import PIXEL_TOLERANCE
from hyperfuse.io.products.product import DOWNLOAD_AGAIN, MapGrid, ProductFile, ProductFiles
from hyperfuse.io.raster import check_truncated, raster_dataset, read_raster

RASTER_SUFFIXES = (".tif", ".tiff", ".jp2")
ENVI_OR_TIFF_SUFFIXES = ("", ".hdr", ".img", ".dat", ".bsq", ".bil", ".bip", ".tif", ".tiff")
JP2_SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
JP2_BOX = struct.Struct(">I4s")
JP2_LONG_BOX = struct.Struct(">Q")
JP2_CODESTREAM_END = b"\xff\xd9"


@dataclass(frozen=True)
class RasterInfo:
    """Size, type and georeference of a raster file."""

    file: ProductFile
    bands: int
    height: int
    width: int
    dtype: np.dtype[Any]
    grid: MapGrid
    nodata: float | None
    scale: float
    """Of its first band, as the file says."""
    offset: float


@dataclass(frozen=True)
class Plane:
    """One band of a file; each of its pixels covers `zoom` x `zoom` pixels of the cube."""

    file: ProductFile
    index: int
    zoom: int = 1


def _read_planes(
    planes: tuple[Plane, ...], dtype: np.dtype[Any], bands: NDArray[np.int64], rows: slice, columns: slice
) -> NDArray[Any]:
    block = np.empty((bands.size, rows.stop - rows.start, columns.stop - columns.start), dtype)
    by_file: dict[tuple[ProductFile, int], list[int]] = {}
    for position, band in enumerate(bands):
        plane = planes[int(band)]
        by_file.setdefault((plane.file, plane.zoom), []).append(position)
    for (file, zoom), positions in by_file.items():
        indexes = [planes[int(bands[position])].index for position in positions]
        top, left = rows.start // zoom, columns.start // zoom
        window = Window(left, top, -(-columns.stop // zoom) - left, -(-rows.stop // zoom) - top)
        with raster_dataset(file.gdal_path()) as source:
            values: NDArray[Any] = source.read(indexes, window=window, out_dtype=dtype)
        inner_rows = slice(rows.start - top * zoom, rows.stop - top * zoom)
        inner_columns = slice(columns.start - left * zoom, columns.stop - left * zoom)
        block[positions] = values.repeat(zoom, axis=1).repeat(zoom, axis=2)[:, inner_rows, inner_columns]
    return block


def read_info(file: ProductFile) -> RasterInfo:
    """Read everything but the pixels, and refuse a truncated file."""
    if file.base_name.lower().endswith(".jp2"):
        _refuse_truncated_jp2(file)
    path = file.gdal_path()
    with raster_dataset(path) as source:
        if source.count == 0 or np.dtype(source.dtypes[0]).kind not in "iuf":
            raise file.damaged(" has no numeric bands", "an image")
        check_truncated(source, path)
        grid = source.crs, None if source.transform.is_identity else source.transform
        dtype = np.dtype(source.dtypes[0])
        scaling = float(source.scales[0]) or 1.0, float(source.offsets[0])
        return RasterInfo(file, source.count, source.height, source.width, dtype, grid, source.nodata, *scaling)


def _refuse_truncated_jp2(file: ProductFile) -> None:
    """Follow the boxes of a JPEG 2000 file to its end; a decoder would notice only at the pixels that are missing."""
    path, begin = file.location()
    with reading(path, "a whole file"), path.open("rb") as stream:
        stream.seek(begin)
        if stream.read(len(JP2_SIGNATURE)) != JP2_SIGNATURE:
            raise file.damaged(" is not a JPEG 2000 file")
        position = len(JP2_SIGNATURE)
        while position < file.size:
            stream.seek(begin + position)
            header = stream.read(JP2_BOX.size)
            if len(header) < JP2_BOX.size:
                break
            length, _ = JP2_BOX.unpack(header)
            if length == 1:
                (length,) = JP2_LONG_BOX.unpack(stream.read(JP2_LONG_BOX.size).rjust(JP2_LONG_BOX.size, b"\0"))
            elif length == 0:
                # The last box, which extends to the end of the file.
                stream.seek(begin + file.size - len(JP2_CODESTREAM_END))
                length = file.size - position if stream.read(len(JP2_CODESTREAM_END)) == JP2_CODESTREAM_END else 0
            if length < JP2_BOX.size:
                break
            position += length
        if position != file.size:
            raise file.damaged(" is truncated: a box exceeds its end", "a whole file")


def stack(images: Sequence[RasterInfo], indexes: Sequence[int] | None = None) -> tuple[WindowReader, RasterInfo]:
    """Stack one band of each image (the first by default) on the grid of the finest image, which is returned too.

    Pixels of coarser bands are repeated, never interpolated.
    """
    finest = max(images, key=lambda image: image.width)
    planes = tuple(
        Plane(image.file, index, _zoom(image, finest))
        for image, index in zip(images, indexes or [1] * len(images), strict=True)
    )
    dtype = np.result_type(*{image.dtype for image in images})
    shape = len(planes), finest.height, finest.width
    return WindowReader(shape, dtype, partial(_read_planes, planes, dtype)), finest


def _zoom(image: RasterInfo, finest: RasterInfo) -> int:
    """Return how many pixels of the finest image make up one of `image`, which has to lie on the same grid."""
    (crs, transform), (finest_crs, finest_transform) = image.grid, finest.grid
    zoom = round(finest.width / image.width)
    fits = (image.width * zoom, image.height * zoom) == (finest.width, finest.height) and crs == finest_crs
    if fits and transform is not None and finest_transform is not None:
        offset = ~finest_transform @ transform
        moved = np.abs(np.array([offset.a - zoom, offset.e - zoom, offset.b, offset.d, offset.c, offset.f]))
        fits = bool(moved.max() < PIXEL_TOLERANCE)
    if not fits:
        raise CubeFileError(
            f"{image.file.base_name} ({image.width}x{image.height}) does not lie on the grid of "
            f"{finest.file.base_name} ({finest.width}x{finest.height})",
            "bands of one grid",
            f"{DOWNLOAD_AGAIN}, or choose bands of one resolution",
        )
    return zoom


def layer_names(files: ProductFiles, without: Sequence[ProductFile] = ()) -> list[str]:
    """Return the names of the other rasters of a product, without the prefix that all of them share."""
    stems = [file.stem for file in files if _is_raster(file) and file not in without]
    every = [*stems, *(file.stem for file in without)]
    # Two names share at most what the first and the last in order share.
    pairs = zip(min(every, default=""), max(every, default=""), strict=False)
    common = "".join(a for a, b in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    prefix = max(map(common.rfind, "-_.")) + 1 if len(every) > 1 else 0
    return [stem[prefix:] for stem in stems]


def open_layer(files: ProductFiles, variable: str, selections: Sequence[str]) -> xr.DataArray:
    """Open another raster of the product by a part of its name; `selections` are the other valid names."""
    rasters = [file for file in files if _is_raster(file)]
    file = find_by_name(rasters, variable, [*selections, *layer_names(files)], files.path)
    return read_raster(file.gdal_path(), member=file)


def find_by_name(files: Sequence[ProductFile], variable: str, names: Sequence[str], path: Path) -> ProductFile:
    """Find the one file whose name ends with `variable` or has it as a part; `names` are shown if there is none."""
    part = re.compile(rf"(^|[-_.]){re.escape(variable.strip())}($|[-_.])", re.IGNORECASE)
    exact = [file for file in files if file.stem.lower().endswith(variable.strip().lower())]
    matching = exact if len(exact) == 1 else [file for file in files if part.search(file.stem)]
    if len(matching) != 1:
        names = [file.stem for file in matching] or names
        count = f"{len(matching)} rasters called" if matching else "no"
        raise OptionError(f"{count} {variable!r} in {path}", f"one of {', '.join(names[:40])}")
    return matching[0]


def is_envi_or_tiff(path: Path) -> bool:
    return path.suffix.lower() in ENVI_OR_TIFF_SUFFIXES


def _is_raster(file: ProductFile) -> bool:
    return PurePosixPath(file.name).suffix.lower() in RASTER_SUFFIXES


def normalise_band_name(name: str) -> str:
    """Convert B02, b2 or "band 2" to B2."""
    match = re.fullmatch(r"(?:band|b)[ _]?0*(\d+a?)", name.strip(), re.IGNORECASE)
    return f"B{match[1].upper()}" if match else name.strip().upper()


def select_bands(
    variable: str, sets: Mapping[str, Sequence[str]], known: Sequence[str], files: Mapping[str, object], path: Path
) -> list[str] | None:
    """Return the bands of a selection: the name of a set or a list of bands; None if it is neither.

    `known` are the bands of the sensor, `files` those that the product at `path` has.
    """
    bands = next((list(held) for name, held in sets.items() if variable.strip().lower() == name.lower()), None)
    if bands is None:
        bands = list(dict.fromkeys(normalise_band_name(part) for part in variable.split(",")))
        unknown = [band for band in bands if band not in known]
        if unknown and len(unknown) < len(bands):
            raise OptionError(f"no band {', '.join(unknown)}", f"some of {', '.join(known)}")
        if unknown:
            return None
    missing = [band for band in bands if band not in files]
    if missing or not bands:
        raise OptionError(f"no {', '.join(missing) or variable} in {path}", f"some of {', '.join(files)}")
    return bands
