"""MATLAB files: version 5 through scipy, version 7.3 as the HDF5 that it is. Cubes are (rows, columns, bands) there.

scipy trusts a file of version 5: a wrong type ends the whole process, a wrong length fills the memory. So its elements
are checked first. Every element is a tag (type, length) and that many bytes, padded to eight. A matrix is an element
that holds elements: its flags, dimensions and name, then by its class values, cells or fields; a compressed element
holds a deflated matrix. See "MAT-File Format", chapter 1, The MathWorks.
"""

from __future__ import annotations

import io
import math
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, CubeWriteError, OptionError
from hyperfuse.io.arrays import LARGEST_SIDE_BYTES, FoundArray
from hyperfuse.io.atomic import WriteWindow
from hyperfuse.io.cube import reading
from hyperfuse.io.hdf5 import arrays_in_hdf5, guarded_for_hdf5
from hyperfuse.io.numpy_files import ArrayWriter, KeptArray, flat_columns

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

# Types of elements in version 5. Other writers than MATLAB use either of INTEGERS and either of NAMES.
INT8, UINT32, MATRIX, COMPRESSED = 1, 6, 14, 15
INTEGERS, NAMES = {5, 6}, {1, 16}
NUMBERS, TEXTS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}, {16, 17, 18}
TYPES = NUMBERS | TEXTS | {MATRIX, COMPRESSED}
# Classes of matrices.
CELL, STRUCT, OBJECT, CHAR, SPARSE, NUMERIC = 1, 2, 3, 4, 5, range(6, 16)
# Functions and objects of classes are never read.
ONLY_FOR_MATLAB = {16, 17}
IS_COMPLEX = 0x0800
HEADER_BYTES = 128
DEEPEST = 64
# What is deflated is protected by its own checksum: looking at the beginning finds a wrong writer.
INFLATED_AT_MOST = 2**20
CONTENT_AT_MOST = 256


class _LoadFromMat(KeptArray):
    def __init__(self, path: str, name: str, dtype: np.dtype[Any]) -> None:
        super().__init__(path, name)
        self.dtype = dtype

    def load(self) -> NDArray[Any]:
        import scipy.io

        with reading(Path(self.path), WHOLE, REMEDY):
            values = np.asarray(scipy.io.loadmat(self.path, variable_names=[self.name])[self.name])
        if values.dtype.kind == "c":
            got = f"{self.name} in {self.path} holds complex values"
            raise CubeFileError(got, "real numbers", "export its magnitude")
        # MATLAB packs a double array of whole numbers into bytes, but it is one of doubles.
        return values.astype(self.dtype, copy=False)


def arrays_in_mat(path: Path) -> list[FoundArray]:
    """List the arrays of a .mat file; the fields of a struct are `struct.field`."""
    import h5py
    import scipy.io

    if h5py.is_hdf5(path):
        return [_with_text(array) for array in arrays_in_hdf5(path, reverse_axes=True)]
    with reading(path, WHOLE, REMEDY):
        if scipy.io.matlab.matfile_version(str(path))[0] == OLD_VERSION:
            raise ValueError("no MATLAB file of version 5 or later, and older ones hold no 3-D arrays")
        _check_elements(path)
        listed = [each for each in scipy.io.whosmat(str(path)) if each[2] in (*DTYPE_OF_CLASS, *OTHER_CLASSES)]
        large = [
            FoundArray(name, tuple(shape), dtype, _LoadFromMat(str(path), name, dtype))
            for name, shape, kind in listed
            if (dtype := DTYPE_OF_CLASS.get(kind))
            and (len(shape) == 3 or math.prod(shape) * dtype.itemsize > LARGEST_SIDE_BYTES)
        ]
        small = list({name for name, _, _ in listed} - {array.name for array in large})
        contents = scipy.io.loadmat(str(path), variable_names=small) if small else {}
    return large + [
        FoundArray(name, values.shape, values.dtype, values.__getitem__)
        for name, values in _flattened("", contents)
        if values.dtype.kind in "iufbSUO"
    ]


def _with_text(array: FoundArray) -> FoundArray:
    """Decode a char array of MATLAB 7.3, stored as UTF-16 codes."""
    if array.attributes.get("MATLAB_class") not in ("char", b"char") or array.nbytes > LARGEST_SIDE_BYTES:
        return array
    empty = bool(array.attributes.get("MATLAB_empty", 0)) or array.dtype.kind not in "iu"
    codes = np.empty(0, np.uint16) if empty else array.values().ravel(order="F").astype(np.uint16)
    text = np.array([codes.tobytes().decode("utf-16-le", errors="replace")])
    return FoundArray(array.name, (1,), text.dtype, text.__getitem__)


