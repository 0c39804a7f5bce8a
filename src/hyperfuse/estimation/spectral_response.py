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


@dataclass(frozen=True)
class ResponseFit:
    response: Tensor  # (M, C), never negative
    offset: Tensor  # (M,)
    misfit: Tensor  # (M,) variance of what is left on the coarse grid


def fit_response(hsi: Tensor, msi: Tensor, wavelength_nm: NDArray[np.float64] | None = None) -> ResponseFit:
    """hsi (C, n) and msi (M, n) of the same coarse pixels."""
    spectra, targets = hsi.double().numpy(), msi.double().numpy()
    roughness = roughness_matrix(spectra.shape[0], wavelength_nm)
    rows, offsets, misfits = zip(*(_fit_band(spectra, target, roughness) for target in targets), strict=True)
    return ResponseFit(torch.from_numpy(np.stack(rows)), torch.tensor(offsets), torch.tensor(misfits))


def _fit_band(
    spectra: NDArray[np.float64], target: NDArray[np.float64], roughness: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float, float]:
    row, misfit = _smooth_nnls(spectra, target, roughness)
    level, mean = float(target.mean()), spectra.mean(1)
    centred_row, centred_misfit = _smooth_nnls(spectra - mean[:, None], target - level, roughness)
    if centred_misfit < (1 - OFFSET_MUST_EXPLAIN) * misfit and misfit > 1e-8 * float(np.mean(target**2)):
        return centred_row, level - float(centred_row @ mean), centred_misfit
    return row, 0.0, misfit


def _smooth_nnls(
    spectra: NDArray[np.float64], target: NDArray[np.float64], roughness: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """The smoothest rung of the ladder whose misfit is close to the best of all rungs."""
    bands, pixels = spectra.shape
    gram, crossed = spectra @ spectra.T / pixels, spectra @ target / pixels
    level = float(np.trace(gram)) / bands + 1e-300
    fits = []
    for smoothness in SMOOTHNESS_LADDER:
        system = gram + smoothness * level * roughness + 1e-10 * level * np.eye(bands)
        root = np.linalg.cholesky(system)
        row, _ = nnls(root.T, np.linalg.solve(root, crossed), maxiter=30 * bands)
        fits.append((row, float(np.mean((row @ spectra - target) ** 2))))
    best = min(misfit for _, misfit in fits)
    return next(fit for fit in fits if fit[1] <= TOLERATED_MISFIT * best + 1e-300)


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
