"""What the estimation is based on: a few textured blocks of a pair, and the noise level of each image.

Shapes: B C bands, M msi bands, h w coarse, H W fine.

Noise is what is neither smooth in space nor shared with neighbouring bands. Each band's second differences are
regressed on those of its neighbours, and the blocks with the smallest residual give the noise. Both steps can only
overestimate, so texture makes the result cautious.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from hyperfuse.errors import ValueRangeError
from hyperfuse.io.cube import spread_slices
from hyperfuse.physics.observation import SpatialOperator
from hyperfuse.physics.register import Block
from hyperfuse.physics.resample import coarse_centres

MOST_BLOCKS, MOST_BLOCKS_ALONG = 4, 8
BLOCK_FINE_PIXELS = 192  # side of a block where the scale allows
BLOCK_COARSE_PIXELS = (20, 64)
WHOLE_IMAGE_FINE_PIXELS = 288  # images up to this side are used whole
# Blocks spread over the scene show what varies over it: how many along each side, and the side up to which all is used.
SPREAD_BLOCKS, SPREAD_COARSE_PIXELS, SPREAD_WHOLE_FINE_PIXELS = 6, 12, 640
# Room for the PSF and for the shift that is searched, in coarse pixels; less where an image is small.
MARGINS = (2.5, 2.0, 1.5, 1.0, 0.5, 0.0)
ENOUGH_PIXELS = 120
MARGIN_OF_BLOCK = 4.0  # fine surroundings read with a block, in coarse pixels

NEIGHBOURING_BANDS = 8
NOISE_BLOCK = 8
FEWEST_NOISE_BLOCKS = 20
# The 10 % quantile of the root mean square of an 8x8 block of second differences of unit white noise, by simulation.
LOW_QUANTILE, LOW_QUANTILE_OF_UNIT_NOISE = 0.1, 0.83
MOST_NOISE_SIDE = 512
# Second differences of white noise are correlated: this many of them are worth one independent sample.
SAMPLES_PER_INDEPENDENT_ONE = 3.78


class Samples(Protocol):
    """A source of blocks and noise levels: a pair in memory, or windows of a larger one."""

    @property
    def scale(self) -> tuple[float, float]: ...

    @property
    def shift(self) -> tuple[float, float]: ...

    def at_shift(self, shift: tuple[float, float]) -> Samples:
        """The same pair with another shift."""
        ...

    @property
    def fine_size(self) -> tuple[int, int]: ...

    def blocks(self, sigma: tuple[float, float], *, spread: bool = False) -> list[Block]:
        """The most textured few parts or, `spread`, parts all over the scene."""
        ...

    def hsi_noise(self) -> Tensor: ...

    def msi_noise(self) -> Tensor: ...


@dataclass(frozen=True)
class PairSamples:
    """A pair whose missing pixels are filled; `hsi_known` (h, w) and `msi_known` (H, W) mark the others."""

    hsi: Tensor
    msi: Tensor
    hsi_known: Tensor
    msi_known: Tensor
    scale: tuple[float, float]
    shift: tuple[float, float]

    @classmethod
    def of(cls, hsi: Tensor, msi: Tensor, scale: tuple[float, float], shift: tuple[float, float]) -> PairSamples:
        """From images in which NaN marks missing pixels."""
        known = []
        for image in (hsi, msi):
            live = torch.isfinite(image).flatten(1).any(1)
            if not bool(live.any()):
                got = "a pair in which one image has no valid pixel"
                raise ValueRangeError(got, "some pixels with data", "check its nodata value")
            known.append(torch.isfinite(image[live]).all(0))
        hsi, msi = (torch.nan_to_num(image, nan=0.0, posinf=0.0, neginf=0.0) for image in (hsi, msi))
        return cls(hsi, msi, known[0], known[1], scale, shift)

    def at_shift(self, shift: tuple[float, float]) -> PairSamples:
        return replace(self, shift=shift)

    def hsi_noise(self) -> Tensor:
        return estimate_noise(self.hsi, self.hsi_known)

    def msi_noise(self) -> Tensor:
        return estimate_noise(self.msi, self.msi_known)

    @property
    def _coarse_size(self) -> tuple[int, int]:
        return self.hsi_known.shape[0], self.hsi_known.shape[1]

    @property
    def fine_size(self) -> tuple[int, int]:
        return self.msi_known.shape[0], self.msi_known.shape[1]

    def far_from_holes(self, sigma: tuple[float, float]) -> Tensor:
        """Coarse pixels, (h, w), that are known and see only known fine ones."""
        if bool(self.msi_known.all()):
            return self.hsi_known
        wide = (1.5 * sigma[0], 1.5 * sigma[1])
        operator = SpatialOperator.from_psf(self.fine_size, self._coarse_size, self.scale, wide, self.shift)
        return self.hsi_known & (operator.apply(self.msi_known.float()) > 0.999)

    def usable(self, sigma: tuple[float, float]) -> Tensor:
        """Coarse pixels, (h, w), far enough from borders and holes; the margin shrinks until enough are left."""
        whole = self.far_from_holes(sigma)
        enough = min(ENOUGH_PIXELS, 0.4 * whole.numel())
        axes = list(zip(self._coarse_size, self.fine_size, self.scale, self.shift, strict=True))
        for margin in MARGINS:
            rows, columns = (inside_fine_image(*axis, margin) for axis in axes)
            inside = whole & rows[:, None] & columns[None, :]
            if int(inside.sum()) >= enough:
                break
        return inside

    def blocks(self, sigma: tuple[float, float], *, spread: bool = False) -> list[Block]:
        """The whole pair if it is small, else the most textured few of a grid of blocks or, `spread`, smaller ones."""
        usable = self.usable(sigma)
        whole = [Block(self.hsi, self.msi, self.shift, usable)]
        if max(self.fine_size) <= (SPREAD_WHOLE_FINE_PIXELS if spread else WHOLE_IMAGE_FINE_PIXELS):
            return whole
        if spread:
            places = spread_places(self._coarse_size)
        else:
            textures = [(self._texture(place, usable), place) for place in block_places(self._coarse_size, self.scale)]
            best = sorted(textures, key=lambda each: -each[0])[:MOST_BLOCKS]
            places = [place for texture, place in best if texture >= 0]
        return [self._block(place, usable) for place in places] or whole

    def _block(self, place: tuple[slice, slice], usable: Tensor) -> Block:
        fine, shift = block_surroundings(place, self.fine_size, self.scale, self.shift)
        hsi, msi = (image[:, rows, columns] for image, (rows, columns) in ((self.hsi, place), (self.msi, fine)))
        return Block(hsi, msi, shift, usable[place], (fine[0].start, fine[1].start))

    def _texture(self, place: tuple[slice, slice], usable: Tensor) -> float:
        """Variance of the hsi's mean band over usable pixels; negative for blocks with too few of them."""
        inside = usable[place]
        if int(inside.sum()) < 0.3 * inside.numel():
            return -1.0
        return float(self.hsi[:, place[0], place[1]].mean(0)[inside].var())


