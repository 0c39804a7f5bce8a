"""HDF5 and NetCDF-4 products (PRISMA, EMIT): metadata, bands of several arrays, and images in sensor geometry on a map.

Each pixel of the map takes the value of one pixel of the sensor, unchanged. The table that says which one (a geometry
lookup table, GLT) comes with the product, or is computed from the latitudes and longitudes of the pixels: the nearest
one, if it is near enough.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.io.arrays import FoundArray, text
from hyperfuse.io.cube import WindowReader
from hyperfuse.io.hdf5 import LoadDataset, arrays_in_hdf5, opened_hdf5
from hyperfuse.io.products.product import ProductFile

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]

SENSOR_GEOMETRY = "swath"
ANY_ARRAY = "or the name of any array"
# Half the diagonal of a pixel and a little more: pixels of the map that the sensor did not see stay empty.
FARTHEST_PIXELS = 0.75
# A bounding box is read as a whole if it has at most this many times the pixels that are needed, or is small anyway.
LARGEST_OVERHEAD = 3
SMALLEST_PIECE = 32


class Hdf5Metadata:
    """The arrays of a file, not yet read, and the attributes of its root group."""

    def __init__(self, file: ProductFile) -> None:
        self.file = file
        self.arrays = {array.name: array for array in arrays_in_hdf5(file)}
        with opened_hdf5(file.local_path()) as source:
            self.attributes = dict(source.attrs)

    def array(self, name: str, shape: tuple[int | None, ...], kinds: str = "iuf") -> FoundArray:
        """Return an array of this shape (None for any size) and kind of data type."""
        array = self.arrays.get(name)
        if (
            array is None
            or array.dtype.kind not in kinds
            or len(array.shape) != len(shape)
            or any(size not in (None, actual) for size, actual in zip(shape, array.shape, strict=True))
        ):
            sizes = " x ".join("any" if size is None else str(size) for size in shape)
            raise self.file.damaged(f" has no {name} of {sizes} values")
        return array

    def numbers(self, name: str, size: int | None = None) -> Numbers:
        if name not in self.attributes:
            raise self.file.damaged(f" has no attribute {name}")
        value = np.asarray(self.attributes[name])
        if value.dtype.kind not in "iufb" or not np.isfinite(value).all():
            raise self.file.damaged(f": attribute {name} is {str(value)[:40]}", "finite numbers")
        if size not in (None, value.size):
            raise self.file.damaged(f": attribute {name} has {value.size} numbers", str(size))
        return value.astype(np.float64).ravel()

    def number(self, name: str) -> float:
        return float(self.numbers(name, 1)[0])

    def text(self, name: str) -> str | None:
        return (text(self.attributes[name]) or "").strip("\0 ") or None if name in self.attributes else None

    def crs(self, name: str, value: str | int) -> CRS:
        """Return a CRS from WKT or an EPSG code, the value of attribute `name`."""
        try:
            # Within rasterio's environment GDAL does not print its errors.
            with rasterio.Env():
                return CRS.from_user_input(value)
        except CRSError as error:
            raise self.file.damaged(f": {name} is {value}"[:200], "a coordinate reference system") from error


Parts = tuple[tuple[WindowReader, tuple[int, ...]], ...]
"""Readers of one size, and of each the bands that are used."""


def joined(parts: Parts) -> WindowReader:
    """Return a reader of the bands of several readers, one after the other."""
    _, height, width = parts[0][0].shape
    dtype = np.result_type(*{reader.dtype for reader, _ in parts})
    return WindowReader((sum(len(bands) for _, bands in parts), height, width), dtype, partial(_read_joined, parts))


def _read_joined(parts: Parts, bands: Indices, rows: slice, columns: slice) -> NDArray[Any]:
    every = [(reader, band) for reader, chosen in parts for band in chosen]
    blocks = [
        reader.read(np.array([every[int(band)][1] for band in run]), rows, columns)
        for reader, run in itertools.groupby(bands, key=lambda band: every[int(band)][0])
    ]
    return np.concatenate(blocks)


def on_map(source: WindowReader, lookup: StoredLookup | NearestLookup, nodata: float) -> WindowReader:
    """Return a reader of the map that an image in sensor geometry is placed on.

    `lookup.window` gives the row and column in that image for each pixel of a window of the map, -1 for none.
    """
    shape = (source.shape[0], *lookup.shape)
    return WindowReader(shape, source.dtype, partial(_read_map, source, lookup, nodata))


def _read_map(
    source: WindowReader,
    lookup: StoredLookup | NearestLookup,
    nodata: float,
    bands: Indices,
    rows: slice,
    columns: slice,
) -> NDArray[Any]:
    from_rows, from_columns = lookup.window(rows, columns)
    block = np.full((bands.size, *from_rows.shape), nodata, source.dtype)
    _fill(block, source, bands, from_rows, from_columns)
    return block


def _fill(block: NDArray[Any], source: WindowReader, bands: Indices, from_rows: Indices, from_columns: Indices) -> None:
    """Fill a window, which is rotated in the sensor's image: in halves if its bounding box is mostly unneeded."""
    _, height, width = source.shape
    seen = (from_rows >= 0) & (from_columns >= 0) & (from_rows < height) & (from_columns < width)
    if not seen.any():
        return
    pixel_rows, pixel_columns = from_rows[seen], from_columns[seen]
    top, left = int(pixel_rows.min()), int(pixel_columns.min())
    bottom, right = int(pixel_rows.max()) + 1, int(pixel_columns.max()) + 1
    if (bottom - top) * (right - left) > LARGEST_OVERHEAD * pixel_rows.size and max(seen.shape) > SMALLEST_PIECE:
        axis = int(np.argmax(seen.shape))
        halves = (np.array_split(array, 2, axis=axis) for array in (from_rows, from_columns))
        for part, *lookup in zip(np.array_split(block, 2, axis=axis + 1), *halves, strict=True):
            _fill(part, source, bands, *lookup)
        return
    values = source.read(bands, slice(top, bottom), slice(left, right))
    block[:, seen] = values[:, pixel_rows - top, pixel_columns - left]


