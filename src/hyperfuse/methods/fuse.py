"""FUSE (Wei, Dobigeon and Tourneret 2015) exactly, for any scale and border, and local FUSE, whose prior is regressed
locally.

Shapes: C bands, M msi bands, p components, h w coarse, H W fine.

Taking noise off the hsi's components with the msi's help, before anything is interpolated.

Shapes: p components, M msi bands, h w coarse.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.methods.local_fuse import LocalRegression, solve_small
from hyperfuse.methods.pair_model import (
    PairModel,
    condition_on_hsi,
    condition_on_msi,
    conditioning_halo,
    diagonally_loaded,
    model_pair,
    prior_from_error,
    scene_covariance,
    scene_covariance_and_count,
    signal_covariance,
)
from hyperfuse.methods.scene_stats import SceneComputation, scene_count, scene_moments
from hyperfuse.methods.window import Cut, Window
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.operators import mix_bands, separable

WIDTH = 4.0  # of the neighbourhoods, in coarse pixels
REACH = 10  # coarse pixels; farther ones together weigh a hundredth


def denoised_coefficients(
    coefficients: Tensor, coarse_msi: Tensor, noise: Tensor, window: Window
) -> SceneComputation[Tensor]:
    """Hsi components (p, h, w) with the noise that their local regression on the msi exposes shrunk away (Wiener's
    matrix).
    """
    msi_spread = yield from scene_covariance(lambda: window.coarse(coarse_msi))
    predicted = _smooth_regression(coefficients.double(), coarse_msi.double(), msi_spread)
    residual = coefficients.double() - predicted
    spread, pixels = yield from scene_covariance_and_count(lambda: window.coarse(residual))
    keep = torch.linalg.solve(diagonally_loaded(spread + 1e-3 * noise), signal_covariance(spread, noise, pixels)).T
    return (predicted + mix_bands(keep, residual)).to(coefficients)


def _smooth_regression(components: Tensor, msi: Tensor, scene: Tensor) -> Tensor:
    """Components predicted from the msi by regressions under a wide Gaussian around every coarse pixel; coarse grid
    only.

    `scene` (M, M) is the covariance of the msi, a little of which keeps the regressions steady.
    """
    size, bands = len(components), len(msi)
    rows, columns = (_gaussian_weights(length) for length in msi.shape[1:])
    products = torch.cat(
        [msi, components, (msi[:, None] * msi).flatten(0, 1), (components[:, None] * msi).flatten(0, 1)]
    )
    moments = separable(rows, columns, products)
    msi_mean, mean, products = moments[:bands], moments[bands : bands + size], moments[bands + size :]
    spread = products[: bands * bands].reshape(bands, bands, *msi.shape[1:]) - msi_mean[:, None] * msi_mean
    crossed = products[bands * bands :].reshape(size, bands, *msi.shape[1:]) - mean[:, None] * msi_mean
    own = 1e-3 * spread.diagonal(dim1=0, dim2=1).mean(-1)
    ridge = diagonally_loaded(1e-3 * scene, 1e-3) + own[..., None, None] * torch.eye(bands)
    direction = solve_small(spread.permute(2, 3, 0, 1) + ridge, (msi - msi_mean).permute(1, 2, 0))
    slope_part: Tensor = torch.einsum("pmij,ijm->pij", crossed, direction)
    return mean + slope_part


def _gaussian_weights(length: int) -> Tensor:
    index = torch.arange(length, dtype=torch.float64)
    return torch.softmax(-0.5 * ((index[:, None] - index) / WIDTH) ** 2, dim=1)


# The prior covariance of fine detail over that of the detail that the coarse grid's own interpolation misses.
PRIOR_GAIN = 16.0
# With fewer coarse pixels than this there is nothing local to learn: every neighbourhood is the whole scene.
FEWEST_PIXELS = 25


def fuse_halo(observation: Observation) -> int:
    """How many coarse pixels around itself a pixel of FUSE looks at."""
    return REACH + conditioning_halo(observation)


def fuse(window: Window) -> SceneComputation[Tensor]:
    """Maximum a posteriori in the hsi's subspace, in closed form. Prior mean: the interpolated hsi."""
    model, mean, posterior = yield from scene_posterior((yield from model_pair(window)))
    return model.image(condition_on_hsi(mean, posterior, model))


def scene_posterior(model: PairModel) -> SceneComputation[tuple[PairModel, Tensor, Tensor]]:
    """Mean (p, H, W) and covariance (p, p) after the msi, before the hsi, under one prior covariance for the whole
    scene.

    Also the model without the margin that only the denoising needs, to which they belong.
    """
    model, coefficients, _ = yield from denoised(model, conditioning_halo(model.observation))
    interpolated = model.upsample(coefficients)
    detail = coefficients - model.operator.apply(interpolated)
    spread = yield from scene_covariance(lambda: model.window.coarse(detail))
    mean, posterior = condition_on_msi(interpolated, diagonally_loaded(PRIOR_GAIN * spread, 1e-8), model)
    return model, mean, diagonally_loaded(posterior)


def local_fuse(window: Window) -> SceneComputation[Tensor]:
    """FUSE with a prior of its own for every pixel: regressed on the msi over a coarse neighbourhood that follows the
    image.

    The prior's covariance is read from what its mean leaves of the hsi beyond noise; the hsi then corrects it, exactly.
    """
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from fuse(window))
    model, mean = yield from local_prior((yield from model_pair(window)))
    prior = yield from prior_from_error(mean, model)
    return model.image(condition_on_hsi(mean, prior, model))


def local_prior(model: PairModel) -> SceneComputation[tuple[PairModel, Tensor]]:
    """(p, H, W), and the model to which it belongs: without the margin that only the denoising needs."""
    model, coefficients, seen = yield from denoised(model, conditioning_halo(model.observation))
    interpolated, interpolated_msi = model.upsample(coefficients), model.upsample(seen)
    regression = LocalRegression(
        detail=coefficients - model.operator.apply(interpolated),
        msi_detail=seen - model.operator.apply(interpolated_msi),
        msi=seen,
        msi_noise=model.msi_noise,
        scale=model.observation.scale,
        shift=model.observation.shift,
    )
    predicted = yield from regression.predict(model.msi - interpolated_msi, model.msi, model.window)
    return model, interpolated.add_(predicted)


def denoised(model: PairModel, halo: int) -> SceneComputation[tuple[PairModel, Tensor, Tensor]]:
    """The model within reach of the core, its components (p, h, w) without noise, the msi as the hsi's sensor sees it
    (M, h, w).
    """
    seen = model.operator.apply(model.msi)
    level, _ = yield from scene_moments(model.window.coarse(seen))
    centred = seen - level[:, None, None].to(seen)
    coefficients = yield from denoised_coefficients(model.coefficients, centred, model.hsi_noise, model.window)
    cut: Cut = model.window.near_core(halo)
    return model.within(cut), cut.of_coarse(coefficients), cut.of_coarse(seen)
