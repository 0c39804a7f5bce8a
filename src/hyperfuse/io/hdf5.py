"""HDF5 and NetCDF: .h5, .he5, NetCDF-4 (which is HDF5) and MATLAB 7.3; NetCDF-3 is read through scipy.

Cubes are written after the CF conventions, the same for .nc and .h5; Zarr stores share these attributes.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.arrays import OTHER_ATTRIBUTES, STORAGE_ATTRIBUTES, FoundArray, read_part
from hyperfuse.io.atomic import GuardedFile, WriteWindow
from hyperfuse.io.cube import nodata_of, reading, text_attributes
from hyperfuse.io.grid import grid_of
from hyperfuse.io.output import OWN_NAME
from hyperfuse.io.products.product import ProductFile

CHUNK = 128
CONVENTIONS = "CF-1.11"
COMPRESSIONS = ("gzip", "lzf", "none")
# What h5py raises over damaged parts.
HDF5_ERRORS = (OSError, TypeError, KeyError, ValueError, RuntimeError, IndexError, AttributeError)

# What the NetCDF library fills variables with that declare no value, except bytes.
NETCDF_FILL: dict[str, float] = {
    "f4": float(np.float32(9.969209968386869e36)),
    "f8": 9.969209968386869e36,
    "i2": -32767,
    "u2": 65535,
    "i4": -2147483647,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
}

BAND_COLUMNS: dict[str, dict[str, str]] = {
    "wavelength": {"units": "nm", "standard_name": "radiation_wavelength"},
    "fwhm": {"units": "nm", "long_name": "full width at half maximum"},
    "good": {"long_name": "1 for good bands, 0 for bad ones"},
    "band_name": {},
}


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file; errors become `CubeFileError`."""
    import h5py

    with reading(path, "a whole HDF5 file"), h5py.File(path, "r") as file:
        yield file


@dataclass(frozen=True)
class LoadDataset:
    """Reads part of a data set; MATLAB stores axes in reverse, so for it the key and the result are reversed."""

    file: ProductFile
    name: str
    reverse_axes: bool = False

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with opened_hdf5(self.file.local_path()) as source:
            dataset = source[self.name]
            return np.asarray(dataset[key[::-1]]).T if self.reverse_axes else np.asarray(dataset[key])


def arrays_in_hdf5(file: Path | ProductFile, *, reverse_axes: bool = False) -> list[FoundArray]:
    """List every data set of a file, which may be a member of an archive, by its full name."""
    file = ProductFile.at(file) if isinstance(file, Path) else file
    path = file.local_path()
    found: list[FoundArray] = []

    def visit(name: str, item: Any) -> None:
        dtype = _dtype(item)
        if dtype is None or name.startswith("#refs#") or item.shape is None:
            return
        _check_storage(item, name, path)
        shape, chunks = item.shape, item.chunks
        if reverse_axes:
            shape, chunks = shape[::-1], chunks and chunks[::-1]
        load = LoadDataset(file, name, reverse_axes)
        attributes = dict(_attributes(item))
        if NETCDF_FILL.get(dtype.str[1:]) == item.fillvalue:
            attributes = _with_default_fill(dtype, attributes)
        found.append(FoundArray(name, shape, dtype, load, _dims(item), attributes, chunks))

    with opened_hdf5(path) as source:
        source.visititems(visit)
    return found


def _dtype(item: Any) -> np.dtype[Any] | None:
    """None for anything but an array of numbers or texts, also for types that numpy does not know."""
    import h5py

    if not isinstance(item, h5py.Dataset):
        return None
    try:
        dtype: np.dtype[Any] = item.dtype
    except TypeError:
        return None
    return dtype if dtype.kind in "iufbSUO" else None


