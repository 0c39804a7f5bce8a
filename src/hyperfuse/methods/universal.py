"""The method that ships with weights: local FUSE whose regression a network guides. For any bands, any scale, any
sensor.

Shapes: M msi bands, p components, B regressors (msi bands and learned features), h w coarse, H W fine.

    components = interpolated + gains_c . (slopes of the scene . detail) + gains_c . (slopes of the pixel . detail)
                 + gain_c . what the msi says beyond these

Slopes are solved for, on the pair itself, as in local FUSE. What the network adds was learned on many scenes: features
to regress on beside the msi's bands, whose likeness makes a good neighbour, and how far a prediction may be trusted,
component by component, given how well it does on coarse pixels that it has not seen. The hsi then corrects the result,
exactly.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse.methods.details import Details, find_details, without_own_level
from hyperfuse.methods.fuse import FEWEST_PIXELS, denoised, fuse, fuse_halo
from hyperfuse.methods.guided_regression import GuidedRegression, left_out_moments, logarithm, ratio
from hyperfuse.methods.local_fuse import LIKENESS
from hyperfuse.methods.pair_model import (
    PairModel,
    condition_on_hsi,
    conditioning_halo,
    diagonally_loaded,
    mnf_axes,
    model_pair,
    prior_from_error,
    scene_covariance,
)
from hyperfuse.methods.scene_stats import SceneComputation, in_one_pass, scene_count, scene_mean_and_count
from hyperfuse.methods.window import Window
from hyperfuse.models.prior import PREDICTIONS, SMOOTHINGS, Gains, Guide, PriorNetwork
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.operators import mix_bands

# Ridges of learned features before training, of the scene's slopes and of a pixel's own, in units of the features'
# variance.
FEATURE_RIDGE = 0.03
FREEDOM = 16.0  # of features that are let free: their ridge is so many times smaller
SMOOTHING_REACH = 2
THINNED = 2  # of fine pixels one in so many, along both axes, is enough for how strong the regressors are
MOST_COMPONENTS = 16
# Features say little of pixels that are far brighter (or darker) than their scene: these have gains of their own, which
# count half at this squared departure from the mean, in units of the variance.
UNFAMILIAR = 30.0
FARTHEST_FROM_EXPECTED = 10.0  # deviations by which the msi may correct a prediction


@functools.cache
def shipped_network() -> PriorNetwork:
    with resources.as_file(resources.files("hyperfuse") / "weights" / "universal") as folder:
        return PriorNetwork.from_pretrained(Path(folder))


def universal_halo(observation: Observation) -> int:
    return fuse_halo(observation) + guidance_halo(shipped_network(), observation)


def guidance_halo(network: PriorNetwork, observation: Observation) -> int:
    """Coarse pixels that the network looks beyond those that local FUSE does."""
    return math.ceil((network.halo + SMOOTHING_REACH) / min(observation.scale))


def universal(window: Window) -> SceneComputation[Tensor]:
    return fuse_guided(window, shipped_network())


def fuse_guided(window: Window, network: PriorNetwork) -> SceneComputation[Tensor]:
    """(C, H, W) of the window's core."""
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from fuse(window))
    model, mean, error = yield from guided_prior(window, network)
    return model.image(condition_on_hsi(mean, error, model))


def guided_prior(window: Window, network: PriorNetwork) -> SceneComputation[tuple[PairModel, Tensor, Tensor]]:
    """A model of the pair, the components (p, H, W) before they have seen the hsi, and how far they are off, (p, p)."""
    model, pair, predictions = yield from guided_predictions(window, network)
    gains = network.gains(predictions.statistics, pair.numbers)
    mean = pair.interpolated + predictions.trusted(gains)
    error = yield from prior_from_error(mean.detach(), model)
    return model, mean, error


