"""The observation model of a pair: the operators hsi = A x (PSF, in space) and msi = R x (SRF), and their parameters.

Shapes: C bands, M msi bands, h w coarse, H W fine; any leading dimensions are a batch.

A is separable, so blur-and-decimate is `rows @ image @ columns.T`, a Kronecker product of two small matrices, for any
real scale, shift and border. Thin singular value decompositions of the two matrices give every inverse of A by a
handful of matrix products: nothing is iterated, and no Fourier transform (hence no integer scale and no periodic
border) is needed. `Observation` holds everything that a method needs to know about the two sensors.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from hyperfuse.errors import BandError, GridError
from hyperfuse.io.summary import html_table
from hyperfuse.physics.resample import Placement, coarse_centres, separable

Floats = NDArray[np.float64]

FWHM_PER_SIGMA = 2.0 * math.sqrt(2.0 * math.log(2.0))
TRUNCATION_SIGMAS = 4.0
# Centres are sums of rounded numbers; a tap exactly at the truncation must not depend on rounding.
CENTRE_ROUNDING = 1e-6
# Singular values below this share of the largest are treated as zero by the pseudo-inverses.
RELATIVE_RANK_TOLERANCE = 1e-6
SMALLEST_OPTICS = 0.05  # standard deviation in fine pixels: hardly different from none


def sigma_from_fwhm(fwhm: float) -> float:
    """Standard deviation of a Gaussian of this full width at half maximum."""
    return fwhm / FWHM_PER_SIGMA


def psf_radius(sigma: float) -> int:
    """Radius of the truncated PSF in whole fine pixels."""
    return max(1, math.ceil(TRUNCATION_SIGMAS * sigma))


def psf_taps(
    fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0, detector: float = 0.0
) -> tuple[NDArray[np.int64], Floats]:
    """Sample the PSF around every coarse pixel along one axis: indices and weights, (coarse_size, taps) each.

    It is a Gaussian or, with a `detector` of some width, the mean over that width of a Gaussian; `sigma` is the
    standard deviation of both together.

    Weights sum to 1. Beyond the border the image is mirrored (the edge pixel is repeated), so the same fine pixel may
    occur in several taps of one row.
    """
    # In numpy: an estimation needs hundreds, and torch takes several times as long for so few numbers.
    centres = coarse_centres(coarse_size, scale, shift).numpy()
    radius = psf_radius(sigma)
    positions = np.rint(centres).astype(np.int64)[:, None] + np.arange(-radius, radius + 1)
    distances = positions - centres[:, None]
    # Where a centre lies between two pixels the taps extend half a pixel further on one side; truncating both at the
    # same distance keeps them symmetric.
    too_far = np.abs(distances) > radius + CENTRE_ROUNDING
    if detector:
        weights = np.where(too_far, 0.0, _averaged_gaussian(distances, sigma, detector))
    else:
        # Relative to the nearest one, the exponential never vanishes for all, however narrow the PSF.
        squared = np.where(too_far, np.inf, 0.5 * (distances / sigma) ** 2)
        weights = np.exp(squared.min(axis=1, keepdims=True) - squared)
    folded = positions % (2 * fine_size)
    indices = np.where(folded < fine_size, folded, 2 * fine_size - 1 - folded)
    return indices, weights / weights.sum(axis=1, keepdims=True)


def _averaged_gaussian(distances: Floats, sigma: float, detector: float) -> Floats:
    """What each fine pixel, of side 1, has of the mean over a detector of a Gaussian, both together of this sigma."""
    optics = math.sqrt(max(SMALLEST_OPTICS**2, sigma**2 - detector**2 / 12))

    def integral(place: Floats) -> Floats:
        unit = place / optics
        return np.asarray(place * ndtr(unit) + optics / math.sqrt(2 * math.pi) * np.exp(-0.5 * unit**2))

    def below(edge: Floats) -> Floats:
        return integral(edge + 0.5) - integral(edge - 0.5)

    return (below(distances + detector / 2) - below(distances - detector / 2)).clip(0)


# The tiles of a scene have the same few; inference tensors would be of no use to a training.
@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def psf_matrix(
    fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0, detector: float = 0.0
) -> Tensor:
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
    indices, weights = psf_taps(fine_size, coarse_size, scale, sigma, shift, detector)
    places = indices + fine_size * np.arange(coarse_size)[:, None]
    matrix = np.bincount(places.ravel(), weights.ravel(), minlength=coarse_size * fine_size)
    return torch.from_numpy(matrix.reshape(coarse_size, fine_size))


@dataclass(frozen=True)
class ThinFactors:
    """matrix = left @ diag(values) @ right.T, float64, without the numerically empty directions."""

    left: Tensor
    values: Tensor
    right: Tensor

    @staticmethod
    @functools.lru_cache(maxsize=8)  # by the identity of the matrix
    @torch.inference_mode(False)
    def of(matrix: Tensor) -> ThinFactors:
        left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        kept = values > RELATIVE_RANK_TOLERANCE * values[0]
        return ThinFactors(left[:, kept], values[kept], right[kept].T)

    def inverse(self) -> Tensor:
        return self.right / self.values @ self.left.T


@dataclass(frozen=True)
class SpatialOperator:
    """Blur and decimate: A maps (..., H, W) to (..., h, w).

    Parameters
    ----------
    rows, columns
        (h, H) and (w, W) float64 matrices, one for each axis; `from_psf` makes them.

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
        detector: tuple[float, float] = (0.0, 0.0),
    ) -> SpatialOperator:
        """Make the operator of a separable PSF (see `psf_taps`); all pairs are (y, x), lengths in fine pixels."""
        axes = zip(fine_size, coarse_size, scale, sigma, shift, detector, strict=True)
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
        return separable(self.rows, self.columns, fine, known=True)

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

    @functools.cached_property
    def row_factors(self) -> ThinFactors:
        return ThinFactors.of(self.rows)

    @functools.cached_property
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


