"""May these two cubes be compared, on which bands, and with which peak and scale?

Two arrays to compare become one pair: float64, NaN wherever either of them has nothing to compare.

Shapes: fused, reference (band, y, x); valid broadcastable to them. Every metric of this folder starts from such a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import ArrayLike, NDArray

from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError
from hyperfuse.io.cube import as_cube, iterate_windows, physical_values, wavelengths_nm
from hyperfuse.io.grid import PIXEL_TOLERANCE, Grid, grid_of

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


SCALE_ATTRIBUTE = "hyperfuse_scale"
# Centres that differ by more than this belong to different bands, whatever their numbers.
WAVELENGTH_TOLERANCE_NM = 1.0


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two cubes with the same bands on the same grid, and how they are to be compared."""

    fused: xr.DataArray
    reference: xr.DataArray
    bands: NDArray[np.int64]
    peak: float
    scale: float | None

    def read_pair(self, rows: slice, columns: slice, bands: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """A window of both, fused first, as physical values with NaN where that image has no data."""
        fused = physical_values(self.fused, rows, columns, bands, np.float64)
        return fused, physical_values(self.reference, rows, columns, bands, np.float64)


def plan_comparison(
    fused: xr.DataArray, reference: xr.DataArray, scale: float | None, peak: float | None, max_bytes: int
) -> Comparison:
    """Check that the two may be compared, and settle bands, scale and peak."""
    fused, reference = as_cube(fused), as_cube(reference)
    require_same_bands(fused.sizes["band"], reference.sizes["band"])
    _require_same_grid(grid_of(fused), grid_of(reference))
    bands = _bands_good_in_both(fused, reference)
    scale = _scale_of(fused, scale)
    peak = _default_peak(reference, bands, max_bytes) if peak is None else require_positive("peak", peak)
    return Comparison(fused, reference, bands, peak, scale)


def _bands_good_in_both(fused: xr.DataArray, reference: xr.DataArray) -> NDArray[np.int64]:
    good = np.flatnonzero(fused["good"].values & reference["good"].values)
    if good.size == 0:
        raise BandError(
            "no band is marked good in both cubes", "at least one good band", "mend the bad-band list (bbl)"
        )
    return good


def _scale_of(fused: xr.DataArray, scale: float | None) -> float | None:
    """The scale given, else the one a fused cube remembers, else None."""
    if scale is not None:
        return require_positive("scale", scale)
    try:
        remembered = float(fused.attrs[SCALE_ATTRIBUTE])
    except (KeyError, TypeError, ValueError):
        return None
    return remembered if np.isfinite(remembered) and remembered > 0 else None


def _default_peak(reference: xr.DataArray, bands: NDArray[np.int64], max_bytes: int) -> float:
    """From one pass over the reference alone, so that it is the same for every method compared with it."""
    lowest, highest = np.inf, -np.inf
    for rows, columns in iterate_windows(reference, max_bytes):
        values = physical_values(reference, rows, columns, bands, np.float64)
        values = values[np.isfinite(values)]
        if values.size:
            lowest, highest = min(lowest, float(values.min())), max(highest, float(values.max()))
    if lowest > highest:
        raise nothing_to_compare()
    return choose_peak(lowest, highest)


def wavelength_difference_nm(fused: xr.DataArray, reference: xr.DataArray) -> float:
    """The largest difference between the two cubes' band centres; 0 where either does not know them."""
    fused_nm, reference_nm = wavelengths_nm(fused), wavelengths_nm(reference)
    if fused_nm is None or reference_nm is None:
        return 0.0
    return float(np.abs(fused_nm - reference_nm).max())


def _require_same_grid(fused: Grid, reference: Grid) -> None:
    if (fused.height, fused.width) != (reference.height, reference.width):
        raise GridError(
            f"the fused image is {fused.width}x{fused.height} pixels, the reference {reference.width}x{reference.height}",
            "the same size",
            "cut or resample one to the other's grid",
        )
    if fused.transform is None or reference.transform is None:
        return
    if fused.crs is not None and reference.crs is not None and fused.crs != reference.crs:
        raise GridError(
            "the two images are in different coordinate reference systems",
            "one for both",
            "reproject the fused image to the reference's grid with gdalwarp or rioxarray",
        )
    moved = _largest_displacement(fused.transform, reference.transform, fused.width, fused.height)
    if moved > PIXEL_TOLERANCE:
        raise GridError(
            f"the two grids lie up to {moved:.3g} pixels apart",
            f"the same grid within {PIXEL_TOLERANCE:g} pixel",
            "resample the fused image to the reference's grid with gdalwarp or rioxarray",
        )


def _largest_displacement(fused: Affine, reference: Affine, width: int, height: int) -> float:
    """How far apart, in pixels, the two grids put a corner of the image; between corners they are no further apart."""
    x, y = np.meshgrid([0.0, width], [0.0, height])
    to_pixels = ~reference
    east, north = fused.a * x + fused.b * y + fused.c, fused.d * x + fused.e * y + fused.f
    column = to_pixels.a * east + to_pixels.b * north + to_pixels.c
    row = to_pixels.d * east + to_pixels.e * north + to_pixels.f
    return float(np.hypot(column - x, row - y).max())
