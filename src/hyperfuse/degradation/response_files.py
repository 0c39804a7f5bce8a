"""Responses that people bring as files: curves over wavelength (CSV with a header) or a finished matrix (CSV, .npy, .npz, .mat)."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperfuse.degradation.response_curves import ResponseCurve
from hyperfuse.errors import BandError, CubeFileError

FloatArray = NDArray[np.float64]

TEXT_SUFFIXES = (".csv", ".txt", ".tsv", ".dat")
ARRAY_SUFFIXES = (".npy", ".npz", ".mat")
CURVE_FORM = "a header `wavelength_nm,name,...` with one row per wavelength, or a matrix of numbers without header"


def read_response_file(path: Path, variable: str | None = None) -> list[ResponseCurve] | FloatArray:
    """The curves in a file with a header, or the matrix in any other."""
    if not path.is_file():
        raise CubeFileError(f"{path}: no such response file")
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _read_array(path, variable)
    return _read_text(path)


def _read_text(path: Path) -> list[ResponseCurve] | FloatArray:
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip() and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise CubeFileError(f"{path}: cannot be read as text ({error})", CURVE_FORM) from error
    rows = [_cells(line) for line in lines]
    if not rows:
        raise CubeFileError(f"{path}: empty response file", CURVE_FORM)
    if all(_is_number(cell) for cell in rows[0]):
        return _numbers(rows, path)
    return _curves(rows[0], _numbers(rows[1:], path, columns=len(rows[0])), path)


def _curves(header: list[str], table: FloatArray, path: Path) -> list[ResponseCurve]:
    first = header[0].lower()
    if len(header) < 2 or not ("wavelength" in first or first in ("nm", "um", "wl", "wvl", "lambda")):
        raise CubeFileError(f"{path}: first line {','.join(header)[:60]!r}", CURVE_FORM)
    if len(set(header)) != len(header):
        raise BandError(f"{path}: the band names {', '.join(header[1:])} are not all different", "one name per band")
    if table.shape[0] < 2:
        raise CubeFileError(f"{path}: {table.shape[0]} wavelengths", "two or more rows")
    in_micrometres = "um" in first or ("nm" not in first and table[:, 0].max() < 100)
    order = np.argsort(table[:, 0], kind="stable")
    wavelength = table[order, 0] * (1000.0 if in_micrometres else 1.0)
    if (np.diff(wavelength) <= 0).any():
        raise BandError(f"{path}: a wavelength occurs twice", "one row per wavelength")
    curves = [ResponseCurve(name, wavelength, table[order, i]) for i, name in enumerate(header[1:], start=1)]
    dark = [curve.name for curve in curves if curve.values.max() <= 0]
    if dark:
        raise BandError(f"{path}: response of band {', '.join(dark)} is nowhere above zero", "some positive values")
    return curves


def _numbers(rows: list[list[str]], path: Path, columns: int | None = None) -> FloatArray:
    columns = columns if columns is not None else len(rows[0])
    for number, row in enumerate(rows, start=1):
        if len(row) != columns or not all(_is_number(cell) for cell in row):
            raise CubeFileError(f"{path}: row {number} of numbers is {','.join(row)[:60]!r}", f"{columns} numbers in each row")
    return np.array([[float(cell) for cell in row] for row in rows], dtype=np.float64).reshape(-1, columns)


def _cells(line: str) -> list[str]:
    delimiter = next((mark for mark in ",;\t" if mark in line), None)
    cells = next(csv.reader([line], delimiter=delimiter)) if delimiter else line.split()
    return [cell.strip() for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _read_array(path: Path, variable: str | None) -> FloatArray:
    arrays = {name: array for name, array in _stored_arrays(path).items() if _is_matrix(array)}
    if variable is not None:
        arrays = {name: array for name, array in arrays.items() if name == variable}
    if len(arrays) != 1:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"
        raise CubeFileError(f"{path}: two-dimensional arrays of numbers found: {found}", "exactly one, the response matrix")
    return np.asarray(next(iter(arrays.values())), dtype=np.float64)


def _stored_arrays(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    try:
        if suffix == ".mat":
            from pymatreader import read_mat

            return {name: value for name, value in read_mat(str(path)).items() if not name.startswith("__")}
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        return {path.stem: np.load(path, allow_pickle=False)}
    except Exception as error:  # the parsers raise whatever a damaged file makes them stumble over
        raise CubeFileError(f"{path}: cannot be read as {suffix} ({error})", "an undamaged file without pickled objects") from error


def _is_matrix(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 2 and array.dtype.kind in "iufb" and array.size > 0
