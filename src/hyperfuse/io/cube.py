"""A cube: an `xarray.DataArray` with dims (band, y, x) that keeps everything known about its bands, values and place.

Values stay as they are stored (counts, scaled integers, reflectance); `physical_values` applies nodata, scale and
offset. The coordinates on `band` are a table with one row per band, never an index, because detectors overlap and bands
need not be sorted:

    wavelength, fwhm   float64, nanometres, NaN where unknown        good            bool, False for bad bands
    band_name          str, "" where unnamed                         scale, offset   physical = stored * scale + offset

CRS and transform are where rioxarray keeps them (`cube.rio`), nodata in `cube.rio.nodata`. Cubes from files are lazy: a
`WindowReader` reads the requested window. It holds a path, not an open file, and can be pickled to other processes.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import ArrayLike, DTypeLike, NDArray
from rasterio.crs import CRS
from xarray.backends import BackendArray
from xarray.core import indexing

from hyperfuse import compiled
from hyperfuse.errors import BandError, CubeFileError, HyperfuseError, OptionError
from hyperfuse.io.grid import current_transform, grid_mapping_name, is_usable, placed_coordinates, plain_variable
from hyperfuse.io.spool import CopyNeeded

DIMS = ("band", "y", "x")
BAND_TABLE: dict[str, tuple[type, Any]] = {
    "wavelength": (np.float64, np.nan),
    "fwhm": (np.float64, np.nan),
    "good": (np.bool_, True),
    "band_name": (np.str_, ""),
    "scale": (np.float64, 1.0),
    "offset": (np.float64, 0.0),
}
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
# Wavelengths of imaging sensors in nm, from the far ultraviolet to the thermal infrared: numbers below 100 are
# micrometres, and a unit that leads outside is wrong.
SMALLEST_NM, LARGEST_NM = 100.0, 100_000.0
# Units to try where the stated one is impossible, by their factors.
USUAL_UNITS = {1.0: "nanometres", 1e3: "micrometres", 1e9: "metres"}
# Bands are a few nanometres to a few hundred wide: numbers all below one are micrometres.
LARGEST_WIDTH_MICROMETRES = 1.0
SMALLEST_WIDTH_NM = 0.02
# "band 1 (418.24 Nanometers)", "B012 553.2 nm", "478.783nm", "Resize (Band 1:scene) (426.82)"; not "450-510 nm".
LENGTH_IN_NAME = re.compile(
    r"(?<![\d.\-\u2013])(?:(?<=[\W_])|^)(\d+(?:\.\d+)?)\s*(nm|um|[µμ]m|nanomet\w+|micromet\w+|microns?)\b|\((\d+\.\d+)\)$",
    re.IGNORECASE,
)
# Where rioxarray and CF keep the scaling of a DataArray that has no band table yet.
SCALING_ATTRIBUTES = {"scale": "scale_factor", "offset": "add_offset"}
TABLE_ATTRIBUTES = {*SCALING_ATTRIBUTES.values(), "wavelength", "fwhm", "wavelength_units"}
# Where the value of missing pixels is kept by CF, GDAL and older versions of xarray.
NODATA_NAMES = ("_FillValue", "missing_value", "fill_value", "nodata", "nodatavals")
# Positions that are on average further apart than this are read one by one instead of with everything in between.
SPARSE = 4
# A sample of the values, not a pass over the whole file: bands, rows, columns.
SAMPLE_SHAPE = (32, 64, 64)

Lengths = NDArray[np.float64]


def make_cube(
    values: Any,
    *,
    wavelength_nm: ArrayLike | None = None,
    fwhm_nm: ArrayLike | None = None,
    good: ArrayLike | None = None,
    band_names: Sequence[str] | None = None,
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    nodata: float | None = None,
    crs: CRS | str | int | None = None,
    transform: Affine | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> xr.DataArray:
    """Make a cube from (band, y, x) values and what is known about them.

    Parameters
    ----------
    values
        Array of shape (band, y, x), or a lazy `xarray.Variable` from `lazy_variable`.
    wavelength_nm, fwhm_nm
        Band centres and full widths at half maximum in nanometres; NaN where unknown.
    good
        False for bad bands.
    band_names
        One name per band; wavelengths that they state ("B12 553.2 nm") count where none are given.
    scale, offset
        physical = stored * scale + offset, per band or one number for all.
    nodata
        Stored value of pixels without data.
    crs, transform
        Georeference; the transform maps (column, row) of pixel corners to x, y.
    attributes
        Anything else worth keeping; every format stores it as text.

    Returns
    -------
    xarray.DataArray
        With the band table as coordinates on `band`.

    Examples
    --------
    >>> import numpy as np
    >>> cube = make_cube(np.ones((2, 3, 4), np.uint16), wavelength_nm=[450, 550], scale=1e-4)
    >>> cube.sizes["band"], cube["wavelength"].values.tolist()
    (2, [450.0, 550.0])
    """
    shape = values.shape if isinstance(values, xr.Variable) else np.shape(values)
    if len(shape) != 3 or min(shape) < 1:
        raise CubeFileError(f"array of shape {shape}", "three dimensions (band, y, x), none of them empty")
    if isinstance(values, xr.Variable):
        variable = values
    else:
        variable = plain_variable(DIMS, values) if type(values) is np.ndarray else xr.Variable(DIMS, values)
    if variable.dtype.kind not in "iufb":
        got = f"an array of {variable.dtype} values"
        raise CubeFileError(got, "integers or floating-point numbers", "convert it, for example with .astype(float)")
    if band_names is not None and (wavelength_nm is None or np.isnan(np.asarray(wavelength_nm, np.float64)).all()):
        wavelength_nm = lengths_in_names(band_names)
    columns = zip(BAND_TABLE, (wavelength_nm, fwhm_nm, good, band_names, scale, offset), strict=True)
    coords = {name: plain_variable("band", _band_column(name, column, shape[0])) for name, column in columns}
    cube = xr.DataArray(variable, coords=coords, attrs=dict(attributes or {}))
    cube.encoding = dict(variable.encoding)
    return place_cube(cube, crs, transform, nodata)


def place_cube(
    cube: xr.DataArray, crs: CRS | str | int | None, transform: Affine | None, nodata: float | None
) -> xr.DataArray:
    """Return the cube with a CRS, a transform (with coordinates) and a nodata value; None keeps the old one."""
    # As rioxarray would write it, whose import takes as long as everything else that `hyperfuse info` does.
    cube = cube.copy(deep=False)
    mapping = grid_mapping_name(cube)
    reference = dict(cube.coords[mapping].attrs) if mapping in cube.coords else {}
    if transform is not None and is_usable(transform):
        cube = cube.drop_vars(["x", "y", "pixel_row", "pixel_column"], errors="ignore")
        cube = cube.assign_coords(placed_coordinates(transform, cube.sizes["y"], cube.sizes["x"]))
        reference["GeoTransform"] = " ".join(str(number) for number in transform.to_gdal())
    if crs is not None:
        wkt = CRS.from_user_input(crs).to_wkt()
        reference = {key: text for key, text in reference.items() if key == "GeoTransform"}
        reference |= {"spatial_ref": wkt, "crs_wkt": wkt}
    if reference:
        cube = cube.assign_coords({mapping: plain_variable((), np.int64(0), reference)})
        cube.attrs = {key: value for key, value in cube.attrs.items() if key not in ("crs", "grid_mapping")}
        cube.encoding["grid_mapping"] = mapping
    if nodata is not None:
        fitting = fitting_nodata(nodata, cube.dtype)
        if fitting is None:
            got = f"nodata {nodata} for {cube.dtype} values"
            raise OptionError(got, "a number that this type can hold", "choose another")
        cube.attrs["_FillValue"] = cube.dtype.type(fitting)
    return cube


def as_cube(image: xr.DataArray | NDArray[Any]) -> xr.DataArray:
    """Return a DataArray of any origin, or an array (band, y, x) or (y, x), as a cube with a complete band table."""
    if isinstance(image, str | os.PathLike):
        raise CubeFileError(f"the path {image}", "a cube or an array (band, y, x)", "open it with hyperfuse.open_cube")
    if not isinstance(image, xr.DataArray):
        values = np.asarray(image)
        return make_cube(values[None] if values.ndim == 2 else values)
    if set(image.dims) == set(DIMS[1:]):
        row = {name: ("band", np.atleast_1d(image[name].values)) for name in BAND_TABLE if name in image.coords}
        image = image.drop_vars(["band", *row], errors="ignore").expand_dims("band").assign_coords(row)
    if set(image.dims) != set(DIMS) or 0 in image.shape:
        got = f"DataArray of {dict(image.sizes)}"
        raise CubeFileError(got, f"dims {DIMS}, none of them empty", "rename, transpose or expand it first")
    if image.dtype.kind not in "iufb":
        got = f"a DataArray of {image.dtype} values"
        raise CubeFileError(got, "integers or floating-point numbers", "convert it, for example with .astype(float)")
    cube = image.transpose(*DIMS)
    is_complete = all(
        name in cube.coords and cube[name].dims == ("band",) and np.issubdtype(cube[name].dtype, dtype)
        for name, (dtype, _) in BAND_TABLE.items()
    )
    return cube if is_complete else _with_band_table(cube)


def _with_band_table(cube: xr.DataArray) -> xr.DataArray:
    """Complete a DataArray of another tool by its coordinates, by the attributes that rioxarray leaves, by its file."""
    bands = cube.sizes["band"]
    columns = {name: _foreign_column(cube, name) for name in BAND_TABLE}
    names = columns["band_name"]
    if columns["wavelength"] is None and names is not None:
        columns["wavelength"] = lengths_in_names(names)
    if columns["wavelength"] is None:
        columns |= _columns_of_source(cube, [name for name, column in columns.items() if column is None])
    elif "wavelength" in cube.coords or "wavelength" in cube.attrs:
        units = (cube.coords[name].attrs.get("units") for name in ("wavelength",) if name in cube.coords)
        unit = next((each for each in (*units, cube.attrs.get("wavelength_units")) if isinstance(each, str)), "nm")
        lengths = lengths_in_nanometres(columns["wavelength"], columns["fwhm"], unit, None, "the DataArray")
        columns |= dict(zip(("wavelength", "fwhm"), lengths, strict=True))
    cube = cube.assign_coords({name: ("band", _band_column(name, columns[name], bands)) for name in BAND_TABLE})
    cube.attrs = {key: value for key, value in cube.attrs.items() if key not in TABLE_ATTRIBUTES}
    return cube


def _foreign_column(cube: xr.DataArray, name: str) -> Any:
    """What a DataArray of another tool has for a column: a coordinate, or an attribute."""
    if name in cube.coords:
        return cube[name].values
    if name in ("band_name", "wavelength", "fwhm"):
        listed = cube.attrs.get("long_name" if name == "band_name" else name)
        return listed if isinstance(listed, tuple | list | np.ndarray) and len(listed) == cube.sizes["band"] else None
    return cube.attrs.get(SCALING_ATTRIBUTES.get(name, ""))


def _columns_of_source(cube: xr.DataArray, names: Sequence[str]) -> dict[str, Any]:
    """Columns of the raster that rioxarray opened: it drops the tags of bands, but keeps the path and band numbers."""
    source = cube.encoding.get("source")
    numbers = cube["band"].values if "band" in cube.coords else np.empty(0)
    if not isinstance(source, str) or not Path(source).is_file() or numbers.dtype.kind not in "iu":
        return {}
    # That module builds on this one.
    from hyperfuse.io.raster import open_raster

    opened = open_raster(Path(source))
    if not numbers.size or not (numbers.min() >= 1 and numbers.max() <= opened.sizes["band"]):
        return {}
    return {name: opened[name].values[numbers - 1] for name in names if name not in SCALING_ATTRIBUTES}


def _band_column(name: str, column: Any, bands: int) -> NDArray[Any]:
    dtype, default = BAND_TABLE[name]
    if name == "band_name" and column is not None:
        column = clean_text(column) if isinstance(column, str | bytes) else [clean_text(text or "") for text in column]
    array: NDArray[Any] = np.array(default if column is None else column, dtype=dtype)
    array = np.full(bands, array) if array.ndim == 0 else array
    if array.shape != (bands,):
        got = f"{name} list of {array.size} entries for {bands} bands"
        raise BandError(got, f"{bands} entries", "fix the list or leave it out")
    if name in ("wavelength", "fwhm"):
        array[~np.isfinite(array)] = np.nan
    elif name in ("scale", "offset") and not np.isfinite(array).all():
        raise BandError(f"{name} {array[~np.isfinite(array)][0]} of a band", "finite numbers", "fix it in the file")
    return array


def clean_text(value: Any) -> str:
    """Return a value as text that every format can hold: no NUL, no lone surrogates."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8", "replace")