@dataclass(frozen=True)
class Predictions:
    """What slopes say of the components' detail, before it is decided how far to trust them."""

    slopes: Tensor  # (3, p, B) of the scene: without features, with them, with features that are let free
    fine: Tensor  # (B, H, W) what these are slopes of
    images: tuple[
        Tensor, Tensor, Tensor
    ]  # (p, H, W): by a pixel's own slopes, with features and without; what the msi says beyond
    statistics: Tensor  # (p, 18), float32
    familiarity: (
        Tensor | None
    )  # (H, W), 0 to 1: how far a pixel is like most of its scene; None while the network learns

    def trusted(self, gains: Gains) -> Tensor:
        """(p, H, W)"""
        by_smoothing = gains.familiar.T.reshape(SMOOTHINGS, PREDICTIONS, -1)
        as_it_is, smooth, smoother = (self._weighted(of_all) for of_all in by_smoothing)
        trusted = as_it_is + smoothed(smooth + smoothed(smoother))
        return (
            trusted
            if self.familiarity is None
            else torch.lerp(self._weighted(gains.unfamiliar.T), trusted, self.familiarity)
        )

    def each(self) -> list[Tensor]:
        """(p, H, W), of which `trusted` is the sum with all gains as weights, those of familiar pixels first."""
        as_it_is = [*(mix_bands(slopes, self.fine) for slopes in self.slopes), *self.images]
        smooth = [smoothed(image) for image in as_it_is]
        familiar = [*as_it_is, *smooth, *(smoothed(image) for image in smooth)]
        assert self.familiarity is not None
        return [
            *(self.familiarity * image for image in familiar),
            *((1 - self.familiarity) * image for image in as_it_is),
        ]

    def _weighted(self, gains: Tensor) -> Tensor:
        """(p, H, W), from one gain (6, p) of each."""
        scene_gains, image_gains = gains[: len(self.slopes)], gains[len(self.slopes) :]
        # Gains of predictions that are linear in one image are gains of their slopes: one product instead of three.
        slopes = (scene_gains[:, :, None] * self.slopes).sum(0)
        first, second, third = (
            gain[:, None, None] * image for gain, image in zip(image_gains, self.images, strict=True)
        )
        own: Tensor = first + second + third
        return mix_bands(slopes, self.fine) + own


def guided_predictions(
    window: Window, network: PriorNetwork, *, simulated: bool = False
) -> SceneComputation[tuple[PairModel, Details, Predictions]]:
    """From a simulated pair, whose msi has no odd pixels, predictions are not bounded."""
    model = yield from model_pair(window, MOST_COMPONENTS, partial(mnf_axes, noise=window.observation.hsi_noise))
    halo = conditioning_halo(model.observation) + guidance_halo(network, model.observation)
    model = yield from without_own_level(model)
    model, coefficients, seen = yield from denoised(model, halo)
    pair = yield from find_details(model, coefficients, seen)
    guide = network.guide(pair.network_channels(network.config.msi_components), pair.numbers)
    regressors = yield from _regressors(model, pair, guide, network)
    bounded = not (simulated or network.training)
    return model, pair, (yield from _predicted(model, pair, guide, regressors, network, bounded=bounded))


@dataclass(frozen=True)
class _Regressors:
    """Msi bands and learned features, how both grids see their detail, and the scene's slopes on them."""

    coarse: Tensor  # (B, h, w)
    fine: Tensor  # (B, H, W), each in a unit of its own
    slopes: Tensor  # (3, p, B): without features, with them, with features that are let free
    moments: Tensor  # (B + p, B + p) of coarse regressors and detail
    fine_spread: Tensor  # (B, B)
    units: Tensor  # (B,), what makes coarse ones of fine ones
    ridge: Tensor  # (B, B) of a pixel's own slopes
    keys: Tensor  # (E, h, w) the embedding as the hsi's sensor sees it
    weight: Tensor  # (1, h, w)


