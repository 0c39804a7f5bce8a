"""Prepare two images for comparison: which values, bands, peak and scale.

Shapes: fused, reference (band, y, x); valid broadcastable to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError
from hyperfuse.io.cube import as_cube, iterate_windows, physical_values, wavelengths_nm
from hyperfuse.io.grid import PIXEL_TOLERANCE, Grid, grid_of

Floats = NDArray[np.float64]

SCALE_ATTRIBUTE = "hyperfuse_scale"
# Band centres that differ by more than this are reported.
WAVELENGTH_TOLERANCE_NM = 1.0


def comparable_pair(fused: ArrayLike, reference: ArrayLike, valid: ArrayLike | None = None) -> tuple[Floats, Floats]:
    """Copy both arrays as float64, with NaN where either is not finite or `valid` is False."""
    fused_values, reference_values = np.array(fused, dtype=np.float64), np.array(reference, dtype=np.float64)
    _require_same_shape(fused_values, reference_values)
    if valid is not None:
        fused_values[~np.broadcast_to(np.asarray(valid, dtype=bool), fused_values.shape)] = np.nan
    if not mask_incomparable(fused_values, reference_values).any():
        raise nothing_to_compare()
    return fused_values, reference_values


def mask_incomparable(fused: Floats, reference: Floats) -> NDArray[np.bool_]:
    """Set both arrays, in place, to NaN where either is not finite; return where they can be compared."""
    comparable: NDArray[np.bool_] = np.isfinite(fused) & np.isfinite(reference)
    fused[~comparable] = np.nan
    reference[~comparable] = np.nan
    return comparable


def default_peak(reference: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Return the peak of PSNR and SSIM where none is given: 1 for a reference within [0, 1], else its maximum.

    Examples
    --------
    >>> default_peak([0.2, 0.4]), default_peak([0.0, 4095.0])
    (1.0, 4095.0)
    """
    values = np.asarray(reference, dtype=np.float64)
    counted = np.isfinite(values)
    if valid is not None:
        counted &= np.broadcast_to(np.asarray(valid, dtype=bool), values.shape)
    lowest, highest = values.min(where=counted, initial=np.inf), values.max(where=counted, initial=-np.inf)
    return _choose_peak(float(lowest), float(highest))


def _choose_peak(lowest: float, highest: float) -> float:
    if lowest > highest:
        raise nothing_to_compare()
    if lowest >= 0 and highest <= 1:
        return 1.0
    if highest <= 0:
        expected = "positive values, from which a peak can be taken"
        raise ValueRangeError(f"the maximum of the reference is {highest:g}", expected, "give the peak (--peak)")
    return highest


