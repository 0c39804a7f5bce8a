"""Sums from which the metrics follow; they add up over windows, so whole arrays and streams give the same numbers.

Shapes: fused, reference (band, y, x) in float64, NaN wherever either has no value (see `pairing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

from hyperfuse.metrics.pairing import Comparison, Floats, mask_incomparable, mean_of_defined, per_band_mean

# A band mean below this fraction of the root mean square is rounding noise around zero: ERGAS cannot divide by it.
ZERO_MEAN = 1e-9
# Deviations below this fraction of the mean, and variances below this fraction of the mean square, are rounding noise.
FLAT = 1e-12
BLOCK = 32
WINDOW = 11
HALO = WINDOW // 2
SIGMA = 1.5
K1, K2 = 0.01, 0.03


@dataclass(frozen=True, eq=False)
class Sums:
    """Base of dataclasses whose fields add up over windows."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True, eq=False)
class ErrorSums(Sums):
    """Sums of each band (band,) for RMSE, PSNR and ERGAS."""

    count: NDArray[np.int64]
    squared_error: Floats
    reference: Floats
    squared_reference: Floats

    @classmethod
    def of(cls, fused: Floats, reference: Floats) -> ErrorSums:
        bands = []
        # Band by band, for temporary arrays of one band.
        for fused_band, reference_band in zip(fused, reference, strict=True):
            known = np.isfinite(reference_band)
            values = reference_band[known]
            error = fused_band[known] - values
            bands.append((values.size, np.square(error).sum(), values.sum(), np.square(values).sum()))
        count, squared_error, total, squared_total = np.array(bands, dtype=np.float64).T
        return cls(count.astype(np.int64), squared_error, total, squared_total)

    @property
    def compared(self) -> NDArray[np.bool_]:
        """Bands with anything to compare."""
        return self.count > 0

    @property
    def band_mse(self) -> Floats:
        return per_band_mean(self.squared_error, self.count)

    @property
    def mse(self) -> float:
        return float(self.squared_error.sum() / self.count.sum())

    def band_psnr_db(self, peak: float) -> Floats:
        """Infinite for a band without error, NaN for one with nothing to compare."""
        with np.errstate(divide="ignore"):
            return np.asarray(10 * np.log10(peak**2 / self.band_mse))

    def psnr_db(self, peak: float) -> float:
        return float(10 * np.log10(peak**2 / self.mse)) if self.mse > 0 else float("inf")

    def mean_band_psnr_db(self, peak: float) -> float:
        mean = mean_of_defined(self.band_psnr_db(peak))
        return float("inf") if np.isnan(mean) else mean

    @property
    def bands_with_mean(self) -> NDArray[np.bool_]:
        """Bands whose mean is not zero, so that ERGAS may divide by it."""
        mean = per_band_mean(self.reference, self.count)
        return np.abs(mean) > ZERO_MEAN * np.sqrt(per_band_mean(self.squared_reference, self.count))

    def ergas(self, scale: float) -> float:
        usable = self.bands_with_mean
        if not usable.any():
            return float("nan")
        relative = self.band_mse[usable] / (self.reference[usable] / self.count[usable]) ** 2
        return float(100 / scale * np.sqrt(relative.mean()))


def spectral_angles_degrees(fused: Floats, reference: Floats) -> Floats:
    """Compute the spectral angle (y, x) over the bands that a pixel has in both images, NaN where it has none.

    Kahan's form, 2 atan2(|u - v|, |u + v|) of the unit spectra, keeps full accuracy at small angles, where arccos of
    the cosine loses half the digits. Two black pixels are alike (0 degrees); black against anything else is 90 degrees.
    """
    fused_unit, reference_unit = _inverse_norms(fused), _inverse_norms(reference)
    difference, total = np.zeros(fused.shape[1:]), np.zeros(fused.shape[1:])
    for fused_band, reference_band in zip(fused, reference, strict=True):
        u, v = fused_band * fused_unit, reference_band * reference_unit
        difference += np.nan_to_num(np.square(u - v))
        total += np.nan_to_num(np.square(u + v))
    angles: Floats = np.degrees(2 * np.arctan2(np.sqrt(difference), np.sqrt(total)))
    angles[np.isnan(fused).all(axis=0)] = np.nan
    return angles


