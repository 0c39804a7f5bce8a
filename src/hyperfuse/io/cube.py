"""A cube: an `xarray.DataArray` with dims (band, y, x) that keeps everything known about its bands, values and place.

Values stay as they are stored (counts, scaled integers, reflectance); `physical_values` applies nodata, scale and
offset. The coordinates on `band` are a table with one row per band, never an index, because detectors overlap and bands
need not be sorted:

    wavelength, fwhm   float64, nanometres, NaN where unknown        good     bool, False for bad bands
    band_name          str, "" where unnamed                         scale, offset   physical = stored * scale + offset

CRS and transform live where rioxarray keeps them (`cube.rio`), nodata in `cube.rio.nodata`.

The stored value that means 'nothing was measured', as a number that the data type can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import rioxarray  # noqa: F401  (registers the .rio accessor)
import xarray as xr
from affine import Affine
from numpy.typing import ArrayLike, DTypeLike, NDArray
from rasterio.crs import CRS

from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.grid import current_transform, is_usable, placed_coordinates


def nodata_of(cube: xr.DataArray) -> float | None:
    """Nodata as a plain number of the cube's own data type, or None. What the type cannot hold occurs in no pixel: that
    is None.
    """
    if "_FillValue" in cube.attrs and "_FillValue" not in cube.encoding:
        # Not through rioxarray, which refuses 1e20 for float32, as CF files often have it: the nearest float32 is
        # another number.
        return fitting_nodata(cube.attrs["_FillValue"], cube.dtype)
    try:
        return fitting_nodata(cube.rio.nodata, cube.dtype)
    except (OverflowError, TypeError, ValueError):
        return fitting_nodata(cube.attrs.get("missing_value"), cube.dtype)


def fitting_nodata(value: Any, dtype: np.dtype[Any]) -> float | None:
    """The number of this data type that a nodata value means, or None where there is none."""
    number = np.asarray(value).ravel()
    if value is None or number.size != 1 or number.dtype.kind not in "iuf":
        return None
    nodata = number[0].item()
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            nearest = float(dtype.type(nodata))
        return None if np.isinf(nearest) and not np.isinf(nodata) else nearest
    limits = np.iinfo(dtype)
    whole = np.isfinite(nodata) and nodata == int(nodata)
    return int(nodata) if whole and limits.min <= int(nodata) <= limits.max else None


def usual_nodata(dtype: np.dtype[Any]) -> float:
    """For values that have no nodata of their own: NaN, or the integer least likely to be a measurement."""
    if dtype.kind == "f":
        return float("nan")
    limits = np.iinfo(dtype)
    return int(limits.min) if limits.min < 0 else int(limits.max)


def missing_values(stored: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Where stored values mean 'nothing was measured': nodata, NaN and infinities."""
    missing = ~np.isfinite(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)
    nodata = fitting_nodata(nodata, stored.dtype)
    if nodata is not None and not np.isnan(nodata):
        missing |= stored == stored.dtype.type(nodata)
    return missing


__all__ = [
    "as_cube",
    "iterate_windows",
    "make_cube",
    "missing_values",
    "nodata_of",
    "physical_values",
    "place_cube",
    "wavelengths_nm",
    "window_of",
]

DIMS = ("band", "y", "x")
BAND_TABLE: dict[str, tuple[type, Any]] = {
    "wavelength": (np.float64, np.nan),
    "fwhm": (np.float64, np.nan),
    "good": (np.bool_, True),
    "band_name": (np.str_, ""),
    "scale": (np.float64, 1.0),
    "offset": (np.float64, 0.0),
}
# Beyond any scene; a damaged header may promise more, and its coordinates alone would fill the memory.
LARGEST_SIDE = 2**24
# Where rioxarray and CF keep the scaling of a DataArray that has no band table yet.
SCALING_ATTRIBUTES = {"scale": "scale_factor", "offset": "add_offset"}


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
    """A cube from (band, y, x) values, in memory or lazy, and what is known about them."""
    shape = values.shape if isinstance(values, xr.Variable) else np.shape(values)
    if len(shape) != 3 or min(shape) < 1 or max(shape) > LARGEST_SIDE:
        raise CubeFileError(f"array of shape {shape}", f"three dimensions (band, y, x) of 1 to {LARGEST_SIDE} each")
    variable = values if isinstance(values, xr.Variable) else xr.Variable(DIMS, values)
    table = {
        "wavelength": wavelength_nm,
        "fwhm": fwhm_nm,
        "good": good,
        "band_name": band_names,
        "scale": scale,
        "offset": offset,
    }
    bands = variable.sizes["band"]
    coords = {name: ("band", _band_column(name, column, bands)) for name, column in table.items()}
    cube = xr.DataArray(variable, coords=coords, attrs=dict(attributes or {}))
    return place_cube(cube, crs, transform, nodata)


def place_cube(
    cube: xr.DataArray, crs: CRS | str | int | None, transform: Affine | None, nodata: float | None
) -> xr.DataArray:
    """Write CRS, transform (with pixel-centre x and y where the grid is not turned) and nodata into a cube."""
    # In place on a shallow copy: rioxarray's own copy is a deep one, of all values, even of those that take no memory
    # yet.
    cube = cube.copy(deep=False)
    if transform is not None and is_usable(transform):
        moved = cube.drop_vars(["x", "y", "pixel_row", "pixel_column"], errors="ignore").rio.write_transform(
            transform, inplace=True
        )
        cube = moved.assign_coords(placed_coordinates(transform, cube.sizes["y"], cube.sizes["x"]))
    if crs is not None:
        cube = cube.rio.write_crs(crs, inplace=True)
    if nodata is not None:
        fitting = fitting_nodata(nodata, cube.dtype)
        if fitting is None:
            raise OptionError(
                f"nodata {nodata} for {cube.dtype} values", "a number that this type can hold", "choose another"
            )
        cube = cube.rio.write_nodata(fitting, inplace=True)
    return cube


