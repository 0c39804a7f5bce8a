"""Registration by colour: where brightness disagrees, bands in proportion still tell PSF and shift.

Shapes: M msi bands, n coarse pixels, p predictors, K unknowns.

Shadows, other light and tone curves change the brightness of a pixel far more than its colour. With a gain g per coarse
pixel, common to all bands,

    A z_i  =  g_i (R y_i + c),

what is left to compare of M bands are M - 1 ratios, and shadows over half of a scene do not hide its place. Gains,
regression and weights (Tukey's biweight) are found in turn. PSF and shift are then found like those of `register`, from
that part of every pixel's bands that no gain and no change of the regression can explain (variable projection).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.physics.harmonise import CoarsePixels
from hyperfuse.physics.register import TRIMMED, Block, Pair, Problem, Registration, solve
from hyperfuse.physics.robust_fit import MAD_OF_NORMAL

Floats = NDArray[np.float64]

FEWEST_BANDS = 3
MOST_PIXELS, SEARCHED_PIXELS = 1500, 400
TURNS, SEARCH_TURNS, TUKEY = 12, 8, 5.0
GAIN_PRIOR = 0.3  # pull towards 1, in units of the bands' variance
GAIN_LIMITS = (0.2, 5.0)
LEAST_WEIGHT = 1e-4
ROUNDS = 3
MOVED = 0.01  # of log sigma and of a coarse pixel
SMALLEST_ERROR = 1e-9  # squared, in units of the bands' variance


@dataclass(frozen=True)
class Shades:
    """A gain per coarse pixel, and how far the hsi explains the msi under it."""

    gain: Floats  # (n,)
    weights: Floats  # (n,), from 0 (an outlier) to 1
    predicted: Floats  # (M, n), without the gain, in units of the bands' standard deviations
    misfit: Floats  # (M, n), in the same units
    spread: Floats  # (M,) squared median deviation of the msi, in the same units

    @property
    def shares(self) -> Floats:
        """(M,) As of a `RobustFit`; a gain per pixel takes the freedom of one of M bands."""
        bands = len(self.misfit)
        return np.asarray(np.median(self.misfit**2, axis=1) / self.spread * bands / (bands - 1))

    @property
    def trimmed(self) -> float:
        """Log of the mean squared misfit of all but the worst pixels."""
        squared = (self.misfit**2).mean(axis=0)
        count = max(1, int(TRIMMED * len(squared)))
        return float(np.log(np.partition(squared, count - 1)[:count].mean() + SMALLEST_ERROR))


def find_shades(blurred: Floats, predictors: Floats, turns: int = TURNS) -> Shades:
    """Fit an msi (M, n) on the coarse grid by predictors (n, p), of which one is constant, times a gain per pixel."""
    images = blurred / (blurred.std(axis=1, keepdims=True) + 1e-300)
    count = images.shape[1]
    gain, weights = np.ones(count), np.ones(count)
    loading = 1e-9 * count * np.eye(predictors.shape[1])
    for _ in range(turns):
        shaded = predictors * gain[:, None]
        left = (shaded * weights[:, None]).T
        predicted = (predictors @ np.linalg.solve(left @ shaded + loading, left @ images.T)).T
        gain = ((images * predicted).sum(0) + GAIN_PRIOR) / ((predicted**2).sum(0) + GAIN_PRIOR)
        gain = gain.clip(*GAIN_LIMITS)
        misfit = images - gain * predicted
        limit = (TUKEY * MAD_OF_NORMAL * np.median(np.abs(misfit))) ** 2 + SMALLEST_ERROR
        weights = (1 - (misfit**2).mean(axis=0) / limit).clip(0) ** 2 + LEAST_WEIGHT
    spread = np.median(np.abs(images - np.median(images, axis=1, keepdims=True)), axis=1) ** 2 + 1e-300
    return Shades(gain, weights, predicted, misfit, spread)


@dataclass(frozen=True)
class _ShadedProblem(Problem):
    """What no gain explains: `explaining` (M n, K) are changes of the regression, across the directions."""

    directions: Tensor  # (M, n), of unit length: how a gain changes the bands

    @classmethod
    def under(cls, shades: Shades, pixels: CoarsePixels) -> _ShadedProblem:
        weights = torch.from_numpy(shades.weights)
        predicted = torch.from_numpy(shades.predicted)
        directions = predicted / predicted.square().sum(0).sqrt().clamp_min(1e-12)
        own = torch.from_numpy(pixels.predictors * (shades.gain * np.sqrt(shades.weights))[:, None])
        bands = len(directions)
        changes = torch.einsum("bc,nk->bnck", torch.eye(bands, dtype=torch.float64), own)
        changes = changes - torch.einsum("bn,cn,nk->bnck", directions, directions, own)
        flat = changes.reshape(bands * own.shape[0], -1)
        values, axes = torch.linalg.eigh(flat.T @ flat)
        kept = values > 1e-10 * values[-1].clamp_min(1e-300)
        explaining = flat @ (axes[:, kept] / values[kept].sqrt())
        thinned = [
            replace(
                block,
                usable=torch.zeros_like(block.usable).index_put_(
                    tuple(map(torch.from_numpy, place)), torch.tensor(True)
                ),
            )
            for block, place in zip(pixels.blocks, pixels.places, strict=True)
        ]
        return cls(thinned, explaining, weights, pixels.scale, directions)

    @property
    def bands(self) -> int:
        return len(self.directions) - 1

    @property
    def components(self) -> int:
        return self.explaining.shape[1] // len(self.directions)

    def compared(self, pixels: Tensor) -> Tensor:
        return pixels * self.weights.sqrt()

    def outside(self, images: Tensor) -> Tensor:
        across = images - self.directions * (self.directions * images).sum(-2, keepdim=True)
        flat = across.flatten(-2)
        return (flat - (flat @ self.explaining) @ self.explaining.T).reshape(images.shape)


def register_by_colour(
    blocks: list[Block],
    scale: Pair,
    sigma: Pair,
    shifts: Sequence[Pair],
    *,
    sigma_known: bool,
    shift_known: bool,
) -> tuple[Registration, Shades]:
    """Find PSF and shift near the best of some shifts, and the shades there."""
    images = [block.msi.numpy() for block in blocks]

    def shades_at(sigma: Pair, shift: Pair, most: int, turns: int) -> tuple[CoarsePixels, Shades]:
        pixels = CoarsePixels.of(blocks, scale, sigma, shift, (1, 1), most)
        return pixels, find_shades(pixels.blurred(images), pixels.predictors, turns)

    place = shifts[0]
    if len(shifts) > 1:
        place = min(shifts, key=lambda shift: shades_at(sigma, shift, SEARCHED_PIXELS, SEARCH_TURNS)[1].trimmed)
    start = torch.tensor([*map(math.log, sigma), *(place if shift_known else (0.0, 0.0))], dtype=torch.float64)
    begin = torch.cat([start[:2], torch.tensor(place, dtype=torch.float64)])
    for _ in range(ROUNDS):
        widths = float(begin[0].exp()), float(begin[1].exp())
        pixels, shades = shades_at(widths, (float(begin[2]), float(begin[3])), MOST_PIXELS, TURNS)
        problem = _ShadedProblem.under(shades, pixels)
        found = solve(problem, start, begin, sigma_known=sigma_known, shift_known=shift_known)
        after = torch.tensor([*map(math.log, found.sigma), *found.shift], dtype=torch.float64)
        moved = (after - begin).abs() / torch.tensor([1.0, 1.0, *scale])
        begin = after
        if float(moved.max()) < MOVED:
            break
    return found, shades_at(found.sigma, found.shift, MOST_PIXELS, TURNS)[1]