def block_places(coarse_size: tuple[int, int], scale: tuple[float, float]) -> list[tuple[slice, slice]]:
    """Lay a grid of blocks over the coarse image, as (rows, columns)."""
    spans: list[list[slice]] = []
    smallest, largest = BLOCK_COARSE_PIXELS
    for size, axis_scale in zip(coarse_size, scale, strict=True):
        side = max(smallest, min(largest, round(BLOCK_FINE_PIXELS / axis_scale)))
        spans.append(spread_slices(size, side, MOST_BLOCKS_ALONG))
    return [(rows, columns) for rows in spans[0] for columns in spans[1]]


def spread_places(coarse_size: tuple[int, int]) -> list[tuple[slice, slice]]:
    """Small blocks all over the coarse image, as (rows, columns)."""
    rows, columns = (spread_slices(size, SPREAD_COARSE_PIXELS, SPREAD_BLOCKS) for size in coarse_size)
    return [(row, column) for row in rows for column in columns]


def block_surroundings(
    place: tuple[slice, slice], fine_size: tuple[int, int], scale: tuple[float, float], shift: tuple[float, float]
) -> tuple[tuple[slice, slice], tuple[float, float]]:
    """Find the fine pixels (rows, columns) to read with a block, and the shift of the block against them.

    Of a block that a large shift places beside the fine image, whose pixels are not usable, they are the nearest.
    """
    fine, origin_shift = [], []
    for axis, span in enumerate(place):
        first = math.floor((span.start - MARGIN_OF_BLOCK) * scale[axis] + shift[axis])
        last = math.ceil((span.stop + MARGIN_OF_BLOCK) * scale[axis] + shift[axis])
        start = min(fine_size[axis] - 1, max(0, first))
        fine.append(slice(start, max(start + 1, min(fine_size[axis], last))))
        origin_shift.append(shift[axis] + span.start * scale[axis] - fine[-1].start)
    return (fine[0], fine[1]), (origin_shift[0], origin_shift[1])


def inside_fine_image(coarse: int, fine: int, scale: float, shift: float, margin: float) -> Tensor:
    """(coarse,) Along one axis: whether coarse pixels lie at least `margin` coarse pixels inside the fine image."""
    centres = coarse_centres(coarse, scale, shift)
    return (centres >= margin * scale - 0.5 - 1e-6) & (centres <= fine - 0.5 - margin * scale + 1e-6)


