"""A nonlinear lift: what FUSE leaves unexplained, as a ridge regression on random features of the msi.

Shapes: M msi bands, p components, D features, h w coarse, H W fine.

Mixing happens in spectra, not in features: x = W phi(msi) on the fine grid means hsi = W A phi(msi) on the coarse one, so W is
learned from blurred features and applied to fine ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.conditioning import condition_on_hsi, prior_from_error
from hyperfuse.methods.fuse import scene_posterior
from hyperfuse.methods.pair_model import PairModel, model_pair

MOST_FEATURES = 240
PIXELS_PER_FEATURE = 3  # coarse pixels that stand behind each feature
BANDWIDTHS = (1.0, 3.0)  # of the random cosines, in standard deviations of the whitened msi
RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
CHUNK = 24


def nonlinear_lift(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """Random cosine features of every msi pixel (Rahimi and Recht 2007), regressed on the hsi, then made consistent with it."""
    model = model_pair(hsi, msi, observation)
    mean = lifted_components(model)
    return model.image(condition_on_hsi(mean, prior_from_error(mean, model), model))


def lifted_components(model: PairModel) -> Tensor:
    """(p, H, W)."""
    mean, _ = scene_posterior(model)
    target = model.coefficients - model.operator.apply(mean)
    white = _within_what_was_seen(mix_bands(_whitening(model), model.msi), model)
    directions, phases = _random_features(len(white), min(MOST_FEATURES, target[0].numel() // PIXELS_PER_FEATURE))
    if len(directions) == 0:
        return mean
    features = torch.cat([model.operator.apply(part) for part in _feature_maps(white, directions, phases)])
    inputs = features.flatten(1).double()
    level = inputs.mean(1, keepdim=True)
    weights = _ridge_by_leaving_out(inputs - level, target.flatten(1).double())
    mean = mean + (target.double().mean((1, 2)) - (weights @ level)[:, 0]).to(mean)[:, None, None]
    for index, part in enumerate(_feature_maps(white, directions, phases)):
        mean += mix_bands(weights[:, index * CHUNK : index * CHUNK + len(part)], part)
    return mean


def _whitening(model: PairModel) -> Tensor:
    """(K, M): the msi's principal axes, each to unit variance, without axes that are noise."""
    flat = model.msi.flatten(1).double()
    centred = flat - flat.mean(1, keepdim=True)
    variances, axes = torch.linalg.eigh(centred @ centred.T / flat.shape[1])
    noise = (axes.T @ model.msi_noise @ axes).diagonal()
    kept = variances > torch.maximum(4 * noise, 1e-8 * variances[-1])
    kept[-1] = True
    whitening: Tensor = (axes[:, kept] / variances[kept].clamp_min(1e-30).sqrt()).T
    return whitening


def _within_what_was_seen(white: Tensor, model: PairModel) -> Tensor:
    """Fine values beyond every coarse one are held at the border: a nonlinear fit says nothing about them."""
    coarse = model.operator.apply(white)
    return white.clamp(coarse.amin((1, 2), keepdim=True), coarse.amax((1, 2), keepdim=True))


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
    """Weights (p, D) of targets (p, n) on inputs (D, n); each target takes the ridge with the least error on left-out pixels."""
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