def angle_sum(fused: Floats, reference: Floats) -> tuple[float, int]:
    """Return the sum of the spectral angles in degrees and the number of pixels."""
    angles = spectral_angles_degrees(fused, reference)
    known = angles[np.isfinite(angles)]
    return float(known.sum()), known.size


def _inverse_norms(spectra: Floats) -> Floats:
    """One over the norm of each spectrum, 0 for a black one."""
    squared = np.zeros(spectra.shape[1:])
    for band in spectra:
        squared += np.nan_to_num(np.square(band))
    return np.divide(1, np.sqrt(squared), out=np.zeros(squared.shape), where=squared > 0)


@dataclass(frozen=True, eq=False)
class SimilaritySums(Sums):
    """Sums of each band (band,) over Gaussian windows for SSIM and UIQI, which is SSIM without its two constants.

    Only windows that lie within the image and have no missing pixel count.
    """

    count: NDArray[np.int64]
    ssim: Floats
    uiqi: Floats

    @classmethod
    def of(cls, fused: Floats, reference: Floats, peak: float) -> SimilaritySums:
        sums = cls(np.zeros(len(fused), np.int64), np.zeros(len(fused)), np.zeros(len(fused)))
        if min(fused.shape[1:]) < WINDOW:
            return sums
        for band, (fused_band, reference_band) in enumerate(zip(fused, reference, strict=True)):
            ssim, uiqi = _similarity_maps(fused_band, reference_band, peak)
            # NaN spreads through the moments of every window that contains it.
            complete = np.isfinite(ssim)
            sums.count[band] = np.count_nonzero(complete)
            sums.ssim[band], sums.uiqi[band] = ssim[complete].sum(), uiqi[complete].sum()
        return sums

    @property
    def band_ssim(self) -> Floats:
        return per_band_mean(self.ssim, self.count)

    @property
    def band_uiqi(self) -> Floats:
        return per_band_mean(self.uiqi, self.count)


def _similarity_maps(fused: Floats, reference: Floats, peak: float) -> tuple[Floats, Floats]:
    """SSIM and UIQI (y, x) of one band, from the moments in Gaussian windows."""
    offsets = np.arange(WINDOW) - HALO
    weights = np.exp(-(offsets**2) / (2 * SIGMA**2))
    weights /= weights.sum()
    planes = np.stack([fused, reference, fused**2 + reference**2, fused * reference])
    smooth = correlate1d(correlate1d(planes, weights, axis=1), weights, axis=2)[:, HALO:-HALO, HALO:-HALO]
    fused_mean, reference_mean, squares, product = smooth
    means, mean_squares = 2 * fused_mean * reference_mean, fused_mean**2 + reference_mean**2
    covariances = 2 * (product - fused_mean * reference_mean)
    # Rounding must not make the sum of the variances negative.
    variances = np.maximum(squares - mean_squares, 0)
    c1, c2 = (K1 * peak) ** 2, (K2 * peak) ** 2
    ssim = (means + c1) / (mean_squares + c1) * (covariances + c2) / (variances + c2)
    uiqi = ratio_or_one(means, mean_squares, mean_squares > 0)
    return ssim, uiqi * ratio_or_one(covariances, variances, variances > FLAT * squares)


def ratio_or_one(numerator: Floats, denominator: Floats, defined: NDArray[np.bool_]) -> Floats:
    """Divide; a factor whose denominator vanishes compares nothing with nothing and is 1."""
    ones = np.ones(np.broadcast_shapes(numerator.shape, defined.shape))
    return np.divide(numerator, denominator, out=ones, where=defined)


