"""The scale as an exact fraction p/q, and the largest part of an image on which a fine and a coarse grid both have
whole pixels.

The sensor's point spread: a separable Gaussian, sampled at the centres of the coarse pixels.

One axis at a time. H fine pixels become h coarse ones; coarse pixel k looks at the fine position

    centre(k) = (k + 0.5) * scale - 0.5 + shift        (fine pixel f has its centre at position f)

so that both grids share their outer edges when shift is 0 and H = scale * h, for ANY real scale. A positive shift means
that the coarse image sees the scene that many fine pixels further down (or right) than its georeference says. Blurring
an image is `rows_matrix @ image @ columns_matrix.T`: a Kronecker product of two small matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from hyperfuse.errors import OptionError

FWHM_PER_SIGMA = 2.0 * math.sqrt(2.0 * math.log(2.0))
REACH_IN_SIGMAS = 4.0
# Centres are sums of rounded numbers; a tap exactly at the reach must not come and go with the last digit.
CENTRE_ROUNDING = 1e-6


def sigma_from_fwhm(fwhm: float) -> float:
    return fwhm / FWHM_PER_SIGMA


def psf_radius(sigma: float) -> int:
    """How many fine pixels to each side of its centre a coarse pixel looks at."""
    return max(1, math.ceil(REACH_IN_SIGMAS * sigma))


def psf_taps(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Which fine pixels each coarse pixel looks at, and with what weight: two (coarse_size, taps) tensors.

    Weights are normalised to unit gain. Beyond the border the image is mirrored (symmetric: the edge pixel is
    repeated), so the same fine pixel may occur in several taps of one row.
    """
    centres = (torch.arange(coarse_size, dtype=torch.float64) + 0.5) * scale - 0.5 + shift
    halo = psf_radius(sigma)
    offsets = torch.arange(-halo, halo + 1)
    positions = centres.round().long()[:, None] + offsets[None, :]
    distances = positions - centres[:, None]
    # A softmax of the exponent never divides by zero, however narrow the point spread. Where a centre lies between two
    # pixels the taps reach half a pixel further on one side than on the other; cutting both at the same distance keeps
    # mirror symmetry exact.
    exponent = (-0.5 * (distances / sigma) ** 2).masked_fill(distances.abs() > halo + CENTRE_ROUNDING, -torch.inf)
    weights = torch.softmax(exponent, dim=1)
    return _mirrored(positions, fine_size), weights


def psf_matrix(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float = 0.0) -> Tensor:
    """The same as a dense (coarse_size, fine_size) float64 matrix whose rows sum to 1."""
    indices, weights = psf_taps(fine_size, coarse_size, scale, sigma, shift)
    matrix = torch.zeros(coarse_size, fine_size, dtype=torch.float64)
    return matrix.scatter_add_(1, indices, weights)


def _mirrored(positions: Tensor, size: int) -> Tensor:
    """Fold positions outside 0..size-1 back by symmetric reflection, as often as needed."""
    folded = positions.remainder(2 * size)
    return torch.where(folded < size, folded, 2 * size - 1 - folded)


# 10/3 typed as 3.3333333 means 10/3; 3.001 means 3001/1000.
LARGEST_DENOMINATOR = 1000
RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Crop:
    """The upper left `fine_size` pixels of an image, which make exactly `coarse_size` coarse ones. Sizes are (rows,
    columns).
    """

    fine_size: tuple[int, int]
    coarse_size: tuple[int, int]


def exact_scale(scale: float | str | Fraction) -> Fraction:
    """3.2 -> 16/5, "10/3" -> 10/3."""
    try:
        wanted = Fraction(str(scale).strip())
    except (ValueError, ZeroDivisionError):
        raise OptionError(f"scale {scale}", "a number of 1 or more such as 4, 3.2 or 10/3") from None
    if wanted < 1:
        raise OptionError(
            f"scale {scale}", "a number of 1 or more", "the scale is how many fine pixels make a coarse one"
        )
    exact = wanted.limit_denominator(LARGEST_DENOMINATOR)
    if abs(exact - wanted) > RELATIVE_TOLERANCE * wanted:
        raise OptionError(
            f"scale {scale}", f"a ratio of whole numbers p/q with q up to {LARGEST_DENOMINATOR}", f"nearest: {exact}"
        )
    return exact


def largest_crop(size: tuple[int, int], scale: Fraction) -> Crop:
    """The largest upper left part of an image of this size that p fine pixels divide, for the scale p/q."""
    coarse = tuple(length // scale.numerator * scale.denominator for length in size)
    if 0 in coarse:
        near = ", ".join(_shortest(near) for near in fitting_scales(min(size), scale))
        raise OptionError(
            f"scale {float(scale):.6g} = {scale} on {size[0]}x{size[1]} pixels",
            f"at least {scale.numerator} pixels to a side, for the two grids to meet",
            f"nearby scales that fit: {near}" if near else "choose a smaller scale",
        )
    fine = tuple(int(length * scale) for length in coarse)
    return Crop((fine[0], fine[1]), (coarse[0], coarse[1]))


def fitting_scales(length: int, scale: Fraction, count: int = 3) -> list[Fraction]:
    """The fractions p/q >= 1 nearest to a scale whose p fits into `length` pixels."""
    candidates = {Fraction(max(q, round(scale * q)), q) for q in range(1, length + 1)}
    fitting = [near for near in candidates if near.numerator <= length]
    return sorted(fitting, key=lambda near: (abs(near - scale), near))[:count]


def _shortest(scale: Fraction) -> str:
    decimal = f"{float(scale):.6g}"
    return decimal if Fraction(decimal) == scale else str(scale)
