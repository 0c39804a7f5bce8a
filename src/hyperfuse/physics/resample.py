"""How a fine and a coarse grid relate: pixel centres, exact scales, and bicubic interpolation between them.

The whole project uses one convention. Pixel k of an image has its CENTRE at position k and its edges at k - 1/2 and
k + 1/2. The outer edges of two images of the same ground coincide, for any real scale (fine pixels per coarse pixel):

    fine position of coarse pixel k      (k + 1/2) * scale - 1/2 + shift
    coarse position of fine pixel i      (i + 1/2 - shift) / scale - 1/2  =  origin + step * i

A positive shift (fine pixels, down or right) means that the coarse image sees the scene that much further along the
axis than grids with a shared top left corner would. The paper prints a corner-aligned formula, which shifts every
pixel but the middle one (docs/paper_notes.md).

Shapes: C bands, h w coarse, H W fine.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse import compiled
from hyperfuse.errors import GridError, OptionError

# A fine pixel on a coarse centre (every odd scale has such pixels) may come out a rounding error to the left of it.
# Without this slack it would choose other neighbours in a tile than in the whole image.
CENTRE_SLACK = 1e-6
KEYS_A = -0.5
MOST_TAPS = 32  # entries of a row of a matrix that is no longer multiplied as a whole
SMALLEST_BLOCK = 32  # of a banded matrix, in its shorter direction; smaller products are slower than multiplying zeros

# 10/3 typed as 3.3333333 means 10/3; 3.001 means 3001/1000.
LARGEST_DENOMINATOR = 1000
RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class AxisPlacement:
    """Fine pixel i has its centre at `origin + step * i`, in coarse pixels."""

    origin: float
    step: float

    @classmethod
    def from_scale(cls, scale: float, shift: float = 0.0) -> AxisPlacement:
        """Place a fine axis by its scale and shift (fine pixels)."""
        return cls((0.5 - shift) / scale - 0.5, 1 / scale)

    def position(self, fine_index: int) -> float:
        return self.origin + self.step * fine_index

    def seen_from(self, fine_start: int, coarse_start: int) -> AxisPlacement:
        """The same placement for a window that begins at these pixels of the two images."""
        return AxisPlacement(self.position(fine_start) - coarse_start, self.step)


@dataclass(frozen=True)
class Placement:
    """Where a fine image lies on a coarse one, along both axes."""

    rows: AxisPlacement
    columns: AxisPlacement

    @classmethod
    def from_scale(cls, scale: tuple[float, float], shift: tuple[float, float] = (0.0, 0.0)) -> Placement:
        """Place a fine image by scale and shift, both (y, x)."""
        return cls(AxisPlacement.from_scale(scale[0], shift[0]), AxisPlacement.from_scale(scale[1], shift[1]))


def shared_edges(fine_size: tuple[int, int], coarse_size: tuple[int, int]) -> Placement:
    """Place two images that cover exactly the same ground."""
    for fine, coarse in zip(fine_size, coarse_size, strict=True):
        if fine < coarse:
            got = f"{fine} fine pixels over {coarse} coarse ones, a scale below 1"
            expected = "an msi with at least as many rows and columns as the hsi"
            raise GridError(got, expected, "check which of the two images is the hsi")
    rows, columns = (coarse / fine for fine, coarse in zip(fine_size, coarse_size, strict=True))
    return Placement(AxisPlacement(0.5 * rows - 0.5, rows), AxisPlacement(0.5 * columns - 0.5, columns))


def coarse_centres(coarse_size: int, scale: float, shift: float = 0.0) -> Tensor:
    """Fine positions of the coarse pixel centres, (coarse_size,) float64."""
    return (torch.arange(coarse_size, dtype=torch.float64) + 0.5) * scale - 0.5 + shift


def fine_positions(axis: AxisPlacement, fine_size: int) -> Tensor:
    """Coarse positions of the fine pixel centres, (fine_size,) float64.

    Made on the CPU, in double precision: a float32 position in a scene of thousands of pixels is wrong by 1e-4 of a
    pixel, and not every device has doubles.
    """
    return axis.origin + axis.step * torch.arange(fine_size, dtype=torch.float64)


@dataclass(frozen=True)
class NeighbourPair:
    """The coarse pixels on the two sides of every fine pixel along one axis.

    indices (2, fine size): coarse index below and above; the border pixel stands in for what lies outside.
    offsets (2, fine size): fine position minus the position of that coarse pixel, in coarse pixels, float32.
    """

    indices: Tensor
    offsets: Tensor

    def between(self, start: int, stop: int) -> NeighbourPair:
        return NeighbourPair(self.indices[:, start:stop], self.offsets[:, start:stop])


def neighbour_pair(positions: Tensor, coarse_size: int, device: torch.device) -> NeighbourPair:
    """Find the two coarse neighbours of fine pixels at these coarse positions."""
    below = torch.floor(positions + CENTRE_SLACK)
    both = torch.stack([below, below + 1.0]).clamp(min=0.0).clamp(max=coarse_size - 1)
    offsets = positions - both
    return NeighbourPair(both.to(device=device, dtype=torch.int64), offsets.to(device=device, dtype=torch.float32))


def upsample_bicubic(image: Tensor, fine_size: tuple[int, int], placement: Placement) -> Tensor:
    """Interpolate a coarse image at fine pixel centres by cubic convolution, for any real scale and shift.

    Torch's own interpolation uses a = -3/4, which does not reproduce a linear ramp; a = -1/2 is the only value that
    does, and the only one of third order [1]_.

    Parameters
    ----------
    image
        (..., h, w). Beyond its border the edge pixel is repeated.
    fine_size
        (H, W).
    placement
        Where the fine pixels lie on the coarse grid: `shared_edges`, `Placement.from_scale` or
        `Observation.placement`.

    Returns
    -------
    Tensor
        (..., H, W), in the precision of `image` also under autocast.

    References
    ----------
    .. [1] R. Keys, "Cubic convolution interpolation for digital image processing", IEEE Trans. ASSP 29(6), 1981.

    Examples
    --------
    >>> coarse = torch.arange(5.0).expand(1, 5, 5)
    >>> fine = upsample_bicubic(coarse, (10, 10), shared_edges((10, 10), (5, 5)))
    >>> [round(value, 6) for value in fine[0, 5, 3:7].tolist()]
    [1.25, 1.75, 2.25, 2.75]
    """
    if torch.amp.is_autocast_available(image.device.type) and torch.is_autocast_enabled(image.device.type):
        # The base carries the radiometry of the result: it stays in full precision whatever the network runs in.
        with torch.autocast(image.device.type, enabled=False):
            return upsample_bicubic(image, fine_size, placement)
    matrix = bicubic_matrix if torch.compiler.is_compiling() else _known_matrix
    rows = matrix(placement.rows, fine_size[0], image.shape[-2])
    columns = matrix(placement.columns, fine_size[1], image.shape[-1])
    return separable(rows, columns, image, known=not torch.compiler.is_compiling())


def bicubic_along_columns(axis: AxisPlacement, fine_size: int, image: Tensor) -> Tensor:
    """Interpolate the columns of (C, h, w) only: (C, h, fine_size). For what `compiled.can_compute`."""
    columns = _known_taps(_known_matrix(axis, fine_size, image.shape[2]))
    assert columns is not None
    height = image.shape[1]
    return compiled.combine_neighbours(compiled.Taps(torch.arange(height), torch.ones(height, 1)), columns, image)


def separable(rows: Tensor, columns: Tensor, image: Tensor, *, known: bool = False) -> Tensor:
    """rows @ image @ columns.T over the last two axes, in the image's own precision, the cheaper product first.

    The order also decides rounding errors, to which `universal` is sensitive (1e-5). The blocks of `known` matrices,
    which are used again, are kept.
    """
    if known and compiled.can_compute(image) and image.numel():
        row_taps, column_taps = _known_taps(rows), _known_taps(columns)
        if row_taps is not None and column_taps is not None:
            return compiled.combine_neighbours(row_taps, column_taps, image)
    bands = _known_bands if known else _bands_of
    row_bands, column_bands = (bands(matrix, image.dtype, image.device) for matrix in (rows, columns))
    if rows.shape[0] * columns.shape[1] <= rows.shape[1] * columns.shape[0]:
        return _along_columns(column_bands, _along_rows(row_bands, image))
    return _along_rows(row_bands, _along_columns(column_bands, image))


def _along_rows(bands: Sequence[tuple[Tensor, slice]], image: Tensor) -> Tensor:
    parts = [matrix @ image[..., columns, :] for matrix, columns in bands]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def _along_columns(bands: Sequence[tuple[Tensor, slice]], image: Tensor) -> Tensor:
    parts = [image[..., columns] @ matrix.T for matrix, columns in bands]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _bands_of(matrix: Tensor, dtype: torch.dtype, device: torch.device) -> list[tuple[Tensor, slice]]:
    """Blocks of rows, without columns that are 0 there, and the others: blur and interpolation look at neighbours."""
    matrix = matrix.to(device, dtype)
    height, width = matrix.shape
    step = max(SMALLEST_BLOCK, SMALLEST_BLOCK * height // max(1, width))
    if min(height, width) <= 2 * SMALLEST_BLOCK:
        return [(matrix, slice(None))]
    blocks = pad(matrix.ne(0), (0, 0, 0, -height % step)).view(-1, step, width).any(1).to(torch.uint8)
    first, last = blocks.argmax(1).tolist(), (width - blocks.flip(1).argmax(1)).tolist()
    spans = zip(range(0, height, step), first, last, strict=True)
    return [(matrix[start : start + step, slice(*span)], slice(*span)) for start, *span in spans]


def _taps_of(matrix: Tensor) -> compiled.Taps | None:
    """None for a matrix of which products with blocks are cheaper."""
    nonzero = matrix.ne(0).to(torch.uint8)
    first, last = nonzero.argmax(1), matrix.shape[1] - nonzero.flip(1).argmax(1)
    most = int((last - first).max())
    if most > MOST_TAPS:
        return None
    # Every row gets as many.
    first = first.clamp(max=matrix.shape[1] - most)
    return compiled.Taps(first, matrix.gather(1, first[:, None] + torch.arange(most)).float())


_known_taps = functools.lru_cache(maxsize=128)(torch.inference_mode(False)(_taps_of))
_known_bands = functools.lru_cache(maxsize=128)(torch.inference_mode(False)(_bands_of))  # by identity of the matrix


def bicubic_matrix(axis: AxisPlacement, fine_size: int, coarse_size: int) -> Tensor:
    """The (fine_size, coarse_size) float64 matrix that interpolates one axis; its rows sum to 1."""
    indices, weights = bicubic_taps(axis, fine_size, coarse_size)
    return torch.zeros(fine_size, coarse_size, dtype=torch.float64).scatter_add(1, indices, weights)


def bicubic_taps(axis: AxisPlacement, fine_size: int, coarse_size: int) -> tuple[Tensor, Tensor]:
    """(fine_size, 4): the coarse pixels that each fine one is interpolated from, and their weights (float64)."""
    positions = fine_positions(axis, fine_size)
    taps = (torch.floor(positions) - 1.0)[:, None] + torch.arange(4, dtype=torch.float64)
    weights = keys_cubic(positions[:, None] - taps)
    return taps.clamp(min=0.0).clamp(max=coarse_size - 1).to(torch.int64), weights


# The parts of a scene's tiles have the same few; inference tensors would be of no use to a training.
_known_matrix = functools.lru_cache(maxsize=64)(torch.inference_mode(False)(bicubic_matrix))


def keys_cubic(distance: Tensor) -> Tensor:
    """Keys (1981), eq. 4 with a = -1/2, as a function of the distance in coarse pixels."""
    d = distance.abs()
    near = ((KEYS_A + 2.0) * d - (KEYS_A + 3.0)) * d * d + 1.0
    far = ((KEYS_A * d - 5.0 * KEYS_A) * d + 8.0 * KEYS_A) * d - 4.0 * KEYS_A
    return torch.where(d <= 1.0, near, torch.where(d < 2.0, far, torch.zeros_like(d)))


@dataclass(frozen=True)
class Crop:
    """The upper left `fine_size` pixels of an image, which make exactly `coarse_size` coarse ones; (rows, columns)."""

    fine_size: tuple[int, int]
    coarse_size: tuple[int, int]


def exact_scale(scale: float | str | Fraction) -> Fraction:
    """Convert a scale to a fraction p/q.

    Examples
    --------
    >>> exact_scale(3.2), exact_scale("10/3")
    (Fraction(16, 5), Fraction(10, 3))
    """
    try:
        value = Fraction(str(scale).strip())
    except (ValueError, ZeroDivisionError):
        raise OptionError(f"scale {scale}", "a number of 1 or more such as 4, 3.2 or 10/3") from None
    if value < 1:
        remedy = "the scale is how many fine pixels make a coarse one"
        raise OptionError(f"scale {scale}", "a number of 1 or more", remedy)
    exact = value.limit_denominator(LARGEST_DENOMINATOR)
    if abs(exact - value) > RELATIVE_TOLERANCE * value:
        expected = f"a ratio of whole numbers p/q with q up to {LARGEST_DENOMINATOR}"
        raise OptionError(f"scale {scale}", expected, f"nearest: {exact}")
    return exact


def largest_crop(size: tuple[int, int], scale: Fraction) -> Crop:
    """Find the largest upper left part of an image on which the fine and the coarse grid both have whole pixels."""
    coarse = tuple(length // scale.numerator * scale.denominator for length in size)
    if 0 in coarse:
        near = ", ".join(_shortest(near) for near in _fitting_scales(min(size), scale))
        raise OptionError(
            f"scale {float(scale):.6g} = {scale} on {size[0]}x{size[1]} pixels",
            f"at least {scale.numerator} pixels to a side, for the two grids to meet",
            f"nearby scales that fit: {near}" if near else "choose a smaller scale",
        )
    fine = tuple(int(length * scale) for length in coarse)
    return Crop((fine[0], fine[1]), (coarse[0], coarse[1]))


def _fitting_scales(length: int, scale: Fraction) -> list[Fraction]:
    """The three fractions p/q >= 1 nearest to a scale whose p fits into `length` pixels."""
    candidates = {Fraction(max(q, round(scale * q)), q) for q in range(1, length + 1)}
    fitting = [near for near in candidates if near.numerator <= length]
    return sorted(fitting, key=lambda near: (abs(near - scale), near))[:3]


def _shortest(scale: Fraction) -> str:
    decimal = f"{float(scale):.6g}"
    return decimal if Fraction(decimal) == scale else str(scale)
