"""Wald's protocol: degrade a reference into the coarse HSI and the fine MSI that two sensors would have recorded of it.

Processing is in physical values. The HSI is the reference under a Gaussian point spread, sampled at coarse pixel centres; the MSI
is it under a spectral response. Both grids share the upper left corner, and their pixel sizes have exactly the ratio asked for.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.cubes.cube import as_cube, make_cube, window_of
from hyperfuse.cubes.grid import grid_of
from hyperfuse.degradation.exact_scale import Crop, exact_scale, largest_crop
from hyperfuse.degradation.noise import add_noise, noise_sigmas
from hyperfuse.degradation.point_spread import sigma_from_fwhm
from hyperfuse.degradation.response import Response, ResponseSpec, response_for
from hyperfuse.degradation.simulation_limits import (
    require_point_spread,
    require_seed,
    require_shift,
    require_signal_to_noise,
)
from hyperfuse.degradation.simulation_record import ResponseRecord, SimulationRecord, current_version
from hyperfuse.degradation.streaming_blur import axis_taps, observe
from hyperfuse.errors import ValueRangeError

# Streams of the seed.
HSI_NOISE, MSI_NOISE = 0, 1


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated pair with the reference it comes from. HSI and MSI are float32 physical values, NaN where there is no data."""

    hsi: xr.DataArray
    msi: xr.DataArray
    reference: xr.DataArray
    """The part of the reference that was used, as stored."""
    record: SimulationRecord


def simulate_pair(
    reference: xr.DataArray | NDArray[Any],
    scale: float | str | Fraction,
    response: ResponseSpec,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] = (0.0, 0.0),
    snr_hsi_db: float | None = None,
    snr_msi_db: float | None = None,
    seed: int = 0,
    skip_uncovered: bool = False,
) -> Simulation:
    """Simulate a pair from a cube, in memory or lazy. `psf_fwhm` (default: the scale) and `shift` (down, right): fine pixels."""
    cube = _require_numbers(as_cube(reference))
    exact = exact_scale(scale)
    fwhm = float(exact) if psf_fwhm is None else float(psf_fwhm)
    _require_noise(snr_hsi_db, snr_msi_db, seed)
    found = response_for(cube, response, skip_uncovered=skip_uncovered)
    crop, used = _cropped(cube, exact)
    require_point_spread(fwhm, crop.fine_size)
    require_shift(shift, crop.fine_size)
    sigma = sigma_from_fwhm(fwhm)
    rows, columns = (axis_taps(crop.fine_size[i], crop.coarse_size[i], float(exact), sigma, float(shift[i])) for i in (0, 1))
    hsi, msi = observe(used, crop, rows, columns, found.weights)
    _require_some_data(hsi, msi)
    record = SimulationRecord(
        hyperfuse_version=current_version(),
        reference=None,
        scale_given=str(scale),
        scale_fraction=(exact.numerator, exact.denominator),
        psf_fwhm=fwhm,
        psf_sigma=sigma,
        shift=(float(shift[0]), float(shift[1])),
        response=ResponseRecord.of(found),
        skip_uncovered=skip_uncovered,
        snr_hsi_db=snr_hsi_db,
        snr_msi_db=snr_msi_db,
        noise_sigma_hsi=_make_noisy(hsi, snr_hsi_db, seed, HSI_NOISE),
        noise_sigma_msi=_make_noisy(msi, snr_msi_db, seed, MSI_NOISE),
        seed=seed,
        reference_size=(cube.sizes["y"], cube.sizes["x"]),
        fine_size=crop.fine_size,
        coarse_size=crop.coarse_size,
    )
    return Simulation(_hsi_cube(hsi, used, exact), _msi_cube(msi, used, found), used, record)


def _cropped(cube: xr.DataArray, scale: Fraction) -> tuple[Crop, xr.DataArray]:
    """The part of a reference on which both grids have whole pixels; says so where that is not all of it."""
    size = (cube.sizes["y"], cube.sizes["x"])
    crop = largest_crop(size, scale)
    height, width = crop.fine_size
    if crop.fine_size != size:
        warnings.warn(
            f"reference cropped from {size[0]}x{size[1]} to {height}x{width} (rows x columns, upper left kept), "
            f"the largest size that makes whole coarse pixels at {scale.numerator} fine to {scale.denominator} coarse",
            stacklevel=3,
        )
    return crop, window_of(cube, slice(0, height), slice(0, width))


def _hsi_cube(values: NDArray[np.float32], reference: xr.DataArray, scale: Fraction) -> xr.DataArray:
    grid = grid_of(reference)
    return make_cube(
        values,
        wavelength_nm=reference["wavelength"].values,
        fwhm_nm=reference["fwhm"].values,
        good=reference["good"].values,
        band_names=[str(name) for name in reference["band_name"].values],
        nodata=np.nan,
        crs=grid.crs,
        transform=None if grid.transform is None else coarse_transform(grid.transform, scale),
    )


def _msi_cube(values: NDArray[np.float32], reference: xr.DataArray, response: Response) -> xr.DataArray:
    grid = grid_of(reference)
    return make_cube(
        values,
        wavelength_nm=response.wavelength_nm,
        fwhm_nm=response.fwhm_nm,
        band_names=response.names,
        nodata=np.nan,
        crs=grid.crs,
        transform=grid.transform,
    )


def coarse_transform(fine: Affine, scale: Fraction) -> Affine:
    """The same upper left corner, pixels p/q times as large; multiplied first, so that whole numbers stay whole."""
    a, b, d, e = (length * scale.numerator / scale.denominator for length in (fine.a, fine.b, fine.d, fine.e))
    return Affine(a, b, fine.c, d, e, fine.f)


def _make_noisy(image: NDArray[np.float32], snr_db: float | None, seed: int, stream: int) -> tuple[float, ...] | None:
    if snr_db is None:
        return None
    sigmas = noise_sigmas(image, snr_db)
    add_noise(image, sigmas, seed, stream)
    return tuple(map(float, sigmas))


def _require_numbers(cube: xr.DataArray) -> xr.DataArray:
    if cube.dtype.kind not in "iufb":
        raise ValueRangeError(f"reference of data type {cube.dtype}", "integers or real numbers")
    return cube


def _require_noise(snr_hsi_db: float | None, snr_msi_db: float | None, seed: int) -> None:
    for image, decibels in (("HSI", snr_hsi_db), ("MSI", snr_msi_db)):
        if decibels is not None:
            require_signal_to_noise(decibels, image)
    require_seed(seed)


def _require_some_data(hsi: NDArray[np.float32], msi: NDArray[np.float32]) -> None:
    for name, image in (("HSI", hsi), ("MSI", msi)):
        if not any(np.isfinite(band).any() for band in image):
            raise ValueRangeError(f"the simulated {name} has no pixel with data", "a reference that is not nearly all nodata")
