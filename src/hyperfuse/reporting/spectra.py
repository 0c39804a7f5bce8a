"""Spectra worth looking at: a few pixels that differ, and lines that do not pretend to know what lies between distant
bands.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import ValueRangeError
from hyperfuse.io.cube import as_cube, physical_values, wavelengths_nm
from hyperfuse.metrics.pairing import Floats

# Pixels are chosen within the middle of large scenes and off the edges of all, among at most this many per axis.
LARGEST_SIDE = 512
EDGE = 1 / 16
CANDIDATES_PER_SIDE = 64
# Bands further apart than this many usual steps have a gap between them (water vapour, a missing detector).
GAP_STEPS = 3.5
CLUSTER_ROUNDS = 20
TYPICAL = 12


def distinct_pixels(cube: xr.DataArray, count: int = 4) -> list[tuple[int, int]]:
    """Rows and columns of `count` typical pixels of different surfaces (fewer in a cube with fewer), from dark to
    bright.
    """
    positions, spectra = _candidates(as_cube(cube))
    level = np.linalg.norm(spectra, axis=1)
    # Between Euclid's distance, which sees brightness first, and the angle, which makes much of the noise in dark
    # spectra.
    features = spectra / np.sqrt(np.where(level > 0, level, 1.0))[:, None]
    chosen = _typical_and_apart(features, positions, _farthest_first(features, count))
    return [(int(row), int(column)) for row, column in positions[sorted(chosen, key=lambda pixel: float(level[pixel]))]]


def spectral_axis(cube: xr.DataArray) -> tuple[Floats, str]:
    """Where bands lie along a plot's axis, and that axis's name: wavelengths, or band numbers where they are unknown."""
    cube = as_cube(cube)
    centres_nm = wavelengths_nm(cube)
    if centres_nm is None:
        return np.arange(1.0, cube.sizes["band"] + 1), "band"
    return centres_nm, "wavelength (nm)"


def broken_line(positions: Floats, values: Floats, good: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Points of a line through the bands in order of position, interrupted by NaN at bad bands and wherever bands are
    missing.
    """
    order = np.argsort(positions, kind="stable")
    along, heights = positions[order], np.where(good, values, np.nan)[order]
    if along.size < 3:
        return along, heights
    steps = np.diff(along)
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else np.inf
    breaks = np.flatnonzero(steps > GAP_STEPS * usual)
    middles = (along[breaks] + along[breaks + 1]) / 2
    return np.insert(along, breaks + 1, middles), np.insert(heights, breaks + 1, np.nan)


def _candidates(cube: xr.DataArray) -> tuple[NDArray[np.int64], Floats]:
    """Positions (pixel, 2) and spectra (pixel, band) of a regular sample of the pixels that are valid in all usable
    bands.
    """
    good = np.flatnonzero(cube["good"].values)
    (row0, rows), (column0, columns) = (_middle(cube.sizes[axis]) for axis in ("y", "x"))
    values = physical_values(cube, rows, columns, good, np.float64)
    every_row, every_column = (max(1, -(-size // CANDIDATES_PER_SIDE)) for size in values.shape[1:])
    values = values[:, every_row // 2 :: every_row, every_column // 2 :: every_column]
    values = values[np.isfinite(values).any(axis=(1, 2))]
    usable = np.argwhere(np.isfinite(values).all(axis=0)) if len(values) else np.empty((0, 2), np.int64)
    if len(usable) == 0:
        raise ValueRangeError(
            "no pixel has data in all good bands", "some whole spectra to show", "check nodata with `hyperfuse info`"
        )
    positions = usable * (every_row, every_column) + (every_row // 2 + row0, every_column // 2 + column0)
    return positions, values[:, usable[:, 0], usable[:, 1]].T


def _middle(size: int) -> tuple[int, slice]:
    start = max(int(size * EDGE), (size - LARGEST_SIDE) // 2)
    return start, slice(start, size - start)


def _farthest_first(features: Floats, count: int) -> list[int]:
    """Starting points far apart: each is the sample farthest from those before it."""
    chosen = [int(np.linalg.norm(features - features.mean(axis=0), axis=1).argmin())]
    distance = np.linalg.norm(features - features[chosen[0]], axis=1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(features - features[chosen[-1]], axis=1))
    return chosen


def _typical_and_apart(features: Floats, positions: NDArray[np.int64], seeds: list[int]) -> list[int]:
    """One sample of each cluster (Lloyd's algorithm): among the most typical ones the one farthest from those before
    it.

    Typical, because a far point may be an oddity; apart, so that their marks on a picture do not cover each other.
    """
    centres = features[seeds]
    for _ in range(CLUSTER_ROUNDS):
        nearest = _distances(features, centres).argmin(axis=1)
        centres = np.stack(
            [features[nearest == k].mean(axis=0) if (nearest == k).any() else centres[k] for k in range(len(centres))]
        )
    chosen: list[int] = []
    for distance in _distances(features, centres).T:
        typical = np.argsort(distance, kind="stable")[:TYPICAL]
        room = [min((float(np.hypot(*(positions[t] - positions[c]))) for c in chosen), default=0.0) for t in typical]
        chosen.append(int(typical[int(np.argmax(room))]))
    return sorted(set(chosen))


def _distances(features: Floats, centres: Floats) -> Floats:
    return np.stack([np.linalg.norm(features - centre, axis=1) for centre in centres], axis=1)
