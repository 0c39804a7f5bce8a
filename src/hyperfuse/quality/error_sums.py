"""PSNR, RMSE and ERGAS from sums that add up over windows: the same numbers from a whole array and from a stream.

Shapes: fused, reference (band, y, x) as made by `pairing`; every field of `ErrorSums` (band,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperfuse.quality.pairing import Floats, per_band_mean

# A band mean below this part of the band's root mean square is rounding noise around zero, not a brightness to divide by.
ZERO_MEAN = 1e-9


@dataclass(frozen=True, eq=False)
class ErrorSums:
    count: NDArray[np.int64]
    squared_error: Floats
    reference: Floats
    squared_reference: Floats

    def __add__(self, other: ErrorSums) -> ErrorSums:
        return ErrorSums(
            self.count + other.count,
            self.squared_error + other.squared_error,
            self.reference + other.reference,
            self.squared_reference + other.squared_reference,
        )

    @property
    def compared(self) -> NDArray[np.bool_]:
        """Bands with anything to compare."""
        return self.count > 0


def no_errors(bands: int) -> ErrorSums:
    """The sums of nothing, to which windows are added."""
    return ErrorSums(np.zeros(bands, np.int64), np.zeros(bands), np.zeros(bands), np.zeros(bands))


def error_sums(fused: Floats, reference: Floats) -> ErrorSums:
    sums = no_errors(len(fused))
    for band, (fused_band, reference_band) in enumerate(zip(fused, reference, strict=True)):
        comparable = np.isfinite(reference_band)
        wanted = reference_band[comparable]
        error = fused_band[comparable] - wanted
        sums.count[band] = wanted.size
        sums.squared_error[band] = np.square(error).sum()
        sums.reference[band] = wanted.sum()
        sums.squared_reference[band] = np.square(wanted).sum()
    return sums


def band_mean_squared_error(sums: ErrorSums) -> Floats:
    """Per band; NaN where a band has nothing to compare."""
    return per_band_mean(sums.squared_error, sums.count)


def band_psnr_db(sums: ErrorSums, peak: float) -> Floats:
    """10 log10(peak^2 / MSE) per band: infinite for a band without error, NaN for one with nothing to compare."""
    error = band_mean_squared_error(sums)
    psnr_db = np.full(error.shape, np.inf)
    imperfect = error != 0
    psnr_db[imperfect] = 10 * np.log10(peak**2 / error[imperfect])
    return psnr_db


def pooled_mean_squared_error(sums: ErrorSums) -> float:
    return float(sums.squared_error.sum() / sums.count.sum())


def pooled_psnr_db(sums: ErrorSums, peak: float) -> float:
    error = pooled_mean_squared_error(sums)
    return float(10 * np.log10(peak**2 / error)) if error > 0 else float("inf")


def mean_band_psnr_db(sums: ErrorSums, peak: float) -> float:
    """Mean over bands. A band without error (as a rule a dead one) has no finite PSNR and does not count, unless all are."""
    bands = band_psnr_db(sums, peak)
    finite = bands[np.isfinite(bands)]
    return float(finite.mean()) if finite.size else float("inf")


def bands_with_mean(sums: ErrorSums) -> NDArray[np.bool_]:
    """Bands over whose mean ERGAS may divide: compared, and not of mean zero."""
    mean = per_band_mean(sums.reference, sums.count)
    root_mean_square = np.sqrt(per_band_mean(sums.squared_reference, sums.count))
    return np.abs(mean) > ZERO_MEAN * root_mean_square


def ergas(sums: ErrorSums, scale: float) -> float:
    """100/S sqrt(mean over bands of MSE_b / mean_b^2), over bands whose mean is not zero; NaN where there is none."""
    usable = bands_with_mean(sums)
    if not usable.any():
        return float("nan")
    mean = sums.reference[usable] / sums.count[usable]
    relative = band_mean_squared_error(sums)[usable] / mean**2
    return float(100 / scale * np.sqrt(relative.mean()))
