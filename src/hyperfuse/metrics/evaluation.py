"""Evaluate a fused cube against its reference window by window, in the memory of a few windows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.config import EvaluateConfig, takes_options
from hyperfuse.errors import ValueRangeError
from hyperfuse.io.allocator import freed_memory_kept
from hyperfuse.io.cube import iterate_windows
from hyperfuse.io.files import PathLike, as_opened
from hyperfuse.io.summary import html_table, strict_json
from hyperfuse.io.wavelengths import supplied
from hyperfuse.metrics.sums import (
    BLOCK,
    WAVELENGTH_TOLERANCE_NM,
    WINDOW,
    Comparison,
    Floats,
    WindowSums,
    mask_incomparable,
    mean_of_defined,
    nothing_to_compare,
    plan_comparison,
    q2n_sum,
)
from hyperfuse.progress import progress

Image = PathLike | xr.DataArray | NDArray[Any]
WINDOW_BYTES = 64 * 2**20
LARGEST_VALUE = 1e140
# Fields of `Evaluation` by the name that is shown, and the unit.
SCORES = {
    "psnr_db": ("PSNR", " dB"),
    "mean_band_psnr_db": ("mean-band PSNR", " dB"),
    "spectral_angle_degrees": ("SAM", " deg"),
    "ergas": ("ERGAS", ""),
    "ssim": ("SSIM", ""),
    "uqi": ("UIQI", ""),
    "q2n": ("Q2n", ""),
    "rmse": ("RMSE", ""),
}
COLUMNS = ("wavelength_nm", "band_psnr_db", "band_rmse", "band_ssim", "band_uqi")


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Scores of a fused cube.

    None means not defined or not computed, and `notes` say why; band arrays are NaN for bands that were left out.
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

    def _shown(self) -> dict[str, str]:
        """Scores as text by their names."""
        values = ((getattr(self, name), *labels) for name, labels in SCORES.items())
        return {label: f"{value:.4g}{unit}" for value, label, unit in values if value is not None}

    def __repr__(self) -> str:
        scores = ", ".join(f"{label} {text}" for label, text in self._shown().items())
        compared, bands = np.count_nonzero(np.isfinite(self.band_rmse)), self.band_rmse.size
        return (
            f"Evaluation({scores}; {compared} of {bands} bands, {100 * self.compared_fraction:.4g} % of their values)"
        )

    def _repr_html_(self) -> str:
        return html_table("Evaluation", self._shown() | ({"note": "; ".join(self.notes)} if self.notes else {}))

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, which has neither infinity nor NaN: both are None."""
        names = [name.removeprefix("band_") for name in COLUMNS]
        rows = zip(*(getattr(self, name) for name in COLUMNS), strict=True)
        record: dict[str, Any] = strict_json(
            {name: getattr(self, name) for name in (*SCORES, "peak", "scale")}
            | {
                "bands": self.band_rmse.size,
                "compared_bands": np.count_nonzero(np.isfinite(self.band_rmse)),
                "compared_fraction": self.compared_fraction,
                "notes": self.notes,
                "per_band": [
                    dict(zip(("band", *names), (n, *row), strict=True)) for n, row in enumerate(rows, start=1)
                ],
            }
        )
        return record


@takes_options(EvaluateConfig)
def evaluate(
    fused: Image, reference: Image, *, config: EvaluateConfig | None = None, max_bytes: int = WINDOW_BYTES
) -> Evaluation:
    """Compute all metrics of a fused cube, over the pixels valid in both cubes and the bands good in both.

    Parameters
    ----------
    fused, reference
        Cubes on the same grid with the same bands, files of such, or arrays (band, y, x); read in windows.
    config : EvaluateConfig, optional
        All options in one object, such as ``scale``, ``peak`` or ``q2n``; each may also be given as a keyword.
    max_bytes
        Size of a window as float32; the memory needed is about six times that.

    Returns
    -------
    PSNR, SAM [2]_, ERGAS [1]_, SSIM [3]_, UIQI, RMSE and Q2n [4]_, overall and per band, with notes on everything that
    was left out.

    Raises
    ------
    GridError, BandError
        If the grids or the numbers of bands differ.
    ValueRangeError
        If no value is valid in both cubes.

    References
    ----------
    .. [1] L. Wald, "Quality of high resolution synthesised images: is there a simple criterion?", 2000.
    .. [2] F. A. Kruse et al., "The spectral image processing system (SIPS)", Remote Sensing of Environment, 1993.
    .. [3] Z. Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004.
    .. [4] A. Garzelli and F. Nencini, "Hypercomplex quality assessment of multi/hyperspectral images", 2009.
    .. [5] G. Vivone et al., "A critical comparison among pansharpening algorithms", IEEE TGRS 53, 2015 (the protocol).

    Examples
    --------
    >>> from hyperfuse import evaluate, make_cube
    >>> values = np.random.default_rng(0).random((3, 16, 16))
    >>> scores = evaluate(make_cube(values + 0.01), make_cube(values), scale=4)
    >>> round(scores.psnr_db, 6)
    40.0
    >>> scores
    Evaluation(PSNR 40 dB, ...; 3 of 3 bands, 100 % of their values)
    """
    config = config or EvaluateConfig()
    fused = as_opened(fused, config.fused_variable, config.fused_band_axis)
    reference = as_opened(reference, config.reference_variable, config.reference_band_axis)
    fused, reference = (supplied(cube, config.wavelengths, config.nodata_in) for cube in (fused, reference))
    with freed_memory_kept():
        comparison = plan_comparison(fused, reference, config.scale, config.peak, max_bytes)
        _require_finite(comparison.peak)
        windows = _windows("Evaluating", comparison, max_bytes)
        sums = reduce(operator.add, (WindowSums.of(comparison, *window) for window in windows))
    if sums.pixels == 0:
        raise nothing_to_compare()
    _require_finite(math.sqrt(float(sums.errors.squared_error.max(initial=0.0))))
    q2n = _compute_q2n(comparison, comparison.bands[sums.errors.compared], max_bytes) if config.q2n else None
    return _summarise(comparison, sums, q2n)


