"""Open and write cubes; the suffix says which format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import as_cube, iterate_windows
from hyperfuse.cubes.envi import check_header, find_data, find_header
from hyperfuse.cubes.found_arrays import LAST, FoundArray, cube_from_arrays
from hyperfuse.cubes.hdf5 import arrays_in_hdf5, arrays_in_netcdf, created_netcdf
from hyperfuse.cubes.matlab import arrays_in_mat, created_mat
from hyperfuse.cubes.numpy_files import arrays_in_npy, arrays_in_npz, created_npy, created_npz
from hyperfuse.cubes.publishing import published
from hyperfuse.cubes.raster import read_raster
from hyperfuse.cubes.raster_writing import created_envi, created_geotiff
from hyperfuse.cubes.zarr_store import arrays_in_zarr, created_zarr
from hyperfuse.errors import CubeFileError, CubeWriteError
from hyperfuse.progress import progress

PathLike = str | os.PathLike[str]


class CubeWriter(Protocol):
    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        """Write one window of all bands, (band, rows, columns)."""


# Containers of arrays: how to list what is in them, and which axis holds the bands where nothing says so.
CONTAINERS: dict[str, tuple[Callable[[Path], list[FoundArray]], int | None]] = {
    ".nc": (arrays_in_netcdf, None),
    ".nc4": (arrays_in_netcdf, None),
    ".h5": (arrays_in_hdf5, None),
    ".hdf5": (arrays_in_hdf5, None),
    ".he5": (arrays_in_hdf5, None),
    ".zarr": (arrays_in_zarr, None),
    ".mat": (arrays_in_mat, LAST),
    ".npz": (arrays_in_npz, LAST),
    ".npy": (arrays_in_npy, LAST),
}
CREATORS: dict[str, Callable[[Path, xr.DataArray, Mapping[str, str]], AbstractContextManager[CubeWriter]]] = {
    ".tif": created_geotiff,
    ".tiff": created_geotiff,
    ".hdr": created_envi,
    ".nc": created_netcdf,
    ".nc4": created_netcdf,
    ".h5": created_netcdf,
    ".hdf5": created_netcdf,
    ".zarr": created_zarr,
    ".mat": created_mat,
    ".npz": created_npz,
    ".npy": created_npy,
}


def open_cube(path: PathLike, variable: str | None = None, band_axis: int | None = None) -> xr.DataArray:
    """Open a cube lazily: metadata now, values when a window of them is asked for.

    `variable` names the array in a file that holds several; `band_axis` (0, 1, 2) is where an unlabelled array has its bands.
    """
    path = Path(path)
    if not path.exists():
        raise CubeFileError(f"{path} does not exist", "a file or a .zarr folder", "check the name")
    suffix = path.suffix.lower()
    if suffix in CONTAINERS:
        list_arrays, default_band_axis = CONTAINERS[suffix]
        return cube_from_arrays(path, list_arrays(path), variable, band_axis, default_band_axis)
    if path.is_dir():
        raise CubeFileError(f"{path} is a folder", "a file or a .zarr folder", "name the file in it")
    if path.stat().st_size == 0:
        raise CubeFileError(f"{path} is empty", "a whole file", "fetch it again")
    if suffix == ".hdr":
        data = find_data(path)
        check_header(path, data)
        return read_raster(path, data)
    header = find_header(path)
    if header is not None and suffix not in (".tif", ".tiff"):
        check_header(header, path)
    return read_raster(path)


def write_cube(
    cube: xr.DataArray | NDArray[Any],
    path: PathLike,
    *,
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a cube, window by window, in the format of the suffix; the file appears whole or not at all."""
    cube = as_cube(cube)
    windows = list(iterate_windows(cube))
    with (
        created_cube(path, cube, options=options, cog=cog, overwrite=overwrite) as writer,
        progress("Writing", len(windows)) as advance,
    ):
        for rows, columns in windows:
            writer.write(rows, columns, cube.isel(y=rows, x=columns).values)
            advance(1)
    return Path(path)


@contextmanager
def created_cube(
    path: PathLike, template: xr.DataArray, *, options: Mapping[str, str] | None = None, cog: bool = False, overwrite: bool = False
) -> Iterator[CubeWriter]:
    """A new cube like `template` (whose values are not looked at), written window by window; it appears when the block ends."""
    path = Path(path)
    create = creator_for(path)
    given = {key.upper(): value for key, value in (options or {}).items()}
    with published(path, overwrite=overwrite) as temporary:
        if cog:
            if create is not created_geotiff:
                raise CubeWriteError(f"a cloud-optimised {path.suffix}", "--cog with .tif")
            with created_geotiff(temporary, template, given, cog=True) as writer:
                yield writer
            return
        with create(temporary, template, given) as writer:
            yield writer


def creator_for(path: Path) -> Callable[[Path, xr.DataArray, Mapping[str, str]], AbstractContextManager[CubeWriter]]:
    creator = CREATORS.get(path.suffix.lower())
    if creator is None:
        known = ", ".join(CREATORS)
        raise CubeWriteError(
            f"unknown suffix {path.suffix!r} of {path.name}", f"one of {known}", "ENVI is written as NAME.hdr + NAME.img"
        )
    return creator


def empty_like(cube: xr.DataArray, dtype: np.dtype[Any]) -> xr.DataArray:
    """A template of the same metadata and another data type that takes no memory."""
    values = np.broadcast_to(np.zeros((), dtype), cube.shape)
    return xr.DataArray(values, dims=cube.dims, coords=cube.coords, attrs=cube.attrs)
