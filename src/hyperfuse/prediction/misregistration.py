"""Pairs whose georeference is off by more than the estimation can absorb, and pairs that do not show the same place.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from hyperfuse.degradation.operators import SpatialOperator
from hyperfuse.estimation.coarse_search import CoarseOffset, search_coarse_offsets
from hyperfuse.estimation.observation import Observation, default_sigma
from hyperfuse.prediction.aligned_pair import AlignedPair

# Coarse pixels: how far from the georeference the estimation finds the shift, and from where on a shift is worth a warning.
ABSORBED = 2.0
REMARKABLE = 1.0
# With this confidence in the shift there is no need to look further away.
CONFIDENT = 0.85
# How much more confident another offset must be, and how confident at least; more so over few coarse pixels, where chance rules.
GAINED, LEAST, MORE_IN_FEW_PIXELS = 0.15, 0.6, 60.0
# Below this the two images have hardly anything in common.
UNRELATED = 0.4
SEARCHED = 256  # coarse pixels along each side of the window that is searched
BANDS = 24
# Of the point spread, which share must be known.
ENOUGH_KNOWN = 0.7


@dataclass(frozen=True)
class Misregistration:
    """(down, right) in fine pixels beyond the georeference."""

    offset: tuple[float, float]
    coarse_pixels: float
    confidence: float
    absorbed: bool
    """Whether the estimation has found it by itself."""
    same_place: bool
    """False where the two images have hardly anything in common, wherever one looks."""


def find_misregistration(
    pair: AlignedPair, observation: Observation, observe: Callable[[AlignedPair], Observation]
) -> Misregistration:
    """What the estimation says, or, where it is not confident, an offset further away in which it is much more so.

    `observe` estimates how a pair was observed, starting from its `grid_shift`.
    """
    own = _as_found(pair, observation.misregistration, observation.confidence, absorbed=True)
    if observation.confidence >= CONFIDENT:
        return own
    candidates = search_offsets(pair)
    best = replace(own, same_place=observation.confidence >= UNRELATED or not candidates)
    most = observation.confidence + GAINED
    for candidate in candidates:
        start = candidate.offset[0] * pair.scale[0], candidate.offset[1] * pair.scale[1]
        with warnings.catch_warnings():
            # A trial: what it cannot estimate is no news.
            warnings.simplefilter("ignore", UserWarning)
            trial = observe(moved_start(pair, start))
        if trial.confidence > max(most, LEAST + min(0.3, MORE_IN_FEW_PIXELS / max(1, candidate.overlap))):
            offset = start[0] + trial.misregistration[0], start[1] + trial.misregistration[1]
            best, most = _as_found(pair, offset, trial.confidence, absorbed=False), trial.confidence
    return best


def warn_of_misregistration(found: Misregistration) -> None:
    """Before hours of work: say that a pair is shifted by more than a coarse pixel, or that it is no pair."""
    y, x = found.offset
    if not found.same_place:
        warnings.warn(
            f"the two images do not seem to show the same place at the same time (confidence {found.confidence:.2f}): "
            "look at them with `hyperfuse register`",
            stacklevel=2,
        )
    elif not found.absorbed:
        warnings.warn(
            f"the HSI looks {y:+.1f} {x:+.1f} fine pixels ({found.coarse_pixels:.1f} HSI pixels) beyond its georeference, more "
            f"than the estimation absorbs ({ABSORBED:g} HSI pixels): give --shift {y:.2f} {x:.2f}",
            stacklevel=2,
        )
    elif found.coarse_pixels > REMARKABLE:
        warnings.warn(
            f"the HSI looks {y:+.1f} {x:+.1f} fine pixels ({found.coarse_pixels:.1f} HSI pixels) beyond its georeference: "
            "the estimated shift takes care of it",
            stacklevel=2,
        )


def moved_start(pair: AlignedPair, offset: tuple[float, float]) -> AlignedPair:
    """The same pair for an estimation that starts so many fine pixels off the georeference."""
    return replace(pair, grid_shift=(pair.grid_shift[0] + offset[0], pair.grid_shift[1] + offset[1]))


def search_offsets(pair: AlignedPair) -> list[CoarseOffset]:
    """The offsets at which the images look most alike in the middle of the scene."""
    rows, columns = (_middle(size) for size in pair.coarse_shape[1:])
    usable = np.flatnonzero(pair.usable_bands)
    bands = usable[np.unique(np.linspace(0, usable.size - 1, min(BANDS, usable.size)).round().astype(int))]
    return search_coarse_offsets(pair.hsi_source.values(rows, columns, bands), _msi_on_coarse_grid(pair, rows, columns))


def _middle(size: int) -> slice:
    start = max(0, (size - SEARCHED) // 2)
    return slice(start, min(size, start + SEARCHED))


def _msi_on_coarse_grid(pair: AlignedPair, rows: slice, columns: slice) -> NDArray[np.float32]:
    """(M, h, w) The MSI as the HSI's sensor would see it by georeference; NaN where much of that is missing."""
    sigma = default_sigma(pair.scale)
    fine, shifts = [], []
    for axis, span in enumerate((rows, columns)):
        scale, shift, size = pair.scale[axis], pair.grid_shift[axis], pair.fine_shape[1 + axis]
        first = min(size - 1, max(0, math.floor((span.start - 1) * scale + shift)))
        fine.append(slice(first, max(first + 1, min(size, math.ceil((span.stop + 1) * scale + shift)))))
        shifts.append(shift + span.start * scale - first)
    msi = torch.from_numpy(pair.msi_values(fine[0], fine[1]))
    sizes = [(part[0].stop - part[0].start, part[1].stop - part[1].start) for part in (fine, (rows, columns))]
    operator = SpatialOperator.from_point_spread(sizes[0], sizes[1], pair.scale, sigma, (shifts[0], shifts[1]))
    known = torch.isfinite(msi)
    weight = operator.apply(known.to(msi))
    seen = operator.apply(torch.nan_to_num(msi)) / weight.clamp_min(1e-6)
    return seen.masked_fill(weight < ENOUGH_KNOWN, torch.nan).numpy()


def _as_found(pair: AlignedPair, offset: tuple[float, float], confidence: float, *, absorbed: bool) -> Misregistration:
    coarse = math.hypot(offset[0] / pair.scale[0], offset[1] / pair.scale[1])
    return Misregistration(offset, coarse, confidence, absorbed, same_place=True)
