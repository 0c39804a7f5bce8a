"""A layer without overviews, seen from afar: computed window by window in the background, far-apart windows first.

While it fills, a window that is still missing shows the mean colour of the nearest one that is there, so that something can be seen
at once and sharpens under the eye. Work on a preview that nobody has asked for lately rests until somebody asks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from hyperfuse.viewer.layers import Layer, Planes
from hyperfuse.viewer.pooling import pooled

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
        """Rows and columns of the preview as they are after at most so many seconds, and how much of the preview is there."""
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
        coarseness = next(level for level, step in enumerate((4, 2, 1)) if y % step == step // 2 and x % step == step // 2)
        return coarseness, (y - down / 2) ** 2 + (x - across / 2) ** 2

    yield from sorted(places, key=turn)
