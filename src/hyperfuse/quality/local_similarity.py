"""SSIM (Wang et al. 2004) and UQI (Wang and Bovik 2002) per band, in Gaussian windows of 11 x 11 pixels, sigma 1.5.

Only windows that lie wholly inside the image and hold no invalid pixel count: NaN spreads through the windows' sums by itself.
Both indices come from the same local moments; UQI is SSIM without its two constants.

Shapes: fused, reference (band, y, x) as made by `pairing`, with 5 pixels of context around the windows' centres; sums (band,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

from hyperfuse.quality.pairing import Floats, per_band_mean

WINDOW = 11
MARGIN = WINDOW // 2
SIGMA = 1.5
K1, K2 = 0.01, 0.03
# Variance below this part of the mean square is what rounding leaves of a flat window.
FLAT = 1e-12


@dataclass(frozen=True, eq=False)
class SimilaritySums:
    count: NDArray[np.int64]
    ssim: Floats
    uqi: Floats

    def __add__(self, other: SimilaritySums) -> SimilaritySums:
        return SimilaritySums(self.count + other.count, self.ssim + other.ssim, self.uqi + other.uqi)

    @property
    def band_ssim(self) -> Floats:
        return per_band_mean(self.ssim, self.count)

    @property
    def band_uqi(self) -> Floats:
        return per_band_mean(self.uqi, self.count)


@dataclass(frozen=True, eq=False)
class LocalMoments:
    """Gaussian-weighted moments around each window centre (y, x): all that SSIM and UQI need of the two images."""

    fused_mean: Floats
    reference_mean: Floats
    squares: Floats
    product: Floats

    @property
    def variances(self) -> Floats:
        """The sum of both variances, which rounding must not make negative."""
        return np.maximum(self.squares - self.fused_mean**2 - self.reference_mean**2, 0)

    @property
    def covariance(self) -> Floats:
        return self.product - self.fused_mean * self.reference_mean


def no_similarity(bands: int) -> SimilaritySums:
    return SimilaritySums(np.zeros(bands, np.int64), np.zeros(bands), np.zeros(bands))


def similarity_sums(fused: Floats, reference: Floats, peak: float) -> SimilaritySums:
    sums = no_similarity(len(fused))
    if min(fused.shape[1:]) < WINDOW:
        return sums
    for band, (fused_band, reference_band) in enumerate(zip(fused, reference, strict=True)):
        moments = local_moments(fused_band, reference_band)
        complete = np.isfinite(moments.product)
        sums.count[band] = np.count_nonzero(complete)
        sums.ssim[band] = ssim_map(moments, peak)[complete].sum()
        sums.uqi[band] = uqi_map(moments)[complete].sum()
    return sums


def local_moments(fused: Floats, reference: Floats) -> LocalMoments:
    planes = np.stack([fused, reference, fused**2 + reference**2, fused * reference])
    offsets = np.arange(WINDOW) - MARGIN
    weights = np.exp(-(offsets**2) / (2 * SIGMA**2))
    weights /= weights.sum()
    smooth = correlate1d(correlate1d(planes, weights, axis=1), weights, axis=2)
    return LocalMoments(*smooth[:, MARGIN:-MARGIN, MARGIN:-MARGIN])


def ssim_map(moments: LocalMoments, peak: float) -> Floats:
    c1, c2 = (K1 * peak) ** 2, (K2 * peak) ** 2
    luminance = (2 * moments.fused_mean * moments.reference_mean + c1) / (moments.fused_mean**2 + moments.reference_mean**2 + c1)
    return luminance * (2 * moments.covariance + c2) / (moments.variances + c2)


def uqi_map(moments: LocalMoments) -> Floats:
    """A factor whose denominator vanishes compares two things that are both absent, hence alike: it is 1."""
    means = moments.fused_mean**2 + moments.reference_mean**2
    luminance = _ratio(2 * moments.fused_mean * moments.reference_mean, means, means > 0)
    variances = moments.variances
    return luminance * _ratio(2 * moments.covariance, variances, variances > FLAT * moments.squares)


def _ratio(numerator: Floats, denominator: Floats, defined: NDArray[np.bool_]) -> Floats:
    ratio = np.ones(numerator.shape)
    np.divide(numerator, denominator, out=ratio, where=defined)
    return ratio
