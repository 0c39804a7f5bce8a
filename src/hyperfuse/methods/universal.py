"""The method that ships with weights: local FUSE whose regression a network guides. For any bands, any scale, any sensor.

Shapes: M msi bands, p components, B regressors (msi bands and learned features), h w coarse, H W fine.

    components = interpolated + gain_c . (slopes of the scene . detail) + gain_c . (slopes of the pixel . detail)

Both slopes are solved for, on the pair itself, as in local FUSE. What the network adds was learned on many scenes: features to
regress on beside the msi's bands, whose likeness makes a good neighbour, and how far a prediction may be trusted, component by
component, given how well it does on coarse pixels that it has not seen. The hsi then corrects the result, exactly.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.conditioning import condition_on_hsi, conditioning_reach, prior_from_error
from hyperfuse.methods.fuse import FEWEST_PIXELS, denoised, fuse, fuse_reach
from hyperfuse.methods.guided_regression import GuidedRegression
from hyperfuse.methods.left_out_statistics import left_out_moments, logarithm, octave_trend, ratio
from hyperfuse.methods.local_regression import FEW_PIXELS, FINE_DETAIL_GAIN, LIKENESS, RIDGE_OF_SCENE
from hyperfuse.methods.msi_denoising import msi_axes, with_quiet_msi
from hyperfuse.methods.over_scene import SceneWise, scene_count, scene_mean_and_count, scene_moments, together
from hyperfuse.methods.pair_model import PairModel, lifted, model_pair, scene_covariance, scene_covariance_and_count
from hyperfuse.methods.window import Window
from hyperfuse.networks.prior_network import Guide, PriorNetwork

# Ridges of learned features before training, of the scene's slopes and of a pixel's own, in units of the features' variance.
FEATURE_RIDGE = 0.03
SMOOTHING_REACH = 2


@functools.cache
def shipped_network() -> PriorNetwork:
    with resources.as_file(resources.files("hyperfuse") / "weights" / "universal") as folder:
        return PriorNetwork.from_pretrained(Path(folder))


def universal_reach(observation: Observation) -> int:
    return fuse_reach(observation) + guidance_reach(shipped_network(), observation)


def guidance_reach(network: PriorNetwork, observation: Observation) -> int:
    """Coarse pixels that the network looks beyond those that local FUSE does."""
    return math.ceil((network.reach + SMOOTHING_REACH) / min(observation.scale))


def universal(window: Window) -> SceneWise[Tensor]:
    return fuse_guided(window, shipped_network())


def fuse_guided(window: Window, network: PriorNetwork) -> SceneWise[Tensor]:
    """(C, H, W) of the window's core."""
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from fuse(window))
    model, mean = yield from guided_prior((yield from model_pair(window)), network)
    prior = yield from prior_from_error(mean.detach(), model)
    return model.image(condition_on_hsi(mean, prior, model))


def guided_prior(model: PairModel, network: PriorNetwork) -> SceneWise[tuple[PairModel, Tensor]]:
    """(p, H, W), and the model to which it belongs."""
    reach = conditioning_reach(model.observation) + guidance_reach(network, model.observation)
    quiet = yield from with_quiet_msi(model, network)
    # Nothing is learned through the hsi's own denoising: eigenvectors that may swap have no gradient.
    _, coefficients, _ = yield from denoised(replace(quiet, msi=quiet.msi.detach()), reach)
    cut = quiet.window.near_core(reach)
    model, seen = quiet.within(cut), cut.of_coarse(quiet.operator.apply(quiet.msi))
    pair = yield from _details(model, coefficients, seen)
    guide = network.guide(pair.network_channels(network.config.msi_components), pair.numbers)
    regressors = yield from _regressors(model, pair, guide, network)
    predicted = yield from _predicted(model, pair, guide, regressors, network)
    return model, pair.interpolated + predicted


