"""Taking noise off the hsi's components by a network, after the closed form has taken what it can.

Shapes: M msi bands, p components, k components of the msi, h w coarse.

The closed form (`denoising.py`) keeps the same share of what the msi does not explain everywhere. Where that is an object and where
it is noise, neighbours show.
"""

from __future__ import annotations

from torch import Tensor

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.methods.denoising import denoising_parts
from hyperfuse.methods.msi_denoising import msi_axes
from hyperfuse.methods.over_scene import SceneWise, scene_moments, together
from hyperfuse.methods.pair_model import PairModel
from hyperfuse.networks.prior_network import PriorNetwork

QUIET = 1e-3  # an hsi whose noise is less than this share of its spread is left as it is


def quiet_coefficients(model: PairModel, seen: Tensor, network: PriorNetwork) -> SceneWise[Tensor]:
    """(p, h, w) from the model's components and the msi as the hsi's sensor sees it (M, h, w)."""
    window = model.window
    (level, spread), (_, own_spread) = yield from together(
        scene_moments(window.coarse(seen)), scene_moments(window.coarse(model.coefficients))
    )
    centred = seen - level[:, None, None].to(seen)
    predicted, kept, dropped = yield from denoising_parts(model.coefficients, centred, model.hsi_noise, window)
    coefficients = predicted + kept
    if network.hsi_denoiser is None:
        return coefficients
    noise, variance = model.hsi_noise.diagonal(), own_spread.diagonal()
    if float(noise.sum()) < QUIET**2 * float(variance.sum()):
        return coefficients
    axes, units = msi_axes(spread, network.hsi_denoiser.msi_components)
    msi = seen.new_zeros(network.hsi_denoiser.msi_components, *seen.shape[1:])
    msi[: axes.shape[1]] = mix_bands((axes / units).T, centred)
    deviation = noise.sqrt()[:, None, None].to(seen)
    ratio = (noise / variance.clamp_min(1e-300)).clamp(1e-6, 10.0).log10().to(seen) / 3
    missed: Tensor = network.hsi_denoiser(kept / deviation, dropped / deviation, msi, ratio)
    return coefficients + deviation * missed
