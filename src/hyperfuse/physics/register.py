"""Shift and PSF width from the pair: where, and how blurred, must the msi be for the hsi to explain it best?

Shapes: C bands, M msi bands, p components, n coarse pixels, h w coarse, H W fine, s t offsets.

`register` regresses the msi under a trial PSF on the hsi's leading components; the SRF need not be known, because any
SRF is such a regression (variable projection, [1]_). The score is the mean log of the share that stays unexplained, one
share per msi band: shares do not reward blurring for its own sake, and under noise in the hsi their minimum stays where
it is. A search over a grid of shifts is followed by Levenberg-Marquardt on (log sigma, shift) of both axes.

`search_coarse_offsets` looks for offsets of many coarse pixels. Both images on the hsi's grid, high-pass filtered, are
correlated at all offsets at once (by Fourier transforms, over the pixels known in both). At each offset the share of
the msi that the hsi explains is the sum over the hsi's leading components of their squared correlations.

References
----------
.. [1] G. Golub, V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose
   variables separate", SIAM J. Numerical Analysis 10(2), 1973.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import irfft2, next_fast_len, rfft2
from scipy.ndimage import gaussian_filter, gaussian_filter1d, maximum_filter
from torch import Tensor

from hyperfuse.physics.observation import SpatialOperator, psf_matrix
from hyperfuse.physics.resample import separable

Pair = tuple[float, float]
Floats = NDArray[np.float64]

MOST_COMPONENTS = 16
SEARCH_RADIUS = 1.5  # coarse pixels
SEARCH_STEP = 0.5  # coarse pixels
SIGMA_LIMITS = (0.1, 1.2)  # of the scale
MOST_STEPS, SMALLEST_STEP, SMALLEST_GAIN = 25, 5e-4, 1e-6
DIFFERENCE_STEP = 1e-2  # of the numerical derivatives
SMALLEST_SHARE = 1e-7
SMALLEST_WEIGHT = 0.05
# A PSF is expected to have about the starting width: what a squared deviation of log sigma costs, in units of the
# score. What stays unexplained under the best PSF is an error of the model, which a wrong PSF may explain in part: each
# MODEL_ERROR of it adds another PSF_PRIOR.
PSF_PRIOR, MODEL_ERROR = 0.5, 0.001
SHIFT_PRIOR = 0.02  # the same of the search, for a squared shift in coarse pixels
SEARCHED_PIXELS, TRIMMED = 3000, 0.85  # about how many pixels the search compares, and the share of them that counts
DETAIL_SIGMA = 2.0  # coarse pixels

MOST_COMPONENTS_COARSE_SEARCH = 4
HIGH_PASS_SIGMA = 4.0  # coarse pixels
LEAST_OVERLAP = 0.4  # of the known pixels
# Neighbouring pixels are correlated: so many of them count as one when a high share over few pixels may be chance.
PIXELS_PER_INDEPENDENT_ONE = 9.0
SMALLEST_SIDE = 16
MOST_PEAKS = 3
PEAK_RADIUS = 3

# Bands of the hsi are displaced against each other if that lowers the mean log of what the msi leaves unexplained of
# them by so much, and by at least so many coarse pixels.
DISPLACED_GAIN, SMALLEST_DISPLACEMENT = 0.25, 0.04
HALVES_DIFFER = 0.5  # share of a displacement by which halves of the scene may differ from it
DISPLACEMENT_ROUNDS, DISPLACEMENT_STEP = 3, 1 / 8  # coarse pixels from one evaluated displacement to the next
DISPLACEMENT_TUKEY = 4.0


@dataclass(frozen=True)
class Block:
    """A piece of a pair: hsi (C, h, w) and msi (M, H, W)."""

    hsi: Tensor
    msi: Tensor
    origin_shift: Pair  # what the block's fine origin adds to the shift of the scene
    usable: Tensor  # (h, w), coarse pixels whose surroundings are all data
    fine_start: tuple[int, int] = (0, 0)  # the block's first fine pixel in the scene
    detector: Pair = (0.0, 0.0)  # of the PSF, see `Observation`

    def operator(self, scale: Pair, sigma: Pair, shift: Pair = (0.0, 0.0)) -> SpatialOperator:
        fine, coarse = ((image.shape[1], image.shape[2]) for image in (self.msi, self.hsi))
        total = self.origin_shift[0] + shift[0], self.origin_shift[1] + shift[1]
        return SpatialOperator.from_psf(fine, coarse, scale, sigma, total, self.detector)


@dataclass(frozen=True)
class Registration:
    """A PSF and shift, (y, x) in fine pixels, with a standard error."""

    sigma: Pair
    shift: Pair
    shift_error: Pair
    explained: float  # share of the msi's variance that the hsi explains, adjusted for the number of components
    explained_at_start: float
    evidence: float  # log likelihood gained against the start
    log_sigma_error: Pair = (0.0, 0.0)
    detector: Pair = (0.0, 0.0)  # of the PSF, see `Observation`


@dataclass(frozen=True)
class Problem:
    """Everything that stays the same from one trial to the next."""

    blocks: list[Block]
    explaining: Tensor  # (n, p), orthonormal: what the hsi can explain, times the roots of the weights
    weights: Tensor  # (n,), from 0 for pixels that disagree to 1
    scale: Pair

    @classmethod
    def of(cls, blocks: list[Block], scale: Pair, weights: Tensor | None = None) -> Problem:
        spectra = torch.cat([block.hsi[:, block.usable] for block in blocks], dim=1).double()
        weights = torch.ones(spectra.shape[1], dtype=torch.float64) if weights is None else weights
        components = leading_components(spectra, weights) * weights.sqrt()[:, None]
        left, values, _ = torch.linalg.svd(components, full_matrices=False)
        return cls(blocks, left[:, values > 1e-10 * values[0].clamp_min(1e-300)], weights, scale)

    @property
    def samples(self) -> float:
        return float(self.weights.sum())

    @property
    def bands(self) -> int:
        """Of the msi, less what is free in every pixel."""
        return len(self.blocks[0].msi)

    @property
    def components(self) -> int:
        return self.explaining.shape[1]

    def matrices(self, axis: int, sigma: float, shift: float) -> list[Tensor]:
        made = cache(psf_matrix)  # blocks of one size mostly lie alike on both grids
        sizes = [(block.msi.shape[1 + axis], block.hsi.shape[1 + axis]) for block in self.blocks]
        rest = [(shift + block.origin_shift[axis], block.detector[axis]) for block in self.blocks]
        return [made(*size, self.scale[axis], sigma, *each) for size, each in zip(sizes, rest, strict=True)]

    def residual_at(self, parameters: Tensor) -> Tensor:
        """What the hsi cannot explain of the msi under a trial (log sigma, shift), (M, n)."""
        (sigma_y, sigma_x), (shift_y, shift_x) = parameters[:2].exp().tolist(), parameters[2:].tolist()
        trials = zip(self.matrices(0, sigma_y, shift_y), self.matrices(1, sigma_x, shift_x), self.blocks, strict=True)
        return self.unexplained([separable(row, column, block.msi) for row, column, block in trials])

    def usable(self, blurred: list[Tensor]) -> Tensor:
        """Usable pixels of blurred blocks (..., h, w): (..., n)."""
        pixels = [image[..., block.usable] for image, block in zip(blurred, self.blocks, strict=True)]
        return torch.cat(pixels, dim=-1).double()

    def centred(self, pixels: Tensor) -> Tensor:
        """Pixels (..., n) without their mean, times the roots of the weights."""
        return (pixels - (pixels @ self.weights / self.weights.sum())[..., None]) * self.weights.sqrt()

    def compared(self, pixels: Tensor) -> Tensor:
        """What of pixels (..., n), times the roots of the weights, the hsi is to explain."""
        return self.centred(pixels)

    def outside(self, images: Tensor) -> Tensor:
        """The part of images (..., n) that the hsi cannot explain."""
        explained: Tensor = (images @ self.explaining) @ self.explaining.T
        return images - explained

    def unexplained(self, blurred: list[Tensor]) -> Tensor:
        """The same of blurred blocks (..., h, w), each band first centred and scaled to unit length."""
        pixels = self.usable(blurred)
        return self.outside(self.compared(pixels) / _lengths(self.centred(pixels)))


def _lengths(images: Tensor) -> Tensor:
    return images.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-30)


def leading_components(spectra: Tensor, weights: Tensor) -> Tensor:
    """(n, p) The leading principal components of weighted spectra (C, n), with weighted mean zero, about unit variance.

    Few enough that the pixels determine a regression on them.
    """
    centred = spectra - (spectra @ weights / weights.sum())[:, None]
    return centred.T @ leading_axes(spectra, weights)


def leading_axes(spectra: Tensor, weights: Tensor) -> Tensor:
    """(C, p) What the leading principal components are made of."""
    centred = spectra - (spectra @ weights / weights.sum())[:, None]
    values, axes = torch.linalg.eigh((centred * weights) @ centred.T)
    most = max(1, min(MOST_COMPONENTS, int((weights > SMALLEST_WEIGHT).sum()) // 8, spectra.shape[0]))
    unit = (values[-1].clamp_min(1e-300) / weights.sum()).sqrt()
    leading: Tensor = axes.flip(1)[:, :most] / unit
    return leading


def register(
    blocks: list[Block],
    scale: Pair,
    sigma: Pair,
    shift: Pair = (0.0, 0.0),
    sigma_known: bool = False,
    shift_known: bool = False,
    weights: Tensor | None = None,
    first: Pair | None = None,
) -> Registration:
    """Refine a starting PSF and shift, either of which may be known and then stays.

    `weights` (n,) of the usable pixels of all blocks say how far each is to be trusted. A shift `first` near the
    solution replaces the search.
    """
    problem = Problem.of(blocks, scale, weights)
    start = torch.tensor([*map(math.log, sigma), *shift], dtype=torch.float64)
    if shift_known:
        begin = start
    elif first is None:
        begin = _search(problem, start)
    else:
        begin = torch.cat([start[:2], torch.tensor(first, dtype=torch.float64)])
    return solve(problem, start, begin, sigma_known=sigma_known, shift_known=shift_known)


def solve(problem: Problem, start: Tensor, begin: Tensor, *, sigma_known: bool, shift_known: bool) -> Registration:
    """The best (log sigma, shift) near the beginning, with the expected sigma at the start."""
    free = torch.tensor([not sigma_known] * 2 + [not shift_known] * 2)
    before = score_of(problem.residual_at(start))
    best = begin, *_linearise(problem, begin)
    best = _refine(problem, best, start, free, PSF_PRIOR)
    unexplained = math.exp(score_of(best[1]))
    if unexplained > 0.1 * MODEL_ERROR and not sigma_known:
        best = _refine(problem, best, start, free, PSF_PRIOR * (1 + unexplained / MODEL_ERROR))
    parameters, residual, jacobian = best
    after = score_of(residual)
    errors = _standard_errors(problem, residual, jacobian, free)
    ratio = (problem.samples - 1) / max(1, problem.samples - 1 - problem.components)
    return Registration(
        sigma=_as_pair(parameters[:2].exp()),
        shift=_as_pair(parameters[2:]),
        shift_error=_as_pair(errors[2:]),
        explained=1 - ratio * math.exp(after),
        explained_at_start=1 - ratio * math.exp(before),
        evidence=0.5 * problem.samples * problem.bands * (before - after),
        log_sigma_error=_as_pair(errors[:2]),
        detector=problem.blocks[0].detector,
    )


def unexplained_share(blocks: list[Block], scale: Pair, sigma: Pair, shift: Pair, weights: Tensor) -> float:
    """Geometric mean over the msi bands of the share that the hsi does not explain under this PSF and shift."""
    problem = Problem.of(blocks, scale, weights)
    return math.exp(score_of(problem.residual_at(torch.tensor([*map(math.log, sigma), *shift], dtype=torch.float64))))


def search_shift(
    blocks: list[Block],
    scale: Pair,
    sigma: Pair,
    weights: Tensor | None = None,
    centre: Pair = (0.0, 0.0),
    radius: float = SEARCH_RADIUS,
) -> Pair:
    """The best of a grid of shifts for pairs that disagree in places or in their light.

    Both images are compared without their local means, and the worst part of the pixels is left out. The grid extends
    from the centre, in fine pixels, to a radius in coarse ones.
    """
    counts = [int(block.usable.sum()) for block in blocks]
    weights = torch.ones(sum(counts), dtype=torch.float64) if weights is None else weights
    kept = torch.from_numpy(np.random.default_rng(0).random(len(weights)) < SEARCHED_PIXELS / max(1, len(weights)))
    maps, thinned = [], []
    for block, part, some in zip(blocks, torch.split(weights, counts), torch.split(kept, counts), strict=True):
        known, usable = block.usable.double(), block.usable.clone()
        known[block.usable], usable[block.usable] = part, some
        maps.append(known)
        thinned.append(replace(block, hsi=_local_detail(block.hsi.double(), known), usable=usable))
    problem = Problem.of(thinned, scale, weights[kept])
    steps = np.arange(-radius, radius + 1e-9, SEARCH_STEP)
    trials = [(centre[axis] + scale[axis] * steps).tolist() for axis in (0, 1)]
    details = [partial(_local_detail, weights=known) for known in maps]
    best, best_score = centre, math.inf
    for shift, blurred in _blurred_at(problem, sigma, trials):
        parts = [detail(part.double()) for detail, part in zip(details, blurred, strict=True)]
        squared = problem.unexplained(parts).square().numpy()
        count = int(TRIMMED * squared.shape[1])
        shares = np.partition(squared, count, axis=1)[:, :count].sum(axis=1) + SMALLEST_SHARE
        distance = (shift[0] / scale[0]) ** 2 + (shift[1] / scale[1]) ** 2
        score = float(np.log(shares).mean()) + SHIFT_PRIOR * distance
        if score < best_score:
            best, best_score = shift, score
    return best


def _blurred_at(problem: Problem, sigma: Pair, trials: list[list[float]]) -> Iterator[tuple[Pair, list[Tensor]]]:
    """All shifts of a grid and the blocks (M, h, w) under them: all of them in two products per block."""
    products = []
    stacks = [zip(*(problem.matrices(i, sigma[i], shift) for shift in trials[i]), strict=True) for i in (0, 1)]
    for rows, columns, block in zip(*stacks, problem.blocks, strict=True):
        # Trials next to each other: a band of rows then looks at few columns.
        y, x = (torch.stack(axis, dim=1).flatten(0, 1) for axis in (rows, columns))
        (height, width), bands = block.hsi.shape[1:], len(block.msi)
        products.append(separable(y, x, block.msi).reshape(bands, height, len(rows), width, len(columns)))
    for i, j in itertools.product(*(range(len(axis)) for axis in trials)):
        yield (trials[0][i], trials[1][j]), [product[:, :, i, :, j] for product in products]


def _local_detail(image: Tensor, weights: Tensor) -> Tensor:
    """(B, h, w) minus its weighted local mean."""
    rows, columns = (_local_mean(length) for length in weights.shape)
    total = separable(rows, columns, weights).clamp_min(1e-6)
    return image - separable(rows, columns, image * weights) / total


@cache
def _local_mean(length: int) -> Tensor:
    """(length, length) A Gaussian filter that repeats the last value beyond the border."""
    return torch.from_numpy(gaussian_filter1d(np.eye(length), DETAIL_SIGMA, axis=0, mode="nearest"))


def _as_pair(values: Tensor) -> Pair:
    return float(values[0]), float(values[1])


def _shares(residual: Tensor) -> Tensor:
    return residual.square().sum(1) + SMALLEST_SHARE


def score_of(residual: Tensor) -> float:
    """Mean log of the shares of the msi bands that stay unexplained."""
    return float(_shares(residual).log().mean())


def _search(problem: Problem, start: Tensor) -> Tensor:
    """The best of a grid of shifts at the starting sigma."""
    steps = torch.arange(-SEARCH_RADIUS, SEARCH_RADIUS + 1e-9, SEARCH_STEP).tolist()
    trials = [[float(start[2 + axis]) + step * problem.scale[axis] for step in steps] for axis in (0, 1)]
    tried = _blurred_at(problem, _as_pair(start[:2].exp()), trials)
    best = min(((score_of(problem.unexplained(blurred)), shift) for shift, blurred in tried))[1]
    return torch.tensor([*start[:2], *best], dtype=torch.float64)


Linearised = tuple[Tensor, Tensor, Tensor]
"""Parameters, the residual and its derivatives there."""


def _refine(problem: Problem, at: Linearised, start: Tensor, free: Tensor, psf_prior: float) -> Linearised:
    """Levenberg-Marquardt on the residuals, each msi band weighted by one over its unexplained share."""
    scale = torch.tensor(problem.scale, dtype=torch.float64)
    detector = torch.tensor(problem.blocks[0].detector, dtype=torch.float64)
    narrowest = torch.maximum(SIGMA_LIMITS[0] * scale, detector / math.sqrt(12))
    lowest = torch.cat([narrowest.log(), start[2:] - 2 * scale])
    highest = torch.cat([(SIGMA_LIMITS[1] * scale).log(), start[2:] + 2 * scale])
    prior = torch.tensor([psf_prior, psf_prior, 0.0, 0.0], dtype=torch.float64)

    def penalised(residual: Tensor, trial: Tensor) -> float:
        return score_of(residual) + float(prior @ (trial - start).square())

    parameters, residual, jacobian = at
    score, damping = penalised(residual, parameters), 1e-3
    for _ in range(MOST_STEPS):
        slope = torch.einsum("amn,mn->a", jacobian / _shares(residual)[None, :, None], residual)
        slope = slope + len(residual) * prior * (parameters - start)
        step = torch.zeros(4, dtype=torch.float64)
        if bool(free.any()):
            normal = (_normal_matrix(residual, jacobian) + len(residual) * torch.diag(prior))[free][:, free]
            normal = normal + torch.diag(normal.diagonal() * damping + 1e-12)
            step[free] = -torch.linalg.solve(normal, slope[free])
        trial = (parameters + step.clamp(-0.7, 0.7)).clamp(lowest, highest)
        if float((trial - parameters).abs().max()) < SMALLEST_STEP:
            break
        trial_score = penalised(problem.residual_at(trial), trial)
        if trial_score >= score:
            damping *= 10
            if damping > 1e4:
                break
            continue
        moved, gained = float((trial - parameters).abs().max()), score - trial_score
        parameters, score, damping = trial, trial_score, max(damping / 10, 1e-6)
        residual, jacobian = _linearise(problem, parameters)
        if moved < SMALLEST_STEP or gained < SMALLEST_GAIN:
            break
    return parameters, residual, jacobian


def _normal_matrix(residual: Tensor, jacobian: Tensor) -> Tensor:
    return torch.einsum("amn,bmn->ab", jacobian / _shares(residual)[None, :, None], jacobian)


def _linearise(problem: Problem, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Residual (M, n) and its derivatives (4, M, n), through central differences of the small matrices."""
    sigma, shift = parameters[:2].exp().tolist(), parameters[2:].tolist()
    axes = []
    for axis in (0, 1):
        step = DIFFERENCE_STEP
        steps = (0.0, 0.0), (step, 0.0), (-step, 0.0), (0.0, step), (0.0, -step)
        trials = [problem.matrices(axis, sigma[axis] * math.exp(wider), shift[axis] + place) for wider, place in steps]
        changes = [
            [(more - less) / (2 * step) for more, less in zip(*ends, strict=True)] for ends in (trials[1:3], trials[3:])
        ]
        axes.append(list(zip(trials[0], *changes, strict=True)))
    parts = []
    for rows, columns, block in zip(*axes, problem.blocks, strict=True):
        # Neighbouring rows of the stack look at the same pixels.
        y, x = (torch.stack(matrices, dim=1).flatten(0, 1) for matrices in (rows, columns[1:]))
        shape = len(block.msi), *block.hsi.shape[1:]
        here, wider_y, down = separable(y, columns[0], block.msi).reshape(*shape[:2], 3, shape[2]).unbind(2)
        wider_x, right = separable(rows[0], x, block.msi).reshape(*shape, 2).unbind(3)
        parts.append(torch.stack([here, wider_y, wider_x, down, right]))
    pixels = problem.usable(parts)
    centred, images = problem.centred(pixels), problem.compared(pixels)
    length = _lengths(centred[0])
    unit, slopes = images[0] / length, images[1:] / length
    slopes = slopes - unit * (centred[0] * centred[1:] / length**2).sum(-1, keepdim=True)
    return problem.outside(unit), problem.outside(slopes)


