"""Bicubic interpolation (Keys 1981, a = -0.5) at pixel centres, one matrix per axis, for any real scale and shift.

Shapes: C bands, h w coarse, H W fine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.degradation.operators import separable
from hyperfuse.estimation.observation import Observation

KEYS_A = -0.5


def upsample(coarse: Tensor, fine_size: tuple[int, int], observation: Observation) -> Tensor:
    """(..., h, w) -> (..., H, W)."""
    axes = zip(coarse.shape[-2:], fine_size, observation.scale, observation.shift, strict=True)
    rows, columns = (interpolation_matrix(*axis) for axis in axes)
    return separable(rows, columns, coarse)


def interpolation_matrix(coarse_size: int, fine_size: int, scale: float, shift: float = 0.0) -> Tensor:
    """(fine_size, coarse_size) float64; rows sum to 1. Beyond its border the coarse image continues with the edge pixel."""
    positions = (torch.arange(fine_size, dtype=torch.float64) + 0.5 - shift) / scale - 0.5
    first = positions.floor() - 1
    neighbours = first[:, None] + torch.arange(4, dtype=torch.float64)
    weights = keys_kernel(positions[:, None] - neighbours)
    matrix = torch.zeros(fine_size, coarse_size, dtype=torch.float64)
    return matrix.scatter_add_(1, neighbours.long().clamp(0, coarse_size - 1), weights)


def keys_kernel(distance: Tensor) -> Tensor:
    d = distance.abs()
    near = ((KEYS_A + 2) * d - (KEYS_A + 3)) * d**2 + 1
    far = ((KEYS_A * d - 5 * KEYS_A) * d + 8 * KEYS_A) * d - 4 * KEYS_A
    return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
