"""numpy's files: .npz with `cube` (rows, columns, bands) and its band table beside it; .npy with the table in
`NAME.npy.json`.
"""

from __future__ import annotations

import io
import json
import math
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

from hyperfuse.io.arrays import FoundArray, InMemory
from hyperfuse.io.cube import nodata_of
from hyperfuse.io.grid import grid_of
from hyperfuse.io.lazy import LARGEST_COMPRESSION, reading
from hyperfuse.io.provenance import text_attributes

WHOLE = "a whole numpy file"
LARGEST_HEADER = 2**16


class KeptArray:
    """An array that its format stores in one piece: read at the first look and kept, but never carried to another
    process.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self._kept: NDArray[Any] | None = None

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        if self._kept is None:
            self._kept = self.load()
        return np.asarray(self._kept[key])

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_kept": None}

    def load(self) -> NDArray[Any]:
        with reading(Path(self.path), WHOLE), np.load(self.path, allow_pickle=False) as archive:
            return np.asarray(archive[self.name])


@dataclass(frozen=True)
class _LoadMapped:
    path: str

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with reading(Path(self.path), WHOLE):
            return np.array(np.load(self.path, mmap_mode="r", allow_pickle=False)[key])


class ArrayWriter:
    """Collects windows in a (rows, columns, bands) array."""

    def __init__(self, template: xr.DataArray) -> None:
        self.values = np.empty((template.sizes["y"], template.sizes["x"], template.sizes["band"]), template.dtype)

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self.values[rows, columns] = block.transpose(1, 2, 0)


class NpyWriter:
    """Writes windows into an .npy file. Not through a mapping: on a full disk that ends the process instead of raising."""

    def __init__(self, stream: Any, template: xr.DataArray) -> None:
        self._stream = stream
        self._bands, self._height, self._width = template.shape
        shape = (self._height, self._width, self._bands)
        npy_format.write_array_header_1_0(
            stream, {"descr": npy_format.dtype_to_descr(template.dtype), "fortran_order": False, "shape": shape}
        )
        self._start = stream.tell()
        self._pixel_bytes = self._bands * template.dtype.itemsize

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        values = np.ascontiguousarray(block.transpose(1, 2, 0))
        if columns.start == 0 and columns.stop == self._width:
            self._write_at(rows.start * self._width, values)
            return
        for row, line in zip(range(rows.start, rows.stop), values, strict=True):
            self._write_at(row * self._width + columns.start, line)

    def _write_at(self, pixel: int, values: NDArray[Any]) -> None:
        self._stream.seek(self._start + pixel * self._pixel_bytes)
        self._stream.write(values.data)


def arrays_in_npz(path: Path) -> list[FoundArray]:
    found = []
    with reading(path, WHOLE, "save it again with numpy.savez"), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as stream:
                shape, dtype, header = _npy_header(stream)
            held = min(member.file_size, member.compress_size * LARGEST_COMPRESSION)
            _require_held(shape, dtype, held - header, member.filename)
            name = member.filename.removesuffix(".npy")
            if dtype.kind in "iufbSU":
                found.append(FoundArray(name, shape, dtype, KeptArray(str(path), name)))
    return found


def arrays_in_npy(path: Path) -> list[FoundArray]:
    with reading(path, WHOLE, "save it again with numpy.save"), path.open("rb") as stream:
        shape, dtype, header = _npy_header(stream)
        _require_held(shape, dtype, path.stat().st_size - header, path.name)
    found = [FoundArray(path.stem, shape, dtype, _LoadMapped(str(path)))]
    side = side_file(path)
    if side.is_file():
        with reading(side, "the JSON table of a cube", "mend it, or remove it to read the values alone"):
            table = {
                str(key): _json_column(key, value)
                for key, value in dict(json.loads(side.read_text(encoding="utf-8"))).items()
            }
        found += [FoundArray(key, values.shape, values.dtype, InMemory(values)) for key, values in table.items()]
    return found


@contextmanager
def created_npz(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[ArrayWriter]:
    writer = ArrayWriter(template)
    yield writer
    with path.open("wb") as stream:
        np.savez_compressed(stream, cube=writer.values, **flat_sides(template))


@contextmanager
def created_npy(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[NpyWriter]:
    with path.open("wb") as stream:
        yield NpyWriter(stream, template)
    table = {key: _json_ready(np.asarray(value).tolist()) for key, value in flat_sides(template).items()}
    side_file(path).write_text(json.dumps(table, indent=1, allow_nan=False), encoding="utf-8")


def flat_sides(template: xr.DataArray) -> dict[str, Any]:
    """Everything beside the values, as plain arrays and texts under the names that `side_arrays` looks for."""
    grid = grid_of(template)
    nodata = nodata_of(template)
    attributes = text_attributes(template)
    sides = {
        "wavelength_nm": template["wavelength"].values,
        "fwhm_nm": template["fwhm"].values,
        "good": template["good"].values,
        "band_name": json.dumps([str(name) for name in template["band_name"].values]),
        "scale": template["scale"].values,
        "offset": template["offset"].values,
        "nodata": template.dtype.type(nodata) if nodata is not None else None,
        "crs_wkt": grid.crs.to_wkt() if grid.crs else None,
        "geo_transform": " ".join(repr(float(number)) for number in grid.transform.to_gdal())
        if grid.transform
        else None,
        "attributes": json.dumps(attributes) if attributes else None,
    }
    return {key: value for key, value in sides.items() if value is not None}


def side_file(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _json_ready(value: Any) -> Any:
    """JSON knows no NaN: an unknown wavelength is null, and a nodata of NaN a text."""
    if isinstance(value, list):
        return [None if isinstance(entry, float) and math.isnan(entry) else entry for entry in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _json_column(key: str, value: Any) -> NDArray[Any]:
    if isinstance(value, list):
        return np.asarray([math.nan if entry is None else entry for entry in value])
    return np.asarray(float(value) if key == "nodata" and isinstance(value, str) else value)


def _npy_header(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, data type and length of the header; numpy would believe any length that the header gives itself."""
    beginning = io.BytesIO(stream.read(LARGEST_HEADER))
    version = npy_format.read_magic(beginning)
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, _, dtype = read(beginning)
    return shape, dtype, beginning.tell()


def _require_held(shape: tuple[int, ...], dtype: np.dtype[Any], held: int, name: str) -> None:
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > held:
        raise ValueError(f"{name} promises {' x '.join(map(str, shape))} values of {dtype}, more than it holds")