def _standard_errors(problem: Problem, residual: Tensor, jacobian: Tensor, free: Tensor) -> Tensor:
    """Of (log sigma, shift), from the curvature at the minimum; 0 for what is known."""
    errors = torch.zeros(4, dtype=torch.float64)
    if bool(free.any()):
        normal = _normal_matrix(residual, jacobian)[free][:, free]
        normal = normal + 1e-12 * torch.eye(int(free.sum()), dtype=torch.float64)
        freedom = max(1.0, problem.samples - problem.components)
        errors[free] = (torch.linalg.pinv(normal).diagonal().clamp_min(0) / freedom).sqrt()
    return errors


@dataclass(frozen=True)
class BandDisplacement:
    """Where the bands of an hsi lie (keystone): at the shift of the pair plus mean + slope t, with t from -1 to 1."""

    mean: Pair
    slope: Pair

    def of_bands(self, bands: int) -> Floats:
        """(C, 2) Fine pixels, without the mean."""
        return np.asarray(np.linspace(-1, 1, bands)[:, None] * np.array(self.slope))


def find_band_displacement(blocks: list[Block], scale: Pair, sigma: Pair) -> BandDisplacement | None:
    """The displacement of the bands against each other, where it is clear.

    Every band is regressed on the msi under the PSF and on its derivatives; a line is fitted to what the bands say.
    """
    usable = [block.usable for block in blocks]
    spectra = torch.cat([block.hsi[:, each] for block, each in zip(blocks, usable, strict=True)], dim=1).double()
    hsi = spectra.numpy()
    if len(hsi) < 3 or hsi.shape[1] < 6 * (len(blocks[0].msi) + 3):
        return None

    def seen(y: float, x: float) -> Floats:
        parts = [block.operator(scale, sigma, (y, x)).apply(block.msi)[:, block.usable] for block in blocks]
        return np.asarray(torch.cat(parts, dim=1).double().numpy().T)

    @cache
    def basis(down: int, right: int) -> tuple[Floats, Floats, Floats]:
        y, x = down * DISPLACEMENT_STEP * scale[0], right * DISPLACEMENT_STEP * scale[1]
        dy, dx = (0.05 * axis for axis in scale)
        along_y, along_x = seen(y + dy, x) - seen(y - dy, x), seen(y, x + dx) - seen(y, x - dx)
        return seen(y, x), along_y / (2 * dy), along_x / (2 * dx)

    line, gain = _fit_displacement(hsi, basis, scale, slice(None))
    if gain < DISPLACED_GAIN or np.hypot(*(line[1] / scale)) < SMALLEST_DISPLACEMENT:
        return None
    # A few bright objects of different spectra may look displaced; the other half of the scene then shows it otherwise.
    middle = hsi.shape[1] // 2
    for half in (slice(0, middle), slice(middle, None)):
        own, _ = _fit_displacement(hsi, basis, scale, half)
        if np.hypot(*(own[1] - line[1])) > HALVES_DIFFER * np.hypot(*line[1]):
            return None
    return BandDisplacement((line[0, 0], line[0, 1]), (line[1, 0], line[1, 1]))