@dataclass(frozen=True)
class StoredLookup:
    """A GLT of the product, which counts from 1: 0 for none, negative where filled in from a neighbour."""

    rows: LoadDataset
    columns: LoadDataset
    shape: tuple[int, int]

    def window(self, rows: slice, columns: slice) -> tuple[Indices, Indices]:
        from_rows, from_columns = (
            np.abs(table((rows, columns)).astype(np.int64)) - 1 for table in (self.rows, self.columns)
        )
        return from_rows, from_columns


@dataclass(frozen=True)
class NearestLookup:
    """The nearest of the sensor's pixels, by their latitudes and longitudes, on a map in a UTM zone."""

    latitude: LoadDataset
    longitude: LoadDataset
    epsg: int
    transform: Affine
    shape: tuple[int, int]

    @classmethod
    def covering(cls, latitude: LoadDataset, longitude: LoadDataset, pixel: float) -> NearestLookup:
        """Return a map that covers all pixels; its edges are at multiples of the pixel size in metres."""
        latitudes, longitudes, known = _coordinates(latitude, longitude)
        if known.sum() < 2:
            raise latitude.file.damaged(f": {latitude.name} has no latitudes")
        zone = int((float(np.median(longitudes[known])) + 180) // 6) % 60 + 1
        epsg = (32600 if np.median(latitudes[known]) >= 0 else 32700) + zone
        x, y = _project(latitudes[known], longitudes[known], epsg)
        left, right = math.floor(x.min() / pixel - 0.5) * pixel, math.ceil(x.max() / pixel + 0.5) * pixel
        bottom, top = math.floor(y.min() / pixel - 0.5) * pixel, math.ceil(y.max() / pixel + 0.5) * pixel
        height, width = round((top - bottom) / pixel), round((right - left) / pixel)
        return cls(latitude, longitude, epsg, Affine(pixel, 0.0, left, 0.0, -pixel, top), (height, width))

    @property
    def crs(self) -> CRS:
        return CRS.from_epsg(self.epsg)

    def window(self, rows: slice, columns: slice) -> tuple[Indices, Indices]:
        from_rows, from_columns = _nearest_table(self)
        return from_rows[rows, columns].astype(np.int64), from_columns[rows, columns].astype(np.int64)


@lru_cache(maxsize=4)
def _nearest_table(lookup: NearestLookup) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Compute the GLT, once per process, when the first pixels are read."""
    from scipy.spatial import cKDTree

    latitudes, longitudes, known = _coordinates(lookup.latitude, lookup.longitude)
    rows, columns = np.nonzero(known)
    x, y = _project(latitudes[known], longitudes[known], lookup.epsg)
    map_rows, map_columns = np.indices(lookup.shape).reshape(2, -1) + 0.5
    centres = np.column_stack(lookup.transform @ (map_columns, map_rows))
    spacing = max(lookup.transform.a, _spacing(x, y, rows, columns))
    _, nearest = cKDTree(np.column_stack([x, y])).query(centres, distance_upper_bound=FARTHEST_PIXELS * spacing)
    # The tree returns its size where nothing is near.
    from_rows, from_columns = (
        np.append(axis, -1).astype(np.int32)[nearest].reshape(lookup.shape) for axis in (rows, columns)
    )
    return from_rows, from_columns


def _coordinates(latitude: LoadDataset, longitude: LoadDataset) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
    """Read latitudes and longitudes, and where they are known: fill values are out of range, or both zero."""
    latitudes, longitudes = (load((slice(None), slice(None))).astype(np.float64) for load in (latitude, longitude))
    in_range = (np.abs(latitudes) <= 84) & (np.abs(longitudes) <= 180)
    return latitudes, longitudes, in_range & ((latitudes != 0) | (longitudes != 0))


def _project(latitudes: Numbers, longitudes: Numbers, epsg: int) -> tuple[Numbers, Numbers]:
    from pyproj import Transformer

    x, y = Transformer.from_crs(4326, epsg, always_xy=True).transform(longitudes, latitudes)
    return x, y


def _spacing(x: Numbers, y: Numbers, rows: Indices, columns: Indices) -> float:
    """Return the distance between neighbouring pixels, along rows or columns, whichever is larger."""
    distance = np.hypot(np.diff(x), np.diff(y))
    along = distance[(np.diff(rows) == 0) & (np.diff(columns) == 1)]
    first = columns == np.median(columns).round()
    across = np.hypot(np.diff(x[first]), np.diff(y[first]))[np.diff(rows[first]) == 1]
    return max((float(np.median(part)) for part in (along, across) if part.size), default=0.0)
