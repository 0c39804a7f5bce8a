"""MATLAB files: version 5 through scipy, version 7.3 as the HDF5 that it is. Cubes are (rows, columns, bands) there."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.damaged_files import reading
from hyperfuse.cubes.found_arrays import FoundArray, InMemory
from hyperfuse.cubes.hdf5 import Hdf5Writer, arrays_in_hdf5, guarded_for_hdf5
from hyperfuse.cubes.matlab_tags import check_tags
from hyperfuse.cubes.numpy_files import ArrayWriter, KeptArray, flat_sides
from hyperfuse.cubes.side_arrays import LARGEST_SIDE_BYTES
from hyperfuse.errors import CubeFileError, CubeWriteError, OptionError

WHOLE = "a whole .mat file"
REMEDY = "save it again in MATLAB (-v7 or -v7.3)"
USERBLOCK = 512
# Version 5 counts bytes in 32 bits.
LARGEST_VERSION_5 = 2**31 - 2**20
# scipy's number for version 4.
OLD_VERSION = 0
DEEPEST_STRUCT = 8
MATLAB_CLASS = {"f4": "single", "f8": "double"} | {
    f"{kind}{size}": f"{'u' * (kind == 'u')}int{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)
}
OTHER_CLASSES = ("logical", "char", "cell", "struct")
DTYPE_OF_CLASS = {name: np.dtype(code) for code, name in MATLAB_CLASS.items()}


class _LoadFromMat(KeptArray):
    def __init__(self, path: str, name: str, dtype: np.dtype[Any]) -> None:
        super().__init__(path, name)
        self.dtype = dtype

    def load(self) -> NDArray[Any]:
        with reading(Path(self.path), WHOLE, REMEDY):
            values = np.asarray(scipy.io.loadmat(self.path, variable_names=[self.name])[self.name])
        if values.dtype.kind == "c":
            raise CubeFileError(f"{self.name} in {self.path} holds complex values", "real numbers", "export its magnitude")
        # MATLAB packs a double array of whole numbers into bytes, but it is one of doubles.
        return values.astype(self.dtype, copy=False)


def arrays_in_mat(path: Path) -> list[FoundArray]:
    if h5py.is_hdf5(path):
        return [_without_text_codes(array) for array in arrays_in_hdf5(path, reverse_axes=True)]
    with reading(path, WHOLE, REMEDY):
        if scipy.io.matlab.matfile_version(str(path))[0] == OLD_VERSION:
            raise ValueError("no MATLAB file of version 5 or later, and older ones hold no 3-D arrays")
        check_tags(path)
        listed = scipy.io.whosmat(str(path))
        large = {name for name, shape, kind in listed if kind in DTYPE_OF_CLASS and _is_worth_waiting(shape, kind)}
        small = [name for name, _, kind in listed if name not in large and kind in (*DTYPE_OF_CLASS, *OTHER_CLASSES)]
        contents = scipy.io.loadmat(str(path), variable_names=small) if small else {}
    found = [
        FoundArray(name, tuple(shape), DTYPE_OF_CLASS[kind], _LoadFromMat(str(path), name, DTYPE_OF_CLASS[kind]))
        for name, shape, kind in listed
        if name in large
    ]
    return found + [
        FoundArray(name, values.shape, values.dtype, InMemory(values))
        for name, values in _flattened("", contents)
        if values.dtype.kind in "iufbSUO"
    ]


@contextmanager
def created_mat(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[Hdf5Writer | ArrayWriter]:
    """Version 5, which everything reads, unless the cube is too large for it or `--co VERSION=7.3` asks for the other."""
    version = options.get("VERSION", "7.3" if template.nbytes > LARGEST_VERSION_5 else "5")
    if version not in ("5", "7.3"):
        raise OptionError(f"VERSION={version} for {path.name}", "VERSION=5 or VERSION=7.3")
    if template.dtype.str[1:] not in MATLAB_CLASS:
        raise CubeWriteError(f"MATLAB cannot hold {template.dtype.name}", f"one of {', '.join(DTYPE_OF_CLASS)}")
    if version == "7.3":
        with _created_version_73(path, template) as writer:
            yield writer
        return
    if template.nbytes > LARGEST_VERSION_5:
        raise OptionError(f"VERSION=5 for a cube of {template.nbytes >> 20} MB", "at most 2047 MB", "use VERSION=7.3")
    array_writer = ArrayWriter(template)
    yield array_writer
    sides = {key: value for key, value in flat_sides(template).items() if np.asarray(value).size}
    scipy.io.savemat(path, {"cube": array_writer.values} | sides, do_compression=True, format="5", oned_as="row")


@contextmanager
def _created_version_73(path: Path, template: xr.DataArray) -> Iterator[Hdf5Writer]:
    bands, height, width = template.shape
    with guarded_for_hdf5(path) as guarded, h5py.File(guarded, "w", userblock_size=USERBLOCK) as file:
        chunks = (min(bands, 16), min(width, 128), min(height, 128))
        cube = file.create_dataset("cube", (bands, width, height), template.dtype, chunks=chunks, compression="gzip", shuffle=True)
        cube.attrs["MATLAB_class"] = np.bytes_(MATLAB_CLASS[template.dtype.str[1:]])
        for key, value in flat_sides(template).items():
            _write_side(file, key, value)
        yield _ReversedWriter(cube, guarded)
    header = f"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: {time.strftime('%a %b %d %H:%M:%S %Y')} HDF5 schema 1.00 ."
    with path.open("r+b") as raw:
        # The signature that MATLAB looks for: text, no subsystem data, version 2.0, byte order mark.
        raw.write(header.encode().ljust(116) + bytes(8) + b"\x00\x02IM")


class _ReversedWriter(Hdf5Writer):
    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        super().write(columns, rows, block.transpose(0, 2, 1))


def _write_side(file: Any, key: str, value: Any) -> None:
    array = np.atleast_2d(np.asarray(value))
    if array.dtype.kind == "U":
        text = str(array.ravel()[0])
        codes = np.frombuffer(text.encode("utf-16-le"), dtype=np.uint16).reshape(-1, 1)
        item = file.create_dataset(key, data=codes if codes.size else np.zeros(2, np.uint64))
        item.attrs["MATLAB_class"] = np.bytes_("char")
        item.attrs["MATLAB_int_decode"] = np.int32(2)
        if not codes.size:
            item.attrs["MATLAB_empty"] = np.uint8(1)
    elif array.size:
        item = file.create_dataset(key, data=array.T.astype(np.uint8) if array.dtype.kind == "b" else array.T)
        item.attrs["MATLAB_class"] = np.bytes_("logical" if array.dtype.kind == "b" else MATLAB_CLASS[array.dtype.str[1:]])


def _is_worth_waiting(shape: tuple[int, ...], kind: str) -> bool:
    """Arrays that may be cubes, or are large, stay unread until somebody asks for them."""
    return len(shape) == 3 or math.prod(shape) * DTYPE_OF_CLASS[kind].itemsize > LARGEST_SIDE_BYTES


def _without_text_codes(array: FoundArray) -> FoundArray:
    """A char array of MATLAB 7.3, stored as UTF-16 codes, becomes the text it means."""
    if array.attributes.get("MATLAB_class") not in ("char", b"char") or array.nbytes > LARGEST_SIDE_BYTES:
        return array
    empty = bool(array.attributes.get("MATLAB_empty", 0)) or array.dtype.kind not in "iu"
    codes = np.empty(0, np.uint16) if empty else array.values().ravel(order="F").astype(np.uint16)
    text = np.array([codes.tobytes().decode("utf-16-le", errors="replace")])
    return FoundArray(array.name, (1,), text.dtype, InMemory(text))


def _flattened(prefix: str, contents: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, NDArray[Any]]]:
    """Arrays by name; the fields of a struct become `struct.field`."""
    for key, value in contents.items():
        if key.startswith("__") or not isinstance(value, np.ndarray):
            continue
        if value.dtype.names is None:
            yield prefix + key, value
        elif value.size == 1 and depth < DEEPEST_STRUCT:
            fields = {name: value[name].ravel()[0] for name in value.dtype.names}
            yield from _flattened(f"{prefix}{key}.", fields, depth + 1)
