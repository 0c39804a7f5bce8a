"""Tiles: 256 x 256 pixels of a layer on the page's grid, 2^level pixels of the page along each side of one of theirs.

Smaller pictures by means of blocks of pixels.

Shapes: (K, y, x) -> (K, ceil(y / factor), ceil(x / factor)), NaN where a block holds nothing.

A layer without overviews, seen from afar: computed window by window in the background, far-apart windows first.

While it fills, a window that is still missing shows the mean colour of the nearest one that is there, so that something
can be seen at once and sharpens under the eye. Work on a preview that nobody has asked for lately rests until somebody
asks again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from hyperfuse.io.grid import Grid, Positions
from hyperfuse.viewer.layers import Layer, Planes


def pooled(planes: Planes, factor: int) -> Planes:
    if factor == 1:
        return planes
    bands, height, width = planes.shape
    rows, columns = -(-height // factor), -(-width // factor)
    if (height, width) != (rows * factor, columns * factor):
        whole = np.full((bands, rows * factor, columns * factor), np.nan, dtype=np.float32)
        whole[:, :height, :width] = planes
        planes = whole
    blocks = planes.reshape(bands, rows, factor, columns, factor)
    means: Planes = blocks.mean(axis=(2, 4), dtype=np.float32)
    holes = np.isnan(means)
    if holes.any():
        plane, row, column = np.nonzero(holes)
        partly = blocks[plane, row, :, column, :].reshape(len(plane), -1)
        known = np.isfinite(partly)
        counts = known.sum(axis=1)
        sums = np.where(known, partly, 0).sum(axis=1)
        means[holes] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


# One preview in memory, as float32, and what one window of it costs to compute.
LARGEST_PREVIEW_BYTES = 96 * 2**20
WINDOW_BYTES = 24 * 2**20
BLOCK = 256
WORKERS = 2
SECONDS_OF_INTEREST = 5.0


def preview_factor(layer: Layer) -> int:
    """By which power of two a layer must shrink to be kept as a preview."""
    factor = 2
    while layer.planes * 4 * (layer.height // factor) * (layer.width // factor) > LARGEST_PREVIEW_BYTES:
        factor *= 2
    return factor


class Preview:
    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self.factor = preview_factor(layer)
        self._side = _window_side(layer, self.factor)
        down, across = -(-layer.height // self._side), -(-layer.width // self._side)
        size = -(-layer.height // self.factor), -(-layer.width // self.factor)
        self._values: Planes = np.full((layer.planes, *size), np.nan, dtype=np.float32)
        self._means: Planes = np.full((layer.planes, down, across), np.nan, dtype=np.float32)
        self._there = np.zeros((down, across), dtype=bool)
        self._todo = list(_far_apart_first(down, across))[::-1]
        self._changed = threading.Condition()
        self._asked = 0.0
        self._running = 0
        self._error: Exception | None = None

    @property
    def bytes(self) -> int:
        return self._values.nbytes

    @property
    def complete(self) -> float:
        """The share of it that is there."""
        return float(self._there.mean())

    def window(self, rows: slice, columns: slice, patience: float) -> tuple[Planes, float]:
        """Rows and columns of the preview as they are after at most so many seconds, and how much of the preview is
        there.
        """
        deadline = time.monotonic() + patience
        with self._changed:
            self._asked = time.monotonic()
            self._start_workers()
            while not self._there.all() and self._error is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
                self._asked = time.monotonic()
            if self._error is not None:
                raise self._error
            values = self._values[:, rows, columns].copy()
            there = self._there.copy()
        if not there.all():
            self._fill_with_means(values, rows, columns, there)
        return values, float(there.mean())

    def stop(self) -> None:
        with self._changed:
            self._todo.clear()

    def _start_workers(self) -> None:
        while self._todo and self._running < WORKERS:
            self._running += 1
            threading.Thread(target=self._work, name="preview", daemon=True).start()

    def _work(self) -> None:
        try:
            while (place := self._next()) is not None:
                self._compute(*place)
        except Exception as error:
            # Whoever waits for it must learn of it, whatever it was.
            self._error = error
            self.stop()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _next(self) -> tuple[int, int] | None:
        with self._changed:
            interested = time.monotonic() - self._asked < SECONDS_OF_INTEREST
            return self._todo.pop() if self._todo and interested else None

    def _compute(self, down: int, across: int) -> None:
        rows = slice(down * self._side, min((down + 1) * self._side, self._layer.height))
        columns = slice(across * self._side, min((across + 1) * self._side, self._layer.width))
        # Half as many pixels along each side make as good a mean, and most of the work is that with pixels.
        step = max(1, self.factor // 2) if self._layer.can_skip else 1
        read = self._layer.window(slice(rows.start, rows.stop, step), slice(columns.start, columns.stop, step))
        small = pooled(read, self.factor // step)
        top, left = rows.start // self.factor, columns.start // self.factor
        with self._changed:
            self._values[:, top : top + small.shape[1], left : left + small.shape[2]] = small
            finite = np.isfinite(small)
            counts = finite.sum(axis=(1, 2))
            sums = np.where(finite, small, 0).sum(axis=(1, 2))
            self._means[:, down, across] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
            self._there[down, across] = True
            self._changed.notify_all()

    def _fill_with_means(self, values: Planes, rows: slice, columns: slice, there: NDArray[np.bool_]) -> None:
        if not there.any():
            return
        nearest_down, nearest_across = distance_transform_edt(~there, return_distances=False, return_indices=True)
        side = self._side // self.factor
        down = np.minimum(np.arange(rows.start, rows.stop) // side, there.shape[0] - 1)[:, None]
        across = np.minimum(np.arange(columns.start, columns.stop) // side, there.shape[1] - 1)[None, :]
        means = self._means[:, nearest_down[down, across], nearest_across[down, across]]
        missing = ~there[down, across]
        values[:, missing] = means[:, missing]


def _window_side(layer: Layer, factor: int) -> int:
    """Of a window, in pixels of the layer: whole blocks of the file, and whole pixels of the preview."""
    affordable = int((WINDOW_BYTES / layer.bytes_per_pixel) ** 0.5)
    unit = max(BLOCK, factor)
    return max(unit, affordable // unit * unit)


def _far_apart_first(down: int, across: int) -> Iterator[tuple[int, int]]:
    """All places of a grid, every 4th first, then every 2nd, then the others; within each, from the middle outwards."""
    places = [(y, x) for y in range(down) for x in range(across)]

    def turn(place: tuple[int, int]) -> tuple[int, float]:
        y, x = place
        coarseness = next(
            level for level, step in enumerate((4, 2, 1)) if y % step == step // 2 and x % step == step // 2
        )
        return coarseness, (y - down / 2) ** 2 + (x - across / 2) ** 2

    yield from sorted(places, key=turn)


SIDE = 256
# A window that costs no more than this is read as it is, whatever overviews there are.
DIRECT_BYTES = 16 * 2**20
# Where there are no overviews, up to this; beyond, a preview serves.
LARGEST_DIRECT_BYTES = 256 * 2**20
# For how long a tile waits for a preview to become whole before it shows what there is.
PATIENCE_SECONDS = 0.7


@dataclass(frozen=True)
class TilePlace:
    level: int
    row: int
    column: int

    def rows_of_page(self) -> Positions:
        return _centres(self.level, self.row)[:, None]

    def columns_of_page(self) -> Positions:
        return _centres(self.level, self.column)[None, :]


def highest_level(longer_side: int) -> int:
    """The level at which a grid fits into one tile."""
    return max(0, math.ceil(math.log2(longer_side / SIDE)))


def tile_planes(layer: Layer, place: TilePlace, page: Grid, preview: Callable[[], Preview]) -> tuple[Planes, float]:
    """(K, 256, 256) values, NaN beyond layer and page; and which share of what they stand for was already known, 1 for
    all.
    """
    page_rows, page_columns = place.rows_of_page(), place.columns_of_page()
    rows, columns = layer.positions(page_rows, page_columns)
    inside = (
        (page_rows < page.height)
        & (page_columns < page.width)
        & (rows >= -0.5)
        & (rows < layer.height - 0.5)
        & (columns >= -0.5)
        & (columns < layer.width - 0.5)
    )
    tile: Planes = np.full((layer.planes, SIDE, SIDE), np.nan, dtype=np.float32)
    if not inside.any():
        return tile, 1.0
    factor = _factor(rows, columns)
    window_rows, window_columns = (
        _cover(rows, inside, factor, layer.height),
        _cover(columns, inside, factor, layer.width),
    )
    values, factor, complete = layer_planes(layer, window_rows, window_columns, factor, preview)
    picked = values[:, _picked(rows, window_rows, factor), _picked(columns, window_columns, factor)]
    np.copyto(tile, picked, where=inside)
    return tile, complete


def layer_planes(
    layer: Layer, rows: slice, columns: slice, factor: int, preview: Callable[[], Preview]
) -> tuple[Planes, int, float]:
    """A window at about 1/factor of its resolution by the cheapest way: values, the factor they have, and how complete
    they are.
    """
    cost = (rows.stop - rows.start) * (columns.stop - columns.start) * layer.bytes_per_pixel
    if cost <= DIRECT_BYTES:
        return pooled(layer.window(rows, columns), factor), factor, 1.0
    if layer.decimated is not None and factor > 1:
        return layer.decimated(rows, columns, factor), factor, 1.0
    if cost <= LARGEST_DIRECT_BYTES and factor < preview_factor(layer):
        return pooled(layer.window(rows, columns), factor), factor, 1.0
    coarse = preview()
    within = slice(rows.start // coarse.factor, -(-rows.stop // coarse.factor))
    across = slice(columns.start // coarse.factor, -(-columns.stop // coarse.factor))
    values, complete = coarse.window(within, across, PATIENCE_SECONDS)
    if factor <= coarse.factor:
        return values, coarse.factor, complete
    return pooled(values, factor // coarse.factor), factor, complete


def _centres(level: int, index: int) -> Positions:
    """Centres of a tile's pixels along one axis, in pixels of the page (0 is the centre of its first)."""
    centres: Positions = (index * SIDE + np.arange(SIDE, dtype=np.float64) + 0.5) * 2**level - 0.5
    return centres


