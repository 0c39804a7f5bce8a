"""Offsets of many coarse pixels: of all that leave enough overlap, the one at which the hsi explains the msi best.

Shapes: C bands, M msi bands, p components, h w coarse, s t offsets.

Both images on the hsi's grid, without their slow variation, are correlated at all offsets at once (by Fourier
transforms, over the pixels that are known in both). At each offset the share of the msi that the hsi explains is the
sum over the hsi's leading components of their squared correlations.

Shift and width of the point spread from the pair: where, and how blurred, must the msi be for the hsi to explain it
best?

Shapes: C bands, M msi bands, p components, n coarse pixels, h w coarse, H W fine.

For a trial point spread the blurred msi is regressed on the hsi's leading components; the response need not be known,
because any response is such a regression (variable projection). The score is the mean log of the share that stays
unexplained, one share per msi band: shares do not reward blurring for its own sake, and under noise in the hsi their
minimum stays where it is. A coarse search over shifts is followed by Gauss-Newton with Levenberg's damping on (log
sigma, shift) of both axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import irfft2, next_fast_len, rfft2
from scipy.ndimage import gaussian_filter, maximum_filter
from torch import Tensor

from hyperfuse.physics.operators import psf_matrix, separable

MOST_COMPONENTS = 16
SEARCH_REACH = 1.5  # coarse pixels to each side
SEARCH_STEP = 0.5  # coarse pixels
SIGMA_LIMITS = (0.1, 1.2)  # of the scale
MOST_STEPS = 25
SMALLEST_SHARE = 1e-7


@dataclass(frozen=True)
class Block:
    """A piece of a pair: hsi (C, h, w), msi (M, H, W), and the shift that its fine origin adds to the scene's (y, x)."""

    hsi: Tensor
    msi: Tensor
    origin_shift: tuple[float, float]
    usable: Tensor  # (h, w), coarse pixels whose surroundings are all data


@dataclass(frozen=True)
class Registration:
    sigma: tuple[float, float]
    shift: tuple[float, float]
    sigma_error: tuple[float, float]  # standard errors
    shift_error: tuple[float, float]
    explained: float  # share of the msi's variance that the hsi explains, adjusted for the number of components
    explained_at_start: float
    evidence: float  # log likelihood gained against the start


@dataclass(frozen=True)
class _Problem:
    """Everything that stays the same from one trial to the next."""

    blocks: list[Block]
    explaining: Tensor  # (n, p), orthonormal: what the hsi can explain
    scale: tuple[float, float]
    samples: int
    components: int

    def blurred(self, rows: list[Tensor], columns: list[Tensor]) -> Tensor:
        """The msi through trial matrices, usable coarse pixels of all blocks: (M, n)."""
        seen = [
            separable(r, c, block.msi)[:, block.usable] for r, c, block in zip(rows, columns, self.blocks, strict=True)
        ]
        return torch.cat(seen, dim=1).double()

    def matrices(self, axis: int, sigma: float, shift: float) -> list[Tensor]:
        return [
            psf_matrix(
                block.msi.shape[1 + axis],
                block.hsi.shape[1 + axis],
                self.scale[axis],
                sigma,
                shift + block.origin_shift[axis],
            )
            for block in self.blocks
        ]

    def residual(self, blurred: Tensor) -> Tensor:
        """What the hsi cannot explain of (M, n), each band first centred and scaled to unit length."""
        centred = blurred - blurred.mean(1, keepdim=True)
        unit: Tensor = centred / centred.square().sum(1, keepdim=True).sqrt().clamp_min(1e-30)
        explained: Tensor = (unit @ self.explaining) @ self.explaining.T
        return unit - explained


