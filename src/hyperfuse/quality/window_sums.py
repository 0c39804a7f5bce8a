"""The sums of one window of two cubes; added up over windows they give what `metrics` gives for whole arrays.

SSIM's windows reach 5 pixels beyond their centre, so a window is read with that margin, which serves SSIM and UQI alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hyperfuse.quality.comparison import Comparison
from hyperfuse.quality.error_sums import ErrorSums, error_sums, no_errors
from hyperfuse.quality.local_similarity import MARGIN, SimilaritySums, no_similarity, similarity_sums
from hyperfuse.quality.pairing import blank_incomparable
from hyperfuse.quality.spectral_angle import angle_sum


@dataclass(frozen=True, eq=False)
class WindowSums:
    errors: ErrorSums
    similarity: SimilaritySums
    angle_degrees: float
    pixels: int
    reference_values: int
    """How many values the reference has, whether or not the fused image has them."""

    def __add__(self, other: WindowSums) -> WindowSums:
        return WindowSums(
            self.errors + other.errors,
            self.similarity + other.similarity,
            self.angle_degrees + other.angle_degrees,
            self.pixels + other.pixels,
            self.reference_values + other.reference_values,
        )


def no_sums(bands: int) -> WindowSums:
    return WindowSums(no_errors(bands), no_similarity(bands), 0.0, 0, 0)


def window_sums(comparison: Comparison, rows: slice, columns: slice) -> WindowSums:
    height, width = comparison.reference.shape[1:]
    wide_rows, core_rows = _with_margin(rows, height)
    wide_columns, core_columns = _with_margin(columns, width)
    core = (slice(None), core_rows, core_columns)
    fused, reference = comparison.read_pair(wide_rows, wide_columns, comparison.bands)
    reference_values = int(np.count_nonzero(np.isfinite(reference[core])))
    blank_incomparable(fused, reference)
    errors = error_sums(fused[core], reference[core])
    return WindowSums(
        errors, similarity_sums(fused, reference, comparison.peak), *angle_sum(fused[core], reference[core]), reference_values
    )


def _with_margin(window: slice, size: int) -> tuple[slice, slice]:
    """The window widened by SSIM's margin as far as the image goes, and where the window lies within that."""
    start, stop = max(window.start - MARGIN, 0), min(window.stop + MARGIN, size)
    return slice(start, stop), slice(window.start - start, window.stop - start)
