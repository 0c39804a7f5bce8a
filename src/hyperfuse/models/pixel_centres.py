"""Bicubic upsampling by any real ratio: Keys' cubic convolution with a = -1/2, on the pixel-centre convention.

torch's own interpolation uses a = -3/4, which does not reproduce a linear ramp (Keys 1981 shows that -1/2 is the only
value that does, and the only one of third order). Each axis is one matrix, so an image is upsampled by two matrix
products.

B batch, C bands, h w coarse, H W fine.

The one home of the pixel-centre convention: where fine pixels lie on the coarse grid.

Positions are measured in coarse pixels; coarse pixel k has its CENTRE at position k, its edges at k - 1/2 and k + 1/2.
Per axis,

    position(i) = origin + step * i                        i = 0 .. fine size - 1

When both images cover the same ground, their outer edges coincide and position(i) = (i + 1/2) * step - 1/2 with step =
coarse size / fine size = 1 / scale, for any real scale. The paper prints a corner-aligned formula, which shifts every
pixel but the middle one (docs/paper_notes.md). A tile of a larger scene passes its own placement instead.

h w coarse size, H W fine size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.errors import GridError

# A fine pixel that lies on a coarse centre (every odd scale has such pixels) may come out a rounding error to the left
# of it. Without this slack it would choose other neighbours in a tile than in the whole image.
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
    return Placement(
        _shared_edges_along_axis(fine_size[0], coarse_size[0]), _shared_edges_along_axis(fine_size[1], coarse_size[1])
    )


def _shared_edges_along_axis(fine_size: int, coarse_size: int) -> AxisPlacement:
    if fine_size < coarse_size:
        raise GridError(
            f"{fine_size} fine pixels over {coarse_size} coarse ones, a scale below 1",
            "an msi with at least as many rows and columns as the hsi",
            "check which of the two images is the hsi",
        )
    step = coarse_size / fine_size
    return AxisPlacement(origin=0.5 * step - 0.5, step=step)


def fine_positions(axis: AxisPlacement, fine_size: int) -> Tensor:
    """Positions of the fine pixel centres, (fine_size,), float64.

    Made on the CPU, in double precision: a float32 position in a scene of thousands of pixels is wrong by 1e-4 of a
    pixel, and not every device has doubles.
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


KEYS_A = -0.5
_REACH = 2  # a cubic convolution looks two coarse pixels to each side


def upsample_bicubic(image: Tensor, fine_size: tuple[int, int], placement: Placement) -> Tensor:
    """(B, C, h, w) -> (B, C, H, W). Beyond the border the edge pixel is repeated."""
    if torch.amp.is_autocast_available(image.device.type) and torch.is_autocast_enabled(image.device.type):
        # The base carries the radiometry of the result: it stays in full precision whatever the network runs in.
        with torch.autocast(image.device.type, enabled=False):
            return upsample_bicubic(image, fine_size, placement)
    rows = cubic_matrix(fine_positions(placement.rows, fine_size[0]), image.shape[-2])
    columns = cubic_matrix(fine_positions(placement.columns, fine_size[1]), image.shape[-1])
    widened = image @ columns.to(image).transpose(0, 1)
    return rows.to(image) @ widened


def cubic_matrix(positions: Tensor, coarse_size: int) -> Tensor:
    """The (fine size, coarse size) float64 matrix that interpolates one axis; its rows sum to 1."""
    # Farther out than this every tap is the repeated edge pixel, so nothing changes any more.
    positions = positions.clamp(min=-float(_REACH)).clamp(max=coarse_size - 1 + _REACH)
    padding = 2 * _REACH
    taps = torch.arange(-padding, coarse_size + padding, dtype=torch.float64)
    weights = keys_cubic(positions[:, None] - taps[None, :])
    inner = weights[:, padding : padding + coarse_size]
    before = weights[:, :padding].sum(dim=1, keepdim=True)
    after = weights[:, padding + coarse_size :].sum(dim=1, keepdim=True)
    index = torch.arange(coarse_size)[None, :]
    return inner + before * (index == 0) + after * (index == coarse_size - 1)


def keys_cubic(distance: Tensor) -> Tensor:
    """Keys (1981), eq. 4 with a = -1/2, as a function of the distance in coarse pixels."""
    d = distance.abs()
    near = ((KEYS_A + 2.0) * d - (KEYS_A + 3.0)) * d * d + 1.0
    far = ((KEYS_A * d - 5.0 * KEYS_A) * d + 8.0 * KEYS_A) * d - 4.0 * KEYS_A
    return torch.where(d <= 1.0, near, torch.where(d < 2.0, far, torch.zeros_like(d)))
