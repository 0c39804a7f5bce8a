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
    "millimeters": 1e6,
    "m": 1e9,
    "meters": 1e9,
    "metres": 1e9,
    "angstrom": 0.1,
    "angstroms": 0.1,
}
# ENVI writes these where the numbers are not wavelengths at all.
NOT_A_WAVELENGTH = {"index", "unknown", "wavenumber", "ghz", "mhz"}
LARGEST_MICROMETRES = 100.0


def to_nanometres(values: ArrayLike, unit: str | None, where: str = "") -> NDArray[np.float64] | None:
    """Wavelengths in nm. A missing unit is guessed (below 100: micrometres) with one warning; None if they are no wavelengths."""
    wavelength = np.asarray(values, dtype=np.float64)
    name = (unit or "").strip().strip("{}").strip().lower()
    if name in NOT_A_WAVELENGTH and name != "unknown":
        return None
    if name in NANOMETRES_PER_UNIT:
        factor = NANOMETRES_PER_UNIT[name]
        # Dividing by a power of ten rounds once less than multiplying by its inverse: 0.1 um stays 100 nm.
        return wavelength / (1 / factor) if factor < 1 else wavelength * factor
    finite = wavelength[np.isfinite(wavelength)]
    micrometres = finite.size > 0 and float(np.abs(finite).max()) < LARGEST_MICROMETRES
    guess = "micrometres" if micrometres else "nanometres"
    warnings.warn(f"{where or 'the cube'} gives no wavelength unit: taken as {guess}", stacklevel=2)
    return wavelength * 1e3 if micrometres else wavelength


def parse_braced_list(text: str) -> list[str]:
    """The entries of an ENVI list such as "{ 400.1, 500.2 }"."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    return [entry.strip() for entry in inner.split(",")] if inner else []


def numbers(entries: Sequence[str]) -> NDArray[np.float64] | None:
    """Entries as numbers, or None where one of them is not."""
    try:
        return np.array([float(entry) for entry in entries], dtype=np.float64)
    except ValueError:
        return None
