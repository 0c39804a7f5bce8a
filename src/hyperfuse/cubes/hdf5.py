"""HDF5 and what is built on it: .h5, .he5, NetCDF-4 (.nc) and MATLAB 7.3 (.mat); also the old NetCDF-3 through scipy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import scipy.io
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import nodata_of
from hyperfuse.cubes.found_arrays import FoundArray, InMemory
from hyperfuse.cubes.grid import grid_of
from hyperfuse.errors import CubeFileError

CHUNK = 128


@dataclass(frozen=True)
class LoadFromHdf5:
    """Reads part of a data set; MATLAB stores axes in reverse, so for it the key and the result are turned around."""

    path: str
    name: str
    reverse_axes: bool = False

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with opened_hdf5(Path(self.path)) as file:
            if not self.reverse_axes:
                return np.asarray(file[self.name][key])
            return np.asarray(file[self.name][key[::-1]]).T


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, MemoryError, TypeError) as error:
        raise CubeFileError(
            f"{path} cannot be read: {_first_line(error)}", "a whole HDF5 file", "fetch or export it again"
        ) from error


def arrays_in_hdf5(path: Path, *, reverse_axes: bool = False) -> list[FoundArray]:
    """Every data set of a file, by its full name. MATLAB's axes come reversed, and its texts as numbers."""
    found: list[FoundArray] = []

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or name.startswith("#refs#") or item.dtype.kind not in "iufbSUO":
            return
        if _promises_too_much(item, path):
            raise CubeFileError(f"{path} is truncated: {name} lies beyond its end", "a whole file", "fetch it again")
        shape = item.shape[::-1] if reverse_axes else item.shape
        if item.shape is None:
            return
        load = LoadFromHdf5(str(path), name, reverse_axes)
        found.append(FoundArray(name, shape, item.dtype, load, _dims(item), dict(_attributes(item))))

    with opened_hdf5(path) as file:
        file.visititems(visit)
    return found


def arrays_in_netcdf(path: Path) -> list[FoundArray]:
    with path.open("rb") as file:
        if not file.read(3).startswith(b"CDF"):
            return arrays_in_hdf5(path)
    try:
        # mmap=False: nothing keeps the file open behind our back.
        with scipy.io.netcdf_file(path, "r", mmap=False) as source:
            return [
                FoundArray(
                    name,
                    variable.shape,
                    np.dtype(variable.data.dtype),
                    InMemory(np.array(variable.data)),
                    tuple(variable.dimensions),
                    dict(vars(variable)["_attributes"]),
                )
                for name, variable in source.variables.items()
            ]
    except (OSError, ValueError, TypeError, IndexError, KeyError, AssertionError, MemoryError, OverflowError) as error:
        raise CubeFileError(f"{path} cannot be read: {_first_line(error)}", "a whole NetCDF file", "fetch it again") from error


@contextmanager
def created_netcdf(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[Hdf5Writer]:
    """NetCDF-4 after the CF conventions, which is an HDF5 file like any other: the same for .nc and .h5."""
    bands, height, width = template.shape
    grid = grid_of(template)
    with h5netcdf.File(path, "w") as file:
        file.attrs["Conventions"] = "CF-1.11"
        file.dimensions = {"band": bands, "y": height, "x": width}
        compression = options.get("COMPRESS", "gzip").lower()
        cube = file.create_variable(
            "cube",
            ("band", "y", "x"),
            template.dtype,
            chunks=(min(bands, 16), min(height, CHUNK), min(width, CHUNK)),
            compression=None if compression == "none" else compression,
            shuffle=compression != "none",
            fillvalue=None if nodata_of(template) is None else template.dtype.type(nodata_of(template)),
        )
        cube.attrs.update(labelled_attributes(template))
        for name, (dims, values, attributes) in labelled_sides(template).items():
            dtype = h5py.string_dtype() if values.dtype.kind == "U" else values.dtype
            side = file.create_variable(name, dims, dtype)
            side[...] = values.astype(object) if values.dtype.kind == "U" else values
            side.attrs.update(attributes)
        reference = file.create_variable("spatial_ref", (), np.int64)
        reference.attrs.update(place_attributes(grid.crs.to_wkt() if grid.crs else None, grid.transform))
        yield Hdf5Writer(cube)


class Hdf5Writer:
    def __init__(self, target: Any) -> None:
        self._target = target

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self._target[:, rows, columns] = block


def labelled_attributes(template: xr.DataArray) -> dict[str, Any]:
    """Attributes of the cube's own variable, in CF words; a scale that is the same for all bands becomes `scale_factor`."""
    attributes = {key: value for key, value in template.attrs.items() if key != "_FillValue"}
    attributes |= {"grid_mapping": "spatial_ref", "coordinates": "wavelength fwhm good band_name"}
    scale, offset = template["scale"].values, template["offset"].values
    if is_uniform(template) and (scale[0] != 1 or offset[0] != 0):
        attributes |= {"scale_factor": float(scale[0]), "add_offset": float(offset[0])}
    return attributes


def is_uniform(template: xr.DataArray) -> bool:
    return all((template[name].values == template[name].values[0]).all() for name in ("scale", "offset"))


def labelled_sides(template: xr.DataArray) -> dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, str]]]:
    """Band table and axes as (dims, values, attributes) by name."""
    sides: dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, str]]] = {
        "wavelength": (("band",), template["wavelength"].values, {"units": "nm", "standard_name": "radiation_wavelength"}),
        "fwhm": (("band",), template["fwhm"].values, {"units": "nm", "long_name": "full width at half maximum"}),
        "good": (("band",), template["good"].values.astype(np.int8), {"long_name": "1 for good bands, 0 for bad ones"}),
        "band_name": (("band",), template["band_name"].values, {}),
    }
    if not is_uniform(template):
        sides["band_scale"] = (("band",), template["scale"].values, {})
        sides["band_offset"] = (("band",), template["offset"].values, {})
    for axis in ("y", "x"):
        if axis in template.coords:
            sides[axis] = ((axis,), template[axis].values, {"standard_name": f"projection_{axis}_coordinate"})
    return sides


def place_attributes(crs_wkt: str | None, transform: Any) -> dict[str, str]:
    attributes = {"crs_wkt": crs_wkt, "spatial_ref": crs_wkt} if crs_wkt else {}
    if transform is not None:
        attributes["GeoTransform"] = " ".join(repr(float(number)) for number in transform.to_gdal())
    return attributes


def _dims(item: Any) -> tuple[str, ...] | None:
    names = []
    for dim in item.dims:
        scale = dim[0].name.rsplit("/", 1)[-1] if len(dim) else dim.label
        names.append(scale or "")
    return tuple(names) if any(names) else None


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    for key in item.attrs:
        try:
            value = item.attrs[key]
        except (OSError, TypeError, KeyError):
            continue
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.ravel()[0]
        if not isinstance(value, h5py.Empty | h5py.Reference) and not (isinstance(value, np.ndarray) and value.dtype.kind == "O"):
            yield key, value.item() if isinstance(value, np.generic) else value


def _promises_too_much(item: Any, path: Path) -> bool:
    """Contiguous data sets say where their bytes begin: beyond the end of the file they would read as zeros."""
    offset = item.id.get_offset()
    return offset is not None and offset + item.id.get_storage_size() > path.stat().st_size


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
