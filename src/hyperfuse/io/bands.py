"""Bands: which ones a selection means, and wavelengths in nanometres.

A selection is a list of entries separated by commas, taken in the order in which they are written, each band once:

    12  1-50         by number, counted from 1 as GDAL does      660nm  0.66um    the band nearest to a wavelength
    400-1000nm       every band centred within a range           good             leave the bad ones out
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from hyperfuse.errors import BandError, OptionError

UNIT_NAMES = {
    1.0: "nm nanometer nanometers nanometre nanometres",
    1e3: "um µm μm micron microns micrometer micrometers micrometre micrometres",
    1e6: "mm millimeter millimeters millimetre millimetres",
    1e9: "m meter meters metre metres",
    0.1: "angstrom angstroms",
}
NANOMETRES_PER_UNIT = {name: factor for factor, names in UNIT_NAMES.items() for name in names.split()}
# ENVI writes these where the numbers are not wavelengths at all.
NOT_A_WAVELENGTH = {"index", "wavenumber", "cm-1", "cm^-1", "1/cm", "ghz", "mhz"}
LARGEST_MICROMETRES = 100.0
# Bands are a few nanometres to a few hundred wide: numbers all below one are micrometres.
LARGEST_WIDTH_MICROMETRES = 1.0

GOOD = "good"
GRAMMAR = "numbers from 1 (1-50,60), wavelengths (400-1000nm, 0.4-1.0um, 660nm) or good, separated by commas"
NUMBERS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")
LENGTHS = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-zµμ]*)(?:\s*-\s*(\d+\.?\d*|\.\d+)\s*([a-zµμ]*))?")
# 0.4 um times 1000 is not quite 400 nm.
ROUNDING_NM = 1e-6

Lengths = NDArray[np.float64]


def lengths_in_nanometres(
    wavelength: ArrayLike | None, fwhm: ArrayLike | None, unit: str | None, fwhm_unit: str | None, where: str = ""
) -> tuple[Lengths | None, Lengths | None]:
    """Convert wavelengths and widths to nm; None for what is no length.

    A missing unit is guessed with one warning (wavelengths below 100 are micrometres). Widths without a unit of their
    own follow the wavelengths, which are far easier to guess.
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
    """Parse the entries of an ENVI list such as "{ 400.1, 500.2 }"."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    return [entry.strip() for entry in inner.split(",")] if inner else []


def braced_numbers(text: str) -> Lengths | None:
    """Parse an ENVI list of numbers, or return None; many writers leave a comma behind the last entry."""
    entries = parse_braced_list(text)
    return numbers(entries[:-1] if len(entries) > 1 and not entries[-1] else entries)


def numbers(entries: Sequence[str]) -> Lengths | None:
    """Return entries as numbers, or None where one of them is not."""
    try:
        return np.array([float(entry) for entry in entries], dtype=np.float64)
    except ValueError:
        return None


def select_bands(cube: xr.DataArray, selection: str) -> NDArray[np.int64]:
    """Return the positions (from 0) of the bands that a selection means."""
    entries = [entry.strip() for entry in selection.lower().split(",")]
    chosen = [_entry(cube, entry, selection) for entry in entries if entry != GOOD]
    positions = np.concatenate(chosen) if chosen else np.arange(cube.sizes["band"])
    if GOOD in entries:
        positions = positions[cube["good"].values[positions]]
        if not positions.size:
            got = f"bands {selection}: every one of them is flagged bad"
            raise BandError(got, "at least one good band", "leave out `good`")
    return np.array(list(dict.fromkeys(positions.tolist())), dtype=np.int64)


def check_selection(selection: str) -> None:
    """Raise `OptionError` for a selection that means nothing in any cube."""
    for entry in (part.strip() for part in selection.lower().split(",")):
        if entry != GOOD and not NUMBERS.fullmatch(entry):
            _lengths_nm(entry, selection)


def _entry(cube: xr.DataArray, entry: str, selection: str) -> NDArray[np.int64]:
    centres: Lengths = cube["wavelength"].values
    matched = NUMBERS.fullmatch(entry)
    if matched:
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if not 1 <= first <= last <= centres.size:
            got = f"band {first}" if first == last else f"bands {first}-{last}"
            remedy = "numbers count from 1; a wavelength needs its unit (400-1000nm)"
            expected = f"1 to {centres.size}, the smaller number first"
            raise BandError(f"{got} of a cube of {centres.size}", expected, remedy)
        return np.arange(first - 1, last)
    low, high = _lengths_nm(entry, selection)
    if np.isnan(centres).all():
        got = f"bands {entry} of a cube whose wavelengths are unknown"
        raise BandError(got, "band numbers", f"choose from 1-{centres.size}")
    present = f"a cube of {centres.size} bands from {np.nanmin(centres):g} to {np.nanmax(centres):g} nm"
    if high is not None:
        inside = np.flatnonzero((centres >= low - ROUNDING_NM) & (centres <= high + ROUNDING_NM))
        if not inside.size:
            raise BandError(f"no band between {low:g} and {high:g} nm in {present}", remedy="choose another range")
        return inside
    # A wavelength outside all bands by more than their usual distance is a mistake.
    known = np.sort(centres[np.isfinite(centres)])
    usual = float(np.median(np.diff(known))) if known.size > 1 else known[0] / 10
    if not known[0] - usual <= low <= known[-1] + usual:
        raise BandError(f"no band near {low:g} nm in {present}", remedy="choose another wavelength")
    return np.array([np.nanargmin(np.abs(centres - low))])


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
