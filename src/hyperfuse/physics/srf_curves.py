"""Spectral response curves: real sensors by name (tables of pyrsr), Gaussian bands, and user-supplied files.

A file holds curves over wavelength (text with a header) or a finished matrix (text without header, .npy, .npz, .mat).
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.cube import reading
from hyperfuse.io.files import FORMATS
from hyperfuse.io.products.product import SENSOR_BANDS
from hyperfuse.physics.observation import sigma_from_fwhm

FloatArray = NDArray[np.float64]

# Centre and full width at half maximum, nm.
GAUSSIAN_BANDS = {
    "red": (665.0, 60.0),
    "green": (560.0, 70.0),
    "blue": (480.0, 65.0),
    "nir": (835.0, 100.0),
    "swir1": (1610.0, 90.0),
    "swir2": (2200.0, 180.0),
}
GAUSSIAN_SETS = {
    "rgb": ("red", "green", "blue"),
    "rgb+nir": ("red", "green", "blue", "nir"),
    "rgb+nir+swir": ("red", "green", "blue", "nir", "swir1", "swir2"),
}
# At longer wavelengths the Earth's own emission dominates: such bands are left out unless chosen by name.
THERMAL_NM = 3000.0
# Aliases of satellite names.
SHORT_NAMES = {"Sentinel-": "s", "Landsat-": "l"}
# The Sentinel-2 satellites differ by a nanometre or two; without a letter or satellite, the older sensor is meant.
DEFAULT_SENSORS = {"sentinel2": "sentinel2a", "s2": "sentinel2a", "sentinel2msi": "sentinel2a", "modis": "modisterra"}
# pyrsr has no Sentinel-2C: the curves of its twin 2A are moved to the band centres of 2C (nm, ESA), where these differ.
SENTINEL_2A, SENTINEL_2C = SENSOR_BANDS["Sentinel-2A"], SENSOR_BANDS["Sentinel-2C"]
MOVED_CENTRES = {band: nm for band, (nm, _) in SENTINEL_2C.items() if nm != SENTINEL_2A[band][0]}
MOVED_SENSORS = {"Sentinel-2C": ("Sentinel-2A", MOVED_CENTRES)}
IDENTICAL_SENSORS = {f"rapideye{number}": "rapideye" for number in range(1, 6)}

TEXT_SUFFIXES = (".csv", ".txt", ".tsv", ".dat")
ARRAY_SUFFIXES = (".npy", ".npz", ".mat")
TEXT_FORM = "a header `wavelength_nm,name,...` with one row per wavelength, or a matrix of numbers without header"


@dataclass(frozen=True, eq=False)
class SRFCurve:
    """Sensitivity of one band over wavelength: linear between the samples, 0 outside them."""

    name: str
    wavelength_nm: FloatArray
    values: FloatArray

    @property
    def centre_nm(self) -> float:
        widths = np.gradient(self.wavelength_nm) if self.wavelength_nm.size > 1 else np.ones(1)
        return float(np.average(self.wavelength_nm, weights=np.clip(self.values, 0, None) * widths))

    @property
    def fwhm_nm(self) -> float:
        above = self.wavelength_nm[self.values >= self.values.max() / 2]
        return float(above.max() - above.min())


def known_srfs() -> list[str]:
    """List every name that `named_curves` takes."""
    return [*GAUSSIAN_SETS, *sorted({*_sensors(), *MOVED_SENSORS})]


def named_curves(name: str, chosen: Sequence[str] | None = None) -> list[SRFCurve]:
    """Look up the curves of a sensor or Gaussian set: the chosen bands, or all its reflective ones.

    Examples
    --------
    >>> [f"{curve.name} {curve.centre_nm:.0f}" for curve in named_curves("Sentinel-2A", ["B2", "B8A"])]
    ['B2 492', 'B8A 865']
    """
    gaussians = GAUSSIAN_SETS.get(name.lower().replace(" ", ""))
    if gaussians is not None:
        sigmas = np.linspace(-5, 5, 2001)
        curves = [
            SRFCurve(band, centre + sigma_from_fwhm(fwhm) * sigmas, np.exp(-0.5 * sigmas**2))
            for band, (centre, fwhm) in ((band, GAUSSIAN_BANDS[band]) for band in gaussians)
        ]
        return choose_curves(curves, chosen, name)
    sensor = _aliases().get(_simplified(name))
    if sensor is None:
        remedy = "pyrsr has no other sensors: give the curves of yours as a CSV file (wavelength_nm,name,...)"
        raise OptionError(f"unknown SRF {name!r}", f"{_suggestions(name)}, or a CSV file or a matrix", remedy)
    curves = choose_curves(_sensor_curves(sensor), chosen, sensor)
    return curves if chosen else [curve for curve in curves if curve.centre_nm <= THERMAL_NM]


def choose_curves(curves: Sequence[SRFCurve], chosen: Sequence[str] | None, source: str) -> list[SRFCurve]:
    """Select bands by name, in the order chosen."""
    return [curves[index] for index in choose_bands([curve.name for curve in curves], chosen, source)]


def choose_bands(names: Sequence[str], chosen: Sequence[str] | None, source: str) -> list[int]:
    """Find the indices of the chosen bands; of all bands where none are chosen."""
    if chosen is None:
        return list(range(len(names)))
    index = {_simplified_band(name): number for number, name in enumerate(names)}
    unknown = [band for band in chosen if _simplified_band(band) not in index]
    if unknown:
        raise OptionError(f"{source} has no band {', '.join(unknown)}", f"some of {', '.join(names)}")
    return [index[_simplified_band(band)] for band in dict.fromkeys(chosen)]


@cache
def _sensors() -> dict[str, Path]:
    """The sensors in pyrsr's tables: the name that we print, and the folder SATELLITE/INSTRUMENT."""
    import pyrsr

    folders = sorted(path for path in Path(pyrsr.__path__[0], "data").glob("*/*") if path.is_dir())
    satellites = [folder.parent.name for folder in folders]
    sensors = {}
    for satellite, folder in zip(satellites, folders, strict=True):
        name = satellite if satellites.count(satellite) == 1 else f"{satellite} {folder.name}"
        sensors[{"ASTER": "ASTER", "MODIS": f"MODIS-{satellite}"}.get(folder.name, name)] = folder
    return sensors


