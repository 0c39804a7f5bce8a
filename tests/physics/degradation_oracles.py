"""The observation model as slow loops straight from the equations, sharing no code with the package."""

from __future__ import annotations

import math

import numpy as np


def mirrored(position: int, size: int) -> int:
    """Symmetric border: ... 1 0 | 0 1 2 ... n-1 | n-1 n-2 ..."""
    while not 0 <= position < size:
        position = -1 - position if position < 0 else 2 * size - 1 - position
    return position


def axis_weights(fine: int, coarse: int, scale: float, fwhm: float, shift: float) -> np.ndarray:
    """(coarse, fine): a normalised Gaussian around each coarse centre, truncated at four sigmas, in whole pixels."""
    sigma = fwhm / (2 * math.sqrt(2 * math.log(2)))
    radius = max(1, math.ceil(4 * sigma))
    matrix = np.zeros((coarse, fine))
    for k in range(coarse):
        centre = scale * k + scale / 2 - 0.5 + shift
        taps = {}
        for position in range(math.floor(centre) - radius - 1, math.ceil(centre) + radius + 2):
            if abs(position - centre) <= radius + 1e-6:
                taps[position] = math.exp(-((position - centre) ** 2) / (2 * sigma**2))
        total = sum(taps.values())
        for position, weight in taps.items():
            matrix[k, mirrored(position, fine)] += weight / total
    return matrix


def blurred(
    image: np.ndarray, coarse_size: tuple[int, int], scale: float, fwhm: float, shift: tuple[float, float]
) -> np.ndarray:
    """One band (H, W) with NaN where nothing was measured -> (h, w)."""
    rows = axis_weights(image.shape[0], coarse_size[0], scale, fwhm, shift[0])
    columns = axis_weights(image.shape[1], coarse_size[1], scale, fwhm, shift[1])
    coarse = np.empty(coarse_size)
    for i in range(coarse_size[0]):
        for j in range(coarse_size[1]):
            weights = np.outer(rows[i], columns[j])
            valid = ~np.isnan(image)
            seen = weights[valid].sum()
            coarse[i, j] = np.nan if 1 - seen > 0.01 else (weights[valid] * image[valid]).sum() / seen
    return coarse


def mixed(cube: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(C, H, W) -> (M, H, W), NaN where a band with weight is NaN."""
    image = np.zeros((weights.shape[0], *cube.shape[1:]))
    for m in range(weights.shape[0]):
        for c in range(cube.shape[0]):
            if weights[m, c] != 0:
                image[m] += weights[m, c] * cube[c]
    return image
