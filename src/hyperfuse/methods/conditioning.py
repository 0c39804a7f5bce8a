"""Gaussian conditioning in closed form: what the msi says, what the hsi says, and how much of either is noise.

Shapes: p components, M msi bands, h w coarse, H W fine. A prior is a mean (p, H, W) and one covariance (p, p) for every fine pixel.

The exact solution of FUSE's Sylvester equation (Wei et al. 2015) needs no Sylvester solver when it is taken in two steps. The msi
is observed pixel by pixel, so conditioning on it changes the covariance alike everywhere. The hsi then adds  y = A u + noise
with prior covariance P x I, and  P x AA' + S x I  is diagonal in the eigenvectors of (P, S) and the singular vectors of A.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hyperfuse.degradation.operators import SpatialOperator, mix_bands
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.over_scene import SceneWise
from hyperfuse.methods.pair_model import PairModel, lifted, positive_part, scene_covariance_and_count, signal_covariance

BORDER = 3
BEYOND_REACH = 1e-2


def condition_on_msi(mean: Tensor, prior: Tensor, model: PairModel) -> tuple[Tensor, Tensor]:
    """The posterior mean (p, H, W) and covariance (p, p) once every fine pixel has seen its msi value."""
    seen = model.msi_from_components
    # A response in a wrong unit makes the noise vanish beside the rest: even then this can be inverted.
    gain = torch.linalg.solve(lifted(seen @ prior @ seen.T + model.msi_noise, 1e-13), seen @ prior).T
    innovation = model.msi - mix_bands(seen, mean)
    return mean + mix_bands(gain, innovation), positive_part(prior - gain @ seen @ prior)


def condition_on_hsi(mean: Tensor, prior: Tensor, model: PairModel) -> Tensor:
    """The posterior mean once the whole image has seen the coarse hsi; exact."""
    return mean + hsi_correction(model.coefficients - model.operator.apply(mean), prior, model.hsi_noise, model.operator)


def hsi_correction(innovation: Tensor, prior: Tensor, noise: Tensor, operator: SpatialOperator) -> Tensor:
    """(P x A') (P x AA' + S x I)^-1 r. In coordinates where S = I and P = diag(d): A' (AA' + 1/d)^-1, component by component."""
    root = torch.linalg.cholesky(noise)
    half_whitened = torch.linalg.solve_triangular(root, prior, upper=False)
    whitened = torch.linalg.solve_triangular(root, half_whitened.T, upper=False)
    signal_to_noise, axes = torch.linalg.eigh((whitened + whitened.T) / 2)
    to_axes = torch.linalg.solve_triangular(root.T, axes, upper=True).T
    correction = operator.damped_inverse(mix_bands(to_axes, innovation), 1 / signal_to_noise.clamp_min(1e-12))
    return mix_bands(root @ axes, correction)


def prior_from_error(mean: Tensor, model: PairModel) -> SceneWise[Tensor]:
    """How far a prediction is off, (p, p) per fine pixel, read from what it leaves of the hsi beyond noise (empirical Bayes)."""

    def left() -> Tensor:
        return model.window.coarse(model.coefficients - model.operator.apply(mean))

    spread, pixels = yield from scene_covariance_and_count(left, costly=True)
    return lifted(signal_covariance(spread, model.hsi_noise, pixels) / model.noise_gain, 1e-8)


def conditioning_reach(observation: Observation) -> int:
    """Coarse pixels around a pixel beyond which the hsi's correction of it does not look, but for a hundredth of itself.

    Blurs of neighbouring coarse pixels overlap by q = exp(-(scale / 2 sigma)^2), and the inverse of such an overlap falls off by q
    from pixel to pixel. The border that it must not see is itself a few pixels wide.
    """
    widest = max(sigma / scale for sigma, scale in zip(observation.sigma, observation.scale, strict=True))
    overlap = math.exp(-1 / (4 * max(0.1, widest) ** 2))
    return BORDER + math.ceil(math.log(BEYOND_REACH) / math.log(overlap))
