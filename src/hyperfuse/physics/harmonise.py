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
from functools import cache, cached_property, partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from torch import Tensor

from hyperfuse.physics.corrections import (
    Correction,
    Floats,
    Light,
    SmoothField,
    ToneCurves,
    cosine_indices,
    cosine_terms,
    order_of_terms,
    spline_at,
    spline_of,
    warped,
)
from hyperfuse.physics.observation import psf_matrix
from hyperfuse.physics.register import Block, leading_components
from hyperfuse.physics.resample import separable
from hyperfuse.physics.robust_fit import FOLDS, Regression, RobustFit, fit_robustly, solve_normal, tukey_weights

Pair = tuple[float, float]
Bend = Literal["off", "auto", "force"]

# A misfit below this share of the variance of the msi's coarse detail is not worth a correction.
NEGLIGIBLE = 5e-4
# A correction must bring the median misfit below this share of what it was; a bend, which resamples an image, and one
# that is insisted on, below others.
MUST_LEAVE, BEND_MUST_LEAVE, FORCED_BEND_MUST_LEAVE = 0.6, 0.5, 1.0
# Cosines of a higher order must bring the cross-validated misfit below this share.
HIGHER_ORDER_MUST_LEAVE, HIGHER_BEND_MUST_LEAVE = 0.93, 0.97
MOST_PIXELS = 2000
KNOTS, FEWEST_KNOTS = 10, 4
VALUES_FOR_KNOTS = 20000  # about as many are looked at
PIXELS_PER_TERM = 3
CLIPPED_SHARE = 0.004  # of the pixels at one end of a band's range: they are clipped
ORDERS = (1, 2, 3, 4, 6)  # of cosines: the sum of both axes' frequencies
ORDERS_AGAIN = 2
FOLD_SIDE = 3  # squares of coarse pixels are left out together, because neighbours are alike
TONE_RIDGE, GAIN_RIDGE, OFFSET_RIDGE, BEND_RIDGE = 1e-5, 1e-6, 1e-4, 0.1
EXPLAINS_ALL = 2.0  # times the misfit that is not worth a correction
BEND_STEPS, BEND_TUKEY = 2, 15.0
# Cosines up to this order show at least signs of any smooth field; without them no higher orders are tried.
ORDER_OF_SIGNS, SIGNS_MUST_LEAVE = 3, 0.85
SMALLEST_BEND = 0.03  # fine pixels, root mean square: less does not justify resampling
# Fine pixels per fine pixel: 0.1 at most where a scene is bent, and 0.35 or more where shadows or noise look like it.
STEEPEST_BEND = 0.25


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

    @property
    def spectra(self) -> Tensor:
        """(C, n)"""
        parts = zip(self.blocks, self.places, strict=True)
        return torch.cat([block.hsi[:, rows, columns] for block, (rows, columns) in parts], dim=1).double()

    @cached_property
    def predictors(self) -> Floats:
        """(n, p) The hsi's leading components, about unit variance, and a constant."""
        spectra = self.spectra
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
class Found:
    """The corrections of an msi, in their order, and how far the hsi explains what they make of it."""

    images: Callable[[], list[NDArray[np.float32]]]
    """(M, H, W) Each block's msi with all corrections; not warped before it is asked for."""
    blurred: Floats
    """(M, n) The same under the PSF."""
    fit: RobustFit
    corrections: tuple[Correction, ...] = ()
    bend: SmoothField | None = None
    """Offset (y, x) in fine pixels besides the shift: what the hsi shows at q, the msi shows at q + bend(q)."""

    @property
    def corrects_anything(self) -> bool:
        return bool(self.corrections) or self.bend is not None


Trial = tuple[Callable[[CoarsePixels, "Found"], "Found | None"], float]
"""What finds a correction, and the share of the misfit that it must leave at most."""


