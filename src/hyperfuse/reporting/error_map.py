"""Where a fused image is wrong: the root mean square error over bands, pixel by pixel."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import iterate_windows
from hyperfuse.quality.comparison import plan_comparison
from hyperfuse.quality.evaluation import WINDOW_BYTES
from hyperfuse.quality.pairing import blank_incomparable


def error_map(fused: xr.DataArray, reference: xr.DataArray, max_bytes: int = WINDOW_BYTES) -> NDArray[np.float64]:
    """RMSE over the bands good in both and valid at that pixel, (y, x); NaN where there are none."""
    comparison = plan_comparison(fused, reference, scale=None, peak=1.0, max_bytes=max_bytes)
    errors = np.full(comparison.reference.shape[1:], np.nan)
    for rows, columns in iterate_windows(comparison.reference, max_bytes):
        fused_values, reference_values = comparison.read_pair(rows, columns, comparison.bands)
        comparable = blank_incomparable(fused_values, reference_values)
        squared = np.nan_to_num(np.square(fused_values - reference_values)).sum(axis=0)
        bands = np.count_nonzero(comparable, axis=0)
        window = errors[rows, columns]
        window[bands > 0] = np.sqrt(squared[bands > 0] / bands[bands > 0])
    return errors
