"""HDF5 and NetCDF-4 files of a product, also inside an archive, and cubes that are joined from several of their arrays.

Images in the geometry of the sensor, placed on the ground: each pixel of a map takes the sensor's pixel that saw it,
unchanged.

The table that says which one is delivered with the image (EMIT's geometry lookup table), or made from the latitude and
longitude of its pixels (PRISMA before level 2D): the nearest one, if it is near enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS

from hyperfuse.errors import CubeFileError
from hyperfuse.io.arrays import FoundArray, text
from hyperfuse.io.hdf5 import arrays_in_hdf5, opened_hdf5
from hyperfuse.io.lazy import WindowReader
from hyperfuse.io.products.delivery import DeliveredFile

Indices = NDArray[np.int64]

# Half the diagonal of a pixel and a little more: what no pixel of the sensor saw stays empty.
FARTHEST_PIXELS = 0.75
LARGEST_MAP = 2**27
# A box is read as a whole while it holds at most so many times the pixels that are wanted of it, or is small anyway.
WASTE = 3
SMALLEST_PIECE = 32


class Lookup(Protocol):
    @property
    def shape(self) -> tuple[int, int]: ...

    def window(self, rows: slice, columns: slice) -> tuple[Indices, Indices]:
        """Row and column of the sensor's image for each pixel of a window of the map, -1 where it saw nothing."""


@dataclass(frozen=True)
class LookedUpReader:
    source: WindowReader
    lookup: Lookup
    nodata: float

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.source.shape[0], *self.lookup.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        from_rows, from_columns = self.lookup.window(rows, columns)
        block = np.full((bands.size, *from_rows.shape), self.nodata, self.dtype)
        self._fill(block, bands, from_rows, from_columns)
        return block

    def _fill(self, block: NDArray[Any], bands: NDArray[np.int64], from_rows: Indices, from_columns: Indices) -> None:
        """A window of the map lies askew in the sensor's image: where the box around it is mostly something else, by
        halves.
        """
        _, height, width = self.source.shape
        seen = (from_rows >= 0) & (from_columns >= 0) & (from_rows < height) & (from_columns < width)
        if not seen.any():
            return
        pixel_rows, pixel_columns = from_rows[seen], from_columns[seen]
        box_rows = slice(int(pixel_rows.min()), int(pixel_rows.max()) + 1)
        box_columns = slice(int(pixel_columns.min()), int(pixel_columns.max()) + 1)
        box = (box_rows.stop - box_rows.start) * (box_columns.stop - box_columns.start)
        if box > WASTE * pixel_rows.size and max(seen.shape) > SMALLEST_PIECE:
            axis = int(np.argmax(seen.shape))
            halves = (np.array_split(array, 2, axis=axis) for array in (from_rows, from_columns))
            for part, *lookup in zip(np.array_split(block, 2, axis=axis + 1), *halves, strict=True):
                self._fill(part, bands, *lookup)
            return
        values = self.source.read(bands, box_rows, box_columns)
        block[:, seen] = values[:, pixel_rows - box_rows.start, pixel_columns - box_columns.start]


@dataclass(frozen=True)
class StoredLookup:
    """Two tables of numbers counted from 1, 0 where nothing was seen; negative ones were filled in from a neighbour."""

    rows: LoadDelivered
    columns: LoadDelivered
    shape: tuple[int, int]

    def window(self, rows: slice, columns: slice) -> tuple[Indices, Indices]:
        from_rows, from_columns = (
            np.abs(table((rows, columns)).astype(np.int64)) - 1 for table in (self.rows, self.columns)
        )
        return from_rows, from_columns


@dataclass(frozen=True)
class NearestLookup:
    """The nearest of the sensor's pixels, by their latitude and longitude, on a map of a UTM zone."""

    latitude: LoadDelivered
    longitude: LoadDelivered
    epsg: int
    left: float
    top: float
    pixel: float
    shape: tuple[int, int]

    @property
    def transform(self) -> Affine:
        return Affine(self.pixel, 0.0, self.left, 0.0, -self.pixel, self.top)

    @property
    def crs(self) -> CRS:
        return CRS.from_epsg(self.epsg)

    def window(self, rows: slice, columns: slice) -> tuple[Indices, Indices]:
        from_rows, from_columns = _nearest_table(self)
        return from_rows[rows, columns].astype(np.int64), from_columns[rows, columns].astype(np.int64)


