"""NetCDF: version 4, which is HDF5, read and written; version 3 read through scipy. Also the words of CF that Zarr
stores share.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import pyproj
import scipy.io
import xarray as xr
from numpy.typing import NDArray
from pyproj.exceptions import CRSError as ProjectionError
from rasterio.crs import CRS

from hyperfuse.errors import OptionError
from hyperfuse.io.arrays import OTHER_ATTRIBUTES, STORAGE_ATTRIBUTES, FoundArray
from hyperfuse.io.cube import nodata_of
from hyperfuse.io.grid import Grid, grid_of
from hyperfuse.io.hdf5 import Hdf5Writer, arrays_in_hdf5, guarded_for_hdf5
from hyperfuse.io.lazy import reading
from hyperfuse.io.provenance import text_attributes

CHUNK = 128
CONVENTIONS = "CF-1.11"
COMPRESSIONS = ("gzip", "lzf", "none")
WHOLE_CLASSIC = "a whole NetCDF file"


@dataclass(frozen=True)
class _LoadFromClassic:
    """Reads part of a variable of NetCDF-3 through a mapping that is closed again at once."""

    path: str
    name: str

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with reading(Path(self.path), WHOLE_CLASSIC), _opened_classic(Path(self.path)) as source:
            return np.array(source.variables[self.name].data[key])


def arrays_in_netcdf(path: Path) -> list[FoundArray]:
    with path.open("rb") as file:
        if not file.read(3).startswith(b"CDF"):
            return arrays_in_hdf5(path)
    with reading(path, WHOLE_CLASSIC), _opened_classic(path) as source:
        return [
            FoundArray(
                name,
                tuple(variable.shape),
                np.dtype(variable.data.dtype),
                _LoadFromClassic(str(path), name),
                tuple(variable.dimensions),
                dict(vars(variable)["_attributes"]),
            )
            for name, variable in source.variables.items()
        ]


class _BoundedFile(io.BufferedReader):
    """A file that never promises more bytes than it has: scipy asks for as many as a damaged header says."""

    def read(self, size: int | None = -1) -> bytes:
        left = os.fstat(self.fileno()).st_size - self.tell()
        return super().read(max(0, min(left, left if size is None or size < 0 else size)))


@contextmanager
def _opened_classic(path: Path) -> Iterator[Any]:
    source = scipy.io.netcdf_file(_BoundedFile(path.open("rb", buffering=0)), "r", mmap=True)
    try:
        yield source
    finally:
        # scipy warns about a mapping that is still in use when it closes; without the variables it is not.
        source.variables.clear()
        source.close()


@contextmanager
def created_netcdf(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[Hdf5Writer]:
    """NetCDF-4 after the CF conventions, which is an HDF5 file like any other: the same for .nc and .h5."""
    compression = options.get("COMPRESS", "gzip").lower()
    if compression not in COMPRESSIONS:
        raise OptionError(f"COMPRESS={options['COMPRESS']} for {path.name}", f"one of {', '.join(COMPRESSIONS)}")
    with guarded_for_hdf5(path) as guarded, h5netcdf.File(guarded, "w") as file:
        yield Hdf5Writer(_define(file, template, None if compression == "none" else compression), guarded)


def _define(file: Any, template: xr.DataArray, compression: str | None) -> Any:
    """All variables, with everything but the cube's values; returns the cube's."""
    bands, height, width = template.shape
    grid, nodata = grid_of(template), nodata_of(template)
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
    cube.attrs.update(labelled_attributes(template))
    for name, (dims, values, attributes) in labelled_sides(template).items():
        is_text = values.dtype.kind == "U"
        side = file.create_variable(name, dims, h5py.string_dtype() if is_text else values.dtype)
        side[...] = values.astype(object) if is_text else values
        side.attrs.update(attributes)
    reference = file.create_variable("spatial_ref", (), np.int64)
    reference.attrs.update(place_attributes(grid))
    return cube


def file_attributes(template: xr.DataArray) -> dict[str, Any]:
    """What CF says about a file as a whole, and how hyperfuse made it, where every reader looks first."""
    texts = {key: text for key, text in text_attributes(template).items() if re.fullmatch(r"hyperfuse_[a-z_]+", key)}
    return {"Conventions": CONVENTIONS} | texts


def labelled_attributes(template: xr.DataArray) -> dict[str, Any]:
    """Attributes of the cube's own variable, in CF words; a scale that is the same for all bands becomes
    `scale_factor`.
    """
    texts = text_attributes(template)
    reserved = {
        key for key in texts if key in STORAGE_ATTRIBUTES or not key.isidentifier() or key.startswith(("_", "MATLAB"))
    }
    numbers = {
        key: value for key, value in template.attrs.items() if type(value) in (int, float) and math.isfinite(value)
    }
    attributes: dict[str, Any] = {key: numbers.get(key, text) for key, text in texts.items() if key not in reserved}
    if reserved:
        attributes[OTHER_ATTRIBUTES] = json.dumps({key: texts[key] for key in sorted(reserved)})
    attributes |= {"grid_mapping": "spatial_ref", "coordinates": "wavelength fwhm good band_name"}
    scale, offset = template["scale"].values, template["offset"].values
    if is_uniform(template) and (scale[0] != 1 or offset[0] != 0):
        attributes |= {"scale_factor": float(scale[0]), "add_offset": float(offset[0])}
    return attributes


def is_uniform(template: xr.DataArray) -> bool:
    return all((template[name].values == template[name].values[0]).all() for name in ("scale", "offset"))


def labelled_sides(template: xr.DataArray) -> dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]]:
    """Band table and axes as (dims, values, attributes) by name."""
    sides: dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]] = {
        "wavelength": (
            ("band",),
            template["wavelength"].values,
            {"units": "nm", "standard_name": "radiation_wavelength"},
        ),
        "fwhm": (("band",), template["fwhm"].values, {"units": "nm", "long_name": "full width at half maximum"}),
        "good": (("band",), template["good"].values.astype(np.int8), {"long_name": "1 for good bands, 0 for bad ones"}),
        "band_name": (("band",), template["band_name"].values, {}),
    }
    if not is_uniform(template):
        sides["band_scale"] = (("band",), template["scale"].values, {})
        sides["band_offset"] = (("band",), template["offset"].values, {})
    for axis, attributes in _axis_attributes(template).items():
        if axis in template.coords and template[axis].dtype.kind in "iuf":
            sides[axis] = ((axis,), template[axis].values, attributes)
    return sides


def _axis_attributes(template: xr.DataArray) -> dict[str, dict[str, str]]:
    """Longitude and latitude, or distances in the units of the projection."""
    attributes = {axis: {"standard_name": f"projection_{axis}_coordinate"} for axis in ("y", "x")}
    crs = _pyproj_crs(grid_of(template).crs)
    for described in crs.cs_to_cf() if crs is not None else ():
        attributes[described["axis"].lower()] = described
    return {axis: attributes[axis] for axis in ("y", "x")}


def place_attributes(grid: Grid) -> dict[str, Any]:
    """CF's grid mapping: the projection by its parameters and as WKT, and GDAL's transform."""
    attributes: dict[str, Any] = {}
    crs = _pyproj_crs(grid.crs)
    if grid.crs:
        parameters = crs.to_cf() if crs is not None else {}
        attributes = parameters | dict.fromkeys(("crs_wkt", "spatial_ref"), grid.crs.to_wkt())
    if grid.transform is not None:
        attributes["GeoTransform"] = " ".join(repr(float(number)) for number in grid.transform.to_gdal())
    return attributes


def _pyproj_crs(crs: CRS | None) -> pyproj.CRS | None:
    try:
        return pyproj.CRS.from_wkt(crs.to_wkt()) if crs else None
    except ProjectionError:
        return None
