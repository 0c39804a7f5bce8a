"""Detail injection: the interpolated hsi plus (or times) what the msi sees beyond the hsi's point spread. GLP, GSA and SFIM.

Shapes: C bands, M msi bands, h w coarse, H W fine. None of the three needs the response: they regress on the blurred msi.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.degradation.operators import mix_bands, separable
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.bicubic import interpolation_matrix, upsample
from hyperfuse.methods.local_regression import FINE_DETAIL_GAIN
from hyperfuse.methods.pair_model import lifted, principal_axes

MOST_RATIO = 4.0  # SFIM: a ratio beyond this, or below its inverse, is an artefact of a dark pixel


def glp(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """MTF-GLP: detail of the msi under the hsi's own point spread, injected with regression gains (Aiazzi et al. 2006)."""
    gains, _, coarse = regression_on_msi(hsi, msi, observation)
    gains = gains * borne_out(gains, hsi, coarse, msi, observation)[:, None]
    # Interpolation is linear: up(hsi) + G (msi - up(coarse msi)) needs one interpolation only.
    base = upsample(hsi - mix_bands(gains, coarse), (msi.shape[1], msi.shape[2]), observation)
    return base.add_(mix_bands(gains, msi))


def gsa(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """Gram-Schmidt adaptive (Aiazzi et al. 2007): each msi band replaces its imitation regressed from the hsi bands."""
    coarse = seen_by_hsi(msi, hsi, observation)
    centred_msi = coarse - coarse.mean((1, 2), keepdim=True)
    mean, basis = principal_axes(hsi, most=12)
    coefficients = mix_bands(basis.T, hsi - mean[:, None, None].to(hsi)).flatten(1).double()
    crossed = centred_msi.flatten(1).double() @ coefficients.T
    weights = torch.linalg.solve(lifted(coefficients @ coefficients.T, 1e-6), crossed.T).T
    imitation = (weights @ coefficients).to(hsi).unflatten(1, hsi.shape[1:])
    details = (coarse_detail(hsi, msi, observation), coarse_detail(imitation, msi, observation))
    gains = best_single_band(*details, observation.msi_noise**2 / FINE_DETAIL_GAIN)
    base = upsample(hsi - mix_bands(gains, imitation), (msi.shape[1], msi.shape[2]), observation)
    fused = base.add_(mix_bands(gains, msi - coarse.mean((1, 2), keepdim=True)))
    return trusted_detail(fused, hsi, observation)


def sfim(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """Smoothing filter based intensity modulation (Liu 2000): times the ratio of fine to blurred intensity, one per band."""
    gains, intercepts, coarse = regression_on_msi(hsi, msi, observation)
    size = (msi.shape[1], msi.shape[2])
    intensity = mix_bands(gains, msi) + intercepts[:, None, None].to(msi)
    blurred = upsample(mix_bands(gains, coarse) + intercepts[:, None, None].to(msi), size, observation)
    dark = 1e-3 * hsi.abs().mean((1, 2), keepdim=True)
    ratio = torch.where(blurred > dark, intensity / blurred.clamp_min(1e-30), torch.ones_like(blurred))
    trust = borne_out(gains, hsi, coarse, msi, observation)[:, None, None].to(msi)
    return upsample(hsi, size, observation) * ratio.clamp_(1 / MOST_RATIO, MOST_RATIO).sub_(1).mul_(trust).add_(1)


def trusted_detail(fused: Tensor, hsi: Tensor, observation: Observation) -> Tensor:
    """The interpolated hsi plus the fused image's detail, each band as far as the hsi's own coarse detail bears it out."""
    size = (fused.shape[1], fused.shape[2])
    operator = observation.spatial_operator(size, (hsi.shape[1], hsi.shape[2]))
    coarse = operator.apply(fused)
    smooth, smooth_fused = upsample(hsi, size, observation), upsample(coarse, size, observation)
    trust = slope_trust(hsi - operator.apply(smooth), coarse - operator.apply(smooth_fused))
    return smooth + trust.to(fused)[:, None, None] * (fused - smooth_fused)


def borne_out(gains: Tensor, hsi: Tensor, coarse: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """(C,) 0 to 1: how far the hsi's own coarse detail follows that of the coarse msi times the gains.

    Gains regressed on values may be wrong about detail, even in sign, where an msi band says little about an hsi band.
    """
    injected = mix_bands(gains, coarse_detail(coarse, msi, observation))
    return slope_trust(coarse_detail(hsi, msi, observation), injected)


def slope_trust(wanted: Tensor, got: Tensor) -> Tensor:
    """(C,) float64, 0 to 1: the slope of wanted on got, both (C, h, w), shrunk by how little it is known."""
    wanted, got = wanted.double(), got.double()
    crossed, energy, total = (wanted * got).sum((1, 2)), got.square().sum((1, 2)).clamp_min(1e-30), wanted.square().sum((1, 2))
    explained = crossed.square() / energy
    # Stein's shrinkage: a slope from a handful of pixels that explains little is hardly known.
    unexplained = (total - explained).clamp_min(0) / max(1, wanted[0].numel() - 2)
    trust = crossed / energy * (1 - unexplained / explained.clamp_min(1e-30)).clamp_min(0)
    return trust.clamp(0, 1)


def coarse_detail(coarse: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """What a coarse image's own interpolation cannot give back of it, without ever forming the fine image."""
    size = (coarse.shape[1], coarse.shape[2])
    operator = observation.spatial_operator((msi.shape[1], msi.shape[2]), size)
    up = [interpolation_matrix(*axis) for axis in zip(size, msi.shape[1:], observation.scale, observation.shift, strict=True)]
    return coarse - separable(operator.rows @ up[0], operator.columns @ up[1], coarse)


def seen_by_hsi(msi: Tensor, hsi: Tensor, observation: Observation) -> Tensor:
    """The msi blurred and decimated to the hsi's grid: (M, h, w)."""
    return observation.spatial_operator((msi.shape[1], msi.shape[2]), (hsi.shape[1], hsi.shape[2])).apply(msi)


def regression_on_msi(hsi: Tensor, msi: Tensor, observation: Observation) -> tuple[Tensor, Tensor, Tensor]:
    """Gains (C, M) and intercepts (C,) of hsi = gains msi + intercepts on the coarse grid, and the coarse msi itself.

    The fine msi carries its full noise, the coarse one hardly any: the noise is added back so that gains do not amplify it.
    """
    coarse = seen_by_hsi(msi, hsi, observation)
    inputs, outputs = coarse.flatten(1).double(), hsi.flatten(1).double()
    input_mean, output_mean = inputs.mean(1), outputs.mean(1)
    inputs = inputs - input_mean[:, None]
    spread = inputs @ inputs.T / inputs.shape[1] + torch.diag(observation.msi_noise**2)
    crossed = inputs @ (outputs - output_mean[:, None]).T / inputs.shape[1]
    gains = torch.linalg.solve(lifted(spread, 1e-6), crossed).T
    return gains, output_mean - gains @ input_mean, coarse


def best_single_band(hsi: Tensor, intensities: Tensor, noise: Tensor) -> Tensor:
    """(C, M) gains with one entry per hsi band: its regression on the intensity it correlates with best; noise (M,) as variance."""
    bands, inputs = hsi.flatten(1).double(), intensities.flatten(1).double()
    bands, inputs = bands - bands.mean(1, keepdim=True), inputs - inputs.mean(1, keepdim=True)
    crossed, energy = bands @ inputs.T, (inputs.square().sum(1) + inputs.shape[1] * noise).clamp_min(1e-300)
    best = (crossed.square() / energy).argmax(1, keepdim=True)
    return torch.zeros_like(crossed).scatter_(1, best, (crossed / energy).gather(1, best))