@dataclass(frozen=True)
class Observation:
    """The parameters of hsi = A(x) + noise, msi = SRF x + offset + noise.

    Pairs of numbers are (y, x), lengths in fine pixels.

    Parameters
    ----------
    scale
        Fine pixels per coarse pixel.
    sigma
        Standard deviation of the PSF.
    shift
        True shift of the coarse image, counted from grids that share their top left corner (see
        `hyperfuse.physics.resample`).
    srf
        (M, C) float64.
    offset
        (M,) constant offset of the msi bands.
    hsi_noise, msi_noise
        (C,) and (M,) standard deviations.
    grid_shift
        The part of `shift` that the georeference accounts for; `misregistration` is the rest.
    confidence
        0 to 1: the probability that the PSF is within 10 % and the shift within 0.15 fine pixels of the truth, times
        `explained`.
    detector
        Side of the detector's pixels over which the PSF is a mean; (0, 0) for a Gaussian PSF.
    explained
        0 to 1: the share of the msi that the hsi explains, lowered where the shift is uncertain by much of a coarse
        pixel. Low for images that have nothing in common.
    notes
        What could not be estimated, and why.

    Examples
    --------
    >>> observation = known_observation(torch.full((1, 5), 0.2), scale=4.0, shift=(1.0, 0.0))
    >>> observation.spatial_operator((32, 32), (8, 8)).apply(torch.ones(5, 32, 32)).shape
    torch.Size([5, 8, 8])
    """

    scale: tuple[float, float]
    sigma: tuple[float, float]
    shift: tuple[float, float]
    srf: Tensor
    offset: Tensor
    hsi_noise: Tensor
    msi_noise: Tensor
    grid_shift: tuple[float, float] = (0.0, 0.0)
    confidence: float = 1.0
    explained: float = 1.0
    detector: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()

    @property
    def misregistration(self) -> tuple[float, float]:
        return self.shift[0] - self.grid_shift[0], self.shift[1] - self.grid_shift[1]

    @property
    def placement(self) -> Placement:
        """Where the fine pixels lie on the coarse grid."""
        return Placement.from_scale(self.scale, self.shift)

    def spatial_operator(self, fine_size: tuple[int, int], coarse_size: tuple[int, int]) -> SpatialOperator:
        """Make the operator A for images of these sizes."""
        return SpatialOperator.from_psf(fine_size, coarse_size, self.scale, self.sigma, self.shift, self.detector)

    def in_window(self, coarse_start: tuple[int, int], fine_start: tuple[int, int]) -> Observation:
        """Return the observation of a window (a tile) that begins at these pixels of the hsi and of the msi."""
        y, x = (coarse * scale - fine for coarse, scale, fine in zip(coarse_start, self.scale, fine_start, strict=True))
        shift, grid_shift = ((pair[0] + y, pair[1] + x) for pair in (self.shift, self.grid_shift))
        return replace(self, shift=shift, grid_shift=grid_shift)

    @property
    def psf_fwhm(self) -> tuple[float, float]:
        """FWHM along y and x, in fine pixels, of a Gaussian PSF with this sigma."""
        return self.sigma[0] * FWHM_PER_SIGMA, self.sigma[1] * FWHM_PER_SIGMA

    def __repr__(self) -> str:
        y, x = self.psf_fwhm
        return (
            f"Observation(scale {self.scale[0]:.4g} {self.scale[1]:.4g}, PSF FWHM {y:.3g} {x:.3g} "
            f"and shift {self.misregistration[0]:+.2f} {self.misregistration[1]:+.2f} fine pixels (y x), "
            f"{self.srf.shape[1]} hsi and {self.srf.shape[0]} msi bands, confidence {self.confidence:.2f})"
        )

    def described(self) -> dict[str, str]:
        """Return the same as texts by their labels, for people."""
        rows = {
            "scale": "{:.4g} {:.4g}".format(*self.scale),
            "shift": "{:+.3f} {:+.3f} fine pixels down, right of the georeference".format(*self.misregistration),
            "PSF": self.psf_text,
            "hsi noise": f"{float(self.hsi_noise.median()):.3g} (median over bands)",
            "msi noise": " ".join(f"{float(level):.3g}" for level in self.msi_noise),
            "msi offset": " ".join(f"{float(level):.3g}" for level in self.offset),
            "confidence": f"{self.confidence:.2f}",
        }
        for index, row in enumerate(self.srf, start=1):
            rows[f"SRF {index}"] = f"peak at hsi band {int(row.argmax()) + 1}, sum {float(row.sum()):.4g}"
        return rows | ({"notes": "; ".join(self.notes)} if self.notes else {})

    @property
    def psf_text(self) -> str:
        """Width and shape of the PSF."""
        width = "{:.3f} {:.3f} fine pixels (FWHM".format(*self.psf_fwhm)
        if not any(self.detector):
            return f"{width})"
        return f"{width} of as wide a Gaussian), " + "a mean over pixels of {:.3g} x {:.3g}".format(*self.detector)

    def _repr_html_(self) -> str:
        return html_table("Observation", self.described())

    def summary(self) -> dict[str, object]:
        """Return the same as plain numbers and lists, for reports and JSON."""
        pairs = {
            name: list(getattr(self, name))
            for name in ("scale", "sigma", "psf_fwhm", "detector", "misregistration", "grid_shift")
        }
        tensors = {name: getattr(self, name).tolist() for name in ("offset", "hsi_noise", "msi_noise")}
        others = {"confidence": self.confidence, "notes": list(self.notes)}
        return {**pairs, "srf": self.srf.tolist(), **tensors, **others}


