"""How far off `universal` is to be expected, for every pixel and band: a standard deviation in the hsi's unit.

Shapes: C bands, p components, h w coarse, H W fine.

What its prediction leaves of the hsi tells how far it is off on the average (`prior_from_error`), and where more than
elsewhere; that it is further off where it adds more detail was seen on training scenes. How much each of this counts
was fitted to true errors there; docs/model_card.md shows how well it holds on others.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from hyperfuse.methods.fuse import FEWEST_PIXELS
from hyperfuse.methods.pair_model import PairModel, model_pair, scene_covariance
from hyperfuse.methods.scene_stats import SceneComputation, in_one_pass, scene_count, scene_mean
from hyperfuse.methods.universal import guided_prior, shipped_network, smoothed
from hyperfuse.methods.window import Window

# Shares of the variance: everywhere alike, where the hsi is left unexplained, of predicted detail, of noise in the hsi.
EVERYWHERE, UNEXPLAINED, DETAIL, NOISE = 0.22, 0.62, 0.07, 15.5
# At larger scales the hsi leaves more unexplained, but less of it is error at every pixel: a power of the scale, and a
# factor.
OF_SCALE, FACTOR = -0.49, 0.82


def expected_error(window: Window) -> SceneComputation[Tensor]:
    """(C, H, W) of the window's core."""
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from expected_error_without_msi(window))
    model, mean, prior = yield from guided_prior(window, shipped_network())
    detail = mean - model.upsample(model.operator.apply(mean))
    unexplained, activity = _unexplained(model, mean), smoothed(detail.square().sum(0, keepdim=True))[0]
    core = model.window
    (of_unexplained, of_activity), of_detail = yield from in_one_pass(
        in_one_pass(_mean(core.fine(unexplained)), _mean(core.fine(activity))),
        scene_covariance(lambda: core.fine(detail)),
    )
    factor = FACTOR * math.sqrt(math.prod(model.observation.scale)) ** OF_SCALE
    by_prior = factor * _per_band(prior, model)
    by_detail = factor * DETAIL * _per_band(of_detail, model)
    by_noise = factor * NOISE * model.noise_gain * _per_band(model.hsi_noise, model)
    where = EVERYWHERE + UNEXPLAINED * core.fine(unexplained) / of_unexplained
    busy = core.fine(activity) / of_activity
    # In place: images of all bands are what takes memory.
    variance: Tensor = (by_prior * where).add_(by_detail * busy).add_(by_noise)
    return variance.clamp_min_(0).sqrt_()


def _unexplained(model: PairModel, mean: Tensor) -> Tensor:
    """(H, W): energy that a prediction leaves of the hsi around every pixel."""
    left = (model.coefficients - model.operator.apply(mean)).square().sum(0, keepdim=True)
    around = avg_pool2d(pad(left[None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[0]
    return model.upsample(around)[0].clamp_min(0)


def _per_band(covariance: Tensor, model: PairModel) -> Tensor:
    """(C, 1, 1) variances of the bands where the components have this covariance."""
    variances = ((model.basis @ covariance) * model.basis).sum(1)
    return variances[:, None, None].to(model.msi)


def _mean(image: Tensor) -> SceneComputation[Tensor]:
    mean = yield from scene_mean(lambda: (image.double().mean(), image.numel()))
    return mean.clamp_min(1e-30).to(image)


def expected_error_without_msi(window: Window) -> SceneComputation[Tensor]:
    """The same of an hsi that is only interpolated."""
    return (yield from _spread_of_detail((yield from model_pair(window))))


def _spread_of_detail(model: PairModel) -> SceneComputation[Tensor]:
    """Of a handful of pixels, or without an msi, nothing more is known than how much interpolation loses."""
    window = model.window
    detail = model.coefficients - model.operator.apply(model.upsample(model.coefficients))
    spread = yield from scene_covariance(lambda: window.coarse(detail))
    per_band = _per_band(spread, model).clamp_min(0).sqrt()
    return per_band.expand(-1, *window.fine(model.msi).shape[1:]).clone()
