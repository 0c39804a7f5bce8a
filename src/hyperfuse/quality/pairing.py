"""Two arrays to compare become one pair: float64, NaN wherever either of them has nothing to compare.

Shapes: fused, reference (band, y, x); valid broadcastable to them. Every metric of this folder starts from such a pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError

Floats = NDArray[np.float64]


def comparable_pair(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> tuple[Floats, Floats]:
    """Copies of both arrays in float64 with NaN where either is not finite or `valid` is False."""
    fused_values, reference_values = np.array(fused, dtype=np.float64), np.array(reference, dtype=np.float64)
    _require_same_shape(fused_values, reference_values)
    if valid is not None:
        excluded = ~np.broadcast_to(np.asarray(valid, dtype=bool), fused_values.shape)
        fused_values[excluded] = np.nan
    if not blank_incomparable(fused_values, reference_values).any():
        raise nothing_to_compare()
    return fused_values, reference_values


def blank_incomparable(fused: Floats, reference: Floats) -> NDArray[np.bool_]:
    """Set both arrays, in place, to NaN where either is not finite; returns where they can be compared."""
    comparable: NDArray[np.bool_] = np.isfinite(fused) & np.isfinite(reference)
    fused[~comparable] = np.nan
    reference[~comparable] = np.nan
    return comparable


def choose_peak(lowest: float, highest: float) -> float:
    """The signal's peak where none is given: 1 for a reference within [0, 1], else the reference's maximum."""
    if lowest >= 0 and highest <= 1:
        return 1.0
    if highest <= 0:
        raise ValueRangeError(
            f"the reference's largest value is {highest:g}",
            "positive values, from which a peak can be taken",
            "give the peak (--peak)",
        )
    return highest


def default_peak(reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """The peak that PSNR and SSIM use where none is given; see `choose_peak`."""
    values = np.asarray(reference, dtype=np.float64)
    counted = np.isfinite(values)
    if valid is not None:
        counted &= np.broadcast_to(np.asarray(valid, dtype=bool), values.shape)
    if not counted.any():
        raise nothing_to_compare()
    return choose_peak(float(values[counted].min()), float(values[counted].max()))


def require_positive(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise OptionError(f"{name} {value:g}", f"a positive, finite {name}")
    return float(value)


def per_band_mean(total: Floats, count: NDArray[np.int64]) -> Floats:
    """Total over count, NaN for a band in which nothing was counted."""
    mean = np.full(total.shape, np.nan)
    mean[count > 0] = total[count > 0] / count[count > 0]
    return mean


def nothing_to_compare() -> ValueRangeError:
    return ValueRangeError(
        "no value is valid in both images",
        "at least one pixel with data in both",
        "check nodata, NaN and bad bands with `hyperfuse info`",
    )


def _require_same_shape(fused: NDArray[Any], reference: NDArray[Any]) -> None:
    if fused.ndim != 3 or reference.ndim != 3:
        raise GridError(f"arrays of {fused.ndim} and {reference.ndim} dimensions", "two arrays (band, y, x)")
    require_same_bands(fused.shape[0], reference.shape[0])
    if fused.shape[1:] != reference.shape[1:]:
        raise GridError(f"images of {fused.shape[1:]} and {reference.shape[1:]} pixels", "two images of the same size")


def require_same_bands(fused: int, reference: int) -> None:
    if fused != reference:
        raise BandError(
            f"the fused cube has {fused} bands, the reference {reference}",
            "the same bands in both",
            "compare with a reference cut to the fused cube's bands",
        )
