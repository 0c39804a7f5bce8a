"""Wald's protocol: degrade a reference into the coarse HSI and the fine MSI that two sensors would have recorded of it.

Processing is in physical values. The HSI is the reference under a Gaussian PSF, sampled at coarse pixel centres; the
MSI is it under an SRF. Both grids share the upper left corner, and their pixel sizes have exactly the requested ratio.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from scipy import sparse

from hyperfuse.config import InputConfig, SimulateConfig, takes_options
from hyperfuse.errors import CubeFileError, CubeWriteError, OptionError, ValueRangeError
from hyperfuse.io.allocator import freed_memory_kept
from hyperfuse.io.atomic import published
from hyperfuse.io.cube import as_cube, iterate_windows, make_cube, physical_values, window_of
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.io.wavelengths import supplied
from hyperfuse.physics.observation import psf_taps, sigma_from_fwhm
from hyperfuse.physics.resample import Crop, exact_scale, largest_crop
from hyperfuse.physics.srf import SRF, SRFSpec, srf_for
from hyperfuse.progress import progress

FloatArray = NDArray[np.float64]

# Outside these limits a pair shows edges, blur or noise and no scene.
NARROWEST_FWHM = 0.01
SMALLEST_DB, LARGEST_DB = -20.0, 300.0
# Streams of the seed: noise on one image does not change the noise on the other.
HSI_NOISE, MSI_NOISE = 0, 1
WINDOW_BYTES = 32 * 2**20
BLOCK = 128
# A coarse pixel that sees more than this share of missing fine pixels is missing itself; below it, the rest stand in.
TOLERATED_MISSING = 0.01
OUTPUTS = ("hsi.tif", "msi.tif", "reference.tif", "observation.json")


def _as_lists(value: Any) -> Any:
    """An array as lists, in which None stands for NaN."""
    return np.where(np.isnan(value), np.array(None), value).tolist() if isinstance(value, np.ndarray) else value


Column = Annotated[tuple[float | None, ...] | None, BeforeValidator(_as_lists)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SRFRecord(_Record):
    """An `SRF` as plain numbers."""

    source: str
    names: tuple[str, ...]
    weights: Annotated[tuple[tuple[float, ...], ...], BeforeValidator(_as_lists)]
    wavelength_nm: Column = None
    fwhm_nm: Column = None
    uncovered: tuple[str, ...] = ()

    def as_srf(self) -> SRF:
        # None, where a wavelength is unknown, becomes NaN.
        wavelength, fwhm = (
            None if column is None else np.array(column, dtype=np.float64)
            for column in (self.wavelength_nm, self.fwhm_nm)
        )
        return SRF(self.names, np.array(self.weights), wavelength, fwhm, self.source, self.uncovered)


class SimulationRecord(_Record):
    """Parameters of a simulated pair. Lengths are in fine pixels, sizes (rows, columns), shifts (down, right)."""

    kind: Literal["hyperfuse observation 1"] = "hyperfuse observation 1"
    hyperfuse_version: str
    reference: str | None  # name of the reference file, where it was one
    scale_given: str
    scale_fraction: tuple[int, int]
    psf_fwhm: float
    psf_sigma: float
    shift: tuple[float, float]
    srf: SRFRecord = Field(validation_alias=AliasChoices("srf", "response"))
    skip_uncovered: bool
    snr_hsi_db: float | None
    snr_msi_db: float | None
    noise_sigma_hsi: tuple[float, ...] | None  # per band, in physical values; None without noise
    noise_sigma_msi: tuple[float, ...] | None
    seed: int
    reference_size: tuple[int, int]
    fine_size: tuple[int, int]  # the upper left part of the reference that was used
    coarse_size: tuple[int, int]

    @model_validator(mode="after")
    def _check_sizes(self) -> SimulationRecord:
        p, q = self.scale_fraction
        sizes = zip(self.fine_size, self.coarse_size, strict=True)
        if p < 1 or q < 1 or any(fine * q != coarse * p for fine, coarse in sizes):
            raise ValueError(f"sizes {self.fine_size} and {self.coarse_size} do not have the scale {p}/{q}")
        return self

    @property
    def scale(self) -> float:
        return self.scale_fraction[0] / self.scale_fraction[1]

    def simulation_arguments(self) -> dict[str, Any]:
        """Keyword arguments with which `simulate` makes the same pair again from the same reference."""
        names = ("psf_fwhm", "shift", "snr_hsi_db", "snr_msi_db", "seed")
        scale = Fraction(*self.scale_fraction)
        return {"scale": scale, "srf": self.srf.as_srf()} | {name: getattr(self, name) for name in names}


def write_simulation_record(record: SimulationRecord, path: Path) -> None:
    """Write an observation.json."""
    path.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_simulation_record(path: str | Path) -> SimulationRecord:
    """Read the observation.json of a simulated pair."""
    try:
        return SimulationRecord.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise CubeFileError(f"{path}: {error.strerror or error}", "the observation.json of a simulated pair") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        expected = "an observation.json as `hyperfuse simulate` writes it"
        raise CubeFileError(f"{path}: {place}: {first['msg']}", expected) from error


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated pair and its reference. HSI and MSI are float32 physical values, NaN where there is no data."""

    hsi: xr.DataArray
    msi: xr.DataArray
    reference: xr.DataArray  # the part of the reference that was used, as stored
    record: SimulationRecord

    def __repr__(self) -> str:
        sizes = (f"{name} {'x'.join(map(str, getattr(self, name).shape))}" for name in ("hsi", "msi", "reference"))
        record = self.record
        return f"Simulation({', '.join(sizes)}; scale {record.scale_given}, PSF FWHM {record.psf_fwhm:g} fine pixels)"