def require_positive(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise OptionError(f"{name} {value:g}", f"a positive, finite {name}")
    return float(value)


def per_band_mean(total: Floats, count: NDArray[Any]) -> Floats:
    """Divide total by count; NaN where the count is zero."""
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def mean_of_defined(values: Floats) -> float:
    """Average the finite values; NaN without any."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if defined.size else float("nan")


def nothing_to_compare() -> ValueRangeError:
    remedy = "check nodata, NaN and bad bands with `hyperfuse info`"
    return ValueRangeError("no value is valid in both images", "at least one pixel with data in both", remedy)


def _require_same_shape(fused: NDArray[Any], reference: NDArray[Any]) -> None:
    if fused.ndim != 3 or reference.ndim != 3:
        raise GridError(f"arrays of {fused.ndim} and {reference.ndim} dimensions", "two arrays (band, y, x)")
    _require_same_bands(fused.shape[0], reference.shape[0])
    if fused.shape[1:] != reference.shape[1:]:
        raise GridError(f"images of {fused.shape[1:]} and {reference.shape[1:]} pixels", "two images of the same size")


def _require_same_bands(fused: int, reference: int) -> None:
    if fused != reference:
        remedy = "select the bands of the fused cube in the reference"
        got = f"the fused cube has {fused} bands, the reference {reference}"
        raise BandError(got, "the same bands in both", remedy)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two cubes with the same bands on the same grid; the bands, peak and scale to compare them with."""

    fused: xr.DataArray
    reference: xr.DataArray
    bands: NDArray[np.int64]
    peak: float
    scale: float | None

    def read_pair(self, rows: slice, columns: slice, bands: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Read a window of both, fused first, as physical values with NaN for missing ones."""
        fused = physical_values(self.fused, rows, columns, bands, np.float64)
        return fused, physical_values(self.reference, rows, columns, bands, np.float64)

    @property
    def wavelength_difference_nm(self) -> float:
        """The largest difference between the band centres of the two cubes; 0 where either has none."""
        fused_nm, reference_nm = wavelengths_nm(self.fused), wavelengths_nm(self.reference)
        return 0.0 if fused_nm is None or reference_nm is None else float(np.abs(fused_nm - reference_nm).max())


def plan_comparison(
    fused: xr.DataArray, reference: xr.DataArray, scale: float | None, peak: float | None, max_bytes: int
) -> Comparison:
    """Check that two cubes can be compared, and determine bands, scale and peak."""
    fused, reference = as_cube(fused), as_cube(reference)
    _require_same_bands(fused.sizes["band"], reference.sizes["band"])
    _require_same_grid(grid_of(fused), grid_of(reference))
    bands = np.flatnonzero(fused["good"].values & reference["good"].values)
    if bands.size == 0:
        raise BandError("no band is marked good in both cubes", "at least one good band", "fix the bad-band list (bbl)")
    scale = _read_scale(fused) if scale is None else require_positive("scale", scale)
    peak = _scan_peak(reference, bands, max_bytes) if peak is None else require_positive("peak", peak)
    return Comparison(fused, reference, bands, peak, scale)


def _read_scale(fused: xr.DataArray) -> float | None:
    """Return the scale that a fused cube carries in its attributes, if any."""
    try:
        return require_positive("scale", float(fused.attrs[SCALE_ATTRIBUTE]))
    except (KeyError, TypeError, ValueError, OptionError):
        return None


def _scan_peak(reference: xr.DataArray, bands: NDArray[np.int64], max_bytes: int) -> float:
    """Determine the peak from the reference alone, so that it is the same for every method compared with it."""
    lowest, highest = np.inf, -np.inf
    for rows, columns in iterate_windows(reference, max_bytes):
        values = physical_values(reference, rows, columns, bands, np.float64)
        values = values[np.isfinite(values)]
        lowest, highest = values.min(initial=lowest), values.max(initial=highest)
    return _choose_peak(lowest, highest)


def _require_same_grid(fused: Grid, reference: Grid) -> None:
    if (fused.height, fused.width) != (reference.height, reference.width):
        sizes = (f"{grid.width}x{grid.height}" for grid in (fused, reference))
        got = "the fused image is {} pixels, the reference {}".format(*sizes)
        raise GridError(got, "the same size", "crop or resample one to the grid of the other")
    if fused.transform is None or reference.transform is None:
        return
    if fused.crs is not None and reference.crs is not None and fused.crs != reference.crs:
        remedy = "reproject the fused image to the grid of the reference with gdalwarp or rioxarray"
        raise GridError("the two images are in different coordinate reference systems", "one for both", remedy)
    # The grids are farthest apart at a corner.
    corners = [(x, y) for x in (0, fused.width) for y in (0, fused.height)]
    to_reference = ~reference.transform @ fused.transform
    apart = max(float(np.hypot(*np.subtract(to_reference @ corner, corner))) for corner in corners)
    if apart > PIXEL_TOLERANCE:
        raise GridError(
            f"the two grids are up to {apart:.3g} pixels apart",
            f"the same grid within {PIXEL_TOLERANCE:g} pixel",
            "resample the fused image to the grid of the reference with gdalwarp or rioxarray",
        )
