"""Which parts of a pair to learn from: a few textured blocks, and in them only coarse pixels whose surroundings are all
data.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from hyperfuse.physics.noise import estimate_noise
from hyperfuse.physics.operators import SpatialOperator
from hyperfuse.physics.register import Block

MOST_BLOCKS = 4
BLOCK_FINE_PIXELS = 192  # side of a block where the scale allows
BLOCK_COARSE_PIXELS = (20, 64)
WHOLE_IMAGE_FINE_PIXELS = 288  # images up to this side are taken whole
# Room for the point spread and for the shift that is searched, in coarse pixels; less where an image is small.
MARGINS = (2.5, 2.0, 1.5, 1.0, 0.5, 0.0)
ENOUGH_PIXELS = 120
MARGIN_OF_BLOCK = 4.0  # fine surroundings carried along with a block, in coarse pixels


class Samples(Protocol):
    """What the estimation looks at, wherever it comes from: a pair in memory, or windows of a larger one."""

    @property
    def scale(self) -> tuple[float, float]: ...

    @property
    def shift(self) -> tuple[float, float]: ...

    def at_shift(self, shift: tuple[float, float]) -> Samples:
        """The same pair, taken to lie like this."""

    def blocks(self, sigma: tuple[float, float]) -> list[Block]: ...

    def hsi_noise(self) -> Tensor: ...

    def msi_noise(self) -> Tensor: ...


@dataclass(frozen=True)
class PairSamples:
    """A pair with its holes filled, and what was data before. `known` arrays are (h, w) and (H, W)."""

    hsi: Tensor
    msi: Tensor
    hsi_known: Tensor
    msi_known: Tensor
    scale: tuple[float, float]
    shift: tuple[float, float]

    def at_shift(self, shift: tuple[float, float]) -> PairSamples:
        return replace(self, shift=shift)

    def hsi_noise(self) -> Tensor:
        return estimate_noise(self.hsi, None if bool(self.hsi_known.all()) else self.hsi_known)

    def msi_noise(self) -> Tensor:
        return estimate_noise(self.msi, None if bool(self.msi_known.all()) else self.msi_known)

    def far_from_holes(self, sigma: tuple[float, float]) -> Tensor:
        """Coarse pixels, (h, w), that are known and see nothing but known fine ones."""
        size, fine = self.hsi_known.shape, self.msi_known.shape
        if bool(self.msi_known.all()):
            return self.hsi_known
        wide = (1.5 * sigma[0], 1.5 * sigma[1])
        operator = SpatialOperator.from_psf((fine[0], fine[1]), (size[0], size[1]), self.scale, wide, self.shift)
        return self.hsi_known & (operator.apply(self.msi_known.float()) > 0.999)

    def usable(self, sigma: tuple[float, float]) -> Tensor:
        """Coarse pixels, (h, w), far enough from borders and holes; the margin shrinks until enough are left."""
        whole = self.far_from_holes(sigma)
        wanted = min(ENOUGH_PIXELS, 0.4 * whole.numel())
        for margin in MARGINS:
            inside = whole & self.inside(0, margin)[:, None] & self.inside(1, margin)[None, :]
            if int(inside.sum()) >= wanted:
                return inside
        return inside

    def inside(self, axis: int, margin: float) -> Tensor:
        return inside_fine_image(
            self.hsi_known.shape[axis], self.msi_known.shape[axis], self.scale[axis], self.shift[axis], margin
        )

    def blocks(self, sigma: tuple[float, float]) -> list[Block]:
        """The whole pair if it is small, else the most textured few of a grid of blocks."""
        usable = self.usable(sigma)
        if max(self.msi_known.shape) <= WHOLE_IMAGE_FINE_PIXELS:
            return [Block(self.hsi, self.msi, self.shift, usable)]
        places = block_places((self.hsi_known.shape[0], self.hsi_known.shape[1]), self.scale)
        texture = [self._texture(place, usable) for place in places]
        order = sorted(range(len(places)), key=lambda index: -texture[index])
        chosen = [places[index] for index in order[:MOST_BLOCKS] if texture[index] >= 0]
        return [self._block(place, usable) for place in chosen] or [Block(self.hsi, self.msi, self.shift, usable)]

    def _texture(self, place: tuple[slice, slice], usable: Tensor) -> float:
        """Variance of the hsi's mean band over usable pixels; negative for blocks with too few of them."""
        inside = usable[place]
        if int(inside.sum()) < 0.3 * inside.numel():
            return -1.0
        return float(self.hsi[:, place[0], place[1]].mean(0)[inside].var())

    def _block(self, place: tuple[slice, slice], usable: Tensor) -> Block:
        fine, origin_shift = block_surroundings(
            place, (self.msi_known.shape[0], self.msi_known.shape[1]), self.scale, self.shift
        )
        return Block(self.hsi[:, place[0], place[1]], self.msi[:, fine[0], fine[1]], origin_shift, usable[place])


def block_places(coarse_size: tuple[int, int], scale: tuple[float, float]) -> list[tuple[slice, slice]]:
    """A grid of blocks spread over the coarse image, as (rows, columns)."""
    spans: list[list[slice]] = []
    for size, axis_scale in zip(coarse_size, scale, strict=True):
        side = min(
            size, max(BLOCK_COARSE_PIXELS[0], min(BLOCK_COARSE_PIXELS[1], round(BLOCK_FINE_PIXELS / axis_scale)))
        )
        count = max(1, min(8, size // side))
        starts = [round(index * (size - side) / max(1, count - 1)) for index in range(count)]
        spans.append([slice(start, start + side) for start in starts])
    return [(rows, columns) for rows in spans[0] for columns in spans[1]]


def block_surroundings(
    place: tuple[slice, slice], fine_size: tuple[int, int], scale: tuple[float, float], shift: tuple[float, float]
) -> tuple[tuple[slice, slice], tuple[float, float]]:
    """The fine pixels (rows, columns) that a block is to carry along, and where its coarse pixels look within them."""
    fine, origin_shift = [], []
    for axis, span in enumerate(place):
        first = math.floor((span.start - MARGIN_OF_BLOCK) * scale[axis] + shift[axis])
        last = math.ceil((span.stop + MARGIN_OF_BLOCK) * scale[axis] + shift[axis])
        fine.append(slice(max(0, first), min(fine_size[axis], last)))
        origin_shift.append(shift[axis] + span.start * scale[axis] - fine[-1].start)
    return (fine[0], fine[1]), (origin_shift[0], origin_shift[1])


def inside_fine_image(coarse: int, fine: int, scale: float, shift: float, margin: float) -> Tensor:
    """(coarse,) Along one axis: whether a coarse pixel lies at least so many coarse pixels inside the fine image."""
    centres = (torch.arange(coarse) + 0.5) * scale - 0.5 + shift
    return (centres >= margin * scale - 0.5 - 1e-6) & (centres <= fine - 0.5 - margin * scale + 1e-6)
