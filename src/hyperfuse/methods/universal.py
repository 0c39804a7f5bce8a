"""`universal`: local FUSE whose regression a network guides. For any bands, any scale, any sensor.

Shapes: M msi bands, G features, B = M + G regressors, p components, h w coarse, H W fine.

Given are the hsi's denoised components y (p, h, w) and the msi z (M, H, W); A blurs and decimates, up interpolates.
Detail is what interpolation loses: D y = y - A up(y) on the coarse grid, D z = z - up(A z) on the fine one.

1. The network looks at z and returns an embedding e (good neighbours are alike in it), features f to regress on beside
   the msi bands, and weights of neighbours. The regressors are r = (z, f).
2. Slopes of the whole scene, by ridge regression on the coarse grid, S = argmin |D y - S D(A r)|^2 + ridge |S|^2, in
   three versions: on the msi alone (S0), on all regressors (S1), and on all with a 16 times smaller ridge (S2).
3. Slopes s(x) of every fine pixel, by regressing over its neighbourhood what the scene's slopes leave (see
   `local_regression`): s1 on all regressors after S1, s0 on the msi alone after S0.
4. Eight predictions of the detail of the components on the fine grid (`Predictions`):

       scene_msi = S0 D z        scene = S1 D r        scene_loose = S2 D r
       fuse      = G D z         G: FUSE's gain, of a prior that is the detail's covariance
       local     = s1(x) D r     local_msi = s0(x) D z
       msi_residual = K (z - F (up(y) + scene + local))        K: the Wiener gain of F
       lift      = what random features of z tell of the error of up(y) + scene + local

5. Their sum, with gains that depend on the component c, the prediction k and how often it is smoothed (h: a binomial
   filter):   mean_c = up(y)_c + sum_k (gain_ck + gain'_ck h + gain''_ck h h) prediction_kc.
   The network decides on the gains from statistics of how well slopes do on coarse pixels that they have not seen
   (`ComponentStatistics`).
6. The hsi corrects the mean exactly, as in FUSE (`condition_on_hsi`), with the error covariance that the mean shows on
   the hsi itself (`prior_from_error`).

Slopes are always solved for on the pair itself; only the guidance was learned, on many scenes and sensors
(docs/model_card.md).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from hyperfuse import compiled
from hyperfuse.methods.fuse import FEWEST_PIXELS, MOST_FEATURES, PRIOR_GAIN, fuse, left_of_hsi, regressed_error
from hyperfuse.methods.local_regression import MSI_DISTANCE, Details, LocalRegression, find_details
from hyperfuse.methods.pair_model import (
    PairModel,
    condition_on_hsi,
    conditioning_halo,
    covariance,
    denoised,
    diagonally_loaded,
    fuse_halo,
    mnf_axes,
    model_pair,
    prior_from_error,
    scene_covariance,
)
from hyperfuse.methods.window import (
    EVERYWHERE,
    FusedCore,
    Place,
    SceneComputation,
    Window,
    in_one_pass,
    in_parts,
    pooled_mean,
    scene_count,
    scene_mean,
    scene_moments,
    scene_statistic,
)
from hyperfuse.models.prior import PREDICTIONS, SMOOTHINGS, Gains, Guide, Prediction, PriorNetwork
from hyperfuse.physics.observation import Observation, SpatialOperator, mix_bands, sigma_from_fwhm
from hyperfuse.physics.resample import Placement, upsample_bicubic

# Up to six msi bands 16 components are enough, and 24 were 0.01 dB worse on noisy pairs; every further band can predict
# one more (docs/ablation.md).
FEWEST_COMPONENTS, COMPONENTS_BEYOND_BANDS, MOST_COMPONENTS = 16, 10, 24
FEATURE_RIDGE = 0.03  # of features before training, in units of their variance
LOOSE_RIDGE = 1 / 16  # the ridge of `scene_loose` over that of `scene`
LIFT_FEATURES = 32  # at most; of 240, as the method `lift` has, hardly more is left
SHARE_OF_LIFT = 0.25  # in the mean, with more msi bands than the network distinguishes
SMOOTHING_RADIUS = 2  # fine pixels that two binomial filters reach
# The msi may have an unknown unit or offset: one whose mean is farther than this from the value that the hsi predicts,
# in standard deviations, is centred.
LARGEST_OFFSET = 1.0
# Features are unreliable in pixels far brighter or darker than their scene. Those have gains of their own, which count
# half at this squared distance from the mean, in units of the variance.
UNFAMILIAR_DISTANCE = 30.0
UNEXPLAINED_DETAIL = 0.5  # share of the detail's covariance in that of a prediction's error
LARGEST_CHANNEL = 8.0  # of what the network looks at, about in standard deviations: nothing was learned beyond
LARGEST_MSI_RESIDUAL = 4.0  # in standard deviations: an outlier of the msi must not spoil its surroundings
LEFT_OUT_PIXELS = 1500  # coarse pixels are enough to measure how well a prediction does on unseen ones
OCTAVE_HALO = 16  # coarse pixels around a core, or those there are, for its detail at half the resolution
SMALLEST_RATIO = 1e-6  # of energies, before a logarithm
SMALLEST_SHARE = 2e-6  # of all detail, in a component that tells whether a pair is unlike those of training
# Ranges of the training: outside of them numbers about the scene are held at the limit.
SCALE_RANGE, LARGEST_SCENE, LARGEST_PATCH, MOST_MSI_BANDS = (2.0, 16.0), 3000, 192.0**2, 8
# The expected error, fitted to true errors on pairs of all training scenes by benchmarks/universal/fit_expected_error.
# Its variance is ERROR_LEVEL times powers of energies of the scene; the powers sum to 1. Within the scene it follows
# powers of maps of energies.
ERROR_LEVEL = 1.73
LEVEL_POWERS = {"detail": 0.34, "disagreement": 0.16, "noise": 0.03, "left_out": 0.47}
MAP_POWERS = {
    "detail": 0.0,
    "unexplained": 0.12,
    "msi_residual": 0.16,
    "brightness": 0.12,
    "disagreement": 0.03,
    "local": 0.12,
    "roughness": 0.15,
}
SMALLEST_IN_MAP = 1e-4  # of the scene's mean


def universal(window: Window) -> SceneComputation[FusedCore]:
    """Fuse the core of a window by the method above with the weights that ship."""
    return fuse_guided(window, shipped_network())


def universal_halo(observation: Observation) -> int:
    return fuse_halo(observation) + guidance_halo(shipped_network(), observation)


def guidance_halo(network: PriorNetwork, observation: Observation) -> int:
    """Coarse pixels of the network's receptive field and of the smoothing, on top of FUSE's halo."""
    return math.ceil((network.halo + SMOOTHING_RADIUS) / min(observation.scale))


@functools.cache
def shipped_network() -> PriorNetwork:
    """The network whose weights are part of the package."""
    with resources.as_file(resources.files("hyperfuse") / "weights" / "universal") as folder:
        return PriorNetwork.from_pretrained(Path(folder))


def fuse_guided(window: Window, network: PriorNetwork) -> SceneComputation[FusedCore]:
    """Fuse the core of a window under the guidance of a network."""
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from fuse(window))
    model, mean, error = (yield from guided_prior(window, network))[:3]  # what the mean was made of is not kept
    return model.image(condition_on_hsi(mean, error, model))


def guided_prior(
    window: Window, network: PriorNetwork
) -> SceneComputation[tuple[PairModel, Tensor, Tensor, Predictions]]:
    """The model of the pair, the mean (p, H, W) before the hsi corrects it, its error covariance (p, p), and what the
    mean was made of.
    """
    model, details, predictions = yield from guided_predictions(window, network)
    gains = network.gains(predictions.statistics, predictions.numbers, predictions.has_detail)
    mean = details.interpolated + predictions.weighted(gains)
    if len(model.msi) > MOST_MSI_BANDS and not network.training:
        by_fuse = mix_bands(predictions.fuse, predictions.regressors).add_(details.interpolated)
        left = left_of_hsi(by_fuse, model)
        mean.lerp_(by_fuse, SHARE_OF_LIFT)
        del by_fuse
        lifted, _ = yield from regressed_error(lambda: left, model, MOST_FEATURES)
        mean.add_(lifted, alpha=SHARE_OF_LIFT)
    error = yield from prior_from_error(mean.detach(), model)
    return model, mean, error, predictions


def guided_predictions(
    window: Window, network: PriorNetwork, *, simulated: bool = False
) -> SceneComputation[tuple[PairModel, Details, Predictions]]:
    """Steps 1 to 4. The msi residual is not limited in a simulated pair, whose msi has no outliers."""
    find_axes = functools.partial(mnf_axes, noise=window.observation.hsi_noise)
    components = min(MOST_COMPONENTS, max(FEWEST_COMPONENTS, COMPONENTS_BEYOND_BANDS + len(window.msi)))
    model = yield from model_pair(window, components, find_axes)
    halo = conditioning_halo(model.observation) + guidance_halo(network, model.observation)
    model = yield from _without_unknown_offset(model)
    model, coefficients, seen = yield from denoised(model, halo)
    in_core = model.window.coarse
    details, (octave_gain, octave_explains), (_, spread), concentration = yield from in_one_pass(
        find_details(model, coefficients, seen),
        _octave_trend(model.window, coefficients, seen),
        scene_moments(in_core(coefficients)),
        _concentration(model, seen),
    )

    # Steps 1 and 2: the network's guidance, and slopes of the whole scene.
    numbers = _scene_numbers(model, details)
    guide = network.guide(_network_channels(details, network.config.msi_components), numbers)
    scene = yield from _fit_scene_slopes(model, details, guide, network)

    # Step 3: slopes of every pixel, and how well they predict coarse pixels that they have not seen.
    local_inputs = len(seen) + network.config.features
    closeness = network.likeness.exp() / MSI_DISTANCE
    residuals = [details.detail - mix_bands(slopes, scene.coarse) for slopes in (scene.slopes, scene.slopes_msi)]
    regression = LocalRegression(
        keys=torch.cat([closeness * details.msi, scene.embedding]),
        log_weight=scene.log_weight,
        inputs=scene.coarse[:local_inputs],
        outputs=torch.cat(residuals),
        ridge=scene.local_ridge,
        inputs_of=(local_inputs, len(seen)),
    )
    left_out = yield from scene_mean(lambda: _left_out_moments(regression, model.window, details.pixels), costly=True)

    # Step 4: the eight predictions.
    inputs = scene.fine[:local_inputs] * scene.units[:local_inputs, None, None].to(seen)
    pixels = [closeness * details.fine_msi, guide.embedding, guide.nearness[None], guide.ridge[None], inputs]
    local, local_msi = regression.predict(pixels, model.observation.placement).chunk(2)
    of_scene = (scene.slopes_msi, scene.slopes, scene.slopes_loose)
    slopes_msi, slopes, slopes_loose = (each * scene.units for each in of_scene)
    gain, deviation = _wiener_gain(model, scene)
    seen_by = model.msi_from_components
    msi_residual = model.msi - mix_bands(seen_by @ slopes, scene.fine)
    msi_residual = msi_residual - mix_bands(seen_by, details.interpolated) - mix_bands(seen_by, local)
    if not (simulated or network.training):
        limit = (LARGEST_MSI_RESIDUAL * deviation).to(msi_residual)[:, None, None]
        msi_residual = msi_residual.clamp(-limit, limit)
    with torch.no_grad():  # nothing is learned through random features
        predicted = details.interpolated + mix_bands(slopes, scene.fine) + local
        of_both = functools.partial(left_of_hsi, predicted, model)
        lifted, lift_explains = yield from regressed_error(of_both, model, LIFT_FEATURES)
        del predicted, of_both
    trends = (octave_gain, octave_explains, concentration)
    statistics = _component_statistics(model, scene, left_out, spread.diagonal(), *trends, lift_explains)
    fine_distance = details.fine_msi.square().sum(0)
    predictions = Predictions(
        scene_msi=slopes_msi,
        scene=slopes,
        scene_loose=slopes_loose,
        fuse=scene.slopes_fuse,
        local=local,
        local_msi=local_msi,
        msi_residual=gain,
        msi_left=msi_residual,
        lift=lifted,
        regressors=scene.fine,
        familiarity=None if network.training else 1 / (1 + (fine_distance / UNFAMILIAR_DISTANCE) ** 2),
        statistics=statistics.stacked().to(seen),
        has_detail=4 * statistics.share_of_detail > math.log10(SMALLEST_SHARE),
        left_out_error=float((left_out[2, : len(details.detail)] * 10**statistics.fine_over_coarse).sum()),
        numbers=numbers,
    )
    return model, details, predictions


@dataclass(frozen=True)
class Predictions:
    """Eight predictions of the components' detail, in the order of `models.prior.Prediction`, and their context.

    The first four are linear in the regressors: they are kept as slopes (p, B), because weighted slopes can be added
    before the one product with the regressors. `msi_residual` is linear in what is left of the msi; the others are
    images (p, H, W).
    """

    scene_msi: Tensor
    scene: Tensor
    scene_loose: Tensor
    fuse: Tensor
    local: Tensor
    local_msi: Tensor
    msi_residual: Tensor  # (p, M)
    lift: Tensor
    msi_left: Tensor  # (M, H, W), what scene and local leave of the msi
    regressors: Tensor  # (B, H, W)
    familiarity: Tensor | None  # (H, W), from 1 (like most of the scene) to 0 (an outlier); None in training
    statistics: Tensor  # (p, 21), `ComponentStatistics`
    has_detail: Tensor  # (p,), false for components whose statistics are those of rounding errors
    left_out_error: float  # energy of the error on coarse pixels left out of the regression, as if on fine ones
    numbers: Tensor  # (5,) about the scene

    def weighted(self, gains: Gains) -> Tensor:
        """Step 5: the sum (p, H, W) of all predictions with these gains."""
        by_smoothing = gains.familiar.T.reshape(SMOOTHINGS, PREDICTIONS, -1)
        if self.familiarity is not None and compiled.can_compute(self.regressors, self.local, gains.familiar):
            by_level = torch.cat([by_smoothing, gains.unfamiliar.T[None]])
            mixing = torch.cat(
                [self._slopes(by_level), by_level[:, Prediction.MSI_RESIDUAL, :, None] * self.msi_residual], -1
            )
            weights = by_level[:, [Prediction.LOCAL, Prediction.LOCAL_MSI, Prediction.LIFT]].mT
            planes, images = (*self.regressors, *self.msi_left), (self.local, self.local_msi, self.lift)
            return compiled.weighted_sum(planes, images, mixing, weights, self.familiarity)
        plain, once, twice = (self._sum(of_all) for of_all in by_smoothing)
        familiar = plain.add_(smoothed(once.add_(smoothed(twice))))
        if self.familiarity is None:
            return familiar
        return torch.lerp(self._sum(gains.unfamiliar.T), familiar, self.familiarity)

    def _sum(self, gains: Tensor) -> Tensor:
        """(p, H, W), from gains (8, p)."""
        local, local_msi, msi_residual, lift = gains[Prediction.LOCAL :, :, None, None]
        image = mix_bands(self._slopes(gains), self.regressors).addcmul_(local, self.local)
        image = image.addcmul_(local_msi, self.local_msi).addcmul_(msi_residual, self._msi_residual)
        return image.addcmul_(lift, self.lift)

    def _slopes(self, gains: Tensor) -> Tensor:
        """(..., p, B), from gains (..., 8, p)."""
        linear = torch.stack([self.scene_msi, self.scene, self.scene_loose, self.fuse])
        return (gains[..., : Prediction.LOCAL, :, None] * linear).sum(-3)

    @cached_property
    def _msi_residual(self) -> Tensor:
        """(p, H, W)"""
        return mix_bands(self.msi_residual, self.msi_left)

    def disagreement(self) -> Tensor:
        """(p, H, W): what features change in the predictions of the scene's and of a pixel's own slopes."""
        return mix_bands(self.scene - self.scene_msi, self.regressors) + self.local - self.local_msi

    def as_images(self) -> list[Tensor]:
        """The images (p, H, W) whose sum, weighted by all gains (those of familiar pixels first), is `weighted`."""
        if self.familiarity is None:
            raise ValueError("predictions of a network in training; expected one in evaluation mode")
        linear = (self.scene_msi, self.scene, self.scene_loose, self.fuse)
        of_scene = (mix_bands(slopes, self.regressors) for slopes in linear)
        plain = [*of_scene, self.local, self.local_msi, self._msi_residual, self.lift]
        once = [smoothed(image) for image in plain]
        familiar = [*plain, *once, *(smoothed(image) for image in once)]
        return [*(self.familiarity * image for image in familiar), *((1 - self.familiarity) * image for image in plain)]


@dataclass(frozen=True)
class ComponentStatistics:
    """How well slopes do on the coarse grid, one number per component (p,), in the order that the weights expect.

    Ratios are of energies; "log" is to base 10; "unseen" is measured on coarse pixels left out of the regression.
    """

    scene_explains: Tensor  # share of the detail that the scene's slopes explain
    local_explains: Tensor  # share of the rest that local slopes explain of unseen pixels
    local_gain: Tensor  # best factor for the local prediction of unseen pixels
    local_strength: Tensor  # log of the local prediction over what the scene's slopes leave
    scene_gain: Tensor  # best factor for the scene's prediction
    fine_over_coarse: Tensor  # log of the scene's prediction on the fine grid over that on the coarse one
    signal_to_error: Tensor  # log of both predictions over the error on unseen pixels
    noise: Tensor  # log of the hsi's noise over the detail, / 3
    share_of_detail: Tensor  # log of the component's detail over that of all, / 4
    detail_over_variance: Tensor  # log of the detail over the variance of the component itself, / 2
    octave_gain: Tensor  # best factor for slopes fitted one octave coarser
    octave_explains: Tensor  # share of the detail that those explain
    rank: Tensor  # of the component, / 12 - 1
    is_first: Tensor
    is_second: Tensor
    features_help: Tensor  # log of the error without features over that with them, on unseen pixels
    features_help_overall: Tensor  # the same for all components together
    concentration: Tensor  # log10(kurtosis + 1) of the msi's detail: how far it is that of a few places
    fuse_explains: Tensor  # share of the detail that FUSE's gain explains
    fuse_gain: Tensor  # best factor for it
    lift_explains: Tensor  # share of unseen pixels' error after both slopes that random features explain

    def stacked(self) -> Tensor:
        """(p, 21)"""
        return torch.stack([value.expand(len(self.rank)) for value in vars(self).values()], dim=1)


def _component_statistics(
    model: PairModel,
    scene: _SceneSlopes,
    left_out: Tensor,
    variance: Tensor,
    octave_gain: Tensor,
    octave_explains: Tensor,
    concentration: Tensor,
    lift_explains: Tensor,
) -> ComponentStatistics:
    with torch.no_grad():  # nothing is learned through them
        slopes, count = scene.slopes, len(scene.coarse)
        spread, crossed = scene.moments[:count, :count], scene.moments[:count, count:]
        total = scene.moments[count:, count:].diagonal()
        by_scene = ((slopes @ spread) * slopes).sum(1)
        with_detail = (slopes * crossed.T).sum(1)
        fine_by_scene = ((slopes @ scene.fine_spread) * slopes).sum(1)
        left = (total - 2 * with_detail + by_scene).clamp_min(1e-30)
        by_fuse = ((scene.slopes_fuse @ spread) * scene.slopes_fuse).sum(1)
        fuse_with_detail = (scene.slopes_fuse * crossed.T).sum(1)
        left_by_fuse = total - 2 * fuse_with_detail + by_fuse
        (predicted, agreeing, error), error_msi = left_out[:, : len(total)], left_out[2, len(total) :]
        rank = torch.arange(len(total), dtype=torch.float64)
        return ComponentStatistics(
            scene_explains=1 - _ratio(left, total),
            local_explains=(1 - _ratio(error, left)).clamp(-2, 1),
            local_gain=_ratio(agreeing, predicted).clamp(-1, 3),
            local_strength=_log(_ratio(predicted, left)),
            scene_gain=_ratio(with_detail, by_scene).clamp(-1, 3),
            fine_over_coarse=_log(_ratio(fine_by_scene, by_scene)),
            signal_to_error=_log(_ratio((by_scene + predicted), error)),
            noise=_log(_ratio(model.hsi_noise.diagonal(), total)).clamp(-6, 3) / 3,
            share_of_detail=_log(total / total.sum().clamp_min(1e-30)) / 4,
            detail_over_variance=_log(_ratio(total, variance)) / 2,
            octave_gain=octave_gain,
            octave_explains=octave_explains,
            rank=rank / 12 - 1,
            is_first=(rank == 0).double(),
            is_second=(rank == 1).double(),
            features_help=_log(_ratio(error_msi, error)),
            features_help_overall=_log(_ratio(error_msi.sum(), error.sum())),
            concentration=concentration,
            fuse_explains=(1 - _ratio(left_by_fuse, total)).clamp(-2, 1),
            fuse_gain=_ratio(fuse_with_detail, by_fuse).clamp(-1, 3),
            lift_explains=lift_explains.clamp(-1, 1),
        )


@dataclass(frozen=True)
class _SceneSlopes:
    """Detail of the regressors on both grids, and the scene's slopes on them (step 2)."""

    slopes_msi: Tensor  # (p, B), 0 for features
    slopes: Tensor  # (p, B)
    slopes_loose: Tensor  # (p, B)
    slopes_fuse: Tensor  # (p, B), 0 for features
    coarse: Tensor  # (B, h, w)
    fine: Tensor  # (B, H, W), each in a unit of its own
    units: Tensor  # (B,), factors that bring fine ones to the units of coarse ones
    moments: Tensor  # (B + p, B + p) of coarse regressors and detail
    fine_spread: Tensor  # (B, B)
    local_ridge: Tensor  # of a pixel's own slopes
    embedding: Tensor  # (E, h, w), blurred to the hsi's resolution
    log_weight: Tensor  # (1, h, w)


def _fit_scene_slopes(
    model: PairModel, details: Details, guide: Guide, network: PriorNetwork
) -> SceneComputation[_SceneSlopes]:
    embedding, features, log_weight = guide.parts(model.operator.apply(guide.seen))
    interpolated = model.upsample(features)
    coarse = torch.cat([details.msi_detail, features - model.operator.apply(interpolated)])
    fine = torch.cat([details.fine_msi_detail, guide.features - interpolated])
    moments, fine_spread = yield from in_one_pass(
        scene_covariance(lambda: model.window.coarse(torch.cat([coarse, details.detail]))),
        scene_covariance(lambda: model.window.every_second_counted(fine)),
    )
    bands, count, regressors = len(details.msi_detail), len(features), len(coarse)
    variances = moments.diagonal()[bands:regressors].clamp_min(0)
    sizes = network.feature_size.exp().double() / (math.sqrt(count) * ((variances + 1e-12).sqrt() + 1e-3))
    units = torch.cat([torch.ones(bands, dtype=torch.float64), sizes])
    all_units = torch.cat([units, torch.ones(len(details.detail), dtype=torch.float64)])
    moments = all_units[:, None] * moments * all_units
    scene_ridge, local_ridge = network.feature_ridges.exp().double() * (FEATURE_RIDGE * details.few / count)
    spread, crossed = moments[:regressors, :regressors], moments[:regressors, regressors:]
    on_msi = torch.linalg.solve(diagonally_loaded(spread[:bands, :bands] + details.noise, 1e-6), crossed[:bands])
    on_all = [
        torch.linalg.solve(diagonally_loaded(spread + _block_ridge(details.noise, ridge, count), 1e-6), crossed)
        for ridge in (scene_ridge, scene_ridge * LOOSE_RIDGE)
    ]
    return _SceneSlopes(
        slopes_msi=pad(on_msi, (0, 0, 0, count)).T,
        slopes=on_all[0].T,
        slopes_loose=on_all[1].T,
        slopes_fuse=pad(_fuse_gain(model, moments[regressors:, regressors:]) / details.unit, (0, count)),
        coarse=coarse * units[:, None, None].to(coarse),
        fine=fine,
        units=units,
        moments=moments,
        fine_spread=units[:, None] * fine_spread * units,
        local_ridge=_block_ridge(details.ridge, local_ridge, network.config.features).to(coarse),
        embedding=embedding,
        log_weight=log_weight,
    )


def _block_ridge(msi_ridge: Tensor, ridge: Tensor, count: int) -> Tensor:
    """A block diagonal matrix: (M, M) for the msi bands, a multiple of the identity for `count` features."""
    diagonal = torch.cat([torch.zeros(len(msi_ridge), dtype=torch.float64), ridge.expand(count)]).diag()
    return pad(msi_ridge, (0, count, 0, count)) + diagonal


@torch.no_grad()
def _wiener_gain(model: PairModel, scene: _SceneSlopes) -> tuple[Tensor, Tensor]:
    """K (p, M), by which components follow the msi residual, and the residual's standard deviation (M,)."""
    count, seen = len(scene.coarse), model.msi_from_components.double()
    # The prediction's error: part of the detail, and the noise that interpolation takes over from the hsi.
    error = UNEXPLAINED_DETAIL * scene.moments[count:, count:] + model.hsi_noise
    spread = diagonally_loaded(seen @ error @ seen.T + model.msi_noise, 1e-9)
    return torch.linalg.solve(spread, seen @ error).T, spread.diagonal().sqrt()


@torch.no_grad()
def _fuse_gain(model: PairModel, detail: Tensor) -> Tensor:
    """(p, M): FUSE's correction by the msi, whose prior is the covariance (p, p) of the detail times PRIOR_GAIN."""
    seen, prior = model.msi_from_components.double(), PRIOR_GAIN * diagonally_loaded(detail, 1e-8)
    spread = diagonally_loaded(seen @ prior @ seen.T + model.msi_noise, 1e-13)
    gain: Tensor = torch.linalg.solve(spread, seen @ prior).T
    return gain


def _without_unknown_offset(model: PairModel) -> SceneComputation[PairModel]:
    level, spread = yield from scene_moments(model.window.counted(model.msi))
    off = level.abs() > LARGEST_OFFSET * spread.diagonal().sqrt()
    if not bool(off.any()):
        return model
    return replace(model, msi=model.msi - torch.where(off, level, 0.0)[:, None, None].to(model.msi))


def _network_channels(details: Details, most: int) -> Tensor:
    """What the network looks at (2 k, H, W): at most `most` principal components of the msi, and their detail."""
    variances, axes = torch.linalg.eigh(details.msi_spread)
    axes, deviations = axes.flip(1)[:, :most], variances.flip(0)[:most].clamp_min(0).sqrt()
    # The sign of an eigenvector is arbitrary: brighter is positive.
    axes = axes * torch.where(axes.sum(0) < 0, -1.0, 1.0)
    # Halfway between one unit for all components and one for each.
    units = (deviations[0] * deviations.maximum(1e-3 * deviations[0])).sqrt().clamp_min(1e-12)
    channels = [mix_bands((axes / units).T, details.fine_msi), mix_bands(0.3 * axes.T, details.fine_msi_detail)]
    return torch.cat(channels).clamp_(-LARGEST_CHANNEL, LARGEST_CHANNEL)


def _scene_numbers(model: PairModel, details: Details) -> Tensor:
    """(5,) about the scene, each about 0: scale, noise of the hsi and of the msi over their detail, pixels, bands."""
    smallest, largest = SCALE_RANGE
    scale = model.observation.scale
    patch = LARGEST_PATCH / math.prod(min(largest, each) for each in scale)
    bands = len(model.msi)
    energy = float(details.moments[bands:, bands:].trace())
    numbers = [
        math.log2(min(largest, max(smallest, sum(scale) / 2))) / 3 - 0.7,
        math.log10(math.sqrt(float(model.hsi_noise.trace()) / max(1e-30, energy)) + 1e-3),
        math.log10(math.sqrt(float(model.msi_noise.trace())) * details.unit + 1e-3),
        math.log10(min(LARGEST_SCENE, patch, details.pixels)) - 2.5,
        min(MOST_MSI_BANDS, bands) / 8 - 0.5,
    ]
    return torch.tensor(numbers, dtype=torch.float32)


def _concentration(model: PairModel, seen: Tensor) -> SceneComputation[Tensor]:
    """log10(kurtosis + 1) of coarse msi detail: 0.3 where all places are alike, larger where few have most of it."""

    def part() -> tuple[Tensor, int]:
        detail = model.window.coarse(seen - model.operator.apply(model.upsample(seen)))
        strength = detail.double().square().sum(0)
        return torch.stack([strength.mean(), strength.square().mean()]), strength.numel()

    mean, of_squares = yield from scene_mean(part)
    return torch.log10(of_squares / mean.square().clamp_min(1e-30) + 1.0)


def _octave_trend(window: Window, coefficients: Tensor, msi: Tensor) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Test slopes fitted one octave coarser: the best factor for them (p,), and the share that they explain (p,)."""
    bands = len(msi)

    def part() -> list[tuple[Tensor, int]]:
        details = _octave_details(torch.cat([msi, coefficients]), window.coarse_core)
        return [(covariance(detail), detail[0].numel()) for detail in details]

    def combine(parts: list[list[tuple[Tensor, int]]]) -> list[Tensor]:
        return [pooled_mean(list(of_windows)) for of_windows in zip(*parts, strict=True)]

    fine, coarse = yield from scene_statistic(part, combine)
    slopes = torch.linalg.solve(diagonally_loaded(coarse[:bands, :bands], 1e-3), coarse[:bands, bands:]).T
    predicted = ((slopes @ fine[:bands, :bands]) * slopes).sum(1)
    agreeing = (slopes * fine[:bands, bands:].T).sum(1)
    total = fine[bands:, bands:].diagonal()
    explained = 1 - _ratio(total - 2 * agreeing + predicted, total)
    return _ratio(agreeing, predicted).clamp(-1, 3), explained.clamp(-2, 1)


def _octave_details(image: Tensor, core: Place) -> tuple[Tensor, Tensor]:
    """The detail that half the resolution loses of the core of an image, and that a quarter loses of the half."""
    bounds = [axis.indices(length)[:2] for axis, length in zip(core, image.shape[1:], strict=True)]
    # From an even pixel on, as every window begins.
    rows, columns = (slice(max(0, start - OCTAVE_HALO) // 2 * 2, stop + OCTAVE_HALO) for start, stop in bounds)
    image = image[:, rows, columns]
    size = (image.shape[1], image.shape[2])
    half = (math.ceil(size[0] / 2), math.ceil(size[1] / 2))
    operator = SpatialOperator.from_psf(size, half, (2.0, 2.0), (sigma_from_fwhm(2.0),) * 2)
    coarse = operator.apply(image)
    interpolated = upsample_bicubic(coarse, size, Placement.from_scale((2.0, 2.0)))
    inner = [
        (start - part.start, stop - part.start) for (start, stop), part in zip(bounds, (rows, columns), strict=True)
    ]
    own = [slice(start, stop) for start, stop in inner]
    own_half = [slice(math.ceil(start / 2), math.ceil(stop / 2)) for start, stop in inner]
    return (image - interpolated)[:, *own], (coarse - operator.apply(interpolated))[:, *own_half]


@torch.no_grad()
def _left_out_moments(regression: LocalRegression, window: Window, scene_pixels: int) -> tuple[Tensor, int]:
    """(3, 2 p): second moments of the prediction of left-out coarse pixels, of it with the truth, and of its error."""
    core = zip(window.coarse_core, window.coarse_size, strict=True)
    (top, bottom), (left, right) = (part.indices(size)[:2] for part, size in core)
    step = max(1, math.isqrt(scene_pixels // LEFT_OUT_PIXELS))
    predicted = regression.predict_left_out(range(top, bottom, step), range(left, right, step)).double()
    truth = regression.outputs[:, top:bottom:step, left:right:step].double()
    means = torch.stack([predicted.square(), predicted * truth, (truth - predicted).square()]).mean((2, 3))
    return means, truth[0].numel()


def _ratio(one: Tensor, other: Tensor) -> Tensor:
    return one / (other + 1e-20)


def _log(ratio: Tensor) -> Tensor:
    return ratio.clamp_min(SMALLEST_RATIO).log10()


def smoothed(image: Tensor) -> Tensor:
    """Filter (p, H, W) by (1, 2, 1) / 4 along both axes, the edge repeated. Additions are faster than a convolution."""
    rows = pad(image[None], (1, 1, 1, 1), mode="replicate")[0] / 16
    for axis in (1, 1, 2, 2):
        size = rows.shape[axis] - 1
        rows = rows.narrow(axis, 0, size) + rows.narrow(axis, 1, size)
    return rows


def expected_error(window: Window) -> SceneComputation[FusedCore]:
    """Expected error of `universal`: a standard deviation for every pixel and band of the core, in the hsi's unit.

    Its level follows from how far predictions differ and how much detail they add; it is larger where more detail was
    added, where they differ, where the hsi or the msi is left unexplained, and in bright places. docs/model_card.md
    shows how well that holds on sensors that it was not fitted on.
    """
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from interpolation_error(window))
    return (yield from _error_of_prediction(*(yield from guided_prior(window, shipped_network()))))


def universal_with_error(window: Window) -> SceneComputation[tuple[Tensor, Tensor]]:
    """`universal` and its `expected_error`, in little more than the time of one."""
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        fused, error = (yield from fuse(window)), (yield from interpolation_error(window))
    else:
        model, mean, prior, predictions = yield from guided_prior(window, shipped_network())
        error = yield from _error_of_prediction(model, mean, prior, predictions)
        fused = model.image(condition_on_hsi(mean, prior, model))
    return fused(EVERYWHERE), error(EVERYWHERE)


def _error_of_prediction(
    model: PairModel, mean: Tensor, prior: Tensor, predictions: Predictions
) -> SceneComputation[FusedCore]:
    detail = mean - model.upsample(model.operator.apply(mean))
    maps = {name: model.window.fine(image) for name, image in error_maps(model, mean, detail, predictions).items()}
    *averages, detail_spread = yield from in_one_pass(
        *(_scene_average(image) for image in maps.values()), scene_covariance(lambda: model.window.fine(detail))
    )
    pattern = torch.ones_like(maps["detail"])
    for (name, image), average in zip(maps.items(), averages, strict=True):
        pattern *= (image / average).clamp_min(SMALLEST_IN_MAP) ** MAP_POWERS[name]
    pattern /= yield from _scene_average(pattern)

    of_maps = {name: float(average) for name, average in zip(maps, averages, strict=True)}
    energies = error_energies(model, predictions, of_maps)
    of_all_bands = ERROR_LEVEL * math.prod(energies[name] ** power for name, power in LEVEL_POWERS.items())
    by_prior, by_detail = (_band_variances(spread, model) for spread in (prior, detail_spread))
    shares = by_prior / by_prior.mean().clamp_min(1e-30) + by_detail / by_detail.mean().clamp_min(1e-30)
    by_band = (of_all_bands / len(model.basis) * shares / 2).to(pattern)
    weight = model.window.msi_weight
    not_used = None if weight is None else 1 - model.window.fine(weight).nan_to_num(0.0)

    def deviation(part: Place) -> Tensor:
        variances = by_band * pattern[part]
        if not_used is not None:
            # There the hsi is interpolated, and the detail of such a scene is missing.
            variances += by_detail * not_used[part]
        deviations: Tensor = variances.clamp_min_(0).sqrt_()
        return deviations

    return deviation


def error_maps(model: PairModel, mean: Tensor, detail: Tensor, predictions: Predictions) -> dict[str, Tensor]:
    """Maps (H, W) of energies that are larger where the error is."""
    residual = model.msi - mix_bands(model.msi_from_components, mean)
    # The basis is orthonormal, so the energy of all bands is that of the components and of the mean spectrum.
    level = (model.basis.T @ model.mean)[:, None, None].to(mean)
    of_mean = (model.mean.square().sum() - level.square().sum()).clamp_min(0).to(mean)
    return {
        "detail": _energy(detail),
        "unexplained": _unexplained_energy(model, mean),
        "msi_residual": _energy(residual),
        "brightness": (mean + level).square().sum(0) + of_mean,
        "disagreement": _energy(predictions.disagreement()),
        "local": _energy(predictions.local),
        "roughness": _energy(mean - smoothed(mean)),
    }


def error_energies(model: PairModel, predictions: Predictions, of_maps: dict[str, float]) -> dict[str, float]:
    """Energies of the scene that tell how large the error is, all bands together."""
    return {
        "detail": of_maps["detail"],
        "disagreement": of_maps["disagreement"],
        "noise": model.noise_gain * max(1e-30, float(model.hsi_noise.trace())),
        "left_out": max(1e-30, predictions.left_out_error),
    }


def _energy(images: Tensor) -> Tensor:
    """(H, W) of (k, H, W), smoothed."""
    return smoothed(images.square().sum(0, keepdim=True))[0].clamp_min_(0)


def interpolation_error(window: Window) -> SceneComputation[FusedCore]:
    """Expected error of interpolation, for want of an msi or of pixels: the spread of the detail that it loses."""
    model = yield from model_pair(window)
    detail = model.coefficients - model.operator.apply(model.upsample(model.coefficients))
    spread = yield from scene_covariance(lambda: model.window.coarse(detail))
    deviations = _band_variances(spread, model).clamp_min(0).sqrt()
    return in_parts(deviations.expand(-1, *model.window.fine(model.msi).shape[1:]))


def _unexplained_energy(model: PairModel, mean: Tensor) -> Tensor:
    """(H, W): the energy that a prediction leaves of the hsi, around every pixel."""
    left = (model.coefficients - model.operator.apply(mean)).square().sum(0, keepdim=True)
    around = avg_pool2d(pad(left[None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[0]
    return model.upsample(around)[0].clamp_min(0)


def _band_variances(spread: Tensor, model: PairModel) -> Tensor:
    """(C, 1, 1), where the components have this covariance."""
    variances = ((model.basis @ spread) * model.basis).sum(1)
    return variances[:, None, None].to(model.msi)


def _scene_average(image: Tensor) -> SceneComputation[Tensor]:
    mean = yield from scene_mean(lambda: (image.double().mean(), image.numel()))
    return mean.clamp_min(1e-30).to(image)
