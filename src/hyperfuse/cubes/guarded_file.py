"""Files for libraries that cannot bear a full disk: HDF5 ends the process over it, libtiff prints what nobody wants to read.

A guarded file takes every byte; after the first one that did not fit it throws them away and remembers why. Whoever opened it asks.
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any, BinaryIO


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
