"""A cube: an `xarray.DataArray` with dims (band, y, x) that keeps everything known about its bands, values and place.

Values stay as they are stored (counts, scaled integers, reflectance); `physical_values` applies nodata, scale and offset. The
coordinates on `band` are a table with one row per band, never an index, because detectors overlap and bands need not be sorted:

    wavelength, fwhm   float64, nanometres, NaN where unknown        good     bool, False for bad bands
    band_name          str, "" where unnamed                         scale, offset   physical = stored * scale + offset

CRS and transform live where rioxarray keeps them (`cube.rio`), nodata in `cube.rio.nodata`.
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

from hyperfuse.errors import BandError, CubeFileError

DIMS = ("band", "y", "x")
BAND_TABLE: dict[str, tuple[type, Any]] = {
    "wavelength": (np.float64, np.nan),
    "fwhm": (np.float64, np.nan),
    "good": (np.bool_, True),
    "band_name": (np.str_, ""),
    "scale": (np.float64, 1.0),
    "offset": (np.float64, 0.0),
}


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
    variable = values if isinstance(values, xr.Variable) else xr.Variable(DIMS, values)
    if variable.ndim != 3 or 0 in variable.shape:
        raise CubeFileError(f"array of shape {variable.shape}", "three dimensions (band, y, x), none of them empty")
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


def place_cube(cube: xr.DataArray, crs: CRS | str | int | None, transform: Affine | None, nodata: float | None) -> xr.DataArray:
    """Write CRS, transform (with pixel-centre x and y where the grid is not rotated) and nodata into a cube."""
    if transform is not None:
        cube = cube.drop_vars(["x", "y"], errors="ignore").rio.write_transform(transform)
        if transform.b == 0 and transform.d == 0:
            x = transform.c + transform.a * (np.arange(cube.sizes["x"]) + 0.5)
            y = transform.f + transform.e * (np.arange(cube.sizes["y"]) + 0.5)
            cube = cube.assign_coords(x=x, y=y)
    if crs is not None:
        cube = cube.rio.write_crs(crs)
    if nodata is not None:
        cube = cube.rio.write_nodata(nodata)
    return cube


def as_cube(image: xr.DataArray | NDArray[Any]) -> xr.DataArray:
    """Accept what a person has at hand, a DataArray or a (band, y, x) array, and complete its band table."""
    if not isinstance(image, xr.DataArray):
        return make_cube(np.asarray(image))
    if set(image.dims) != set(DIMS):
        raise CubeFileError(f"DataArray with dims {image.dims}", f"dims {DIMS}", "rename and transpose it first")
    cube = image.transpose(*DIMS)
    missing = {name: ("band", _band_column(name, None, cube.sizes["band"])) for name in BAND_TABLE if name not in cube.coords}
    return cube.assign_coords(missing) if missing else cube


def wavelengths_nm(cube: xr.DataArray) -> NDArray[np.float64] | None:
    """Band centres in nanometres, or None where any of them is unknown."""
    centres: NDArray[np.float64] = cube["wavelength"].values
    return None if np.isnan(centres).any() else centres


def nodata_of(cube: xr.DataArray) -> float | None:
    nodata = cube.rio.nodata
    return None if nodata is None else nodata.item() if isinstance(nodata, np.generic) else nodata


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
    if (scale == 1).all() and (offset == 0).all():
        values = stored.astype(dtype)
    else:
        values = (stored * scale + offset).astype(dtype)
    values[missing] = np.nan
    return values


def missing_values(stored: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Where stored values mean 'nothing was measured': nodata, NaN and infinities."""
    missing = ~np.isfinite(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)
    if nodata is not None and not np.isnan(nodata):
        missing |= stored == stored.dtype.type(nodata)
    return missing


def window_of(cube: xr.DataArray, rows: slice, columns: slice) -> xr.DataArray:
    """A window that stays lazy and whose transform moves along with it (plain `isel` leaves the old transform behind)."""
    y0, x0 = rows.indices(cube.sizes["y"])[0], columns.indices(cube.sizes["x"])[0]
    window = cube.isel(y=rows, x=columns)
    if not has_transform(cube):
        return window
    moved = stored_transform(cube) @ Affine.translation(x0, y0)
    return place_cube(window, None, moved, None)


def has_transform(cube: xr.DataArray) -> bool:
    return "spatial_ref" in cube.coords and "GeoTransform" in cube["spatial_ref"].attrs


def stored_transform(cube: xr.DataArray) -> Affine:
    return Affine.from_gdal(*map(float, cube["spatial_ref"].attrs["GeoTransform"].split()))


def iterate_windows(cube: xr.DataArray, max_bytes: int = 64 * 2**20, block: int = 256) -> Iterator[tuple[slice, slice]]:
    """Windows (rows, columns) that cover a cube in reading order, aligned to blocks, each at most about `max_bytes` as float32."""
    bands, height, width = cube.shape
    pixels = max(1, max_bytes // (4 * bands))
    columns = width if width * min(block, height) <= pixels else max(block, pixels // block // block * block)
    rows = max(1, min(height, pixels // min(columns, width)))
    rows = rows if rows >= height or rows < block else rows // block * block
    for y in range(0, height, rows):
        for x in range(0, width, columns):
            yield slice(y, min(y + rows, height)), slice(x, min(x + columns, width))


def _band_column(name: str, column: ArrayLike | None, bands: int) -> NDArray[Any]:
    dtype, default = BAND_TABLE[name]
    if column is None:
        return np.full(bands, default, dtype=dtype)
    array: NDArray[Any] = np.asarray(column, dtype=dtype)
    if array.ndim == 0:
        array = np.full(bands, array, dtype=array.dtype)
    if array.shape != (bands,):
        raise BandError(
            f"{name} list of {array.size} entries for {bands} bands",
            f"{bands} entries",
            "mend the list or leave it out",
        )
    return array
