"""The msi as an image with the hsi's bands: what each hsi band is, as a sum of the msi's bands, is asked of the pair itself.

B batch, C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.networks.pixel_centres import AxisPlacement, Placement, fine_positions

# Of the msi's own variance: bands that are nearly alike would otherwise get huge weights of opposite signs.
_RIDGE = 1e-4
_SMALLEST_VARIANCE = 1e-8


def lift_msi(hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
    """(B, C, H, W): the least-squares fit of the hsi by the msi averaged over coarse pixels, applied to the fine msi.

    For each pair of the batch by itself.
    """
    if torch.amp.is_autocast_available(hsi.device.type) and torch.is_autocast_enabled(hsi.device.type):
        # A system of equations needs full precision whatever the network runs in.
        with torch.autocast(hsi.device.type, enabled=False):
            return lift_msi(hsi, msi, placement)
    rows = _averaging_matrix(placement.rows, msi.shape[2], hsi.shape[2]).to(msi)
    columns = _averaging_matrix(placement.columns, msi.shape[3], hsi.shape[3]).to(msi)
    seen = rows.sum(dim=1)[:, None] * columns.sum(dim=1)[None, :]  # 0 for coarse pixels beyond the msi, which have no say
    shares = (seen / seen.sum().clamp(min=1)).flatten()
    coarse, wanted = (rows @ msi @ columns.transpose(0, 1)).flatten(2), hsi.flatten(2)
    coarse_mean, wanted_mean = ((image * shares).sum(dim=2, keepdim=True) for image in (coarse, wanted))
    weights = _ridge_weights(coarse - coarse_mean, wanted - wanted_mean, shares)
    lifted = weights @ (msi.flatten(2) - coarse_mean) + wanted_mean
    return lifted.reshape(hsi.shape[:2] + msi.shape[2:])


def _ridge_weights(inputs: Tensor, outputs: Tensor, shares: Tensor) -> Tensor:
    """Centred values (B, M, n) and (B, C, n), the share (n,) that each pixel has in the sums -> (B, C, M)."""
    weighed = (inputs * shares).transpose(1, 2)
    variance, covariance = inputs @ weighed, outputs @ weighed
    ridge = _RIDGE * variance.diagonal(dim1=1, dim2=2).mean(dim=1) + _SMALLEST_VARIANCE
    identity = torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    # Both matrices transposed: the variance is its own transpose.
    solved: Tensor = torch.linalg.solve(variance + ridge[:, None, None] * identity, covariance.transpose(1, 2))
    return solved.transpose(1, 2)


def _averaging_matrix(axis: AxisPlacement, fine_size: int, coarse_size: int) -> Tensor:
    """(coarse size, fine size): means of the fine pixels whose centres lie in each coarse pixel; rows of zeros where none do."""
    nearest = torch.floor(fine_positions(axis, fine_size) + 0.5)
    inside = (nearest[None, :] == torch.arange(coarse_size, dtype=torch.float64)[:, None]).double()
    return inside / inside.sum(dim=1, keepdim=True).clamp(min=1)
