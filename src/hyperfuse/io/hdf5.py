"""Reading HDF5 and what is built on it: .h5, .he5, NetCDF-4 (.nc) and MATLAB 7.3 (.mat).

Files for libraries that cannot bear a full disk: HDF5 ends the process over it, libtiff prints what nobody wants to
read.

A guarded file takes every byte; after the first one that did not fit it throws them away and remembers why. Whoever
opened it asks.
"""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError
from hyperfuse.io.arrays import FoundArray
from hyperfuse.io.lazy import promises_too_much, reading


def reserve(path: Path, size: int) -> None:
    """Take the space for a file before it is filled: a disk too small is found out now, and not by holes in the file."""
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


class GuardedFile(io.FileIO):
    """A file to write, and to read again while it is written."""

    def __init__(self, path: str | Path, mode: str = "w+") -> None:
        super().__init__(path, mode)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        length = len(left)
        try:
            while left and self.error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        if left:
            self.seek(len(left), io.SEEK_CUR)
        return length

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return self.tell() if size is None else size

    def raise_error(self) -> None:
        """Raises what the file kept to itself."""
        if self.error is not None:
            raise self.error


class GuardedOpener:
    """`opener` for rasterio: guarded files to write, plain ones to read."""

    def __init__(self) -> None:
        self._written: list[GuardedFile] = []

    def __call__(self, path: str, mode: str = "rb", **unused: Any) -> BinaryIO | GuardedFile:
        if mode.startswith("r") and "+" not in mode:
            return Path(path).open("rb")
        file = GuardedFile(path, mode.replace("b", ""))
        self._written.append(file)
        return file

    def raise_error(self) -> None:
        for file in self._written:
            file.raise_error()


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
    with reading(path, "a whole HDF5 file"), h5py.File(path, "r") as file:
        yield file


def arrays_in_hdf5(path: Path, *, reverse_axes: bool = False) -> list[FoundArray]:
    """Every data set of a file, by its full name. MATLAB's axes come reversed, and its texts as numbers."""
    found: list[FoundArray] = []

    def visit(name: str, item: Any) -> None:
        dtype = _dtype(item)
        if dtype is None or name.startswith("#refs#") or item.shape is None:
            return
        _refuse_impossible(item, name, dtype, path)
        shape = item.shape[::-1] if reverse_axes else item.shape
        load = LoadFromHdf5(str(path), name, reverse_axes)
        found.append(FoundArray(name, shape, dtype, load, _dims(item), dict(_attributes(item))))

    with opened_hdf5(path) as file:
        file.visititems(visit)
    return found


@contextmanager
def guarded_for_hdf5(path: Path) -> Iterator[GuardedFile]:
    """A file for HDF5 to write into; what went wrong with it is raised when the block ends."""
    file = GuardedFile(path)
    try:
        yield file
        file.raise_error()
    except (RuntimeError, SystemError, ValueError) as error:
        file.raise_error()
        raise OSError(errno.EIO, " ".join(str(error).split())[:200], str(path)) from error
    finally:
        file.close()


class Hdf5Writer:
    def __init__(self, target: Any, file: GuardedFile) -> None:
        self._target = target
        self._file = file

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self._target[:, rows, columns] = block
        self._file.raise_error()


def _dtype(item: Any) -> np.dtype[Any] | None:
    """None for what is no array of numbers or texts, also for types that numpy does not know."""
    if not isinstance(item, h5py.Dataset):
        return None
    try:
        dtype: np.dtype[Any] = item.dtype
    except TypeError:
        return None
    return dtype if dtype.kind in "iufbSUO" else None


def _dims(item: Any) -> tuple[str, ...] | None:
    """Names of the axes. From the attributes, because HDF5's own functions for them never come back from a damaged
    list.
    """
    try:
        scales, labels = item.attrs.get("DIMENSION_LIST"), item.attrs.get("DIMENSION_LABELS")
        names = [_text(label) for label in labels] if labels is not None else [""] * item.ndim
        for axis, references in enumerate(scales if scales is not None else ()):
            if len(references):
                names[axis] = item.file[references[0]].name.rsplit("/", 1)[-1]
    except (OSError, TypeError, KeyError, ValueError, RuntimeError, IndexError, AttributeError):
        return None
    return tuple(names) if any(names) and len(names) == item.ndim else None


def _text(label: Any) -> str:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label or "")


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    for key in item.attrs:
        try:
            value = item.attrs[key]
        except (OSError, TypeError, KeyError, ValueError, RuntimeError):
            continue
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.ravel()[0]
        if isinstance(value, h5py.Empty):
            value = ""
        if not isinstance(value, h5py.Reference) and not (isinstance(value, np.ndarray) and value.dtype.kind == "O"):
            yield key, value.item() if isinstance(value, np.generic) else value


def _refuse_impossible(item: Any, name: str, dtype: np.dtype[Any], path: Path) -> None:
    """Contiguous data sets say where their bytes begin: beyond the end of the file they would read as zeros."""
    offset = item.id.get_offset()
    if offset is not None and offset + item.id.get_storage_size() > path.stat().st_size:
        raise CubeFileError(f"{path} is truncated: {name} lies beyond its end", "a whole file", "fetch it again")
    if item.chunks and promises_too_much(math.prod(item.chunks) * dtype.itemsize, path.stat().st_size):
        raise CubeFileError(f"{path}: {name} promises chunks of {item.chunks} values", "a whole file", "fetch it again")
