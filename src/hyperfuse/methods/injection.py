"""Detail injection: bicubic, SFIM, MTF-GLP and GSA.

Shapes: C bands, M msi bands, h w coarse, H W fine.

The interpolated hsi plus (or times) the detail of the msi that the hsi's PSF removed. None of the methods needs the
SRF: they regress on the msi at the hsi's resolution. Gains regressed on values may be wrong about detail, even in
sign, where an msi band says little about an hsi band; each hsi band therefore takes injected detail only as far as its
own coarse detail confirms it (`_detail_trust`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hyperfuse.methods.local_regression import FINE_DETAIL_GAIN
from hyperfuse.methods.mixing import ModulatedCore, interpolated_core, mixed_core
from hyperfuse.methods.pair_model import diagonally_loaded, principal_axes, scene_covariance
from hyperfuse.methods.window import (
    FusedCore,
    SceneComputation,
    Window,
    scene_mean,
    scene_moments,
    scene_statistic,
)
from hyperfuse.physics.observation import Observation, mix_bands, psf_radius
from hyperfuse.physics.resample import bicubic_matrix, separable

GSA_COMPONENTS = 12  # of the hsi, from which msi bands are synthesised


def detail_halo(observation: Observation) -> int:
    """Coarse pixels that a fused pixel is interpolated from, and those that their PSF covers."""
    covered = max(psf_radius(sigma) / scale for sigma, scale in zip(observation.sigma, observation.scale, strict=True))
    return 3 + math.ceil(covered)


def twice_detail_halo(observation: Observation) -> int:
    """The same for methods that also degrade their own result."""
    return 2 * detail_halo(observation)


def bicubic(window: Window) -> SceneComputation[FusedCore]:
    """Interpolate the hsi at the msi's pixel centres; the msi's values are not used (Keys 1981)."""
    yield from ()
    return interpolated_core(window, window.hsi)


def glp(window: Window) -> SceneComputation[FusedCore]:
    """MTF-GLP: inject the msi detail that the hsi's own MTF removed, with regression gains (Aiazzi et al. 2006)."""
    gains, _, coarse = yield from _regression_on_msi(window)
    trust = yield from _detail_trust(gains, coarse, window)
    gains = gains * trust[:, None]
    # Interpolation is linear: up(hsi) + G (msi - up(coarse msi)) needs one interpolation only.
    return mixed_core(window, window.hsi - mix_bands(gains, coarse), gains, window.fine(window.msi))


def sfim(window: Window) -> SceneComputation[FusedCore]:
    """SFIM: multiply by the ratio of fine to blurred intensity, one intensity per band (Liu 2000)."""
    gains, intercepts, coarse = yield from _regression_on_msi(window)
    trust = yield from _detail_trust(gains, coarse, window)
    inner = window.coarse(window.hsi)
    level = yield from scene_mean(lambda: (inner.abs().mean((1, 2)), inner[0].numel()))
    return ModulatedCore(
        window,
        window.hsi,
        *(gains.to(coarse), window.fine(window.msi)),
        coarse_components=coarse,
        constant=intercepts.to(coarse),
        trust=trust.to(coarse),
        dark=1e-3 * level,
    )


def gsa(window: Window) -> SceneComputation[FusedCore]:
    """Gram-Schmidt adaptive: each msi band replaces its copy synthesised from the hsi (Aiazzi et al. 2007)."""
    hsi, msi, observation = window.hsi, window.msi, window.observation
    coarse = observation.spatial_operator(window.fine_size, window.coarse_size).apply(msi)
    level, _ = yield from scene_moments(window.coarse(coarse))
    level = level[:, None, None].to(hsi)
    mean, basis = yield from principal_axes(window.coarse(hsi), GSA_COMPONENTS)
    coefficients = mix_bands(basis.T, hsi - mean[:, None, None].to(hsi))
    moments = yield from scene_covariance(lambda: window.coarse(torch.cat([coefficients, coarse - level])))
    size = len(coefficients)
    weights = torch.linalg.solve(diagonally_loaded(moments[:size, :size], 1e-6), moments[:size, size:]).T
    synthetic = mix_bands(weights, coefficients)
    gains = yield from _best_single_gains(synthetic, observation.msi_noise**2 / FINE_DETAIL_GAIN, window)
    # fused = up(base) + G (msi - level); of its detail, fused - up(A fused), each band takes what it trusts. All of it
    # is linear, so that no band is needed on the fine grid: A fused = base - detail of base + G (coarse msi - level).
    base = hsi - mix_bands(gains, synthetic)
    degraded = base - _coarse_detail(base, window) + mix_bands(gains, coarse - level)
    trust = yield from _detail_trust(None, degraded, window)
    smooth = hsi + trust[:, None, None].to(hsi) * (base - degraded)
    return mixed_core(window, smooth, trust[:, None] * gains, window.fine(msi - level))


