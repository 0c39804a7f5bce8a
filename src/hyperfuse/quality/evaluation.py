"""A fused cube against its reference, window by window: a cube of any size needs the memory of a few windows."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import iterate_windows
from hyperfuse.progress import progress
from hyperfuse.quality.comparison import Comparison, plan_comparison
from hyperfuse.quality.hypercomplex import BLOCK, q2n_sum
from hyperfuse.quality.pairing import blank_incomparable, nothing_to_compare
from hyperfuse.quality.scores import Evaluation, summarise
from hyperfuse.quality.window_sums import WindowSums, no_sums, window_sums

__all__ = ["Evaluation", "evaluate"]

WINDOW_BYTES = 64 * 2**20


def evaluate(
    fused: xr.DataArray,
    reference: xr.DataArray,
    scale: float | None = None,
    peak: float | None = None,
    *,
    with_q2n: bool = False,
    max_bytes: int = WINDOW_BYTES,
) -> Evaluation:
    """All metrics of a fused cube, over the pixels valid in both and the bands good in both.

    `scale` (for ERGAS) is taken from the fused cube where it remembers it; `peak` is 1 for a reference within [0, 1], else the
    reference's maximum. `max_bytes` bounds one window as float32; the work needs about six times that.
    """
    comparison = plan_comparison(fused, reference, scale, peak, max_bytes)
    sums = _sums_over_windows(comparison, max_bytes)
    if sums.pixels == 0:
        raise nothing_to_compare()
    q2n = _q2n(comparison, comparison.bands[sums.errors.compared], max_bytes) if with_q2n else None
    return summarise(comparison, sums, q2n)


def _sums_over_windows(comparison: Comparison, max_bytes: int) -> WindowSums:
    windows = list(iterate_windows(comparison.reference, max_bytes))
    sums = no_sums(comparison.bands.size)
    with progress("Evaluating", total=len(windows)) as advance:
        for rows, columns in windows:
            sums += window_sums(comparison, rows, columns)
            advance(1)
    return sums


def _q2n(comparison: Comparison, bands: NDArray[np.int64], max_bytes: int) -> float:
    """Over windows that begin at whole blocks and are never smaller than one, or none would be whole."""
    one_block = 4 * comparison.reference.sizes["band"] * BLOCK**2
    windows = list(iterate_windows(comparison.reference, max(max_bytes, one_block), BLOCK))
    total, blocks = 0.0, 0
    with progress("Q2n", total=len(windows)) as advance:
        for rows, columns in windows:
            fused, reference = comparison.read_pair(rows, columns, bands)
            blank_incomparable(fused, reference)
            window_total, window_blocks = q2n_sum(fused, reference)
            total, blocks = total + window_total, blocks + window_blocks
            advance(1)
    return total / blocks if blocks else float("nan")