def _fit_displacement(
    hsi: Floats, basis: Callable[[int, int], tuple[Floats, Floats, Floats]], scale: Pair, pixels: slice
) -> tuple[Floats, float]:
    """Mean and slope (2, 2) of the displacement of the bands (C, n), and the mean logarithm of what it explains."""
    hsi = hsi[:, pixels]
    places = np.linspace(-1, 1, len(hsi))
    step = DISPLACEMENT_STEP * np.array(scale)
    line, first = np.zeros((2, 2)), None
    for turn in range(DISPLACEMENT_ROUNDS + 1):
        nodes = np.rint((line[0] + places[:, None] * line[1]) / step).astype(int)
        found, precision, left = np.zeros((len(hsi), 2)), np.zeros((len(hsi), 2)), np.zeros(len(hsi))
        for node in np.unique(nodes, axis=0):
            bands = (nodes == node).all(axis=1)
            # All that is needed are products with the msi and its derivatives, in one pass over the pixels; by torch,
            # because numpy's threads would wait busily between such small products.
            centred = [each - each.mean(axis=0) for each in (each[pixels] for each in basis(*node.tolist()))]
            stacked, own_hsi = np.hstack(centred), hsi[bands].T - hsi[bands].mean(axis=1)
            gram, with_hsi = (
                (torch.from_numpy(stacked).T @ torch.from_numpy(np.ascontiguousarray(each))).numpy()
                for each in (stacked, own_hsi)
            )
            size = centred[0].shape[1]
            parts = [slice(start, start + size) for start in (size, 2 * size)]
            inverse = np.linalg.pinv(gram[:size, :size], rcond=1e-12, hermitian=True)
            own = inverse @ with_hsi[:size]
            energy = (own_hsi**2).sum(0) - (with_hsi[:size] * own).sum(0)
            # Of moves, P D own, with D a derivative and P what is orthogonal to the msi.
            outside = gram - gram[:, :size] @ inverse @ gram[:size]
            normal = np.stack([[(own * (outside[one, other] @ own)).sum(0) for one in parts] for other in parts])
            normal = normal.transpose(2, 0, 1)
            normal = normal + (1e-9 * np.trace(normal, axis1=1, axis2=2) + 1e-300)[:, None, None] * np.eye(2)
            crossed = np.stack([(own * (with_hsi[each] - gram[each, :size] @ own)).sum(0) for each in parts], axis=1)
            move = np.linalg.solve(normal, crossed[..., None])[..., 0]
            explained = (crossed * move).sum(1) if turn > 0 else 0.0
            tiny = 1e-12 * hsi[bands].var(axis=1) + 1e-300
            left[bands] = (energy - explained).clip(0) / len(own_hsi) + tiny
            found[bands] = node * step + move.clip(-0.5 * step / DISPLACEMENT_STEP, 0.5 * step / DISPLACEMENT_STEP)
            unexplained = (energy - (crossed * move).sum(1)).clip(0) / len(own_hsi) + tiny
            precision[bands] = 1 / (np.linalg.inv(normal).diagonal(axis1=1, axis2=2) * unexplained[:, None] + 1e-300)
        first = left if first is None else first
        line = np.stack([_robust_line(places, *each) for each in zip(found.T, precision.T, strict=True)], axis=1)
    return line, float(np.log(first / left).mean()) if first is not None else 0.0


