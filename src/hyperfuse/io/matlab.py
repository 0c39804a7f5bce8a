"""MATLAB files: version 5 through scipy, version 7.3 as the HDF5 that it is. Cubes are (rows, columns, bands) there.

scipy would read an array of version 5 whole, so parts of large ones are read where they lie, or in an unpacked copy.
Every element of a file is a tag (type, length) and that many bytes, padded to eight. A matrix is an element that holds
elements: its flags, dimensions and name, then its values; a compressed element holds a deflated matrix. See "MAT-File
Format", chapter 1, The MathWorks.
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

from hyperfuse.errors import CubeWriteError, OptionError
from hyperfuse.io.arrays import LARGEST_SIDE_BYTES, FoundArray, read_part, text
from hyperfuse.io.atomic import WriteWindow
from hyperfuse.io.cube import reading
from hyperfuse.io.hdf5 import arrays_in_hdf5, guarded_for_hdf5
from hyperfuse.io.numpy_files import ArrayWriter, flat_columns
from hyperfuse.io.spool import copied

WHOLE = "a whole .mat file"
REMEDY = "save it again in MATLAB (-v7 or -v7.3)"
USERBLOCK = 512
# Version 5 counts bytes in 32 bits.
LARGEST_VERSION_5 = 2**31 - 2**20
# scipy's number for version 4.
OLD_VERSION = 0
MATLAB_CLASS = {"f4": "single", "f8": "double"} | {
    f"{kind}{size}": f"{'u' * (kind == 'u')}int{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)
}
OTHER_CLASSES = ("logical", "char", "cell", "struct")
DTYPE_OF_CLASS = {name: np.dtype(code) for code, name in MATLAB_CLASS.items()}

# Types of elements in version 5, and classes of matrices of numbers.
MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
CLASS, IS_LOGICAL, IS_COMPLEX = 0xFF, 0x0200, 0x0800
HEADER_BYTES, TAG_BYTES = 128, 8
# Enough for the flags, the dimensions, a name and the tag of the values.
BEGINNING_BYTES = 4096
CHUNK_BYTES = 2**18


@dataclass(frozen=True)
class _Matrix:
    """A real array of numbers in a file of version 5. It holds no open file, so it can be sent to another process."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    """The type in the file: MATLAB packs doubles that are whole numbers into bytes."""
    start: int
    """Where it begins in the file."""
    offset: int
    """Where its values begin in it, after inflating."""
    inflated_bytes: int | None
    """Its size where it is deflated."""

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with reading(self.path, WHOLE, REMEDY):
            path, offset = self.path, self.start + self.offset
            if self.inflated_bytes is not None:
                copy = (self.path.stat().st_mtime_ns, self.path, self.start)
                path, offset = copied(copy, self.inflated_bytes, self._inflate) / self.path.name, self.offset
            with path.open("rb") as stream:
                stream.seek(offset)
                return read_part(stream, self.stored, self.shape[::-1], key[::-1]).T.astype(self.dtype)

    def _inflate(self, folder: Path) -> None:
        inflate = zlib.decompressobj()
        with self.path.open("rb") as source, (folder / self.path.name).open("xb") as target:
            source.seek(self.start)
            while not inflate.eof and (chunk := inflate.unconsumed_tail or source.read(CHUNK_BYTES)):
                target.write(inflate.decompress(chunk, CHUNK_BYTES))
                if target.tell() > (self.inflated_bytes or 0):
                    break
            if not inflate.eof or target.tell() != self.inflated_bytes:
                raise ValueError(f"{self.name} is damaged")


def arrays_in_mat(path: Path) -> list[FoundArray]:
    """List the arrays of a .mat file; the fields of a struct are `struct.field`."""
    import h5py
    import scipy.io

    if h5py.is_hdf5(path):
        return [_with_text(array) for array in arrays_in_hdf5(path, reverse_axes=True)]
    with reading(path, WHOLE, REMEDY):
        if scipy.io.matlab.matfile_version(str(path))[0] == OLD_VERSION:
            raise ValueError("no MATLAB file of version 5 or later, and older ones hold no 3-D arrays")
        large = [
            FoundArray(each.name, each.shape, each.dtype, each)
            for each in _matrices(path)
            if len(each.shape) == 3 or math.prod(each.shape) * each.dtype.itemsize > LARGEST_SIDE_BYTES
        ]
        listed = {name for name, _, kind in scipy.io.whosmat(str(path)) if kind in (*DTYPE_OF_CLASS, *OTHER_CLASSES)}
        small = list(listed - {array.name for array in large})
        contents = scipy.io.loadmat(str(path), variable_names=small) if small else {}
    return large + [
        FoundArray(name, values.shape, values.dtype, values.__getitem__)
        for name, values in _flattened("", contents)
        if values.dtype.kind in "iufcbSUO"
    ]


def _matrices(path: Path) -> Iterator[_Matrix]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        order = ">" if stream.read(HEADER_BYTES)[126:128] == b"MI" else "<"
        while (start := stream.tell()) + TAG_BYTES <= size:
            kind, length = struct.unpack(f"{order}II", stream.read(TAG_BYTES))
            if kind not in (MATRIX, COMPRESSED) or length > size - start - TAG_BYTES:
                raise ValueError(f"an element of type {kind} and {length} bytes is impossible")
            if kind == COMPRESSED:
                start += TAG_BYTES
            stream.seek(start)
            beginning = stream.read(min(BEGINNING_BYTES, TAG_BYTES + length))
            if kind == COMPRESSED:
                beginning = zlib.decompressobj().decompress(beginning, BEGINNING_BYTES)
            matrix = _matrix_of(path, beginning, order, start, is_deflated=kind == COMPRESSED)
            if matrix is not None:
                yield matrix
            stream.seek(start + length + (TAG_BYTES if kind == MATRIX else 0))


def _matrix_of(path: Path, beginning: bytes, order: str, start: int, *, is_deflated: bool) -> _Matrix | None:
    """The matrix that begins with these bytes; None where it is something else than real numbers."""
    stream = io.BytesIO(beginning)
    matrix_bytes = struct.unpack(f"{order}II", stream.read(TAG_BYTES))[1]
    flags, dimensions, name = (_content(stream, order) for _ in range(3))
    (flag,) = struct.unpack(f"{order}I", flags[:4])
    if flag & CLASS not in CLASSES or flag & (IS_LOGICAL | IS_COMPLEX):
        return None
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    kind, length, offset = _tag(stream, order)
    stored = np.dtype(TYPES.get(kind, "V1")).newbyteorder(order)  # type: ignore[arg-type]
    if min(shape) < 0 or kind not in TYPES or math.prod(shape) * stored.itemsize != length:
        raise ValueError(f"an array of {' x '.join(map(str, shape))} with {length} bytes of type {kind} is impossible")
    inflated_bytes = TAG_BYTES + matrix_bytes if is_deflated else None
    return _Matrix(
        path, name.decode("latin-1"), shape, np.dtype(CLASSES[flag & CLASS]), stored, start, offset, inflated_bytes
    )


def _tag(stream: IO[bytes], order: str) -> tuple[int, int, int]:
    """Type and length of the next element and where its bytes begin; up to four bytes lie within the tag."""
    kind, length = struct.unpack(f"{order}II", stream.read(TAG_BYTES))
    return (kind & 0xFFFF, kind >> 16, stream.tell() - 4) if kind >> 16 else (kind, length, stream.tell())


def _content(stream: IO[bytes], order: str) -> bytes:
    _, length, start = _tag(stream, order)
    stream.seek(start)
    content = stream.read(length)
    stream.seek(start + length + -(start + length) % 8)
    return content


def _with_text(array: FoundArray) -> FoundArray:
    """Decode a char array of MATLAB 7.3, stored as UTF-16 codes."""
    if text(array.attributes.get("MATLAB_class")) != "char" or array.nbytes > LARGEST_SIDE_BYTES:
        return array
    empty = bool(array.attributes.get("MATLAB_empty", 0)) or array.dtype.kind not in "iu"
    codes = np.empty(0, np.uint16) if empty else array.values().ravel(order="F").astype(np.uint16)
    decoded = np.array([codes.tobytes().decode("utf-16-le", errors="replace")])
    return FoundArray(array.name, (1,), decoded.dtype, decoded.__getitem__)


def _flattened(prefix: str, contents: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    for key, value in contents.items():
        if key.startswith("__") or not isinstance(value, np.ndarray):
            continue
        if value.dtype.names is None:
            yield prefix + key, value
        elif value.size == 1:
            fields = {name: value[name].ravel()[0] for name in value.dtype.names}
            yield from _flattened(f"{prefix}{key}.", fields)


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