def _flattened(prefix: str, contents: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, NDArray[Any]]]:
    for key, value in contents.items():
        if key.startswith("__") or not isinstance(value, np.ndarray):
            continue
        if value.dtype.names is None:
            yield prefix + key, value
        elif value.size == 1 and depth < DEEPEST_STRUCT:
            fields = {name: value[name].ravel()[0] for name in value.dtype.names}
            yield from _flattened(f"{prefix}{key}.", fields, depth + 1)


@contextmanager
def created_mat(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[WriteWindow]:
    """Create a file of version 5, which everything reads, or of 7.3 with VERSION=7.3 and for cubes above 2 GB."""
    import scipy.io

    version = options.get("VERSION", "7.3" if template.nbytes > LARGEST_VERSION_5 else "5")
    if version not in ("5", "7.3"):
        raise OptionError(f"VERSION={version} for {path.name}", "VERSION=5 or VERSION=7.3")
    if template.dtype.str[1:] not in MATLAB_CLASS:
        raise CubeWriteError(f"MATLAB cannot hold {template.dtype.name}", f"one of {', '.join(DTYPE_OF_CLASS)}")
    if version == "7.3":
        with _created_version_73(path, template) as write:
            yield write
        return
    if template.nbytes > LARGEST_VERSION_5:
        raise OptionError(f"VERSION=5 for a cube of {template.nbytes >> 20} MB", "at most 2047 MB", "use VERSION=7.3")
    writer = ArrayWriter(template)
    yield writer.write
    columns = {key: value for key, value in flat_columns(template).items() if np.asarray(value).size}
    scipy.io.savemat(path, {"cube": writer.values} | columns, do_compression=True, format="5", oned_as="row")


@contextmanager
def _created_version_73(path: Path, template: xr.DataArray) -> Iterator[WriteWindow]:
    import h5py

    bands, height, width = template.shape
    with guarded_for_hdf5(path) as guarded, h5py.File(guarded, "w", userblock_size=USERBLOCK) as file:
        chunks = (min(bands, 16), min(width, 128), min(height, 128))
        cube = file.create_dataset(
            "cube", (bands, width, height), template.dtype, chunks=chunks, compression="gzip", shuffle=True
        )
        cube.attrs["MATLAB_class"] = np.bytes_(MATLAB_CLASS[template.dtype.str[1:]])
        for key, value in flat_columns(template).items():
            _write_column(file, key, np.atleast_2d(np.asarray(value)))

        def write(rows: slice, columns: slice, block: NDArray[Any]) -> None:
            cube[:, columns, rows] = block.transpose(0, 2, 1)
            guarded.raise_error()

        yield write
    created = time.strftime("%a %b %d %H:%M:%S %Y")
    header = f"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: {created} HDF5 schema 1.00 ."
    with path.open("r+b") as raw:
        # The signature that MATLAB looks for: text, no subsystem data, version 2.0, byte order mark.
        raw.write(header.encode().ljust(116) + bytes(8) + b"\x00\x02IM")


def _write_column(file: Any, key: str, array: NDArray[Any]) -> None:
    if array.dtype.kind == "U":
        codes = np.frombuffer(str(array.ravel()[0]).encode("utf-16-le"), dtype=np.uint16).reshape(-1, 1)
        item = file.create_dataset(key, data=codes if codes.size else np.zeros(2, np.uint64))
        item.attrs["MATLAB_class"] = np.bytes_("char")
        item.attrs["MATLAB_int_decode"] = np.int32(2)
        if not codes.size:
            item.attrs["MATLAB_empty"] = np.uint8(1)
    elif array.size:
        is_logical = array.dtype.kind == "b"
        item = file.create_dataset(key, data=array.T.astype(np.uint8) if is_logical else array.T)
        item.attrs["MATLAB_class"] = np.bytes_("logical" if is_logical else MATLAB_CLASS[array.dtype.str[1:]])


@dataclass(frozen=True)
class _Element:
    kind: int
    size: int
    content: bytes

    def integers(self, order: str) -> tuple[int, ...]:
        count = len(self.content) // 4
        return struct.unpack(f"{order}{count}I", self.content[: 4 * count])


def _check_elements(path: Path) -> None:
    """Raise ValueError where a file of version 5 is damaged."""
    with path.open("rb") as stream:
        header = stream.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise ValueError("it ends within its header")
        order = ">" if header[126:128] == b"MI" else "<"
        elements = _elements(stream, path.stat().st_size - HEADER_BYTES, order, 0)
    strange = [element.kind for element in elements if element.kind not in (MATRIX, COMPRESSED)]
    if strange:
        raise ValueError(f"an element of type {strange[0]} where a variable should be")


def _elements(stream: IO[bytes], length: int, order: str, depth: int) -> list[_Element]:
    """Read the elements that fill the next `length` bytes, and check each of them."""
    if depth > DEEPEST:
        raise ValueError("its structs are nested too deeply")
    elements = []
    end = stream.tell() + length
    while stream.tell() < end:
        element, start = _next_element(stream, end, order)
        if element.kind == MATRIX and element.size:
            stream.seek(start)
            _check_matrix(_elements(stream, element.size, order, depth + 1), order)
        elif element.kind == COMPRESSED:
            stream.seek(start)
            # Deflating never doubles a size: this many bytes hold all that is looked at.
            beginning = stream.read(min(element.size, 2 * INFLATED_AT_MOST))
            _check_inflated(zlib.decompressobj().decompress(beginning, INFLATED_AT_MOST), order)
            stream.seek(start + element.size)
        elements.append(element)
    return elements


def _next_element(stream: IO[bytes], end: int, order: str) -> tuple[_Element, int]:
    """Read an element; also return where its bytes begin. The stream is left behind it."""
    tag = stream.read(8)
    if len(tag) < 8:
        raise ValueError("it is truncated")
    first, size = struct.unpack(f"{order}II", tag)
    start = stream.tell()
    if first >> 16:
        # A small element, whose bytes are inside its tag.
        element = _Element(first & 0xFFFF, first >> 16, tag[4 : 4 + (first >> 16)])
        is_possible = element.size <= 4 and element.kind not in (MATRIX, COMPRESSED)
    else:
        element = _Element(first, size, stream.read(min(size, CONTENT_AT_MOST, end - start)))
        is_possible = size <= end - start
        padding = 0 if element.kind == COMPRESSED else -size % 8
        stream.seek(min(start + size + padding, end))
    if element.kind not in TYPES or not is_possible:
        raise ValueError(f"an element of type {element.kind} and {element.size} bytes cannot be")
    return element, start


def _check_matrix(elements: list[_Element], order: str) -> None:
    kinds = [element.kind for element in elements]
    if kinds[:1] != [UINT32] or elements[0].size != 8:
        raise ValueError("a matrix without flags")
    flags = elements[0].integers(order)[0]
    if flags & 0xFF in ONLY_FOR_MATLAB:
        return
    if len(kinds) < 3 or kinds[1] not in INTEGERS or kinds[2] not in NAMES:
        raise ValueError("a matrix without dimensions and name")
    entries = math.prod(elements[1].integers(order))
    if not _fits_class(flags, entries, elements[3:], order):
        got = f"a matrix of class {flags & 0xFF} with {entries} entries and elements of types {kinds[3:9]} cannot be"
        raise ValueError(got)


def _fits_class(flags: int, entries: int, rest: list[_Element], order: str) -> bool:
    kinds, matrix_class = [element.kind for element in rest], flags & 0xFF
    if matrix_class in (STRUCT, OBJECT):
        if matrix_class == OBJECT:
            rest = rest[1:] if kinds[:1] == [INT8] else []
        # The length of a field's name, all names, and one matrix for each field of each entry.
        if len(rest) < 2 or rest[0].kind not in INTEGERS or rest[1].kind not in NAMES:
            return False
        (length,) = rest[0].integers(order) or (0,)
        fields = [element.kind for element in rest[2:]]
        count, remainder = divmod(rest[1].size, length) if length > 0 else (0, 1)
        return not remainder and len(fields) == entries * count and set(fields) <= {MATRIX}
    parts = 2 if flags & IS_COMPLEX else 1
    counts = dict.fromkeys(NUMERIC, parts) | {CHAR: 1, SPARSE: 2 + parts, CELL: entries}
    allowed = {CHAR: NUMBERS | TEXTS, CELL: {MATRIX}}.get(matrix_class, NUMBERS)
    return len(kinds) == counts.get(matrix_class, -1) and set(kinds) <= allowed


def _check_inflated(inflated: bytes, order: str) -> None:
    stream = io.BytesIO(inflated)
    if len(inflated) < INFLATED_AT_MOST:
        if [element.kind for element in _elements(stream, len(inflated), order, 1)] != [MATRIX]:
            raise ValueError("a compressed element that holds no matrix")
        return
    # Too large to look through: its flags, dimensions, name and the type of its values.
    stream.seek(8)
    elements = [_next_element(stream, 2**33, order)[0] for _ in range(4)]
    flags = struct.unpack(f"{order}I", elements[0].content[:4].ljust(4, b"\0"))[0]
    if flags & 0xFF in NUMERIC:
        _check_matrix([*elements, *[elements[3]] * bool(flags & IS_COMPLEX)], order)
