"""The two linear operators of the observation model: hsi = A x (space) and msi = R x (spectrum).

Shapes: C bands, M msi bands, h w coarse, H W fine; any leading dimensions are a batch.

A is separable, so blur-and-decimate is `rows @ image @ columns.T`, a Kronecker product of two small matrices, for any
real scale, shift and border. Thin singular value decompositions of the two small matrices, rows = U S V', give every
inverse of the large operator by a handful of matrix products: nothing is iterated and no Fourier transform (hence no
integer scale, no periodic border) is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hyperfuse.physics.psf import psf_matrix

# Singular values below this share of the largest are treated as zero by the pseudo-inverses.
RELATIVE_RANK_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ThinFactors:
    """matrix = left @ diag(values) @ right.T, float64, with the numerically empty directions dropped."""

    left: Tensor
    values: Tensor
    right: Tensor


@dataclass(frozen=True)
class SpatialOperator:
    """Blur and decimate: (..., H, W) -> (..., h, w), as two float64 matrices, `rows` (h, H) and `columns` (w, W)."""

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
        """Gaussian point spread, everything given as (y, x) in fine pixels; see `point_spread.py` for the geometry."""
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
        """A+ y, the smallest fine image whose coarse version is y."""
        y, x = self.row_factors, self.column_factors
        return separable(y.right / y.values @ y.left.T, x.right / x.values @ x.left.T, coarse)

    def damped_inverse(self, coarse: Tensor, weight: float | Tensor) -> Tensor:
        """A' (A A' + weight)^-1 y: the pseudo-inverse where noise is `weight` times the signal; one weight, or one per
        band.
        """
        y, x = self.row_factors, self.column_factors
        spectrum = y.values[:, None] * x.values[None, :]
        gain = spectrum / (spectrum**2 + _as_batch(weight))
        coefficients = separable(y.left.T, x.left.T, coarse) * gain.to(coarse)
        return separable(y.right, x.right, coefficients)

    def regularised_inverse(self, fine: Tensor, weight: float | Tensor) -> Tensor:
        """(weight + A'A)^-1 x: (..., H, W) -> (..., H, W), through the h w directions that A can see."""
        y, x = self.row_factors, self.column_factors
        energy = (y.values[:, None] * x.values[None, :]) ** 2
        weight = _as_batch(weight)
        correction = 1 / (energy + weight) - 1 / weight
        seen = separable(y.right.T, x.right.T, fine) * correction.to(fine)
        return fine / weight.to(fine) + separable(y.right, x.right, seen)

    def mean_noise_gain(self) -> float:
        """The share of the variance of white fine noise that survives the blur, averaged over coarse pixels."""
        return float(self.rows.square().sum(1).mean() * self.columns.square().sum(1).mean())

    @cached_property
    def row_factors(self) -> ThinFactors:
        return thin_factors(self.rows)

    @cached_property
    def column_factors(self) -> ThinFactors:
        return thin_factors(self.columns)


@dataclass(frozen=True)
class SpectralOperator:
    """The response: (..., C, H, W) -> (..., M, H, W), one (M, C) float64 matrix."""

    srf: Tensor

    def apply(self, cube: Tensor) -> Tensor:
        return mix_bands(self.srf, cube)

    def adjoint(self, msi: Tensor) -> Tensor:
        return mix_bands(self.srf.T, msi)

    def pseudo_inverse(self, msi: Tensor) -> Tensor:
        """R+ z, the smallest spectra that the response turns into z."""
        factors = thin_factors(self.srf)
        return mix_bands(factors.right / factors.values @ factors.left.T, msi)


def thin_factors(matrix: Tensor) -> ThinFactors:
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    kept = values > RELATIVE_RANK_TOLERANCE * values[0]
    return ThinFactors(left[:, kept], values[kept], right[kept].T)


def separable(rows: Tensor, columns: Tensor, image: Tensor) -> Tensor:
    """rows @ image @ columns.T over the last two axes, in the image's own precision, the cheaper product first."""
    rows, columns = rows.to(image), columns.to(image)
    shrinks_first = rows.shape[0] * columns.shape[1] <= rows.shape[1] * columns.shape[0]
    if shrinks_first:
        return (rows @ image) @ columns.T
    return rows @ (image @ columns.T)


def mix_bands(matrix: Tensor, cube: Tensor) -> Tensor:
    """matrix (K, C) times the band axis of (..., C, H, W), as one matrix product."""
    mixed = matrix.to(cube) @ cube.flatten(-2)
    return mixed.reshape(*mixed.shape[:-1], *cube.shape[-2:])


def _as_batch(weight: float | Tensor) -> Tensor:
    """A weight per leading index (one number, or one per band, ...) with two axes for rows and columns appended."""
    return torch.as_tensor(weight, dtype=torch.float64)[..., None, None]