def text_attributes(cube: xr.DataArray) -> dict[str, str]:
    """Return the attributes of a cube as texts."""
    return {clean_text(str(key)): clean_text(value) for key, value in cube.attrs.items() if key != "_FillValue"}


def lengths_in_nanometres(
    wavelength: ArrayLike | None, fwhm: ArrayLike | None, unit: str | None, fwhm_unit: str | None, where: str = ""
) -> tuple[Lengths | None, Lengths | None]:
    """Convert wavelengths and widths to nm; None for what is not a length.

    A unit that is missing, or in which no sensor works (0.46 nm), is replaced with one warning by the one that makes
    sense. Widths without a unit of their own follow the wavelengths, which are far easier to judge.
    """
    centres, widths = _known(wavelength), _known(fwhm)
    factor, width_factor = _factor(unit), _factor(fwhm_unit)
    if centres is not None and factor != 0:
        if _counts_bands(centres):
            warnings.warn(f"{where or 'the cube'}: wavelengths 1, 2, 3, ... only count the bands", stacklevel=3)
            return None, None
        if factor is None:
            factor = _guessed(centres, SMALLEST_NM, where)
        else:
            usual = SMALLEST_NM, LARGEST_NM
            factor = _plausible(centres, factor, usual, "wavelengths", str(unit).strip(), where)
    width_factor = factor if width_factor is None else width_factor
    if widths is not None and width_factor is None:
        width_factor = _guessed(widths, LARGEST_WIDTH_MICROMETRES, where)
    elif widths is not None and centres is not None and factor and width_factor:
        # A band is narrower than its wavelength, and wider than any imaging spectrometer resolves.
        usual = SMALLEST_WIDTH_NM, _typical(centres) * factor
        name = USUAL_UNITS.get(width_factor, "their unit")
        width_factor = _plausible(widths, width_factor, usual, "widths", name, where)
    return _converted(centres, factor), _converted(widths, width_factor)