def find_corrections(
    pixels: CoarsePixels,
    *,
    radiometry: Sequence[type[Correction]] = (),
    bend: Bend = "auto",
    before: Found | None = None,
) -> Found:
    """Find the corrections that the pair supports: the one that helps most first, then those that still help.

    `radiometry` names those to try; `before` is what was found before under about the same PSF.
    """
    images = [block.msi.numpy() for block in pixels.blocks]
    blurred = pixels.blurred(images)
    found = Found(lambda: images, blurred, pixels.explain_blurred(blurred))
    trials: list[Trial] = []
    if ToneCurves in radiometry:
        trials.append((_with_tone, MUST_LEAVE))
    if Light in radiometry:
        known = () if before is None else [each for each in before.corrections if isinstance(each, Light)]
        trials.append((partial(_with_light, before=known[0] if known else None), MUST_LEAVE))
    if bend != "off":
        bent = None if before is None else before.bend
        must_leave = FORCED_BEND_MUST_LEAVE if bend == "force" else BEND_MUST_LEAVE if bent is None else MUST_LEAVE
        trials.append((partial(_with_bend, must_leave=must_leave, before=bent), must_leave))
    nothing = pixels.level(np.zeros_like(found.fit.shares))
    while trials and bool((found.fit.shares > pixels.negligible).any()):
        without = pixels.level(found.fit.shares)
        results: list[tuple[float, Found, Trial]] = []
        for trial in trials:
            if (each := trial[0](pixels, found)) is None:
                continue
            level = pixels.level(each.fit.shares)
            if level < trial[1] * without:
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
    free, blurred, images = pixels.predictors.shape[1], found.blurred, found.images()
    designs, ridges, bases = [], [], []
    for band in range(len(blurred)):
        values = np.concatenate([image[band].ravel() for image in images])
        knots = _knots(values[np.isfinite(values)])
        if len(knots) < FEWEST_KNOTS:
            return None
        ramps = pixels.blurred([_ramps(image[band], knots) for image in images]).T  # (n, K - 1)
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
    blocks = zip(found.images(), pixels.blocks, strict=True)
    images = [correction.apply(image, block.fine_start) for image, block in blocks]
    blurred = pixels.blurred(images)
    fit = pixels.explain_blurred(blurred)
    return replace(found, images=lambda: images, blurred=blurred, fit=fit, corrections=(*found.corrections, correction))