@cache
def _aliases() -> dict[str, str]:
    """Every accepted spelling, without case, blanks and punctuation. "SPOT-5" stands for its first instrument."""
    aliases: dict[str, str] = {}
    for sensor, folder in _sensors().items():
        satellite, instrument = folder.parent.name, folder.name
        names = {sensor, *(satellite.replace(long, short) for long, short in SHORT_NAMES.items())}
        for part in (instrument, instrument.split("_")[0]):
            names |= {satellite + part, part + satellite}
        names = (names - {satellite}) | {instrument if instrument in ("MODIS", "ASTER") else satellite}
        for name in names:
            aliases.setdefault(_simplified(name), sensor)
    for sensor, (origin, _) in MOVED_SENSORS.items():
        # Spelled in all ways in which its twin is.
        for name in [name for name, known in aliases.items() if known == origin]:
            aliases.setdefault(name.replace(_simplified(origin)[-2:], _simplified(sensor)[-2:]), sensor)
    known = (DEFAULT_SENSORS | IDENTICAL_SENSORS).items()
    return aliases | {short: aliases[full] for short, full in known if full in aliases}


@cache
def _sensor_curves(sensor: str) -> tuple[SRFCurve, ...]:
    from pyrsr.rsr import RSR_reader

    if sensor in MOVED_SENSORS and sensor not in _sensors():
        origin, centres = MOVED_SENSORS[sensor]
        twins = [(curve, centres.get(curve.name, curve.centre_nm)) for curve in _sensor_curves(origin)]
        return tuple(SRFCurve(c.name, c.wavelength_nm + centre - c.centre_nm, c.values) for c, centre in twins)
    folder = _sensors()[sensor]
    names = (path.name.removeprefix("band_") for path in folder.glob("band_*"))
    bands = sorted(names, key=lambda band: (int("0" + re.match(r"\d*", band)[0]), band))  # type: ignore[index]
    tables = RSR_reader(folder.parent.name, folder.name, LayerBandsAssignment=bands)
    curves = []
    for band, table in tables.items():
        to_nm = 1000.0 if table[:, 0].max() < 100 else 1.0
        # Values below zero are measurement noise of the laboratory.
        curves.append(SRFCurve(f"B{band}", table[:, 0] * to_nm, np.clip(table[:, 1], 0, None)))
    return tuple(curves)


