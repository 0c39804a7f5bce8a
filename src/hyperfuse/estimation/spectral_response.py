"""The response that turns hsi bands into msi bands, from the pair: smooth, non-negative least squares.

Shapes: C bands, M msi bands, n coarse pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

SMOOTHNESS_LADDER = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
# A smoother response is preferred as long as it explains the msi nearly as well as the roughest.
TOLERATED_MISFIT = 1.05
# A constant offset between the sensors is believed only if it explains this share of the misfit.
OFFSET_MUST_EXPLAIN = 0.2
FOLDS, FEWEST_PER_FOLD = 4, 6


@dataclass(frozen=True)
class ResponseFit:
    response: Tensor  # (M, C), never negative
    offset: Tensor  # (M,)
    misfit: Tensor  # (M,) variance of what is left on the coarse grid
    largest_misfit: Tensor  # (M,) what it may truly be, given that the weights were fitted to it; infinite where nothing is known


def fit_response(hsi: Tensor, msi: Tensor, wavelength_nm: NDArray[np.float64] | None = None) -> ResponseFit:
    """hsi (C, n) and msi (M, n) of the same coarse pixels."""
    hsi, msi = hsi.double(), msi.double()
    roughness = torch.from_numpy(roughness_matrix(hsi.shape[0], wavelength_nm))
    plain, plain_misfit = _smooth_nnls(hsi, msi, roughness)
    mean, level = hsi.mean(1, keepdim=True), msi.mean(1, keepdim=True)
    centred, centred_misfit = _smooth_nnls(hsi - mean, msi - level, roughness)
    rough = plain_misfit > 1e-8 * msi.square().mean(1)
    shifted = rough & (centred_misfit < (1 - OFFSET_MUST_EXPLAIN) * plain_misfit)
    offset = (level - centred @ mean)[:, 0]
    response, misfit = torch.where(shifted[:, None], centred, plain), torch.where(shifted, centred_misfit, plain_misfit)
    pixels = hsi.shape[1]
    freedom = pixels - (response > 0).sum(1)
    enough = freedom > pixels / 3
    largest = misfit * pixels / freedom.clamp_min(1)
    if not bool(enough.all()):
        # More weights than pixels can tell apart: what a fit to some of the pixels leaves of the others tells.
        largest = torch.where(enough, largest, _left_out_misfit(hsi, msi, roughness))
    return ResponseFit(response, torch.where(shifted, offset, torch.zeros_like(offset)), misfit, largest)


def _left_out_misfit(hsi: Tensor, msi: Tensor, roughness: Tensor) -> Tensor:
    """(M,) Mean squared error of responses on pixels that they were not fitted to; infinite where there are too few."""
    pixels = hsi.shape[1]
    if pixels < FEWEST_PER_FOLD * FOLDS:
        return torch.full((len(msi),), torch.inf, dtype=torch.float64)
    fold = torch.arange(pixels) % FOLDS
    total = torch.zeros(len(msi), dtype=torch.float64)
    for place in range(FOLDS):
        fitted, left = fold != place, fold == place
        response, _ = _smooth_nnls(hsi[:, fitted], msi[:, fitted], roughness)
        total += (response @ hsi[:, left] - msi[:, left]).square().sum(1)
    return total / pixels


def _smooth_nnls(hsi: Tensor, msi: Tensor, roughness: Tensor) -> tuple[Tensor, Tensor]:
    """Per msi band the smoothest rung of the ladder whose misfit is close to the best of all rungs: (M, C) and (M,)."""
    bands, pixels = hsi.shape
    gram, crossed = hsi @ hsi.T / pixels, hsi @ msi.T / pixels
    level = float(gram.trace()) / bands + 1e-300
    rungs = []
    for smoothness in SMOOTHNESS_LADDER:
        root = torch.linalg.cholesky(gram + smoothness * level * roughness + 1e-10 * level * torch.eye(bands, dtype=torch.float64))
        targets = torch.linalg.solve_triangular(root, crossed, upper=False)
        rows = [nnls(root.T.numpy(), target.numpy(), maxiter=30 * bands)[0] for target in targets.T]
        rungs.append(torch.from_numpy(np.stack(rows)))
    responses = torch.stack(rungs)
    misfits = (responses @ hsi - msi).square().mean(2)
    good_enough = misfits <= TOLERATED_MISFIT * misfits.amin(0) + 1e-300
    chosen = good_enough.to(torch.int8).argmax(0)
    index = torch.arange(msi.shape[0])
    return responses[chosen, index], misfits[chosen, index]


def roughness_matrix(bands: int, wavelength_nm: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """D'D of first differences between bands that are neighbours in wavelength, weaker across gaps; scaled to about 1."""
    if wavelength_nm is None or len(wavelength_nm) != bands or not np.isfinite(wavelength_nm).all():
        wavelength_nm = np.arange(bands, dtype=np.float64)
    order = np.argsort(wavelength_nm, kind="stable")
    if bands < 2:
        return np.zeros((bands, bands))
    steps = np.diff(wavelength_nm[order])
    typical = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
    weights = np.minimum(1.0, typical / np.maximum(steps, 1e-9))
    differences = np.zeros((bands - 1, bands))
    rows = np.arange(bands - 1)
    differences[rows, order[:-1]] = -weights
    differences[rows, order[1:]] = weights
    return np.asarray(differences.T @ differences, dtype=np.float64)