def _regressors(model: PairModel, pair: Details, guide: Guide, network: PriorNetwork) -> SceneComputation[_Regressors]:
    embedding, features, weight = guide.parts(model.operator.apply(guide.seen))
    interpolated = model.upsample(features)
    feature_detail, fine_feature_detail = features - model.operator.apply(interpolated), guide.features - interpolated
    window = model.window
    coarse, fine = torch.cat([pair.msi_detail, feature_detail]), torch.cat([pair.fine_msi_detail, fine_feature_detail])
    moments, fine_spread = yield from in_one_pass(
        scene_covariance(lambda: window.coarse(torch.cat([coarse, pair.detail]))),
        scene_covariance(lambda: window.fine(fine)[:, ::THINNED, ::THINNED]),
    )
    bands, count, regressors = len(pair.msi_detail), len(features), len(coarse)
    own = moments.diagonal()[bands:regressors].clamp_min(0)
    sizes = network.feature_size.exp().double() / (math.sqrt(count) * ((own + 1e-12).sqrt() + 1e-3))
    units = torch.cat([torch.ones(bands, dtype=torch.float64), sizes])
    all_units = torch.cat([units, torch.ones(len(pair.detail), dtype=torch.float64)])
    moments = all_units[:, None] * moments * all_units
    ridges = network.feature_ridges.exp().double() * (FEATURE_RIDGE * pair.few / count)
    spread, crossed = moments[:regressors, :regressors], moments[:regressors, regressors:]
    plain = torch.linalg.solve(diagonally_loaded(spread[:bands, :bands] + pair.noise, 1e-6), crossed[:bands])
    slopes = [pad(plain, (0, 0, 0, count))]
    for ridge in (ridges[0], ridges[0] / FREEDOM):
        slopes.append(torch.linalg.solve(diagonally_loaded(spread + _corner(pair.noise, ridge, count), 1e-6), crossed))
    return _Regressors(
        coarse=coarse * units[:, None, None].to(coarse),
        fine=fine,
        slopes=torch.stack(slopes).mT,
        moments=moments,
        fine_spread=units[:, None] * fine_spread * units,
        units=units,
        ridge=_corner(pair.ridge, ridges[1], network.config.features).to(coarse),
        keys=embedding,
        weight=weight,
    )


def _predicted(
    model: PairModel, pair: Details, guide: Guide, regressors: _Regressors, network: PriorNetwork, *, bounded: bool
) -> SceneComputation[Predictions]:
    plain, held, _ = regressors.slopes
    left = torch.cat([pair.detail - mix_bands(slopes, regressors.coarse) for slopes in (held, plain)])
    local = len(pair.msi_detail) + network.config.features
    closeness = network.likeness.exp() / LIKENESS
    regression = GuidedRegression(
        keys=torch.cat([closeness * pair.msi, regressors.keys]),
        weight=regressors.weight,
        inputs=regressors.coarse[:local],
        outputs=left,
        ridge=regressors.ridge,
        bands=len(pair.msi_detail),
    )
    left_out, _ = yield from scene_mean_and_count(
        lambda: left_out_moments(regression, model.window, pair.pixels), costly=True
    )
    statistics = _statistics(model, pair, regressors, left_out)
    inputs = regressors.fine[:local] * regressors.units[:local, None, None].to(left)
    queries = [closeness * pair.fine_msi, guide.embedding, guide.nearness[None], guide.ridge[None], inputs]
    by_pixels = regression.predict(torch.cat(queries), model.observation.scale, model.observation.shift)
    by_pixel, by_plain_pixel = by_pixels.chunk(2)
    fine_slopes = regressors.slopes * regressors.units
    said = pair.interpolated + mix_bands(fine_slopes[1], regressors.fine) + by_pixel
    seen, expected = _msi_gain(model, regressors, left_out)
    unexplained = model.msi - mix_bands(model.msi_from_components, said)
    if bounded:  # an odd pixel of the msi must not spoil its surroundings
        limit = (FARTHEST_FROM_EXPECTED * expected).to(unexplained)[:, None, None]
        unexplained = unexplained.clamp(-limit, limit)
    beyond = mix_bands(seen, unexplained)
    return Predictions(
        slopes=fine_slopes,
        fine=regressors.fine,
        images=(by_pixel, by_plain_pixel, beyond),
        statistics=statistics.to(left),
        familiarity=None if network.training else 1 / (1 + (pair.fine_msi.square().sum(0) / UNFAMILIAR) ** 2),
    )


