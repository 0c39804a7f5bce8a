"""What may be done to an msi so that the hsi explains it: smooth fields, tone curves, light, and warping.

Shapes: M msi bands, n positions, D order of cosines, L their number, K knots, H W fine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates, spline_filter

from hyperfuse import compiled

Floats = NDArray[np.float64]

NODES_OF_STEEPNESS = 49
LARGEST_GAIN = 5.0
DERIVATIVE_STEP = 0.25  # fine pixels


@dataclass(frozen=True)
class SmoothField:
    """Sums of cosines over a scene: m_ij cos(pi i y) cos(pi j x) at shares y of its height and x of its width."""

    coefficients: Floats  # (planes, D + 1, D + 1)

    def at(self, rows: Floats, columns: Floats) -> Floats:
        """(planes, rows, columns) On a grid of positions."""
        y, x = (self._cosines(axis) for axis in (rows, columns))
        return np.asarray(y.T @ self.coefficients @ x)

    def at_points(self, rows: Floats, columns: Floats) -> Floats:
        """(planes, n) At single positions."""
        return np.asarray(np.einsum("in,pij,jn->pn", self._cosines(rows), self.coefficients, self._cosines(columns)))

    @property
    def variation(self) -> float:
        """Root of the sum over planes of the variance over the scene."""
        halves = np.where(np.arange(self.coefficients.shape[1]) > 0, 0.5, 1.0)
        energy = self.coefficients**2 * halves[:, None] * halves
        return float(np.sqrt(energy.sum() - energy[:, 0, 0].sum()))

    def steepness(self, size: tuple[int, int]) -> float:
        """The largest change of a plane from one pixel of the scene to the next."""
        shares = np.linspace(0, 1, NODES_OF_STEEPNESS)
        values = self.at(shares, shares)
        slopes = (np.diff(values, axis=axis + 1) * (len(shares) - 1) / size[axis] for axis in (0, 1))
        return max(float(np.abs(each).max()) for each in slopes)

    @property
    def order(self) -> int:
        return int(self.coefficients.shape[1]) - 1

    def _cosines(self, positions: Floats) -> Floats:
        return np.cos(np.pi * np.arange(self.coefficients.shape[1])[:, None] * positions)

    @classmethod
    def from_terms(cls, order: int, terms: Floats, mean: Floats, constant: Floats) -> SmoothField:
        """From coefficients (planes, L) of cosines whose means (L,) are subtracted, and constants (planes,)."""
        matrix = np.zeros((len(terms), order + 1, order + 1))
        for (i, j), column in zip(cosine_indices(order), terms.T, strict=True):
            matrix[:, i, j] = column
        matrix[:, 0, 0] = constant - terms @ mean
        return cls(matrix)


def cosine_indices(order: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(order + 1) for j in range(order + 1 - i) if i + j > 0]


def cosine_terms(order: int, positions: Floats) -> Floats:
    """(L, n)"""
    terms = [np.cos(np.pi * i * positions[0]) * np.cos(np.pi * j * positions[1]) for i, j in cosine_indices(order)]
    return np.stack(terms) if terms else np.zeros((0, positions.shape[1]))


def order_of_terms(order: int) -> Floats:
    return np.array([i + j for i, j in cosine_indices(order)], dtype=np.float64)


@dataclass(frozen=True)
class ToneCurves:
    """A monotone curve per msi band."""

    curves: tuple[tuple[Floats, Floats], ...]
    """Knots (K,) and the values that replace them, linear in between."""
    description: ClassVar[str] = "tone curves"

    def apply(self, msi: NDArray[np.float32], start: tuple[int, int] = (0, 0)) -> NDArray[np.float32]:
        """Correct a part (M, rows, columns) of the msi that begins at these fine pixels; NaN stays NaN."""
        bands = zip(msi, self.curves, strict=True)
        return np.stack([np.interp(band, *curve).astype(np.float32) for band, curve in bands])


@dataclass(frozen=True)
class Light:
    """A gain and an offset per msi band that vary smoothly over the scene."""

    fine_size: tuple[int, int]
    gain: SmoothField
    offset: SmoothField
    description: ClassVar[str] = "a gain and offset that vary over the scene"

    def apply(self, msi: NDArray[np.float32], start: tuple[int, int] = (0, 0)) -> NDArray[np.float32]:
        """Correct a part (M, rows, columns) of the msi that begins at these fine pixels; NaN stays NaN."""
        axes = zip(start, msi.shape[1:], self.fine_size, strict=True)
        places = [(np.arange(first, first + length) + 0.5) / size for first, length, size in axes]
        gain = self.gain.at(*places).clip(1 / LARGEST_GAIN, LARGEST_GAIN)
        return np.asarray(msi * gain + self.offset.at(*places), dtype=np.float32)


Correction = ToneCurves | Light


def spline_of(planes: NDArray[np.float32]) -> Floats:
    """Coefficients of the cubic B-splines through planes (M, H, W)."""
    return np.stack([spline_filter(plane, 3, np.float64, mode="mirror") for plane in planes])


def spline_at(spline: Floats, rows: Floats, columns: Floats, *, slopes: bool = False) -> Floats:
    """(M, n) At positions (n,), of which those beyond the border count as on it; with slopes (3, M, n)."""
    rows, columns = (axis.clip(0, size - 1) for axis, size in zip((rows, columns), spline.shape[1:], strict=True))
    if compiled.library() is not None:
        return compiled.sample_spline(spline, rows, columns, slopes=slopes)

    def at(down: float, right: float) -> Floats:
        places = rows + down, columns + right
        return np.stack([map_coordinates(each, places, order=3, mode="mirror", prefilter=False) for each in spline])

    if not slopes:
        return at(0.0, 0.0)
    s = DERIVATIVE_STEP
    return np.stack([at(0, 0), (at(s, 0) - at(-s, 0)) / (2 * s), (at(0, s) - at(0, -s)) / (2 * s)])


def warped(
    image: NDArray[np.float32], bend: SmoothField, start: tuple[int, int], fine_size: tuple[int, int]
) -> NDArray[np.float32]:
    """A part (M, rows, columns) of the msi that begins at these fine pixels; its value at q is taken from q + bend."""
    axes = [np.arange(length, dtype=np.float64) for length in image.shape[1:]]
    shares = [(axis + first + 0.5) / size for axis, first, size in zip(axes, start, fine_size, strict=True)]
    down, right = bend.at(*shares)
    places = (axes[0][:, None] + down).ravel(), (axes[1][None, :] + right).ravel()
    return spline_at(spline_of(image), *places).reshape(image.shape).astype(np.float32)