@dataclass(frozen=True)
class _Details:
    """Both images without what interpolation gives back, and the scene's statistics of them, in units of about 1."""

    interpolated: Tensor  # (p, H, W)
    detail: Tensor  # (p, h, w)
    msi: Tensor  # (M, h, w) as the hsi's sensor sees it
    fine_msi: Tensor  # (M, H, W)
    msi_detail: Tensor  # (M, h, w)
    fine_msi_detail: Tensor  # (M, H, W)
    msi_spread: Tensor  # (M, M) covariance of msi
    noise: Tensor  # (M, M) covariance of the noise in msi_detail that matters
    ridge: Tensor  # (M, M)
    few: float  # by how much ridges grow because there are few pixels to learn from
    octave: Tensor  # (p, 2): gain and share explained by slopes learned one octave coarser
    variance: Tensor  # (p,) of the components themselves
    numbers: Tensor  # (5,) of the scene

    def network_channels(self, most: int) -> Tensor:
        """(2 most, H, W): principal components of the msi and of its detail; those that the msi has not are 0."""
        axes, units = msi_axes(self.msi_spread.detach(), most)
        channels = self.fine_msi.new_zeros(2 * most, *self.fine_msi.shape[1:])
        channels[: axes.shape[1]] = mix_bands((axes / units).T, self.fine_msi)
        channels[most : most + axes.shape[1]] = mix_bands(0.3 * axes.T, self.fine_msi_detail)
        return channels


def _details(model: PairModel, coefficients: Tensor, seen: Tensor) -> SceneWise[_Details]:
    interpolated, interpolated_msi = model.upsample(coefficients), model.upsample(seen)
    detail = coefficients - model.operator.apply(interpolated)
    msi_detail = seen - model.operator.apply(interpolated_msi)
    window = model.window
    ((moments, pixels), (_, spread)), (octave, (_, component_spread)) = yield from together(
        together(
            scene_covariance_and_count(lambda: window.coarse(torch.cat([msi_detail, detail]))), scene_moments(window.coarse(seen))
        ),
        together(
            octave_trend(window.coarse(coefficients), window.coarse(seen.detach())), scene_moments(window.coarse(coefficients))
        ),
    )
    bands, known, msi_noise = len(seen), moments.detach(), model.msi_noise.detach()
    unit = 1 / math.sqrt(max(1e-30, float(known[:bands, :bands].trace())))
    msi_unit = 1 / math.sqrt(max(1e-30, float(spread.detach().trace())))
    noise = unit**2 * model.msi_noise / FINE_DETAIL_GAIN
    few = 1 + (FEW_PIXELS / pixels) ** 2
    ridge = lifted(RIDGE_OF_SCENE * few * unit**2 * moments[:bands, :bands] + noise, 1e-6) + 1e-8 * torch.eye(bands)
    energy = float(known[bands:, bands:].trace())
    numbers = [
        math.log2(sum(model.observation.scale) / 2) / 3 - 0.7,
        math.log10(math.sqrt(float(model.hsi_noise.trace()) / max(1e-30, energy)) + 1e-3),
        math.log10(math.sqrt(float(msi_noise.trace())) * unit + 1e-3),
        math.log10(pixels) - 2.5,
        bands / 8 - 0.5,
    ]
    return _Details(
        interpolated=interpolated,
        detail=detail,
        msi=seen * msi_unit,
        fine_msi=model.msi * msi_unit,
        msi_detail=msi_detail * unit,
        fine_msi_detail=(model.msi - interpolated_msi) * unit,
        msi_spread=spread * msi_unit**2,
        noise=noise,
        ridge=ridge,
        few=few,
        octave=octave,
        variance=component_spread.diagonal(),
        numbers=torch.tensor(numbers, dtype=torch.float32),
    )


@dataclass(frozen=True)
class _Regressors:
    """Msi bands and learned features, how both grids see their detail, and the scene's slopes on them."""

    coarse: Tensor  # (B, h, w)
    fine: Tensor  # (B, H, W)
    slopes: Tensor  # (p, B)
    moments: Tensor  # (B + p, B + p) of coarse regressors and detail
    fine_spread: Tensor  # (B, B)
    ridge: Tensor  # (B, B) of a pixel's own slopes
    keys: Tensor  # (E, h, w) the embedding as the hsi's sensor sees it
    weight: Tensor  # (1, h, w)