def _known(values: ArrayLike | None) -> Lengths | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    return array if np.isfinite(array).any() else None


def _factor(unit: str | None) -> float | None:
    """Nanometres per unit: 0 for units of something else, None where it is unknown."""
    name = (unit or "").strip().strip("{}").strip().lower()
    return 0.0 if name in NOT_A_WAVELENGTH else NANOMETRES_PER_UNIT.get(name)


def _typical(values: Lengths) -> float:
    return float(np.median(np.abs(values[np.isfinite(values)])))


def _counts_bands(values: Lengths) -> bool:
    return values.size > 2 and any(np.array_equal(values, np.arange(values.size) + start) for start in (0, 1))


def _plausible(
    values: Lengths, stated: float, range_nm: tuple[float, float], what: str, unit: str, where: str
) -> float | None:
    """The stated factor where it gives lengths in this range, else the first usual one that does; None without any."""
    typical = _typical(values)
    possible = [factor for factor in (stated, *USUAL_UNITS) if range_nm[0] <= typical * factor < range_nm[1]]
    if possible[:1] != [stated]:
        taken = f"taken as {USUAL_UNITS[possible[0]]}" if possible else "left out"
        text = f"{where or 'the cube'} gives {what} around {typical:g} in {unit}, which is implausible: {taken}"
        warnings.warn(text, stacklevel=4)
    return possible[0] if possible else None


