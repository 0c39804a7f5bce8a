"""Harmonisation: what must be done to an msi so that the hsi explains it, found on the coarse grid.

Shapes: C bands, M msi bands, n coarse pixels, p predictors, K knots, D order of cosines, h w coarse, H W fine.

Two sensors record one ground as z = R x only by Wald's protocol. A photo has a tone curve, another time of day a gain
that varies over the scene, haze an offset; and the msi may be bent against the hsi. On the coarse grid all of these are
linear in their unknowns: with the hsi's leading components Y and the blurred msi A z,

    A z  +  sum_k d_k A h_k(z)  +  sum_l (a_l A z + b_l) c_l  +  sum_l u_l c_l dA z/dq  =  Y r,

where h_k are piecewise linear functions of a value, c_l cosines over the scene and dA z/dq is the derivative to the
position. Every h_k is uncorrelated with the value itself and every cosine has mean zero, so no choice of the unknowns
shrinks the image towards a constant, which would be explained trivially. Each correction is fitted by reweighted least
squares (Tukey's biweight [1]_ of the misfit of all bands), its size is chosen by cross-validation, and it is used only
if it lowers the median misfit clearly: what most pixels do not need is left alone.

References
----------
.. [1] P. W. Holland, R. E. Welsch, "Robust regression using iteratively reweighted least-squares", Communications in
   Statistics 6(9), 1977.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, spline_filter
from scipy.optimize import isotonic_regression
from torch import Tensor

from hyperfuse.physics.observation import TRUNCATION_SIGMAS
from hyperfuse.physics.register import Block, leading_components

Floats = NDArray[np.float64]
Pair = tuple[float, float]
Bend = Literal["off", "auto", "force"]

# A misfit below this share of the variance of the msi's coarse detail is not worth a correction.
NEGLIGIBLE = 5e-4
# A correction must bring the median misfit below this share of what it was; a bend, which resamples an image, and one
# that is insisted on, below others.
MUST_LEAVE, BEND_MUST_LEAVE, FORCED_BEND_MUST_LEAVE = 0.6, 0.5, 1.0
# Cosines of a higher order must bring the cross-validated misfit below this share.
HIGHER_ORDER_MUST_LEAVE, HIGHER_BEND_MUST_LEAVE = 0.93, 0.97
# Limits in robust standard deviations, from one reweighting to the next; and when the weights have settled.
TUKEY, FEWEST_TURNS, SETTLED = (8.0, 6.0, 5.0, *[4.0] * 7), 3, 2e-3
MAD_OF_NORMAL = 1.4826
MOST_PIXELS = 2000
KNOTS, FEWEST_KNOTS = 10, 4
PIXELS_PER_TERM = 3
CLIPPED_SHARE = 0.004  # of the pixels at one end of a band's range: they are clipped
ORDERS = (1, 2, 3, 4, 6)  # of cosines: the sum of both axes' frequencies
FOLDS, FOLD_SIDE = 4, 3  # squares of coarse pixels are left out together, because neighbours are alike
TONE_RIDGE, GAIN_RIDGE, OFFSET_RIDGE, BEND_RIDGE = 1e-5, 1e-6, 1e-4, 0.1
LARGEST_GAIN = 5.0
EXPLAINS_ALL = 2.0  # times the misfit that is not worth a correction
BEND_STEPS, BEND_TUKEY = 2, 15.0
# Cosines up to this order show at least signs of any smooth field; without them no higher orders are tried.
ORDER_OF_SIGNS, SIGNS_MUST_LEAVE = 3, 0.85
DERIVATIVE_STEP = 0.25  # fine pixels
SMALLEST_BEND = 0.03  # fine pixels, root mean square: less does not justify resampling


@dataclass(frozen=True)
class SmoothField:
    """Sums of cosines over a scene: m_ij cos(pi i y) cos(pi j x) at shares y of its height and x of its width."""

    coefficients: Floats  # (planes, D + 1, D + 1)

    def at(self, rows: Floats, columns: Floats) -> Floats:
        """(planes, rows, columns) On a grid of positions."""
        y, x = (self._cosines(axis) for axis in (rows, columns))
        return np.asarray(y.T @ self.coefficients @ x)

    def at_points(self, rows: Floats, columns: Floats) -> Floats:
        """(planes, n) At single positions."""
        return np.asarray(np.einsum("in,pij,jn->pn", self._cosines(rows), self.coefficients, self._cosines(columns)))

    @property
    def variation(self) -> float:
        """Root of the sum over planes of the variance over the scene."""
        halves = np.where(np.arange(self.coefficients.shape[1]) > 0, 0.5, 1.0)
        energy = self.coefficients**2 * halves[:, None] * halves
        return float(np.sqrt(energy.sum() - energy[:, 0, 0].sum()))

    def _cosines(self, positions: Floats) -> Floats:
        return np.cos(np.pi * np.arange(self.coefficients.shape[1])[:, None] * positions)

    @classmethod
    def from_terms(cls, order: int, terms: Floats, mean: Floats, constant: Floats) -> SmoothField:
        """From coefficients (planes, L) of cosines whose means (L,) are subtracted, and constants (planes,)."""
        matrix = np.zeros((len(terms), order + 1, order + 1))
        for (i, j), column in zip(_indices(order), terms.T, strict=True):
            matrix[:, i, j] = column
        matrix[:, 0, 0] = constant - terms @ mean
        return cls(matrix)


def _indices(order: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(order + 1) for j in range(order + 1 - i) if i + j > 0]


def _cosine_terms(order: int, positions: Floats) -> Floats:
    """(L, n)"""
    terms = [np.cos(np.pi * i * positions[0]) * np.cos(np.pi * j * positions[1]) for i, j in _indices(order)]
    return np.stack(terms) if terms else np.zeros((0, positions.shape[1]))


def _order_of_terms(order: int) -> Floats:
    return np.array([i + j for i, j in _indices(order)], dtype=np.float64)


@dataclass(frozen=True)
class ToneCurves:
    """A monotone curve per msi band."""

    curves: tuple[tuple[Floats, Floats], ...]
    """Knots (K,) and the values that replace them, linear in between."""
    description: ClassVar[str] = "tone curves"

    def apply(self, msi: NDArray[np.float32], start: tuple[int, int] = (0, 0)) -> NDArray[np.float32]:
        """Correct a part (M, rows, columns) of the msi that begins at these fine pixels; NaN stays NaN."""
        bands = zip(msi, self.curves, strict=True)
        return np.stack([np.interp(band, *curve).astype(np.float32) for band, curve in bands])


@dataclass(frozen=True)
class Light:
    """A gain and an offset per msi band that vary smoothly over the scene."""

    fine_size: tuple[int, int]
    gain: SmoothField
    offset: SmoothField
    description: ClassVar[str] = "a gain and offset that vary over the scene"

    def apply(self, msi: NDArray[np.float32], start: tuple[int, int] = (0, 0)) -> NDArray[np.float32]:
        """Correct a part (M, rows, columns) of the msi that begins at these fine pixels; NaN stays NaN."""
        axes = zip(start, msi.shape[1:], self.fine_size, strict=True)
        places = [(np.arange(first, first + length) + 0.5) / size for first, length, size in axes]
        gain = self.gain.at(*places).clip(1 / LARGEST_GAIN, LARGEST_GAIN)
        return np.asarray(msi * gain + self.offset.at(*places), dtype=np.float32)


Correction = ToneCurves | Light


@dataclass(frozen=True)
class CoarsePixels:
    """Some usable coarse pixels of blocks under a PSF and shift: what is known about them, in arrays over n pixels."""

    blocks: list[Block]
    scale: Pair
    sigma: Pair
    shift: Pair
    fine_size: tuple[int, int]
    places: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    """Rows and columns of the pixels in each block."""

    @classmethod
    def of(
        cls,
        blocks: list[Block],
        scale: Pair,
        sigma: Pair,
        shift: Pair,
        fine_size: tuple[int, int],
        most: int | None = MOST_PIXELS,
    ) -> CoarsePixels:
        """All usable pixels of the blocks, or about `most` of them."""
        total = sum(int(block.usable.sum()) for block in blocks)
        keep = np.random.default_rng(0).random(total) < (2.0 if most is None else most / max(1, total))
        places, start = [], 0
        for block in blocks:
            rows, columns = np.nonzero(block.usable.numpy())
            kept = keep[start : start + len(rows)]
            start += len(rows)
            places.append((rows[kept], columns[kept]))
        return cls(blocks, scale, sigma, shift, fine_size, places)

    def blurred(self, images: Sequence[NDArray[np.float32]]) -> Floats:
        """(B, n) Images (B, H, W), one per block, under the PSF."""
        parts = []
        for block, image, (rows, columns) in zip(self.blocks, images, self.places, strict=True):
            seen = block.operator(self.scale, self.sigma, self.shift).apply(torch.from_numpy(image))
            parts.append(seen[:, rows, columns].double().numpy())
        return np.concatenate(parts, axis=1)

    def explain(self, images: Sequence[NDArray[np.float32]]) -> RobustFit:
        """How far the hsi explains these images of the msi."""
        return self.explain_blurred(self.blurred(images))

    def explain_blurred(self, blurred: Floats) -> RobustFit:
        return fit_robustly(Regression(blurred, [self.predictors]))

    def level(self, shares: Floats) -> float:
        """One number for all bands: a geometric mean, so that a badly explained band does not hide the others."""
        return float(np.exp(np.log(shares + self.negligible).mean()))

    @cached_property
    def negligible(self) -> Floats:
        """(M,) Shares of each msi band's variance that are not worth a correction."""
        operators = [block.operator(self.scale, self.sigma, self.shift) for block in self.blocks]
        return negligible_shares([own.apply(block.msi) for own, block in zip(operators, self.blocks, strict=True)])

    @cached_property
    def predictors(self) -> Floats:
        """(n, p) The hsi's leading components, about unit variance, and a constant."""
        parts = zip(self.blocks, self.places, strict=True)
        spectra = torch.cat([block.hsi[:, rows, columns] for block, (rows, columns) in parts], dim=1).double()
        components = leading_components(spectra, torch.ones(spectra.shape[1], dtype=torch.float64)).numpy()
        return np.concatenate([components, np.ones((len(components), 1))], axis=1)

    @cached_property
    def fine_positions(self) -> Floats:
        """(2, n) Centres in fine pixels of the scene."""
        parts = []
        for block, place in zip(self.blocks, self.places, strict=True):
            axes = zip(place, self.scale, block.origin_shift, self.shift, block.fine_start, strict=True)
            parts.append(
                np.stack([(i + 0.5) * scale - 0.5 + own + moved + start for i, scale, own, moved, start in axes])
            )
        return np.concatenate(parts, axis=1)

    @cached_property
    def positions(self) -> Floats:
        """(2, n) The same as shares of the scene's height and width."""
        return np.asarray((self.fine_positions + 0.5) / np.array(self.fine_size)[:, None])

    @cached_property
    def folds(self) -> NDArray[np.int64]:
        squares = self.fine_positions / (np.array(self.scale)[:, None] * FOLD_SIDE)
        y, x = np.floor(squares).astype(np.int64) % 2
        return np.asarray(2 * y + x)