def _regressors(model: PairModel, pair: _Details, guide: Guide, network: PriorNetwork) -> SceneWise[_Regressors]:
    pooled = model.operator.apply(torch.cat([guide.embedding, guide.features, guide.weight]))
    embedding, features, weight = torch.split(pooled, [len(guide.embedding), len(guide.features), 1])
    interpolated = model.upsample(features)
    feature_detail, fine_feature_detail = features - model.operator.apply(interpolated), guide.features - interpolated
    window = model.window
    coarse, fine = torch.cat([pair.msi_detail, feature_detail]), torch.cat([pair.fine_msi_detail, fine_feature_detail])
    moments, fine_spread = yield from together(
        scene_covariance(lambda: window.coarse(torch.cat([coarse, pair.detail]))), scene_covariance(lambda: window.fine(fine))
    )
    bands, count, regressors = len(pair.msi_detail), len(features), len(coarse)
    own = moments.diagonal()[bands:regressors].clamp_min(0)
    sizes = network.feature_size.exp().double() / (math.sqrt(count) * ((own + 1e-12).sqrt() + 1e-3))
    units = torch.cat([torch.ones(bands, dtype=torch.float64), sizes])
    all_units = torch.cat([units, torch.ones(len(pair.detail), dtype=torch.float64)])
    moments = all_units[:, None] * moments * all_units
    ridges = network.feature_ridges.exp().double() * (FEATURE_RIDGE * pair.few / count)
    held = lifted(moments[:regressors, :regressors] + _corner(pair.noise, ridges[0], count), 1e-6)
    slopes = torch.linalg.solve(held, moments[:regressors, regressors:]).T
    return _Regressors(
        coarse=coarse * units[:, None, None].to(coarse),
        fine=fine * units[:, None, None].to(fine),
        slopes=slopes,
        moments=moments,
        fine_spread=units[:, None] * fine_spread * units,
        ridge=_corner(pair.ridge, ridges[1], network.config.features).to(coarse),
        keys=embedding,
        weight=weight,
    )


def _predicted(model: PairModel, pair: _Details, guide: Guide, regressors: _Regressors, network: PriorNetwork) -> SceneWise[Tensor]:
    """(p, H, W): detail of the components."""
    left = pair.detail - mix_bands(regressors.slopes, regressors.coarse)
    local = len(pair.msi_detail) + network.config.features
    closeness = network.likeness.exp() / LIKENESS
    regression = GuidedRegression(
        keys=torch.cat([closeness * pair.msi, regressors.keys]),
        weight=regressors.weight,
        inputs=regressors.coarse[:local],
        outputs=left,
        ridge=regressors.ridge,
    )
    statistics = yield from _statistics(model, pair, regressors, regression)
    gains = network.gains(statistics.to(left), pair.numbers)[:, :, None, None]
    by_scene = mix_bands(regressors.slopes, regressors.fine) * guide.scene_gain.exp()
    by_pixel = regression.predict(
        torch.cat([closeness * pair.fine_msi, guide.embedding]),
        regressors.fine[:local],
        guide.nearness,
        guide.ridge,
        model.observation.scale,
        model.observation.shift,
    )
    by_pixel = by_pixel * guide.local_gain.exp()
    smoother = smoothed(gains[:, 4] * by_scene + gains[:, 5] * by_pixel)
    smooth = smoothed(smoother + gains[:, 2] * by_scene + gains[:, 3] * by_pixel)
    return smooth + gains[:, 0] * by_scene + gains[:, 1] * by_pixel


def _statistics(model: PairModel, pair: _Details, regressors: _Regressors, regression: GuidedRegression) -> SceneWise[Tensor]:
    """(p, 15): how well slopes do on the coarse grid, component by component. Nothing is learned through them."""
    left_out, _ = yield from scene_mean_and_count(lambda: left_out_moments(regression, model.window), costly=True)
    count = len(regressors.coarse)
    with torch.no_grad():
        slopes, moments = regressors.slopes, regressors.moments
        spread, crossed, total = moments[:count, :count], moments[:count, count:], moments[count:, count:].diagonal()
        by_scene = ((slopes @ spread) * slopes).sum(1)
        with_detail = (slopes * crossed.T).sum(1)
        fine_by_scene = ((slopes @ regressors.fine_spread) * slopes).sum(1)
        left = (total - 2 * with_detail + by_scene).clamp_min(1e-30)
        predicted, agreeing, error = left_out
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
            ],
            dim=1,
        )


def _corner(matrix: Tensor, ridge: Tensor, count: int) -> Tensor:
    """A (M, M) matrix and `count` times the ridge on the diagonal beyond it."""
    size = len(matrix)
    beyond = torch.cat([torch.zeros(size, dtype=torch.float64), ridge.expand(count)]).diag()
    return pad(matrix, (0, count, 0, count)) + beyond


def smoothed(image: Tensor) -> Tensor:
    """(p, H, W) under the filter (1, 2, 1) / 4 along both axes, the edge repeated. Additions are faster here than convolutions."""
    rows = pad(image[None], (1, 1, 1, 1), mode="replicate")[0] / 16
    for axis in (1, 1, 2, 2):
        size = rows.shape[axis] - 1
        rows = rows.narrow(axis, 0, size) + rows.narrow(axis, 1, size)
    return rows
