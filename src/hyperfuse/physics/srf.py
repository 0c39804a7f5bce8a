"""The spectral response: how the bands of an HSI add up to the bands of an MSI.

Shapes: C HSI bands, M MSI bands. `find_response` turns whatever a person has, a sensor's name, a file, a matrix, into a
`Response`.

Responses that people bring as files: curves over wavelength (CSV with a header) or a finished matrix (CSV, .npy, .npz,
.mat).
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.physics.srf_curves import (
    BandLayout,
    CoveredShare,
    SRFCurve,
    band_weights,
    choose_bands,
    covered_part,
    covered_share,
    is_covered,
    lay_out_bands,
    named_curves,
)

FloatArray = NDArray[np.float64]

TEXT_SUFFIXES = (".csv", ".txt", ".tsv", ".dat")
ARRAY_SUFFIXES = (".npy", ".npz", ".mat")
CURVE_FORM = "a header `wavelength_nm,name,...` with one row per wavelength, or a matrix of numbers without header"


def read_srf_file(path: Path, variable: str | None = None) -> list[SRFCurve] | FloatArray:
    """The curves in a file with a header, or the matrix in any other."""
    if not path.is_file():
        raise CubeFileError(f"{path}: no such response file")
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _read_array(path, variable)
    return _read_text(path)


def _read_text(path: Path) -> list[SRFCurve] | FloatArray:
    try:
        lines = [
            line
            for line in path.read_text(encoding="utf-8-sig").splitlines()
            if line.strip() and not line.startswith("#")
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise CubeFileError(f"{path}: cannot be read as text ({error})", CURVE_FORM) from error
    rows = [_cells(line) for line in lines]
    if not rows:
        raise CubeFileError(f"{path}: empty response file", CURVE_FORM)
    if all(_is_number(cell) for cell in rows[0]):
        return _numbers(rows, path)
    return _curves(rows[0], _numbers(rows[1:], path, columns=len(rows[0])), path)


def _curves(header: list[str], table: FloatArray, path: Path) -> list[SRFCurve]:
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
    curves = [SRFCurve(name, wavelength, table[order, i]) for i, name in enumerate(header[1:], start=1)]
    dark = [curve.name for curve in curves if curve.values.max() <= 0]
    if dark:
        raise BandError(f"{path}: response of band {', '.join(dark)} is nowhere above zero", "some positive values")
    return curves


def _numbers(rows: list[list[str]], path: Path, columns: int | None = None) -> FloatArray:
    columns = columns if columns is not None else len(rows[0])
    for number, row in enumerate(rows, start=1):
        if len(row) != columns or not all(_is_number(cell) for cell in row):
            raise CubeFileError(
                f"{path}: row {number} of numbers is {','.join(row)[:60]!r}", f"{columns} numbers in each row"
            )
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
        raise CubeFileError(
            f"{path}: two-dimensional arrays of numbers found: {found}", "exactly one, the response matrix"
        )
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
        raise CubeFileError(
            f"{path}: cannot be read as {suffix} ({error})", "an undamaged file without pickled objects"
        ) from error


def _is_matrix(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 2 and array.dtype.kind in "iufb" and array.size > 0


# A band counts as covered when this share of its energy lies between the HSI's first and last band ...
SHARE_IN_RANGE = 0.9
# ... and this share where the HSI really has bands: a hole of removed water bands may take a part of a wide band, not
# most of it.
SHARE_ON_BANDS = 0.5
# A curve brought as a file may reach far beyond the HSI (cameras without their infrared filter do, and the field cuts
# them off at the HSI's last band): its peak and this share of its energy must be covered, and whoever uses less than
# SHARE_IN_RANGE is told.
SHARE_OF_FILES = 1 / 3


@dataclass(frozen=True, eq=False)
class SRF:
    """M MSI bands as weighted means of C HSI bands."""

    names: tuple[str, ...]
    weights: FloatArray
    """(M, C), each row sums to 1."""
    wavelength_nm: FloatArray | None = None
    """(M,), centres of the MSI bands; None or NaN where unknown."""
    fwhm_nm: FloatArray | None = None
    source: str = "given"
    """Where it comes from, for the record."""
    uncovered: tuple[str, ...] = ()
    """Bands of the source that were dropped because the HSI does not cover them."""

    def __post_init__(self) -> None:
        msi_bands = len(self.names)
        if self.weights.ndim != 2 or self.weights.shape[0] != msi_bands or msi_bands == 0:
            raise BandError(
                f"response of shape {self.weights.shape} for {msi_bands} band names", "one row of weights per name"
            )
        if not np.isfinite(self.weights).all() or np.abs(self.weights.sum(axis=1) - 1).max() > 1e-6:
            raise BandError(
                "response whose rows do not sum to 1", "finite rows that sum to 1", "divide each row by its sum"
            )
        for column in (self.wavelength_nm, self.fwhm_nm):
            if column is not None and column.shape != (msi_bands,):
                raise BandError(f"{column.size} wavelengths for {msi_bands} response bands", "one per band")

    @property
    def hsi_bands(self) -> int:
        return int(self.weights.shape[1])


SRFSpec = str | Path | NDArray[Any] | SRF


def srf_for(cube: xr.DataArray, spec: SRFSpec, *, skip_uncovered: bool = False) -> SRF:
    """The response `spec` on the bands of a cube."""
    return find_srf(
        spec, cube["wavelength"].values, cube["fwhm"].values, cube["good"].values, skip_uncovered=skip_uncovered
    )


def find_srf(
    spec: SRFSpec,
    wavelength_nm: ArrayLike | None,
    fwhm_nm: ArrayLike | None = None,
    good: ArrayLike | None = None,
    *,
    skip_uncovered: bool = False,
) -> SRF:
    """A response by name ("Sentinel-2A", "Landsat 8:B2,B3,B4", "rgb+nir"), from a file (curves or matrix), as a matrix
    or ready made, on the bands of an HSI. Bad bands get no weight. Response bands that the HSI does not cover are an
    error, or dropped.
    """
    wavelength, fwhm, usable = _band_columns(wavelength_nm, fwhm_nm, good)
    if isinstance(spec, SRF):
        return _on_good_bands(spec, usable)
    if isinstance(spec, np.ndarray):
        return _from_matrix(spec, wavelength, usable, "matrix", None)
    found, chosen, source, from_file = _look_up(spec)
    if isinstance(found, np.ndarray):
        return _from_matrix(found, wavelength, usable, source, chosen)
    layout = _require_layout(wavelength, fwhm, usable, source)
    return _from_curves(found, layout, source, skip_uncovered=skip_uncovered, from_file=from_file)


def _look_up(spec: str | Path) -> tuple[list[SRFCurve] | FloatArray, list[str] | None, str, bool]:
    """What a name or path stands for, the bands chosen from it, and how to call it."""
    text, chosen = str(spec), None
    if not Path(text).is_file() and ":" in text:
        text, _, choice = text.rpartition(":")
        chosen = [band.strip() for band in choice.split(",") if band.strip()]
        if not chosen:
            raise OptionError(
                f"response {str(spec)!r} with an empty choice of bands",
                "a list of bands after the colon, such as :B2,B3,B4",
            )
    path = Path(text)
    if path.is_file() or path.suffix.lower() in (*TEXT_SUFFIXES, *ARRAY_SUFFIXES):
        content = read_srf_file(path)
        if isinstance(content, np.ndarray):
            return content, chosen, path.name, True
        return choose_bands(content, chosen, path.name), None, path.name, True
    return named_curves(text, chosen), None, text, False


def _band_columns(
    wavelength_nm: ArrayLike | None, fwhm_nm: ArrayLike | None, good: ArrayLike | None
) -> tuple[FloatArray | None, FloatArray | None, NDArray[np.bool_] | None]:
    """The three columns as arrays of one length. Bands without a wavelength are usable only where nobody knows any
    wavelength.
    """
    wavelength = None if wavelength_nm is None else np.asarray(wavelength_nm, dtype=np.float64)
    fwhm = None if fwhm_nm is None else np.asarray(fwhm_nm, dtype=np.float64)
    usable = None if good is None else np.asarray(good, dtype=bool)
    if wavelength is not None and np.isnan(wavelength).all():
        usable = np.ones(wavelength.size, dtype=bool) if usable is None else usable
        wavelength = None
    sizes = {column.size for column in (wavelength, fwhm, usable) if column is not None}
    if len(sizes) > 1:
        raise BandError(
            f"wavelength, fwhm and good lists of different lengths {sorted(sizes)}", "one entry per HSI band in each"
        )
    if usable is None and sizes:
        usable = np.ones(sizes.pop(), dtype=bool)
    return wavelength, fwhm, usable


def _require_layout(
    wavelength: FloatArray | None, fwhm: FloatArray | None, usable: NDArray[np.bool_] | None, source: str
) -> BandLayout:
    remedy = "add wavelengths to the reference, or give the response as a matrix of (MSI bands, HSI bands)"
    if wavelength is None or usable is None:
        raise BandError(
            f"response {source} on a cube whose wavelengths are unknown", "a wavelength for every band", remedy
        )
    if not usable.any():
        raise BandError(
            f"all {usable.size} bands are marked bad", "at least one good band", "correct the list of bad bands"
        )
    unknown = np.isnan(wavelength) & usable
    if unknown.any():
        numbers = ", ".join(str(i + 1) for i in np.flatnonzero(unknown)[:5])
        raise BandError(
            f"{unknown.sum()} good bands without wavelength (first: {numbers})",
            "a wavelength for every good band",
            remedy,
        )
    return lay_out_bands(wavelength, np.full(wavelength.shape, np.nan) if fwhm is None else fwhm, usable)


def _from_curves(
    curves: list[SRFCurve], layout: BandLayout, source: str, *, skip_uncovered: bool, from_file: bool
) -> SRF:
    rows = [band_weights(curve, layout) for curve in curves]
    shares = [covered_share(curve, layout) for curve in curves]
    accept = _file_band_is_covered if from_file else _named_band_is_covered
    kept = [i for i, curve in enumerate(curves) if rows[i].any() and accept(curve, shares[i], layout)]
    lost = [i for i in range(len(curves)) if i not in kept]
    if lost and not (skip_uncovered and kept):
        raise _uncovered_error([curves[i] for i in lost], [shares[i] for i in lost], layout, source, none_left=not kept)
    cut = [f"{curves[i].name} ({shares[i].on_bands:.0%})" for i in kept if shares[i].in_range < SHARE_IN_RANGE]
    if cut:
        warnings.warn(
            f"the HSI covers only a part of response band {', '.join(cut)} of {source}; that part is used", stacklevel=4
        )
    parts = [covered_part(curves[i], layout) for i in kept]
    return SRF(
        names=tuple(curves[i].name for i in kept),
        weights=np.stack([rows[i] for i in kept]),
        wavelength_nm=np.array([part.centre_nm for part in parts]),
        fwhm_nm=np.array([part.fwhm_nm for part in parts]),
        source=source,
        uncovered=tuple(curves[i].name for i in lost),
    )


def _named_band_is_covered(curve: SRFCurve, share: CoveredShare, layout: BandLayout) -> bool:
    return share.in_range >= SHARE_IN_RANGE and share.on_bands >= SHARE_ON_BANDS


def _file_band_is_covered(curve: SRFCurve, share: CoveredShare, layout: BandLayout) -> bool:
    return share.on_bands >= SHARE_OF_FILES and bool(is_covered(np.array([curve.peak_nm]), layout)[0])


def _uncovered_error(
    curves: Sequence[SRFCurve], shares: Sequence[CoveredShare], layout: BandLayout, source: str, *, none_left: bool
) -> BandError:
    bands = []
    for curve, share in zip(curves, shares, strict=True):
        low, high = curve.centre_nm - curve.fwhm_nm / 2, curve.centre_nm + curve.fwhm_nm / 2
        bands.append(f"{curve.name} ({low:.0f}-{high:.0f} nm, {share.on_bands:.0%} covered)")
    start, end = layout.range_nm
    holes = [f"{a:.0f}-{b:.0f}" for a, b in zip(layout.covered_nm[:-1, 1], layout.covered_nm[1:, 0], strict=True)]
    coverage = f"{start:.0f}-{end:.0f} nm" + (f" without {', '.join(holes)}" if holes else "")
    remedy = "choose another response" if none_left else "drop such bands with --skip-uncovered, or name the others"
    return BandError(
        f"the HSI ({coverage}) does not cover band {', '.join(bands)} of {source}", "bands that the HSI covers", remedy
    )


def _from_matrix(
    matrix: NDArray[Any],
    wavelength: FloatArray | None,
    usable: NDArray[np.bool_] | None,
    source: str,
    chosen: list[str] | None,
) -> SRF:
    weights = np.asarray(matrix, dtype=np.float64)
    if weights.ndim != 2 or 0 in weights.shape:
        raise BandError(f"response {source} of shape {weights.shape}", "a matrix (MSI bands, HSI bands)")
    hsi_bands = weights.shape[1] if usable is None else usable.size
    if weights.shape[1] != hsi_bands:
        weights = weights.T
    if weights.shape[1] != hsi_bands:
        raise BandError(
            f"response {source} of shape {matrix.shape} for an HSI of {hsi_bands} bands", f"one side of {hsi_bands}"
        )
    names = [f"B{number}" for number in range(1, weights.shape[0] + 1)]
    if chosen is not None:
        curves = [SRFCurve(name, np.arange(float(hsi_bands)), row) for name, row in zip(names, weights, strict=True)]
        rows = choose_bands(curves, chosen, source)
        names, weights = [row.name for row in rows], np.stack([row.values for row in rows])
    weights = _normalised(weights, names, usable, source)
    known = wavelength is not None and not np.isnan(wavelength[weights.any(axis=0)]).any()
    centres = weights @ np.nan_to_num(wavelength) if known and wavelength is not None else None
    return SRF(tuple(names), weights, centres, None, source)


def _on_good_bands(srf: SRF, usable: NDArray[np.bool_] | None) -> SRF:
    if usable is None:
        return srf
    if srf.hsi_bands != usable.size:
        raise BandError(f"response for {srf.hsi_bands} HSI bands, HSI of {usable.size}", "the same number of bands")
    if not srf.weights[:, ~usable].any():
        return srf
    weights = _normalised(srf.weights, list(srf.names), usable, srf.source)
    return SRF(srf.names, weights, srf.wavelength_nm, srf.fwhm_nm, srf.source, srf.uncovered)


def _normalised(weights: FloatArray, names: list[str], usable: NDArray[np.bool_] | None, source: str) -> FloatArray:
    if not np.isfinite(weights).all():
        raise BandError(f"response {source} with NaN or infinite weights", "finite numbers")
    weights = weights if usable is None else np.where(usable, weights, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    empty = [name for name, total in zip(names, totals[:, 0], strict=True) if total <= 0]
    if empty:
        raise BandError(
            f"band {', '.join(empty)} of response {source} has no weight on any good HSI band",
            "weights of positive sum",
        )
    normalised: FloatArray = weights / totals
    return normalised
