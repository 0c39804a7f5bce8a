"""A network on a scene of any size: tiles with enough margin that the stitched result is the one of the whole image,
without seams.

Windows are clipped at the border of the scene and nowhere else, so zero padding and repeated edge pixels occur where
they would in the whole image, and everywhere else a tile sees its true neighbours.

B batch, C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.errors import OptionError
from hyperfuse.models.channels import PairChannels, find_channels
from hyperfuse.models.ssa import FusionNetwork, ReceptiveField
from hyperfuse.physics.resample import CENTRE_SLACK, AxisPlacement, Placement, shared_edges

DEFAULT_TILE_SIZE = 256


@dataclass(frozen=True)
class Window:
    """Rows `top` to `bottom` and columns `left` to `right` of an image, ends excluded."""

    top: int
    bottom: int
    left: int
    right: int

    def of(self, image: Tensor) -> Tensor:
        return image[..., self.top : self.bottom, self.left : self.right]


@dataclass(frozen=True)
class Tile:
    """core    the piece of the result that this tile yields, in fine pixels of the scene
    fine    what has to be read of the msi
    coarse  what has to be read of the hsi
    placement  where the fine window lies on the coarse window
    """

    core: Window
    fine: Window
    coarse: Window
    placement: Placement

    def core_of(self, fused_window: Tensor) -> Tensor:
        """The core cut out of the result on the fine window."""
        top, left = self.core.top - self.fine.top, self.core.left - self.fine.left
        height, width = self.core.bottom - self.core.top, self.core.right - self.core.left
        return fused_window[..., top : top + height, left : left + width]


def plan_tiles(
    fine_size: tuple[int, int],
    coarse_size: tuple[int, int],
    receptive_field: ReceptiveField,
    tile_size: int = DEFAULT_TILE_SIZE,
    placement: Placement | None = None,
) -> Iterator[Tile]:
    """Tiles whose cores cover the fine image, row by row; each core is at most `tile_size` fine pixels on a side."""
    if tile_size < 1:
        raise OptionError(f"tile size {tile_size}", "at least 1 fine pixel")
    placement = placement or shared_edges(fine_size, coarse_size)
    columns = [
        _axis_tile(left, tile_size, fine_size[1], coarse_size[1], receptive_field, placement.columns)
        for left in range(0, fine_size[1], tile_size)
    ]
    for top in range(0, fine_size[0], tile_size):
        row = _axis_tile(top, tile_size, fine_size[0], coarse_size[0], receptive_field, placement.rows)
        for column in columns:
            yield Tile(
                core=Window(*row.core, *column.core),
                fine=Window(*row.fine, *column.fine),
                coarse=Window(*row.coarse, *column.coarse),
                placement=Placement(row.placement, column.placement),
            )


@torch.inference_mode()
def run_by_tiles(
    network: FusionNetwork,
    read_hsi: Callable[[Window], Tensor],
    read_msi: Callable[[Window], Tensor],
    fine_size: tuple[int, int],
    coarse_size: tuple[int, int],
    tile_size: int = DEFAULT_TILE_SIZE,
    placement: Placement | None = None,
    read_base: Callable[[Window], Tensor] | None = None,
    channels: PairChannels | None = None,
) -> Iterator[tuple[Window, Tensor]]:
    """Yields (window of the result, its pixels (B, C, rows, columns)); the readers return (B, bands, rows, columns) of
    a window.

    Nothing larger than one tile with its margin is held. Networks over components or wavelengths need the `channels` of
    the scene.
    """
    for tile in plan_tiles(fine_size, coarse_size, network.receptive_field, tile_size, placement):
        base = None if read_base is None else read_base(tile.fine)
        fused = network(read_hsi(tile.coarse), read_msi(tile.fine), tile.placement, base, channels)
        yield tile.core, tile.core_of(fused)


def fuse_by_tiles(
    network: FusionNetwork,
    hsi: Tensor,
    msi: Tensor,
    tile_size: int = DEFAULT_TILE_SIZE,
    placement: Placement | None = None,
    base: Tensor | None = None,
    channels: PairChannels | None = None,
) -> Tensor:
    """`network(hsi, msi)` without gradient and with the memory of one tile: (B, C, h, w), (B, M, H, W) -> (B, C, H, W)."""
    channels = channels or find_channels(network.config, hsi, msi)
    fine_size, coarse_size = (msi.shape[-2], msi.shape[-1]), (hsi.shape[-2], hsi.shape[-1])
    fused = hsi.new_empty(hsi.shape[0], hsi.shape[1], *fine_size)
    tiles = run_by_tiles(
        network,
        lambda window: window.of(hsi),
        lambda window: window.of(msi),
        fine_size,
        coarse_size,
        tile_size,
        placement,
        None if base is None else lambda window: window.of(base),
        channels,
    )
    for window, pixels in tiles:
        window.of(fused).copy_(pixels)
    return fused


@dataclass(frozen=True)
class _AxisTile:
    core: tuple[int, int]
    fine: tuple[int, int]
    coarse: tuple[int, int]
    placement: AxisPlacement


def _axis_tile(
    start: int, tile_size: int, fine_size: int, coarse_size: int, receptive_field: ReceptiveField, axis: AxisPlacement
) -> _AxisTile:
    core = (start, min(start + tile_size, fine_size))
    fine = (max(0, core[0] - receptive_field.fine), min(fine_size, core[1] + receptive_field.fine))
    # The output kernel looks one fine pixel beyond the core; those pixels ask their coarse neighbours, which look
    # farther still. A pixel outside the coarse image asks its border pixel.
    last = coarse_size - 1
    first_asked = _within(_coarse_below(axis, max(0, core[0] - 1)), last)
    last_asked = _within(_coarse_below(axis, min(fine_size, core[1] + 1) - 1) + 1, last)
    # The bicubic image of the whole fine window needs one coarse pixel below and two above each position.
    first_tap = _within(_coarse_below(axis, fine[0]) - 1, last)
    last_tap = _within(_coarse_below(axis, fine[1] - 1) + 2, last)
    coarse = (
        _within(min(first_asked - receptive_field.coarse, first_tap), last),
        _within(max(last_asked + receptive_field.coarse, last_tap), last) + 1,
    )
    return _AxisTile(core, fine, coarse, axis.seen_from(fine[0], coarse[0]))


def _coarse_below(axis: AxisPlacement, fine_index: int) -> int:
    return math.floor(axis.position(fine_index) + CENTRE_SLACK)


def _within(index: int, last: int) -> int:
    return min(max(index, 0), last)
