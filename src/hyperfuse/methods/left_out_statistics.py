"""How well a regression does where it has not looked: on coarse pixels that were left out, and one octave finer than it learned.

Shapes: M msi bands, p components, h w coarse.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hyperfuse.degradation.operators import SpatialOperator, separable
from hyperfuse.degradation.point_spread import sigma_from_fwhm
from hyperfuse.methods.bicubic import interpolation_matrix
from hyperfuse.methods.guided_regression import GuidedRegression
from hyperfuse.methods.over_scene import SceneWise, scene_mean
from hyperfuse.methods.pair_model import covariance, lifted
from hyperfuse.methods.window import Window

ENOUGH_LEFT_OUT = 1500  # coarse pixels that show how well a prediction does on those that it has not seen
SMALLEST_RATIO = 1e-6


def octave_trend(coefficients: Tensor, msi: Tensor) -> SceneWise[Tensor]:
    """(p, 2): slopes learned one octave coarser, tried here: the gain that would suit them, and the share they explain."""
    bands = len(msi)

    def share() -> tuple[Tensor, int]:
        fine, coarse = _octave_details(torch.cat([msi, coefficients]))
        return torch.stack([covariance(fine), covariance(coarse)]), msi[0].numel()

    fine, coarse = yield from scene_mean(share)
    slopes = torch.linalg.solve(lifted(coarse[:bands, :bands], 1e-3), coarse[:bands, bands:]).T
    predicted = ((slopes @ fine[:bands, :bands]) * slopes).sum(1)
    agreeing = (slopes * fine[:bands, bands:].T).sum(1)
    total = fine[bands:, bands:].diagonal()
    explained = 1 - ratio(total - 2 * agreeing + predicted, total)
    return torch.stack([ratio(agreeing, predicted).clamp(-1, 3), explained.clamp(-2, 1)], dim=1)


def _octave_details(image: Tensor) -> tuple[Tensor, Tensor]:
    """What an image of half the resolution does not give back of this one, and what one of a quarter not of that."""
    size = (image.shape[1], image.shape[2])
    half = (max(2, round(size[0] / 2)), max(2, round(size[1] / 2)))
    scale = (size[0] / half[0], size[1] / half[1])
    operator = SpatialOperator.from_point_spread(size, half, scale, (sigma_from_fwhm(scale[0]), sigma_from_fwhm(scale[1])))
    rows, columns = (interpolation_matrix(*axis) for axis in zip(half, size, scale, strict=True))
    coarse = operator.apply(image)
    interpolated = separable(rows, columns, coarse)
    return image - interpolated, coarse - operator.apply(interpolated)


@torch.no_grad()
def left_out_moments(regression: GuidedRegression, window: Window, of_scene: int) -> tuple[Tensor, int]:
    """(3, 2 p): second moments of what is predicted of left-out coarse pixels, of it with the truth, and of the error.

    In a scene of `of_scene` coarse pixels, of which a window leaves out as many as it would in one piece.
    """
    core = zip(window.coarse_core, window.coarse_size, strict=True)
    (top, bottom), (left, right) = (part.indices(size)[:2] for part, size in core)
    step = max(1, math.isqrt(of_scene // ENOUGH_LEFT_OUT))
    rows, columns = range(top, bottom, step), range(left, right, step)
    predicted = regression.predict_left_out(rows, columns).double()
    truth = regression.outputs[:, top:bottom:step, left:right:step].double()
    means = torch.stack([predicted.square(), predicted * truth, (truth - predicted).square()]).mean((2, 3))
    return means, truth[0].numel()


def ratio(one: Tensor, other: Tensor) -> Tensor:
    return one / (other + 1e-20)


def logarithm(ratio: Tensor) -> Tensor:
    return ratio.clamp_min(SMALLEST_RATIO).log10()