def _dims(item: Any) -> tuple[str, ...] | None:
    """Names of the axes: of the scales, else the labels."""
    try:
        names = [axis[0].name.rsplit("/", 1)[-1] if len(axis) else axis.label for axis in item.dims]
    except HDF5_ERRORS:
        return None
    return tuple(names) if any(names) else None


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    import h5py

    for key in item.attrs:
        try:
            value = item.attrs[key]
        except HDF5_ERRORS:
            continue
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.ravel()[0]
        if isinstance(value, h5py.Empty):
            value = ""
        if not isinstance(value, h5py.Reference) and not (isinstance(value, np.ndarray) and value.dtype.kind == "O"):
            yield key, value.item() if isinstance(value, np.generic) else value


def _check_storage(item: Any, name: str, path: Path) -> None:
    """Refuse contiguous data beyond the end of the file, which would read as zeros."""
    offset = item.id.get_offset()
    if offset is not None and offset + item.id.get_storage_size() > path.stat().st_size:
        raise CubeFileError(f"{path} is truncated: {name} lies beyond its end", "a whole file", "fetch it again")


def _load_from_netcdf3(path: Path, name: str, key: tuple[Any, ...]) -> NDArray[Any]:
    """Read part of a variable, not through scipy's mapping (see `read_part`) unless its records are interleaved."""
    with _opened_netcdf3(path) as source:
        data = source.variables[name].data
        shape, dtype, origin = data.shape, data.dtype, None if data.base is None else data.base.ctypes.data
        if not data.flags.c_contiguous or origin is None:
            return np.array(data[key])
        offset = data.ctypes.data - origin
        del data
    with reading(path, "a whole NetCDF file"), path.open("rb") as stream:
        stream.seek(offset)
        return read_part(stream, dtype, shape, key)


def arrays_in_netcdf(path: Path) -> list[FoundArray]:
    """List the variables of a NetCDF file of any version."""
    with path.open("rb") as file:
        if not file.read(3).startswith(b"CDF"):
            return arrays_in_hdf5(path)
    with _opened_netcdf3(path) as source:
        return [
            FoundArray(
                name,
                tuple(variable.shape),
                np.dtype(variable.data.dtype),
                partial(_load_from_netcdf3, path, name),
                tuple(variable.dimensions),
                _with_default_fill(variable.data.dtype, vars(variable)["_attributes"]),
            )
            for name, variable in source.variables.items()
        ]


