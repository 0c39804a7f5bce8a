"""Spectral response curves that are known by name: real sensors (tables from pyrsr) and the Gaussians common in the literature."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperfuse.degradation.point_spread import sigma_from_fwhm
from hyperfuse.errors import OptionError

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
# Beyond this wavelength the Earth shines by its own heat: such bands are left out unless they are asked for by name.
THERMAL_NM = 3000.0
# What people write for a satellite beside its full name.
SHORT_NAMES = {"Sentinel-": "s", "Landsat-": "l"}


@dataclass(frozen=True, eq=False)
class ResponseCurve:
    """How strongly one band of a sensor answers to light of each wavelength; linear between the samples, 0 beyond them."""

    name: str
    wavelength_nm: FloatArray
    values: FloatArray

    @property
    def centre_nm(self) -> float:
        return float(np.average(self.wavelength_nm, weights=np.clip(self.values, 0, None) * _sample_widths(self.wavelength_nm)))

    @property
    def fwhm_nm(self) -> float:
        above = self.wavelength_nm[self.values >= self.values.max() / 2]
        return float(above.max() - above.min())

    @property
    def peak_nm(self) -> float:
        return float(self.wavelength_nm[self.values.argmax()])


@dataclass(frozen=True)
class Sensor:
    """A sensor that pyrsr knows, under the name we print."""

    name: str
    satellite: str
    instrument: str
    bands: tuple[str, ...]


def gaussian_curve(name: str, centre_nm: float, fwhm_nm: float) -> ResponseCurve:
    wavelength = centre_nm + sigma_from_fwhm(fwhm_nm) * np.linspace(-5, 5, 2001)
    return ResponseCurve(name, wavelength, np.exp(-0.5 * ((wavelength - centre_nm) / sigma_from_fwhm(fwhm_nm)) ** 2))


def known_responses() -> list[str]:
    """Every name that `named_curves` takes."""
    return [*GAUSSIAN_SETS, *sorted({sensor.name for sensor in _sensors()})]


def named_curves(name: str, chosen: list[str] | None = None) -> list[ResponseCurve]:
    """The curves of a sensor or Gaussian set, all its reflective bands or the chosen ones in the order chosen."""
    gaussians = GAUSSIAN_SETS.get(name.lower().replace(" ", ""))
    if gaussians is not None:
        return choose_bands([gaussian_curve(band, *GAUSSIAN_BANDS[band]) for band in gaussians], chosen, name)
    sensor = _aliases().get(_simplified(name))
    if sensor is None:
        raise OptionError(f"unknown response {name!r}", f"{_nearest(name)}, or a CSV file or a matrix")
    curves = choose_bands(list(_read_sensor(sensor)), chosen, sensor.name)
    return curves if chosen else [curve for curve in curves if curve.centre_nm <= THERMAL_NM]


def choose_bands(curves: list[ResponseCurve], chosen: list[str] | None, source: str) -> list[ResponseCurve]:
    if chosen is None:
        return curves
    by_name = {_simplified_band(curve.name): curve for curve in curves}
    unknown = [band for band in chosen if _simplified_band(band) not in by_name]
    if unknown:
        raise OptionError(f"{source} has no band {', '.join(unknown)}", f"some of {', '.join(curve.name for curve in curves)}")
    return [by_name[_simplified_band(band)] for band in dict.fromkeys(chosen)]


@cache
def _sensors() -> tuple[Sensor, ...]:
    import pyrsr

    folders = sorted(path for path in Path(pyrsr.__path__[0], "data").glob("*/*") if path.is_dir())
    satellites = [folder.parent.name for folder in folders]
    return tuple(_sensor(folder, alone=satellites.count(folder.parent.name) == 1) for folder in folders)


def _sensor(folder: Path, alone: bool) -> Sensor:
    satellite, instrument = folder.parent.name, folder.name
    if instrument == "ASTER":
        name = instrument
    elif instrument == "MODIS":
        name = f"{instrument}-{satellite}"
    else:
        name = satellite if alone else f"{satellite} {instrument}"
    bands = sorted((path.name.removeprefix("band_") for path in folder.glob("band_*")), key=_band_order)
    return Sensor(name, satellite, instrument, tuple(bands))


def _band_order(band: str) -> tuple[int, str]:
    number = re.match(r"\d+", band)
    return (int(number[0]) if number else 0, band)


@cache
def _aliases() -> dict[str, Sensor]:
    """Every spelling we accept, without case, blanks and punctuation. "SPOT-5" alone stands for its first instrument."""
    aliases: dict[str, Sensor] = {}
    for sensor in _sensors():
        instruments = {sensor.instrument, sensor.instrument.split("_")[0]}
        names = {sensor.name, sensor.satellite}
        names |= {sensor.satellite + instrument for instrument in instruments} | {i + sensor.satellite for i in instruments}
        names |= {sensor.satellite.replace(long, short) for long, short in SHORT_NAMES.items()}
        if sensor.instrument in ("MODIS", "ASTER"):
            names = (names - {sensor.satellite}) | {sensor.instrument}
        for name in names:
            aliases.setdefault(_simplified(name), sensor)
    # The two Sentinels differ by a nanometre or two; Terra's MODIS is the older of the two, as Sentinel-2A is.
    preferred = {"sentinel2": "sentinel2a", "s2": "sentinel2a", "sentinel2msi": "sentinel2a", "modis": "modisterra"}
    copies = {f"rapideye{number}": "rapideye" for number in range(1, 6)}
    return aliases | {short: aliases[full] for short, full in (preferred | copies).items() if full in aliases}


@cache
def _read_sensor(sensor: Sensor) -> tuple[ResponseCurve, ...]:
    from pyrsr.rsr import RSR_reader

    tables = RSR_reader(sensor.satellite, sensor.instrument, LayerBandsAssignment=list(sensor.bands))
    return tuple(_table_curve(band, table) for band, table in tables.items())


def _table_curve(band: str, table: FloatArray) -> ResponseCurve:
    to_nm = 1000.0 if table[:, 0].max() < 100 else 1.0
    # Below zero is measurement noise of the laboratory.
    return ResponseCurve(f"B{band}", table[:, 0] * to_nm, np.clip(table[:, 1], 0, None))


def _nearest(name: str) -> str:
    aliases = {_simplified(known): known for known in known_responses()} | {key: s.name for key, s in _aliases().items()}
    near = difflib.get_close_matches(_simplified(name), aliases, n=6, cutoff=0.6)
    names = list(dict.fromkeys(aliases[key] for key in near))
    known = ", ".join(known_responses())
    return f"one of {known} (nearest: {', '.join(names)})" if names else f"one of {known}"


def _simplified(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _simplified_band(band: str) -> str:
    """B02, b2, "band 2" and 2 are one band."""
    return re.sub(r"^(band|b)?0*(?=\d)", "", re.sub(r"[^a-z0-9]", "", band.lower()))


def _sample_widths(wavelength_nm: FloatArray) -> FloatArray:
    return np.gradient(wavelength_nm) if wavelength_nm.size > 1 else np.ones(1)
