"""The sensor's point spread: a separable Gaussian, sampled at the centres of the coarse pixels.

One axis at a time. H fine pixels become h coarse ones; coarse pixel k looks at the fine position

    centre(k) = (k + 0.5) * scale - 0.5 + shift        (fine pixel f has its centre at position f)

so that both grids share their outer edges when shift is 0 and H = scale * h, for ANY real scale. A positive shift means that the
coarse image sees the scene that many fine pixels further down (or right) than its georeference says.
Blurring an image is `rows_matrix @ image @ columns_matrix.T`: a Kronecker product of two small matrices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FWHM_PER_SIGMA = 2.0 * math.sqrt(2.0 * math.log(2.0))
REACH_IN_SIGMAS = 4.0
# Centres are sums of rounded numbers; a tap exactly at the reach must not come and go with the last digit.
CENTRE_ROUNDING = 1e-6


def sigma_from_fwhm(fwhm: float) -> float:
    return fwhm / FWHM_PER_SIGMA


def point_spread_reach(sigma: float) -> int:
    """How many fine pixels to each side of its centre a coarse pixel looks at."""
    return max(1, math.ceil(REACH_IN_SIGMAS * sigma))


def point_spread_taps(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Which fine pixels each coarse pixel looks at, and with what weight: two (coarse_size, taps) tensors.

    Weights are normalised to unit gain. Beyond the border the image is mirrored (symmetric: the edge pixel is repeated), so the
    same fine pixel may occur in several taps of one row.
    """
    centres = (torch.arange(coarse_size, dtype=torch.float64) + 0.5) * scale - 0.5 + shift
    reach = point_spread_reach(sigma)
    offsets = torch.arange(-reach, reach + 1)
    positions = centres.round().long()[:, None] + offsets[None, :]
    distances = positions - centres[:, None]
    # A softmax of the exponent never divides by zero, however narrow the point spread. Where a centre lies between two pixels the
    # taps reach half a pixel further on one side than on the other; cutting both at the same distance keeps mirror symmetry exact.
    exponent = (-0.5 * (distances / sigma) ** 2).masked_fill(distances.abs() > reach + CENTRE_ROUNDING, -torch.inf)
    weights = torch.softmax(exponent, dim=1)
    return _mirrored(positions, fine_size), weights


def point_spread_matrix(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0) -> Tensor:
    """The same as a dense (coarse_size, fine_size) float64 matrix whose rows sum to 1."""
    indices, weights = point_spread_taps(fine_size, coarse_size, scale, sigma, shift)
    matrix = torch.zeros(coarse_size, fine_size, dtype=torch.float64)
    return matrix.scatter_add_(1, indices, weights)


def _mirrored(positions: Tensor, size: int) -> Tensor:
    """Fold positions outside 0..size-1 back by symmetric reflection, as often as needed."""
    folded = positions.remainder(2 * size)
    return torch.where(folded < size, folded, 2 * size - 1 - folded)