def _robust_line(places: Floats, values: Floats, precision: Floats) -> Floats:
    """Constant and slope, by reweighted least squares; no band counts much more than most."""
    powers = np.stack([np.ones_like(places), places], axis=1)
    precision = np.minimum(precision, 10 * np.median(precision))
    weights, line = precision, np.zeros(2)
    for _ in range(5):
        normal = (powers.T * weights) @ powers
        line = np.linalg.solve(normal + 1e-12 * np.trace(normal) * np.eye(2), (powers.T * weights) @ values)
        distance = np.abs(values - powers @ line)
        limit = DISPLACEMENT_TUKEY * 1.4826 * np.median(distance) + 1e-9
        weights = precision * (1 - (distance / limit) ** 2).clip(0) ** 2
    return line


@dataclass(frozen=True)
class CoarseOffset:
    """A peak of the coarse search."""

    offset: Pair  # (down, right) in coarse pixels: position of the hsi relative to the msi
    explained: float  # share of the high-pass filtered msi that the hsi explains there
    overlap: int  # pixels known in both images there


def search_coarse_offsets(hsi: NDArray[np.float32], msi: NDArray[np.float32]) -> list[CoarseOffset]:
    """Find the few most likely offsets, best first, between an hsi (C, h, w) and an msi (M, h, w) on its grid.

    Empty where the images are too small, constant or mostly missing (NaN).
    """
    hsi_known, msi_known = (np.asarray(np.isfinite(image).all(axis=0)) for image in (hsi, msi))
    if min(hsi.shape[1:]) < SMALLEST_SIDE or min(hsi_known.mean(), msi_known.mean()) < LEAST_OVERLAP:
        return []
    bands, msi_bands = _high_passed(hsi, hsi_known), _high_passed(msi, msi_known)
    spectra = bands[:, hsi_known]
    _, axes = np.linalg.eigh(spectra @ spectra.T)
    components = np.tensordot(axes[:, ::-1][:, :MOST_COMPONENTS_COARSE_SEARCH].T, bands, 1)  # (p, h, w)
    if not components.any() or not msi_bands.any():
        return []
    explained, overlap = _explained_shares(components, hsi_known, msi_bands, msi_known)
    likelihood = -overlap / PIXELS_PER_INDEPENDENT_ONE * np.log(1 - explained.clip(0, 0.999))
    likelihood[overlap < LEAST_OVERLAP * overlap.max()] = -np.inf
    # Offsets wrap around: those beyond the middle are negative.
    tops = np.isfinite(likelihood) & (likelihood == maximum_filter(likelihood, 2 * PEAK_RADIUS + 1, mode="wrap"))
    order = np.argsort(-likelihood[tops], kind="stable")[:MOST_PEAKS]
    return [
        CoarseOffset(_subpixel_peak(explained, (y, x)), float(explained[y, x].clip(0, 1)), round(float(overlap[y, x])))
        for y, x in np.argwhere(tops)[order].tolist()
    ]


