"""What two images have in common, and the sums over it from which the metrics follow.

Sums add up over windows, so whole arrays and streams give the same numbers.

Shapes: fused, reference (band, y, x) in float64, NaN wherever either has no value; valid broadcastable to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from hyperfuse import compiled
from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError
from hyperfuse.io.cube import (
    as_cube,
    as_slice,
    fitting_nodata,
    iterate_windows,
    nodata_of,
    physical_values,
    wavelengths_nm,
)
from hyperfuse.io.grid import PIXEL_TOLERANCE, Grid, grid_of
from hyperfuse.metrics.quick_sums import StoredWindow, angle_parts, band_sums, value_range

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

    def stored_pair(self, rows: slice, columns: slice) -> tuple[StoredWindow, StoredWindow] | None:
        """A window of both as it is stored, fused first; None where the compiled functions cannot compare them."""
        pair = _stored(self.fused, rows, columns, self.bands), _stored(self.reference, rows, columns, self.bands)
        return pair if all(image.is_known for image in pair) else None

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
        stored = _stored(reference, rows, columns, bands)
        if stored.is_known:
            smallest, largest = value_range(stored)
            lowest, highest = min(lowest, smallest), max(highest, largest)
            continue
        values = physical_values(reference, rows, columns, bands, np.float64)
        # Unlike min and max, these ignore NaN.
        lowest, highest = np.fmin.reduce(values, None, initial=lowest), np.fmax.reduce(values, None, initial=highest)
    return _choose_peak(float(lowest), float(highest))


def _stored(cube: xr.DataArray, rows: slice, columns: slice, bands: NDArray[np.int64]) -> StoredWindow:
    """Read where the values are of a type that compiled functions know; otherwise they are left out."""
    window = cube.isel(band=as_slice(bands), y=rows, x=columns)
    is_known = compiled.library() is not None and cube.dtype.name in compiled.STORED_TYPES
    values = window.values if is_known else np.empty(0, bool)
    scale, offset = (np.asarray(window[name].values, dtype=np.float64) for name in ("scale", "offset"))
    return StoredWindow(values, scale, offset, fitting_nodata(nodata_of(cube), cube.dtype))


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


# A band mean below this fraction of the root mean square is rounding noise around zero: ERGAS cannot divide by it.
ZERO_MEAN = 1e-9
# Deviations below this fraction of the mean, and variances below this fraction of the mean square, are rounding noise.
FLAT = 1e-12
BLOCK = 32
WINDOW = 11
HALO = WINDOW // 2
SIGMA = 1.5
K1, K2 = 0.01, 0.03


@dataclass(frozen=True, eq=False)
class Sums:
    """Base of dataclasses whose fields add up over windows."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True, eq=False)
class ErrorSums(Sums):
    """Sums of each band (band,) for RMSE, PSNR and ERGAS."""

    count: NDArray[np.int64]
    squared_error: Floats
    reference: Floats
    squared_reference: Floats

    @classmethod
    def of(cls, fused: Floats, reference: Floats) -> ErrorSums:
        bands = []
        # Band by band, for temporary arrays of one band.
        for fused_band, reference_band in zip(fused, reference, strict=True):
            known = np.isfinite(reference_band)
            everything = known.all()
            values = reference_band.ravel() if everything else reference_band[known]
            error = (fused_band.ravel() if everything else fused_band[known]) - values
            bands.append((values.size, error @ error, values.sum(), values @ values))
        count, squared_error, total, squared_total = np.array(bands, dtype=np.float64).T
        return cls(count.astype(np.int64), squared_error, total, squared_total)

    @property
    def compared(self) -> NDArray[np.bool_]:
        """Bands with anything to compare."""
        return self.count > 0

    @property
    def band_mse(self) -> Floats:
        return per_band_mean(self.squared_error, self.count)

    @property
    def mse(self) -> float:
        return float(self.squared_error.sum() / self.count.sum())

    def band_psnr_db(self, peak: float) -> Floats:
        """Infinite for a band without error, NaN for one with nothing to compare."""
        with np.errstate(divide="ignore"):
            return np.asarray(10 * np.log10(peak**2 / self.band_mse))

    def psnr_db(self, peak: float) -> float:
        return float(10 * np.log10(peak**2 / self.mse)) if self.mse > 0 else float("inf")

    def mean_band_psnr_db(self, peak: float) -> float:
        mean = mean_of_defined(self.band_psnr_db(peak))
        return float("inf") if np.isnan(mean) else mean

    @property
    def bands_with_mean(self) -> NDArray[np.bool_]:
        """Bands whose mean is not zero, so that ERGAS may divide by it."""
        mean = per_band_mean(self.reference, self.count)
        return np.abs(mean) > ZERO_MEAN * np.sqrt(per_band_mean(self.squared_reference, self.count))

    def ergas(self, scale: float) -> float:
        usable = self.bands_with_mean
        if not usable.any():
            return float("nan")
        relative = self.band_mse[usable] / (self.reference[usable] / self.count[usable]) ** 2
        return float(100 / scale * np.sqrt(relative.mean()))


