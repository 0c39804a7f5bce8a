"""Colour composites, error maps and representative pixels of cubes.

Shapes: composite (y, x, 3) uint8; limits (3, 2), the values shown as black and as full red, green, blue.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import cdist

from hyperfuse.errors import ValueRangeError
from hyperfuse.io.cube import as_cube, iterate_windows, physical_values
from hyperfuse.io.output import colour_bands
from hyperfuse.metrics.evaluation import WINDOW_BYTES
from hyperfuse.metrics.sums import Floats, per_band_mean, plan_comparison

PERCENTILES = (2.0, 98.0)
NO_DATA = 255


def composite_bands(cube: xr.DataArray) -> tuple[int, int, int]:
    """Choose the bands shown as red, green and blue: the good ones nearest to 650, 550 and 470 nm.

    Where wavelengths are unknown, or no three bands lie near the three colours, those at 3/4, 1/2 and 1/4.
    """
    cube = as_cube(cube)
    good = np.flatnonzero(cube["good"].values)
    good = good if good.size else np.arange(cube.sizes["band"])
    coloured = colour_bands(cube)
    if coloured is not None:
        return coloured
    red, green, blue = (int(good[min(good.size * quarter // 4, good.size - 1)]) for quarter in (3, 2, 1))
    return red, green, blue


def stretch_limits(cube: xr.DataArray, every: int = 1) -> NDArray[np.float64]:
    """Return the 2nd and 98th percentile of each of the three bands; images drawn with the same limits compare."""
    return percentile_limits(_planes(cube, every), *PERCENTILES)


def percentile_limits(planes: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Return the two percentiles of each plane (K, 2); 0 and 1 for an empty one."""
    valid = [plane[np.isfinite(plane)].astype(np.float64) for plane in planes]
    return np.array([np.percentile(values, (low, high)) if values.size else (0.0, 1.0) for values in valid])


def colour_composite(
    cube: xr.DataArray, limits: NDArray[np.float64] | None = None, every: int = 1
) -> NDArray[np.uint8]:
    """Draw every n-th pixel of a cube in true or nearest colours; white where there is no data."""
    planes = _planes(cube, every)
    low, high = (stretch_limits(cube, every) if limits is None else limits).T.reshape(2, 3, 1, 1)
    span = np.where(high > low, high - low, 1.0)
    shown = np.clip((planes - low) / span, 0, 1)
    missing = ~np.isfinite(planes).all(axis=0)
    shown[:, missing] = NO_DATA / 255
    return np.moveaxis(np.round(255 * shown).astype(np.uint8), 0, -1)


def _planes(cube: xr.DataArray, every: int) -> NDArray[np.float64]:
    cube = as_cube(cube)
    step = slice(None, None, every)
    # One by one: a band may serve for two colours, and some readers need bands in order.
    return np.stack([physical_values(cube, step, step, [band], np.float64)[0] for band in composite_bands(cube)])


def error_map(fused: xr.DataArray, reference: xr.DataArray, max_bytes: int = WINDOW_BYTES) -> NDArray[np.float64]:
    """Compute the RMSE of each pixel over the bands good in both, (y, x); NaN where none is valid."""
    comparison = plan_comparison(fused, reference, scale=None, peak=1.0, max_bytes=max_bytes)
    errors = np.full(comparison.reference.shape[1:], np.nan)
    for rows, columns in iterate_windows(comparison.reference, max_bytes):
        errors[rows, columns] = pixel_rmse(*comparison.read_pair(rows, columns, comparison.bands))
    return errors


def pixel_rmse(first: NDArray[Any], second: NDArray[Any]) -> Floats:
    """(band, y, x) -> (y, x), over the bands that are valid in both."""
    return np.sqrt(nan_mean(np.square(first - second), axis=0))


def nan_mean(values: NDArray[Any], axis: int | tuple[int, ...]) -> Floats:
    """Mean of the finite values, NaN where there are none."""
    known = np.isfinite(values)
    return per_band_mean(values.sum(axis=axis, where=known), known.sum(axis=axis))


# Pixels are chosen from the middle of large scenes, away from the edges, among at most this many per axis.
LARGEST_SIDE = 512
EDGE = 1 / 16
CANDIDATES_PER_SIDE = 64
CLUSTER_ROUNDS = 20
TYPICAL = 12


def distinct_pixels(cube: xr.DataArray, count: int = 4) -> list[tuple[int, int]]:
    """Find (row, column) of up to `count` typical pixels of different surfaces, from dark to bright."""
    positions, spectra = _candidates(as_cube(cube))
    level = np.linalg.norm(spectra, axis=1)
    # Between Euclidean distance, which is dominated by brightness, and the angle, dominated by noise in dark spectra.
    features = spectra / np.sqrt(np.where(level > 0, level, 1.0))[:, None]
    chosen = _cluster_representatives(features, positions, _farthest_first(features, count))
    return [(int(row), int(column)) for row, column in positions[sorted(chosen, key=lambda pixel: float(level[pixel]))]]


def _candidates(cube: xr.DataArray) -> tuple[NDArray[np.int64], Floats]:
    """Positions (pixel, 2) and spectra (pixel, band) of a regular sample of pixels valid in all usable bands."""
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
    """Indices of samples far apart: each is the one farthest from those chosen before it."""
    chosen = [int(np.linalg.norm(features - features.mean(axis=0), axis=1).argmin())]
    distance = np.linalg.norm(features - features[chosen[0]], axis=1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(features - features[chosen[-1]], axis=1))
    return chosen


def _cluster_representatives(features: Floats, positions: NDArray[np.int64], seeds: list[int]) -> list[int]:
    """One sample per k-means cluster: of those nearest to its centre the one farthest from the pixels chosen before.

    Near the centre, because a far point may be an outlier; far from the others, so that their marks do not overlap.
    """
    # An empty cluster, of which it warns, keeps its centre.
    with warnings.catch_warnings(action="ignore"):
        centres, _ = kmeans2(features, features[seeds], iter=CLUSTER_ROUNDS, minit="matrix")
    chosen: list[int] = []
    for distance in cdist(centres, features):
        typical = np.argsort(distance, kind="stable")[:TYPICAL]
        room = cdist(positions[typical], positions[chosen]).min(axis=1) if chosen else np.zeros(len(typical))
        chosen.append(int(typical[room.argmax()]))
    return sorted(set(chosen))
