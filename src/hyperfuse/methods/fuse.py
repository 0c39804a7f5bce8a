"""FUSE (Wei, Dobigeon and Tourneret 2015) exactly, for any scale and border, and local FUSE, whose prior is regressed locally.

Shapes: C bands, M msi bands, p components, h w coarse, H W fine.
"""

from __future__ import annotations

from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods import denoising
from hyperfuse.methods.conditioning import condition_on_hsi, condition_on_msi, conditioning_reach, prior_from_error
from hyperfuse.methods.denoising import denoised_coefficients
from hyperfuse.methods.local_regression import LocalRegression
from hyperfuse.methods.over_scene import SceneWise, scene_count, scene_moments
from hyperfuse.methods.pair_model import PairModel, lifted, model_pair, scene_covariance
from hyperfuse.methods.window import Cut, Window

# The prior covariance of fine detail over that of the detail that the coarse grid's own interpolation misses.
PRIOR_GAIN = 16.0
# With fewer coarse pixels than this there is nothing local to learn: every neighbourhood is the whole scene.
FEWEST_PIXELS = 25


def fuse_reach(observation: Observation) -> int:
    """How many coarse pixels around itself a pixel of FUSE looks at."""
    return denoising.REACH + conditioning_reach(observation)


def fuse(window: Window) -> SceneWise[Tensor]:
    """Maximum a posteriori in the hsi's subspace, in closed form. Prior mean: the interpolated hsi."""
    model, mean, posterior = yield from scene_posterior((yield from model_pair(window)))
    return model.image(condition_on_hsi(mean, posterior, model))


def scene_posterior(model: PairModel) -> SceneWise[tuple[PairModel, Tensor, Tensor]]:
    """Mean (p, H, W) and covariance (p, p) after the msi, before the hsi, under one prior covariance for the whole scene.

    Also the model without the margin that only the denoising needs, to which they belong.
    """
    model, coefficients, _ = yield from denoised(model, conditioning_reach(model.observation))
    interpolated = model.upsample(coefficients)
    detail = coefficients - model.operator.apply(interpolated)
    spread = yield from scene_covariance(lambda: model.window.coarse(detail))
    mean, posterior = condition_on_msi(interpolated, lifted(PRIOR_GAIN * spread, 1e-8), model)
    return model, mean, lifted(posterior)


def local_fuse(window: Window) -> SceneWise[Tensor]:
    """FUSE with a prior of its own for every pixel: regressed on the msi over a coarse neighbourhood that follows the image.

    The prior's covariance is read from what its mean leaves of the hsi beyond noise; the hsi then corrects it, exactly.
    """
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from fuse(window))
    model, mean = yield from local_prior((yield from model_pair(window)))
    prior = yield from prior_from_error(mean, model)
    return model.image(condition_on_hsi(mean, prior, model))


def local_prior(model: PairModel) -> SceneWise[tuple[PairModel, Tensor]]:
    """(p, H, W), and the model to which it belongs: without the margin that only the denoising needs."""
    model, coefficients, seen = yield from denoised(model, conditioning_reach(model.observation))
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


def denoised(model: PairModel, reach: int) -> SceneWise[tuple[PairModel, Tensor, Tensor]]:
    """The model within reach of the core, its components (p, h, w) without noise, the msi as the hsi's sensor sees it (M, h, w)."""
    seen = model.operator.apply(model.msi)
    level, _ = yield from scene_moments(model.window.coarse(seen))
    centred = seen - level[:, None, None].to(seen)
    coefficients = yield from denoised_coefficients(model.coefficients, centred, model.hsi_noise, model.window)
    cut: Cut = model.window.near_core(reach)
    return model.within(cut), cut.of_coarse(coefficients), cut.of_coarse(seen)