@takes_options(SimulateConfig)
def simulate(
    reference: xr.DataArray | NDArray[Any],
    scale: float | str | Fraction,
    srf: SRFSpec,
    config: SimulateConfig | None = None,
) -> Simulation:
    """Simulate a coarse HSI and a fine MSI from a fine hyperspectral image [1]_.

    Parameters
    ----------
    reference
        A cube in memory or lazy (read once, window by window), or an array (bands, rows, columns).
    scale
        Fine pixels per coarse pixel: 4, 3.2 or "10/3". The reference is cropped to whole coarse pixels, with a warning.
    srf
        How the MSI sees the spectrum: a sensor ("Sentinel-2A:B2,B3,B4"), a set of Gaussian bands ("rgb+nir"), a file, a
        matrix or an `SRF`; see `hyperfuse.find_srf`.
    config
        PSF width, shift, noise and its seed. Each may also be given as a keyword: ``psf_fwhm`` (fine pixels; by default
        the scale), ``shift`` (down, right in fine pixels: of the HSI against its georeference),
        ``snr_hsi_db`` and ``snr_msi_db`` (white Gaussian noise in each band), ``seed``, and ``skip_uncovered`` (drop
        bands of the SRF that the reference does not cover, instead of raising an error).

    Returns
    -------
    Simulation
        `hsi`, `msi`, the `reference` that was used, and the `record` of all parameters.

    References
    ----------
    .. [1] L. Wald, T. Ranchin, M. Mangolini, "Fusion of satellite images of different spatial resolutions: assessing
       the quality of resulting images", Photogrammetric Engineering & Remote Sensing 63(6), 1997.

    Examples
    --------
    >>> import hyperfuse
    >>> fine = np.random.default_rng(0).uniform(0, 1, (31, 24, 32))
    >>> cube = hyperfuse.make_cube(fine, wavelength_nm=np.linspace(400, 1000, 31))
    >>> pair = hyperfuse.simulate(cube, scale=4, srf="rgb+nir", snr_hsi_db=35)
    >>> pair.hsi.shape, pair.msi.shape
    ((31, 6, 8), (4, 24, 32))
    """
    config = config or SimulateConfig()
    cube = supplied(as_cube(reference), config.wavelengths, config.nodata_in)
    if cube.dtype.kind not in "iufb":
        raise ValueRangeError(f"reference of data type {cube.dtype}", "integers or real numbers")
    exact = exact_scale(scale)
    fwhm = float(exact) if config.psf_fwhm is None else config.psf_fwhm
    for image, snr_db in (("HSI", config.snr_hsi_db), ("MSI", config.snr_msi_db)):
        if snr_db is not None:
            require_signal_to_noise(snr_db, image)
    band_srf = srf_for(cube, srf, skip_uncovered=config.skip_uncovered)
    size = (cube.sizes["y"], cube.sizes["x"])
    crop = largest_crop(size, exact)
    height, width = crop.fine_size
    if crop.fine_size != size:
        warnings.warn(
            f"reference cropped from {size[0]}x{size[1]} to {height}x{width} (rows x columns, upper left kept), "
            f"the largest size that makes whole coarse pixels at {exact.numerator} fine to {exact.denominator} coarse",
            stacklevel=2,
        )
    used = window_of(cube, slice(0, height), slice(0, width))
    if not NARROWEST_FWHM <= fwhm <= max(crop.fine_size):
        expected = f"a width in fine pixels from {NARROWEST_FWHM:g} to the scene's {max(crop.fine_size)}"
        raise OptionError(f"PSF of FWHM {fwhm:g}", expected, "leave it out for one coarse pixel")
    require_shift(config.shift, crop.fine_size)
    sigma = sigma_from_fwhm(fwhm)
    hsi, msi = observe(used, crop, float(exact), sigma, config.shift, band_srf.weights)
    for name, values in (("HSI", hsi), ("MSI", msi)):
        if not any(np.isfinite(band).any() for band in values):
            got = f"the simulated {name} has no pixel with data"
            raise ValueRangeError(got, "a reference that is not nearly all nodata")
    record = SimulationRecord(
        hyperfuse_version=version("hyperfuse"),
        reference=None,
        scale_given=str(scale),
        scale_fraction=(exact.numerator, exact.denominator),
        psf_sigma=sigma,
        srf=SRFRecord.model_validate(band_srf, from_attributes=True),
        noise_sigma_hsi=_add_noise(hsi, config.snr_hsi_db, config.seed, HSI_NOISE),
        noise_sigma_msi=_add_noise(msi, config.snr_msi_db, config.seed, MSI_NOISE),
        reference_size=size,
        fine_size=crop.fine_size,
        coarse_size=crop.coarse_size,
        **config.model_copy(update={"psf_fwhm": fwhm}).model_dump(exclude=set(InputConfig.model_fields)),
    )
    grid = grid_of(used)
    on_grid = partial(make_cube, nodata=np.nan, crs=grid.crs)
    coarse = _coarse_transform(grid.transform, exact)
    centres, widths, good = (used[name].values for name in ("wavelength", "fwhm", "good"))
    names = [str(name) for name in used["band_name"].values]
    hsi_cube = on_grid(hsi, wavelength_nm=centres, fwhm_nm=widths, good=good, band_names=names, transform=coarse)
    msi_centres, msi_widths, msi_names = band_srf.wavelength_nm, band_srf.fwhm_nm, band_srf.names
    msi_cube = on_grid(
        msi, wavelength_nm=msi_centres, fwhm_nm=msi_widths, band_names=msi_names, transform=grid.transform
    )
    return Simulation(hsi_cube, msi_cube, used, record)


