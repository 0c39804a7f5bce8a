"""FUSE (Wei, Dobigeon and Tourneret 2015) exactly, for any scale and border, and local FUSE, whose prior is regressed locally.

Shapes: C bands, M msi bands, p components, h w coarse, H W fine.
"""

from __future__ import annotations

from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.conditioning import condition_on_hsi, condition_on_msi, prior_from_error
from hyperfuse.methods.denoising import denoised_coefficients
from hyperfuse.methods.local_regression import LocalRegression
from hyperfuse.methods.pair_model import PairModel, covariance, lifted, model_pair

# The prior covariance of fine detail over that of the detail that the coarse grid's own interpolation misses.
PRIOR_GAIN = 16.0
# With fewer coarse pixels than this there is nothing local to learn: every neighbourhood is the whole scene.
FEWEST_PIXELS = 25


def fuse(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """Maximum a posteriori in the hsi's subspace, in closed form. Prior mean: the interpolated hsi."""
    model = model_pair(hsi, msi, observation)
    mean, posterior = scene_posterior(model)
    return model.image(condition_on_hsi(mean, posterior, model))


def scene_posterior(model: PairModel) -> tuple[Tensor, Tensor]:
    """Mean (p, H, W) and covariance (p, p) after the msi, before the hsi, under one prior covariance for the whole scene."""
    coefficients = denoised_coefficients(model.coefficients, coarse_msi(model), model.hsi_noise)
    interpolated = model.upsample(coefficients)
    detail = coefficients - model.operator.apply(interpolated)
    mean, posterior = condition_on_msi(interpolated, lifted(PRIOR_GAIN * covariance(detail), 1e-8), model)
    return mean, lifted(posterior)


def local_fuse(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """FUSE with a prior of its own for every pixel: regressed on the msi over a coarse neighbourhood that follows the image.

    The prior's covariance is read from what its mean leaves of the hsi beyond noise; the hsi then corrects it, exactly.
    """
    if hsi[0].numel() < FEWEST_PIXELS:
        return fuse(hsi, msi, observation)
    model = model_pair(hsi, msi, observation)
    mean = local_prior(model)
    return model.image(condition_on_hsi(mean, prior_from_error(mean, model), model))


def local_prior(model: PairModel) -> Tensor:
    """(p, H, W)."""
    observation, operator = model.observation, model.operator
    seen = operator.apply(model.msi)
    coefficients = denoised_coefficients(model.coefficients, seen - seen.mean((1, 2), keepdim=True), model.hsi_noise)
    interpolated, interpolated_msi = model.upsample(coefficients), model.upsample(seen)
    regression = LocalRegression(
        detail=coefficients - operator.apply(interpolated),
        msi_detail=seen - operator.apply(interpolated_msi),
        msi=seen,
        msi_noise=model.msi_noise,
        scale=observation.scale,
        shift=observation.shift,
    )
    return interpolated.add_(regression.predict(model.msi - interpolated_msi, model.msi))


def coarse_msi(model: PairModel) -> Tensor:
    """The msi as the hsi's sensor would see it, mean removed: (M, h, w)."""
    seen = model.operator.apply(model.msi)
    return seen - seen.mean((1, 2), keepdim=True)
