"""Smaller pictures by means of blocks of pixels.

Shapes: (K, y, x) -> (K, ceil(y / factor), ceil(x / factor)), NaN where a block holds nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Planes = NDArray[np.float32]


def pooled(planes: Planes, factor: int) -> Planes:
    if factor == 1:
        return planes
    bands, height, width = planes.shape
    rows, columns = -(-height // factor), -(-width // factor)
    if (height, width) != (rows * factor, columns * factor):
        whole = np.full((bands, rows * factor, columns * factor), np.nan, dtype=np.float32)
        whole[:, :height, :width] = planes
        planes = whole
    blocks = planes.reshape(bands, rows, factor, columns, factor)
    means: Planes = blocks.mean(axis=(2, 4), dtype=np.float32)
    holes = np.isnan(means)
    if holes.any():
        plane, row, column = np.nonzero(holes)
        partly = blocks[plane, row, :, column, :].reshape(len(plane), -1)
        known = np.isfinite(partly)
        counts = known.sum(axis=1)
        sums = np.where(known, partly, 0).sum(axis=1)
        means[holes] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means
