"""How a response curve falls onto the bands of an HSI: which part of it they cover, and the weight of each band.

An MSI band sees  integral r(l) L(l) dl / integral r(l) dl  of the light L. The HSI knows L only through its bands, so the integral
becomes a sum over them,  weight_c = width_c * r_c,  normalised to sum 1, where

    width_c   the stretch of spectrum that band c stands for: half-way to its neighbours by wavelength, whatever the bands' order
              (two detectors that overlap share the stretch), but never across a hole such as the removed water bands;
    r_c       the response averaged over the band's own Gaussian where its FWHM is known, the response at its centre where not.

A response narrower than two spacings could fall between the bands; for it each band is taken to be at least as wide as the spacing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperfuse.degradation.point_spread import FWHM_PER_SIGMA
from hyperfuse.degradation.response_curves import ResponseCurve

FloatArray = NDArray[np.float64]

# Neighbours further apart than this many usual spacings have a hole between them: one removed band is bridged, two are not.
HOLE_IN_SPACINGS = 2.5
# How many neighbours to each side say what the usual spacing is; sensors change theirs along the spectrum.
NEIGHBOURS = 5
# Stands for the width of the only band of an HSI whose FWHM is unknown.
LONE_BAND_NM = 1.0
# The band's Gaussian is sampled this finely, in sigmas; the sum is normalised.
GAUSSIAN_NODES = np.linspace(-4.0, 4.0, 161)


@dataclass(frozen=True, eq=False)
class BandLayout:
    """The usable bands of an HSI along the spectrum. Columns have one entry per HSI band, in its order, NaN where unusable."""

    wavelength_nm: FloatArray
    fwhm_nm: FloatArray
    usable: NDArray[np.bool_]
    spacing_nm: FloatArray
    width_nm: FloatArray
    covered_nm: FloatArray
    """(n, 2): the stretches of spectrum that the bands cover, sorted, without overlap."""

    @property
    def range_nm(self) -> tuple[float, float]:
        return float(self.covered_nm[0, 0]), float(self.covered_nm[-1, 1])


def lay_out_bands(wavelength_nm: FloatArray, fwhm_nm: FloatArray, usable: NDArray[np.bool_]) -> BandLayout:
    indices = np.flatnonzero(usable)
    order = indices[np.argsort(wavelength_nm[indices], kind="stable")]
    centres, fwhm = wavelength_nm[order], np.where(fwhm_nm[order] > 0, fwhm_nm[order], np.nan)
    gaps = np.diff(centres)
    spacing = _usual_spacing(gaps, fwhm)
    below = _half_cells(np.concatenate([[np.nan], gaps]), spacing)
    above = _half_cells(np.concatenate([gaps, [np.nan]]), spacing)
    covered = np.stack([centres - np.fmax(below, fwhm / 2), centres + np.fmax(above, fwhm / 2)], axis=1)

    def in_band_order(column: FloatArray) -> FloatArray:
        full = np.full(wavelength_nm.size, np.nan)
        full[order] = column
        return full

    return BandLayout(
        in_band_order(centres),
        in_band_order(fwhm),
        usable,
        in_band_order(spacing),
        in_band_order(below + above),
        _merged(covered),
    )


@dataclass(frozen=True)
class CoveredShare:
    """Which part of a curve's energy, 0 to 1, lies where the HSI has bands, and between its first and its last band."""

    on_bands: float
    in_range: float


def covered_share(curve: ResponseCurve, layout: BandLayout) -> CoveredShare:
    dense, values = _dense(curve)
    start, end = layout.range_nm
    energy = np.abs(values)
    return CoveredShare(
        on_bands=float(np.average(is_covered(dense, layout), weights=energy)),
        in_range=float(np.average((dense >= start) & (dense <= end), weights=energy)),
    )


def is_covered(wavelength_nm: FloatArray, layout: BandLayout) -> NDArray[np.bool_]:
    stretch = np.searchsorted(layout.covered_nm[:, 0], wavelength_nm, side="right") - 1
    inside: NDArray[np.bool_] = (stretch >= 0) & (wavelength_nm <= layout.covered_nm[stretch, 1])
    return inside


def covered_part(curve: ResponseCurve, layout: BandLayout) -> ResponseCurve:
    """The curve as the HSI can see it: nothing outside its coverage."""
    dense, values = _dense(curve)
    return ResponseCurve(curve.name, dense, np.where(is_covered(dense, layout), values, 0.0))


def band_weights(curve: ResponseCurve, layout: BandLayout) -> FloatArray:
    """The weight of each HSI band in one MSI band, (C,), sum 1; all zero where no band sees the response."""
    narrow = curve.fwhm_nm < 2 * layout.spacing_nm
    fwhm = np.fmax(np.where(narrow, layout.spacing_nm, 0.0), layout.fwhm_nm)
    centres = np.where(layout.usable, layout.wavelength_nm, 0.0)
    positions = centres[:, None] + np.nan_to_num(fwhm / FWHM_PER_SIGMA)[:, None] * GAUSSIAN_NODES
    gaussian = np.exp(-0.5 * GAUSSIAN_NODES**2)
    response = np.interp(positions, curve.wavelength_nm, curve.values, left=0.0, right=0.0) @ (gaussian / gaussian.sum())
    weights = np.where(layout.usable, response * np.nan_to_num(layout.width_nm), 0.0)
    total = weights.sum()
    return weights / total if total > 0 else np.zeros_like(weights)


def _usual_spacing(gaps: FloatArray, fwhm: FloatArray) -> FloatArray:
    """The larger of the median spacings below and above each band, so that the edge of a detector is not taken for a hole."""
    lone = np.where(np.isnan(fwhm), LONE_BAND_NM, fwhm)
    spacing = np.empty(fwhm.size)
    for i in range(fwhm.size):
        sides = (gaps[max(0, i - NEIGHBOURS) : i], gaps[i : i + NEIGHBOURS])
        # Bands at one and the same wavelength say nothing about the spacing.
        spacing[i] = max((float(np.median(side[side > 0])) for side in sides if (side > 0).any()), default=lone[i])
    return spacing


def _half_cells(gap: FloatArray, spacing: FloatArray) -> FloatArray:
    """Half-way to the neighbour on one side, or half the usual spacing at a hole and at either end of the spectrum."""
    return np.where(gap <= HOLE_IN_SPACINGS * spacing, gap, spacing) / 2


def _merged(stretches: FloatArray) -> FloatArray:
    merged: list[list[float]] = []
    for start, end in stretches[np.argsort(stretches[:, 0], kind="stable")]:
        # Cells that touch may miss each other by a rounding error.
        if merged and start <= merged[-1][1] + 1e-6:
            merged[-1][1] = max(merged[-1][1], float(end))
        else:
            merged.append([float(start), float(end)])
    return np.array(merged)


def _dense(curve: ResponseCurve) -> tuple[FloatArray, FloatArray]:
    """Samples close enough to add up, all of the same width."""
    start, end = curve.wavelength_nm[0], curve.wavelength_nm[-1]
    dense = np.linspace(start, end, int(np.clip((end - start) / 0.25, 1000, 100_000)) + 1)
    return dense, np.interp(dense, curve.wavelength_nm, curve.values)