def _guessed(values: Lengths, largest_micrometres: float, where: str) -> float:
    micrometres = float(np.abs(values[np.isfinite(values)]).max()) < largest_micrometres
    guess = "micrometres" if micrometres else "nanometres"
    warnings.warn(f"{where or 'the cube'} gives no wavelength unit: taken as {guess}", stacklevel=4)
    return 1e3 if micrometres else 1.0


def lengths_in_names(names: Sequence[str], where: str = "") -> Lengths | None:
    """Return the wavelengths in nm that every one of the band names states, such as "band 1 (418.24 Nanometers)"."""
    found = [LENGTH_IN_NAME.search(str(name)) for name in names]
    if not found or not all(found):
        return None
    centres = [float(match[1] or match[3]) for match in found if match]
    units = {(match[2] or "").lower() for match in found if match}
    unit = units.pop() if len(units) == 1 else None
    return lengths_in_nanometres(centres, None, unit, None, f"{where}: a band name".removeprefix(": "))[0]


def _converted(values: Lengths | None, factor: float | None) -> Lengths | None:
    if values is None or not factor:
        return None
    with np.errstate(over="ignore"):
        # Dividing by a power of ten rounds once less than multiplying by its inverse: 4000 angstroms are 400 nm.
        return values / (1 / factor) if factor < 1 else values * factor


