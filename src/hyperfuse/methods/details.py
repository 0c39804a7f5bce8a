"""A pair as `universal` regresses on it: detail on both grids, in units of about 1, and numbers about the scene.

Shapes: M msi bands, p components, h w coarse, H W fine.

The hsi's subspace when the hsi is noisy: principal axes that noise has turned aside are turned back.

Shapes: C bands, p components.

Noise spoils the axes themselves, not only the components along them. Two things are known better than plain principal
axes know them: how noisy each band is, so axes are sought in units of the noise; and that spectra are smooth, as far as
the axes themselves show it. Each axis is smoothed along the bands as much as Stein's unbiased risk (1981) says, which
is not at all where noise is small or spectra are rough. The noise of an axis follows from its eigenvalue (the spiked
model, as in `signal_covariance`).

The msi as `universal` looks at it: without a level of its own, in its own principal components.

Shapes: M msi bands, k components of the msi, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.methods.guided_regression import octave_trend
from hyperfuse.methods.local_fuse import FEW_PIXELS, FINE_DETAIL_GAIN, RIDGE_OF_SCENE
from hyperfuse.methods.pair_model import PairModel, diagonally_loaded, scene_covariance_and_count
from hyperfuse.methods.scene_stats import SceneComputation, in_one_pass, scene_mean, scene_moments
from hyperfuse.physics.operators import mix_bands

OFF_LEVEL = 1.0  # an msi whose mean is farther than this from what the hsi says, in deviations, has a level of its own


def without_own_level(model: PairModel) -> SceneComputation[PairModel]:
    """The msi may have an unknown unit or offset."""
    level, spread = yield from scene_moments(model.window.fine(model.msi))
    off = level.abs() > OFF_LEVEL * spread.diagonal().sqrt()
    if not bool(off.any()):
        return model
    return replace(model, msi=model.msi - torch.where(off, level, 0.0)[:, None, None].to(model.msi))


def msi_axes(spread: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(M, k) principal axes of the msi, and (k,) what to divide its components by, halfway between one unit and one for
    each.
    """
    variances, axes = torch.linalg.eigh(spread)
    axes, deviations = axes.flip(1)[:, :most], variances.flip(0)[:most].clamp_min(0).sqrt()
    # The sign of an eigenvector is arbitrary; brighter is positive.
    axes = axes * torch.where(axes.sum(0) < 0, -1.0, 1.0)
    return axes, (deviations[0] * deviations.maximum(1e-3 * deviations[0])).sqrt().clamp_min(1e-12)


# Beyond what was trained on, numbers about the scene say no more than at its limits; of the MSI's bands more than 8
# count as 8.
LEAST_SCALE, LARGEST_SCALE, MOST_PIXELS, MOST_BANDS = 2.0, 16.0, 3000, 8
LARGEST_PATCH = 192.0**2  # fine pixels: many coarse ones at a large scale were never seen, either


@dataclass(frozen=True)
class Details:
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
    pixels: int  # coarse ones of the scene
    few: float  # by how much ridges grow because there are few pixels to learn from
    octave: Tensor  # (p, 2): gain and share explained by slopes learned one octave coarser
    variance: Tensor  # (p,) of the components themselves
    unevenness: Tensor  # (), logarithm: how far the msi's detail is that of a few places
    numbers: Tensor  # (5,) of the scene

    def network_channels(self, most: int) -> Tensor:
        """(2 z, H, W): at most so many principal components of the msi, and of its detail."""
        axes, units = msi_axes(self.msi_spread.detach(), most)
        return torch.cat([mix_bands((axes / units).T, self.fine_msi), mix_bands(0.3 * axes.T, self.fine_msi_detail)])


def find_details(model: PairModel, coefficients: Tensor, seen: Tensor) -> SceneComputation[Details]:
    interpolated, interpolated_msi = model.upsample(coefficients), model.upsample(seen)
    detail = coefficients - model.operator.apply(interpolated)
    msi_detail = seen - model.operator.apply(interpolated_msi)
    window = model.window
    ((moments, pixels), (_, spread)), ((octave, (_, component_spread)), unevenness) = yield from in_one_pass(
        in_one_pass(
            scene_covariance_and_count(lambda: window.coarse(torch.cat([msi_detail, detail]))),
            scene_moments(window.coarse(seen)),
        ),
        in_one_pass(
            in_one_pass(
                octave_trend(window.coarse(coefficients), window.coarse(seen.detach())),
                scene_moments(window.coarse(coefficients)),
            ),
            _unevenness(window.coarse(msi_detail.detach())),
        ),
    )
    bands, known = len(seen), moments.detach()
    unit = 1 / math.sqrt(max(1e-30, float(known[:bands, :bands].trace())))
    msi_unit = 1 / math.sqrt(max(1e-30, float(spread.detach().trace())))
    noise = unit**2 * model.msi_noise / FINE_DETAIL_GAIN
    few = 1 + (FEW_PIXELS / pixels) ** 2
    ridge = diagonally_loaded(
        RIDGE_OF_SCENE * few * unit**2 * moments[:bands, :bands] + noise, 1e-6
    ) + 1e-8 * torch.eye(bands)
    energy = float(known[bands:, bands:].trace())
    return Details(
        interpolated=interpolated,
        detail=detail,
        msi=seen * msi_unit,
        fine_msi=model.msi * msi_unit,
        msi_detail=msi_detail * unit,
        fine_msi_detail=(model.msi - interpolated_msi) * unit,
        msi_spread=spread * msi_unit**2,
        noise=noise,
        ridge=ridge,
        pixels=pixels,
        few=few,
        octave=octave,
        variance=component_spread.diagonal(),
        unevenness=unevenness,
        numbers=_scene_numbers(model, energy, unit, pixels),
    )


def _unevenness(detail: Tensor) -> SceneComputation[Tensor]:
    """Of coarse msi detail (M, h, w): near 0.3 where all places are alike, larger the fewer they are that have most of
    it.
    """

    def share() -> tuple[Tensor, int]:
        strength = detail.double().square().sum(0)
        return torch.stack([strength.mean(), strength.square().mean()]), strength.numel()

    mean, of_squares = yield from scene_mean(share)
    return torch.log10(of_squares / mean.square().clamp_min(1e-30) + 1.0)


def _scene_numbers(model: PairModel, energy: float, unit: float, pixels: int) -> Tensor:
    """(5,): scale, noise of both images beside their detail, coarse pixels, msi bands; each about 0."""
    scale = [min(LARGEST_SCALE, each) for each in model.observation.scale]
    numbers = [
        math.log2(min(LARGEST_SCALE, max(LEAST_SCALE, sum(model.observation.scale) / 2))) / 3 - 0.7,
        math.log10(math.sqrt(float(model.hsi_noise.trace()) / max(1e-30, energy)) + 1e-3),
        math.log10(math.sqrt(float(model.msi_noise.detach().trace())) * unit + 1e-3),
        math.log10(min(MOST_PIXELS, LARGEST_PATCH / math.prod(scale), pixels)) - 2.5,
        min(MOST_BANDS, len(model.msi)) / 8 - 0.5,
    ]
    return torch.tensor(numbers, dtype=torch.float32)