def _suggestions(name: str) -> str:
    spellings = {_simplified(known): known for known in known_srfs()} | _aliases()
    near = difflib.get_close_matches(_simplified(name), spellings, n=6, cutoff=0.6)
    nearest = ", ".join(dict.fromkeys(spellings[key] for key in near))
    return f"one of {', '.join(known_srfs())}" + (f" (nearest: {nearest})" if nearest else "")


def _simplified(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _simplified_band(band: str) -> str:
    """B02, b2, "band 2" and 2 are one band."""
    return re.sub(r"^(band|b)?0*(?=\d)", "", _simplified(band))


def is_srf_file(path: Path) -> bool:
    """Whether a name is that of a file rather than of a sensor."""
    return path.is_file() or path.suffix.lower() in (*TEXT_SUFFIXES, *ARRAY_SUFFIXES)


def read_srf_file(path: Path) -> list[SRFCurve] | FloatArray:
    """Read the curves of a text file with a header, or the matrix in any other."""
    if not path.is_file():
        raise CubeFileError(f"{path}: no such SRF file")
    return _read_matrix(path) if path.suffix.lower() in ARRAY_SUFFIXES else _read_text(path)


def _read_text(path: Path) -> list[SRFCurve] | FloatArray:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CubeFileError(f"{path}: cannot be read as text ({error})", TEXT_FORM) from error
    rows = [_cells(line) for line in lines if line.strip() and not line.startswith("#")]
    if not rows:
        raise CubeFileError(f"{path}: empty SRF file", TEXT_FORM)
    if all(_is_number(cell) for cell in rows[0]):
        return _numbers(rows, len(rows[0]), path)
    return _curves(rows[0], _numbers(rows[1:], len(rows[0]), path), path)


def _curves(header: list[str], table: FloatArray, path: Path) -> list[SRFCurve]:
    first, names = header[0].lower(), header[1:]
    if not names or not ("wavelength" in first or first in ("nm", "um", "wl", "wvl", "lambda")):
        raise CubeFileError(f"{path}: first line {','.join(header)[:60]!r}", TEXT_FORM)
    if len(set(header)) != len(header):
        raise BandError(f"{path}: the band names {', '.join(names)} are not all different", "one name per band")
    if table.shape[0] < 2:
        raise CubeFileError(f"{path}: {table.shape[0]} wavelengths", "two or more rows")
    table = table[np.argsort(table[:, 0], kind="stable")]
    in_micrometres = "um" in first or ("nm" not in first and table[:, 0].max() < 100)
    wavelength = table[:, 0] * (1000.0 if in_micrometres else 1.0)
    if (np.diff(wavelength) <= 0).any():
        raise BandError(f"{path}: a wavelength occurs twice", "one row per wavelength")
    zero = [name for name, values in zip(names, table.T[1:], strict=True) if values.max() <= 0]
    if zero:
        raise BandError(f"{path}: SRF of band {', '.join(zero)} is nowhere above zero", "some positive values")
    return [SRFCurve(name, wavelength, values) for name, values in zip(names, table.T[1:], strict=True)]


def _numbers(rows: list[list[str]], columns: int, path: Path) -> FloatArray:
    for number, row in enumerate(rows, start=1):
        if len(row) != columns or not all(_is_number(cell) for cell in row):
            got = f"{path}: row {number} of numbers is {','.join(row)[:60]!r}"
            raise CubeFileError(got, f"{columns} numbers in each row")
    return np.array(rows, dtype=np.float64).reshape(-1, columns)


def _cells(line: str) -> list[str]:
    delimiter = next((mark for mark in ",;\t" if mark in line), None)
    cells = next(csv.reader([line], delimiter=delimiter)) if delimiter else line.split()
    return [cell.strip() for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _read_matrix(path: Path) -> FloatArray:
    list_arrays = FORMATS[path.suffix.lower()].arrays
    assert list_arrays is not None
    with reading(path, "an undamaged file without pickled objects"):
        matrices = [each for each in list_arrays(path) if len(each.shape) == 2 and each.is_image]
        # MATLAB stores numbers and lists as matrices, too.
        matrices = [each for each in matrices if min(each.shape) > 1] or matrices
        if len(matrices) == 1:
            return matrices[0].values().astype(np.float64)
    listed = ", ".join(map(str, matrices)) or "none"
    raise CubeFileError(f"{path}: two-dimensional arrays of numbers: {listed}", "exactly one, the SRF matrix")
