"""The three directions in which the spectra of an image differ most, from a sample of its pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from hyperfuse.errors import ValueRangeError

Planes = NDArray[np.float32]
FEWEST_SAMPLES = 4
# A band that is filled to no more than this share of the fullest one does not count.
SPARSE = 0.5


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    key: str
    bands: NDArray[np.int64]
    mean: NDArray[np.float32]  # (C,)
    axes: NDArray[np.float32]  # (3, C)

    def project(self, values: Planes) -> Planes:
        """(C, y, x) -> (3, y, x)"""
        bands, height, width = values.shape
        spectra = values.reshape(bands, -1) - self.mean[:, None]
        return (self.axes @ spectra).reshape(3, height, width)


def principal_axes(samples: Planes, bands: NDArray[np.int64], key: str) -> PrincipalAxes:
    """From spectra (C, n); neither those with holes count nor nearly empty bands. With fewer than three the last axes are empty."""
    known = np.isfinite(samples)
    filled = known.sum(axis=1) > SPARSE * known.sum(axis=1).max(initial=0)
    bands, samples, known = bands[filled], samples[filled], known[filled]
    spectra = samples[:, known.all(axis=0)].astype(np.float64)
    if bands.size == 0 or spectra.shape[1] < FEWEST_SAMPLES:
        raise ValueRangeError("hardly a pixel has data in all good bands", "whole spectra to find principal components from")
    mean = spectra.mean(axis=1)
    covariance = np.cov(spectra, ddof=0).reshape(mean.size, mean.size)
    _, vectors = eigh(covariance, subset_by_index=[max(0, mean.size - 3), mean.size - 1])
    axes = np.zeros((3, mean.size))
    leading = vectors[:, ::-1].T
    # An axis has no direction of its own; bright shall mean much of what it stands for.
    axes[: len(leading)] = leading * np.where(leading.sum(axis=1, keepdims=True) < 0, -1, 1)
    return PrincipalAxes(key, bands, mean.astype(np.float32), axes.astype(np.float32))
