"""A smooth field of offsets from those of single windows: how far, and where differently, an hsi looks beyond its
georeference.

Shapes: n windows, p places; rows and columns are fine pixels of the pair. An offset d at a place q says that the hsi
pixel which the georeference puts at q truly looks at q + d, as in `degradation/point_spread.py`.

The field is a Gaussian process around the offset of the whole scene: it follows the windows where they agree, and
returns to the scene's offset where they are few or poor. How far it may vary, over what distance, and how far windows
are off, is what makes the windows most likely; windows that the others make very unlikely are left out.
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

LEAST_EXPLAINED = 0.5
FEWEST_WINDOWS = 6
# Standard errors of the windows assume that what they cannot explain is white noise; it is not.
UNDERSTATED = 3.0
# What is tried, in fine pixels, and for the distance in lengths of the scene's longer side.
AMPLITUDES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
DISTANCES = (0.15, 0.25, 0.4, 0.7, 1.2, 2.0)
WINDOW_ERRORS = (0.01, 0.03, 0.1, 0.3, 1.0)
UNCERTAINTY_OF_START = 3.0
# Log likelihood that a varying field must gain over one offset for all.
LEAST_EVIDENCE = 5.0
UNLIKELY = 4.0  # standard deviations
# Before that, gross errors are sorted out: by a polynomial of this degree for at least so many windows,
POLYNOMIALS = ((3, 40), (2, 20), (1, 10))
# and this many fine pixels, times the median where windows are further off than that.
ROUGH_ERROR, ROUGHLY = 0.2, 5.0
NODES = 33
WELL_KNOWN = 0.2  # fine pixels


@dataclass(frozen=True)
class WindowOffset:
    """What one window says. Pairs are (y, x) in fine pixels."""

    place: tuple[float, float]
    offset: tuple[float, float]
    error: tuple[float, float]  # standard error
    explained: float  # share of the msi that the hsi explains there


@dataclass(frozen=True)
class OffsetField:
    """Offsets and their standard errors at nodes spread evenly over the pair, (2, NODES, NODES) each."""

    fine_size: tuple[int, int]
    start: tuple[float, float]
    """The offset of the whole scene."""
    offsets: Floats
    errors: Floats
    windows: tuple[WindowOffset, ...]
    used: tuple[bool, ...]
    """Which of the windows the field follows."""

    def at(self, rows: Floats, columns: Floats) -> Floats:
        """(2, ...) The offset at some places; beyond the pair that of its edge."""
        return _at_nodes(self.offsets, self.fine_size, rows, columns)

    def error_at(self, rows: Floats, columns: Floats) -> Floats:
        return _at_nodes(self.errors, self.fine_size, rows, columns)

    def moved(self, by: tuple[float, float]) -> OffsetField:
        """The same field counted from another start."""
        windows = [replace(each, offset=(each.offset[0] + by[0], each.offset[1] + by[1])) for each in self.windows]
        start = self.start[0] + by[0], self.start[1] + by[1]
        return replace(self, start=start, offsets=self.offsets + np.array(by)[:, None, None], windows=tuple(windows))

    def difference(self, other: OffsetField) -> float:
        """Root mean square distance between two fields, in fine pixels."""
        return float(np.sqrt(((self.offsets - other.offsets) ** 2).sum(axis=0).mean()))

    @property
    def mean(self) -> tuple[float, float]:
        return float(self.offsets[0].mean()), float(self.offsets[1].mean())

    @property
    def variation(self) -> float:
        """Root mean square of how far the offset differs from its own mean, in fine pixels."""
        return float(np.sqrt(self.offsets.var(axis=(1, 2)).sum()))

    @property
    def largest(self) -> float:
        """The longest offset, in fine pixels."""
        return float(np.hypot(*self.offsets).max())

    @property
    def error(self) -> float:
        """Standard error of the offset, the median over the scene, in fine pixels."""
        return float(np.median(np.hypot(*self.errors)))

    @property
    def confidence(self) -> float:
        """0 to 1: the share of the scene over which the offset is known to a fifth of a fine pixel."""
        return float((np.hypot(*self.errors) < WELL_KNOWN * math.sqrt(2)).mean())


def constant_field(fine_size: tuple[int, int], start: tuple[float, float], error: tuple[float, float]) -> OffsetField:
    """One offset for all places."""
    offsets, errors = (np.repeat(np.array(pair), NODES * NODES).reshape(2, NODES, NODES) for pair in (start, error))
    return OffsetField(fine_size, start, offsets, errors, (), ())


def fit_offset_field(
    windows: Sequence[WindowOffset], fine_size: tuple[int, int], start: tuple[float, float]
) -> OffsetField:
    """`start` is the offset of the whole scene, to which the field returns where windows say little."""
    used = np.array([window.explained >= LEAST_EXPLAINED for window in windows], dtype=bool)
    places, offsets, errors = (
        np.array([getattr(window, name) for window in windows]).reshape(-1, 2) for name in ("place", "offset", "error")
    )
    process = _agreed(places, offsets - np.array(start), errors, max(fine_size), used)
    if process is None:
        unknown = constant_field(fine_size, start, (UNCERTAINTY_OF_START, UNCERTAINTY_OF_START))
        return replace(unknown, windows=tuple(windows), used=(False,) * len(windows))
    nodes = np.meshgrid(*(np.linspace(0, size - 1, NODES) for size in fine_size), indexing="ij")
    found, spread = process.at(np.stack([axis.ravel() for axis in nodes], axis=1))
    return OffsetField(
        fine_size=fine_size,
        start=start,
        offsets=(found + np.array(start)).T.reshape(2, NODES, NODES),
        errors=spread.T.reshape(2, NODES, NODES),
        windows=tuple(windows),
        used=tuple(used.tolist()),
    )


def _agreed(places: Floats, deviations: Floats, errors: Floats, size: int, used: NDArray[np.bool_]) -> _Process | None:
    """What the windows say without those that disagree, which are struck off `used`; None where too few are left."""
    if used.sum() >= FEWEST_WINDOWS:
        used[used] = _roughly_agree(places[used] / size, deviations[used], errors[used])
    while used.sum() >= FEWEST_WINDOWS:
        process = _most_likely(places[used], deviations[used], errors[used], size)
        unlikely = process.unlikeliness() > UNLIKELY
        if not unlikely.any():
            return process
        used[np.flatnonzero(used)[unlikely]] = False
    return None


def _roughly_agree(places: Floats, deviations: Floats, errors: Floats) -> NDArray[np.bool_]:
    """(n,) Whether windows follow, far from strictly, a polynomial that is fitted so that gross errors hardly count."""
    degree = next((degree for degree, fewest in POLYNOMIALS if len(places) >= fewest), 0)
    powers = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]
    basis = np.stack([places[:, 0] ** i * places[:, 1] ** j for i, j in powers], axis=1)
    agree = np.ones(len(places), dtype=bool)
    for values, error in zip(deviations.T, errors.T, strict=True):
        width = ROUGH_ERROR + UNDERSTATED * error
        scaled, wanted = basis / width[:, None], values / width
        start = np.zeros(len(powers))
        start[0] = np.median(values)
        fit = least_squares(_linear_misfit, start, loss="cauchy", args=(scaled, wanted))
        distance = np.abs(_linear_misfit(fit.x, scaled, wanted))
        agree &= distance <= ROUGHLY * max(1.0, float(np.median(distance)))
    return agree


def _linear_misfit(coefficients: Floats, basis: Floats, wanted: Floats) -> Floats:
    misfit: Floats = basis @ coefficients - wanted
    return misfit


@dataclass(frozen=True)
class _Process:
    """Windows at places (n, 2) that deviate from the start by (n, 2), with an error of variance (n, 2) each."""

    places: Floats
    deviations: Floats
    variances: Floats
    amplitude: float
    distance: float

    def _covariance(self, one: Floats, other: Floats) -> Floats:
        squared = ((one[:, None] - other[None]) ** 2).sum(axis=2)
        covariance: Floats = self.amplitude**2 * np.exp(-0.5 * squared / self.distance**2) + UNCERTAINTY_OF_START**2
        return covariance

    @cached_property
    def _factors(self) -> list[tuple[Floats, bool]]:
        """Cholesky factors of the covariance of the windows, one for each axis."""
        covariance = self._covariance(self.places, self.places)
        return [cho_factor(covariance + np.diag(variance), lower=True) for variance in self.variances.T]

    def evidence(self) -> float:
        """Log likelihood of the windows, up to a constant."""
        total = 0.0
        for factor, values in zip(self._factors, self.deviations.T, strict=True):
            total -= 0.5 * float(values @ cho_solve(factor, values)) + float(np.log(np.diag(factor[0])).sum())
        return total

    def unlikeliness(self) -> Floats:
        """(n,) How many standard deviations each window is from what all others make of its place, along the worse
        axis.
        """
        distances = []
        for factor, values in zip(self._factors, self.deviations.T, strict=True):
            inverse = cho_solve(factor, np.eye(len(values)))
            distances.append(np.abs(inverse @ values) / np.sqrt(np.diag(inverse)))
        worst: Floats = np.maximum(*distances)
        return worst

    def at(self, places: Floats) -> tuple[Floats, Floats]:
        """(p, 2) The most likely deviations at other places, and their standard errors."""
        shared = self._covariance(places, self.places)
        own = self.amplitude**2 + UNCERTAINTY_OF_START**2
        found, spread = [], []
        for factor, values in zip(self._factors, self.deviations.T, strict=True):
            found.append(shared @ cho_solve(factor, values))
            spread.append(np.sqrt(np.maximum(0, own - (shared.T * cho_solve(factor, shared.T)).sum(axis=0))))
        return np.stack(found, axis=1), np.stack(spread, axis=1)


def _most_likely(places: Floats, deviations: Floats, errors: Floats, size: int) -> _Process:
    """One offset for all places, unless a field that varies makes the windows much more likely."""

    def best(amplitudes: Sequence[float], distances: Sequence[float]) -> _Process:
        trials = [
            _Process(places, deviations, (UNDERSTATED * errors) ** 2 + window_error**2, amplitude, distance * size)
            for amplitude, distance, window_error in itertools.product(amplitudes, distances, WINDOW_ERRORS)
        ]
        return max(trials, key=_Process.evidence)

    constant, varying = best((0.0,), (1.0,)), best(AMPLITUDES, DISTANCES)
    return varying if varying.evidence() > constant.evidence() + LEAST_EVIDENCE else constant


def _at_nodes(values: Floats, fine_size: tuple[int, int], rows: Floats, columns: Floats) -> Floats:
    at = [axis * (NODES - 1) / max(1, size - 1) for axis, size in zip((rows, columns), fine_size, strict=True)]
    return np.stack([map_coordinates(plane, at, order=3, mode="nearest") for plane in values])