def negligible_shares(blurred: Sequence[Tensor]) -> Floats:
    """(M,) From coarse images (M, h, w): the finer their structure, the more of their variance is detail."""
    detail = torch.stack([image.double().diff(dim=2).square().mean((1, 2)) / 2 for image in blurred]).mean(0)
    values = torch.cat([image.double().flatten(1) for image in blurred], dim=1)
    return np.asarray(NEGLIGIBLE * (detail / values.var(1).clamp_min(1e-300)).clamp(1e-3, 1).numpy())


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
            return list(_solve_normal(weighted @ self.designs[0], weighted @ self.targets.T, 0.0).T)
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
            found = _solve_normal(moment[own, own], moment[own, own.stop :], ridge[own] * count)
            left = moment[shared, own.stop :] - moment[shared, own] @ found
            variance = float(target.var()) + 1e-300
            gram += (left[:, :-1] + np.diag(ridge[shared] * count)) / variance
            right += left[:, -1] / variance
            alone.append(found)
        common = _solve_normal(gram, right, 0.0) if self.common else right
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


def _solve_normal(gram: Floats, right: Floats, ridge: Floats | float) -> Floats:
    gram = gram + np.diag(np.broadcast_to(1e-12 * np.trace(gram) / len(gram) + ridge + 1e-300, len(gram)))
    return np.asarray(np.linalg.solve(gram, right))