def _with_default_fill(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    default = NETCDF_FILL.get(dtype.str[1:])
    is_declared = default is None or "_FillValue" in attributes or "missing_value" in attributes
    return dict(attributes) | ({} if is_declared else {"_FillValue": default})


@contextmanager
def _opened_netcdf3(path: Path) -> Iterator[Any]:
    import scipy.io

    with reading(path, "a whole NetCDF file"):
        source = scipy.io.netcdf_file(path, "r", mmap=True)
        try:
            yield source
        finally:
            # scipy warns about a mapping that is still in use when it closes; without the variables it is not.
            source.variables.clear()
            source.close()


@contextmanager
def guarded_for_hdf5(path: Path) -> Iterator[GuardedFile]:
    """Open a file for HDF5 to write into; its errors are raised when the block ends."""
    with GuardedFile(path) as file:
        try:
            yield file
            file.raise_error()
        except (RuntimeError, SystemError, ValueError) as error:
            file.raise_error()
            raise OSError(errno.EIO, " ".join(str(error).split())[:200], str(path)) from error


@contextmanager
def created_netcdf(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[WriteWindow]:
    """Create a NetCDF-4 file after the CF conventions."""
    import h5netcdf

    compression = options.get("COMPRESS", "gzip").lower()
    if compression not in COMPRESSIONS:
        raise OptionError(f"COMPRESS={options['COMPRESS']} for {path.name}", f"one of {', '.join(COMPRESSIONS)}")
    with guarded_for_hdf5(path) as guarded, h5netcdf.File(guarded, "w") as file:
        cube = _define(file, template, None if compression == "none" else compression)

        def write(rows: slice, columns: slice, block: NDArray[Any]) -> None:
            cube[:, rows, columns] = block
            guarded.raise_error()

        yield write


def _define(file: Any, template: xr.DataArray, compression: str | None) -> Any:
    """Create all variables, with everything but the cube's values; return the cube's."""
    import h5py

    bands, height, width = template.shape
    nodata = nodata_of(template)
    file.attrs.update(file_attributes(template))
    file.dimensions = {"band": bands, "y": height, "x": width}
    cube = file.create_variable(
        "cube",
        ("band", "y", "x"),
        template.dtype,
        chunks=(min(bands, 16), min(height, CHUNK), min(width, CHUNK)),
        compression=compression,
        shuffle=compression is not None,
        fillvalue=None if nodata is None else template.dtype.type(nodata),
    )
    cube.attrs.update(cube_attributes(template))
    for name, variable in cf_variables(template).items():
        is_text = variable.dtype.kind == "U"
        column = file.create_variable(name, variable.dims, h5py.string_dtype() if is_text else variable.dtype)
        column[...] = variable.values.astype(object) if is_text else variable.values
        column.attrs.update(variable.attrs)
    return cube


def file_attributes(template: xr.DataArray) -> dict[str, Any]:
    """Return the attributes of a CF file as a whole; provenance is there because every reader looks there first."""
    own = {key: value for key, value in text_attributes(template).items() if OWN_NAME.fullmatch(key)}
    return {"Conventions": CONVENTIONS} | own


def cube_attributes(template: xr.DataArray) -> dict[str, Any]:
    """Return the CF attributes of the cube's variable; a scale equal in all bands becomes `scale_factor`."""
    texts = text_attributes(template)
    reserved = {
        key for key in texts if key in STORAGE_ATTRIBUTES or not key.isidentifier() or key.startswith(("_", "MATLAB"))
    }
    numbers = {
        key: value for key, value in template.attrs.items() if type(value) in (int, float) and math.isfinite(value)
    }
    attributes: dict[str, Any] = {key: numbers.get(key, value) for key, value in texts.items() if key not in reserved}
    if reserved:
        attributes[OTHER_ATTRIBUTES] = json.dumps({key: texts[key] for key in sorted(reserved)})
    attributes |= {"grid_mapping": "spatial_ref", "coordinates": "wavelength fwhm good band_name"}
    scale, offset = template["scale"].values, template["offset"].values
    if _is_uniform(template) and (scale[0] != 1 or offset[0] != 0):
        attributes |= {"scale_factor": float(scale[0]), "add_offset": float(offset[0])}
    return attributes


def _is_uniform(template: xr.DataArray) -> bool:
    return all((template[name].values == template[name].values[0]).all() for name in ("scale", "offset"))


def cf_variables(template: xr.DataArray) -> dict[str, xr.Variable]:
    """Return everything beside the values: the band table, the axes, and CF's grid mapping with GDAL's transform."""
    import pyproj
    from pyproj.exceptions import CRSError as ProjectionError

    columns = {key: xr.Variable("band", template[key].values, attributes) for key, attributes in BAND_COLUMNS.items()}
    columns["good"] = columns["good"].astype(np.int8)
    if not _is_uniform(template):
        columns |= {f"band_{key}": xr.Variable("band", template[key].values) for key in ("scale", "offset")}
    grid = grid_of(template)
    mapping: dict[str, Any] = {}
    axes: dict[str, Any] = {}
    if grid.crs:
        # What pyproj cannot express in CF's parameters, such as a projection that lacks one, is there as WKT alone.
        with suppress(ProjectionError, KeyError, ValueError, TypeError):
            crs = pyproj.CRS.from_wkt(grid.crs.to_wkt())
            mapping, axes = crs.to_cf(), {axis["axis"].lower(): axis for axis in crs.cs_to_cf()}
        mapping |= dict.fromkeys(("crs_wkt", "spatial_ref"), grid.crs.to_wkt())
    if grid.transform is not None:
        mapping["GeoTransform"] = grid.transform_text()
    for axis in ("y", "x"):
        if axis in template.coords and template[axis].dtype.kind in "iuf":
            projected = {"standard_name": f"projection_{axis}_coordinate"}
            columns[axis] = xr.Variable(axis, template[axis].values, axes.get(axis, projected))
    return columns | {"spatial_ref": xr.Variable((), np.int64(0), mapping)}
