"""A fused cube against its reference, window by window: a cube of any size needs the memory of a few windows.

What an evaluation says: the overall figures, those of each band, and in words whatever a figure alone would hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.io.cube import iterate_windows
from hyperfuse.metrics import sums as error_sums
from hyperfuse.metrics.metrics import mean_of_defined
from hyperfuse.metrics.pairing import (
    WAVELENGTH_TOLERANCE_NM,
    Comparison,
    Floats,
    blank_incomparable,
    nothing_to_compare,
    plan_comparison,
    wavelength_difference_nm,
)
from hyperfuse.metrics.similarity import BLOCK, WINDOW, SimilaritySums, q2n_sum
from hyperfuse.metrics.sums import ErrorSums, WindowSums, no_sums, window_sums
from hyperfuse.progress import progress


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of a fused cube. None: not defined or not asked for, and `notes` say why. Band arrays are NaN for bands
    left out.
    """

    psnr_db: float
    mean_band_psnr_db: float
    spectral_angle_degrees: float
    ergas: float | None
    ssim: float | None
    uqi: float | None
    q2n: float | None
    rmse: float
    peak: float
    scale: float | None
    compared_fraction: float
    wavelength_nm: Floats
    band_psnr_db: Floats
    band_rmse: Floats
    band_ssim: Floats
    band_uqi: Floats
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, which knows no infinity and no NaN: both are null (an infinite PSNR also has its note)."""
        names = [
            "psnr_db",
            "mean_band_psnr_db",
            "spectral_angle_degrees",
            "ergas",
            "ssim",
            "uqi",
            "q2n",
            "rmse",
            "peak",
            "scale",
        ]
        overall: dict[str, Any] = {name: _json_number(getattr(self, name)) for name in names}
        compared = np.isfinite(self.band_rmse)
        overall |= {
            "bands": self.band_rmse.size,
            "compared_bands": int(np.count_nonzero(compared)),
            "compared_fraction": self.compared_fraction,
            "notes": list(self.notes),
        }
        return overall | {"per_band": [self._band_as_dict(band) for band in range(self.band_rmse.size)]}

    def _band_as_dict(self, band: int) -> dict[str, Any]:
        numbers = {
            "wavelength_nm": self.wavelength_nm,
            "psnr_db": self.band_psnr_db,
            "rmse": self.band_rmse,
            "ssim": self.band_ssim,
            "uqi": self.band_uqi,
        }
        return {"band": band + 1} | {name: _json_number(column[band]) for name, column in numbers.items()}


def summarise(comparison: Comparison, sums: WindowSums, q2n: float | None) -> Evaluation:
    """Turn sums into scores; a Q2n of None was not asked for."""
    errors, similarity, peak, scale = sums.errors, sums.similarity, comparison.peak, comparison.scale
    wavelength_nm = np.array(comparison.reference["wavelength"].values, dtype=np.float64)

    def on_all_bands(column: Floats) -> Floats:
        spread = np.full(wavelength_nm.size, np.nan)
        spread[comparison.bands] = column
        return spread

    return Evaluation(
        psnr_db=error_sums.pooled_psnr_db(errors, peak),
        mean_band_psnr_db=error_sums.mean_band_psnr_db(errors, peak),
        spectral_angle_degrees=sums.angle_degrees / sums.pixels,
        ergas=None if scale is None else _defined(error_sums.ergas(errors, scale)),
        ssim=_defined(mean_of_defined(similarity.band_ssim)),
        uqi=_defined(mean_of_defined(similarity.band_uqi)),
        q2n=None if q2n is None else _defined(q2n),
        rmse=math.sqrt(error_sums.pooled_mean_squared_error(errors)),
        peak=peak,
        scale=scale,
        compared_fraction=int(errors.count.sum()) / (comparison.bands.size * math.prod(comparison.reference.shape[1:])),
        wavelength_nm=wavelength_nm,
        band_psnr_db=on_all_bands(error_sums.band_psnr_db(errors, peak)),
        band_rmse=on_all_bands(np.sqrt(error_sums.band_mean_squared_error(errors))),
        band_ssim=on_all_bands(similarity.band_ssim),
        band_uqi=on_all_bands(similarity.band_uqi),
        notes=(*_coverage_notes(comparison, sums), *_metric_notes(errors, similarity, q2n, scale)),
    )


def _coverage_notes(comparison: Comparison, sums: WindowSums) -> list[str]:
    notes = []
    all_bands = comparison.reference.sizes["band"]
    if bad := all_bands - comparison.bands.size:
        notes.append(f"{bad} of {all_bands} bands are marked bad and left out")
    if empty := int(np.count_nonzero(~sums.errors.compared)):
        notes.append(f"{empty} bands have no value that is valid in both images and are left out")
    if missing := sums.reference_values - int(sums.errors.count.sum()):
        notes.append(f"the fused image has no data at {missing} values that the reference has; they are not scored")
    apart_nm = wavelength_difference_nm(comparison.fused, comparison.reference)
    if apart_nm > WAVELENGTH_TOLERANCE_NM:
        notes.append(f"the band centres of the two images differ by up to {apart_nm:.1f} nm")
    return notes


def _metric_notes(errors: ErrorSums, similarity: SimilaritySums, q2n: float | None, scale: float | None) -> list[str]:
    notes = []
    exact = int(np.count_nonzero(errors.squared_error[errors.compared] == 0))
    compared = int(np.count_nonzero(errors.compared))
    if exact == compared:
        notes.append("the images are equal where both have data: PSNR is infinite (null in JSON)")
    elif exact:
        notes.append(
            f"{exact} bands have no error at all (infinite PSNR, null in JSON) and do not count in the mean-band PSNR"
        )
    if scale is None:
        notes.append("no ERGAS: it needs the scale, and the fused cube does not say it; give it (--scale)")
    elif dark := compared - int(np.count_nonzero(error_sums.bands_with_mean(errors))):
        notes.append(f"{dark} bands have a reference of mean zero and do not count in ERGAS")
    if not similarity.count.any():
        notes.append(f"no SSIM and UQI: no window of {WINDOW}x{WINDOW} valid pixels fits into the images")
    if q2n is not None and math.isnan(q2n):
        notes.append(f"no Q2n: no block of {BLOCK}x{BLOCK} pixels is valid in every compared band")
    return notes


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _json_number(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


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

    `scale` (for ERGAS) is taken from the fused cube where it remembers it; `peak` is 1 for a reference within [0, 1],
    else the reference's maximum. `max_bytes` bounds one window as float32; the work needs about six times that.
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