def observe(
    reference: xr.DataArray, crop: Crop, scale: float, sigma: float, shift: tuple[float, float], srf: FloatArray
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Apply PSF and SRF (M, C) to a cube (C, H, W): hsi (C, h, w) and msi (M, H, W), NaN where there is no data."""
    bands = reference.sizes["band"]
    hsi, missing = np.zeros((bands, *crop.coarse_size)), None
    msi = np.empty((srf.shape[0], *crop.fine_size), dtype=np.float32)
    axes = []
    for fine, coarse, move in zip(crop.fine_size, crop.coarse_size, shift, strict=True):
        indices, weights = psf_taps(fine, coarse, scale, sigma, move)
        pixels = np.repeat(np.arange(coarse), indices.shape[1])
        axes.append(sparse.csr_array((weights.ravel(), (pixels, indices.ravel())), shape=(coarse, fine)))
    windows = list(iterate_windows(reference, WINDOW_BYTES))
    with freed_memory_kept(), progress("Simulating", len(windows)) as advance:
        for rows, columns in windows:
            window = physical_values(reference, rows, columns, dtype=np.float64)
            gaps = np.isnan(window)
            window[gaps] = 0.0
            _add_blurred(window, (rows, columns), axes, hsi)
            msi[:, rows, columns] = np.tensordot(srf, window, axes=1)
            if gaps.any():
                missing = np.zeros_like(hsi) if missing is None else missing
                _add_blurred(gaps.astype(np.float64), (rows, columns), axes, missing)
                for band, weights in zip(msi[:, rows, columns], srf, strict=True):
                    band[gaps[weights != 0].any(axis=0)] = np.nan
            advance(1)
    if missing is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            hsi /= 1 - missing
        hsi[missing > TOLERATED_MISSING] = np.nan
    return hsi.astype(np.float32), msi


def _add_blurred(
    window: FloatArray, place: tuple[slice, slice], axes: Sequence[sparse.csr_array], total: FloatArray
) -> None:
    """Add what a window (C, r, c) at this place contributes to the coarse image (C, h, w)."""
    # Dense products of narrow blocks run at the speed of BLAS, several times faster than a sparse product.
    for offset in range(0, window.shape[1], BLOCK):
        block = window[:, offset : offset + BLOCK]
        rows, weights = _dense_part(axes[0], place[0].start + offset, block.shape[1])
        along_y = weights @ block
        for start in range(0, window.shape[2], BLOCK):
            part = along_y[:, :, start : start + BLOCK]
            columns, weights = _dense_part(axes[1], place[1].start + start, part.shape[2])
            total[:, rows, columns] += part @ weights.T


def _dense_part(weights: sparse.csr_array, start: int, count: int) -> tuple[slice, FloatArray]:
    """The coarse pixels that see some of these fine pixels, and their weights."""
    part = weights[:, start : start + count]
    seeing = np.flatnonzero(np.diff(part.indptr))
    coarse = slice(int(seeing[0]), int(seeing[-1]) + 1) if seeing.size else slice(0, 0)
    return coarse, part[coarse].toarray()


def require_signal_to_noise(decibels: float, image: str) -> None:
    """Refuse noise more than ten times as strong as the signal, or weaker than any number format resolves."""
    if not SMALLEST_DB <= decibels <= LARGEST_DB:
        got, expected = f"signal-to-noise ratio of the {image} {decibels:g} dB", f"{SMALLEST_DB:g} to {LARGEST_DB:g} dB"
        raise OptionError(got, f"{expected}, such as 30", "leave it out for no noise")


def require_shift(shift: tuple[float, float], size: tuple[int, int]) -> None:
    """Refuse shifts by more than half of the scene (rows, columns): the HSI would see little but repeated edges."""
    if not all(abs(length) <= side / 2 for length, side in zip(shift, size, strict=True)):
        got = f"shift {shift[0]:g} {shift[1]:g} on a scene of {size[0]}x{size[1]} pixels"
        expected = f"at most half of the scene: {size[0] / 2:g} down or up, {size[1] / 2:g} right or left"
        raise OptionError(got, expected, "shifts are in fine pixels")


def _add_noise(image: NDArray[np.float32], snr_db: float | None, seed: int, stream: int) -> tuple[float, ...] | None:
    """Add white Gaussian noise in place and return its sigmas: sqrt(mean square of valid pixels / 10^(snr/10))."""
    if snr_db is None:
        return None
    generator, sigmas = np.random.default_rng([seed, stream]), []
    for band in image:
        valid = band[np.isfinite(band)].astype(np.float64)
        sigmas.append(float(np.sqrt(np.mean(valid**2) / 10 ** (snr_db / 10))) if valid.size else 0.0)
        band += (sigmas[-1] * generator.standard_normal(band.shape)).astype(np.float32)
    return tuple(sigmas)


def _coarse_transform(fine: Affine | None, scale: Fraction) -> Affine | None:
    """The same upper left corner, pixels p/q times as large."""
    if fine is None:
        return None
    # Multiplied first, so that whole numbers stay whole.
    a, b, d, e = (length * scale.numerator / scale.denominator for length in (fine.a, fine.b, fine.d, fine.e))
    return Affine(a, b, fine.c, d, e, fine.f)


def simulate_files(
    reference_path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    scale: float | str | Fraction,
    srf: SRFSpec,
    config: SimulateConfig | None = None,
    *,
    variable: str | None = None,
    band_axis: int | None = None,
    overwrite: bool = False,
) -> SimulationRecord:
    """Simulate a pair from a file and write the four `OUTPUTS` into `out_dir`, all or none.

    Other files in `out_dir` are left alone; files of the same names stay until every new one is ready.
    """
    folder = Path(out_dir)
    *cubes, record_path = (folder / name for name in OUTPUTS)
    with _new_folder(folder), published(record_path, overwrite=overwrite, beside=cubes, stale=cubes) as target:
        pair = simulate(open_cube(reference_path, variable, band_axis), scale, srf, config=config)
        record = pair.record.model_copy(update={"reference": Path(reference_path).name})
        try:
            for name, cube in zip(OUTPUTS, (pair.hsi, pair.msi, pair.reference), strict=False):
                write_cube(cube, target.parent / name)
        except CubeWriteError as error:
            # Errors name the folder that the caller knows.
            raise CubeWriteError(str(error).replace(str(target.parent), str(folder))) from error
        write_simulation_record(record, target)
    return record


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create a folder where there is none, and remove it again on failure."""
    if folder.is_dir():
        yield
        return
    try:
        folder.mkdir()
    except OSError as error:
        got = f"cannot create the folder {folder}: {error.strerror}"
        raise CubeWriteError(got, remedy="choose a new name in an existing folder") from error
    try:
        yield
    except BaseException:
        folder.rmdir()
        raise
