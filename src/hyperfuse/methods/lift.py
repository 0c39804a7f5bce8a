"""A nonlinear lift: what FUSE leaves unexplained, as a ridge regression on random features of the msi.

Shapes: M msi bands, p components, D features, h w coarse, H W fine.

Mixing happens in spectra, not in features: x = W phi(msi) on the fine grid means hsi = W A phi(msi) on the coarse one,
so W is learned from blurred features and applied to fine ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hyperfuse.methods.fuse import scene_posterior
from hyperfuse.methods.pair_model import PairModel, condition_on_hsi, model_pair, prior_from_error
from hyperfuse.methods.scene_stats import SceneComputation, scene_count, scene_moments, scene_range, scene_statistic
from hyperfuse.methods.window import Window
from hyperfuse.physics.operators import mix_bands

MOST_FEATURES = 240
PIXELS_PER_FEATURE = 3  # coarse pixels that stand behind each feature
BANDWIDTHS = (1.0, 3.0)  # of the random cosines, in standard deviations of the whitened msi
RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
CHUNK = 24


def nonlinear_lift(window: Window) -> SceneComputation[Tensor]:
    """Random cosine features of every msi pixel (Rahimi and Recht 2007), regressed on the hsi, then made consistent
    with it.
    """
    model, mean = yield from lifted_components((yield from model_pair(window)))
    prior = yield from prior_from_error(mean, model)
    return model.image(condition_on_hsi(mean, prior, model))


def lifted_components(model: PairModel) -> SceneComputation[tuple[PairModel, Tensor]]:
    """(p, H, W), and the model near the core to which it belongs."""
    model, mean, _ = yield from scene_posterior(model)
    whitening = yield from _whitening(model)
    white = yield from _within_what_was_seen(mix_bands(whitening, model.msi), model)
    pixels = yield from scene_count(model.window.coarse_pixels)
    directions, phases = _random_features(len(white), min(MOST_FEATURES, pixels // PIXELS_PER_FEATURE))
    if len(directions) == 0:
        return model, mean

    def learning_pixels() -> tuple[Tensor, Tensor]:
        target = model.window.coarse(model.coefficients - model.operator.apply(mean))
        maps = [model.window.coarse(model.operator.apply(part)) for part in _feature_maps(white, directions, phases)]
        return torch.cat(maps).flatten(1).double(), target.flatten(1).double()

    weights, constant = yield from scene_statistic(learning_pixels, _weights)
    mean = mean + constant.to(mean)[:, None, None]
    for index, part in enumerate(_feature_maps(white, directions, phases)):
        mean += mix_bands(weights[:, index * CHUNK : index * CHUNK + len(part)], part)
    return model, mean


def _weights(shares: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """What features (D, n) must be multiplied by to give targets (p, n), and a constant: (p, D) and (p,)."""
    inputs, targets = (torch.cat(parts, dim=1) for parts in zip(*shares, strict=True))
    level = inputs.mean(1, keepdim=True)
    weights = _ridge_by_leaving_out(inputs - level, targets)
    return weights, targets.mean(1) - (weights @ level)[:, 0]


def _whitening(model: PairModel) -> SceneComputation[Tensor]:
    """(K, M): the msi's principal axes, each to unit variance, without axes that are noise."""
    _, spread = yield from scene_moments(model.window.fine(model.msi))
    variances, axes = torch.linalg.eigh(spread)
    noise = (axes.T @ model.msi_noise @ axes).diagonal()
    kept = variances > torch.maximum(4 * noise, 1e-8 * variances[-1])
    kept[-1] = True
    whitening: Tensor = (axes[:, kept] / variances[kept].clamp_min(1e-30).sqrt()).T
    return whitening


def _within_what_was_seen(white: Tensor, model: PairModel) -> SceneComputation[Tensor]:
    """Fine values beyond every coarse one are held at the border: a nonlinear fit says nothing about them."""
    lowest, highest = yield from scene_range(lambda: model.window.coarse(model.operator.apply(white)))
    return white.clamp(lowest[:, None, None], highest[:, None, None])


def _random_features(inputs: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(count, inputs, generator=generator)
    width = torch.tensor(BANDWIDTHS).repeat(math.ceil(count / len(BANDWIDTHS)))[:count]
    return directions / width[:, None] / math.sqrt(inputs), 2 * math.pi * torch.rand(count, generator=generator)


def _feature_maps(white: Tensor, directions: Tensor, phases: Tensor) -> Iterator[Tensor]:
    """cos(direction . z + phase) as (CHUNK, H, W) at a time: all of them at once would not fit for large scenes."""
    for start in range(0, len(directions), CHUNK):
        part = slice(start, start + CHUNK)
        yield mix_bands(directions[part], white).add_(phases[part][:, None, None].to(white)).cos_()


def _ridge_by_leaving_out(inputs: Tensor, targets: Tensor) -> Tensor:
    """Weights (p, D) of targets (p, n) on inputs (D, n); each target takes the ridge with the least error on left-out
    pixels.
    """
    targets = targets - targets.mean(1, keepdim=True)
    values, axes = torch.linalg.eigh(inputs @ inputs.T)
    values = values.clamp_min(1e-12 * float(values[-1]) + 1e-300)
    rotated = axes.T @ inputs
    crossed = rotated @ targets.T  # (D, p)
    leverage_of_axis = rotated.square() / values[:, None]
    errors, candidates = [], []
    for ridge in RIDGES:
        shrink = values / (values + ridge * values.mean())
        rotated_weights = (crossed * (shrink / values)[:, None]).T
        leverage = (leverage_of_axis * shrink[:, None]).sum(0) + 1 / inputs.shape[1]
        errors.append(((targets - rotated_weights @ rotated) / (1 - leverage).clamp_min(0.02)).square().mean(1))
        candidates.append(rotated_weights)
    best = torch.stack(errors).argmin(0)
    chosen: Tensor = torch.stack(candidates)[best, torch.arange(len(targets))]
    weights: Tensor = chosen @ axes.T
    return weights