@dataclass(frozen=True)
class Found:
    """The corrections of an msi, in their order, and how far the hsi explains what they make of it."""

    images: list[NDArray[np.float32]]
    """(M, H, W) Each block's msi with all corrections."""
    fit: RobustFit
    corrections: tuple[Correction, ...] = ()
    bend: SmoothField | None = None
    """Offset (y, x) in fine pixels besides the shift: what the hsi shows at q, the msi shows at q + bend(q)."""


Trial = tuple[Callable[[CoarsePixels, "Found"], "Found | None"], float]
"""What finds a correction, and the share of the misfit that it must leave at most."""


def find_corrections(
    pixels: CoarsePixels,
    *,
    radiometry: Sequence[type[Correction]] = (),
    bend: Bend = "auto",
    is_bent: bool = False,
) -> Found:
    """Find the corrections that the pair supports: the one that helps most first, then those that still help.

    `radiometry` names those to try; `is_bent` says that a bend was found before, under about the same PSF.
    """
    images = [block.msi.numpy() for block in pixels.blocks]
    found = Found(images, pixels.explain(images))
    trials: list[Trial] = []
    trials += [(_with_tone, MUST_LEAVE)] * (ToneCurves in radiometry) + [(_with_light, MUST_LEAVE)] * (
        Light in radiometry
    )
    if bend != "off":
        with_bend = partial(_with_bend, signs_needed=not is_bent)
        trials.append((with_bend, BEND_MUST_LEAVE if bend == "auto" else FORCED_BEND_MUST_LEAVE))
    nothing = pixels.level(np.zeros_like(found.fit.shares))
    while trials and bool((found.fit.shares > pixels.negligible).any()):
        before = pixels.level(found.fit.shares)
        results: list[tuple[float, Found, Trial]] = []
        for trial in trials:
            if (each := trial[0](pixels, found)) is None:
                continue
            level = pixels.level(each.fit.shares)
            if level < trial[1] * before:
                results.append((level, each, trial))
            if level < EXPLAINS_ALL * nothing:
                break  # the others need not be tried
        if not results:
            break
        _, found, used = min(results, key=lambda result: result[0])
        trials.remove(used)
    return found


