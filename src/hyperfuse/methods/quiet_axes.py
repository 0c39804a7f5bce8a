"""The hsi's subspace when the hsi is noisy: principal axes that noise has turned aside are turned back.

Shapes: C bands, p components.

Noise spoils the axes themselves, not only the components along them. Two things are known better than plain principal axes know
them: how noisy each band is, so axes are sought in units of the noise; and that spectra are smooth, as far as the axes themselves
show it. Each axis is smoothed along the bands as much as Stein's unbiased risk (1981) says, which is not at all where noise is
small or spectra are rough. The noise of an axis follows from its eigenvalue (the spiked model, as in `signal_covariance`).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hyperfuse.methods.over_scene import SceneWise, scene_count, scene_moments, together
from hyperfuse.methods.pair_model import NOISE_FLOOR

ROUGHNESS_ORDER = 2
FEWEST_BANDS = 8  # fewer are no spectrum to smooth
STRENGTHS = torch.cat([torch.zeros(1), torch.logspace(-2, 5, 29)]).double()
# The risk's own noise makes it smooth too little; on held-out scenes twice the noise was better than once, by 0.02 dB.
CAUTION = 2.0


def quiet_axes(hsi: Tensor, most: int, noise: Tensor) -> SceneWise[tuple[Tensor, Tensor]]:
    """Mean spectrum (C,) and axes (C, p), by descending variance; `noise` (C,) is the standard deviation in each band."""
    (mean, spread), pixels = yield from together(scene_moments(hsi), scene_count(hsi[0].numel()))
    level = (mean.square().mean() + spread.diagonal().mean()).sqrt()
    unit = (noise.double().square() + (NOISE_FLOOR * level) ** 2).sqrt().clamp_min(1e-30)
    variances, axes = torch.linalg.eigh(spread / unit[:, None] / unit)
    significant = int((variances > 1e-12 * variances[-1].clamp_min(1e-300)).sum())
    kept = max(1, min(most, significant, len(spread)))
    variances, axes = variances.flip(0)[:kept], unit[:, None] * axes.flip(1)[:, :kept]
    axes = axes / axes.norm(dim=0)
    if len(spread) >= FEWEST_BANDS:
        axes = _smoothed(axes, _axis_noise(variances, len(spread), pixels))
    basis, _ = torch.linalg.qr(axes)
    _, turned = torch.linalg.eigh(basis.T @ spread @ basis)
    return mean, (basis @ turned.flip(1)).contiguous()


def _axis_noise(variances: Tensor, bands: int, pixels: int) -> Tensor:
    """(p,) variance in each band of unit axes whose eigenvalues, in units of the noise, are `variances`."""
    aspect = bands / pixels
    middle = variances.clamp_min((1 + aspect**0.5) ** 2) - 1 - aspect
    signal = (middle + (middle.square() - 4 * aspect).clamp_min(0).sqrt()) / 2
    alignment = ((1 - aspect / signal.square()) / (1 + aspect / signal)).clamp(0, 1)
    return (1 - alignment) / bands


def _smoothed(axes: Tensor, noise: Tensor) -> Tensor:
    roughness, modes = _roughness(len(axes))
    filters = 1 / (1 + STRENGTHS[:, None] * roughness)  # (strengths, C)
    amplitudes = modes.T @ axes
    risk = (1 - filters).square() @ amplitudes.square() + 2 * CAUTION * noise * filters.sum(1, keepdim=True)
    return modes @ (filters[risk.argmin(0)].T * amplitudes)


@functools.lru_cache(maxsize=8)
def _roughness(bands: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues (C,) and eigenvectors (C, C) of the squared second difference."""
    difference = torch.diff(torch.eye(bands, dtype=torch.float64), n=ROUGHNESS_ORDER, dim=0)
    values, modes = torch.linalg.eigh(difference.T @ difference)
    return values.clamp_min(0), modes
