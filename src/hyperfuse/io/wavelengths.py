"""What a file lacks and the user supplies: wavelengths (a file, a range or a sensor) and the fill value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.config import PairInputConfig
from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.cube import (
    SMALLEST_NM,
    Lengths,
    lengths_in_nanometres,
    nodata_of,
    place_cube,
    reading,
    wavelengths_nm,
)
from hyperfuse.io.envi import braced_numbers
from hyperfuse.io.isolation import isolated
from hyperfuse.io.products import hyperion, landsat, sentinel2
from hyperfuse.io.products.product import SENSOR_BANDS
from hyperfuse.io.products.rasters import normalise_band_name

RANGE = re.compile(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*:\s*([\d.]+(?:e[+-]?\d+)?)\s*", re.IGNORECASE)
WIDTH_NAME = re.compile(r"fwhm|width", re.IGNORECASE)
CENTRE_NAME = re.compile(r"wave|cent|lambda|\bnm\b", re.IGNORECASE)
# Usual selections of a sensor's bands, found by their number.
S2_WITHOUT_60M = [band for band in sentinel2.BANDS if sentinel2.METRES[band] < 60]
S2_SELECTIONS = (
    sentinel2.BANDS,
    [band for band in sentinel2.BANDS if band != sentinel2.CIRRUS],
    S2_WITHOUT_60M,
    sentinel2.RESOLUTIONS[10],
    sentinel2.RESOLUTIONS[20],
)
EXPECTED = "a file with one number per band, FIRST:LAST in nm for even spacing, or a sensor"

Columns = tuple[Lengths, Lengths | None]


def supplied(
    cube: xr.DataArray, wavelengths: Any = None, nodata: float | None = None, name: str = "the cube"
) -> xr.DataArray:
    """Return the cube with the wavelengths that are given; nodata counts where the cube declares none.

    Parameters
    ----------
    cube
        A cube.
    wavelengths
        One number per band, the path of a file that has them, "400:2500" for evenly spaced ones, or a sensor with or
        without a choice of bands ("Sentinel-2A:B2,B3,B4,B8").
    nodata
        Stored value of pixels without data.
    name
        What errors call it.

    Returns
    -------
    xarray.DataArray
        The same values.

    Examples
    --------
    >>> from hyperfuse.io.cube import make_cube
    >>> supplied(make_cube(np.zeros((3, 4, 5))), "450:650")["wavelength"].values.tolist()
    [450.0, 550.0, 650.0]
    """
    if wavelengths is not None:
        centres, widths = _given(wavelengths, cube.sizes["band"])
        for column in (centres, widths):
            if column is not None and column.size != cube.sizes["band"]:
                got = f"{column.size} wavelengths for the {cube.sizes['band']} bands of {name}"
                raise BandError(got, f"{cube.sizes['band']} numbers", "check --wavelengths")
        columns = {"wavelength": centres} | ({} if widths is None else {"fwhm": widths})
        cube = cube.assign_coords({name: ("band", column) for name, column in columns.items()})
    if nodata is not None and nodata_of(cube) is None:
        cube = place_cube(cube, None, None, nodata)
    return cube


def supplied_to(cubes: Mapping[str, xr.DataArray], config: PairInputConfig) -> dict[str, xr.DataArray]:
    """Supply the images of a pair, by role; others than HSI and MSI, which were made from them, only what they lack."""
    given = {"hsi": config.wavelengths, "msi": config.msi_wavelengths}
    lengths = {
        role: given[role] if role in given else config.wavelengths if wavelengths_nm(cube) is None else None
        for role, cube in cubes.items()
    }
    return {role: supplied(cube, lengths[role], config.nodata_in, f"the {role}") for role, cube in cubes.items()}


def _given(wavelengths: Any, bands: int) -> Columns:
    if not isinstance(wavelengths, str | os.PathLike):
        return _in_nanometres(np.asarray(wavelengths, dtype=np.float64).ravel(), None, "the list of wavelengths")
    text = os.fspath(wavelengths)
    evenly = RANGE.fullmatch(text)
    if evenly:
        return _in_nanometres(np.linspace(float(evenly[1]), float(evenly[2]), bands), None, text)
    if Path(text).is_file():
        return isolated(Path(text), _from_file, Path(text))
    return _of_sensor(text, bands)


def _in_nanometres(centres: Lengths, widths: Lengths | None, where: str) -> Columns:
    unit = "um" if centres.size and np.nanmax(centres) < SMALLEST_NM else "nm"
    found, found_widths = lengths_in_nanometres(centres, widths, unit, None, where)
    if found is None:
        raise OptionError(f"no wavelengths in {where}", EXPECTED, "check --wavelengths")
    return found, found_widths


def _from_file(path: Path) -> Columns:
    """Wavelengths of a table of text, of an ENVI header without its data, of a list in .npy, or of another cube."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with reading(path, "a list of numbers"):
            return _in_nanometres(np.load(path, allow_pickle=False).astype(np.float64).ravel(), None, str(path))
    if suffix in (".csv", ".txt", ".tab", ".tsv", ".dat", ".hdr"):
        with reading(path, "a table of wavelengths"):
            text = path.read_text(encoding="utf-8", errors="replace")
            return _in_header(text, path) if suffix == ".hdr" else _in_table(text, path)
    # Not above: most requests need no other cube.
    from hyperfuse.io.files import open_cube

    cube = open_cube(path)
    widths = cube["fwhm"].values
    return _in_nanometres(cube["wavelength"].values, None if np.isnan(widths).all() else widths, str(path))


