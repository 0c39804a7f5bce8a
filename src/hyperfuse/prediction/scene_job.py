"""Everything that any process needs to fuse any tile of one scene, and the three steps of doing it: read, fuse, store.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.cubes.nodata import nodata_of
from hyperfuse.cubes.stored_values import Clipping, to_stored
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.catalogue import UNCERTAINTY
from hyperfuse.methods.nodata import fill_missing, mask_missing
from hyperfuse.methods.window import Window
from hyperfuse.prediction.aligned_pair import AlignedPair
from hyperfuse.prediction.moving import SMALLEST_MOVE, moved
from hyperfuse.prediction.tile_plan import FINE_ALIGNMENT, Tile, WindowPlace, covered_part, place_for
from hyperfuse.prediction.window_fusion import MethodFusion, WindowFusion

# Cubic splines look farther than their four pixels, but fade by 0.27 from pixel to pixel.
SPLINE_REACH = 12


@dataclass(frozen=True)
class TileInputs:
    part: tuple[slice, slice]
    """The fine pixels of the pair that the tile yields."""
    place: WindowPlace
    hsi: NDArray[np.float32]
    msi: NDArray[np.float32]


@dataclass(frozen=True)
class FusedTile:
    """Values of a tile (bands, rows, columns) as they are stored, and how many of them there were and did not fit."""

    block: NDArray[Any]
    values: int
    clipped: int


@dataclass(frozen=True)
class SceneJob:
    pair: AlignedPair
    observation: Observation
    fusion: WindowFusion
    stored_as: xr.DataArray
    """One pixel of the output: its bands, data type, scale and nodata."""
    bands: NDArray[np.int64]
    """Which bands of the HSI the output has."""
    move: tuple[float, float]
    """How far the result is to be moved, fine pixels: not at all, or to where the HSI says that it lies."""

    def fuse_tile(self, tile: Tile) -> FusedTile:
        return self.fuse(tile, self.read(tile))

    def read(self, tile: Tile) -> TileInputs | None:
        """None where the pair does not reach."""
        part = covered_part(tile, self.pair)
        if part is None:
            return None
        rows, columns = (self._widened(axis, size) for axis, size in zip(part, self.pair.fine_shape[1:], strict=True))
        place = place_for(self.pair, self.observation, rows, columns, self.fusion.reach(self.observation))
        return TileInputs(part, place, self.pair.hsi_values(*place.coarse), self.pair.msi_values(*place.fine))

    def fuse(self, tile: Tile, inputs: TileInputs | None) -> FusedTile:
        nodata, clipping = nodata_of(self.stored_as), Clipping()
        block = np.full((len(self.bands), *tile.shape), 0 if nodata is None else nodata, dtype=self.stored_as.dtype)
        if inputs is not None:
            fused = self._fused(inputs)
            rows, columns = (
                slice(part.start + covered.start - wanted.start, part.stop + covered.start - wanted.start)
                for part, covered, wanted in zip(
                    inputs.part, (self.pair.fine_rows, self.pair.fine_columns), (tile.rows, tile.columns), strict=True
                )
            )
            block[:, rows, columns] = to_stored(fused, self.stored_as, clipping)
        return FusedTile(block, clipping.values, clipping.clipped)

    def _fused(self, inputs: TileInputs) -> NDArray[np.float32]:
        """(bands, rows, columns) Physical values of the tile's part of the pair, NaN where there is no data."""
        usable, place = self.pair.usable_bands, inputs.place
        msi, observation = torch.from_numpy(np.ascontiguousarray(inputs.msi)), place.observation(self.observation)
        hsi = torch.from_numpy(np.ascontiguousarray(inputs.hsi[usable]))
        fused = self.fusion.fuse_window(Window(hsi, msi, observation, place.coarse_core, place.fine_core)).numpy()
        if not usable.all():
            everything = np.empty((len(usable), *fused.shape[1:]), dtype=np.float32)
            everything[usable] = fused
            if isinstance(self.fusion, MethodFusion) and self.fusion.method == UNCERTAINTY:
                everything[~usable] = np.nan  # of bands that are only interpolated nothing is known
            else:
                bad = torch.from_numpy(np.ascontiguousarray(inputs.hsi[~usable]))
                everything[~usable] = _interpolated(Window(bad, msi, observation, place.coarse_core, place.fine_core)).numpy()
            fused = everything
        if len(self.bands) < len(fused):
            fused = fused[self.bands]
        if not self._is_moved:
            return fused
        rows, columns = (
            slice(part.start - wide.start - core.start, part.stop - wide.start - core.start)
            for part, wide, core in zip(inputs.part, place.fine, place.fine_core, strict=True)
        )
        return moved(fused, self.move)[:, rows, columns]

    @property
    def _is_moved(self) -> bool:
        return max(abs(distance) for distance in self.move) >= SMALLEST_MOVE

    def _widened(self, part: slice, size: int) -> slice:
        if not self._is_moved:
            return part
        margin = math.ceil(max(abs(distance) for distance in self.move)) + SPLINE_REACH
        # Begins where holes are filled as they are in any other tile.
        return slice(max(0, part.start - margin) // FINE_ALIGNMENT * FINE_ALIGNMENT, min(size, part.stop + margin))


def _interpolated(window: Window) -> Tensor:
    """Bands that are flagged bad are interpolated and nothing else."""
    whole = replace(window, hsi=fill_missing(window.hsi))
    return mask_missing(whole.upsample_to_core(whole.hsi), window)


@contextmanager
def one_thread_per_tile() -> Iterator[None]:
    """Tiles are worked on side by side, each by one thread: sums then do not depend on how many processors there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
