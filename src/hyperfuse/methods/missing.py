"""Missing pixels (NaN): filled before a method sees them, masked in its result.

Shapes: C bands, M msi bands, h w coarse, H W fine.

What fills a hole of one image must agree with what the other image shows there: statistics of the scene are taken over
filled pixels, too, and every regression of one image on the other would suffer. So the hsi is filled by its regression
on the msi under the PSF, and then the msi by the hsi under the SRF; what these predictions lack in known pixels nearby
is added. Where both are missing, the mean of the scene remains. A filled pixel depends on nothing farther away than
`filling_halo`, so tiles and whole scenes are filled alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from torch import Tensor

from hyperfuse.methods.pair_model import diagonally_loaded
from hyperfuse.methods.window import INTERPOLATION_HALO, SceneComputation, Window, all_finite, scene_statistic
from hyperfuse.physics.observation import Observation, SpatialOperator, mix_bands, psf_radius
from hyperfuse.physics.resample import upsample_bicubic

# Radii of the means that fill holes, the weight of each relative to the one before, and that of the value far away.
RADII, LESS, LEAST = (1, 3), 1e-2, 1e-3
REACH = 2 * RADII[-1]
"""Pixels: each mean is taken twice."""
# The share of a coarse pixel's PSF that must lie on known fine pixels for it to count in the regression.
ENOUGH_KNOWN = 0.99
LOADING, SMALLEST_VARIATION = 1e-4, 1e-10
FEWEST_PIXELS = 3  # per msi band


def filling_halo(observation: Observation) -> int:
    """Coarse pixels around a filled pixel that it depends on."""
    axes = zip(observation.sigma, observation.scale, strict=True)
    covered = max((psf_radius(sigma) + REACH) / scale for sigma, scale in axes)
    return REACH + INTERPOLATION_HALO + math.ceil(covered) + 1


def fill_missing(image: Tensor, far: Tensor | None = None) -> Tensor:
    """Fill the NaN of (B, H, W) by means of what is known nearby; farther away, by `far` (B,) or the band's mean.

    Normalised convolution (Knutsson and Westin 1993) with a narrow and a wide kernel. A band without any value becomes
    0 where `far` is not given.
    """
    if all_finite(image):
        return image
    known = torch.isfinite(image)
    if far is None:
        values = torch.where(known, image, 0.0).double()
        far = values.sum((1, 2)) / known.sum((1, 2)).clamp_min(1)
    holes = ~known.all(0)
    rows, columns = (_around(holes.any(axis)) for axis in (1, 0))
    filled = image.clone()
    filled[:, rows, columns] = _filled(image[:, rows, columns], known[:, rows, columns], far)
    return filled


def _around(missing: Tensor) -> slice:
    """From the first to the last missing pixel along an axis, and what they depend on."""
    places = missing.nonzero()
    return slice(max(0, int(places[0]) - REACH), int(places[-1]) + REACH + 1)


def _filled(image: Tensor, known: Tensor, far: Tensor) -> Tensor:
    masks, which = torch.unique(known, dim=0, return_inverse=True)
    weights = [_spread(mask.double().numpy()) for mask in masks]
    least = LEAST * LESS ** (len(RADII) - 1)
    bands = []
    for band, mask, index, value in zip(image, known, which.tolist(), far.tolist(), strict=True):
        sums = _spread(torch.where(mask, band, 0.0).double().numpy())
        means = torch.from_numpy((sums + least * value) / (weights[index] + least))
        bands.append(torch.where(mask, band, means.to(band)))
    return torch.stack(bands)


def _spread(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of means over all radii."""
    total = np.zeros_like(image)
    for index, radius in enumerate(RADII):
        once = uniform_filter(image, 2 * radius + 1, mode="constant")
        total += LESS**index * uniform_filter(once, 2 * radius + 1, mode="constant")
    return total


@dataclass(frozen=True)
class PairRegression:
    """hsi = hsi_mean + slopes (A msi - msi_mean), over the coarse pixels that both images show."""

    hsi_mean: Tensor  # (C,)
    msi_mean: Tensor  # (M,)
    slopes: Tensor  # (C, M)


