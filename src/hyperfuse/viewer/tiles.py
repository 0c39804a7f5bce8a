"""Tiles: 256 x 256 pixels of a layer on the page's grid, 2^level pixels of the page along each side of one of theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperfuse.cubes.grid import Grid, Positions
from hyperfuse.viewer.layers import Layer, Planes
from hyperfuse.viewer.pooling import pooled
from hyperfuse.viewer.previews import Preview, preview_factor

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
    """(K, 256, 256) values, NaN beyond layer and page; and which share of what they stand for was already known, 1 for all."""
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
    window_rows, window_columns = _cover(rows, inside, factor, layer.height), _cover(columns, inside, factor, layer.width)
    values, factor, complete = layer_planes(layer, window_rows, window_columns, factor, preview)
    picked = values[:, _picked(rows, window_rows, factor), _picked(columns, window_columns, factor)]
    np.copyto(tile, picked, where=inside)
    return tile, complete


def layer_planes(
    layer: Layer, rows: slice, columns: slice, factor: int, preview: Callable[[], Preview]
) -> tuple[Planes, int, float]:
    """A window at about 1/factor of its resolution by the cheapest way: values, the factor they have, and how complete they are."""
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
