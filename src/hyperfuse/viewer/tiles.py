"""Layers and their tiles: 256 x 256 pixels of a layer on the page's grid, decimated by 2^level, painted as PNG.

Shapes: K planes (three for a colour composite, one for a map), y x pixels; values are float32, NaN without data.
"""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window
from scipy.ndimage import distance_transform_edt

from hyperfuse.io.cube import physical_values, spread_slices
from hyperfuse.io.grid import Grid, Positions
from hyperfuse.io.raster import raster_dataset
from hyperfuse.reporting.colour import nan_mean
from hyperfuse.viewer.colours import Composite, Planes
from hyperfuse.viewer.images import OpenImage

Limits = NDArray[np.float64]  # (K, 2)
SIDE = 256
# A window that costs no more than this is read at full resolution, whatever overviews there are.
DIRECT_BYTES = 16 * 2**20
# Without overviews, up to this; a larger one is taken from a preview.
LARGEST_DIRECT_BYTES = 256 * 2**20
# How long a tile waits for a preview to become complete before it shows what there is.
PATIENCE_SECONDS = 0.25

# A preview in memory, and the cost of computing one window of it.
LARGEST_PREVIEW_BYTES = 96 * 2**20
PREVIEW_WINDOW_BYTES = 6 * 2**20
PREVIEW_THREADS = 2
# The computation of a preview pauses when it has not been requested for so long.
SECONDS_OF_INTEREST = 5.0

# The sample that limits are computed from: values of all planes together, and the cost up to which all is read.
LARGEST_SAMPLE = 800_000
SAMPLE_BYTES = 64 * 2**20
# Where neither overviews nor the whole layer are cheap: this many small windows along each side.
SAMPLE_WINDOWS = 4
SAMPLE_WINDOW_SIDE = 72
SAMPLE_BLOCK = 256  # of a file, usually: a window within one costs one

# Perceptually uniform and readable with any colour vision; the last one is diverging.
COLOUR_MAPS = {"viridis": "viridis", "cividis": "cividis", "magma": "magma", "grey": "gray", "blue-orange": "PuOr_r"}


@dataclass(frozen=True, eq=False)
class Layer:
    """Something that can be shown on the grid of an image: how to compute any window of it."""

    key: Hashable
    """Unique among the layers of the open images."""
    image: OpenImage
    planes: int
    bytes_per_pixel: int
    """What must be decoded and held to compute one pixel."""
    window: Callable[[slice, slice], Planes]
    """Rows and columns at full resolution -> (K, y, x). With `can_skip` the slices may have steps."""
    label: str
    unit: str = ""
    decimated: Callable[[slice, slice, int], Planes] | None = None
    """The same of every n-th pixel, where overviews make that cheap; the window begins at multiples of n."""
    can_skip: bool = False
    limits: tuple[float, float] | None = None
    """Of the colours, where they do not follow from the values."""


def image_layer(image: OpenImage, composite: Composite) -> Layer:
    """An image in a composite."""
    cube, raster, bands = image.cube, image.raster, composite.bands

    def window(rows: slice, columns: slice) -> Planes:
        return composite.combine(physical_values(cube, rows, columns, bands))

    def decimated(rows: slice, columns: slice, factor: int) -> Planes:
        assert raster is not None
        part = Window.from_slices(rows, columns)
        size = math.ceil(part.height / factor), math.ceil(part.width / factor)
        with raster_dataset(raster.path, raster.driver) as source:
            # From the best overview.
            stored = source.read((bands + 1).tolist(), window=part, out_shape=(bands.size, *size), out_dtype=cube.dtype)
        small = cube.isel(band=bands, y=slice(0, stored.shape[1]), x=slice(0, stored.shape[2])).copy(data=stored)
        return composite.combine(physical_values(small))

    decoded = image.bands if raster is not None and raster.bands_together else bands.size
    return Layer(
        key=(image.role, composite.key),
        image=image,
        planes=composite.planes,
        bytes_per_pixel=decoded * cube.dtype.itemsize,
        window=window,
        label=composite.label,
        decimated=decimated if raster is not None and raster.overviews else None,
        can_skip=True,
    )


