"""Q2n (Garzelli and Nencini 2009): the universal quality index of whole spectra, taken as hypercomplex numbers.

A spectrum of C bands is a number with 2^n >= C components (the missing ones zero) of the Cayley-Dickson algebra, so that one index
sees spatial and spectral distortion at once. In each block of 32 x 32 pixels, with z the reference and w the fused image,

    Q = 2 |mean z| |mean w| / (|mean z|^2 + |mean w|^2)  *  2 |cov(z, w)| / (var z + var w),   cov = mean (z - mean z)(w - mean w)*

and Q2n is the mean of Q over blocks. Before that each band of both blocks is shifted and divided by the reference block's mean and
standard deviation and 1 is added, as is usual for this index, so that bands count alike whatever their brightness.

Units e_i multiply as e_i e_j = +-e_(i xor j), and the covariance is bilinear: the matrix of band covariances, a sign table and one
sum per component replace 2^2n products per pixel.

Shapes: fused, reference (band, y, x) as made by `pairing`; sign table (2^n, 2^n).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hyperfuse.quality.pairing import Floats

BLOCK = 32
# Deviations below this part of the mean, and variances below this part of the mean square, are what rounding leaves of flat bands.
FLAT = 1e-12


def q2n_sum(fused: Floats, reference: Floats) -> tuple[float, int]:
    """Sum of Q over the whole blocks without an invalid value, and their number; they add up over windows aligned to blocks."""
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