def _with_tone(pixels: CoarsePixels, found: Found) -> Found | None:
    """The same with a tone curve per band."""
    free, blurred = pixels.predictors.shape[1], pixels.blurred(found.images)
    designs, ridges, bases = [], [], []
    for band in range(len(blurred)):
        values = np.concatenate([image[band].ravel() for image in found.images])
        knots = _knots(values[np.isfinite(values)])
        if len(knots) < FEWEST_KNOTS:
            return None
        ramps = pixels.blurred([_ramps(image[band], knots) for image in found.images]).T  # (n, K - 1)
        hats = np.concatenate([1 - ramps[:, :1], ramps[:, :-1] - ramps[:, 1:], ramps[:, -1:]], axis=1)
        share = np.histogram(values, np.concatenate([[-np.inf], (knots[1:] + knots[:-1]) / 2, [np.inf]]))[0] + 1.0
        nonlinear = _uncorrelated_with_value(knots, share)
        terms = hats @ nonlinear
        designs.append(np.concatenate([pixels.predictors, -terms], axis=1))
        ridge = TONE_RIDGE * float((terms**2).mean())
        ridges.append(np.concatenate([np.zeros(free), np.full(terms.shape[1], ridge)]))
        bases.append((knots, share, nonlinear))
    weights = found.fit.weights
    regression = Regression(blurred, designs, ridges)
    if _predicted_level(pixels, weights, regression) > MUST_LEAVE * _level_alone(pixels, weights, blurred):
        return None
    fit = fit_robustly(regression)
    curves = []
    for (knots, share, nonlinear), coefficients in zip(bases, fit.coefficients, strict=True):
        curve = isotonic_regression(knots + nonlinear @ coefficients[free:], weights=share).x
        curves.append((knots, np.asarray(curve, dtype=np.float64)))
    return _corrected(pixels, found, ToneCurves(tuple(curves)))