def pooled(planes: Planes, factor: int) -> Planes:
    """Means of blocks of factor x factor pixels, (K, ceil(y / factor), ceil(x / factor))."""
    if factor == 1:
        return planes
    missing = [(0, -size % factor) for size in planes.shape[1:]]
    if any(after for _, after in missing):
        planes = np.pad(planes, [(0, 0), *missing], constant_values=np.nan)
    count, height, width = planes.shape
    blocks = planes.reshape(count, height // factor, factor, width // factor, factor)
    means: Planes = blocks.mean(axis=(2, 4), dtype=np.float32)
    holes = np.isnan(means)
    if holes.any():
        # Only blocks with missing values take the slow path.
        plane, row, column = np.nonzero(holes)
        means[holes] = nan_mean(blocks[plane, row, :, column, :], axis=(1, 2))
    return means


def sampled(layer: Layer) -> Planes:
    """(K, n) values spread over the whole layer, at a bounded cost."""
    height, width = layer.image.height, layer.image.width
    side = max(32, int((LARGEST_SAMPLE / layer.planes) ** 0.5))
    step = max(1, -(-max(height, width) // side))
    everything = slice(0, height), slice(0, width)
    if height * width * layer.bytes_per_pixel <= SAMPLE_BYTES:
        # From the middle of each block, so that an image smaller than a step still gives a pixel.
        start = min(step // 2, height - 1, width - 1)
        planes = layer.window(*everything)[:, start::step, start::step]
    elif layer.decimated is not None:
        planes = layer.decimated(*everything, 2 ** int(np.ceil(np.log2(step))))
    else:
        down, across = (_sample_slices(size) for size in (height, width))
        windows = [layer.window(rows, columns) for rows in down for columns in across]
        return np.concatenate([window.reshape(layer.planes, -1) for window in windows], axis=1)
    return planes.reshape(layer.planes, -1)


def _sample_slices(size: int) -> list[slice]:
    """Windows spread over an axis, each within a block of the file."""
    found = []
    for part in spread_slices(size, SAMPLE_WINDOW_SIDE, SAMPLE_WINDOWS):
        start = min(part.start, part.start // SAMPLE_BLOCK * SAMPLE_BLOCK + SAMPLE_BLOCK - SAMPLE_WINDOW_SIDE)
        found.append(slice(start, start + part.stop - part.start))
    return found


def paint(planes: Planes, limits: Limits, colours: str) -> NDArray[np.uint8]:
    """(y, x, 4) RGBA: three planes as red, green and blue, one through a colour map; transparent without data."""
    low, high = limits.T.reshape(2, -1, 1, 1).astype(np.float32)
    span = np.where(high > low, high - low, np.float32(1))
    known = np.isfinite(planes).all(axis=0)
    levels = np.round(255 * np.clip((np.where(known, planes, low) - low) / span, 0, 1)).astype(np.uint8)
    picture = np.empty((*planes.shape[1:], 4), dtype=np.uint8)
    picture[..., :3] = np.moveaxis(levels, 0, -1) if len(planes) == 3 else colour_table(colours)[levels[0]]
    picture[..., 3] = np.where(known, 255, 0)
    return picture


@cache
def colour_table(colours: str) -> NDArray[np.uint8]:
    """(256, 3)"""
    import matplotlib

    table: NDArray[np.uint8] = matplotlib.colormaps[COLOUR_MAPS[colours]](np.arange(256), bytes=True)[:, :3]
    return table


def as_png(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    target = io.BytesIO()
    Image.fromarray(picture).save(target, format="PNG", compress_level=1)
    return target.getvalue()


def preview_factor(layer: Layer) -> int:
    """The power of two by which a layer must shrink to be kept as a preview."""
    factor = 2
    while layer.planes * 4 * (layer.image.height // factor) * (layer.image.width // factor) > LARGEST_PREVIEW_BYTES:
        factor *= 2
    return factor


class Preview:
    """A layer without overviews at reduced resolution, computed window by window in the background, coarsely first.

    A window that is still missing shows the mean of the nearest one that is there, so that something appears at once.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self.factor = preview_factor(layer)
        # Windows are whole blocks of the file and whole pixels of the preview.
        unit = max(256, self.factor)
        self._side = max(unit, int((PREVIEW_WINDOW_BYTES / layer.bytes_per_pixel) ** 0.5) // unit * unit)
        self._size = layer.image.height, layer.image.width
        down, across = (-(-size // self._side) for size in self._size)
        size = (-(-size // self.factor) for size in self._size)
        self._values: Planes = np.full((layer.planes, *size), np.nan, dtype=np.float32)
        self._means: Planes = np.full((layer.planes, down, across), np.nan, dtype=np.float32)
        self._there = np.zeros((down, across), dtype=bool)
        self._todo = _coarse_to_fine(down, across)[::-1]
        self._changed = threading.Condition()
        self._requested = 0.0
        self._running = 0
        self._error: Exception | None = None

    @property
    def bytes(self) -> int:
        return self._values.nbytes

    def window(self, rows: slice, columns: slice, shrink: int, patience: float) -> tuple[Planes, float]:
        """Rows and columns of the preview, `shrink` times smaller, after at most `patience` seconds, and the completed
        share of the preview. Until that is complete, every n-th pixel stands for the mean of its surroundings.
        """
        deadline = time.monotonic() + patience
        with self._changed:
            self._requested = time.monotonic()
            while self._todo and self._running < PREVIEW_THREADS:
                self._running += 1
                threading.Thread(target=self._work, name="preview", daemon=True).start()
            while not self._there.all() and self._error is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
                self._requested = time.monotonic()
            if self._error is not None:
                raise self._error
            if self._there.all():
                return pooled(self._values[:, rows, columns], shrink), 1.0
            values, there = self._values[:, rows, columns][:, ::shrink, ::shrink].copy(), self._there.copy()
        if there.any():
            nearest_down, nearest_across = distance_transform_edt(~there, return_distances=False, return_indices=True)
            side = self._side // self.factor
            down = np.minimum(np.arange(rows.start, rows.stop, shrink) // side, there.shape[0] - 1)[:, None]
            across = np.minimum(np.arange(columns.start, columns.stop, shrink) // side, there.shape[1] - 1)[None, :]
            means = self._means[:, nearest_down[down, across], nearest_across[down, across]]
            np.copyto(values, means, where=~there[down, across])
        return values, float(there.mean())

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    if not self._todo or time.monotonic() - self._requested >= SECONDS_OF_INTEREST:
                        return
                    place = self._todo.pop()
                self._compute(*place)
        except Exception as error:
            # Any error is reported by `window`.
            with self._changed:
                self._error = error
                self._todo.clear()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _compute(self, down: int, across: int) -> None:
        # Half as many pixels along each side make as good a mean at a quarter of the cost.
        step = max(1, self.factor // 2) if self._layer.can_skip else 1
        rows, columns = (
            slice(index * self._side, min((index + 1) * self._side, size), step)
            for index, size in zip((down, across), self._size, strict=True)
        )
        small = pooled(self._layer.window(rows, columns), self.factor // step)
        top, left = rows.start // self.factor, columns.start // self.factor
        with self._changed:
            self._values[:, top : top + small.shape[1], left : left + small.shape[2]] = small
            self._means[:, down, across] = nan_mean(small, axis=(1, 2))
            self._there[down, across] = True
            self._changed.notify_all()


def _coarse_to_fine(down: int, across: int) -> list[tuple[int, int]]:
    """All places of a grid: every 4th, every 2nd, then the others; within each from the middle outwards."""

    def order(place: tuple[int, int]) -> tuple[int, float]:
        y, x = place
        level = next(level for level, step in enumerate((4, 2, 1)) if y % step == step // 2 and x % step == step // 2)
        return level, (y - down / 2) ** 2 + (x - across / 2) ** 2

    return sorted(np.ndindex(down, across), key=order)


class TilePlace(NamedTuple):
    level: int
    row: int
    column: int


def highest_level(grid: Grid | OpenImage) -> int:
    """The level at which a grid fits into one tile."""
    return max(0, math.ceil(math.log2(max(grid.height, grid.width) / SIDE)))


def tile_planes(layer: Layer, place: TilePlace, page: Grid, preview: Callable[[], Preview]) -> tuple[Planes, float]:
    """(K, 256, 256) values, NaN outside of layer and page, and the share of them that is final."""
    # The page's rows and columns at the centres of the tile's pixels; 0 is the centre of the first pixel.
    axes = ((index * SIDE + np.arange(SIDE) + 0.5) * 2**place.level - 0.5 for index in (place.row, place.column))
    page_rows, page_columns = np.meshgrid(*axes, indexing="ij", sparse=True)
    image = layer.image
    rows, columns = image.positions(page_rows, page_columns)
    on_page = (page_rows < page.height) & (page_columns < page.width)
    inside = on_page & image.contains(rows, columns)
    tile: Planes = np.full((layer.planes, SIDE, SIDE), np.nan, dtype=np.float32)
    if not inside.any():
        return tile, 1.0
    factor = _decimation(rows, columns)
    window_rows = covering_window(rows, inside, image.height, factor)
    window_columns = covering_window(columns, inside, image.width, factor)
    values, factor, complete = _read(layer, window_rows, window_columns, factor, preview)
    picked = values[:, nearest(rows, window_rows, factor), nearest(columns, window_columns, factor)]
    np.copyto(tile, picked, where=inside)
    return tile, complete


def _read(
    layer: Layer, rows: slice, columns: slice, factor: int, preview: Callable[[], Preview]
) -> tuple[Planes, int, float]:
    """A window at about 1/factor of its resolution in the cheapest way: values, their true factor, the final share."""
    cost = (rows.stop - rows.start) * (columns.stop - columns.start) * layer.bytes_per_pixel
    if cost > DIRECT_BYTES and layer.decimated is not None and factor > 1:
        return layer.decimated(rows, columns, factor), factor, 1.0
    if cost <= DIRECT_BYTES or (cost <= LARGEST_DIRECT_BYTES and factor < preview_factor(layer)):
        return pooled(layer.window(rows, columns), factor), factor, 1.0
    coarse = preview()
    within, across = (slice(axis.start // coarse.factor, -(-axis.stop // coarse.factor)) for axis in (rows, columns))
    values, complete = coarse.window(within, across, max(1, factor // coarse.factor), PATIENCE_SECONDS)
    return values, max(factor, coarse.factor), complete


def _decimation(rows: Positions, columns: Positions) -> int:
    """Pixels of the layer per pixel of the tile along the finer axis, as a power of two."""
    axes = np.broadcast_arrays(rows, columns)
    across, down = (math.hypot(*(axis[end] - axis[0, 0] for axis in axes)) for end in ((0, -1), (-1, 0)))
    step = min(across, down) / (SIDE - 1)
    return 2 ** max(0, math.floor(math.log2(step) + 1e-6)) if math.isfinite(step) and step >= 1 else 1


def covering_window(positions: Positions, inside: NDArray[np.bool_], size: int, factor: int = 1) -> slice:
    """The window of all positions inside, beginning and ending at multiples of the factor."""
    pixels = np.floor(np.broadcast_to(positions, inside.shape)[inside] + 0.5)
    return slice(int(pixels.min()) // factor * factor, min(size, (int(pixels.max()) // factor + 1) * factor))


def nearest(positions: Positions, window: slice, factor: int = 1) -> NDArray[np.int64]:
    """The nearest pixel of a decimated window; an arbitrary one for positions outside."""
    clipped = np.floor(np.clip(positions, window.start, window.stop - 1) + 0.5)
    pixels: NDArray[np.int64] = clipped.astype(np.int64) // factor - window.start // factor
    return pixels
