"""How a response curve falls onto the bands of an HSI: which part of it they cover, and the weight of each band.

An MSI band sees  integral r(l) L(l) dl / integral r(l) dl  of the light L. The HSI knows L only through its bands, so
the integral becomes a sum over them,  weight_c = width_c * r_c,  normalised to sum 1, where

    width_c   the stretch of spectrum that band c stands for: half-way to its neighbours by wavelength, whatever the
              bands' order
              (two detectors that overlap share the stretch), but never across a hole such as the removed water bands;
    r_c       the response averaged over the band's own Gaussian where its FWHM is known, the response at its centre
              where not.

A response narrower than two spacings could fall between the bands; for it each band is taken to be at least as wide as
the spacing.

Spectral response curves that are known by name: real sensors (tables from pyrsr) and the Gaussians common in the
literature.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.physics.psf import FWHM_PER_SIGMA, sigma_from_fwhm

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
class SRFCurve:
    """How strongly one band of a sensor answers to light of each wavelength; linear between the samples, 0 beyond them."""

    name: str
    wavelength_nm: FloatArray
    values: FloatArray

    @property
    def centre_nm(self) -> float:
        return float(
            np.average(self.wavelength_nm, weights=np.clip(self.values, 0, None) * _sample_widths(self.wavelength_nm))
        )

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


def gaussian_curve(name: str, centre_nm: float, fwhm_nm: float) -> SRFCurve:
    wavelength = centre_nm + sigma_from_fwhm(fwhm_nm) * np.linspace(-5, 5, 2001)
    return SRFCurve(name, wavelength, np.exp(-0.5 * ((wavelength - centre_nm) / sigma_from_fwhm(fwhm_nm)) ** 2))


def known_srfs() -> list[str]:
    """Every name that `named_curves` takes."""
    return [*GAUSSIAN_SETS, *sorted({sensor.name for sensor in _sensors()})]


def named_curves(name: str, chosen: list[str] | None = None) -> list[SRFCurve]:
    """The curves of a sensor or Gaussian set, all its reflective bands or the chosen ones in the order chosen."""
    gaussians = GAUSSIAN_SETS.get(name.lower().replace(" ", ""))
    if gaussians is not None:
        return choose_bands([gaussian_curve(band, *GAUSSIAN_BANDS[band]) for band in gaussians], chosen, name)
    sensor = _aliases().get(_simplified(name))
    if sensor is None:
        raise OptionError(f"unknown response {name!r}", f"{_nearest(name)}, or a CSV file or a matrix")
    curves = choose_bands(list(_read_sensor(sensor)), chosen, sensor.name)
    return curves if chosen else [curve for curve in curves if curve.centre_nm <= THERMAL_NM]


def choose_bands(curves: list[SRFCurve], chosen: list[str] | None, source: str) -> list[SRFCurve]:
    if chosen is None:
        return curves
    by_name = {_simplified_band(curve.name): curve for curve in curves}
    unknown = [band for band in chosen if _simplified_band(band) not in by_name]
    if unknown:
        raise OptionError(
            f"{source} has no band {', '.join(unknown)}", f"some of {', '.join(curve.name for curve in curves)}"
        )
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
        names |= {sensor.satellite + instrument for instrument in instruments} | {
            i + sensor.satellite for i in instruments
        }
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
def _read_sensor(sensor: Sensor) -> tuple[SRFCurve, ...]:
    from pyrsr.rsr import RSR_reader

    tables = RSR_reader(sensor.satellite, sensor.instrument, LayerBandsAssignment=list(sensor.bands))
    return tuple(_table_curve(band, table) for band, table in tables.items())


def _table_curve(band: str, table: FloatArray) -> SRFCurve:
    to_nm = 1000.0 if table[:, 0].max() < 100 else 1.0
    # Below zero is measurement noise of the laboratory.
    return SRFCurve(f"B{band}", table[:, 0] * to_nm, np.clip(table[:, 1], 0, None))


def _nearest(name: str) -> str:
    aliases = {_simplified(known): known for known in known_srfs()} | {key: s.name for key, s in _aliases().items()}
    near = difflib.get_close_matches(_simplified(name), aliases, n=6, cutoff=0.6)
    names = list(dict.fromkeys(aliases[key] for key in near))
    known = ", ".join(known_srfs())
    return f"one of {known} (nearest: {', '.join(names)})" if names else f"one of {known}"


def _simplified(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _simplified_band(band: str) -> str:
    """B02, b2, "band 2" and 2 are one band."""
    return re.sub(r"^(band|b)?0*(?=\d)", "", re.sub(r"[^a-z0-9]", "", band.lower()))


def _sample_widths(wavelength_nm: FloatArray) -> FloatArray:
    return np.gradient(wavelength_nm) if wavelength_nm.size > 1 else np.ones(1)


# Neighbours further apart than this many usual spacings have a hole between them: one removed band is bridged, two are
# not.
HOLE_IN_SPACINGS = 2.5
# How many neighbours to each side say what the usual spacing is; sensors change theirs along the spectrum.
NEIGHBOURS = 5
# Stands for the width of the only band of an HSI whose FWHM is unknown.
LONE_BAND_NM = 1.0
# The band's Gaussian is sampled this finely, in sigmas; the sum is normalised.
GAUSSIAN_NODES = np.linspace(-4.0, 4.0, 161)


@dataclass(frozen=True, eq=False)
class BandLayout:
    """The usable bands of an HSI along the spectrum. Columns have one entry per HSI band, in its order, NaN where
    unusable.
    """

    wavelength_nm: FloatArray
    fwhm_nm: FloatArray
    usable: NDArray[np.bool_]
    spacing_nm: FloatArray
    width_nm: FloatArray
    covered_nm: FloatArray
    """(n, 2): the stretches of spectrum that the bands cover, sorted, without overlap."""

    @property
    def range_nm(self) -> tuple[float, float]:
        return float(self.covered_nm[0, 0]), float(self.covered_nm[-1, 1])


def lay_out_bands(wavelength_nm: FloatArray, fwhm_nm: FloatArray, usable: NDArray[np.bool_]) -> BandLayout:
    indices = np.flatnonzero(usable)
    order = indices[np.argsort(wavelength_nm[indices], kind="stable")]
    centres, fwhm = wavelength_nm[order], np.where(fwhm_nm[order] > 0, fwhm_nm[order], np.nan)
    gaps = np.diff(centres)
    spacing = _usual_spacing(gaps, fwhm)
    below = _half_cells(np.concatenate([[np.nan], gaps]), spacing)
    above = _half_cells(np.concatenate([gaps, [np.nan]]), spacing)
    covered = np.stack([centres - np.fmax(below, fwhm / 2), centres + np.fmax(above, fwhm / 2)], axis=1)

    def in_band_order(column: FloatArray) -> FloatArray:
        full = np.full(wavelength_nm.size, np.nan)
        full[order] = column
        return full

    return BandLayout(
        in_band_order(centres),
        in_band_order(fwhm),
        usable,
        in_band_order(spacing),
        in_band_order(below + above),
        _merged(covered),
    )


@dataclass(frozen=True)
class CoveredShare:
    """Which part of a curve's energy, 0 to 1, lies where the HSI has bands, and between its first and its last band."""

    on_bands: float
    in_range: float