def _knots(values: NDArray[np.float32]) -> Floats:
    """Between quantiles and even steps; clipped ends are values apart."""
    low, high = values.min(), values.max()
    values = values[:: max(1, values.size // VALUES_FOR_KNOTS)]
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


def _with_light(pixels: CoarsePixels, found: Found, *, before: Light | None = None) -> Found | None:
    """The same with a smooth gain and offset, of about the order of what was found `before`.

    Other light has nearly the same gain in all bands. With a gain in common there are half as many unknowns, so that
    even a small scene shows a gain that varies quickly. Only if bands clearly differ, each has a gain of its own.
    """
    weights, blurred = found.fit.weights, found.blurred
    alone, best = _level_alone(pixels, weights, blurred), None
    for order in ORDERS if before is None else _orders_from(before.gain):
        for common in (True, False) if len(blurred) > 1 else (False,):
            light = _LightTerms.of(pixels, weights, order, common=common)
            if PIXELS_PER_TERM * light.unknowns(len(blurred)) > len(weights):
                continue
            regression = light.regression(pixels, weights, blurred)
            level = _predicted_level(pixels, weights, regression)
            if best is None or level < HIGHER_ORDER_MUST_LEAVE * best[0]:
                best = level, light, regression
        if best is None or (before is None and order >= ORDER_OF_SIGNS and best[0] > SIGNS_MUST_LEAVE * alone):
            break
    if best is None or best[0] > MUST_LEAVE * alone:
        return None
    _, light, regression = best
    return _corrected(pixels, found, light.correction(pixels, weights, blurred, fit_robustly(regression)))


def _orders_from(field: SmoothField) -> list[int]:
    """Those that are looked at again where a field was found before."""
    return [order for order in ORDERS if order >= field.order][:ORDERS_AGAIN]


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
        terms = cosine_terms(order, pixels.positions)
        mean = np.average(terms, axis=1, weights=weights)
        return cls(order, mean, (terms - mean[:, None]).T, common)

    def unknowns(self, bands: int) -> float:
        """Per band."""
        return len(self.mean) * (1 + (1 / bands if self.common else 1))

    def regression(self, pixels: CoarsePixels, weights: Floats, blurred: Floats) -> Regression:
        designs, ridges, orders = [], [], order_of_terms(self.order) ** 2
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


def _with_bend(
    pixels: CoarsePixels, found: Found, *, must_leave: float, before: SmoothField | None = None
) -> Found | None:
    """The same, warped by a smooth field of offsets: Gauss-Newton steps, from one order of cosines to the next.

    They start from the field that was found `before`. Without one it must show with cosines of a middle order already,
    unless any improvement is accepted.
    """
    # Misfit at edges is what shows a bend, so that most outliers keep their weight.
    weights = tukey_weights(found.fit.misfit, BEND_TUKEY, np.zeros(len(found.fit.misfit)))
    images = found.images()
    sampler = _BlurredMsi.of(pixels, images)
    step = partial(_bend_step, pixels, sampler, weights)
    nowhere = SmoothField(np.zeros((2, 1, 1)))
    orders = [order for order in ORDERS if PIXELS_PER_TERM * (1 + len(cosine_indices(order))) <= len(weights)]
    field, straight = step(nowhere, 0)
    if before is None and orders and must_leave < FORCED_BEND_MUST_LEAVE:
        _, signs = step(nowhere, min(ORDER_OF_SIGNS, orders[-1]))
        if signs > SIGNS_MUST_LEAVE * straight:
            return None
    field, straight = step(field, 0)
    best = straight, field
    if before is not None:
        field = before
        orders = [order for order in _orders_from(before) if order in orders]
    for order in orders:
        for _ in range(BEND_STEPS):
            field, level = step(field, order)
        if level < HIGHER_BEND_MUST_LEAVE * best[0]:
            best = level, field
    level, field = best
    if level > must_leave * straight or field.variation < SMALLEST_BEND:
        return None
    if field.steepness(pixels.fine_size) > STEEPEST_BEND:
        return None
    blocks = [(image, block.fine_start) for image, block in zip(images, pixels.blocks, strict=True)]
    blurred = sampler.at(field.at_points(*pixels.positions))

    @cache
    def bent() -> list[NDArray[np.float32]]:
        return [warped(image, field, start, pixels.fine_size) for image, start in blocks]

    return replace(found, images=bent, blurred=blurred, fit=pixels.explain_blurred(blurred), bend=field)


def _bend_step(
    pixels: CoarsePixels, sampler: _BlurredMsi, weights: Floats, field: SmoothField, order: int
) -> tuple[SmoothField, float]:
    """The field after a step, and the misfit that is left of unseen pixels, to first order."""
    terms = np.concatenate([np.ones((1, len(weights))), cosine_terms(order, pixels.positions)]).T
    seen, *slopes = sampler.at(field.at_points(*pixels.positions), slopes=True)
    own = pixels.predictors.shape[1]
    # What the hsi explains, how each band would change, and the band.
    tables = [
        np.concatenate([pixels.predictors, *(terms * slope[:, None] for slope in both), band[:, None]], axis=1)
        for band, *both in zip(seen, *slopes, strict=True)
    ]
    folds = [pixels.folds == fold for fold in range(FOLDS)]
    moments = [[(table[fold].T * weights[fold]) @ table[fold] for table in tables] for fold in folds]
    total = [np.sum(each, axis=0) for each in zip(*moments, strict=True)]
    penalty = BEND_RIDGE * np.tile(np.concatenate([[0.0], order_of_terms(order) ** 2]), 2)

    def solve(moments: Sequence[Floats], count: int) -> tuple[Floats, list[Floats]]:
        """The step of the coefficients, and for each band what it makes of the columns of its table."""
        gram, right, alone = np.diag(penalty + 1e-12), np.zeros(len(penalty)), []
        for moment in moments:
            found = solve_normal(moment[:own, :own], moment[:own, own:], 0.0)
            left = moment[own:, own:] - moment[own:, :own] @ found
            unit = float(left[-1, -1].clip(0)) / max(1, count) + 1e-300
            gram, right = gram + left[:-1, :-1] / unit, right - left[:-1, -1] / unit
            alone.append(found)
        step = np.asarray(np.linalg.solve(gram, right))
        moved = np.concatenate([step, [1.0]])
        return step, [np.concatenate([-found @ moved, moved]) for found in alone]

    error = np.zeros(len(seen))
    for fold, out in zip(folds, moments, strict=True):
        _, residuals = solve([all_ - each for all_, each in zip(total, out, strict=True)], int((~fold).sum()))
        error += [max(0.0, float(residual @ each @ residual)) for residual, each in zip(residuals, out, strict=True)]
    step = solve(total, len(weights))[0].reshape(2, -1).clip(-1, 1)
    moved = _sum(field, SmoothField.from_terms(order, step[:, 1:], np.zeros(step.shape[1] - 1), step[:, 0]))
    return moved, pixels.level(error / (_variance(seen, weights) * max(1e-300, float(weights.sum()))))


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
        for image, block in zip(images, pixels.blocks, strict=True):
            axes = zip(image.shape[1:], pixels.sigma, block.detector, strict=True)
            rows, columns = (psf_matrix(size, size, 1.0, sigma, 0.0, detector) for size, sigma, detector in axes)
            blurred = separable(rows, columns, torch.from_numpy(np.nan_to_num(image)), known=True)
            splines.append(spline_of(blurred.numpy()))
        return cls(pixels, splines)

    def at(self, offsets: Floats, *, slopes: bool = False) -> Floats:
        """(M, n) Seen by the coarse pixels if they were moved by offsets (2, n) in fine pixels; with the slopes along
        both axes (3, M, n).
        """
        parts, first = [], 0
        for spline, block, (rows, _) in zip(self.splines, self.pixels.blocks, self.pixels.places, strict=True):
            span = slice(first, first + len(rows))
            first += len(rows)
            places = self.pixels.fine_positions[:, span] + offsets[:, span] - np.array(block.fine_start)[:, None]
            parts.append(spline_at(spline, *places, slopes=slopes))
        return np.concatenate(parts, axis=-1)


def _variance(images: Floats, weights: Floats) -> Floats:
    """(M,)"""
    mean = np.average(images, axis=1, weights=weights)
    return np.asarray(np.average((images - mean[:, None]) ** 2, axis=1, weights=weights)) + 1e-300