def _in_header(text: str, path: Path) -> Columns:
    lists = re.findall(r"^\s*(wavelength|fwhm)\s*=\s*(\{[^}]*\})", text, re.IGNORECASE | re.MULTILINE)
    found = {key.lower(): braced_numbers(entries) for key, entries in lists}
    centres = found.get("wavelength")
    if centres is None:
        raise CubeFileError(f"{path} has no list of wavelengths", EXPECTED)
    return _in_nanometres(centres, found.get("fwhm"), str(path))


def _in_table(text: str, path: Path) -> Columns:
    """The columns that a header calls wavelengths and widths; else the first that is not a count, and the next."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    separator = next((mark for mark in "\t;," if lines and mark in lines[-1]), None)
    rows = [[entry.strip() for entry in line.split(separator)] for line in lines]
    numeric = [row for row in rows if any(map(_is_number, row))]
    width = min(map(len, numeric), default=0)
    columns = {
        index: np.array([float(row[index]) for row in numeric])
        for index in range(width)
        if all(_is_number(row[index]) for row in numeric)
    }
    usable = [index for index, column in columns.items() if not _counts(column)]
    header = next((row for row in rows if row not in numeric and len(row) >= width), None)
    widths = [index for index in usable if header and WIDTH_NAME.search(header[index])]
    centres = [index for index in usable if header and CENTRE_NAME.search(header[index]) and index not in widths]
    if header is None:
        centres, widths = usable[:1], usable[1:2]
    centres = centres or [index for index in usable if index not in widths]
    if not centres:
        raise CubeFileError(f"{path} has no column of wavelengths", EXPECTED)
    return _in_nanometres(columns[centres[0]], columns[widths[0]] if widths else None, str(path))


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", text, re.IGNORECASE))


def _counts(column: NDArray[np.float64]) -> bool:
    return column.size > 1 and bool((np.diff(column) == 1).all()) and column[0] in (0, 1)


def _of_sensor(text: str, bands: int) -> Columns:
    name, _, choice = text.partition(":")
    simplified = re.sub(r"[^a-z0-9]", "", name.lower())
    if simplified == "hyperion":
        kept = hyperion.GOOD if bands == hyperion.GOOD.sum() else np.ones_like(hyperion.GOOD)
        return hyperion.WAVELENGTH_NM[kept], hyperion.FWHM_NM[kept]
    sensor = next((known for known in SENSOR_BANDS if re.sub(r"[^a-z0-9]", "", known.lower()) == simplified), None)
    if sensor is None:
        expected = f"{EXPECTED}: {', '.join(SENSOR_BANDS)}"
        raise OptionError(f"wavelengths {text!r}, which is not a file", expected)
    table = SENSOR_BANDS[sensor]
    selections: Sequence[Sequence[str]] = S2_SELECTIONS
    if sensor in landsat.SENSORS:
        sets = landsat.sets_of(table)
        selections = (list(table), list(table)[: -len(sets["thermal"])], sets["reflective"], sets["reflective"][1:])
    chosen = [normalise_band_name(band) for band in choice.split(",")] if choice else None
    chosen = chosen or next((list(each) for each in selections if len(each) == bands), None)
    if chosen is None or not set(chosen) <= set(table):
        remedy = f"name the bands: {sensor}:B2,B3,..."
        raise OptionError(f"wavelengths {text!r} for {bands} bands", f"some of {', '.join(table)}", remedy)
    centres, widths = zip(*(table[band] for band in chosen), strict=True)
    return np.array(centres), np.array(widths)
