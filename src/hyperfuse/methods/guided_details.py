"""A pair as `universal` regresses on it: detail on both grids, in units of about 1, and numbers about the scene.

Shapes: M msi bands, p components, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.methods.left_out_statistics import octave_trend
from hyperfuse.methods.local_regression import FEW_PIXELS, FINE_DETAIL_GAIN, RIDGE_OF_SCENE
from hyperfuse.methods.msi_components import msi_axes
from hyperfuse.methods.over_scene import SceneWise, scene_mean, scene_moments, together
from hyperfuse.methods.pair_model import PairModel, lifted, scene_covariance_and_count

# Beyond what was trained on, numbers about the scene say no more than at its limits; of the MSI's bands more than 8 count as 8.
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


def find_details(model: PairModel, coefficients: Tensor, seen: Tensor) -> SceneWise[Details]:
    interpolated, interpolated_msi = model.upsample(coefficients), model.upsample(seen)
    detail = coefficients - model.operator.apply(interpolated)
    msi_detail = seen - model.operator.apply(interpolated_msi)
    window = model.window
    ((moments, pixels), (_, spread)), ((octave, (_, component_spread)), unevenness) = yield from together(
        together(
            scene_covariance_and_count(lambda: window.coarse(torch.cat([msi_detail, detail]))), scene_moments(window.coarse(seen))
        ),
        together(
            together(
                octave_trend(window.coarse(coefficients), window.coarse(seen.detach())), scene_moments(window.coarse(coefficients))
            ),
            _unevenness(window.coarse(msi_detail.detach())),
        ),
    )
    bands, known = len(seen), moments.detach()
    unit = 1 / math.sqrt(max(1e-30, float(known[:bands, :bands].trace())))
    msi_unit = 1 / math.sqrt(max(1e-30, float(spread.detach().trace())))
    noise = unit**2 * model.msi_noise / FINE_DETAIL_GAIN
    few = 1 + (FEW_PIXELS / pixels) ** 2
    ridge = lifted(RIDGE_OF_SCENE * few * unit**2 * moments[:bands, :bands] + noise, 1e-6) + 1e-8 * torch.eye(bands)
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


def _unevenness(detail: Tensor) -> SceneWise[Tensor]:
    """Of coarse msi detail (M, h, w): near 0.3 where all places are alike, larger the fewer they are that have most of it."""

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
