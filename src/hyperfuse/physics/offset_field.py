"""A smooth field of offsets from those of single windows: where, and how much, an hsi departs from its georeference.

Shapes: n windows, p places; rows and columns are fine pixels of the pair. An offset d at a place q means that the hsi
pixel which the georeference puts at q shows the ground at q + d.

The field is a Gaussian process [1]_ around the offset of the whole scene: it follows the windows where they agree, and
returns to the scene's offset where they are few or poor. Its amplitude and length scale, and the error of the windows,
maximise the likelihood of the windows; outliers are left out.

References
----------
.. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press, 2006, chapter 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.ndimage import map_coordinates
from scipy.optimize import least_squares

Floats = NDArray[np.float64]
Pair = tuple[float, float]

LEAST_EXPLAINED = 0.5
FEWEST_WINDOWS = 6
# Standard errors of the windows assume that what they cannot explain is white noise; it is not.
ERROR_FACTOR = 3.0
# What is tried, in fine pixels; length scales in units of the scene's longer side.
AMPLITUDES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
LENGTH_SCALES = (0.15, 0.25, 0.4, 0.7, 1.2, 2.0)
WINDOW_ERRORS = (0.01, 0.03, 0.1, 0.3, 1.0)
START_ERROR = 3.0
# Log likelihood that a varying field must gain over a constant one.
LEAST_EVIDENCE = 5.0
OUTLIER_SIGMAS = 4.0
# Before the process, gross outliers are removed: by a polynomial of this degree for at least this many windows,
POLYNOMIALS = ((3, 40), (2, 20), (1, 10))
# and this many fine pixels, times the median distance where that is larger.
POLYNOMIAL_ERROR, POLYNOMIAL_SIGMAS = 0.2, 5.0
NODES = 33
WELL_KNOWN = 0.2  # fine pixels


@dataclass(frozen=True)
class WindowOffset:
    """The offset of one window; pairs are (y, x) in fine pixels."""

    place: Pair
    offset: Pair
    error: Pair  # standard error
    explained: float  # share of the msi that the hsi explains there


@dataclass(frozen=True)
class OffsetField:
    """Offsets and their standard errors at nodes spread evenly over the pair, (2, NODES, NODES) each."""

    fine_size: tuple[int, int]
    start: Pair  # the offset of the whole scene
    offsets: Floats
    errors: Floats
    windows: tuple[WindowOffset, ...]
    used: tuple[bool, ...]  # which of the windows the field follows

    def at(self, rows: Floats, columns: Floats) -> Floats:
        """Interpolate the offset, (2, ...), at some places; outside the pair it is that of the edge."""
        axes = zip((rows, columns), self.fine_size, strict=True)
        nodes = [axis * (NODES - 1) / max(1, size - 1) for axis, size in axes]
        return np.stack([map_coordinates(plane, nodes, order=3, mode="nearest") for plane in self.offsets])

    def moved(self, by: Pair) -> OffsetField:
        """Return the same field counted from another origin."""
        windows = [replace(each, offset=(each.offset[0] + by[0], each.offset[1] + by[1])) for each in self.windows]
        start = self.start[0] + by[0], self.start[1] + by[1]
        return replace(self, start=start, offsets=self.offsets + np.array(by)[:, None, None], windows=tuple(windows))

    def difference(self, other: OffsetField) -> float:
        """Root mean square distance between two fields, in fine pixels."""
        return float(np.sqrt(((self.offsets - other.offsets) ** 2).sum(axis=0).mean()))

    @property
    def mean(self) -> Pair:
        return float(self.offsets[0].mean()), float(self.offsets[1].mean())

    @property
    def variation(self) -> float:
        """Root mean square deviation of the offset from its mean, in fine pixels."""
        return float(np.sqrt(self.offsets.var(axis=(1, 2)).sum()))

    @property
    def largest(self) -> float:
        """Length of the longest offset, in fine pixels."""
        return float(np.hypot(*self.offsets).max())

    @property
    def error(self) -> float:
        """Standard error of the offset, the median over the scene, in fine pixels."""
        return float(np.median(np.hypot(*self.errors)))

    @property
    def confidence(self) -> float:
        """0 to 1: the share of the scene over which the offset is known to a fifth of a fine pixel."""
        return float((np.hypot(*self.errors) < WELL_KNOWN * math.sqrt(2)).mean())


def constant_field(fine_size: tuple[int, int], start: Pair, error: Pair) -> OffsetField:
    """Make a field of one offset everywhere."""
    offsets, errors = (np.broadcast_to(np.array(pair)[:, None, None], (2, NODES, NODES)) for pair in (start, error))
    return OffsetField(fine_size, start, offsets, errors, (), ())


def fit_offset_field(windows: Sequence[WindowOffset], fine_size: tuple[int, int], start: Pair) -> OffsetField:
    """Fit a field to windows; `start` is the offset of the whole scene, to which it returns where windows are few."""
    used = np.array([window.explained >= LEAST_EXPLAINED for window in windows], dtype=bool)
    columns = ([getattr(window, name) for window in windows] for name in ("place", "offset", "error"))
    places, offsets, errors = (np.array(column).reshape(-1, 2) for column in columns)
    process = _fit_process(places, offsets - np.array(start), errors, max(fine_size), used)
    if process is None:
        unknown = constant_field(fine_size, start, (START_ERROR, START_ERROR))
        return replace(unknown, windows=tuple(windows), used=(False,) * len(windows))
    nodes = np.meshgrid(*(np.linspace(0, size - 1, NODES) for size in fine_size), indexing="ij")
    deviations, spread = process.predict(np.stack([axis.ravel() for axis in nodes], axis=1))
    field, error = (image.T.reshape(2, NODES, NODES) for image in (deviations + np.array(start), spread))
    return OffsetField(fine_size, start, field, error, tuple(windows), tuple(used.tolist()))


def _fit_process(
    places: Floats, deviations: Floats, errors: Floats, size: int, used: NDArray[np.bool_]
) -> _Process | None:
    """The process of the windows that agree, with the others removed from `used`; None where too few are left."""
    if used.sum() >= FEWEST_WINDOWS:
        used[used] = _near_polynomial(places[used] / size, deviations[used], errors[used])
    while used.sum() >= FEWEST_WINDOWS:
        process = _most_likely(places[used], deviations[used], errors[used], size)
        outliers = process.leave_one_out_sigmas() > OUTLIER_SIGMAS
        if not outliers.any():
            return process
        used[np.flatnonzero(used)[outliers]] = False
    return None


def _linear_misfit(coefficients: Floats, basis: Floats, target: Floats) -> Floats:
    return np.asarray(basis @ coefficients - target)


def _near_polynomial(places: Floats, deviations: Floats, errors: Floats) -> NDArray[np.bool_]:
    """(n,) Whether windows lie near a polynomial that is fitted robustly."""
    degree = next((degree for degree, fewest in POLYNOMIALS if len(places) >= fewest), 0)
    powers = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]
    basis = np.stack([places[:, 0] ** i * places[:, 1] ** j for i, j in powers], axis=1)
    near = np.ones(len(places), dtype=bool)
    for values, error in zip(deviations.T, errors.T, strict=True):
        width = POLYNOMIAL_ERROR + ERROR_FACTOR * error
        scaled, target = basis / width[:, None], values / width
        start = np.append(np.median(values), np.zeros(len(powers) - 1))
        fit = least_squares(_linear_misfit, start, loss="cauchy", args=(scaled, target))
        distance = np.abs(_linear_misfit(fit.x, scaled, target))
        near &= distance <= POLYNOMIAL_SIGMAS * max(1.0, float(np.median(distance)))
    return near


def _most_likely(places: Floats, deviations: Floats, errors: Floats, size: int) -> _Process:
    """A constant offset, unless a field that varies makes the windows much more likely."""

    def best(amplitudes: Sequence[float], lengths: Sequence[float]) -> _Process:
        trials = [
            _Process(places, deviations, (ERROR_FACTOR * errors) ** 2 + window_error**2, amplitude, length * size)
            for amplitude, length, window_error in itertools.product(amplitudes, lengths, WINDOW_ERRORS)
        ]
        return max(trials, key=_Process.evidence)

    constant, varying = best((0.0,), (1.0,)), best(AMPLITUDES, LENGTH_SCALES)
    return varying if varying.evidence() > constant.evidence() + LEAST_EVIDENCE else constant


@dataclass(frozen=True)
class _Process:
    """Windows at places (n, 2) that deviate from the start by (n, 2), with an error of variance (n, 2) each."""

    places: Floats
    deviations: Floats
    variances: Floats
    amplitude: float
    length: float

    def _covariance(self, one: Floats, other: Floats) -> Floats:
        squared = ((one[:, None] - other[None]) ** 2).sum(axis=2)
        return np.asarray(self.amplitude**2 * np.exp(-0.5 * squared / self.length**2) + START_ERROR**2)

    @cached_property
    def _axes(self) -> list[tuple[tuple[Floats, bool], Floats]]:
        """For each axis the Cholesky factor of the covariance of the windows, and their deviations."""
        covariance = self._covariance(self.places, self.places)
        factors = [cho_factor(covariance + np.diag(variance), lower=True) for variance in self.variances.T]
        return list(zip(factors, self.deviations.T, strict=True))

    def evidence(self) -> float:
        """Log likelihood of the windows, up to a constant."""
        return -sum(
            0.5 * float(values @ cho_solve(factor, values)) + float(np.log(np.diag(factor[0])).sum())
            for factor, values in self._axes
        )

    def leave_one_out_sigmas(self) -> Floats:
        """(n,) Distance of each window from the prediction of all others, in standard deviations, the larger axis."""
        distances = []
        for factor, values in self._axes:
            inverse = cho_solve(factor, np.eye(len(values)))
            distances.append(np.abs(inverse @ values) / np.sqrt(np.diag(inverse)))
        return np.asarray(np.maximum(*distances))

    def predict(self, places: Floats) -> tuple[Floats, Floats]:
        """(p, 2) The most likely deviations at other places, and their standard errors."""
        shared = self._covariance(places, self.places)
        own = self.amplitude**2 + START_ERROR**2
        means, spreads = [], []
        for factor, values in self._axes:
            means.append(shared @ cho_solve(factor, values))
            spreads.append(np.sqrt(np.maximum(0, own - (shared.T * cho_solve(factor, shared.T)).sum(axis=0))))
        return np.stack(means, axis=1), np.stack(spreads, axis=1)
