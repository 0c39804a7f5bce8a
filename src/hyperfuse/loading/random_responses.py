"""Random spectral responses that could be a sensor's: smooth, non-negative, in the order of their wavelengths.

Shapes: C hsi bands, M msi bands.

They are drawn on an axis from 0 to 1 along the hsi's spectrum: wavelength, or its logarithm (real sensors have many narrow bands in
the visible and few wide ones in the infrared), or the number of the band where wavelengths are unknown. What varies: how much of
the spectrum they cover, how regular they stand, how wide they are (from gaps between them to more than their distance, with a
panchromatic one now and then), how flat or pointed, how lopsided, with ripples and with a small second lobe, as filters have them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

FloatArray = NDArray[np.float64]

WHOLE_SPECTRUM = 0.5
SHORTEST_COVERAGE = 0.3
PANCHROMATIC = 0.15
SECOND_LOBE = 0.2
# FWHM over the distance between bands, and exponent of the flank (2 is a Gaussian, 8 nearly a box): both log-uniform.
FILLING = (0.3, 2.0)
FLATNESS = (1.5, 8.0)
# A response narrower than this many hsi bands could fall between two of them.
NARROWEST_IN_BANDS = 1.5
# Neighbours further apart than this many usual distances, of so many around, have a hole (removed water bands) between them.
HOLE_IN_SPACINGS = 2.5
NEIGHBOURS = 11


def random_response(
    generator: np.random.Generator, msi_bands: int, bands: int, wavelength_nm: FloatArray | None = None
) -> FloatArray:
    """(M, C) float64, rows sum to 1, sorted by centre. Without wavelengths they are smooth over the band index instead."""
    logarithmic = generator.random() < 0.5
    position, width = _axis(bands, wavelength_nm, logarithmic=logarithmic)
    centres, fwhm = _layout(generator, msi_bands)
    # A centre in a hole of the spectrum moves to the nearest band, so that every response sees something.
    nearest = np.abs(position - centres[:, None]).argmin(axis=1)
    centres = position[nearest] + width[nearest] * generator.uniform(-0.5, 0.5, msi_bands)
    order = np.argsort(centres)
    centres, fwhm = centres[order], np.maximum(fwhm, NARROWEST_IN_BANDS * width[nearest])[order]
    weights = _curves(generator, position, centres, fwhm) * width
    normalised: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _axis(bands: int, wavelength_nm: FloatArray | None, *, logarithmic: bool) -> tuple[FloatArray, FloatArray]:
    """Where each band lies between 0 and 1, and the stretch of that axis it stands for."""
    if bands == 1:
        return np.zeros(1), np.ones(1)
    position = np.arange(bands, dtype=np.float64) if wavelength_nm is None else wavelength_nm
    if wavelength_nm is not None and logarithmic:
        position = np.log(wavelength_nm)
    length = float(np.ptp(position))
    position = (position - position.min()) / (length if length > 0 else 1.0)
    order = np.argsort(position, kind="stable")
    # Bands at one and the same wavelength still count for something.
    gaps = np.maximum(np.diff(position[order]), 1e-6)
    usual = median_filter(gaps, NEIGHBOURS, mode="nearest")
    half_cells = np.where(gaps > HOLE_IN_SPACINGS * usual, usual, gaps) / 2
    width = np.empty(bands)
    width[order] = np.concatenate([half_cells[:1], half_cells]) + np.concatenate([half_cells, half_cells[-1:]])
    return position, width


def _layout(generator: np.random.Generator, msi_bands: int) -> tuple[FloatArray, FloatArray]:
    """Centres and full widths at half maximum along the axis: each band in a cell of its own of the covered stretch."""
    length = 1.0 if generator.random() < WHOLE_SPECTRUM else generator.uniform(SHORTEST_COVERAGE, 1.0)
    start = generator.uniform(0.0, 1.0 - length)
    # Gamma-distributed cells go from nearly arbitrary (shape 1) to nearly regular.
    cells = generator.gamma(generator.uniform(1.0, 8.0), size=msi_bands) + 1e-3
    cells *= length / cells.sum()
    centres = start + np.cumsum(cells) - cells * generator.uniform(0.35, 0.65, msi_bands)
    fwhm = cells * _log_uniform(generator, *FILLING) * np.exp(0.25 * generator.standard_normal(msi_bands))
    if msi_bands > 1 and generator.random() < PANCHROMATIC:
        wide = generator.integers(msi_bands)
        centres[wide] = start + length * generator.uniform(0.35, 0.65)
        fwhm[wide] = length * generator.uniform(0.5, 1.0)
    return centres, fwhm


def _curves(generator: np.random.Generator, position: FloatArray, centres: FloatArray, fwhm: FloatArray) -> FloatArray:
    """(M, C): a lopsided generalised Gaussian each, rippled, some with a second lobe."""
    count = centres.size
    flatness = _log_uniform(generator, *FLATNESS) * np.exp(generator.uniform(-0.2, 0.2, count))
    skew = generator.uniform(-0.3, 0.3, count)
    ripple = generator.uniform(0.0, 0.2, count)
    frequency, phase = generator.uniform(0.5, 1.5, count), generator.random(count)
    lobe = np.where(generator.random(count) < SECOND_LOBE, generator.uniform(0.0, 0.15, count), 0.0)
    lobe_centre = generator.random(count)

    offset = (position - centres[:, None]) / fwhm[:, None]
    side = np.exp(np.where(offset < 0, skew[:, None], -skew[:, None]))
    main = np.exp2(-(np.abs(2 * offset * side) ** flatness[:, None]))
    main *= 1 + ripple[:, None] * np.cos(2 * math.pi * (frequency[:, None] * offset + phase[:, None]))
    second = np.exp2(-((2 * (position - lobe_centre[:, None]) / fwhm[:, None]) ** 2))
    curves: FloatArray = main + lobe[:, None] * second
    return curves


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return math.exp(generator.uniform(math.log(low), math.log(high)))
