"""Products that hold a file for each band (Sentinel-2, Landsat, Hyperion): which bands were asked for, and the cube of
them.

Is a JPEG 2000 file whole? Its boxes say how long they are; a decoder would notice only at the pixels that are missing.

Rasters of a product: one band or many in a file, fine and coarse ones together on one grid, and the layers beside them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.windows import Window

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.cube import fitting_nodata, make_cube
from hyperfuse.io.grid import PIXEL_TOLERANCE
from hyperfuse.io.lazy import lazy_variable, reading
from hyperfuse.io.products.delivery import DeliveredFile, Delivery
from hyperfuse.io.raster import opened_raster, read_raster, refuse_truncated

SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
BOX = struct.Struct(">I4s")
LONG_BOX = struct.Struct(">Q")
CODESTREAM_END = b"\xff\xd9"


def refuse_truncated_jp2(file: DeliveredFile) -> None:
    path, begin = file.place()
    with reading(path, "a whole file"), path.open("rb") as stream:
        stream.seek(begin)
        if stream.read(len(SIGNATURE)) != SIGNATURE:
            raise CubeFileError(f"{file.shown} is no JPEG 2000 file", "an image as delivered", "fetch it again")
        position = len(SIGNATURE)
        while position < file.size:
            stream.seek(begin + position)
            header = stream.read(BOX.size)
            if len(header) < BOX.size:
                break
            length, _ = BOX.unpack(header)
            if length == 1:
                (length,) = LONG_BOX.unpack(stream.read(LONG_BOX.size).rjust(LONG_BOX.size, b"\0"))
            if length == 0:
                stream.seek(begin + file.size - len(CODESTREAM_END))
                if stream.read(len(CODESTREAM_END)) == CODESTREAM_END:
                    return
                break
            if length < BOX.size:
                break
            position += length
        if position != file.size:
            raise CubeFileError(
                f"{file.shown} is truncated: a part of it lies beyond its end", "a whole file", "fetch it again"
            )


RASTER_SUFFIXES = (".tif", ".tiff", ".jp2")


@dataclass(frozen=True)
class RasterFacts:
    """What a file says about itself, without its pixels."""

    file: DeliveredFile
    bands: int
    height: int
    width: int
    dtype: np.dtype[Any]
    crs: CRS | None
    transform: Affine | None
    nodata: float | None


@dataclass(frozen=True)
class Plane:
    """One band of a file; each of its pixels covers `zoom` x `zoom` pixels of the cube."""

    file: DeliveredFile
    index: int
    zoom: int = 1


@dataclass(frozen=True)
class StackReader:
    """Bands from one or many files as one array; coarser bands are repeated, never interpolated."""

    planes: tuple[Plane, ...]
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        block = np.empty((bands.size, rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        by_file: dict[tuple[DeliveredFile, int], list[int]] = {}
        for position, band in enumerate(bands):
            plane = self.planes[int(band)]
            by_file.setdefault((plane.file, plane.zoom), []).append(position)
        for (file, zoom), positions in by_file.items():
            indexes = [self.planes[int(bands[position])].index for position in positions]
            block[positions] = self._read_file(file, zoom, indexes, rows, columns)
        return block

    def _read_file(
        self, file: DeliveredFile, zoom: int, indexes: list[int], rows: slice, columns: slice
    ) -> NDArray[Any]:
        top, left = rows.start // zoom, columns.start // zoom
        height, width = -(-rows.stop // zoom) - top, -(-columns.stop // zoom) - left
        with opened_raster(file.for_gdal()) as source:
            values: NDArray[Any] = source.read(indexes, window=Window(left, top, width, height), out_dtype=self.dtype)
        if zoom == 1:
            return values
        inner_rows = slice(rows.start - top * zoom, rows.stop - top * zoom)
        inner_columns = slice(columns.start - left * zoom, columns.stop - left * zoom)
        return values.repeat(zoom, axis=1).repeat(zoom, axis=2)[:, inner_rows, inner_columns]


@dataclass(frozen=True)
class RelocatedReader:
    """Reads a raster wherever its file is found in this process."""

    file: DeliveredFile
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        planes = tuple(Plane(self.file, band + 1) for band in range(self.shape[0]))
        return StackReader(planes, self.shape, self.dtype).read(bands, rows, columns)


def facts_of(file: DeliveredFile) -> RasterFacts:
    if file.base_name.lower().endswith(".jp2"):
        refuse_truncated_jp2(file)
    path = file.for_gdal()
    with opened_raster(path) as source:
        if source.count == 0 or np.dtype(source.dtypes[0]).kind not in "iuf":
            raise CubeFileError(f"{file.shown} holds no bands of numbers", "an image", "fetch it again")
        refuse_truncated(source, path)
        placed = not source.transform.is_identity
        return RasterFacts(
            file,
            source.count,
            source.height,
            source.width,
            np.dtype(source.dtypes[0]),
            source.crs,
            source.transform if placed else None,
            source.nodata,
        )


def stacked(images: Sequence[RasterFacts], indexes: Sequence[int] | None = None) -> tuple[StackReader, RasterFacts]:
    """One band of each image (its first, unless `indexes` say otherwise) on the grid of the finest, and that one's
    facts.
    """
    finest = max(images, key=lambda image: image.width)
    planes = tuple(
        Plane(image.file, index, _zoom(image, finest))
        for image, index in zip(images, indexes or [1] * len(images), strict=True)
    )
    dtype = np.result_type(*{image.dtype for image in images})
    return StackReader(planes, (len(planes), finest.height, finest.width), dtype), finest


def _zoom(image: RasterFacts, finest: RasterFacts) -> int:
    """How many pixels of the finest image make one of this; anything but whole numbers on one grid is an error."""
    zoom = round(finest.width / image.width)
    fits = (image.width * zoom, image.height * zoom) == (finest.width, finest.height) and image.crs == finest.crs
    if fits and image.transform is not None and finest.transform is not None:
        offset = ~finest.transform @ image.transform
        moved = np.abs(np.array([offset.a - zoom, offset.e - zoom, offset.b, offset.d, offset.c, offset.f]))
        fits = bool(moved.max() < PIXEL_TOLERANCE)
    if not fits:
        raise CubeFileError(
            f"{image.file.base_name} ({image.width}x{image.height}) does not lie on the grid of {finest.file.base_name} "
            f"({finest.width}x{finest.height})",
            "bands of one grid",
            "fetch the product again, or choose bands of one resolution",
        )
    return zoom


def layer_names(delivery: Delivery, without: Sequence[DeliveredFile] = ()) -> list[str]:
    """The other rasters of a product, by the part of their names that tells them apart."""
    stems = [_stem(file) for file in delivery if _is_raster(file) and file not in without]
    shared = _shared_prefix([*stems, *(_stem(file) for file in without)])
    return [stem[shared:] for stem in stems]


def layer(delivery: Delivery, variable: str, known: Sequence[str]) -> xr.DataArray:
    """A raster of the product as it is, by a part of its name; `known` are the product's own selections, for the
    message.
    """
    wanted = re.compile(rf"(^|[-_.]){re.escape(variable.strip())}($|[-_.])", re.IGNORECASE)
    rasters = [file for file in delivery if _is_raster(file)]
    exact = [file for file in rasters if _stem(file).lower().endswith(variable.strip().lower())]
    candidates = [file for file in rasters if wanted.search(_stem(file))]
    found = exact if len(exact) == 1 else candidates
    if len(found) != 1:
        several = f"{len(found)} rasters called {variable!r} in {delivery.path}"
        names = [*known, *layer_names(delivery)] if not found else [_stem(file) for file in found]
        raise OptionError(
            several if found else f"no {variable!r} in {delivery.path}", f"one of {', '.join(names[:40])}"
        )
    return relocated(found[0])


def relocated(file: DeliveredFile) -> xr.DataArray:
    """A cube that finds its file again in another process, also when it lies in an archive."""
    cube = read_raster(file.for_gdal())
    if not file.is_member:
        return cube
    return with_reader(cube, RelocatedReader(file, (cube.sizes["band"], cube.sizes["y"], cube.sizes["x"]), cube.dtype))


def with_reader(cube: xr.DataArray, reader: Any) -> xr.DataArray:
    moved = xr.DataArray(lazy_variable(reader), coords=cube.coords, attrs=cube.attrs)
    moved.encoding = cube.encoding
    return moved


def _is_raster(file: DeliveredFile) -> bool:
    return PurePosixPath(file.name).suffix.lower() in RASTER_SUFFIXES


def _stem(file: DeliveredFile) -> str:
    return PurePosixPath(file.name).stem


def _shared_prefix(stems: Sequence[str]) -> int:
    """How many characters all names begin with, up to a separator."""
    if len(stems) < 2:
        return 0
    first, last = min(stems), max(stems)
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    separators = [position for position, character in enumerate(first[:common]) if character in "-_."]
    return separators[-1] + 1 if separators else 0


FILL = 0


@dataclass(frozen=True)
class BandFile:
    name: str
    file: DeliveredFile
    wavelength_nm: float
    fwhm_nm: float
    scale: float
    offset: float = 0.0
    good: bool = True


def plain_band(name: str) -> str:
    """B02, b2 and "band 2" are B2."""
    found = re.fullmatch(r"(?:band|b)[ _]?0*(\d+a?)", name.strip(), re.IGNORECASE)
    return f"B{found[1].upper()}" if found else name.strip().upper()


def chosen_bands(variable: str, sets: Mapping[str, Sequence[str]], known: Sequence[str]) -> list[str] | None:
    """The bands that a selection means, the name of a set or a list of bands; None where it means something else."""
    wanted = variable.strip().lower()
    for name, bands in sets.items():
        if wanted == name.lower():
            return list(bands)
    bands = list(dict.fromkeys(plain_band(part) for part in variable.split(",")))
    unknown = [band for band in bands if band not in known]
    if unknown and len(unknown) < len(bands):
        raise OptionError(f"no band {', '.join(unknown)}", f"some of {', '.join(known)}")
    return None if unknown else bands


def band_cube(bands: Sequence[BandFile], attributes: dict[str, str], nodata: float = FILL) -> xr.DataArray:
    """On the grid of the finest; coarser bands are repeated."""
    images = [facts_of(band.file) for band in bands]
    reader, finest = stacked(images)
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=[band.wavelength_nm for band in bands],
        fwhm_nm=[band.fwhm_nm for band in bands],
        good=[band.good for band in bands],
        band_names=[band.name for band in bands],
        scale=[band.scale for band in bands],
        offset=[band.offset for band in bands],
        nodata=fitting_nodata(nodata, reader.dtype),
        crs=finest.crs,
        transform=finest.transform,
        attributes=attributes,
    )