def whole_blocks(image: Floats, side: int) -> Iterator[Floats]:
    """Yield (band, pixel) for each block that lies within the image."""
    rows, columns = image.shape[1:]
    for y in range(0, rows - side + 1, side):
        for x in range(0, columns - side + 1, side):
            yield image[:, y : y + side, x : x + side].reshape(len(image), -1)


def q2n_sum(fused: Floats, reference: Floats, side: int = BLOCK) -> tuple[float, int]:
    """Return the sum of Q over the whole blocks without a missing value, and their number."""
    blocks = zip(whole_blocks(fused, side), whole_blocks(reference, side), strict=True)
    qualities = [_block_quality(*pair) for pair in blocks if np.isfinite(pair[0]).all()]
    return float(sum(qualities)), len(qualities)


def _block_quality(fused: Floats, reference: Floats) -> float:
    """Q of one block (band, pixel), its bands standardised by the moments of the reference, plus 1.

    Q = 2 |mean z| |mean w| / (|mean z|^2 + |mean w|^2) * 2 |cov(z, w)| / (var z + var w), with z the reference and w
    the fused image as hypercomplex numbers and cov(z, w) = mean (z - mean z)(w - mean w)*.
    """
    mean = reference.mean(axis=1, keepdims=True)
    deviation = reference.std(axis=1, ddof=1, keepdims=True)
    # A band that is flat in the reference cannot be standardised and keeps its unit.
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
    """Sum z w* over pixels, component by component; z and w are (component, pixel).

    Units multiply as e_i e_j = +-e_(i xor j) and the product is bilinear, so the matrix of band products and a table
    of signs replace the products of every pixel.
    """
    components = len(z)
    size = 1 << (components - 1).bit_length()
    signed = (sign_table(size) * _conjugate(size))[:components, :components] * (z @ w.T)
    unit = np.arange(components)
    product = np.bincount((unit[:, None] ^ unit).ravel(), weights=signed.ravel(), minlength=size)
    return product.astype(np.float64, copy=False)


@lru_cache(maxsize=16)
def sign_table(size: int) -> NDArray[np.int8]:
    """Signs of e_i e_j in the Cayley-Dickson algebra, by doubling: (a, b)(c, d) = (ac - d* b, da + b c*)."""
    if size == 1:
        return np.ones((1, 1), np.int8)
    half = sign_table(size // 2)
    conjugate = _conjugate(size // 2)
    return np.block([[half, half.T], [half * conjugate, -half.T * conjugate]])


def _conjugate(size: int) -> NDArray[np.int8]:
    """Signs of the components of a conjugate number."""
    signs = np.full(size, -1, np.int8)
    signs[0] = 1
    return signs


@dataclass(frozen=True, eq=False)
class WindowSums(Sums):
    """Everything but Q2n, of one window of two cubes."""

    errors: ErrorSums
    similarity: SimilaritySums
    angle_degrees: float
    pixels: int
    reference_values: int  # of the reference, whether or not the fused image has them

    @classmethod
    def of(cls, comparison: Comparison, rows: slice, columns: slice) -> WindowSums:
        height, width = comparison.reference.shape[1:]
        # Only SSIM and UIQI need the halo: their windows extend beyond the centres, which lie in the core.
        wide_rows, core_rows = _with_halo(rows, height)
        wide_columns, core_columns = _with_halo(columns, width)
        core = (slice(None), core_rows, core_columns)
        fused, reference = comparison.read_pair(wide_rows, wide_columns, comparison.bands)
        reference_values = int(np.count_nonzero(np.isfinite(reference[core])))
        mask_incomparable(fused, reference)
        errors = ErrorSums.of(fused[core], reference[core])
        similarity = SimilaritySums.of(fused, reference, comparison.peak)
        return cls(errors, similarity, *angle_sum(fused[core], reference[core]), reference_values)


def _with_halo(window: slice, size: int) -> tuple[slice, slice]:
    """Return the window with its halo, clipped to the image, and the window within that."""
    start, stop = max(window.start - HALO, 0), min(window.stop + HALO, size)
    return slice(start, stop), slice(window.start - start, window.stop - start)
