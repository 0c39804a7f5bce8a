"""Which parts of a pair to learn from: a few textured blocks, and in them only coarse pixels whose surroundings are all data.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.degradation.operators import SpatialOperator
from hyperfuse.estimation.registration import Block

MOST_BLOCKS = 4
BLOCK_FINE_PIXELS = 192  # side of a block where the scale allows
BLOCK_COARSE_PIXELS = (20, 64)
WHOLE_IMAGE_FINE_PIXELS = 288  # images up to this side are taken whole
# Room for the point spread and for the shift that is searched, in coarse pixels; less where an image is small.
MARGINS = (2.5, 2.0, 1.5, 1.0, 0.5, 0.0)
ENOUGH_PIXELS = 120
MARGIN_OF_BLOCK = 4.0  # fine surroundings carried along with a block, in coarse pixels


@dataclass(frozen=True)
class PairSamples:
    """A pair with its holes filled, and what was data before. `known` arrays are (h, w) and (H, W)."""

    hsi: Tensor
    msi: Tensor
    hsi_known: Tensor
    msi_known: Tensor
    scale: tuple[float, float]
    shift: tuple[float, float]

    def usable(self, sigma: tuple[float, float]) -> Tensor:
        """Coarse pixels, (h, w), far enough from borders and holes; the margin shrinks until enough are left."""
        size, fine = self.hsi_known.shape, self.msi_known.shape
        whole = self.hsi_known.clone()
        if not bool(self.msi_known.all()):
            wide = (1.5 * sigma[0], 1.5 * sigma[1])
            operator = SpatialOperator.from_point_spread((fine[0], fine[1]), (size[0], size[1]), self.scale, wide, self.shift)
            whole &= operator.apply(self.msi_known.float()) > 0.999
        wanted = min(ENOUGH_PIXELS, 0.4 * whole.numel())
        for margin in MARGINS:
            inside = whole & self._inside(0, margin)[:, None] & self._inside(1, margin)[None, :]
            if int(inside.sum()) >= wanted:
                return inside
        return inside

    def _inside(self, axis: int, margin: float) -> Tensor:
        scale, fine = self.scale[axis], self.msi_known.shape[axis]
        centres = (torch.arange(self.hsi_known.shape[axis]) + 0.5) * scale - 0.5 + self.shift[axis]
        return (centres >= margin * scale - 0.5 - 1e-6) & (centres <= fine - 0.5 - margin * scale + 1e-6)

    def blocks(self, sigma: tuple[float, float]) -> list[Block]:
        """The whole pair if it is small, else the most textured few of a grid of blocks."""
        usable = self.usable(sigma)
        if max(self.msi_known.shape) <= WHOLE_IMAGE_FINE_PIXELS:
            return [Block(self.hsi, self.msi, self.shift, usable)]
        places = self._places()
        texture = [self._texture(place, usable) for place in places]
        order = sorted(range(len(places)), key=lambda index: -texture[index])
        chosen = [places[index] for index in order[:MOST_BLOCKS] if texture[index] >= 0]
        return [self._block(place, usable) for place in chosen] or [Block(self.hsi, self.msi, self.shift, usable)]

    def _places(self) -> list[tuple[slice, slice]]:
        spans: list[list[slice]] = []
        for axis in (0, 1):
            size = self.hsi_known.shape[axis]
            side = min(size, max(BLOCK_COARSE_PIXELS[0], min(BLOCK_COARSE_PIXELS[1], round(BLOCK_FINE_PIXELS / self.scale[axis]))))
            count = max(1, min(8, size // side))
            starts = [round(index * (size - side) / max(1, count - 1)) for index in range(count)]
            spans.append([slice(start, start + side) for start in starts])
        return [(rows, columns) for rows in spans[0] for columns in spans[1]]

    def _texture(self, place: tuple[slice, slice], usable: Tensor) -> float:
        """Variance of the hsi's mean band over usable pixels; negative for blocks with too few of them."""
        inside = usable[place]
        if int(inside.sum()) < 0.3 * inside.numel():
            return -1.0
        return float(self.hsi[:, place[0], place[1]].mean(0)[inside].var())

    def _block(self, place: tuple[slice, slice], usable: Tensor) -> Block:
        fine, origin_shift = [], []
        for axis, span in enumerate(place):
            scale = self.scale[axis]
            first = math.floor((span.start - MARGIN_OF_BLOCK) * scale + self.shift[axis])
            last = math.ceil((span.stop + MARGIN_OF_BLOCK) * scale + self.shift[axis])
            fine.append(slice(max(0, first), min(self.msi_known.shape[axis], last)))
            origin_shift.append(self.shift[axis] + span.start * scale - fine[-1].start)
        msi = self.msi[:, fine[0], fine[1]]
        return Block(self.hsi[:, place[0], place[1]], msi, (origin_shift[0], origin_shift[1]), usable[place])