def spectral_angles_degrees(fused: Floats, reference: Floats) -> Floats:
    """Compute the spectral angle (y, x) over the bands that a pixel has in both images, NaN where it has none.

    Kahan's form, 2 atan2(|u - v|, |u + v|) of the unit spectra, keeps full accuracy at small angles, where arccos of
    the cosine loses half the digits. Two black pixels are alike (0 degrees); black against anything else is 90 degrees.
    """
    angles = np.empty(fused.shape[1:])
    # Row by row, for temporary arrays that stay in a processor's cache.
    for row in range(fused.shape[1]):
        u, v = fused[:, row], reference[:, row]
        missing = np.isnan(u)
        if missing.any():
            u, v = np.where(missing, 0, u), np.where(missing, 0, v)
        (u, u_length), (v, v_length) = _unit_spectra(u), _unit_spectra(v)
        u -= v
        difference = _squared_norms(u)
        angles[row] = _angles_degrees(difference, u_length + v_length)
        angles[row, missing.all(axis=0)] = np.nan
    return angles


def _angles_degrees(difference: Floats, lengths: Floats) -> Floats:
    """Of unit spectra, from |u - v|^2 and |u|^2 + |v|^2."""
    # |u + v|^2 by the parallelogram law; below zero only by rounding.
    total = np.maximum(2 * lengths - difference, 0)
    return np.asarray(np.degrees(2 * np.arctan2(np.sqrt(difference), np.sqrt(total))))


def angle_sum(fused: Floats, reference: Floats) -> tuple[float, int]:
    """Return the sum of the spectral angles in degrees and the number of pixels."""
    angles = spectral_angles_degrees(fused, reference)
    known = angles[np.isfinite(angles)]
    return float(known.sum()), known.size


def _unit_spectra(spectra: Floats) -> tuple[Floats, Floats]:
    """Spectra (band, pixel) divided by their norms, and the norms after that: 1, or 0 for a black one."""
    squared = _squared_norms(spectra)
    inverse = np.divide(1, np.sqrt(squared), out=np.zeros(squared.shape), where=squared > 0)
    return spectra * inverse, (squared > 0).astype(np.float64)


def _squared_norms(spectra: Floats) -> Floats:
    return np.asarray(np.einsum("bp,bp->p", spectra, spectra))


@dataclass(frozen=True, eq=False)
class SimilaritySums(Sums):
    """Sums of each band (band,) over Gaussian windows for SSIM and UIQI, which is SSIM without its two constants.

    Only windows that lie within the image and have no missing pixel count.
    """

    count: NDArray[np.int64]
    ssim: Floats
    uiqi: Floats

    @classmethod
    def of(cls, fused: Floats, reference: Floats, peak: float) -> SimilaritySums:
        sums = cls(np.zeros(len(fused), np.int64), np.zeros(len(fused)), np.zeros(len(fused)))
        if min(fused.shape[1:]) < WINDOW:
            return sums
        for band, (fused_band, reference_band) in enumerate(zip(fused, reference, strict=True)):
            ssim, uiqi = _similarity_maps(fused_band, reference_band, peak)
            # NaN spreads through the moments of every window that contains it.
            complete = np.isfinite(ssim)
            sums.count[band] = np.count_nonzero(complete)
            if sums.count[band] < ssim.size:
                ssim, uiqi = ssim[complete], uiqi[complete]
            sums.ssim[band], sums.uiqi[band] = ssim.sum(), uiqi.sum()
        return sums

    @property
    def band_ssim(self) -> Floats:
        return per_band_mean(self.ssim, self.count)

    @property
    def band_uiqi(self) -> Floats:
        return per_band_mean(self.uiqi, self.count)