def _msi_gain(model: PairModel, regressors: _Regressors, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """(p, M): how components follow what the msi says beyond a prediction whose error is distributed as all detail is.

    And (M,), the deviation of that in each band.
    """
    with torch.no_grad():
        count, seen = len(regressors.coarse), model.msi_from_components.double()
        detail = regressors.moments[count:, count:]
        error = detail * ratio(left_out[2, : len(detail)].sum(), detail.trace()).clamp(max=1.0)
        spread = diagonally_loaded(seen @ error @ seen.T + model.msi_noise, 1e-9)
        return torch.linalg.solve(spread, seen @ error).T, spread.diagonal().sqrt()


def _statistics(model: PairModel, pair: Details, regressors: _Regressors, left_out: Tensor) -> Tensor:
    """(p, 18): how well slopes do on the coarse grid, component by component. Nothing is learned through them."""
    count = len(regressors.coarse)
    with torch.no_grad():
        slopes, moments = regressors.slopes[1], regressors.moments
        spread, crossed, total = moments[:count, :count], moments[:count, count:], moments[count:, count:].diagonal()
        by_scene = ((slopes @ spread) * slopes).sum(1)
        with_detail = (slopes * crossed.T).sum(1)
        fine_by_scene = ((slopes @ regressors.fine_spread) * slopes).sum(1)
        left = (total - 2 * with_detail + by_scene).clamp_min(1e-30)
        (predicted, agreeing, error), plain_error = left_out[:, : len(total)], left_out[2, len(total) :]
        rank = torch.arange(len(total), dtype=torch.float64)
        energy = total.sum().clamp_min(1e-30)
        return torch.stack(
            [
                1 - ratio(left, total),
                (1 - ratio(error, left)).clamp(-2, 1),
                ratio(agreeing, predicted).clamp(-1, 3),
                logarithm(ratio(predicted, left)),
                ratio(with_detail, by_scene).clamp(-1, 3),
                logarithm(ratio(fine_by_scene, by_scene)),
                logarithm(ratio((by_scene + predicted), error)),
                logarithm(ratio(model.hsi_noise.diagonal(), total)).clamp(-6, 3) / 3,
                logarithm(total / energy) / 4,
                logarithm(ratio(total, pair.variance)) / 2,
                pair.octave[:, 0],
                pair.octave[:, 1],
                rank / 12 - 1,
                (rank == 0).double(),
                (rank == 1).double(),
                logarithm(ratio(plain_error, error)),
                logarithm(ratio(plain_error.sum(), error.sum())).expand(len(total)),
                pair.unevenness.expand(len(total)),
            ],
            dim=1,
        )


def _corner(matrix: Tensor, ridge: Tensor, count: int) -> Tensor:
    """A (M, M) matrix and `count` times the ridge on the diagonal beyond it."""
    size = len(matrix)
    beyond = torch.cat([torch.zeros(size, dtype=torch.float64), ridge.expand(count)]).diag()
    return pad(matrix, (0, count, 0, count)) + beyond


def smoothed(image: Tensor) -> Tensor:
    """(p, H, W) under the filter (1, 2, 1) / 4 along both axes, the edge repeated. Additions are faster here than
    convolutions.
    """
    rows = pad(image[None], (1, 1, 1, 1), mode="replicate")[0] / 16
    for axis in (1, 1, 2, 2):
        size = rows.shape[axis] - 1
        rows = rows.narrow(axis, 0, size) + rows.narrow(axis, 1, size)
    return rows
