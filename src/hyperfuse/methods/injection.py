"""Detail injection: the interpolated hsi plus (or times) what the msi sees beyond the hsi's point spread. Bicubic, GLP,
GSA, SFIM.

Shapes: C bands, M msi bands, h w coarse, H W fine. None of the three needs the response: they regress on the blurred
msi.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hyperfuse.methods.local_regression import FINE_DETAIL_GAIN
from hyperfuse.methods.pair_model import diagonally_loaded, principal_axes, scene_covariance
from hyperfuse.methods.scene_stats import SceneComputation, scene_mean, scene_moments, scene_statistic
from hyperfuse.methods.window import Window
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.operators import mix_bands, psf_radius, separable
from hyperfuse.physics.resample import bicubic_matrix, upsample_bicubic

MOST_RATIO = 4.0  # SFIM: a ratio beyond this, or below its inverse, is an artefact of a dark pixel


def detail_halo(observation: Observation) -> int:
    """Coarse pixels around a pixel that matter to it: those it is interpolated from, and what these see."""
    seen = max(psf_radius(sigma) / scale for sigma, scale in zip(observation.sigma, observation.scale, strict=True))
    return 3 + math.ceil(seen)


def twice_detail_halo(observation: Observation) -> int:
    """The same for methods that look once more at how the hsi would see their result."""
    return 2 * detail_halo(observation)


def bicubic(window: Window) -> SceneComputation[Tensor]:
    """No detail at all: the hsi interpolated where the msi's pixels truly lie; the msi's values are not used."""
    yield from ()
    return window.upsample_to_core(window.hsi)


def glp(window: Window) -> SceneComputation[Tensor]:
    """MTF-GLP: detail of the msi under the hsi's own point spread, injected with regression gains (Aiazzi et al. 2006)."""
    gains, _, coarse = yield from regression_on_msi(window)
    trust = yield from borne_out(gains, coarse, window)
    gains = gains * trust[:, None]
    # Interpolation is linear: up(hsi) + G (msi - up(coarse msi)) needs one interpolation only.
    base = window.upsample_to_core(window.hsi - mix_bands(gains, coarse))
    return base.add_(mix_bands(gains, window.fine(window.msi)))


def gsa(window: Window) -> SceneComputation[Tensor]:
    """Gram-Schmidt adaptive (Aiazzi et al. 2007): each msi band replaces its imitation regressed from the hsi bands."""
    hsi, msi, observation = window.hsi, window.msi, window.observation
    coarse = seen_by_hsi(window)
    level, _ = yield from scene_moments(window.coarse(coarse))
    level = level[:, None, None].to(hsi)
    mean, basis = yield from principal_axes(window.coarse(hsi), most=12)
    coefficients = mix_bands(basis.T, hsi - mean[:, None, None].to(hsi))
    moments = yield from scene_covariance(lambda: window.coarse(torch.cat([coefficients, coarse - level])))
    size = len(coefficients)
    weights = torch.linalg.solve(diagonally_loaded(moments[:size, :size], 1e-6), moments[:size, size:]).T
    imitation = mix_bands(weights, coefficients)
    gains = yield from best_single_band(hsi, imitation, observation.msi_noise**2 / FINE_DETAIL_GAIN, window)
    base = upsample_bicubic(hsi - mix_bands(gains, imitation), window.fine_size, observation.placement)
    return (yield from trusted_detail(base.add_(mix_bands(gains, msi - level)), window))


def sfim(window: Window) -> SceneComputation[Tensor]:
    """Smoothing filter based intensity modulation (Liu 2000): times the ratio of fine to blurred intensity, one per
    band.
    """
    gains, intercepts, coarse = yield from regression_on_msi(window)
    trust = yield from borne_out(gains, coarse, window)
    inner = window.coarse(window.hsi)
    level = yield from scene_mean(lambda: (inner.abs().mean((1, 2)), inner[0].numel()))
    msi = window.fine(window.msi)
    intensity = mix_bands(gains, msi) + intercepts[:, None, None].to(msi)
    blurred = window.upsample_to_core(mix_bands(gains, coarse) + intercepts[:, None, None].to(msi))
    dark = 1e-3 * level[:, None, None]
    ratio = torch.where(blurred > dark, intensity / blurred.clamp_min(1e-30), torch.ones_like(blurred))
    ratio = ratio.clamp_(1 / MOST_RATIO, MOST_RATIO).sub_(1).mul_(trust[:, None, None].to(msi)).add_(1)
    return window.upsample_to_core(window.hsi) * ratio