def fill_pair(window: Window) -> SceneComputation[Window]:
    """Fill both images of a window."""
    is_whole = all_finite(window.hsi) and all_finite(window.msi)
    scene_is_whole = yield from scene_statistic(lambda: is_whole, all)
    if scene_is_whole and is_whole:
        return window
    operator = window.observation.spatial_operator(window.fine_size, window.coarse_size)
    sums = partial(_sums, window, operator)
    if scene_is_whole:
        # The windows that represent the scene have no hole, and this one has.
        regression = _regression([sums()])
    else:
        regression = yield from scene_statistic(sums, _regression)
    if is_whole:
        return window
    known, msi_known = torch.isfinite(window.hsi), torch.isfinite(window.msi)
    hsi_mean, msi_mean = (mean[:, None, None] for mean in (regression.hsi_mean, regression.msi_mean))
    seen = operator.apply(torch.where(msi_known, window.msi - msi_mean, 0.0))
    predicted = (hsi_mean + mix_bands(regression.slopes, seen)).to(window.hsi)
    hsi = predicted + fill_missing(window.hsi - predicted, torch.zeros(len(predicted)))
    hsi = torch.where(known, window.hsi, hsi)
    offset, placement = window.observation.offset[:, None, None], window.observation.placement
    of_srf = mix_bands(window.observation.srf, hsi) + offset.to(hsi)
    predicted = upsample_bicubic(of_srf, window.fine_size, placement)
    # Detail from nearby only where other bands show that there is some.
    detail = fill_missing(window.msi - predicted, torch.zeros(len(predicted))) * msi_known.any(0)
    return replace(window, hsi=hsi, msi=torch.where(msi_known, window.msi, predicted + detail))


def _sums(window: Window, operator: SpatialOperator) -> tuple[Tensor, ...]:
    """Sums over coarse pixels that both images show, of products of (msi, 1) and (msi, 1, hsi); and of known values."""
    hsi, msi = window.coarse(window.hsi).double(), window.msi.double()
    known, msi_known = torch.isfinite(hsi), torch.isfinite(msi)
    seen = window.coarse(operator.apply(torch.where(msi_known, msi, 0.0)))
    usable = known.all(0) & (window.coarse(operator.apply(msi_known.all(0).double())) > ENOUGH_KNOWN)
    msi_spectra, hsi_spectra = seen[:, usable], hsi[:, usable]
    inputs = torch.cat([msi_spectra, torch.ones_like(msi_spectra[:1])])
    own, own_known = window.counted(msi), window.counted(msi_known)
    return (
        inputs @ torch.cat([inputs, hsi_spectra]).T,
        torch.stack([torch.where(known, hsi, 0.0).sum((1, 2)), known.sum((1, 2)).double()]),
        torch.stack([torch.where(own_known, own, 0.0).sum((1, 2)), own_known.sum((1, 2)).double()]),
    )


def _regression(parts: list[tuple[Tensor, ...]]) -> PairRegression:
    products, hsi_sums, msi_sums = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
    bands, pixels = len(products) - 1, float(products[-1, -len(hsi_sums[0]) - 1])
    if pixels < FEWEST_PIXELS * (bands + 1):
        hsi_mean, msi_mean = (total / count.clamp_min(1) for total, count in (hsi_sums, msi_sums))
        return PairRegression(hsi_mean, msi_mean, torch.zeros(len(hsi_mean), bands).double())
    means = products[-1] / pixels
    msi_mean, hsi_mean = means[:bands], means[bands + 1 :]
    covariance = products[:bands] / pixels - torch.outer(msi_mean, means)
    # A band that does not vary predicts nothing.
    spread = covariance[:, :bands] + torch.diag(SMALLEST_VARIATION * msi_mean.square())
    slopes = torch.linalg.solve(diagonally_loaded(spread, LOADING), covariance[:, bands + 1 :]).T
    return PairRegression(hsi_mean, msi_mean, slopes)
