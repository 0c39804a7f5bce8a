"""Taking noise off the hsi's components with the msi's help, before anything is interpolated.

Shapes: p components, M msi bands, h w coarse.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.degradation.operators import mix_bands, separable
from hyperfuse.methods.local_regression import solve_small
from hyperfuse.methods.over_scene import SceneWise
from hyperfuse.methods.pair_model import lifted, scene_covariance, scene_covariance_and_count, signal_covariance
from hyperfuse.methods.window import Window

WIDTH = 4.0  # of the neighbourhoods, in coarse pixels
REACH = 10  # coarse pixels; farther ones together weigh a hundredth


def denoised_coefficients(coefficients: Tensor, coarse_msi: Tensor, noise: Tensor, window: Window) -> SceneWise[Tensor]:
    """Hsi components (p, h, w) with the noise that their local regression on the msi exposes shrunk away (Wiener's matrix)."""
    msi_spread = yield from scene_covariance(lambda: window.coarse(coarse_msi))
    predicted = _smooth_regression(coefficients.double(), coarse_msi.double(), msi_spread)
    residual = coefficients.double() - predicted
    spread, pixels = yield from scene_covariance_and_count(lambda: window.coarse(residual))
    keep = torch.linalg.solve(lifted(spread + 1e-3 * noise), signal_covariance(spread, noise, pixels)).T
    return (predicted + mix_bands(keep, residual)).to(coefficients)


def _smooth_regression(components: Tensor, msi: Tensor, scene: Tensor) -> Tensor:
    """Components predicted from the msi by regressions under a wide Gaussian around every coarse pixel; coarse grid only.

    `scene` (M, M) is the covariance of the msi, a little of which keeps the regressions steady.
    """
    size, bands = len(components), len(msi)
    rows, columns = (_gaussian_weights(length) for length in msi.shape[1:])
    products = torch.cat([msi, components, (msi[:, None] * msi).flatten(0, 1), (components[:, None] * msi).flatten(0, 1)])
    moments = separable(rows, columns, products)
    msi_mean, mean, products = moments[:bands], moments[bands : bands + size], moments[bands + size :]
    spread = products[: bands * bands].reshape(bands, bands, *msi.shape[1:]) - msi_mean[:, None] * msi_mean
    crossed = products[bands * bands :].reshape(size, bands, *msi.shape[1:]) - mean[:, None] * msi_mean
    own = 1e-3 * spread.diagonal(dim1=0, dim2=1).mean(-1)
    ridge = lifted(1e-3 * scene, 1e-3) + own[..., None, None] * torch.eye(bands)
    direction = solve_small(spread.permute(2, 3, 0, 1) + ridge, (msi - msi_mean).permute(1, 2, 0))
    slope_part: Tensor = torch.einsum("pmij,ijm->pij", crossed, direction)
    return mean + slope_part


def _gaussian_weights(length: int) -> Tensor:
    index = torch.arange(length, dtype=torch.float64)
    return torch.softmax(-0.5 * ((index[:, None] - index) / WIDTH) ** 2, dim=1)