def register(
    blocks: list[Block],
    scale: tuple[float, float],
    sigma: tuple[float, float],
    shift: tuple[float, float],
    sigma_known: bool = False,
    shift_known: bool = False,
) -> Registration:
    """From a starting point spread and shift, either of which may be known and then stays."""
    problem = _make_problem(blocks, scale)
    start = torch.tensor([*map(math.log, sigma), *shift], dtype=torch.float64)
    free = torch.tensor([not sigma_known] * 2 + [not shift_known] * 2)
    first = _score(_residual_at(problem, start))
    found = start if shift_known else _searched(problem, start)
    found, jacobian = _refined(problem, found, start, free)
    residual = _residual_at(problem, found)
    errors = _standard_errors(problem, residual, jacobian, free)
    ratio = (problem.samples - 1) / max(1, problem.samples - 1 - problem.components)
    return Registration(
        sigma=(math.exp(found[0]), math.exp(found[1])),
        shift=(float(found[2]), float(found[3])),
        sigma_error=(float(errors[0]) * math.exp(found[0]), float(errors[1]) * math.exp(found[1])),
        shift_error=(float(errors[2]), float(errors[3])),
        explained=1 - ratio * math.exp(_score(residual)),
        explained_at_start=1 - ratio * math.exp(first),
        evidence=0.5 * problem.samples * len(residual) * (first - _score(residual)),
    )