def _predicted_level(pixels: CoarsePixels, weights: Floats, regression: Regression) -> float:
    """The misfit that a regression leaves of coarse pixels that were left out of it."""
    errors = regression.cross_validated(weights, pixels.folds)
    return pixels.level(errors / _variance(regression.targets, weights))


def _level_alone(pixels: CoarsePixels, weights: Floats, blurred: Floats) -> float:
    """The same of a fit by the hsi alone."""
    designs, ridges = [pixels.predictors] * len(blurred), [np.zeros(pixels.predictors.shape[1])] * len(blurred)
    return _predicted_level(pixels, weights, Regression(blurred, designs, ridges))


def _corrected(pixels: CoarsePixels, found: Found, correction: Correction) -> Found:
    blocks = zip(found.images, pixels.blocks, strict=True)
    images = [correction.apply(image, block.fine_start) for image, block in blocks]
    return replace(found, images=images, fit=pixels.explain(images), corrections=(*found.corrections, correction))


def _knots(values: NDArray[np.float32]) -> Floats:
    """Between quantiles and even steps; clipped ends are values apart."""
    low, high = values.min(), values.max()
    inner = values[(values > low) & (values < high)]
    if inner.size < KNOTS:
        return np.zeros(0)
    quantiles = np.quantile(inner.astype(np.float64), np.linspace(0, 1, KNOTS))
    knots = 0.5 * quantiles + 0.5 * np.linspace(quantiles[0], quantiles[-1], KNOTS)
    ends = [float(end) for end in (low, high) if float((values == end).mean()) > CLIPPED_SHARE]
    return np.unique(np.concatenate([knots, ends]))


def _ramps(band: NDArray[np.float32], knots: Floats) -> NDArray[np.float32]:
    """(K - 1, H, W) From 0 below a knot to 1 above the next one."""
    steps, starts = (values.astype(np.float32)[:, None, None] for values in (np.diff(knots), knots[:-1]))
    return np.asarray(((band[None] - starts) / steps).clip(0, 1))


def _uncorrelated_with_value(knots: Floats, share: Floats) -> Floats:
    """(K, K - 2) Functions of the value, given on the knots, with mean zero and uncorrelated with the value itself."""
    root = np.sqrt(share)[:, None]
    straight = np.stack([np.ones_like(knots), knots], axis=1) * root
    _, _, directions = np.linalg.svd(straight.T)
    return np.asarray(directions[2:].T / root)


def _with_light(pixels: CoarsePixels, found: Found) -> Found | None:
    """The same with a smooth gain and offset.

    Other light has nearly the same gain in all bands. With a gain in common there are half as many unknowns, so that
    even a small scene shows a gain that varies quickly. Only if bands clearly differ, each has a gain of its own.
    """
    weights, blurred = found.fit.weights, pixels.blurred(found.images)
    alone, best = _level_alone(pixels, weights, blurred), None
    for order in ORDERS:
        for common in (True, False) if len(blurred) > 1 else (False,):
            light = _LightTerms.of(pixels, weights, order, common=common)
            if PIXELS_PER_TERM * light.unknowns(len(blurred)) > len(weights):
                continue
            regression = light.regression(pixels, weights, blurred)
            level = _predicted_level(pixels, weights, regression)
            if best is None or level < HIGHER_ORDER_MUST_LEAVE * best[0]:
                best = level, light, regression
        if best is None or (order >= ORDER_OF_SIGNS and best[0] > SIGNS_MUST_LEAVE * alone):
            break
    if best is None or best[0] > MUST_LEAVE * alone:
        return None
    _, light, regression = best
    return _corrected(pixels, found, light.correction(pixels, weights, blurred, fit_robustly(regression)))