def numbers(entries: Sequence[str]) -> Lengths | None:
    """Return entries as numbers, or None where one of them is not."""
    try:
        return np.array([float(entry) for entry in entries], dtype=np.float64)
    except ValueError:
        return None


def wavelengths_nm(cube: xr.DataArray) -> Lengths | None:
    """Return the band centres in nanometres, or None where any of them is unknown."""
    centres: Lengths = cube["wavelength"].values
    return None if np.isnan(centres).any() else centres


def in_memory(cube: xr.DataArray) -> xr.DataArray:
    """The same with its values, as they are stored, in memory; `compute` and `copy` of xarray import Dask."""
    held = xr.DataArray(plain_variable(cube.dims, cube.values, cube.attrs), coords=cube.coords, name=cube.name)
    held.encoding = cube.encoding
    return held


def physical_values(
    cube: xr.DataArray,
    rows: slice = slice(None),
    columns: slice = slice(None),
    bands: slice | ArrayLike = slice(None),
    dtype: DTypeLike = np.float32,
) -> NDArray[Any]:
    """Read a window of a cube as physical values.

    Parameters
    ----------
    cube
        A cube, lazy or in memory.
    rows, columns, bands
        The window; everything by default.
    dtype
        Floating-point type of the result.

    Returns
    -------
    numpy.ndarray
        stored * scale + offset of shape (band, y, x), NaN where there is no data.

    Examples
    --------
    >>> import numpy as np
    >>> cube = make_cube(np.array([[[0, 5000]]], np.uint16), scale=1e-4, nodata=0)
    >>> physical_values(cube).tolist()
    [[[nan, 0.5]]]
    """
    window = cube.isel(band=as_slice(bands), y=rows, x=columns)
    stored = window.values
    scale, offset = (window[name].values.reshape(-1, 1, 1) for name in ("scale", "offset"))
    nodata = fitting_nodata(nodata_of(cube), stored.dtype)
    if np.dtype(dtype) == np.float32 and not offset.any():
        quickly = compiled.scaled(stored, scale.ravel(), nodata)
        if quickly is not None:
            return quickly
    # A value outside the range of `dtype` becomes infinite there, and is as unusable as one that is so in the file.
    with np.errstate(over="ignore", invalid="ignore"):
        values: NDArray[Any]
        if (offset != 0).any():
            values = (stored * scale + offset).astype(dtype)
        elif (scale != 1).any():
            # In double precision, but not as an array of it.
            values = np.multiply(stored, scale, out=np.empty(stored.shape, dtype), casting="same_kind")
        else:
            values = stored.astype(dtype)
        is_finite = np.isfinite(values.sum())
    warn_of_underflow(stored, values)
    if nodata is not None or not is_finite:
        values[missing_values(stored, nodata) | ~np.isfinite(values)] = np.nan
    return values


def as_slice(positions: slice | ArrayLike) -> slice | ArrayLike:
    """The same positions as a slice where possible: for an array xarray imports Dask, in a third of a second."""
    if isinstance(positions, np.ndarray) and positions.size:
        step = 1 if positions.size == 1 else int(positions[1] - positions[0])
        if step > 0 and (np.diff(positions) == step).all():
            return slice(int(positions[0]), int(positions[-1]) + 1, step)
    return positions


