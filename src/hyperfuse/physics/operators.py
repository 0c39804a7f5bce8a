"""The linear operators of the observation model, hsi = A x (PSF, in space) and msi = R x (SRF, in the spectrum).

Shapes: C bands, M msi bands, h w coarse, H W fine; any leading dimensions are a batch.

A is separable, so blur-and-decimate is `rows @ image @ columns.T`, a Kronecker product of two small matrices, for any
real scale, shift and border. Thin singular value decompositions of the two matrices give every inverse of A by a
handful of matrix products: nothing is iterated, and no Fourier transform (hence no integer scale and no periodic
border) is needed.

`observe` applies both operators to a lazy cube, window by window: memory holds the outputs and one window, and every
pixel of the reference is read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from hyperfuse.io.cube import iterate_windows, physical_values
from hyperfuse.physics.resample import Crop, coarse_centres, separable
from hyperfuse.progress import progress

FloatArray = NDArray[np.float64]

FWHM_PER_SIGMA = 2.0 * math.sqrt(2.0 * math.log(2.0))
TRUNCATION_SIGMAS = 4.0
# Centres are sums of rounded numbers; a tap exactly at the truncation must not depend on rounding.
CENTRE_ROUNDING = 1e-6
# Singular values below this share of the largest are treated as zero by the pseudo-inverses.
RELATIVE_RANK_TOLERANCE = 1e-6
WINDOW_BYTES = 32 * 2**20
BLOCK_COLUMNS = 256
# A coarse pixel that sees more than this share of missing fine pixels is missing itself; below it, the rest stand in.
TOLERATED_MISSING = 0.01


def sigma_from_fwhm(fwhm: float) -> float:
    """Standard deviation of a Gaussian of this full width at half maximum."""
    return fwhm / FWHM_PER_SIGMA


def psf_radius(sigma: float) -> int:
    """Radius of the truncated PSF in whole fine pixels."""
    return max(1, math.ceil(TRUNCATION_SIGMAS * sigma))


def psf_taps(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sample a Gaussian PSF around every coarse pixel along one axis: indices and weights, (coarse_size, taps) each.

    Weights sum to 1. Beyond the border the image is mirrored (the edge pixel is repeated), so the same fine pixel may
    occur in several taps of one row.
    """
    centres = coarse_centres(coarse_size, scale, shift)
    radius = psf_radius(sigma)
    positions = centres.round().long()[:, None] + torch.arange(-radius, radius + 1)
    distances = positions - centres[:, None]
    # A softmax of the exponent never divides by zero, however narrow the PSF. Where a centre lies between two pixels
    # the taps extend half a pixel further on one side; truncating both at the same distance keeps them symmetric.
    exponent = (-0.5 * (distances / sigma) ** 2).masked_fill(distances.abs() > radius + CENTRE_ROUNDING, -torch.inf)
    folded = positions.remainder(2 * fine_size)
    mirrored = torch.where(folded < fine_size, folded, 2 * fine_size - 1 - folded)
    return mirrored, torch.softmax(exponent, dim=1)


def psf_matrix(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0) -> Tensor:
    """Blur and decimate one axis, as a dense (coarse_size, fine_size) float64 matrix whose rows sum to 1.

    The scale is any real number, lengths are in fine pixels; see `hyperfuse.physics.resample` for the convention.

    Examples
    --------
    >>> matrix = psf_matrix(fine_size=6, coarse_size=2, scale=3, sigma=sigma_from_fwhm(3))
    >>> matrix.shape, bool(torch.allclose(matrix.sum(1), torch.ones(2).double()))
    (torch.Size([2, 6]), True)
    >>> matrix.argmax(1).tolist()
    [1, 4]
    """
    indices, weights = psf_taps(fine_size, coarse_size, scale, sigma, shift)
    return torch.zeros(coarse_size, fine_size, dtype=torch.float64).scatter_add_(1, indices, weights)


@dataclass(frozen=True)
class ThinFactors:
    """matrix = left @ diag(values) @ right.T, float64, without the numerically empty directions."""

    left: Tensor
    values: Tensor
    right: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> ThinFactors:
        left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        kept = values > RELATIVE_RANK_TOLERANCE * values[0]
        return cls(left[:, kept], values[kept], right[kept].T)

    def inverse(self) -> Tensor:
        return self.right / self.values @ self.left.T


