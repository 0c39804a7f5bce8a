"""Which bands of a cube somebody means: by number, by wavelength, or the good ones.

A selection is a list of entries separated by commas, taken in the order in which they are written, each band once:

    12  1-50         by number, counted from 1 as GDAL does      660nm  0.66um    the band nearest to a wavelength
    400-1000nm       every band centred within a range           good             leave the bad ones out

Wavelength units: everything becomes nanometres.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from hyperfuse.errors import BandError, OptionError

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
    """Wavelengths in nm. A missing unit is guessed (below 100: micrometres) with one warning; None if they are no
    wavelengths.
    """
    return lengths_in_nanometres(values, None, unit, None, where)[0]


def lengths_in_nanometres(
    wavelength: ArrayLike | None, fwhm: ArrayLike | None, unit: str | None, fwhm_unit: str | None, where: str = ""
) -> tuple[Lengths | None, Lengths | None]:
    """Wavelengths and widths in nm. Widths without a unit of their own follow the wavelengths, which are far easier to
    guess.
    """
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


GOOD = "good"
GRAMMAR = "numbers from 1 (1-50,60), wavelengths (400-1000nm, 0.4-1.0um, 660nm) or good, separated by commas"
NUMBERS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")
LENGTHS = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-zµμ]*)(?:\s*-\s*(\d+\.?\d*|\.\d+)\s*([a-zµμ]*))?")
# 0.4 um times 1000 is not quite 400 nm.
ROUNDING_NM = 1e-6


def select_bands(cube: xr.DataArray, selection: str) -> NDArray[np.int64]:
    """Positions (from 0) of the bands that a selection means."""
    entries = [entry.strip() for entry in selection.lower().split(",")]
    named = [entry for entry in entries if entry != GOOD]
    positions = (
        np.concatenate([_entry(cube, entry, selection) for entry in named]) if named else np.arange(cube.sizes["band"])
    )
    if GOOD in entries:
        positions = positions[cube["good"].values[positions]]
        if not positions.size:
            raise BandError(
                f"bands {selection}: every one of them is flagged bad", "at least one good band", "leave out `good`"
            )
    _, first = np.unique(positions, return_index=True)
    each_once: NDArray[np.int64] = positions[np.sort(first)]
    return each_once


def check_selection(selection: str) -> None:
    """Complain about a selection that means nothing in any cube."""
    for entry in (part.strip() for part in selection.lower().split(",")):
        if entry != GOOD and not NUMBERS.fullmatch(entry):
            _lengths_nm(entry, selection)


def _entry(cube: xr.DataArray, entry: str, selection: str) -> NDArray[np.int64]:
    numbers = NUMBERS.fullmatch(entry)
    if numbers:
        return _by_number(cube, int(numbers[1]), int(numbers[2] or numbers[1]))
    low, high = _lengths_nm(entry, selection)
    centres = cube["wavelength"].values
    if np.isnan(centres).all():
        raise BandError(
            f"bands {entry} of a cube whose wavelengths are unknown", "band numbers", f"choose from 1-{centres.size}"
        )
    return _nearest(centres, low) if high is None else _within(centres, low, high)


def _by_number(cube: xr.DataArray, first: int, last: int) -> NDArray[np.int64]:
    bands = cube.sizes["band"]
    if not 1 <= first <= last <= bands:
        got = f"band {first}" if first == last else f"bands {first}-{last}"
        remedy = "numbers count from 1; a wavelength needs its unit (400-1000nm)"
        raise BandError(f"{got} of a cube of {bands}", f"1 to {bands}, the smaller number first", remedy)
    return np.arange(first - 1, last)


def _lengths_nm(entry: str, selection: str) -> tuple[float, float | None]:
    """One wavelength, or the two ends of a range, in nm; the first may take its unit from the second."""
    match = LENGTHS.fullmatch(entry)
    units = [match[2] or match[4] or "", match[4] or match[2] or ""] if match else []
    if match is None or not NANOMETRES_PER_UNIT.keys() >= set(units):
        raise OptionError(f"bands {selection!r}: {entry!r} is none", GRAMMAR)
    low = float(match[1]) * NANOMETRES_PER_UNIT[units[0]]
    high = None if match[3] is None else float(match[3]) * NANOMETRES_PER_UNIT[units[1]]
    if high is not None and high < low:
        raise OptionError(f"bands {entry}: from {low:g} to {high:g} nm", "the smaller wavelength first")
    return low, high


def _within(centres: NDArray[np.float64], low: float, high: float) -> NDArray[np.int64]:
    inside = np.flatnonzero((centres >= low - ROUNDING_NM) & (centres <= high + ROUNDING_NM))
    if not inside.size:
        raise BandError(
            f"no band between {low:g} and {high:g} nm in {_what_exists(centres)}", remedy="choose another range"
        )
    return inside


def _nearest(centres: NDArray[np.float64], wanted: float) -> NDArray[np.int64]:
    """A wavelength far outside all bands, by more than their usual distance, is a mistake."""
    known = np.sort(centres[np.isfinite(centres)])
    usual = float(np.median(np.diff(known))) if known.size > 1 else known[0] / 10
    if not known[0] - usual <= wanted <= known[-1] + usual:
        raise BandError(f"no band near {wanted:g} nm in {_what_exists(centres)}", remedy="choose another wavelength")
    return np.array([np.nanargmin(np.abs(centres - wanted))])


def _what_exists(centres: NDArray[np.float64]) -> str:
    return f"a cube of {centres.size} bands from {np.nanmin(centres):g} to {np.nanmax(centres):g} nm"