@dataclass(frozen=True)
class _LightTerms:
    """Cosines of mean zero over the scene that a gain and an offset are sums of."""

    order: int
    mean: Floats  # (L,) of the cosines
    centred: Floats  # (n, L)
    common: bool
    """Whether all bands have one gain."""

    @classmethod
    def of(cls, pixels: CoarsePixels, weights: Floats, order: int, *, common: bool) -> _LightTerms:
        terms = _cosine_terms(order, pixels.positions)
        mean = np.average(terms, axis=1, weights=weights)
        return cls(order, mean, (terms - mean[:, None]).T, common)

    def unknowns(self, bands: int) -> float:
        """Per band."""
        return len(self.mean) * (1 + (1 / bands if self.common else 1))

    def regression(self, pixels: CoarsePixels, weights: Floats, blurred: Floats) -> Regression:
        designs, ridges, orders = [], [], _order_of_terms(self.order) ** 2
        for band, variance in zip(blurred, _variance(blurred, weights), strict=True):
            columns = self.centred * np.sqrt(variance), self.centred * band[:, None]
            designs.append(np.concatenate([pixels.predictors, *(-each for each in columns)], axis=1))
            penalties = OFFSET_RIDGE * orders * variance, GAIN_RIDGE * orders * variance
            ridges.append(np.concatenate([np.zeros(pixels.predictors.shape[1]), *penalties]))
        return Regression(blurred, designs, ridges, len(self.mean) if self.common else 0)

    def correction(self, pixels: CoarsePixels, weights: Floats, blurred: Floats, fit: RobustFit) -> Light:
        terms = np.stack([each[pixels.predictors.shape[1] :] for each in fit.coefficients])
        offset, gain = terms.reshape(len(blurred), 2, -1).swapaxes(0, 1)
        offset = offset * np.sqrt(_variance(blurred, weights))[:, None]
        return Light(
            pixels.fine_size,
            SmoothField.from_terms(self.order, gain, self.mean, np.ones(len(blurred))),
            SmoothField.from_terms(self.order, offset, self.mean, np.zeros(len(blurred))),
        )


def _with_bend(pixels: CoarsePixels, found: Found, *, signs_needed: bool = True) -> Found | None:
    """The same, warped by a smooth field of offsets: Gauss-Newton steps, from one order of cosines to the next.

    Where `signs_needed`, it must show with cosines of a middle order already.
    """
    sampler = _BlurredMsi.of(pixels, found.images)
    # Misfit at edges is what shows a bend, so that most outliers keep their weight.
    weights = tukey_weights(found.fit.misfit, BEND_TUKEY, np.zeros(len(found.fit.misfit)))
    best, straight = None, np.inf
    field = SmoothField(np.zeros((2, 1, 1)))
    orders = [order for order in (0, *ORDERS) if PIXELS_PER_TERM * (1 + len(_indices(order))) <= len(weights)]
    if signs_needed:
        signs = [
            pixels.level(_bend_step(pixels, sampler, field, weights, order, validate=True)[1])
            for order in (0, ORDER_OF_SIGNS)
            if order in orders
        ]
        if signs[-1] > SIGNS_MUST_LEAVE * signs[0]:
            return None
    for order in orders:
        for turn in range(BEND_STEPS):
            step, error = _bend_step(pixels, sampler, field, weights, order, validate=turn == BEND_STEPS - 1)
            zeros = np.zeros(step.shape[1] - 1)
            field = _sum(field, SmoothField.from_terms(order, step[:, 1:], zeros, step[:, 0]))
        level = pixels.level(error)
        straight = level if order == 0 else straight
        if best is None or level < HIGHER_BEND_MUST_LEAVE * best[0]:
            best = level, field
    if best is None or best[0] > BEND_MUST_LEAVE * straight:
        return None
    field = best[1]
    if field.variation < SMALLEST_BEND:
        return None
    places = zip(found.images, pixels.blocks, strict=True)
    images = [warped(image, field, block.fine_start, pixels.fine_size) for image, block in places]
    return replace(found, images=images, fit=pixels.explain(images), bend=field)


