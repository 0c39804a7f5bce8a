"""Taking noise off the msi by a network, before anything is regressed on it.

Shapes: M msi bands, k components of the msi, H W fine.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.methods.over_scene import SceneWise, scene_moments
from hyperfuse.methods.pair_model import PairModel
from hyperfuse.networks.prior_network import PriorNetwork

QUIET = 1e-3  # an msi whose noise is less than this share of itself is left as it is
OFF_LEVEL = 1.0  # an msi whose mean is farther than this from what the hsi says, in deviations, has a level of its own


def with_quiet_msi(model: PairModel, network: PriorNetwork) -> SceneWise[PairModel]:
    """The msi without the noise that the network sees in it, and without a level of its own (an unknown unit or offset)."""
    level, spread = yield from scene_moments(model.window.fine(model.msi))
    off = level.abs() > OFF_LEVEL * spread.diagonal().sqrt()
    if bool(off.any()):
        model = replace(model, msi=model.msi - torch.where(off, level, 0.0)[:, None, None].to(model.msi))
    if network.denoiser is None:
        return model
    variance = model.observation.msi_noise**2
    noise = seen_noise(model.msi, spread, variance, network)
    if noise is None:
        return model
    less = (1 - network.denoiser.variance_left.double()) * torch.diag(variance)
    return replace(model, msi=model.msi - noise, msi_noise=model.msi_noise - less)


def seen_noise(msi: Tensor, spread: Tensor, variance: Tensor, network: PriorNetwork) -> Tensor | None:
    """(M, H, W) noise in an msi without mean, of covariance `spread` and noise `variance` (M,); None where there is little."""
    assert network.denoiser is not None
    most = network.config.msi_components
    axes, units = msi_axes(spread, most)
    deviations = (axes.square() * variance[:, None]).sum(0).sqrt()
    if float((deviations / units).max()) < QUIET:
        return None
    components, levels = msi.new_zeros(most, *msi.shape[1:]), msi.new_zeros(most)
    components[: axes.shape[1]], levels[: axes.shape[1]] = mix_bands((axes / units).T, msi), deviations / units
    return mix_bands(axes * deviations, network.denoiser(components, levels)[: axes.shape[1]])


def msi_axes(spread: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(M, k) principal axes of the msi, and (k,) what to divide its components by, halfway between one unit and one for each."""
    variances, axes = torch.linalg.eigh(spread)
    axes, deviations = axes.flip(1)[:, :most], variances.flip(0)[:most].clamp_min(0).sqrt()
    # The sign of an eigenvector is arbitrary; brighter is positive.
    axes = axes * torch.where(axes.sum(0) < 0, -1.0, 1.0)
    return axes, (deviations[0] * deviations.maximum(1e-3 * deviations[0])).sqrt().clamp_min(1e-12)
