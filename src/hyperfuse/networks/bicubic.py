"""Bicubic upsampling by any real ratio: Keys' cubic convolution with a = -1/2, on the pixel-centre convention.

torch's own interpolation uses a = -3/4, which does not reproduce a linear ramp (Keys 1981 shows that -1/2 is the only value that
does, and the only one of third order). Each axis is one matrix, so an image is upsampled by two matrix products.

B batch, C bands, h w coarse, H W fine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.networks.pixel_centres import Placement, fine_positions

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
