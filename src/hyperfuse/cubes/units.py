"""Wavelength units: everything becomes nanometres."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

NANOMETRES_PER_UNIT = {
    "nm": 1.0,
    "nanometer": 1.0,
    "nanometers": 1.0,
    "nanometre": 1.0,
    "nanometres": 1.0,
    "um": 1e3,
    "µm": 1e3,
    "μm": 1e3,
    "micron": 1e3,
    "microns": 1e3,
    "micrometer": 1e3,
    "micrometers": 1e3,
    "micrometre": 1e3,
    "micrometres": 1e3,
    "mm": 1e6,
    "millimeter": 1e6,
    "millimeters": 1e6,
    "millimetre": 1e6,
    "millimetres": 1e6,
    "m": 1e9,
    "meter": 1e9,
    "meters": 1e9,
    "metre": 1e9,
    "metres": 1e9,
    "angstrom": 0.1,
    "angstroms": 0.1,
}
# ENVI writes these where the numbers are not wavelengths at all.
NOT_A_WAVELENGTH = {"index", "wavenumber", "cm-1", "cm^-1", "1/cm", "ghz", "mhz"}
LARGEST_MICROMETRES = 100.0
# Bands are a few nanometres to a few hundred wide: numbers all below one are micrometres.
LARGEST_WIDTH_MICROMETRES = 1.0

Lengths = NDArray[np.float64]


def to_nanometres(values: ArrayLike, unit: str | None, where: str = "") -> Lengths | None:
    """Wavelengths in nm. A missing unit is guessed (below 100: micrometres) with one warning; None if they are no wavelengths."""
    return lengths_in_nanometres(values, None, unit, None, where)[0]


def lengths_in_nanometres(
    wavelength: ArrayLike | None, fwhm: ArrayLike | None, unit: str | None, fwhm_unit: str | None, where: str = ""
) -> tuple[Lengths | None, Lengths | None]:
    """Wavelengths and widths in nm. Widths without a unit of their own follow the wavelengths, which are far easier to guess."""
    centres, widths = _known(wavelength), _known(fwhm)
    centre_factor = _factor(unit)
    width_factor = _factor(fwhm_unit) or centre_factor
    if centre_factor is None and centres is not None:
        centre_factor = _guessed(centres, LARGEST_MICROMETRES, where)
        width_factor = width_factor or centre_factor
    elif width_factor is None and widths is not None:
        width_factor = _guessed(widths, LARGEST_WIDTH_MICROMETRES, where)
    return _converted(centres, centre_factor), _converted(widths, width_factor)


def _known(values: ArrayLike | None) -> Lengths | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    return array if np.isfinite(array).any() else None


def _factor(unit: str | None) -> float | None:
    """Nanometres per unit: 0 where the unit is none of length, None where it is unknown."""
    name = (unit or "").strip().strip("{}").strip().lower()
    return 0.0 if name in NOT_A_WAVELENGTH else NANOMETRES_PER_UNIT.get(name)


def _guessed(values: Lengths, largest_micrometres: float, where: str) -> float:
    micrometres = float(np.abs(values[np.isfinite(values)]).max()) < largest_micrometres
    guess = "micrometres" if micrometres else "nanometres"
    warnings.warn(f"{where or 'the cube'} gives no wavelength unit: taken as {guess}", stacklevel=4)
    return 1e3 if micrometres else 1.0


def _converted(values: Lengths | None, factor: float | None) -> Lengths | None:
    if values is None or not factor:
        return None
    with np.errstate(over="ignore"):
        # Dividing by a power of ten rounds once less than multiplying by its inverse: 4000 angstroms are 400 nm.
        return values / (1 / factor) if factor < 1 else values * factor


def parse_braced_list(text: str) -> list[str]:
    """The entries of an ENVI list such as "{ 400.1, 500.2 }"."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    return [entry.strip() for entry in inner.split(",")] if inner else []


def braced_numbers(text: str) -> Lengths | None:
    """An ENVI list of numbers, or None where it is something else; many writers leave a comma behind the last entry."""
    entries = parse_braced_list(text)
    return numbers(entries[:-1] if len(entries) > 1 and not entries[-1] else entries)


def numbers(entries: Sequence[str]) -> Lengths | None:
    """Entries as numbers, or None where one of them is not."""
    try:
        return np.array([float(entry) for entry in entries], dtype=np.float64)
    except ValueError:
        return None