def _factor(rows: Positions, columns: Positions) -> int:
    """How many pixels of the layer a pixel of the tile stands for, along the finer axis, as a power of two."""
    axes = np.broadcast_arrays(rows, columns)
    across, down = (math.hypot(*(axis[end] - axis[0, 0] for axis in axes)) for end in ((0, -1), (-1, 0)))
    step = min(across, down) / (SIDE - 1)
    return 2 ** max(0, math.floor(math.log2(step) + 1e-6)) if math.isfinite(step) and step >= 1 else 1


def _cover(positions: Positions, inside: NDArray[np.bool_], factor: int, size: int) -> slice:
    """The window that holds all pixels asked for, beginning and ending at multiples of the factor."""
    wanted = np.floor(np.broadcast_to(positions, inside.shape)[inside] + 0.5)
    return slice(int(wanted.min()) // factor * factor, min(size, (int(wanted.max()) // factor + 1) * factor))


def _picked(positions: Positions, window: slice, factor: int) -> NDArray[np.int64]:
    """The pixel of a window, shrunk by a factor, that lies nearest; any of them for positions outside."""
    nearest = np.floor(np.clip(positions, window.start, window.stop - 1) + 0.5)
    picked: NDArray[np.int64] = nearest.astype(np.int64) // factor - window.start // factor
    return picked