def trusted_detail(fused: Tensor, window: Window) -> SceneComputation[Tensor]:
    """The interpolated hsi plus the fused image's detail, each band as far as the hsi's own coarse detail bears it out."""
    coarse = window.observation.spatial_operator(window.fine_size, window.coarse_size).apply(fused)
    trust = yield from slope_trust(lambda: (coarse_detail(window.hsi, window), coarse_detail(coarse, window)), window)
    detail = window.fine(fused) - window.upsample_to_core(coarse)
    return window.upsample_to_core(window.hsi) + trust.to(fused)[:, None, None] * detail


def borne_out(gains: Tensor, coarse: Tensor, window: Window) -> SceneComputation[Tensor]:
    """(C,) 0 to 1: how far the hsi's own coarse detail follows that of the coarse msi times the gains.

    Gains regressed on values may be wrong about detail, even in sign, where an msi band says little about an hsi band.
    """
    return slope_trust(
        lambda: (coarse_detail(window.hsi, window), mix_bands(gains, coarse_detail(coarse, window))), window
    )


def slope_trust(wanted_and_got: Callable[[], tuple[Tensor, Tensor]], window: Window) -> SceneComputation[Tensor]:
    """(C,) float64, 0 to 1: the slope of wanted on got, both (C, h, w), shrunk by how little it is known."""

    def share() -> tuple[Tensor, int]:
        wanted, got = (window.coarse(image).double() for image in wanted_and_got())
        return torch.stack([(wanted * got).sum((1, 2)), got.square().sum((1, 2)), wanted.square().sum((1, 2))]), wanted[
            0
        ].numel()

    return scene_statistic(share, _shrunk_slope)


def _shrunk_slope(shares: list[tuple[Tensor, int]]) -> Tensor:
    crossed, energy, total = torch.stack([sums for sums, _ in shares]).sum(0)
    energy = energy.clamp_min(1e-30)
    explained = crossed.square() / energy
    # Stein's shrinkage: a slope from a handful of pixels that explains little is hardly known.
    unexplained = (total - explained).clamp_min(0) / max(1, sum(pixels for _, pixels in shares) - 2)
    trust: Tensor = crossed / energy * (1 - unexplained / explained.clamp_min(1e-30)).clamp_min(0)
    return trust.clamp(0, 1)


def coarse_detail(coarse: Tensor, window: Window) -> Tensor:
    """What a coarse image's own interpolation cannot give back of it, without ever forming the fine image."""
    observation = window.observation
    operator = observation.spatial_operator(window.fine_size, window.coarse_size)
    placement = observation.placement
    rows = bicubic_matrix(placement.rows, window.fine_size[0], window.coarse_size[0])
    columns = bicubic_matrix(placement.columns, window.fine_size[1], window.coarse_size[1])
    return coarse - separable(operator.rows @ rows, operator.columns @ columns, coarse)


def seen_by_hsi(window: Window) -> Tensor:
    """The msi blurred and decimated to the hsi's grid: (M, h, w)."""
    return window.observation.spatial_operator(window.fine_size, window.coarse_size).apply(window.msi)


def regression_on_msi(window: Window) -> SceneComputation[tuple[Tensor, Tensor, Tensor]]:
    """Gains (C, M) and intercepts (C,) of hsi = gains msi + intercepts on the coarse grid, and the coarse msi itself.

    The fine msi carries its full noise, the coarse one hardly any: the noise is added back so that gains do not amplify
    it.
    """
    coarse = seen_by_hsi(window)
    bands = len(coarse)
    mean, spread = yield from scene_moments(window.coarse(torch.cat([coarse, window.hsi])))
    noisy = spread[:bands, :bands] + torch.diag(window.observation.msi_noise**2)
    gains = torch.linalg.solve(diagonally_loaded(noisy, 1e-6), spread[:bands, bands:]).T
    return gains, mean[bands:] - gains @ mean[:bands], coarse


def best_single_band(hsi: Tensor, imitation: Tensor, noise: Tensor, window: Window) -> SceneComputation[Tensor]:
    """(C, M) gains with one entry per hsi band: its detail's regression on the imitation whose detail it follows best.

    `noise` (M,) is a variance.
    """
    details = torch.cat([coarse_detail(hsi, window), coarse_detail(imitation, window)])
    _, spread = yield from scene_moments(window.coarse(details))
    bands = len(hsi)
    crossed, energy = spread[:bands, bands:], (spread.diagonal()[bands:] + noise).clamp_min(1e-300)
    best = (crossed.square() / energy).argmax(1, keepdim=True)
    return torch.zeros_like(crossed).scatter_(1, best, (crossed / energy).gather(1, best))
