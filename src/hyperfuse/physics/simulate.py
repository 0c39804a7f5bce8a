"""Wald's protocol: degrade a reference into the coarse HSI and the fine MSI that two sensors would have recorded of it.

Processing is in physical values. The HSI is the reference under a Gaussian point spread, sampled at coarse pixel
centres; the MSI is it under a spectral response. Both grids share the upper left corner, and their pixel sizes have
exactly the ratio asked for.

What a simulation can be asked for. Beyond these limits a pair can be made, too, but shows edges, blur or noise and no
scene.

The record of how a pair was observed: everything needed to simulate it again or to build its operators.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from hyperfuse.errors import CubeFileError, OptionError, ValueRangeError
from hyperfuse.io.cube import as_cube, make_cube, window_of
from hyperfuse.io.grid import grid_of
from hyperfuse.physics.noise import add_noise, noise_sigmas
from hyperfuse.physics.operators import axis_taps, observe, sigma_from_fwhm
from hyperfuse.physics.resample import Crop, exact_scale, largest_crop
from hyperfuse.physics.srf import SRF, SRFSpec, srf_for

NARROWEST_FWHM = 0.01
SMALLEST_DB, LARGEST_DB = -20.0, 300.0


def require_signal_to_noise(decibels: float, image: str) -> None:
    """From noise ten times as strong as the signal to less than any number format holds."""
    if not SMALLEST_DB <= decibels <= LARGEST_DB:
        raise OptionError(
            f"signal-to-noise ratio of the {image} {decibels:g} dB",
            f"{SMALLEST_DB:g} to {LARGEST_DB:g} dB, such as 30",
            "leave it out for no noise",
        )


def require_shift(shift: tuple[float, float], size: tuple[int, int]) -> None:
    """Outside of the scene (rows, columns) its edge is repeated; by more than half of it the HSI would see little else."""
    if not all(abs(length) <= side / 2 for length, side in zip(shift, size, strict=True)):
        raise OptionError(
            f"shift {shift[0]:g} {shift[1]:g} on a scene of {size[0]}x{size[1]} pixels",
            f"at most half of the scene: {size[0] / 2:g} down or up, {size[1] / 2:g} right or left",
            "shifts are in fine pixels",
        )


def require_psf(fwhm: float, size: tuple[int, int]) -> None:
    if not NARROWEST_FWHM <= fwhm <= max(size):
        raise OptionError(
            f"point spread of FWHM {fwhm:g}",
            f"a width in fine pixels from {NARROWEST_FWHM:g} to the scene's {max(size)}",
            "leave it out for one coarse pixel",
        )


def require_seed(seed: int) -> None:
    if seed < 0:
        raise OptionError(f"seed {seed}", "a whole number of 0 or more")


OptionalColumn = tuple[float | None, ...] | None


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SRFRecord(_Record):
    source: str
    names: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    wavelength_nm: OptionalColumn = None
    fwhm_nm: OptionalColumn = None
    uncovered: tuple[str, ...] = ()

    @classmethod
    def of(cls, srf: SRF) -> SRFRecord:
        return cls(
            source=srf.source,
            names=srf.names,
            weights=tuple(tuple(map(float, row)) for row in srf.weights),
            wavelength_nm=_without_nan(srf.wavelength_nm),
            fwhm_nm=_without_nan(srf.fwhm_nm),
            uncovered=srf.uncovered,
        )


class SimulationRecord(_Record):
    """How a simulated pair came about. Lengths are in fine pixels, sizes (rows, columns), shifts (down, right)."""

    kind: Literal["hyperfuse observation 1"] = "hyperfuse observation 1"
    hyperfuse_version: str
    reference: str | None
    """Name of the reference file, where it was one."""
    scale_given: str
    scale_fraction: tuple[int, int]
    psf_fwhm: float
    psf_sigma: float
    shift: tuple[float, float]
    srf: SRFRecord
    skip_uncovered: bool
    snr_hsi_db: float | None
    snr_msi_db: float | None
    noise_sigma_hsi: tuple[float, ...] | None
    """Per band, in physical values; None without noise."""
    noise_sigma_msi: tuple[float, ...] | None
    seed: int
    reference_size: tuple[int, int]
    fine_size: tuple[int, int]
    """The upper left part of the reference that was used: rows and columns from 0."""
    coarse_size: tuple[int, int]

    @model_validator(mode="after")
    def _sizes_agree(self) -> SimulationRecord:
        p, q = self.scale_fraction
        if (
            p < 1
            or q < 1
            or any(fine * q != coarse * p for fine, coarse in zip(self.fine_size, self.coarse_size, strict=True))
        ):
            raise ValueError(f"sizes {self.fine_size} and {self.coarse_size} do not have the scale {p}/{q}")
        return self

    @property
    def scale(self) -> float:
        return self.scale_fraction[0] / self.scale_fraction[1]

    def axis_arguments(self, axis: int) -> tuple[int, int, float, float, float]:
        """The arguments of `point_spread_taps` and `point_spread_matrix` along y (0) or x (1)."""
        return self.fine_size[axis], self.coarse_size[axis], self.scale, self.psf_sigma, self.shift[axis]

    def find_srf(self) -> SRF:
        """The response as it was used, ready to be given to `simulate_pair` or to a method."""
        record = self.srf
        weights = np.array(record.weights, dtype=np.float64)
        columns = (_with_nan(record.wavelength_nm), _with_nan(record.fwhm_nm))
        return SRF(record.names, weights, *columns, record.source, record.uncovered)

    def simulation_arguments(self) -> dict[str, Any]:
        """Keyword arguments with which `simulate_pair` makes the same pair again from the same reference."""
        return {
            "scale": Fraction(*self.scale_fraction),
            "response": self.find_srf(),
            "psf_fwhm": self.psf_fwhm,
            "shift": self.shift,
            "snr_hsi_db": self.snr_hsi_db,
            "snr_msi_db": self.snr_msi_db,
            "seed": self.seed,
        }


def current_version() -> str:
    return version("hyperfuse")


def write_simulation_record(record: SimulationRecord, path: Path) -> None:
    path.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_simulation_record(path: str | Path) -> SimulationRecord:
    path = Path(path)
    try:
        return SimulationRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CubeFileError(f"{path}: {error.strerror or error}", "the observation.json of a simulated pair") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise CubeFileError(
            f"{path}: {place}: {first['msg']}", "an observation.json as `hyperfuse simulate` writes it"
        ) from error


def _without_nan(column: NDArray[np.float64] | None) -> OptionalColumn:
    return None if column is None else tuple(None if np.isnan(value) else float(value) for value in column)


def _with_nan(column: OptionalColumn) -> NDArray[np.float64] | None:
    return None if column is None else np.array([np.nan if value is None else value for value in column])


# Streams of the seed.
HSI_NOISE, MSI_NOISE = 0, 1


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated pair with the reference it comes from. HSI and MSI are float32 physical values, NaN where there is no
    data.
    """

    hsi: xr.DataArray
    msi: xr.DataArray
    reference: xr.DataArray
    """The part of the reference that was used, as stored."""
    record: SimulationRecord