def covered_share(curve: SRFCurve, layout: BandLayout) -> CoveredShare:
    dense, values = _dense(curve)
    start, end = layout.range_nm
    energy = np.abs(values)
    return CoveredShare(
        on_bands=float(np.average(is_covered(dense, layout), weights=energy)),
        in_range=float(np.average((dense >= start) & (dense <= end), weights=energy)),
    )


def is_covered(wavelength_nm: FloatArray, layout: BandLayout) -> NDArray[np.bool_]:
    stretch = np.searchsorted(layout.covered_nm[:, 0], wavelength_nm, side="right") - 1
    inside: NDArray[np.bool_] = (stretch >= 0) & (wavelength_nm <= layout.covered_nm[stretch, 1])
    return inside


def covered_part(curve: SRFCurve, layout: BandLayout) -> SRFCurve:
    """The curve as the HSI can see it: nothing outside its coverage."""
    dense, values = _dense(curve)
    return SRFCurve(curve.name, dense, np.where(is_covered(dense, layout), values, 0.0))


def band_weights(curve: SRFCurve, layout: BandLayout) -> FloatArray:
    """The weight of each HSI band in one MSI band, (C,), sum 1; all zero where no band sees the response."""
    narrow = curve.fwhm_nm < 2 * layout.spacing_nm
    fwhm = np.fmax(np.where(narrow, layout.spacing_nm, 0.0), layout.fwhm_nm)
    centres = np.where(layout.usable, layout.wavelength_nm, 0.0)
    positions = centres[:, None] + np.nan_to_num(fwhm / FWHM_PER_SIGMA)[:, None] * GAUSSIAN_NODES
    gaussian = np.exp(-0.5 * GAUSSIAN_NODES**2)
    srf = np.interp(positions, curve.wavelength_nm, curve.values, left=0.0, right=0.0) @ (gaussian / gaussian.sum())
    weights = np.where(layout.usable, srf * np.nan_to_num(layout.width_nm), 0.0)
    total = weights.sum()
    return weights / total if total > 0 else np.zeros_like(weights)


def _usual_spacing(gaps: FloatArray, fwhm: FloatArray) -> FloatArray:
    """The larger of the median spacings below and above each band, so that the edge of a detector is not taken for a
    hole.
    """
    lone = np.where(np.isnan(fwhm), LONE_BAND_NM, fwhm)
    spacing = np.empty(fwhm.size)
    for i in range(fwhm.size):
        sides = (gaps[max(0, i - NEIGHBOURS) : i], gaps[i : i + NEIGHBOURS])
        # Bands at one and the same wavelength say nothing about the spacing.
        spacing[i] = max((float(np.median(side[side > 0])) for side in sides if (side > 0).any()), default=lone[i])
    return spacing


def _half_cells(gap: FloatArray, spacing: FloatArray) -> FloatArray:
    """Half-way to the neighbour on one side, or half the usual spacing at a hole and at either end of the spectrum."""
    return np.where(gap <= HOLE_IN_SPACINGS * spacing, gap, spacing) / 2


def _merged(stretches: FloatArray) -> FloatArray:
    merged: list[list[float]] = []
    for start, end in stretches[np.argsort(stretches[:, 0], kind="stable")]:
        # Cells that touch may miss each other by a rounding error.
        if merged and start <= merged[-1][1] + 1e-6:
            merged[-1][1] = max(merged[-1][1], float(end))
        else:
            merged.append([float(start), float(end)])
    return np.array(merged)


def _dense(curve: SRFCurve) -> tuple[FloatArray, FloatArray]:
    """Samples close enough to add up, all of the same width."""
    start, end = curve.wavelength_nm[0], curve.wavelength_nm[-1]
    dense = np.linspace(start, end, int(np.clip((end - start) / 0.25, 1000, 100_000)) + 1)
    return dense, np.interp(dense, curve.wavelength_nm, curve.values)