def _similarity_maps(fused: Floats, reference: Floats, peak: float) -> tuple[Floats, Floats]:
    """SSIM and UIQI (x, y) of one band, from the moments in Gaussian windows."""
    planes = (fused, reference, fused**2 + reference**2, fused * reference)
    fused_mean, reference_mean, squares, product = (_smoothed(_smoothed(plane).T) for plane in planes)
    means = 2 * fused_mean * reference_mean
    mean_squares = fused_mean**2 + reference_mean**2
    covariances = 2 * product - means
    # Rounding must not make the sum of the variances negative.
    variances = np.maximum(squares - mean_squares, 0)
    c1, c2 = (K1 * peak) ** 2, (K2 * peak) ** 2
    ssim = (means + c1) * (covariances + c2) / ((mean_squares + c1) * (variances + c2))
    uiqi = ratio_or_one(means, mean_squares, mean_squares > 0)
    uiqi *= ratio_or_one(covariances, variances, variances > FLAT * squares)
    return ssim, uiqi


def _smoothed(image: Floats) -> Floats:
    """Average over Gaussian windows along rows, without the HALO at both ends."""
    # All rows as one: half the time of scipy.ndimage. What mixes the end of one with the next is in the halo.
    flat = np.correlate(image.ravel(), gaussian_weights(), "same")
    return flat.reshape(image.shape)[:, HALO:-HALO]


def gaussian_weights() -> Floats:
    offsets = np.arange(WINDOW) - HALO
    weights = np.exp(-(offsets**2) / (2 * SIGMA**2))
    return np.asarray(weights / weights.sum())


def ratio_or_one(numerator: Floats, denominator: Floats, defined: NDArray[np.bool_]) -> Floats:
    """Divide; a factor whose denominator vanishes compares nothing with nothing and is 1."""
    ones = np.ones(np.broadcast_shapes(numerator.shape, defined.shape))
    return np.divide(numerator, denominator, out=ones, where=defined)


def whole_blocks(image: Floats, side: int) -> Iterator[Floats]:
    """Yield (band, pixel) for each block that lies within the image."""
    rows, columns = image.shape[1:]
    for y in range(0, rows - side + 1, side):
        for x in range(0, columns - side + 1, side):
            yield image[:, y : y + side, x : x + side].reshape(len(image), -1)


def q2n_sum(fused: Floats, reference: Floats, side: int = BLOCK) -> tuple[float, int]:
    """Return the sum of Q over the whole blocks without a missing value, and their number."""
    blocks = zip(whole_blocks(fused, side), whole_blocks(reference, side), strict=True)
    qualities = [_block_quality(*pair) for pair in blocks if np.isfinite(pair[0]).all()]
    return float(sum(qualities)), len(qualities)


def _block_quality(fused: Floats, reference: Floats) -> float:
    """Q of one block (band, pixel), its bands standardised by the moments of the reference, plus 1.

    Q = 2 |mean z| |mean w| / (|mean z|^2 + |mean w|^2) * 2 |cov(z, w)| / (var z + var w), with z the reference and w
    the fused image as hypercomplex numbers and cov(z, w) = mean (z - mean z)(w - mean w)*.
    """
    mean = reference.mean(axis=1, keepdims=True)
    deviation = reference.std(axis=1, ddof=1, keepdims=True)
    # A band that is flat in the reference cannot be standardised and keeps its unit.
    unit = np.where(deviation > FLAT * np.abs(mean), deviation, 1.0)
    z, w = (reference - mean) / unit + 1, (fused - mean) / unit + 1
    z_mean, w_mean = z.mean(axis=1), w.mean(axis=1)
    mean_squares = float(z_mean @ z_mean + w_mean @ w_mean)
    brightness = 2 * float(np.linalg.norm(z_mean) * np.linalg.norm(w_mean)) / mean_squares
    z_rest, w_rest = z - z_mean[:, None], w - w_mean[:, None]
    variances = float(np.square(z_rest).sum() + np.square(w_rest).sum())
    if variances <= FLAT * mean_squares * z.shape[1]:
        return brightness
    return brightness * 2 * float(np.linalg.norm(hypercomplex_product_sum(z_rest, w_rest))) / variances