def warn_of_underflow(numbers: NDArray[Any], converted: NDArray[Any]) -> None:
    """Warn where numbers are so small that all of them became zero."""
    if numbers.dtype == np.float64 and not converted.any() and numbers.any():
        warnings.warn(f"values are too small for {converted.dtype} and become 0: rescale the data", stacklevel=3)


def nodata_of(cube: xr.DataArray) -> float | None:
    """Return nodata as a number of the cube's own type; None where there is none or the type cannot hold it."""
    if cube.encoding.get("_FillValue") is not None:
        # xarray has made them NaN.
        return fitting_nodata(np.nan, cube.dtype)
    kept = next((cube.attrs[name] for name in NODATA_NAMES if cube.attrs.get(name) is not None), None)
    return fitting_nodata(kept[0] if isinstance(kept, tuple) else kept, cube.dtype)


def fitting_nodata(value: Any, dtype: np.dtype[Any]) -> float | None:
    """Return the number of this data type that a nodata value means, or None."""
    number = np.asarray(value).ravel()
    if value is None or number.size != 1 or number.dtype.kind not in "iuf":
        return None
    nodata = number[0].item()
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            nearest = float(dtype.type(nodata))
        return None if np.isinf(nearest) and not np.isinf(nodata) else nearest
    limits = np.iinfo(dtype)
    is_whole = np.isfinite(nodata) and nodata == int(nodata)
    return int(nodata) if is_whole and limits.min <= int(nodata) <= limits.max else None


def usual_nodata(dtype: np.dtype[Any]) -> float:
    """Return a nodata value for data without one: NaN, or the integer least likely to be a measurement."""
    if dtype.kind == "f":
        return float("nan")
    limits = np.iinfo(dtype)
    return int(limits.min) if limits.min < 0 else int(limits.max)


