"""An image between its pixels: cubic splines, window by window, that nothing of a missing pixel's neighbourhood can upset.

Shapes: n planes; positions are pairs (rows, columns) of any one shape, in pixels, 0 is the centre of the first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, map_coordinates, spline_filter

Positions = tuple[NDArray[np.float64], NDArray[np.float64]]
Window = tuple[slice, slice]
# The splines' coefficients depend on all pixels around, fading by 0.27 per pixel: from here on by less than float32 shows.
SURROUNDINGS = 12
PADDING = 6


def needed_window(positions: Positions, size: tuple[int, int]) -> Window | None:
    """Which part of an image of this size must be read to interpolate at positions inside it; None where none are."""
    inside = _inside(positions, size)
    if not inside.any():
        return None
    parts = []
    for axis, length in zip(positions, size, strict=True):
        first, last = math.floor(axis[inside].min()) - SURROUNDINGS, math.ceil(axis[inside].max()) + SURROUNDINGS
        parts.append(slice(max(0, first), min(length, last + 1)))
    return parts[0], parts[1]


def within(positions: Positions, window: Window) -> Positions:
    """The same positions, counted from the window's first pixel."""
    return positions[0] - window[0].start, positions[1] - window[1].start


def interpolated(planes: NDArray[np.float32], positions: Positions) -> NDArray[np.float32]:
    """(n, ...) of (n, h, w); NaN beyond the image, and where the nearest pixel is missing."""
    values = np.full((len(planes), *positions[0].shape), np.nan, dtype=np.float32)
    inside = _inside(positions, (planes.shape[1], planes.shape[2]))
    at = [axis[inside] for axis in positions]
    known = np.isfinite(planes)
    nearest = tuple(np.rint(axis).astype(np.int64).clip(0, size - 1) for axis, size in zip(at, planes.shape[1:], strict=True))
    for plane, mask, result in zip(filled_from_nearest(planes), known, values, strict=True):
        # Odd reflection: half a pixel beyond the outermost centres, a slope goes on.
        padding = min(PADDING, *(size - 1 for size in plane.shape))
        coefficients = spline_filter(np.pad(plane, padding, mode="reflect", reflect_type="odd"), 3, np.float64, mode="mirror")
        smooth = map_coordinates(coefficients, [axis + padding for axis in at], order=3, mode="mirror", prefilter=False)
        result[inside] = np.where(mask[nearest], smooth, np.nan)
    return values


def filled_from_nearest(planes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Nothing of a nodata value reaches its neighbours; and what does depends on them alone, not on the window that is read.

    A plane without any value becomes 0.
    """
    known = np.isfinite(planes)
    if known.all():
        return planes
    filled = planes.copy()
    previous, nearest = known[0], _nearest_known(known[0])
    for plane, mask in zip(filled, known, strict=True):
        if mask.all():
            continue
        if not mask.any():
            plane[:] = 0
            continue
        # Bands mostly miss the same pixels.
        if not np.array_equal(mask, previous):
            previous, nearest = mask, _nearest_known(mask)
        plane[:] = plane[nearest[0], nearest[1]]
    return filled


def _inside(positions: Positions, size: tuple[int, int]) -> NDArray[np.bool_]:
    rows, columns = positions
    inside: NDArray[np.bool_] = (rows > -0.5) & (rows < size[0] - 0.5) & (columns > -0.5) & (columns < size[1] - 0.5)
    return inside


def _nearest_known(known: NDArray[np.bool_]) -> NDArray[Any]:
    """(2, rows, columns) Row and column of the known pixel that is nearest to each."""
    indices: NDArray[Any] = distance_transform_edt(~known, return_distances=False, return_indices=True)
    return indices