def _bend_step(
    pixels: CoarsePixels,
    sampler: _BlurredMsi,
    field: SmoothField,
    weights: Floats,
    order: int,
    *,
    validate: bool,
) -> tuple[Floats, Floats]:
    """The step (2, terms) of the field's coefficients, and per band the share that is left of unseen pixels."""
    terms = np.concatenate([np.ones((1, len(weights))), _cosine_terms(order, pixels.positions)])
    here = field.at_points(*pixels.positions)
    seen = sampler.at(here)
    slopes = []
    for axis in (0, 1):
        step = np.zeros((2, 1))
        step[axis] = DERIVATIVE_STEP
        slopes.append((sampler.at(here + step) - sampler.at(here - step)) / (2 * DERIVATIVE_STEP))
    # (M, n, 2 terms): how each band would change.
    changes = np.concatenate([(terms[None] * slope[:, None]).swapaxes(1, 2) for slope in slopes], axis=2)
    penalty = BEND_RIDGE * np.tile(np.concatenate([[0.0], _order_of_terms(order) ** 2]), 2)
    variance = _variance(seen, weights)

    def solve(kept: NDArray[np.bool_]) -> Floats:
        root = np.sqrt(weights[kept])[:, None]
        basis = np.linalg.qr(pixels.predictors[kept] * root)[0]
        gram, right = np.diag(penalty + 1e-12), np.zeros(len(penalty))
        for change, band in zip(changes[:, kept], seen[:, kept], strict=True):
            both = np.concatenate([change, band[:, None]], axis=1) * root
            both = both - basis @ (basis.T @ both)
            unit = float((both[:, -1] ** 2).mean()) + 1e-300
            gram = gram + both[:, :-1].T @ both[:, :-1] / unit
            right = right - both[:, :-1].T @ both[:, -1] / unit
        return np.asarray(np.linalg.solve(gram, right))

    error = np.zeros(len(seen))
    for fold in range(FOLDS if validate else 0):
        out = pixels.folds == fold
        moved = seen + np.einsum("mnt,t->mn", changes, solve(~out))
        for index, band in enumerate(moved):
            (slope,) = Regression(band[None, ~out], [pixels.predictors[~out]]).solve(weights[~out])
            error[index] += float(weights[out] @ (band[out] - pixels.predictors[out] @ slope) ** 2)
    step = solve(np.ones(len(weights), dtype=bool)).reshape(2, -1).clip(-1, 1)
    return step, error / (variance * max(1e-300, float(weights.sum())))


def _sum(one: SmoothField, other: SmoothField) -> SmoothField:
    size = max(each.coefficients.shape[1] for each in (one, other))
    total = np.zeros((2, size, size))
    for each in (one, other):
        side = each.coefficients.shape[1]
        total[:, :side, :side] += each.coefficients
    return SmoothField(total)


@dataclass(frozen=True)
class _BlurredMsi:
    """The msi of blocks under the PSF, as splines."""

    pixels: CoarsePixels
    splines: list[Floats]

    @classmethod
    def of(cls, pixels: CoarsePixels, images: Sequence[NDArray[np.float32]]) -> _BlurredMsi:
        splines = []
        for image in images:
            filled = np.nan_to_num(image).astype(np.float64)
            blurred = gaussian_filter(filled, (0.0, *pixels.sigma), mode="reflect", truncate=TRUNCATION_SIGMAS)
            splines.append(np.stack([spline_filter(band, 3, mode="mirror") for band in blurred]))
        return cls(pixels, splines)

    def at(self, offsets: Floats) -> Floats:
        """(M, n) Seen by the coarse pixels if they were moved by offsets (2, n) in fine pixels."""
        parts, first = [], 0
        for spline, block, (rows, _) in zip(self.splines, self.pixels.blocks, self.pixels.places, strict=True):
            span = slice(first, first + len(rows))
            first += len(rows)
            places = self.pixels.fine_positions[:, span] + offsets[:, span] - np.array(block.fine_start)[:, None]
            parts.append([map_coordinates(band, places, order=3, mode="mirror", prefilter=False) for band in spline])
        return np.concatenate(parts, axis=1)


def warped(
    image: NDArray[np.float32], bend: SmoothField, start: tuple[int, int], fine_size: tuple[int, int]
) -> NDArray[np.float32]:
    """A part (M, rows, columns) of the msi that begins at these fine pixels; its value at q is taken from q + bend."""
    axes = [np.arange(length, dtype=np.float64) for length in image.shape[1:]]
    shares = [(axis + first + 0.5) / size for axis, first, size in zip(axes, start, fine_size, strict=True)]
    down, right = bend.at(*shares)
    places = axes[0][:, None] + down, axes[1][None, :] + right
    return np.stack([map_coordinates(band, places, order=3, mode="nearest") for band in image])


def _variance(images: Floats, weights: Floats) -> Floats:
    """(M,)"""
    mean = np.average(images, axis=1, weights=weights)
    return np.asarray(np.average((images - mean[:, None]) ** 2, axis=1, weights=weights)) + 1e-300