def nearest_lookup(latitude: LoadDelivered, longitude: LoadDelivered, pixel: float) -> NearestLookup:
    """A map that covers all pixels, with pixels of this many metres, its edges at multiples of them."""
    latitudes, longitudes = _coordinates(latitude, longitude)
    known = _known(latitudes, longitudes)
    if known.sum() < 2:
        raise CubeFileError(
            f"{latitude.file.shown}: {latitude.name} holds no latitudes", "those of its pixels", "fetch it again"
        )
    zone = int((float(np.median(longitudes[known])) + 180) // 6) % 60 + 1
    epsg = (32600 if np.median(latitudes[known]) >= 0 else 32700) + zone
    x, y = _projected(latitudes[known], longitudes[known], epsg)
    left, right = (math.floor(x.min() / pixel - 0.5) * pixel, math.ceil(x.max() / pixel + 0.5) * pixel)
    bottom, top = (math.floor(y.min() / pixel - 0.5) * pixel, math.ceil(y.max() / pixel + 0.5) * pixel)
    shape = round((top - bottom) / pixel), round((right - left) / pixel)
    if math.prod(shape) > LARGEST_MAP:
        raise CubeFileError(
            f"{latitude.file.shown}: its latitudes and longitudes span {shape[1]}x{shape[0]} pixels",
            "one scene",
            "fetch it again",
        )
    return NearestLookup(latitude, longitude, epsg, left, top, pixel, shape)


@lru_cache(maxsize=4)
def _nearest_table(lookup: NearestLookup) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Made once in each process, when the first pixels are read."""
    from scipy.spatial import cKDTree

    latitudes, longitudes = _coordinates(lookup.latitude, lookup.longitude)
    rows, columns = np.nonzero(_known(latitudes, longitudes))
    x, y = _projected(latitudes[rows, columns], longitudes[rows, columns], lookup.epsg)
    height, width = lookup.shape
    centres_x = lookup.left + lookup.pixel * (np.arange(width) + 0.5)
    centres_y = lookup.top - lookup.pixel * (np.arange(height) + 0.5)
    spacing = max(lookup.pixel, _spacing(x, y, rows, columns))
    centres = np.stack(np.meshgrid(centres_x, centres_y), axis=-1).reshape(-1, 2)
    _, nearest = cKDTree(np.column_stack([x, y])).query(centres, distance_upper_bound=FARTHEST_PIXELS * spacing)
    # The tree answers with its size where nothing is near.
    from_rows, from_columns = (
        np.append(axis, -1).astype(np.int32)[nearest].reshape(height, width) for axis in (rows, columns)
    )
    return from_rows, from_columns


def _coordinates(latitude: LoadDelivered, longitude: LoadDelivered) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    everything = (slice(None), slice(None))
    return latitude(everything).astype(np.float64), longitude(everything).astype(np.float64)


def _known(latitudes: NDArray[np.float64], longitudes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Fill values are far outside, or both zero."""
    possible = (np.abs(latitudes) <= 84) & (np.abs(longitudes) <= 180)
    known: NDArray[np.bool_] = possible & ((latitudes != 0) | (longitudes != 0))
    return known


def _projected(
    latitudes: NDArray[np.float64], longitudes: NDArray[np.float64], epsg: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from pyproj import Transformer

    x, y = Transformer.from_crs(4326, epsg, always_xy=True).transform(longitudes, latitudes)
    return x, y


def _spacing(x: NDArray[np.float64], y: NDArray[np.float64], rows: Indices, columns: Indices) -> float:
    """How far neighbours are apart, along a row or from row to row, whichever is more."""
    distance = np.hypot(np.diff(x), np.diff(y))
    along = distance[(np.diff(rows) == 0) & (np.diff(columns) == 1)]
    first = columns == np.median(columns).round()
    across = np.hypot(np.diff(x[first]), np.diff(y[first]))[np.diff(rows[first]) == 1]
    return max((float(np.median(part)) for part in (along, across) if part.size), default=0.0)


@dataclass(frozen=True)
class LoadDelivered:
    """Reads part of a data set wherever its file is found in this process."""

    file: DeliveredFile
    name: str

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with opened_hdf5(self.file.on_disk()) as source:
            return np.asarray(source[self.name][key])


@dataclass(frozen=True)
class JoinedReader:
    """Bands of several readers of one size, one after the other; of each reader, the bands listed."""

    parts: tuple[tuple[WindowReader, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        _, height, width = self.parts[0][0].shape
        return sum(len(chosen) for _, chosen in self.parts), height, width

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*{reader.dtype for reader, _ in self.parts})

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        block = np.empty((bands.size, rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        first = 0
        for reader, chosen in self.parts:
            here = (bands >= first) & (bands < first + len(chosen))
            if here.any():
                block[here] = reader.read(np.array(chosen, dtype=np.int64)[bands[here] - first], rows, columns)
            first += len(chosen)
        return block


def arrays_of(file: DeliveredFile) -> list[FoundArray]:
    return [replace(found, load=LoadDelivered(file, found.name)) for found in arrays_in_hdf5(file.on_disk())]


@contextmanager
def opened_attributes(file: DeliveredFile) -> Iterator[Attributes]:
    with opened_hdf5(file.on_disk()) as source:
        yield Attributes(file, source)


@dataclass(frozen=True)
class Attributes:
    """The attributes of a file's root; what is missing becomes one clear error."""

    file: DeliveredFile
    source: Any

    def __contains__(self, name: str) -> bool:
        return name in self.source.attrs

    def numbers(self, name: str) -> NDArray[np.float64]:
        value = np.asarray(self._require(name))
        if value.dtype.kind not in "iufb" or not np.isfinite(value).all():
            raise CubeFileError(
                f"{self.file.shown}: attribute {name} is {str(value)[:40]}", "finite numbers", "fetch it again"
            )
        return value.astype(np.float64).ravel()

    def number(self, name: str) -> float:
        values = self.numbers(name)
        if values.size != 1:
            raise CubeFileError(
                f"{self.file.shown}: attribute {name} holds {values.size} numbers", "one", "fetch it again"
            )
        return float(values[0])

    def text(self, name: str) -> str | None:
        return (text(self.source.attrs[name]) or "").strip("\0 ") or None if name in self else None

    def _require(self, name: str) -> Any:
        if name not in self:
            raise CubeFileError(
                f"{self.file.shown} has no attribute {name}", "a product as delivered", "fetch it again"
            )
        return self.source.attrs[name]