def known_observation(
    srf: Tensor,
    scale: float | tuple[float, float],
    sigma: float | tuple[float, float] | None = None,
    shift: float | tuple[float, float] = 0.0,
    hsi_noise: float | Tensor = 0.0,
    msi_noise: float | Tensor = 0.0,
) -> Observation:
    """Make an observation of known parameters; without a sigma the PSF has a FWHM of one coarse pixel."""
    if srf.ndim != 2:
        raise BandError(f"SRF of shape {tuple(srf.shape)}", "one row per msi band, one column per hsi band")
    srf = srf.detach().double()
    msi_bands, bands = srf.shape
    scale, shift = as_pair(scale), as_pair(shift)
    return Observation(
        scale=scale,
        sigma=default_sigma(scale) if sigma is None else as_pair(sigma),
        shift=shift,
        srf=srf,
        offset=torch.zeros(msi_bands, dtype=torch.float64),
        hsi_noise=torch.as_tensor(hsi_noise, dtype=torch.float64).expand(bands),
        msi_noise=torch.as_tensor(msi_noise, dtype=torch.float64).expand(msi_bands),
        grid_shift=shift,
    )


def default_sigma(scale: tuple[float, float]) -> tuple[float, float]:
    """Sigma of a PSF whose FWHM is one coarse pixel."""
    return sigma_from_fwhm(scale[0]), sigma_from_fwhm(scale[1])


def as_pair(value: float | tuple[float, float]) -> tuple[float, float]:
    return (float(value[0]), float(value[1])) if isinstance(value, tuple) else (float(value), float(value))


def require_pair(hsi: Tensor, msi: Tensor) -> None:
    """Raise `GridError` for tensors that cannot be a pair."""
    for name, image in (("hsi", hsi), ("msi", msi)):
        if image.ndim != 3 or 0 in image.shape:
            raise GridError(f"{name} of shape {tuple(image.shape)}", "three axes (band, y, x), none of them empty")
    if msi.shape[1] < hsi.shape[1] or msi.shape[2] < hsi.shape[2]:
        got = f"hsi of {hsi.shape[1]}x{hsi.shape[2]} pixels and msi of {msi.shape[1]}x{msi.shape[2]}"
        expected = "an msi with at least as many rows and columns as the hsi"
        raise GridError(got, expected, "give the coarse hsi first and the fine msi second")
