"""SSIM (Wang et al. 2004) and UQI (Wang and Bovik 2002) per band, in Gaussian windows of 11 x 11 pixels, sigma 1.5.

Only windows that lie wholly inside the image and hold no invalid pixel count: NaN spreads through the windows' sums by
itself. Both indices come from the same local moments; UQI is SSIM without its two constants.

Shapes: fused, reference (band, y, x) as made by `pairing`, with 5 pixels of context around the windows' centres; sums
(band,).

Q2n (Garzelli and Nencini 2009): the universal quality index of whole spectra, taken as hypercomplex numbers.

A spectrum of C bands is a number with 2^n >= C components (the missing ones zero) of the Cayley-Dickson algebra, so
that one index sees spatial and spectral distortion at once. In each block of 32 x 32 pixels, with z the reference and w
the fused image,

    Q = 2 |mean z| |mean w| / (|mean z|^2 + |mean w|^2)  *  2 |cov(z, w)| / (var z + var w),   cov = mean (z - mean z)(w
    - mean w)*

and Q2n is the mean of Q over blocks. Before that each band of both blocks is shifted and divided by the reference
block's mean and standard deviation and 1 is added, as is usual for this index, so that bands count alike whatever their
brightness.

Units e_i multiply as e_i e_j = +-e_(i xor j), and the covariance is bilinear: the matrix of band covariances, a sign
table and one sum per component replace 2^2n products per pixel.

Shapes: fused, reference (band, y, x) as made by `pairing`; sign table (2^n, 2^n).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

from hyperfuse.metrics.pairing import Floats, per_band_mean

BLOCK = 32
# Deviations below this part of the mean, and variances below this part of the mean square, are what rounding leaves of
# flat bands.
FLAT = 1e-12


def q2n_sum(fused: Floats, reference: Floats) -> tuple[float, int]:
    """Sum of Q over the whole blocks without an invalid value, and their number; they add up over windows aligned to
    blocks.
    """
    total, count = 0.0, 0
    height, width = fused.shape[1:]
    for y in range(0, height - BLOCK + 1, BLOCK):
        for x in range(0, width - BLOCK + 1, BLOCK):
            block = (slice(None), slice(y, y + BLOCK), slice(x, x + BLOCK))
            fused_block, reference_block = (image[block].reshape(len(image), -1) for image in (fused, reference))
            if np.isfinite(fused_block).all():
                total += block_quality(fused_block, reference_block)
                count += 1
    return total, count


def block_quality(fused: Floats, reference: Floats) -> float:
    """Q of one block; images here are (band, pixel)."""
    mean = reference.mean(axis=1, keepdims=True)
    deviation = reference.std(axis=1, ddof=1, keepdims=True)
    # A band that is flat in the reference has no deviation to divide by and keeps its own unit.
    unit = np.where(deviation > FLAT * np.abs(mean), deviation, 1.0)
    z, w = (reference - mean) / unit + 1, (fused - mean) / unit + 1
    z_mean, w_mean = z.mean(axis=1), w.mean(axis=1)
    mean_squares = float(z_mean @ z_mean + w_mean @ w_mean)
    brightness = 2 * float(np.linalg.norm(z_mean) * np.linalg.norm(w_mean)) / mean_squares
    z_rest, w_rest = z - z_mean[:, None], w - w_mean[:, None]
    variances = float(np.square(z_rest).sum() + np.square(w_rest).sum())
    if variances <= FLAT * mean_squares * z.shape[1]:
        return brightness
    return brightness * 2 * float(np.linalg.norm(hypercomplex_product_sum(z_rest, w_rest))) / variances


def hypercomplex_product_sum(z: Floats, w: Floats) -> Floats:
    """The sum over pixels of z w*, component by component; z and w are (component, pixel)."""
    components = len(z)
    size = 1 << (components - 1).bit_length()
    signed = (sign_table(size) * _conjugate(size))[:components, :components] * (z @ w.T)
    unit = np.arange(components)
    product = np.bincount((unit[:, None] ^ unit).ravel(), weights=signed.ravel(), minlength=size)
    return product.astype(np.float64, copy=False)


@lru_cache(maxsize=16)
def sign_table(size: int) -> NDArray[np.int8]:
    """sign[i, j] of e_i e_j = sign e_(i xor j), by doubling: (a, b)(c, d) = (ac - d* b, da + b c*)."""
    if size == 1:
        return np.ones((1, 1), np.int8)
    half = sign_table(size // 2)
    conjugate = _conjugate(size // 2)
    return np.block([[half, half.T], [half * conjugate, -half.T * conjugate]])


def _conjugate(size: int) -> NDArray[np.int8]:
    """Signs of the components of a conjugate number: all but the first turn."""
    signs = np.full(size, -1, np.int8)
    signs[0] = 1
    return signs


WINDOW = 11
MARGIN = WINDOW // 2
SIGMA = 1.5
K1, K2 = 0.01, 0.03
# Variance below this part of the mean square is what rounding leaves of a flat window.


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
    luminance = (2 * moments.fused_mean * moments.reference_mean + c1) / (
        moments.fused_mean**2 + moments.reference_mean**2 + c1
    )
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