def _require_finite(value: float) -> None:
    """Refuse values whose squares are not finite."""
    if not abs(value) < LARGEST_VALUE:
        expected = f"values below {LARGEST_VALUE:.0e}, whose squares are finite"
        raise ValueRangeError(f"values of up to {value:.0e}", expected, "divide both images by the same factor")


def _windows(task: str, comparison: Comparison, max_bytes: int, block: int = 256) -> Iterator[tuple[slice, slice]]:
    windows = list(iterate_windows(comparison.reference, max_bytes, block))
    with progress(task, total=len(windows)) as advance:
        for window in windows:
            yield window
            advance(1)


def _compute_q2n(comparison: Comparison, bands: NDArray[np.int64], max_bytes: int) -> float:
    """Compute Q2n over windows that consist of whole blocks."""
    one_block = 4 * comparison.reference.sizes["band"] * BLOCK**2
    total, blocks = 0.0, 0
    for rows, columns in _windows("Q2n", comparison, max(max_bytes, one_block), BLOCK):
        fused, reference = comparison.read_pair(rows, columns, bands)
        mask_incomparable(fused, reference)
        window_total, window_blocks = q2n_sum(fused, reference)
        total, blocks = total + window_total, blocks + window_blocks
    return total / blocks if blocks else float("nan")


def _summarise(comparison: Comparison, sums: WindowSums, q2n: float | None) -> Evaluation:
    errors, similarity, peak, scale = sums.errors, sums.similarity, comparison.peak, comparison.scale
    wavelength_nm = np.array(comparison.reference["wavelength"].values, dtype=np.float64)

    def on_all_bands(column: Floats) -> Floats:
        spread = np.full(wavelength_nm.size, np.nan)
        spread[comparison.bands] = column
        return spread

    return Evaluation(
        psnr_db=errors.psnr_db(peak),
        mean_band_psnr_db=errors.mean_band_psnr_db(peak),
        spectral_angle_degrees=sums.angle_degrees / sums.pixels,
        ergas=None if scale is None else _defined(errors.ergas(scale)),
        ssim=_defined(mean_of_defined(similarity.band_ssim)),
        uqi=_defined(mean_of_defined(similarity.band_uiqi)),
        q2n=None if q2n is None else _defined(q2n),
        rmse=math.sqrt(errors.mse),
        peak=peak,
        scale=scale,
        compared_fraction=int(errors.count.sum()) / (comparison.bands.size * math.prod(comparison.reference.shape[1:])),
        wavelength_nm=wavelength_nm,
        band_psnr_db=on_all_bands(errors.band_psnr_db(peak)),
        band_rmse=on_all_bands(np.sqrt(errors.band_mse)),
        band_ssim=on_all_bands(similarity.band_ssim),
        band_uqi=on_all_bands(similarity.band_uiqi),
        notes=tuple(_notes(comparison, sums, q2n)),
    )


def _notes(comparison: Comparison, sums: WindowSums, q2n: float | None) -> Iterator[str]:
    errors, all_bands = sums.errors, comparison.reference.sizes["band"]
    bands, apart = comparison.bands.size, comparison.wavelength_difference_nm
    compared = int(np.count_nonzero(errors.compared))
    exact = int(np.count_nonzero(errors.squared_error[errors.compared] == 0))
    dark = compared - int(np.count_nonzero(errors.bands_with_mean))
    missing = sums.reference_values - int(errors.count.sum())
    infinite = f"{exact} bands have no error (infinite PSNR, null in JSON)"
    notes = {
        f"{all_bands - bands} of {all_bands} bands are marked bad and left out": bands < all_bands,
        f"{bands - compared} bands have no value that is valid in both images and are left out": compared < bands,
        f"the fused image has no data at {missing} values that the reference has; they are not scored": missing > 0,
        f"the band centres of the two images differ by up to {apart:.1f} nm": apart > WAVELENGTH_TOLERANCE_NM,
        "the images are equal where both have data: PSNR is infinite (null in JSON)": exact == compared,
        f"{infinite} and do not count in the mean-band PSNR": 0 < exact < compared,
        "no ERGAS: the fused cube does not state the scale; give it (--scale)": comparison.scale is None,
        f"{dark} bands have a reference of mean zero and do not count in ERGAS": dark > 0 and comparison.scale,
        f"no SSIM and UIQI: no window of {WINDOW}x{WINDOW} valid pixels fits into the images": (
            not sums.similarity.count.any()
        ),
        f"no Q2n: no block of {BLOCK}x{BLOCK} pixels is valid in every compared band": (
            q2n is not None and math.isnan(q2n)
        ),
    }
    return (note for note, applies in notes.items() if applies)


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