def missing_values(stored: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Return where stored values are nodata, NaN or infinite."""
    missing = ~np.isfinite(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)
    nodata = fitting_nodata(nodata, stored.dtype)
    if nodata is not None and not np.isnan(nodata):
        missing |= stored == stored.dtype.type(nodata)
    return missing


def window_of(cube: xr.DataArray, rows: slice, columns: slice) -> xr.DataArray:
    """Return a lazy window with its own transform (plain `isel` keeps the old one)."""
    window = cube.isel(y=rows, x=columns)
    transform = current_transform(cube)
    if transform is None:
        return window
    (y0, _, step_y), (x0, _, step_x) = rows.indices(cube.sizes["y"]), columns.indices(cube.sizes["x"])
    corner = Affine.translation(x0 + (1 - step_x) / 2, y0 + (1 - step_y) / 2)
    return place_cube(window, None, transform @ corner @ Affine.scale(step_x, step_y), None)


def iterate_windows(cube: xr.DataArray, max_bytes: int = 64 * 2**20, block: int = 256) -> Iterator[tuple[slice, slice]]:
    """Yield windows (rows, columns) that cover a cube in reading order, each at most about `max_bytes` as float32.

    They are aligned to blocks: whole blocks, or where one block is too much, halves, quarters, ... of its rows.
    """
    bands, height, width = cube.shape
    pixels = max(1, max_bytes // (4 * bands))
    columns = width if width * min(block, height) <= pixels else max(block, pixels // block // block * block)
    rows = max(1, pixels // min(columns, width))
    if rows < height:
        rows = rows // block * block if rows >= block else 2 ** int(np.log2(rows))
    for y in range(0, height, rows):
        for x in range(0, width, columns):
            yield slice(y, min(y + rows, height)), slice(x, min(x + columns, width))


def spread_slices(size: int, side: int, most: int, *, overlap: bool = False) -> list[slice]:
    """Return windows spread evenly over an axis, from its first to its last pixel: as many as fit, at most `most`."""
    side = min(side, size)
    count = most if overlap else max(1, min(most, size // side))
    starts = [round(index * (size - side) / max(1, count - 1)) for index in range(count)]
    return [slice(start, start + side) for start in starts]


def sample_of(cube: xr.DataArray) -> xr.DataArray:
    """Return a lazy window from the middle, some bands of it; scattered pixels would cost a whole block each."""
    bands, height, width = cube.shape
    most_bands, *sides = SAMPLE_SHAPE
    rows, columns = (
        slice(max(0, (size - side) // 2), (size + side) // 2 + 1)
        for size, side in zip((height, width), sides, strict=True)
    )
    # Not an array of positions, for which xarray imports Dask.
    return cube[:: -(-bands // most_bands), rows, columns]


@dataclass(frozen=True)
class WindowReader:
    """A (band, y, x) array that is read or computed window by window; `read` must be picklable."""

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    read: Callable[[NDArray[np.int64], slice, slice], NDArray[Any]]
    """Returns the given bands, in the given order, of rows and columns start:stop (step 1)."""
    block: tuple[int, int, int] | None = None
    """The shape of what the file holds as one compressed block, all of which any window needs."""


class _WindowedArray(BackendArray):
    def __init__(self, reader: WindowReader) -> None:
        self.reader = reader
        self.shape = reader.shape
        self.dtype = delivered_dtype(reader.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if isinstance(key, indexing.BasicIndexer | indexing.OuterIndexer):
            # Not through xarray's adapter, which fails on an empty slice of negative step.
            return self._read(key.tuple)
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        bands, rows, columns = (_positions(part, size) for part, size in zip(key, self.shape, strict=True))
        block = np.empty((bands.size, rows.size, columns.size), self.dtype)
        if block.size:
            column_range, inner_columns = covering(columns)
            start = 0
            for part in contiguous_parts(rows):
                row_range, inner_rows = covering(part)
                values = self.reader.read(bands, row_range, column_range)
                if values.shape == block.shape and values.dtype == self.dtype and values.flags.owndata:
                    block = values[:, inner_rows][:, :, inner_columns]
                    break
                block[:, start : start + part.size] = values[:, inner_rows][:, :, inner_columns]
                start += part.size
        return block[tuple(0 if isinstance(part, int | np.integer) else slice(None) for part in key)]


def lazy_variable(reader: WindowReader) -> xr.Variable:
    """Return a variable whose values are read from the reader when a window of them is needed."""
    encoding = {} if reader.block is None else {"preferred_chunks": dict(zip(DIMS, reader.block, strict=True))}
    return xr.Variable(DIMS, indexing.LazilyIndexedArray(_WindowedArray(reader)), encoding=encoding)


def block_bytes(cube: xr.DataArray) -> int:
    """Return the size of the blocks of the file that a cube is read from, unpacked; 0 where there are none."""
    block = cube.encoding.get("preferred_chunks", {})
    is_known = all(isinstance(block.get(name), int) for name in DIMS)
    return cube.dtype.itemsize * math.prod(block[name] for name in DIMS) if is_known else 0


def delivered_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of lazy values: native byte order, and float32 and uint8 for float16 and bool, which few know."""
    if stored.kind == "b":
        return np.dtype(np.uint8)
    return np.dtype(np.float32) if stored == np.float16 else stored.newbyteorder("=")


def _positions(key: Any, size: int) -> NDArray[np.int64]:
    if isinstance(key, slice):
        return np.arange(*key.indices(size))
    positions = np.atleast_1d(np.asarray(key, dtype=np.int64))
    return np.where(positions < 0, positions + size, positions)


def contiguous_parts(positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split positions into parts worth reading at once: all of them or, where they are sparse, runs of neighbours."""
    span = int(positions.max()) - int(positions.min()) + 1
    if span <= SPARSE * positions.size:
        return [positions]
    return np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)


def covering(positions: NDArray[np.int64]) -> tuple[slice, Any]:
    """Return the contiguous range that covers some positions, and their index within that range."""
    start, stop = int(positions.min()), int(positions.max()) + 1
    in_order = np.array_equal(positions, np.arange(start, stop))
    return slice(start, stop), slice(None) if in_order else positions - start


@contextmanager
def reading(path: Path, expected: str, remedy: str = "fetch or export it again") -> Iterator[None]:
    """Turn whatever scipy, zarr, h5py or numpy raise over a damaged file into one `CubeFileError`."""
    try:
        yield
    except (HyperfuseError, CopyNeeded):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise CubeFileError(f"{path} cannot be read: {text}", expected, remedy) from error