@dataclass(frozen=True)
class SpatialOperator:
    """Blur and decimate: A maps (..., H, W) to (..., h, w).

    Parameters
    ----------
    rows, columns
        (h, H) and (w, W) float64 matrices, one for each axis; `from_psf` makes them for a Gaussian PSF.

    Examples
    --------
    >>> operator = SpatialOperator.from_psf((8, 12), (2, 3), scale=(4, 4), sigma=(1.7, 1.7))
    >>> coarse = operator.apply(torch.ones(5, 8, 12))
    >>> coarse.shape
    torch.Size([5, 2, 3])
    >>> fine = operator.pseudo_inverse(coarse)
    >>> bool(torch.allclose(operator.apply(fine), coarse, atol=1e-5))
    True

    References
    ----------
    Q. Wei, N. Dobigeon, J.-Y. Tourneret, "Fast fusion of multi-band images based on solving a Sylvester equation",
    IEEE Trans. Image Processing 24(11), 2015, inverts the same operator for integer scales and periodic borders.
    """

    rows: Tensor
    columns: Tensor

    @classmethod
    def from_psf(
        cls,
        fine_size: tuple[int, int],
        coarse_size: tuple[int, int],
        scale: tuple[float, float],
        sigma: tuple[float, float],
        shift: tuple[float, float] = (0.0, 0.0),
    ) -> SpatialOperator:
        """Make the operator of a separable Gaussian PSF; all pairs are (y, x), lengths in fine pixels."""
        axes = zip(fine_size, coarse_size, scale, sigma, shift, strict=True)
        rows, columns = (psf_matrix(*axis) for axis in axes)
        return cls(rows, columns)

    @property
    def fine_size(self) -> tuple[int, int]:
        return self.rows.shape[1], self.columns.shape[1]

    @property
    def coarse_size(self) -> tuple[int, int]:
        return self.rows.shape[0], self.columns.shape[0]

    def apply(self, fine: Tensor) -> Tensor:
        """A x: (..., H, W) -> (..., h, w)."""
        return separable(self.rows, self.columns, fine)

    def adjoint(self, coarse: Tensor) -> Tensor:
        """A' y: (..., h, w) -> (..., H, W)."""
        return separable(self.rows.T, self.columns.T, coarse)

    def pseudo_inverse(self, coarse: Tensor) -> Tensor:
        """A+ y, the fine image of least norm whose coarse version is y."""
        return separable(self.row_factors.inverse(), self.column_factors.inverse(), coarse)

    def damped_inverse(self, coarse: Tensor, weight: float | Tensor) -> Tensor:
        """A' (A A' + weight)^-1 y, where noise is `weight` times the signal; one weight, or one per band."""
        y, x = self.row_factors, self.column_factors
        spectrum = y.values[:, None] * x.values[None, :]
        gain = spectrum / (spectrum**2 + _as_batch(weight))
        coefficients = separable(y.left.T, x.left.T, coarse) * gain.to(coarse)
        return separable(y.right, x.right, coefficients)

    def regularised_inverse(self, fine: Tensor, weight: float | Tensor) -> Tensor:
        """(weight + A'A)^-1 x: (..., H, W) -> (..., H, W), through the h w directions outside the null space of A."""
        y, x = self.row_factors, self.column_factors
        energy = (y.values[:, None] * x.values[None, :]) ** 2
        weight = _as_batch(weight)
        correction = 1 / (energy + weight) - 1 / weight
        coefficients = separable(y.right.T, x.right.T, fine) * correction.to(fine)
        return fine / weight.to(fine) + separable(y.right, x.right, coefficients)

    def mean_noise_gain(self) -> float:
        """Variance of white fine noise after the blur, relative to before, averaged over coarse pixels."""
        return float(self.rows.square().sum(1).mean() * self.columns.square().sum(1).mean())

    @cached_property
    def row_factors(self) -> ThinFactors:
        return ThinFactors.of(self.rows)

    @cached_property
    def column_factors(self) -> ThinFactors:
        return ThinFactors.of(self.columns)


