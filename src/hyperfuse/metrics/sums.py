"""The sums of one window of two cubes; added up over windows they give what `metrics` gives for whole arrays.

SSIM's windows reach 5 pixels beyond their centre, so a window is read with that margin, which serves SSIM and UQI
alone.

The spectral angle (SAM): the angle between two spectra, per pixel, in degrees.

Shapes: fused, reference (band, y, x) as made by `pairing`; angles (y, x).

PSNR, RMSE and ERGAS from sums that add up over windows: the same numbers from a whole array and from a stream.

Shapes: fused, reference (band, y, x) as made by `pairing`; every field of `ErrorSums` (band,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperfuse.metrics.pairing import Comparison, Floats, blank_incomparable, per_band_mean
from hyperfuse.metrics.similarity import MARGIN, SimilaritySums, no_similarity, similarity_sums


def spectral_angles_degrees(fused: Floats, reference: Floats) -> Floats:
    """Angles over the bands a pixel has in both images, NaN where it has none.

    Kahan's form, 2 atan2(|u - v|, |u + v|) of the unit spectra, keeps full accuracy at small angles, where arccos of
    the cosine loses half the digits and gives identical spectra an angle. Two black pixels are alike (0 degrees); a
    black one has nothing in common with one that is not (cosine 0, 90 degrees).
    """
    fused_norm, reference_norm = _norms(fused), _norms(reference)
    fused_unit, reference_unit = _inverse(fused_norm), _inverse(reference_norm)
    difference, total = np.zeros(fused.shape[1:]), np.zeros(fused.shape[1:])
    for fused_band, reference_band in zip(fused, reference, strict=True):
        u, v = fused_band * fused_unit, reference_band * reference_unit
        difference += np.nan_to_num(np.square(u - v))
        total += np.nan_to_num(np.square(u + v))
    angles: Floats = np.degrees(2 * np.arctan2(np.sqrt(difference), np.sqrt(total)))
    angles[np.isnan(fused).all(axis=0)] = np.nan
    return angles


def angle_sum(fused: Floats, reference: Floats) -> tuple[float, int]:
    """Sum of the angles and number of pixels; they add up over windows."""
    angles = spectral_angles_degrees(fused, reference)
    counted = angles[np.isfinite(angles)]
    return float(counted.sum()), counted.size


def _norms(spectra: Floats) -> Floats:
    squared = np.zeros(spectra.shape[1:])
    for band in spectra:
        squared += np.nan_to_num(np.square(band))
    return np.sqrt(squared)


def _inverse(norm: Floats) -> Floats:
    inverse = np.zeros(norm.shape)
    inverse[norm > 0] = 1 / norm[norm > 0]
    return inverse


# A band mean below this part of the band's root mean square is rounding noise around zero, not a brightness to divide
# by.
ZERO_MEAN = 1e-9


@dataclass(frozen=True, eq=False)
class ErrorSums:
    count: NDArray[np.int64]
    squared_error: Floats
    reference: Floats
    squared_reference: Floats

    def __add__(self, other: ErrorSums) -> ErrorSums:
        return ErrorSums(
            self.count + other.count,
            self.squared_error + other.squared_error,
            self.reference + other.reference,
            self.squared_reference + other.squared_reference,
        )

    @property
    def compared(self) -> NDArray[np.bool_]:
        """Bands with anything to compare."""
        return self.count > 0


def no_errors(bands: int) -> ErrorSums:
    """The sums of nothing, to which windows are added."""
    return ErrorSums(np.zeros(bands, np.int64), np.zeros(bands), np.zeros(bands), np.zeros(bands))


def error_sums(fused: Floats, reference: Floats) -> ErrorSums:
    sums = no_errors(len(fused))
    for band, (fused_band, reference_band) in enumerate(zip(fused, reference, strict=True)):
        comparable = np.isfinite(reference_band)
        wanted = reference_band[comparable]
        error = fused_band[comparable] - wanted
        sums.count[band] = wanted.size
        sums.squared_error[band] = np.square(error).sum()
        sums.reference[band] = wanted.sum()
        sums.squared_reference[band] = np.square(wanted).sum()
    return sums


def band_mean_squared_error(sums: ErrorSums) -> Floats:
    """Per band; NaN where a band has nothing to compare."""
    return per_band_mean(sums.squared_error, sums.count)


def band_psnr_db(sums: ErrorSums, peak: float) -> Floats:
    """10 log10(peak^2 / MSE) per band: infinite for a band without error, NaN for one with nothing to compare."""
    error = band_mean_squared_error(sums)
    psnr_db = np.full(error.shape, np.inf)
    imperfect = error != 0
    psnr_db[imperfect] = 10 * np.log10(peak**2 / error[imperfect])
    return psnr_db


def pooled_mean_squared_error(sums: ErrorSums) -> float:
    return float(sums.squared_error.sum() / sums.count.sum())


def pooled_psnr_db(sums: ErrorSums, peak: float) -> float:
    error = pooled_mean_squared_error(sums)
    return float(10 * np.log10(peak**2 / error)) if error > 0 else float("inf")


def mean_band_psnr_db(sums: ErrorSums, peak: float) -> float:
    """Mean over bands. A band without error (as a rule a dead one) has no finite PSNR and does not count, unless all
    are.
    """
    bands = band_psnr_db(sums, peak)
    finite = bands[np.isfinite(bands)]
    return float(finite.mean()) if finite.size else float("inf")


def bands_with_mean(sums: ErrorSums) -> NDArray[np.bool_]:
    """Bands over whose mean ERGAS may divide: compared, and not of mean zero."""
    mean = per_band_mean(sums.reference, sums.count)
    root_mean_square = np.sqrt(per_band_mean(sums.squared_reference, sums.count))
    return np.abs(mean) > ZERO_MEAN * root_mean_square


def ergas(sums: ErrorSums, scale: float) -> float:
    """100/S sqrt(mean over bands of MSE_b / mean_b^2), over bands whose mean is not zero; NaN where there is none."""
    usable = bands_with_mean(sums)
    if not usable.any():
        return float("nan")
    mean = sums.reference[usable] / sums.count[usable]
    relative = band_mean_squared_error(sums)[usable] / mean**2
    return float(100 / scale * np.sqrt(relative.mean()))


@dataclass(frozen=True, eq=False)
class WindowSums:
    errors: ErrorSums
    similarity: SimilaritySums
    angle_degrees: float
    pixels: int
    reference_values: int
    """How many values the reference has, whether or not the fused image has them."""

    def __add__(self, other: WindowSums) -> WindowSums:
        return WindowSums(
            self.errors + other.errors,
            self.similarity + other.similarity,
            self.angle_degrees + other.angle_degrees,
            self.pixels + other.pixels,
            self.reference_values + other.reference_values,
        )


def no_sums(bands: int) -> WindowSums:
    return WindowSums(no_errors(bands), no_similarity(bands), 0.0, 0, 0)


def window_sums(comparison: Comparison, rows: slice, columns: slice) -> WindowSums:
    height, width = comparison.reference.shape[1:]
    wide_rows, core_rows = _with_margin(rows, height)
    wide_columns, core_columns = _with_margin(columns, width)
    core = (slice(None), core_rows, core_columns)
    fused, reference = comparison.read_pair(wide_rows, wide_columns, comparison.bands)
    reference_values = int(np.count_nonzero(np.isfinite(reference[core])))
    blank_incomparable(fused, reference)
    errors = error_sums(fused[core], reference[core])
    return WindowSums(
        errors,
        similarity_sums(fused, reference, comparison.peak),
        *angle_sum(fused[core], reference[core]),
        reference_values,
    )


def _with_margin(window: slice, size: int) -> tuple[slice, slice]:
    """The window widened by SSIM's margin as far as the image goes, and where the window lies within that."""
    start, stop = max(window.start - MARGIN, 0), min(window.stop + MARGIN, size)
    return slice(start, stop), slice(window.start - start, window.stop - start)
