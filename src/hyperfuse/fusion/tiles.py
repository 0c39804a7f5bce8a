"""Tiles of the output, and the windows of both images that each tile needs.

Windows are clipped only at the border of the scene, so border effects occur there and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hyperfuse.fusion.pair import AlignedPair
from hyperfuse.methods.window import Place
from hyperfuse.physics.observation import Observation

# Holes are filled from an image pyramid: windows that start at multiples of these have the same pyramid in every tile.
COARSE_ALIGNMENT, FINE_ALIGNMENT = 8, 32
# Side of the output's compressed blocks, each of which must be written at once.
OUTPUT_BLOCK = 256
TILE_SIZES = (
    *((2048, 2048), (1024, 2048), (1024, 1024), (512, 1024), (512, 512), (256, 512)),
    *((256, 256), (128, 256), (128, 128), (64, 128), (64, 64)),
)


@dataclass(frozen=True)
class Tile:
    """A piece of the output, in pixels of the output's grid."""

    index: int
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def pixels(self) -> int:
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class WindowPlace:
    """Windows of both images for some fine pixels of a pair, and within them the cores."""

    coarse: Place
    fine: Place
    coarse_core: Place
    fine_core: Place

    @property
    def coarse_size(self) -> tuple[int, int]:
        return _size(self.coarse)

    @property
    def fine_size(self) -> tuple[int, int]:
        return _size(self.fine)

    @property
    def core_size(self) -> tuple[int, int]:
        return _size(self.fine_core)

    def observation(self, scene: Observation) -> Observation:
        """The observation relative to the corner of the windows."""
        starts = [(part[0].start, part[1].start) for part in (self.coarse, self.fine)]
        return scene.in_window(starts[0], starts[1])


def plan_tiles(size: tuple[int, int], tile_size: tuple[int, int]) -> list[Tile]:
    """Tiles that cover an output of this size; those of one output block follow each other."""
    order = sorted(
        _corners(size, tile_size), key=lambda corner: (_block(corner[0], tile_size[0]), _block(corner[1], tile_size[1]))
    )
    return [
        Tile(index, slice(top, min(top + tile_size[0], size[0])), slice(left, min(left + tile_size[1], size[1])))
        for index, (top, left) in enumerate(order)
    ]


def place_for(pair: AlignedPair, observation: Observation, rows: slice, columns: slice, halo: int) -> WindowPlace:
    """The windows that these fine pixels of the pair need, with `reach` coarse pixels around them."""
    axes = zip((rows, columns), pair.coarse_shape[1:], pair.fine_shape[1:], pair.scale, observation.shift, strict=True)
    y, x = (_axis(*axis, halo) for axis in axes)
    return WindowPlace((y[0], x[0]), (y[1], x[1]), (y[2], x[2]), (y[3], x[3]))


def covered_part(tile: Tile, pair: AlignedPair) -> tuple[slice, slice] | None:
    """The fine pixels of the pair, counted from its corner, in a tile; None where there are none."""
    rows, columns = _shared(tile.rows, pair.fine_rows), _shared(tile.columns, pair.fine_columns)
    return None if rows is None or columns is None else (rows, columns)


def _axis(
    core: slice, coarse_size: int, fine_size: int, scale: float, shift: float, halo: int
) -> tuple[slice, slice, slice, slice]:
    first = _within(math.floor((core.start + 0.5 - shift) / scale), coarse_size - 1)
    last = _within(math.floor((core.stop - 0.5 - shift) / scale), coarse_size - 1) + 1
    start = max(0, first - halo) // COARSE_ALIGNMENT * COARSE_ALIGNMENT
    stop = min(coarse_size, last + halo)
    fine_start = 0 if start == 0 else max(0, math.floor(start * scale + shift)) // FINE_ALIGNMENT * FINE_ALIGNMENT
    fine_stop = fine_size if stop == coarse_size else min(fine_size, math.ceil(stop * scale + shift))
    # Pixels beyond the coarse image, and windows of no reach, still need themselves.
    fine_start, fine_stop = min(fine_start, core.start), max(fine_stop, core.stop)
    return (
        slice(start, stop),
        slice(fine_start, fine_stop),
        slice(first - start, last - start),
        slice(core.start - fine_start, core.stop - fine_start),
    )


def _corners(size: tuple[int, int], tile_size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for top in range(0, size[0], tile_size[0]):
        for left in range(0, size[1], tile_size[1]):
            yield top, left


def _block(start: int, tile_length: int) -> int:
    return start // max(OUTPUT_BLOCK, tile_length)


def _shared(wanted: slice, covered: slice) -> slice | None:
    start, stop = max(wanted.start, covered.start), min(wanted.stop, covered.stop)
    return slice(start - covered.start, stop - covered.start) if stop > start else None


def _size(place: Place) -> tuple[int, int]:
    return place[0].stop - place[0].start, place[1].stop - place[1].start


def _within(index: int, last: int) -> int:
    return min(max(index, 0), last)