def as_cube(image: xr.DataArray | NDArray[Any]) -> xr.DataArray:
    """Accept what a person has at hand, a DataArray or a (band, y, x) array, and complete its band table."""
    if not isinstance(image, xr.DataArray):
        return make_cube(np.asarray(image))
    if set(image.dims) != set(DIMS) or 0 in image.shape:
        raise CubeFileError(
            f"DataArray of {dict(image.sizes)}",
            f"dims {DIMS}, none of them empty",
            "rename, transpose or expand it first",
        )
    cube = image.transpose(*DIMS)
    incomplete = {
        name: _own_column(cube, name) for name, (dtype, _) in BAND_TABLE.items() if not _is_column(cube, name, dtype)
    }
    if not incomplete:
        return cube
    bands = cube.sizes["band"]
    cube = cube.assign_coords(
        {name: ("band", _band_column(name, column, bands)) for name, column in incomplete.items()}
    )
    cube.attrs = {key: value for key, value in cube.attrs.items() if key not in SCALING_ATTRIBUTES.values()}
    return cube


def _is_column(cube: xr.DataArray, name: str, dtype: type) -> bool:
    return name in cube.coords and cube[name].dims == ("band",) and np.issubdtype(cube[name].dtype, dtype)


def _own_column(cube: xr.DataArray, name: str) -> Any:
    """What a DataArray of another tool says about its bands: a coordinate, or the attributes that rioxarray leaves
    there.
    """
    if name in cube.coords:
        return cube[name].values
    if name == "band_name":
        described = cube.attrs.get("long_name")
        return described if isinstance(described, tuple | list) and len(described) == cube.sizes["band"] else None
    return cube.attrs.get(SCALING_ATTRIBUTES.get(name, ""))


def wavelengths_nm(cube: xr.DataArray) -> NDArray[np.float64] | None:
    """Band centres in nanometres, or None where any of them is unknown."""
    centres: NDArray[np.float64] = cube["wavelength"].values
    return None if np.isnan(centres).any() else centres


def physical_values(
    cube: xr.DataArray,
    rows: slice = slice(None),
    columns: slice = slice(None),
    bands: slice | ArrayLike = slice(None),
    dtype: DTypeLike = np.float32,
) -> NDArray[Any]:
    """A window of a cube, read from its file if it is lazy, as physical values with NaN where there is no data."""
    window = cube.isel(band=bands, y=rows, x=columns)
    stored = window.values
    missing = missing_values(stored, nodata_of(cube))
    column_shape = (-1, 1, 1)
    scale = window["scale"].values.reshape(column_shape)
    offset = window["offset"].values.reshape(column_shape)
    # A value beyond the range of `dtype` becomes infinite there, and as unusable as one that is so in the file.
    with np.errstate(over="ignore", invalid="ignore"):
        if (scale == 1).all() and (offset == 0).all():
            values = stored.astype(dtype)
        else:
            values = (stored * scale + offset).astype(dtype)
    values[missing | ~np.isfinite(values)] = np.nan
    return values


def window_of(cube: xr.DataArray, rows: slice, columns: slice) -> xr.DataArray:
    """A window that stays lazy and whose transform moves along with it (plain `isel` leaves the old transform behind)."""
    window = cube.isel(y=rows, x=columns)
    transform = current_transform(cube)
    if transform is None:
        return window
    (y0, _, step_y), (x0, _, step_x) = rows.indices(cube.sizes["y"]), columns.indices(cube.sizes["x"])
    corner = Affine.translation(x0 + (1 - step_x) / 2, y0 + (1 - step_y) / 2)
    return place_cube(window, None, transform @ corner @ Affine.scale(step_x, step_y), None)


def iterate_windows(cube: xr.DataArray, max_bytes: int = 64 * 2**20, block: int = 256) -> Iterator[tuple[slice, slice]]:
    """Windows (rows, columns) that cover a cube in reading order, each at most about `max_bytes` as float32.

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


def _band_column(name: str, column: Any, bands: int) -> NDArray[Any]:
    dtype, default = BAND_TABLE[name]
    if column is None:
        return np.full(bands, default, dtype=dtype)
    array = _texts(column) if name == "band_name" else np.array(column, dtype=dtype)
    if array.ndim == 0:
        array = np.full(bands, array, dtype=array.dtype)
    if array.shape != (bands,):
        raise BandError(
            f"{name} list of {array.size} entries for {bands} bands",
            f"{bands} entries",
            "mend the list or leave it out",
        )
    if name in ("wavelength", "fwhm"):
        array[~np.isfinite(array)] = np.nan
    elif name in ("scale", "offset") and not np.isfinite(array).all():
        raise BandError(f"{name} {array[~np.isfinite(array)][0]} of a band", "finite numbers", "mend it in the file")
    return array


def _texts(column: Any) -> NDArray[np.str_]:
    """Texts that every format can hold: no NUL, no half characters."""
    entries = [column] if isinstance(column, str | bytes) else column
    texts = [entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry or "") for entry in entries]
    clean = [text.replace("\0", "").encode("utf-8", "replace").decode("utf-8", "replace") for text in texts]
    return np.array(clean if not isinstance(column, str | bytes) else clean[0], dtype=np.str_)
