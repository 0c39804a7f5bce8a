"""Offsets of many coarse pixels: of all that leave enough overlap, the one at which the hsi explains the msi best.

Shapes: C bands, M msi bands, p components, h w coarse, s t offsets.

Both images on the hsi's grid, without their slow variation, are correlated at all offsets at once (by Fourier transforms, over the
pixels that are known in both). At each offset the share of the msi that the hsi explains is the sum over the hsi's leading
components of their squared correlations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft2, next_fast_len, rfft2
from scipy.ndimage import gaussian_filter, maximum_filter

Floats = NDArray[np.float64]
Spectrum = NDArray[np.complex128]

MOST_COMPONENTS = 4
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
    """Each band minus its surroundings, as far as they are known, and 0 where nothing is; bands scaled to unit variance."""
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
    return np.tensordot(axes[:, ::-1][:, :MOST_COMPONENTS].T, bands, 1)


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
