"""HySure [1]_: both images explained in the hsi's subspace under a vector total variation prior, by ADMM.

Shapes: M msi bands, p components, h w coarse, H W fine.

    min_u  |y - A u|^2 / 2 + |z - F u|^2 / 2 + WEIGHT * sum over pixels of |(D_y u, D_x u)|

Both data terms are weighted down where noise exceeds LOW_NOISE: weighted alike whatever their noise, many msi bands
would fit theirs. The splittings are u = v (hsi), u = q (msi), (D_y u, D_x u) = g (prior). Each step has a closed form:
the hsi through the singular vectors of A, the msi pixel by pixel, the prior by shrinkage, and their combination in the
cosine basis, in which differences with a mirrored border are diagonal. ADMM starts from FUSE, and the hsi's own
noise-weighted correction follows it.

References
----------
.. [1] M. Simoes, J. Bioucas-Dias, L. B. Almeida and J. Chanussot, "A convex formulation for hyperspectral image
   superresolution via subspace-based regularization", IEEE Trans. GRS 53(6), 2015.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hyperfuse.methods.fuse import scene_posterior
from hyperfuse.methods.pair_model import (
    PairModel,
    condition_on_hsi,
    fuse_halo,
    model_pair,
    prior_from_error,
    scene_covariance,
)
from hyperfuse.methods.window import FusedCore, SceneComputation, Window
from hyperfuse.physics.observation import Observation, mix_bands
from hyperfuse.physics.resample import separable

COMPONENTS, COMPONENTS_BESIDE_MSI = 10, 6  # at least so many, and always some more than there are msi bands
STEPS = 20
WEIGHT = 5e-4  # of the prior, for components scaled to unit variance together
PENALTY = 0.1  # of ADMM
FARTHER = 4  # coarse pixels that the steps see beyond FUSE's halo
LOW_NOISE = 1e-6  # noise of this variance, in the same units, halves the weight of a measurement


def hysure_halo(observation: Observation) -> int:
    """Coarse pixels around a pixel that HySure depends on."""
    return fuse_halo(observation) + FARTHER


def hysure(window: Window) -> SceneComputation[FusedCore]:
    """HySure from the start that FUSE gives."""
    model = yield from model_pair(window, max(COMPONENTS, window.msi.shape[0] + COMPONENTS_BESIDE_MSI))
    model, mean, posterior = yield from scene_posterior(model)
    variances = yield from scene_covariance(lambda: model.window.coarse(model.coefficients))
    unit = math.sqrt(max(1e-30, float(variances.trace())))
    mean = _minimise_variation(condition_on_hsi(mean, posterior, model), model, unit)
    prior = yield from prior_from_error(mean, model)
    return model.image(condition_on_hsi(mean, prior, model))


def _minimise_variation(start: Tensor, model: PairModel, unit: float) -> Tensor:
    """ADMM in scaled form, in units of `unit`."""
    seen, operator = model.msi_from_components, model.operator
    # The msi's own unit does not matter to FUSE; here it must weigh like the hsi's.
    gain = max(1e-30, float((seen @ seen.T).trace()) / seen.shape[0])
    noise = model.msi_noise / (LOW_NOISE * unit**2)
    weighted = torch.linalg.solve(gain * torch.eye(seen.shape[0], dtype=seen.dtype) + noise, seen).T  # F'W
    msi_inverse = torch.linalg.inv(weighted @ seen + PENALTY * torch.eye(seen.shape[1], dtype=seen.dtype))
    msi_part = mix_bands(weighted, model.msi / unit)
    hsi_penalty = PENALTY * (1 + model.hsi_noise.diagonal() / (LOW_NOISE * unit**2))  # of each component
    hsi_part = operator.adjoint(model.coefficients / unit)
    rows, columns = (_cosine_basis(size) for size in model.fine_size)
    u = start / unit
    gradient = _differences(u)
    hsi_dual, msi_dual, dual = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(gradient)
    for _ in range(STEPS):
        # argmin |y - A v|^2 / 2 + PENALTY |v - u|^2 / 2, noise-weighted, and the same for the msi.
        right = hsi_part + hsi_penalty[:, None, None].to(u) * (u + hsi_dual)
        by_hsi = operator.regularised_inverse(right, hsi_penalty)
        by_msi = mix_bands(msi_inverse, msi_part + PENALTY * (u + msi_dual))
        by_prior = _shrink(gradient + dual, WEIGHT / PENALTY)
        u = _smooth(by_hsi - hsi_dual + by_msi - msi_dual + _divergence(by_prior - dual), rows, columns)
        gradient = _differences(u)
        hsi_dual += u - by_hsi
        msi_dual += u - by_msi
        dual += gradient - by_prior
    return u * unit


def _differences(u: Tensor) -> Tensor:
    """(2, p, H, W): forward differences along rows and columns, 0 at the far border."""
    gradient = torch.zeros(2, *u.shape, dtype=u.dtype)
    gradient[0, :, :-1] = u[:, 1:] - u[:, :-1]
    gradient[1, :, :, :-1] = u[:, :, 1:] - u[:, :, :-1]
    return gradient


def _divergence(gradient: Tensor) -> Tensor:
    """The adjoint of `_differences`."""
    rows, columns = gradient[0, :, :-1], gradient[1, :, :, :-1]
    u = torch.zeros_like(gradient[0])
    u[:, 1:] += rows
    u[:, :-1] -= rows
    u[:, :, 1:] += columns
    u[:, :, :-1] -= columns
    return u


def _shrink(gradient: Tensor, threshold: float) -> Tensor:
    """Shorten each pixel's gradient, all components and both directions together, by the threshold."""
    length = gradient.square().sum((0, 1)).sqrt()
    return gradient * (1 - threshold / length.clamp_min(threshold))


def _smooth(right: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(2 + D'D)^-1, diagonal in the cosine basis of both axes."""
    angles = (math.pi * torch.arange(len(basis), dtype=torch.float64) / len(basis) for basis in (rows, columns))
    by_row, by_column = (2 - 2 * torch.cos(angle) for angle in angles)
    gain = 1 / (2 + by_row[:, None] + by_column[None, :])
    return separable(rows.T, columns.T, separable(rows, columns, right) * gain.to(right))


def _cosine_basis(size: int) -> Tensor:
    """(size, size), orthonormal rows of rising frequency (DCT-II)."""
    index = torch.arange(size, dtype=torch.float64)
    basis = torch.cos(math.pi / size * (index[None, :] + 0.5) * index[:, None]) * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis
