"""FUSE, local FUSE, and the nonlinear lift: Gaussian posteriors in the subspace of the hsi.

Shapes: C bands, M msi bands, p components, D features, h w coarse, H W fine.

FUSE [1]_ is the maximum a posteriori estimate with one prior covariance for the whole scene, solved exactly for any
scale and border. Local FUSE (this project, docs/methods.md) regresses a prior mean for every pixel. The lift adds to
FUSE what random features of the msi [2]_ explain of its error. Mixing happens in spectra, not in features: x = W phi(z)
on the fine grid means y = W A phi(z) on the coarse one, so W is fitted to blurred features and applied to fine ones.

All of them take noise off the hsi's components first, with the help of the msi, before anything is interpolated.

References
----------
.. [1] Q. Wei, N. Dobigeon and J.-Y. Tourneret, "Fast fusion of multi-band images based on solving a Sylvester
   equation", IEEE Trans. Image Processing 24(11), 2015.
.. [2] A. Rahimi and B. Recht, "Random features for large-scale kernel machines", NIPS 2007.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from hyperfuse.methods.local_regression import MSI_DISTANCE, LocalRegression, find_details
from hyperfuse.methods.pair_model import (
    PairModel,
    condition_on_hsi,
    condition_on_msi,
    conditioning_halo,
    denoised,
    diagonally_loaded,
    model_pair,
    prior_from_error,
    scene_covariance,
)
from hyperfuse.methods.window import (
    FusedCore,
    SceneComputation,
    Window,
    scene_count,
    scene_moments,
    scene_range,
    scene_statistic,
)
from hyperfuse.physics.observation import mix_bands

PRIOR_GAIN = 16.0  # prior covariance of fine detail over the covariance of the detail that the coarse grid shows
FEWEST_PIXELS = 25  # with fewer coarse pixels every neighbourhood is the whole scene, and FUSE takes over
MOST_FEATURES = 240
PIXELS_PER_FEATURE = 3  # coarse pixels behind each feature, or more
MOST_FITTED = 20_000  # coarse pixels are enough for all of them
BANDWIDTHS = (1.0, 3.0)  # of the random cosines, in standard deviations of the whitened msi
RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FEATURES_AT_ONCE = 24


def fuse(window: Window) -> SceneComputation[FusedCore]:
    """FUSE: the interpolated hsi is the prior mean, and both images correct it."""
    model, mean, posterior = yield from scene_posterior((yield from model_pair(window)))
    return model.image(condition_on_hsi(mean, posterior, model))


def scene_posterior(model: PairModel) -> SceneComputation[tuple[PairModel, Tensor, Tensor]]:
    """Mean (p, H, W) and covariance (p, p) given the msi, before the hsi; and the model near the core."""
    model, coefficients, _ = yield from denoised(model, conditioning_halo(model.observation))
    interpolated = model.upsample(coefficients)
    detail = coefficients - model.operator.apply(interpolated)
    spread = yield from scene_covariance(lambda: model.window.coarse(detail))
    mean, posterior = condition_on_msi(interpolated, diagonally_loaded(PRIOR_GAIN * spread, 1e-8), model)
    return model, mean, diagonally_loaded(posterior)


def local_fuse(window: Window) -> SceneComputation[FusedCore]:
    """Local FUSE: a prior mean for every pixel, regressed on the msi over a neighbourhood that follows the image.

    The prior covariance is read from what the mean leaves of the hsi beyond noise; the hsi then corrects it exactly.
    """
    if (yield from scene_count(window.coarse_pixels)) < FEWEST_PIXELS:
        return (yield from fuse(window))
    model = yield from model_pair(window)
    model, coefficients, seen = yield from denoised(model, conditioning_halo(model.observation))
    details = yield from find_details(model, coefficients, seen)
    bands = len(seen)
    spread, crossed = details.moments[:bands, :bands], details.moments[:bands, bands:]
    slopes = torch.linalg.solve(diagonally_loaded(spread + details.noise, 1e-6), crossed).T
    regression = LocalRegression(
        keys=details.msi / MSI_DISTANCE,
        log_weight=torch.zeros_like(seen[:1]),
        inputs=details.msi_detail,
        outputs=details.detail - mix_bands(slopes, details.msi_detail),
        ridge=details.ridge.to(seen),
        inputs_of=(bands,),
    )
    pixels = [details.fine_msi / MSI_DISTANCE, seen.new_zeros(2, *model.fine_size), details.fine_msi_detail]
    mean = details.interpolated.add_(regression.predict(pixels, model.observation.placement))
    mean.add_(mix_bands(slopes, details.fine_msi_detail))
    prior = yield from prior_from_error(mean, model)
    return model.image(condition_on_hsi(mean, prior, model))


def lift(window: Window) -> SceneComputation[FusedCore]:
    """FUSE plus a ridge regression of its error on random cosine features of the msi."""
    model, mean, _ = yield from scene_posterior((yield from model_pair(window)))
    error, _ = yield from regressed_error(partial(left_of_hsi, mean, model), model, MOST_FEATURES)
    mean = mean + error
    prior = yield from prior_from_error(mean, model)
    return model.image(condition_on_hsi(mean, prior, model))


def left_of_hsi(mean: Tensor, model: PairModel) -> Tensor:
    """(p, h, w): what a mean (p, H, W) leaves of the hsi."""
    return model.coefficients - model.operator.apply(mean)


def regressed_error(
    coarse_error: Callable[[], Tensor], model: PairModel, most_features: int
) -> SceneComputation[tuple[Tensor, Tensor]]:
    """What random features of the msi tell of the error of a mean, given what it leaves of the hsi (p, h, w): an image
    (p, H, W) to add to the mean, and the share (p,) that it explains of the error on left-out coarse pixels.
    """
    whitening = yield from _msi_whitening(model)
    white = mix_bands(whitening, model.msi)
    # A nonlinear fit cannot extrapolate: fine values outside the range of the coarse ones are clamped to it.
    smallest, largest = yield from scene_range(lambda: model.window.coarse(model.operator.apply(white)))
    white = white.clamp(smallest[:, None, None], largest[:, None, None])
    pixels = yield from scene_count(model.window.coarse_pixels)
    directions, phases = _random_features(len(white), min(most_features, pixels // PIXELS_PER_FEATURE))
    if len(directions) == 0:
        count = len(model.coefficients)
        return model.msi.new_zeros(count, *model.fine_size), torch.zeros(count, dtype=torch.float64)

    every, in_core = math.ceil(pixels / MOST_FITTED), model.window.coarse

    def blurred_features_and_error() -> tuple[Tensor, Tensor]:
        maps = [in_core(model.operator.apply(part)) for part in _feature_maps(white, directions, phases)]
        features, errors = (
            image.flatten(1)[:, ::every].double() for image in (torch.cat(maps), in_core(coarse_error()))
        )
        return features, errors

    weights, constant, explained = yield from scene_statistic(blurred_features_and_error, _fit_weights)
    regressed = constant.to(white)[:, None, None].repeat(1, *model.fine_size)
    for index, part in enumerate(_feature_maps(white, directions, phases)):
        first = index * FEATURES_AT_ONCE
        regressed += mix_bands(weights[:, first : first + len(part)], part)
    return regressed, explained


def _msi_whitening(model: PairModel) -> SceneComputation[Tensor]:
    """(K, M): the msi's principal axes, each scaled to unit variance, without those that are noise."""
    _, spread = yield from scene_moments(model.window.counted(model.msi))
    variances, axes = torch.linalg.eigh(spread)
    noise = (axes.T @ model.msi_noise @ axes).diagonal()
    kept = variances > torch.maximum(4 * noise, 1e-8 * variances[-1])
    kept[-1] = True
    whitening: Tensor = (axes[:, kept] / variances[kept].clamp_min(1e-30).sqrt()).T
    return whitening


def _random_features(inputs: int, count: int) -> tuple[Tensor, Tensor]:
    """Directions (D, inputs) and phases (D,), the same in every run."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(count, inputs, generator=generator)
    width = torch.tensor(BANDWIDTHS).repeat(math.ceil(count / len(BANDWIDTHS)))[:count]
    return directions / width[:, None] / math.sqrt(inputs), 2 * math.pi * torch.rand(count, generator=generator)


def _feature_maps(white: Tensor, directions: Tensor, phases: Tensor) -> Iterator[Tensor]:
    """cos(direction . z + phase), some at a time: all of a large scene would not fit into memory."""
    for start in range(0, len(directions), FEATURES_AT_ONCE):
        part = slice(start, start + FEATURES_AT_ONCE)
        yield mix_bands(directions[part], white).add_(phases[part][:, None, None].to(white)).cos_()


def _fit_weights(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (p, D) and constants (p,) that predict targets (p, n) from features (D, n), and the share (p,) that they
    explain of left-out targets.

    Ridge regression; each target takes the ridge with the least leave-one-out error.
    """
    features, targets = (torch.cat(values, dim=1) for values in zip(*parts, strict=True))
    level, target_level = features.mean(1, keepdim=True), targets.mean(1, keepdim=True)
    features, targets = features - level, targets - target_level
    values, axes = torch.linalg.eigh(features @ features.T)
    values = values.clamp_min(1e-12 * float(values[-1]) + 1e-300)
    rotated = axes.T @ features
    crossed = rotated @ targets.T  # (D, p)
    leverage_of_axis = rotated.square() / values[:, None]
    errors, candidates = [], []
    for ridge in RIDGES:
        shrink = values / (values + ridge * values.mean())
        rotated_weights = (crossed * (shrink / values)[:, None]).T
        leverage = (leverage_of_axis * shrink[:, None]).sum(0) + 1 / features.shape[1]
        errors.append(((targets - rotated_weights @ rotated) / (1 - leverage).clamp_min(0.02)).square().mean(1))
        candidates.append(rotated_weights)
    least, best = torch.stack(errors).min(0)
    explained = 1 - least / targets.square().mean(1).clamp_min(1e-30)
    weights = torch.stack(candidates)[best, torch.arange(len(targets))] @ axes.T
    return weights, (target_level - weights @ level)[:, 0], explained
