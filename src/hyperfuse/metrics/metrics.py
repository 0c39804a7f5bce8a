"""Metrics of a fused image against its reference: pure functions on arrays.

All of them share these parameters. Sums are in float64; a metric that is not defined for the images is NaN.

fused, reference : array_like, (band, y, x)
    The fused image and its reference; values that are not finite in either are excluded.
peak : float, optional
    The signal's peak (data range); by default that of `default_peak`.
valid : array_like of bool, optional
    Broadcastable to the images; False excludes nodata or bad bands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hyperfuse.metrics.sums import (
    ErrorSums,
    Floats,
    SimilaritySums,
    angle_sum,
    comparable_pair,
    default_peak,
    mean_of_defined,
    q2n_sum,
    require_positive,
)


def psnr_db(fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None) -> float:
    """Compute the peak signal-to-noise ratio, 10 log10(peak^2 / MSE), pooled over bands and pixels.

    Returns
    -------
    PSNR in dB; infinite for equal images.

    Examples
    --------
    >>> reference = np.full((3, 4, 4), 0.5)
    >>> round(psnr_db(reference + 0.1, reference), 6)
    20.0
    """
    return _errors(fused, reference, valid).psnr_db(_peak(peak, reference, valid))


def mean_band_psnr_db(
    fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None
) -> float:
    """Average the PSNR of each band, in dB; bands without any error do not count, unless all are. See `psnr_db`."""
    return _errors(fused, reference, valid).mean_band_psnr_db(_peak(peak, reference, valid))


def band_psnr_db(
    fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None
) -> Floats:
    """Compute the PSNR of each band, in dB; infinite for a band without error. See `psnr_db`."""
    return _errors(fused, reference, valid).band_psnr_db(_peak(peak, reference, valid))


def rmse(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Compute the root mean squared error, pooled over bands and pixels.

    Returns
    -------
    RMSE in the unit of the images.

    Examples
    --------
    >>> reference = np.full((3, 4, 4), 0.5)
    >>> round(rmse(reference + 0.1, reference), 6)
    0.1
    """
    return float(np.sqrt(_errors(fused, reference, valid).mse))


def band_rmse(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> Floats:
    """Compute the RMSE of each band; NaN for a band with nothing to compare. See `rmse`."""
    return np.sqrt(_errors(fused, reference, valid).band_mse)


def ergas(fused: ArrayLike, reference: ArrayLike, scale: float, valid: ArrayLike | None = None) -> float:
    """Compute ERGAS, the relative dimensionless global error in synthesis.

    100 / scale * sqrt(mean over bands of MSE_b / mean_b^2); bands of mean zero do not count.

    Parameters
    ----------
    scale
        Ratio of the coarse to the fine pixel size.

    Returns
    -------
    ERGAS in percent, 0 at best; NaN if all bands have a mean of zero.

    References
    ----------
    L. Wald, "Quality of high resolution synthesised images: is there a simple criterion?", Fusion of Earth Data, 2000.

    Examples
    --------
    >>> reference = np.full((3, 4, 4), 0.5)
    >>> round(ergas(reference + 0.1, reference, scale=4), 6)
    5.0
    """
    return _errors(fused, reference, valid).ergas(require_positive("scale", scale))


def sam_degrees(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Compute SAM, the angle between the spectra of the two images, averaged over pixels.

    Returns
    -------
    Mean angle in degrees: 0 between two black pixels, 90 between a black one and any other.

    References
    ----------
    F. A. Kruse et al., "The spectral image processing system (SIPS)", Remote Sensing of Environment 44, 1993.

    Examples
    --------
    >>> reference = np.array([1.0, 0.0]).reshape(2, 1, 1)
    >>> fused = np.array([1.0, 1.0]).reshape(2, 1, 1)
    >>> round(sam_degrees(fused, reference), 6)
    45.0
    """
    total, pixels = angle_sum(*comparable_pair(fused, reference, valid))
    return total / pixels


def ssim(fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None) -> float:
    """Compute the structural similarity in Gaussian windows of 11 x 11 pixels (sigma 1.5), averaged over bands.

    Returns
    -------
    SSIM, 1 at best; NaN if no window without missing pixels fits into any band.

    References
    ----------
    Z. Wang et al., "Image quality assessment: from error visibility to structural similarity", IEEE TIP 13, 2004.

    Examples
    --------
    >>> reference = np.random.default_rng(0).random((2, 16, 16))
    >>> round(ssim(reference, reference), 6)
    1.0
    """
    return mean_of_defined(band_ssim(fused, reference, peak, valid))


def band_ssim(
    fused: ArrayLike, reference: ArrayLike, peak: float | None = None, valid: ArrayLike | None = None
) -> Floats:
    """Compute the SSIM of each band. See `ssim`."""
    return SimilaritySums.of(*comparable_pair(fused, reference, valid), _peak(peak, reference, valid)).band_ssim


def uiqi(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Compute the universal image quality index in the windows of SSIM, averaged over bands.

    Returns
    -------
    UIQI (also Q or UQI), 1 at best; NaN if no window without missing pixels fits into any band.

    References
    ----------
    Z. Wang and A. C. Bovik, "A universal image quality index", IEEE Signal Processing Letters 9, 2002.

    Examples
    --------
    >>> reference = np.random.default_rng(0).random((2, 16, 16))
    >>> round(uiqi(reference, reference), 6)
    1.0
    """
    return mean_of_defined(band_uiqi(fused, reference, valid))


def band_uiqi(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> Floats:
    """Compute the UIQI of each band. See `uiqi`."""
    return SimilaritySums.of(*comparable_pair(fused, reference, valid), 1.0).band_uiqi


def q2n(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Compute Q2n, the UIQI of whole spectra as hypercomplex numbers, averaged over blocks of 32 x 32 pixels.

    A spectrum of C bands is a number with 2^n >= C components of the Cayley-Dickson algebra, so that one index sees
    spatial and spectral distortion at once.

    Returns
    -------
    Q2n, 1 at best; NaN if no block is valid in every compared band.

    References
    ----------
    L. Alparone et al., "A global quality measurement of pan-sharpened multispectral imagery", IEEE GRSL 1, 2004 (Q4).
    A. Garzelli and F. Nencini, "Hypercomplex quality assessment of multi/hyperspectral images", IEEE GRSL 6, 2009.

    Examples
    --------
    >>> reference = np.random.default_rng(0).random((4, 32, 32))
    >>> round(q2n(reference, reference), 6)
    1.0
    """
    fused_values, reference_values = comparable_pair(fused, reference, valid)
    compared = np.isfinite(fused_values).any(axis=(1, 2))
    total, blocks = q2n_sum(fused_values[compared], reference_values[compared])
    return total / blocks if blocks else float("nan")


def _errors(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None) -> ErrorSums:
    return ErrorSums.of(*comparable_pair(fused, reference, valid))


def _peak(peak: float | None, reference: ArrayLike, valid: ArrayLike | None) -> float:
    return default_peak(reference, valid) if peak is None else require_positive("peak", peak)