def hypercomplex_product_sum(z: Floats, w: Floats) -> Floats:
    """Sum z w* over pixels, component by component; z and w are (component, pixel).

    Units multiply as e_i e_j = +-e_(i xor j) and the product is bilinear, so the matrix of band products and a table
    of signs replace the products of every pixel.
    """
    components = len(z)
    size = 1 << (components - 1).bit_length()
    signed = (sign_table(size) * _conjugate(size))[:components, :components] * (z @ w.T)
    unit = np.arange(components)
    product = np.bincount((unit[:, None] ^ unit).ravel(), weights=signed.ravel(), minlength=size)
    return product.astype(np.float64, copy=False)


@lru_cache(maxsize=16)
def sign_table(size: int) -> NDArray[np.int8]:
    """Signs of e_i e_j in the Cayley-Dickson algebra, by doubling: (a, b)(c, d) = (ac - d* b, da + b c*)."""
    if size == 1:
        return np.ones((1, 1), np.int8)
    half = sign_table(size // 2)
    conjugate = _conjugate(size // 2)
    return np.block([[half, half.T], [half * conjugate, -half.T * conjugate]])


def _conjugate(size: int) -> NDArray[np.int8]:
    """Signs of the components of a conjugate number."""
    signs = np.full(size, -1, np.int8)
    signs[0] = 1
    return signs


@dataclass(frozen=True, eq=False)
class WindowSums(Sums):
    """Everything but Q2n, of one window of two cubes."""

    errors: ErrorSums
    similarity: SimilaritySums
    angle_degrees: float
    pixels: int
    reference_values: int  # of the reference, whether or not the fused image has them

    @classmethod
    def of(cls, comparison: Comparison, rows: slice, columns: slice) -> WindowSums:
        height, width = comparison.reference.shape[1:]
        # Only SSIM and UIQI need the halo: their windows extend beyond the centres, which lie in the core.
        wide_rows, core_rows = _with_halo(rows, height)
        wide_columns, core_columns = _with_halo(columns, width)
        core = (slice(None), core_rows, core_columns)
        stored = comparison.stored_pair(wide_rows, wide_columns)
        if stored is not None:
            constants = (K1 * comparison.peak) ** 2, (K2 * comparison.peak) ** 2, FLAT
            found = band_sums(stored, core[1:], gaussian_weights(), constants)
            own_errors = ErrorSums(found.count, found.squared_error, found.reference, found.squared_reference)
            own_similarity = SimilaritySums(found.windows, found.ssim, found.uiqi)
            angles = _angles_degrees(*angle_parts(stored, core[1:]))
            known = angles[np.isfinite(angles)]
            return cls(own_errors, own_similarity, float(known.sum()), known.size, int(found.reference_count.sum()))
        fused, reference = comparison.read_pair(wide_rows, wide_columns, comparison.bands)
        reference_values = int(np.count_nonzero(np.isfinite(reference[core])))
        mask_incomparable(fused, reference)
        errors = ErrorSums.of(fused[core], reference[core])
        similarity = SimilaritySums.of(fused, reference, comparison.peak)
        return cls(errors, similarity, *angle_sum(fused[core], reference[core]), reference_values)


def _with_halo(window: slice, size: int) -> tuple[slice, slice]:
    """Return the window with its halo, clipped to the image, and the window within that."""
    start, stop = max(window.start - HALO, 0), min(window.stop + HALO, size)
    return slice(start, stop), slice(window.start - start, window.stop - start)
