"""FUSE (Wei, Dobigeon and Tourneret 2015) exactly, for any scale and border, and local FUSE, whose prior is regressed locally.

Shapes: C bands, M msi bands, p components, h w coarse, H W fine.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.bicubic import upsample
from hyperfuse.methods.conditioning import condition_on_hsi, condition_on_msi, prior_from_error
from hyperfuse.methods.local_regression import LocalRegression, denoised_coefficients
from hyperfuse.methods.pair_model import PairModel, covariance, lifted, model_pair


def fuse(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """Maximum a posteriori in the hsi's subspace: prior mean the interpolated hsi, prior covariance that of detail one scale coarser."""
    model = model_pair(hsi, msi, observation)
    coefficients = denoised_coefficients(model.coefficients, coarse_msi(model), model.hsi_noise)
    prior = lifted(covariance(coarser_detail(coefficients, observation)), 1e-8)
    mean, posterior = condition_on_msi(model.upsample(coefficients), prior, model)
    return model.image(condition_on_hsi(mean, lifted(posterior), model))


def local_fuse(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """FUSE with a prior of its own for every pixel: regressed on the msi over a coarse neighbourhood that follows the image.

    The prior's covariance is read from what its mean leaves of the hsi beyond noise; the hsi then corrects it, exactly.
    """
    model = model_pair(hsi, msi, observation)
    mean = local_prior(model)
    return model.image(condition_on_hsi(mean, prior_from_error(mean, model), model))


def local_prior(model: PairModel) -> Tensor:
    """(p, H, W)."""
    seen = model.operator.apply(model.msi)
    level = seen.mean((1, 2), keepdim=True)
    coefficients = denoised_coefficients(model.coefficients, seen - level, model.hsi_noise)
    observation = model.observation
    regression = LocalRegression(coefficients, seen - level, model.msi_noise, observation.scale, observation.shift)
    return regression.predict(model.msi - level)


def coarse_msi(model: PairModel) -> Tensor:
    """The msi as the hsi's sensor would see it, mean removed: (M, h, w)."""
    seen = model.operator.apply(model.msi)
    return seen - seen.mean((1, 2), keepdim=True)


def coarser_detail(coefficients: Tensor, observation: Observation) -> Tensor:
    """What the hsi itself loses when it is degraded once more and interpolated back: a stand-in for the detail it lacks."""
    height, width = coefficients.shape[1:]
    coarser = [max(2, round(size / min(scale, size / 4))) for size, scale in zip((height, width), observation.scale, strict=True)]
    once_more = replace(
        observation,
        scale=(height / coarser[0], width / coarser[1]),
        sigma=(
            observation.sigma[0] / observation.scale[0] * height / coarser[0],
            observation.sigma[1] / observation.scale[1] * width / coarser[1],
        ),
        shift=(0.0, 0.0),
    )
    low = once_more.spatial_operator((height, width), (coarser[0], coarser[1])).apply(coefficients)
    return coefficients - upsample(low, (height, width), once_more)
