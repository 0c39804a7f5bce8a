"""Metrics of a fused image against its reference: pure functions on arrays (band, y, x).

`valid` (broadcastable, True where values count) excludes nodata and bad bands; what is not finite in either image is
excluded anyway. Sums are in float64. A metric that is not defined for the images at hand is NaN. Definitions:
docs/metrics.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hyperfuse.metrics import sums as errors
from hyperfuse.metrics.pairing import Floats, comparable_pair, default_peak, require_positive
from hyperfuse.metrics.similarity import SimilaritySums, q2n_sum, similarity_sums
from hyperfuse.metrics.sums import angle_sum

__all__ = [
    "band_psnr_db",
    "band_rmse",
    "band_ssim",
    "band_uqi",
    "default_peak",
    "ergas",
    "mean_band_psnr_db",
    "psnr_db",
    "q2n",
    "rmse",
    "spectral_angle_degrees",
    "ssim",
    "uqi",
]


def psnr_db(fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None) -> float:
    """Pooled PSNR: one mean squared error over all bands and pixels, as in the paper; infinite for equal images."""
    return errors.pooled_psnr_db(_error_sums(fused, reference, valid), _peak(peak, reference, valid))


def mean_band_psnr_db(
    fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None
) -> float:
    """Mean over bands of each band's PSNR; bands without any error do not count, unless all are."""
    return errors.mean_band_psnr_db(_error_sums(fused, reference, valid), _peak(peak, reference, valid))


def band_psnr_db(
    fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None
) -> Floats:
    return errors.band_psnr_db(_error_sums(fused, reference, valid), _peak(peak, reference, valid))


def rmse(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    return float(np.sqrt(errors.pooled_mean_squared_error(_error_sums(fused, reference, valid))))


def band_rmse(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> Floats:
    return np.sqrt(errors.band_mean_squared_error(_error_sums(fused, reference, valid)))


def ergas(fused: ArrayLike, reference: ArrayLike, scale: float, valid: ArrayLike | None = None) -> float:
    """100/S sqrt(mean_b MSE_b / mean_b^2); bands of mean zero do not count."""
    return errors.ergas(_error_sums(fused, reference, valid), require_positive("scale", scale))


def spectral_angle_degrees(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """SAM: the angle between the spectra, mean over pixels. Black against black is 0, black against anything else 90
    degrees.
    """
    total, pixels = angle_sum(*comparable_pair(fused, reference, valid))
    return total / pixels


def ssim(fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None) -> float:
    """Mean over bands of SSIM; NaN where no 11 x 11 window fits into the valid part of any band."""
    return mean_of_defined(band_ssim(fused, reference, peak, valid))


def band_ssim(
    fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None
) -> Floats:
    return _similarity(fused, reference, _peak(peak, reference, valid), valid).band_ssim


def uqi(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Mean over bands of the universal quality index, in the same windows as SSIM."""
    return mean_of_defined(band_uqi(fused, reference, valid))


def band_uqi(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> Floats:
    return _similarity(fused, reference, 1.0, valid).band_uqi


def q2n(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Q2n, mean over 32 x 32 blocks that are whole and valid in every compared band; NaN where there is none."""
    fused_values, reference_values = comparable_pair(fused, reference, valid)
    compared = np.isfinite(fused_values).any(axis=(1, 2))
    total, blocks = q2n_sum(fused_values[compared], reference_values[compared])
    return total / blocks if blocks else float("nan")


def mean_of_defined(values: Floats) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if defined.size else float("nan")


def _error_sums(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None) -> errors.ErrorSums:
    return errors.error_sums(*comparable_pair(fused, reference, valid))


def _similarity(fused: ArrayLike, reference: ArrayLike, peak: float, valid: ArrayLike | None) -> SimilaritySums:
    return similarity_sums(*comparable_pair(fused, reference, valid), peak)


def _peak(peak: float | None, reference: ArrayLike, valid: ArrayLike | None) -> float:
    return default_peak(reference, valid) if peak is None else require_positive("peak", peak)