def _make_problem(blocks: list[Block], scale: tuple[float, float]) -> _Problem:
    spectra = torch.cat([block.hsi[:, block.usable] for block in blocks], dim=1).double()
    samples = spectra.shape[1]
    centred = spectra - spectra.mean(1, keepdim=True)
    _, axes = torch.linalg.eigh(centred @ centred.T)
    most = max(1, min(MOST_COMPONENTS, samples // 8, spectra.shape[0]))
    components = centred.T @ axes.flip(1)[:, :most]
    left, values, _ = torch.linalg.svd(components, full_matrices=False)
    basis = left[:, values > 1e-10 * values[0].clamp_min(1e-300)]
    return _Problem(blocks, basis, scale, samples, basis.shape[1])


def _residual_at(problem: _Problem, parameters: Tensor) -> Tensor:
    rows = problem.matrices(0, math.exp(parameters[0]), float(parameters[2]))
    columns = problem.matrices(1, math.exp(parameters[1]), float(parameters[3]))
    return problem.residual(problem.blurred(rows, columns))


def _shares(residual: Tensor) -> Tensor:
    return residual.square().sum(1) + SMALLEST_SHARE


def _score(residual: Tensor) -> float:
    return float(_shares(residual).log().mean())


def _searched(problem: _Problem, start: Tensor) -> Tensor:
    """The best of a grid of shifts at the starting sigma: all of them in two matrix products per block."""
    steps = torch.arange(-SEARCH_REACH, SEARCH_REACH + 1e-9, SEARCH_STEP).tolist()
    trials = [[float(start[2 + axis]) + step * problem.scale[axis] for step in steps] for axis in (0, 1)]
    rows = [problem.matrices(0, math.exp(start[0]), shift) for shift in trials[0]]
    columns = [problem.matrices(1, math.exp(start[1]), shift) for shift in trials[1]]
    stacked = [
        torch.stack([trial[index] for trial in rows]).to(block.msi) for index, block in enumerate(problem.blocks)
    ]
    half = [
        matrix @ block.msi[:, None] for matrix, block in zip(stacked, problem.blocks, strict=True)
    ]  # (M, trials, h, W)
    best, best_score = start, math.inf
    for j, column in enumerate(columns):
        seen = [part @ matrix.to(part).T for part, matrix in zip(half, column, strict=True)]
        for i in range(len(steps)):
            blurred = torch.cat(
                [part[:, i][:, block.usable] for part, block in zip(seen, problem.blocks, strict=True)], dim=1
            )
            score = _score(problem.residual(blurred.double()))
            if score < best_score:
                best_score = score
                best = torch.tensor([start[0], start[1], trials[0][i], trials[1][j]], dtype=torch.float64)
    return best


def _refined(problem: _Problem, parameters: Tensor, start: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Levenberg-Marquardt on the residuals, each msi band weighted by one over its unexplained share."""
    residual, jacobian = _linearised(problem, parameters)
    score, damping = _score(residual), 1e-3
    for _ in range(MOST_STEPS):
        weighted = jacobian / _shares(residual)[None, :, None]
        normal = torch.einsum("amn,bmn->ab", weighted, jacobian)
        slope = torch.einsum("amn,mn->a", weighted, residual)
        step = _damped_step(normal, slope, damping, free)
        trial = _within_limits(parameters + step, start, problem.scale)
        trial_score = _score(_residual_at(problem, trial))
        if trial_score >= score:
            damping *= 10
            if damping > 1e4:
                break
            continue
        moved = float((trial - parameters).abs().max())
        gained, parameters, score, damping = score - trial_score, trial, trial_score, max(damping / 10, 1e-6)
        residual, jacobian = _linearised(problem, parameters)
        if moved < 1e-4 or gained < 1e-7:
            break
    return parameters, jacobian


def _damped_step(normal: Tensor, slope: Tensor, damping: float, free: Tensor) -> Tensor:
    step = torch.zeros(4, dtype=torch.float64)
    if bool(free.any()):
        inner = normal[free][:, free]
        inner = inner + torch.diag(inner.diagonal() * damping + 1e-12)
        step[free] = -torch.linalg.solve(inner, slope[free])
    return step.clamp(-0.7, 0.7)


def _within_limits(parameters: Tensor, start: Tensor, scale: tuple[float, float]) -> Tensor:
    limited = parameters.clone()
    for axis in (0, 1):
        limited[axis] = limited[axis].clamp(
            math.log(SIGMA_LIMITS[0] * scale[axis]), math.log(SIGMA_LIMITS[1] * scale[axis])
        )
        halo = 2 * scale[axis]
        limited[2 + axis] = limited[2 + axis].clamp(float(start[2 + axis]) - halo, float(start[2 + axis]) + halo)
    return limited


def _linearised(problem: _Problem, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Residual (M, n) and its derivatives (4, M, n), through central differences of the small matrices."""
    sigma, shift = parameters[:2].exp().tolist(), parameters[2:].tolist()
    matrices = [problem.matrices(axis, sigma[axis], shift[axis]) for axis in (0, 1)]
    residual = problem.residual(problem.blurred(matrices[0], matrices[1]))
    slopes = []
    for index in range(4):
        axis, step = index % 2, 1e-2
        ends = []
        for sign in (1, -1):
            moved_sigma = sigma[axis] * math.exp(sign * step) if index < 2 else sigma[axis]
            moved_shift = shift[axis] + sign * step * (index >= 2)
            moved = problem.matrices(axis, moved_sigma, moved_shift)
            ends.append(
                problem.residual(
                    problem.blurred(moved, matrices[1]) if axis == 0 else problem.blurred(matrices[0], moved)
                )
            )
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return residual, torch.stack(slopes)


def _standard_errors(problem: _Problem, residual: Tensor, jacobian: Tensor, free: Tensor) -> Tensor:
    """Of (log sigma, shift), from the curvature at the minimum; 0 for what is known."""
    normal = torch.einsum("amn,bmn->ab", jacobian / _shares(residual)[None, :, None], jacobian)
    errors = torch.zeros(4, dtype=torch.float64)
    if bool(free.any()):
        inner = normal[free][:, free] + 1e-12 * torch.eye(int(free.sum()), dtype=torch.float64)
        freedom = max(1, problem.samples - problem.components)
        errors[free] = (torch.linalg.pinv(inner).diagonal().clamp_min(0) / freedom).sqrt()
    return errors


Floats = NDArray[np.float64]
Spectrum = NDArray[np.complex128]

MOST_COMPONENTS_COARSE_SEARCH = 4
SLOW = 4.0  # sigma in coarse pixels of what counts as slow variation
LEAST_OVERLAP = 0.4  # of the known pixels
# Neighbouring pixels say much the same: so many of them count as one when chance is weighed against overlap.
PIXELS_PER_INDEPENDENT_ONE = 9.0
SMALLEST_SIDE = 16
MOST_PEAKS = 3
PEAK_RADIUS = 3


@dataclass(frozen=True)
class CoarseOffset:
    offset: tuple[float, float]
    """(down, right) in coarse pixels: how much further the hsi looks than the msi beside it."""
    explained: float
    """Share of the msi's variation, without the slow one, that the hsi explains there."""
    overlap: int
    """Pixels known in both images there."""


def search_coarse_offsets(hsi: NDArray[np.float32], msi: NDArray[np.float32]) -> list[CoarseOffset]:
    """hsi (C, h, w), and the msi (M, h, w) as it looks on the same grid; NaN marks missing pixels.

    The few most likely offsets, best first; none where nothing can be told.
    """
    hsi_known, msi_known = (np.asarray(np.isfinite(image).all(axis=0)) for image in (hsi, msi))
    if min(hsi.shape[1:]) < SMALLEST_SIDE or min(hsi_known.mean(), msi_known.mean()) < LEAST_OVERLAP:
        return []
    components = _leading_components(_without_slow_variation(hsi, hsi_known), hsi_known)
    bands = _without_slow_variation(msi, msi_known)
    if not components.any() or not bands.any():
        return []
    explained, overlap = _explained_shares(components, hsi_known, bands, msi_known)
    # The log likelihood: a high share over few pixels may be chance.
    likelihood = -overlap / PIXELS_PER_INDEPENDENT_ONE * np.log(1 - explained.clip(0, 0.999))
    likelihood[overlap < LEAST_OVERLAP * overlap.max()] = -np.inf
    return [
        CoarseOffset(_between_pixels(explained, peak), float(explained[peak].clip(0, 1)), round(float(overlap[peak])))
        for peak in _peaks(likelihood)
    ]


def _peaks(values: Floats) -> list[tuple[int, int]]:
    """The highest ones that are maxima of their surroundings, which go around the edges."""
    tops = np.isfinite(values) & (values == maximum_filter(values, 2 * PEAK_RADIUS + 1, mode="wrap"))
    places = np.argwhere(tops)
    order = np.argsort(-values[tops], kind="stable")[:MOST_PEAKS]
    return [(int(y), int(x)) for y, x in places[order]]


def _without_slow_variation(image: NDArray[np.float32], known: NDArray[np.bool_]) -> Floats:
    """Each band minus its surroundings, as far as they are known, and 0 where nothing is; bands scaled to unit
    variance.
    """
    weight = gaussian_filter(known.astype(np.float64), SLOW, mode="constant")
    values = np.where(known, image, 0).astype(np.float64)
    slow = gaussian_filter(values, (0, SLOW, SLOW), mode="constant") / weight.clip(1e-6)
    detail = np.where(known, values - slow, 0)
    spread = detail[:, known].std(axis=1)
    scaled: Floats = detail / np.where(spread > 1e-6 * np.abs(values).max(), spread, np.inf)[:, None, None]
    return scaled


def _leading_components(bands: Floats, known: NDArray[np.bool_]) -> Floats:
    """(p, h, w)"""
    spectra = bands[:, known]
    _, axes = np.linalg.eigh(spectra @ spectra.T)
    return np.tensordot(axes[:, ::-1][:, :MOST_COMPONENTS_COARSE_SEARCH].T, bands, 1)


def _explained_shares(
    components: Floats, hsi_known: NDArray[np.bool_], bands: Floats, msi_known: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """(s, t) The share of the msi that the hsi explains at each offset, and the number of pixels known in both."""
    size = [next_fast_len(2 * length - 1, real=True) for length in hsi_known.shape]

    def spectrum(image: NDArray[np.float64]) -> Spectrum:
        found: Spectrum = rfft2(image, size)
        return found

    def correlated(one: Spectrum, other: Spectrum) -> Floats:
        """Sums over k of one[k + offset] * other[k]."""
        sums: Floats = irfft2(one * np.conj(other), size)
        return sums

    hsi_mask, msi_mask = spectrum(hsi_known.astype(np.float64)), spectrum(msi_known.astype(np.float64))
    parts = [(spectrum(component), correlated(msi_mask, spectrum(component**2))) for component in components]
    explained = np.zeros(size)
    for band in bands:
        transformed, energy = spectrum(band), correlated(spectrum(band**2), hsi_mask)
        for component, component_energy in parts:
            norm = energy * component_energy
            explained += correlated(transformed, component) ** 2 / norm.clip(max(1e-30, 1e-9 * float(norm.max())))
    return explained / len(bands), correlated(msi_mask, hsi_mask)


def _between_pixels(values: Floats, best: tuple[int, int]) -> tuple[float, float]:
    """The top of parabolas through the best offset and its neighbours; offsets beyond the middle are negative ones."""
    found = []
    for axis, index in enumerate(best):
        size = values.shape[axis]
        line = values[:, best[1]] if axis == 0 else values[best[0]]
        before, here, after = (float(line[(index + step) % size]) for step in (-1, 0, 1))
        bend = before - 2 * here + after
        top = 0.5 * (before - after) / bend if bend < 0 else 0.0
        found.append((index if index <= size // 2 else index - size) + max(-0.5, min(0.5, top)))
    return found[0], found[1]