def mix_bands(matrix: Tensor, cube: Tensor) -> Tensor:
    """Multiply the band axis of (..., C, H, W) by a matrix (K, C), such as an SRF.

    Examples
    --------
    >>> mix_bands(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0, 3.0])[:, None, None]).item()
    2.0
    """
    mixed = matrix.to(cube) @ cube.flatten(-2)
    return mixed.reshape(*mixed.shape[:-1], *cube.shape[-2:])


def _as_batch(weight: float | Tensor) -> Tensor:
    """A weight per leading index (one number, or one per band, ...) with two axes for rows and columns appended."""
    return torch.as_tensor(weight, dtype=torch.float64)[..., None, None]


def observe(
    reference: xr.DataArray, crop: Crop, scale: float, sigma: float, shift: tuple[float, float], srf: FloatArray
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Apply PSF and SRF (M, C) to a cube (C, H, W): hsi (C, h, w) and msi (M, H, W), NaN where there is no data."""
    bands = reference.sizes["band"]
    hsi, missing = np.zeros((bands, *crop.coarse_size)), None
    msi = np.empty((srf.shape[0], *crop.fine_size), dtype=np.float32)
    axes = [_sparse_psf(crop.fine_size[i], crop.coarse_size[i], scale, sigma, shift[i]) for i in (0, 1)]
    windows = list(iterate_windows(reference, WINDOW_BYTES))
    with progress("Simulating", len(windows)) as advance:
        for rows, columns in windows:
            window = physical_values(reference, rows, columns, dtype=np.float64)
            gaps = np.isnan(window)
            window[gaps] = 0.0
            _add_blurred(window, (rows, columns), axes, hsi)
            msi[:, rows, columns] = np.tensordot(srf, window, axes=1)
            if gaps.any():
                missing = np.zeros_like(hsi) if missing is None else missing
                _add_blurred(gaps.astype(np.float64), (rows, columns), axes, missing)
                for band, weights in zip(msi[:, rows, columns], srf, strict=True):
                    band[gaps[weights != 0].any(axis=0)] = np.nan
            advance(1)
    if missing is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            hsi /= 1 - missing
        hsi[missing > TOLERATED_MISSING] = np.nan
    return hsi.astype(np.float32), msi


def _sparse_psf(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float) -> sparse.csr_array:
    indices, weights = (tensor.numpy() for tensor in psf_taps(fine_size, coarse_size, scale, sigma, shift))
    coarse = np.repeat(np.arange(coarse_size), indices.shape[1])
    return sparse.csr_array((weights.ravel(), (coarse, indices.ravel())), shape=(coarse_size, fine_size))


def _add_blurred(
    window: FloatArray, place: tuple[slice, slice], axes: Sequence[sparse.csr_array], total: FloatArray
) -> None:
    """Add what a window (C, r, c) at this place contributes to the coarse image (C, h, w)."""
    along_x = np.zeros((*window.shape[:2], total.shape[2]))
    # Dense products of narrow blocks run at the speed of BLAS, several times faster than a sparse product.
    for offset in range(0, window.shape[2], BLOCK_COLUMNS):
        block = window[:, :, offset : offset + BLOCK_COLUMNS]
        columns, weights = _dense_part(axes[1], place[1].start + offset, block.shape[2])
        along_x[:, :, columns] += (block.reshape(-1, block.shape[2]) @ weights.T).reshape(*block.shape[:2], -1)
    rows, weights = _dense_part(axes[0], place[0].start, window.shape[1])
    total[:, rows] += np.moveaxis(np.tensordot(weights, along_x, axes=(1, 1)), 0, 1)


def _dense_part(weights: sparse.csr_array, start: int, count: int) -> tuple[slice, FloatArray]:
    """The coarse pixels that see some of these fine pixels, and their weights."""
    part = weights[:, start : start + count]
    seeing = np.flatnonzero(np.diff(part.indptr))
    coarse = slice(int(seeing[0]), int(seeing[-1]) + 1) if seeing.size else slice(0, 0)
    return coarse, part[coarse].toarray()