def simulate(
    reference: xr.DataArray | NDArray[Any],
    scale: float | str | Fraction,
    srf: SRFSpec,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] = (0.0, 0.0),
    snr_hsi_db: float | None = None,
    snr_msi_db: float | None = None,
    seed: int = 0,
    skip_uncovered: bool = False,
) -> Simulation:
    """Simulate a pair from a cube, in memory or lazy. `psf_fwhm` (default: the scale) and `shift` (down, right): fine
    pixels.
    """
    cube = _require_numbers(as_cube(reference))
    exact = exact_scale(scale)
    fwhm = float(exact) if psf_fwhm is None else float(psf_fwhm)
    _require_noise(snr_hsi_db, snr_msi_db, seed)
    found = srf_for(cube, srf, skip_uncovered=skip_uncovered)
    crop, used = _cropped(cube, exact)
    require_psf(fwhm, crop.fine_size)
    require_shift(shift, crop.fine_size)
    sigma = sigma_from_fwhm(fwhm)
    rows, columns = (
        axis_taps(crop.fine_size[i], crop.coarse_size[i], float(exact), sigma, float(shift[i])) for i in (0, 1)
    )
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
        srf=SRFRecord.of(found),
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


def _msi_cube(values: NDArray[np.float32], reference: xr.DataArray, srf: SRF) -> xr.DataArray:
    grid = grid_of(reference)
    return make_cube(
        values,
        wavelength_nm=srf.wavelength_nm,
        fwhm_nm=srf.fwhm_nm,
        band_names=srf.names,
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
            raise ValueRangeError(
                f"the simulated {name} has no pixel with data", "a reference that is not nearly all nodata"
            )
