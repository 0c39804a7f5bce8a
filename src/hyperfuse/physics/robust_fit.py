"""Ridge regressions of msi bands that outliers do not disturb: reweighted least squares with Tukey's biweight.

Shapes: M msi bands, n pixels, p columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Limits in robust standard deviations, from one reweighting to the next; and when the weights have settled.
TUKEY, FEWEST_TURNS, SETTLED = (8.0, 6.0, 5.0, *[4.0] * 7), 3, 2e-3
MAD_OF_NORMAL = 1.4826
FOLDS = 4


@dataclass(frozen=True)
class RobustFit:
    """Regressions of msi bands with one weight per pixel."""

    coefficients: list[Floats]
    weights: Floats  # (n,), from 0 (an outlier) to 1
    misfit: Floats  # (M, n)
    shares: Floats  # (M,) squared median misfit, as a share of the squared median deviation of the target


@dataclass(frozen=True)
class Regression:
    """Ridge regressions of msi bands on columns of their own, of which the last may have the same coefficient in every
    band.
    """

    targets: Floats  # (M, n)
    designs: Sequence[Floats]  # (n, p) each, or one for all bands
    ridges: Sequence[Floats] = ()  # (p,) each, in units of mean squares
    common: int = 0
    """How many of the last columns have coefficients in common."""

    def solve(self, weights: Floats) -> list[Floats]:
        """(p,) for each band."""
        if len(self.designs) == 1:
            weighted = self.designs[0].T * weights
            return list(solve_normal(weighted @ self.designs[0], weighted @ self.targets.T, 0.0).T)
        return self.solve_moments(self.moments(weights, slice(None)), float(weights.sum()))

    def moments(self, weights: Floats, pixels: slice | NDArray[np.bool_]) -> list[Floats]:
        """(p + 1, p + 1) for each band: sums over pixels of the products of all columns and the target."""
        bands = zip(self.designs, self.targets, strict=True)
        both = (np.concatenate([design[pixels], target[pixels, None]], axis=1) for design, target in bands)
        return [(each.T * weights[pixels]) @ each for each in both]

    def solve_moments(self, moments: Sequence[Floats], count: float) -> list[Floats]:
        """From the moments of pixels whose weights sum to `count`."""
        alone, gram, right = [], np.zeros((self.common, self.common)), np.zeros(self.common)
        for moment, ridge, target in zip(moments, self.ridges, self.targets, strict=True):
            # A band's own coefficients as functions of the common ones, which are solved for last.
            own = slice(0, len(ridge) - self.common)
            shared = slice(own.stop, len(ridge))
            found = solve_normal(moment[own, own], moment[own, own.stop :], ridge[own] * count)
            left = moment[shared, own.stop :] - moment[shared, own] @ found
            variance = float(target.var()) + 1e-300
            gram += (left[:, :-1] + np.diag(ridge[shared] * count)) / variance
            right += left[:, -1] / variance
            alone.append(found)
        common = solve_normal(gram, right, 0.0) if self.common else right
        return [np.concatenate([found[:, -1] - found[:, :-1] @ common, common]) for found in alone]

    def misfit(self, coefficients: Sequence[Floats], pixels: slice | NDArray[np.bool_] = slice(None)) -> Floats:
        """(M, n)"""
        if len(self.designs) == 1:
            return self.targets[:, pixels] - np.stack(coefficients) @ self.designs[0][pixels].T
        bands = zip(self.designs, coefficients, strict=True)
        return self.targets[:, pixels] - np.stack([design[pixels] @ found for design, found in bands])

    def cross_validated(self, weights: Floats, folds: NDArray[np.int64]) -> Floats:
        """(M,) Mean squared error on pixels that were left out of the fit."""
        parts = [(folds == fold, self.moments(weights, folds == fold)) for fold in range(FOLDS)]
        total = [sum(own) for own in zip(*(moments for _, moments in parts), strict=True)]
        error = np.zeros(len(self.targets))
        for out, moments in parts:
            if (count := float(weights[~out].sum())) > 0:
                found = self.solve_moments([all_ - own for all_, own in zip(total, moments, strict=True)], count)
                error += self.misfit(found, out) ** 2 @ weights[out]
        return np.asarray(error / max(1e-300, float(weights.sum())))


def fit_robustly(regression: Regression) -> RobustFit:
    """Solve by iteratively reweighted least squares."""
    targets = regression.targets
    weights = np.ones(targets.shape[1])
    variance = targets.var(axis=1) + 1e-300
    for turn, limit in enumerate(TUKEY):
        coefficients = regression.solve(weights)
        misfit = regression.misfit(coefficients)
        before, weights = weights, tukey_weights(misfit, limit, 1e-12 * variance)
        if turn > FEWEST_TURNS and float(np.abs(weights - before).mean()) < SETTLED:
            break
    # Medians of both: a curve that maps most values to one explains them all, but then they have no spread either.
    spread = np.median(np.abs(targets - np.median(targets, axis=1, keepdims=True)), axis=1) + 1e-150
    return RobustFit(coefficients, weights, misfit, (np.median(np.abs(misfit), axis=1) / spread) ** 2)


def tukey_weights(misfit: Floats, limit: float, smallest_variance: Floats) -> Floats:
    """(n,) Tukey's biweight of the root mean square over bands of misfits (M, n) in robust standard deviations."""
    variance = (MAD_OF_NORMAL * np.median(np.abs(misfit), axis=1)) ** 2 + smallest_variance + 1e-300
    squared = (misfit**2 / variance[:, None]).mean(axis=0) / limit**2
    return np.asarray((1 - squared).clip(min=0) ** 2)


def solve_normal(gram: Floats, right: Floats, ridge: Floats | float) -> Floats:
    gram = gram + np.diag(np.broadcast_to(1e-12 * np.trace(gram) / len(gram) + ridge + 1e-300, len(gram)))
    return np.asarray(np.linalg.solve(gram, right))
