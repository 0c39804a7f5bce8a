"""numpy's files: .npz with `cube` (rows, columns, bands) and its band table beside it; .npy with the table in `NAME.npy.json`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from hyperfuse.cubes.cube import nodata_of
from hyperfuse.cubes.found_arrays import FoundArray, InMemory
from hyperfuse.cubes.grid import grid_of
from hyperfuse.errors import CubeFileError


class _LoadMember:
    """A member of an .npz, read at the first look and kept: it is compressed as a whole and has no windows."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self._kept: NDArray[Any] | None = None

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        if self._kept is None:
            with _numpy_errors(Path(self.path)), np.load(self.path, allow_pickle=False) as archive:
                self._kept = np.asarray(archive[self.name])
        return np.asarray(self._kept[key])


@dataclass(frozen=True)
class _LoadMapped:
    path: str

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with _numpy_errors(Path(self.path)):
            return np.array(np.load(self.path, mmap_mode="r", allow_pickle=False)[key])


class ArrayWriter:
    """Collects windows in a (rows, columns, bands) array: memory, or a mapped file."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self.values[rows, columns] = block.transpose(1, 2, 0)


def arrays_in_npz(path: Path) -> list[FoundArray]:
    found = []
    with _numpy_errors(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                shape, dtype = _npy_header(stream)
            if int(np.prod(shape, dtype=object)) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} promises more values than it holds")
            name = member.filename.removesuffix(".npy")
            if dtype.kind in "iufbSU":
                found.append(FoundArray(name, shape, dtype, _LoadMember(str(path), name)))
    return found


def arrays_in_npy(path: Path) -> list[FoundArray]:
    with _numpy_errors(path), path.open("rb") as stream:
        shape, dtype = _npy_header(stream)
        if int(np.prod(shape, dtype=object)) * dtype.itemsize > path.stat().st_size:
            raise ValueError("it promises more values than it holds")
    found = [FoundArray(path.stem, shape, dtype, _LoadMapped(str(path)))]
    side = _side_file(path)
    if side.is_file():
        with _numpy_errors(side):
            table = json.loads(side.read_text(encoding="utf-8"))
            arrays = {key: np.asarray(value) for key, value in table.items()}
        found += [FoundArray(key, values.shape, values.dtype, InMemory(values)) for key, values in arrays.items()]
    return found


@contextmanager
def created_npz(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[ArrayWriter]:
    writer = ArrayWriter(np.empty((template.sizes["y"], template.sizes["x"], template.sizes["band"]), template.dtype))
    yield writer
    with path.open("wb") as stream:
        np.savez_compressed(stream, cube=writer.values, **flat_sides(template))


@contextmanager
def created_npy(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[ArrayWriter]:
    shape = (template.sizes["y"], template.sizes["x"], template.sizes["band"])
    mapped = npy_format.open_memmap(path, mode="w+", dtype=template.dtype, shape=shape)
    yield ArrayWriter(mapped)
    mapped.flush()
    table = {key: np.asarray(value).tolist() for key, value in flat_sides(template).items()}
    _side_file(path).write_text(json.dumps(table), encoding="utf-8")


def flat_sides(template: xr.DataArray) -> dict[str, Any]:
    """Everything beside the values, as plain arrays and texts under the names that `found_arrays` looks for."""
    grid = grid_of(template)
    nodata = nodata_of(template)
    attributes = {key: value for key, value in template.attrs.items() if key != "_FillValue"}
    sides = {
        "wavelength_nm": template["wavelength"].values,
        "fwhm_nm": template["fwhm"].values,
        "good": template["good"].values,
        "band_name": json.dumps([str(name) for name in template["band_name"].values]),
        "scale": template["scale"].values,
        "offset": template["offset"].values,
        "nodata": template.dtype.type(nodata) if nodata is not None else None,
        "crs_wkt": grid.crs.to_wkt() if grid.crs else None,
        "geo_transform": " ".join(repr(float(number)) for number in grid.transform.to_gdal()) if grid.transform else None,
        "attributes": json.dumps(attributes, default=str) if attributes else None,
    }
    return {key: value for key, value in sides.items() if value is not None}


def _side_file(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _npy_header(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, MemoryError, NotImplementedError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CubeFileError(f"{path} cannot be read: {reason}", "a whole numpy file", "save it again with numpy.savez") from error
