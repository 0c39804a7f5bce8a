"""The one home of the pixel-centre convention: where fine pixels lie on the coarse grid.

Positions are measured in coarse pixels; coarse pixel k has its CENTRE at position k, its edges at k - 1/2 and k + 1/2. Per axis,

    position(i) = origin + step * i                        i = 0 .. fine size - 1

When both images cover the same ground, their outer edges coincide and position(i) = (i + 1/2) * step - 1/2 with
step = coarse size / fine size = 1 / scale, for any real scale. The paper prints a corner-aligned formula, which shifts every pixel
but the middle one (docs/paper_notes.md). A tile of a larger scene passes its own placement instead.

h w coarse size, H W fine size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.networks.network_errors import PairShapeError

# A fine pixel that lies on a coarse centre (every odd scale has such pixels) may come out a rounding error to the left of it.
# Without this slack it would choose other neighbours in a tile than in the whole image.
CENTRE_SLACK = 1e-6


@dataclass(frozen=True)
class AxisPlacement:
    """Fine pixel i has its centre at `origin + step * i`, in coarse pixels."""

    origin: float
    step: float

    def position(self, fine_index: int) -> float:
        return self.origin + self.step * fine_index

    def seen_from(self, fine_start: int, coarse_start: int) -> AxisPlacement:
        """The same placement for a window that begins at these pixels of the two images."""
        return AxisPlacement(self.position(fine_start) - coarse_start, self.step)


@dataclass(frozen=True)
class Placement:
    """Where a fine image lies on a coarse one, along both axes."""

    rows: AxisPlacement
    columns: AxisPlacement


def shared_edges(fine_size: tuple[int, int], coarse_size: tuple[int, int]) -> Placement:
    """The placement of two images that cover exactly the same ground."""
    return Placement(_shared_edges_along_axis(fine_size[0], coarse_size[0]), _shared_edges_along_axis(fine_size[1], coarse_size[1]))


def _shared_edges_along_axis(fine_size: int, coarse_size: int) -> AxisPlacement:
    if fine_size < coarse_size:
        raise PairShapeError(
            f"{fine_size} fine pixels over {coarse_size} coarse ones, a scale below 1",
            "an msi with at least as many rows and columns as the hsi",
            "check which of the two images is the hsi",
        )
    step = coarse_size / fine_size
    return AxisPlacement(origin=0.5 * step - 0.5, step=step)


def fine_positions(axis: AxisPlacement, fine_size: int) -> Tensor:
    """Positions of the fine pixel centres, (fine_size,), float64.

    Made on the CPU, in double precision: a float32 position in a scene of thousands of pixels is wrong by 1e-4 of a pixel, and not
    every device has doubles.
    """
    return axis.origin + axis.step * torch.arange(fine_size, dtype=torch.float64)


@dataclass(frozen=True)
class NeighbourPair:
    """The coarse pixels on the two sides of every fine pixel along one axis.

    indices (2, fine size): coarse index below and above; the border pixel stands in for what lies outside.
    offsets (2, fine size): fine position minus the position of that coarse pixel, in coarse pixels, float32.
    """

    indices: Tensor
    offsets: Tensor

    def between(self, start: int, stop: int) -> NeighbourPair:
        return NeighbourPair(self.indices[:, start:stop], self.offsets[:, start:stop])


def neighbour_pair(positions: Tensor, coarse_size: int, device: torch.device) -> NeighbourPair:
    below = torch.floor(positions + CENTRE_SLACK)
    both = torch.stack([below, below + 1.0]).clamp(min=0.0).clamp(max=coarse_size - 1)
    offsets = positions - both
    return NeighbourPair(both.to(device=device, dtype=torch.int64), offsets.to(device=device, dtype=torch.float32))