def _high_passed(image: NDArray[np.float32], known: NDArray[np.bool_]) -> Floats:
    """Each band minus its surroundings, as far as they are known, scaled to unit variance; 0 where unknown."""
    weight = gaussian_filter(known.astype(np.float64), HIGH_PASS_SIGMA, mode="constant")
    values = np.where(known, image, 0).astype(np.float64)
    smooth = gaussian_filter(values, (0, HIGH_PASS_SIGMA, HIGH_PASS_SIGMA), mode="constant") / weight.clip(1e-6)
    detail = np.where(known, values - smooth, 0)
    spread = detail[:, known].std(axis=1)
    return np.asarray(detail / np.where(spread > 1e-6 * np.abs(values).max(), spread, np.inf)[:, None, None])


def _explained_shares(
    components: Floats, hsi_known: NDArray[np.bool_], bands: Floats, msi_known: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """(s, t) The share of the msi that the hsi explains at each offset, and the number of pixels known in both."""
    size = [next_fast_len(2 * length - 1, real=True) for length in hsi_known.shape]

    def spectrum(image: NDArray[np.generic]) -> NDArray[np.complex128]:
        return np.asarray(rfft2(image.astype(np.float64), size))

    def correlate(one: NDArray[np.complex128], other: NDArray[np.complex128]) -> Floats:
        """Sums over k of one[k + offset] * other[k]."""
        return np.asarray(irfft2(one * np.conj(other), size))

    hsi_mask, msi_mask = spectrum(hsi_known), spectrum(msi_known)
    parts = [(spectrum(component), correlate(msi_mask, spectrum(component**2))) for component in components]
    explained = np.zeros(size)
    for band in bands:
        transformed, energy = spectrum(band), correlate(spectrum(band**2), hsi_mask)
        for component, component_energy in parts:
            norm = energy * component_energy
            explained += correlate(transformed, component) ** 2 / norm.clip(max(1e-30, 1e-9 * float(norm.max())))
    return explained / len(bands), correlate(msi_mask, hsi_mask)


def _subpixel_peak(values: Floats, peak: tuple[int, int]) -> Pair:
    """The top of parabolas through a peak and its neighbours."""
    place = []
    for line, index in ((values[:, peak[1]], peak[0]), (values[peak[0]], peak[1])):
        before, here, after = (float(line[(index + step) % line.size]) for step in (-1, 0, 1))
        bend = before - 2 * here + after
        top = 0.5 * (before - after) / bend if bend < 0 else 0.0
        place.append((index if index <= line.size // 2 else index - line.size) + max(-0.5, min(0.5, top)))
    return place[0], place[1]
