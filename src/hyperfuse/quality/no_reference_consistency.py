"""What a fused image gives back of its inputs: degraded to the hsi, and seen through the msi's bands.

Shapes: C bands, M msi bands, h w coarse, H W fine; NaN where there is no data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.nodata import fill_missing
from hyperfuse.quality.pairing import Floats
from hyperfuse.quality.spectral_angle import angle_sum

# A coarse pixel of which less than this was seen through valid fine pixels is not compared.
LEAST_SEEN = 0.99
# Nor is one from whose centre the edge of the fine image is nearer than this many sigma of the point spread.
REACH_IN_SIGMA = 2.0


@dataclass(frozen=True, eq=False)
class Agreement:
    """One input against what the fused image gives back of it. Scores are None where nothing can be compared."""

    rmse: float | None
    relative: float | None
    """The error's share of the signal: root mean square over root mean square."""
    spectral_angle_degrees: float | None
    band_relative: Floats
    """(bands,) NaN where a band cannot be compared."""
    error_map: Floats
    """(rows, columns) root mean square over bands."""


@dataclass(frozen=True, eq=False)
class Consistency:
    with_hsi: Agreement
    with_msi: Agreement
    degraded: Floats
    """(C, h, w) the fused image as the hsi would have seen it; NaN where that cannot be known."""
    coarse_msi: Floats
    """(M, h, w) the msi, likewise."""


def consistency(fused: Tensor, hsi: Tensor, msi: Tensor, observation: Observation) -> Consistency:
    """`observation` says how the pair was observed, over the bands of `fused` and `hsi`."""
    coarse_size = (hsi.shape[1], hsi.shape[2])
    degraded, coarse_msi = (as_seen_by_hsi(image, coarse_size, observation) for image in (fused, msi))
    imitated = mix_bands(observation.response, fused) + observation.offset.to(fused)[:, None, None]
    with_hsi = agreement(degraded, hsi.double().numpy())
    return Consistency(with_hsi, agreement(imitated.double().numpy(), msi.double().numpy(), with_angle=False), degraded, coarse_msi)


def as_seen_by_hsi(fine: Tensor, coarse_size: tuple[int, int], observation: Observation) -> Floats:
    """(bands, H, W) -> (bands, h, w)."""
    fine_size = (fine.shape[1], fine.shape[2])
    operator = observation.spatial_operator(fine_size, coarse_size)
    seen = operator.apply(torch.isfinite(fine).all(dim=0).double())
    coarse: Floats = operator.apply(fill_missing(fine).double()).numpy()
    axes = zip(coarse_size, fine_size, observation.scale, observation.sigma, observation.shift, strict=True)
    inside = [_far_from_edges(*axis) for axis in axes]
    coarse[:, (seen.numpy() < LEAST_SEEN) | ~(inside[0][:, None] & inside[1])] = np.nan
    return coarse


def agreement(given_back: Floats, given: Floats, *, with_angle: bool = True) -> Agreement:
    known = np.isfinite(given_back) & np.isfinite(given)
    first, second = np.where(known, given_back, np.nan), np.where(known, given, np.nan)
    squares, energy = np.square(first - second), np.square(second)
    counts = known.sum(axis=0)
    error_map: Floats = np.full(counts.shape, np.nan)
    np.divide(np.nansum(squares, axis=0), counts, out=error_map, where=counts > 0)
    band_energy = np.nansum(energy, axis=(1, 2))
    band_relative: Floats = np.full(len(given), np.nan)
    np.divide(np.nansum(squares, axis=(1, 2)), band_energy, out=band_relative, where=band_energy > 0)
    angle, pixels = angle_sum(first, second) if with_angle else (0.0, 0)
    total, count = float(np.nansum(squares)), int(known.sum())
    return Agreement(
        rmse=math.sqrt(total / count) if count else None,
        relative=math.sqrt(total / band_energy.sum()) if band_energy.sum() > 0 else None,
        spectral_angle_degrees=angle / pixels if pixels else None,
        band_relative=np.sqrt(band_relative),
        error_map=np.sqrt(error_map),
    )


def _far_from_edges(coarse: int, fine: int, scale: float, sigma: float, shift: float) -> NDArray[np.bool_]:
    """Beyond the edge lies what the hsi saw and the fine image does not show; all pixels where there is no other."""
    centres = (np.arange(coarse) + 0.5) * scale + shift
    far: NDArray[np.bool_] = (centres >= REACH_IN_SIGMA * sigma) & (centres <= fine - REACH_IN_SIGMA * sigma)
    return far if far.any() else np.ones(coarse, dtype=bool)