def _regression_on_msi(window: Window) -> SceneComputation[tuple[Tensor, Tensor, Tensor]]:
    """Gains (C, M) and intercepts (C,) of hsi = gains msi + intercepts on the coarse grid, and the coarse msi.

    The fine msi carries its full noise, the coarse one hardly any: it is added back, so that gains do not amplify it.
    """
    coarse = window.observation.spatial_operator(window.fine_size, window.coarse_size).apply(window.msi)
    bands = len(coarse)
    mean, spread = yield from scene_moments(window.coarse(torch.cat([coarse, window.hsi])))
    noisy = spread[:bands, :bands] + torch.diag(window.observation.msi_noise**2)
    gains = torch.linalg.solve(diagonally_loaded(noisy, 1e-6), spread[:bands, bands:]).T
    return gains, mean[bands:] - gains @ mean[:bands], coarse


def _best_single_gains(synthetic: Tensor, noise: Tensor, window: Window) -> SceneComputation[Tensor]:
    """(C, M) gains with one entry per hsi band, that of the msi band whose detail it follows best.

    `noise` (M,) is a variance.
    """
    details = torch.cat([_coarse_detail(window.hsi, window), _coarse_detail(synthetic, window)])
    _, spread = yield from scene_moments(window.coarse(details))
    bands = len(window.hsi)
    crossed, energy = spread[:bands, bands:], (spread.diagonal()[bands:] + noise).clamp_min(1e-300)
    best = (crossed.square() / energy).argmax(1, keepdim=True)
    return torch.zeros_like(crossed).scatter_(1, best, (crossed / energy).gather(1, best))


def _detail_trust(gains: Tensor | None, coarse: Tensor, window: Window) -> SceneComputation[Tensor]:
    """(C,) 0 to 1: the slope of the hsi's coarse detail on that of a coarse image, mixed by `gains` if there are any.

    Stein's shrinkage: a slope from few pixels that explains little is hardly known.
    """

    def part() -> tuple[Tensor, int]:
        injected = _coarse_detail(coarse, window)
        injected = injected if gains is None else mix_bands(gains, injected)
        true, injected = (window.coarse(image).double() for image in (_coarse_detail(window.hsi, window), injected))
        sums = [(true * injected).sum((1, 2)), injected.square().sum((1, 2)), true.square().sum((1, 2))]
        return torch.stack(sums), true[0].numel()

    def combine(parts: list[tuple[Tensor, int]]) -> Tensor:
        crossed, energy, total = torch.stack([sums for sums, _ in parts]).sum(0)
        energy = energy.clamp_min(1e-30)
        explained = crossed.square() / energy
        unexplained = (total - explained).clamp_min(0) / max(1, sum(pixels for _, pixels in parts) - 2)
        trust: Tensor = crossed / energy * (1 - unexplained / explained.clamp_min(1e-30)).clamp_min(0)
        return trust.clamp(0, 1)

    return scene_statistic(part, combine)


def _coarse_detail(coarse: Tensor, window: Window) -> Tensor:
    """What interpolation loses of a coarse image, without forming the fine image."""
    operator = window.observation.spatial_operator(window.fine_size, window.coarse_size)
    placement = window.observation.placement
    rows = operator.rows @ bicubic_matrix(placement.rows, window.fine_size[0], window.coarse_size[0])
    columns = operator.columns @ bicubic_matrix(placement.columns, window.fine_size[1], window.coarse_size[1])
    return coarse - separable(rows, columns, coarse)
