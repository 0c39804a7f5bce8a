"""Bilinear resampling between the coarse and the fine grid of a pair, wherever the one lies on the other.

B batch, D features, h w coarse, H W fine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.networks.pixel_centres import AxisPlacement, Placement, fine_positions


def to_fine(image: Tensor, fine_size: tuple[int, ...], placement: Placement) -> Tensor:
    """(B, D, h, w) -> (B, D, H, W)."""
    return _resampled(image, fine_size, placement)


def to_coarse(image: Tensor, coarse_size: tuple[int, ...], placement: Placement) -> Tensor:
    """(B, D, H, W) -> (B, D, h, w): the value at the centre of every coarse pixel, without averaging over it."""
    return _resampled(image, coarse_size, Placement(_seen_from_coarse(placement.rows), _seen_from_coarse(placement.columns)))


def _seen_from_coarse(axis: AxisPlacement) -> AxisPlacement:
    """Coarse pixel k lies at fine position (k - origin) / step."""
    return AxisPlacement(-axis.origin / axis.step, 1 / axis.step)


def _resampled(image: Tensor, size: tuple[int, ...], placement: Placement) -> Tensor:
    rows = _linear_matrix(fine_positions(placement.rows, size[0]), image.shape[2])
    columns = _linear_matrix(fine_positions(placement.columns, size[1]), image.shape[3])
    return rows.to(image) @ (image @ columns.to(image).transpose(0, 1))


def _linear_matrix(positions: Tensor, size: int) -> Tensor:
    """(positions, size): hat functions around the pixels; beyond the border the edge pixel is repeated."""
    inside = positions.clamp(min=0.0).clamp(max=size - 1)
    pixels = torch.arange(size, dtype=torch.float64)
    return (1 - (inside[:, None] - pixels[None, :]).abs()).clamp(min=0)
