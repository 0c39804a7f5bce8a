"""numpy files: .npz with `cube` (rows, columns, bands) and its band table; .npy with the table in `NAME.npy.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import xarray as xr
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from hyperfuse.io.arrays import FoundArray, read_part
from hyperfuse.io.atomic import WriteWindow
from hyperfuse.io.cube import nodata_of, reading, text_attributes
from hyperfuse.io.envi import raw_writer
from hyperfuse.io.grid import grid_of
from hyperfuse.io.products.product import ProductFile, zip_members

WHOLE = "a whole numpy file"


def _load_from_npy(file: ProductFile, key: tuple[Any, ...]) -> NDArray[Any]:
    """Read part of an array; a compressed member of an .npz archive is unpacked first."""
    path, offset = file.location()
    with reading(Path(file.container), WHOLE), path.open("rb") as stream:
        stream.seek(offset)
        shape, fortran_order, dtype = _read_header(stream)
        if fortran_order:
            return read_part(stream, dtype, shape[::-1], key[::-1]).T
        return read_part(stream, dtype, shape, key)


class ArrayWriter:
    """Collects windows in a (rows, columns, bands) array."""

    def __init__(self, template: xr.DataArray) -> None:
        self.values = np.empty((template.sizes["y"], template.sizes["x"], template.sizes["band"]), template.dtype)

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self.values[rows, columns] = block.transpose(1, 2, 0)


def arrays_in_npz(path: Path) -> list[FoundArray]:
    """List the arrays of an .npz archive."""
    with reading(path, WHOLE, "save it again with numpy.savez"):
        members = [each for each in zip_members(path) if each.name.endswith(".npy")]
    found = [_found(member, member.name.removesuffix(".npy")) for member in members]
    return [array for array in found if array.dtype.kind in "iufbSU"]


def arrays_in_npy(path: Path) -> list[FoundArray]:
    """Return the array of an .npy file and the columns of the table beside it."""
    found = [_found(ProductFile.at(path), path.stem)]
    table_file = _table_file(path)
    if table_file.is_file():
        with reading(table_file, "the JSON table of a cube", "fix it, or remove it to read the values alone"):
            table = dict(json.loads(table_file.read_text(encoding="utf-8")))
            columns = {str(key): _from_json(key, value) for key, value in table.items()}
        found += [FoundArray(key, values.shape, values.dtype, values.__getitem__) for key, values in columns.items()]
    return found


def _found(file: ProductFile, name: str) -> FoundArray:
    with reading(Path(file.container), WHOLE, "save it again with numpy.save"), file.open() as stream:
        shape, _, dtype = _read_header(stream)
    return FoundArray(name, shape, dtype, partial(_load_from_npy, file))


@contextmanager
def created_npz(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[WriteWindow]:
    """Create a compressed .npz archive, collected in memory."""
    writer = ArrayWriter(template)
    yield writer.write
    with path.open("wb") as stream:
        np.savez_compressed(stream, cube=writer.values, **flat_columns(template))


@contextmanager
def created_npy(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[WriteWindow]:
    """Create an .npy file. Not through a mapping: on a full disk that ends the process instead of raising."""
    bands, height, width = template.shape
    descr = npy_format.dtype_to_descr(template.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (height, width, bands)}
    with path.open("wb", buffering=0) as stream:
        npy_format.write_array_header_1_0(stream, header)
        yield raw_writer(stream, template.shape, "bip", offset=stream.tell())
    table = {key: _to_json(np.asarray(value).tolist()) for key, value in flat_columns(template).items()}
    _table_file(path).write_text(json.dumps(table, indent=1, allow_nan=False), encoding="utf-8")


def flat_columns(template: xr.DataArray) -> dict[str, Any]:
    """Return everything beside the values as plain arrays and texts, under the names that `cube_from_arrays` knows."""
    grid, nodata, attributes = grid_of(template), nodata_of(template), text_attributes(template)
    columns = {
        "wavelength_nm": template["wavelength"].values,
        "fwhm_nm": template["fwhm"].values,
        "good": template["good"].values,
        "band_name": json.dumps([str(name) for name in template["band_name"].values]),
        "scale": template["scale"].values,
        "offset": template["offset"].values,
        "nodata": template.dtype.type(nodata) if nodata is not None else None,
        "crs_wkt": grid.crs.to_wkt() if grid.crs else None,
        "geo_transform": grid.transform_text() if grid.transform else None,
        "attributes": json.dumps(attributes) if attributes else None,
    }
    return {key: value for key, value in columns.items() if value is not None}


def _table_file(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _to_json(value: Any) -> Any:
    """JSON has no NaN: an unknown wavelength is null, and a nodata of NaN a text."""
    if isinstance(value, list):
        return [None if isinstance(entry, float) and math.isnan(entry) else entry for entry in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(key: str, value: Any) -> NDArray[Any]:
    if isinstance(value, list):
        return np.asarray([math.nan if entry is None else entry for entry in value])
    return np.asarray(float(value) if key == "nodata" and isinstance(value, str) else value)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    return read(stream)
