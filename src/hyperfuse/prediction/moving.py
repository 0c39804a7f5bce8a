"""Move a fused image by a fraction of a pixel: from where the MSI says that it lies to where the HSI says so.

Shapes: C bands, H W fine.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import shift as spline_shift

from hyperfuse.methods.nodata import fill_missing

# Below a hundredth of a pixel, interpolation would cost more than the shift does.
SMALLEST_MOVE = 0.01


def moved(fused: NDArray[np.float32], misregistration: tuple[float, float]) -> NDArray[np.float32]:
    """(C, H, W) -> the same, pixel (i, j) taken from (i, j) + misregistration by cubic splines; holes move by whole pixels."""
    if max(abs(distance) for distance in misregistration) < SMALLEST_MOVE:
        return fused
    back = [-distance for distance in misregistration]
    whole = fill_missing(torch.from_numpy(fused)).numpy()
    result = np.stack([spline_shift(band, back, order=3, mode="nearest") for band in whole])
    missing = np.isnan(fused)
    if missing.any():
        nearest = [round(distance) for distance in back]
        holes = np.stack([spline_shift(band.astype(np.uint8), nearest, order=0, mode="nearest") for band in missing])
        result[holes > 0] = np.nan
    return result