def estimate_noise(image: Tensor, known: Tensor | None = None) -> Tensor:
    """Estimate the noise of an image (B, H, W), of which `known` (H, W) is False where missing pixels were filled.

    Standard deviations (B,), float64; 0 for images that are too small.

    References
    ----------
    R. E. Roger, J. F. Arnold, "Reliably estimating the noise in AVIRIS hyperspectral images", Int. J. Remote Sensing
    17(10), 1996, regresses bands on their neighbours in the same way.

    Examples
    --------
    >>> noise = 0.1 * torch.randn(4, 128, 128, generator=torch.Generator().manual_seed(0))
    >>> [round(level, 1) for level in estimate_noise(5 + noise).tolist()]
    [0.1, 0.1, 0.1, 0.1]
    """
    nothing = torch.zeros(image.shape[0], dtype=torch.float64)
    if min(image.shape[1:]) < 3:
        return nothing
    middle = _middle(image).double()
    rows = middle[:, 2:] - 2 * middle[:, 1:-1] + middle[:, :-2]
    # Second differences along both axes, (B, H - 2, W - 2), scaled so that white noise keeps its variance.
    sharp = (rows[:, :, 2:] - 2 * rows[:, :, 1:-1] + rows[:, :, :-2]) / 6
    usable = torch.ones(sharp.shape[1:], dtype=torch.bool)
    if known is not None:
        usable = _middle(known).unfold(0, 3, 1).unfold(1, 3, 1).all(-1).all(-1)
    if int(usable.sum()) < 4:
        return nothing
    residual, shares = _unshared_variance(sharp, usable)
    # Residual variance of a band: its own noise plus what its neighbours' noise brought in through the slopes. Solved
    # for all bands together it is exact for noise but amplifies texture; as if all bands were equally noisy it is
    # neither. Their geometric mean is safe.
    together: Tensor = torch.linalg.solve(torch.eye(len(residual), dtype=torch.float64) + shares, residual)
    alike = residual / (1 + shares.sum(1))
    return (together.maximum(0.2 * residual) * alike).clamp_min(0).sqrt().sqrt()


def weakest_components(spectra: Tensor, noise: Tensor) -> float:
    """Share of a noise estimate (C,) that spectra (C, n) can contain, 0 to 1: noise leaves no component empty.

    In units of the noise, the weakest third of the components is compared with that of white noise of the same shape.
    """
    live = noise > 0
    bands, pixels = int(live.sum()), spectra.shape[1]
    if bands < 3 or pixels < 4:
        return 1.0
    white = torch.randn(bands, pixels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weakest = []
    for matrix, unit in ((spectra[live], noise[live, None]), (white, 1.0)):
        centred = (matrix - matrix.mean(1, keepdim=True)) / unit
        gram = centred @ centred.T if bands <= pixels else centred.T @ centred
        # Without its mean, one direction of the smaller side is empty by construction.
        values = torch.linalg.eigvalsh(gram)[int(pixels <= bands) :]
        weakest.append(float(values[: max(1, len(values) // 3)].mean()))
    return math.sqrt(min(1.0, max(0.0, weakest[0] / weakest[1])))


def _middle(image: Tensor) -> Tensor:
    """The middle of a large image: noise is alike everywhere, and second differences need neighbouring pixels."""
    top, left = (max(0, (size - MOST_NOISE_SIDE) // 2) for size in image.shape[-2:])
    return image[..., top : top + MOST_NOISE_SIDE, left : left + MOST_NOISE_SIDE]


def _unshared_variance(sharp: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """Per band the variance that its neighbours do not explain, (B,), and the squares of the slopes on them, (B, B)."""
    bands, samples = sharp.shape[0], int(usable.sum()) / SAMPLES_PER_INDEPENDENT_ONE
    count = min(NEIGHBOURING_BANDS, bands - 1, int(samples // 6))
    known = sharp[:, usable]
    gram = known @ known.T
    gram = gram + (1e-9 * gram.trace() / bands + 1e-300) * torch.eye(bands, dtype=torch.float64)
    variances, shares = [], torch.zeros(bands, bands, dtype=torch.float64)
    for band in range(bands):
        target = sharp[band]
        others = torch.arange(bands).sub(band).abs().argsort(stable=True)[1 : count + 1].tolist()
        if others:
            slopes = torch.linalg.solve(gram[others][:, others], gram[others, band])
            shares[band, others] = slopes.square()
            target = target - torch.einsum("k,kij->ij", slopes, sharp[others])
        # The fit also took some of the target's own noise away.
        variances.append(_noise_level(target, usable).square() / (1 - len(others) / samples))
    return torch.stack(variances), shares


def _noise_level(residual: Tensor, usable: Tensor) -> Tensor:
    """Root mean square of the blocks with the smallest residual; of everything where there are too few blocks."""

    def blocks(image: Tensor) -> Tensor:
        return image.unfold(0, NOISE_BLOCK, NOISE_BLOCK).unfold(1, NOISE_BLOCK, NOISE_BLOCK).flatten(2).flatten(0, 1)

    if min(residual.shape) >= NOISE_BLOCK:
        levels = blocks(residual).square().mean(1).sqrt()[blocks(usable).all(1)]
        if len(levels) >= FEWEST_NOISE_BLOCKS:
            return levels.quantile(LOW_QUANTILE) / LOW_QUANTILE_OF_UNIT_NOISE
    return residual[usable].square().mean().sqrt()
