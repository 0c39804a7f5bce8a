"""Temporary copies of what cannot be read in place: members of archives and compressed arrays.

All copies of a process lie in one folder, removed when it ends. A lock on a file in it lasts as long as the process: a
folder whose lock is free was left by one that was killed, and the next process that needs copies removes it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hyperfuse.errors import CubeFileError

PREFIX = "hyperfuse-"
LOCK = ".lock"

_making = threading.Lock()
_copies: dict[Hashable, str] = {}
_folder: tuple[int, Path, FileLock] | None = None
_may_copy = True


class CopyNeeded(Exception):  # noqa: N818  (an answer, not a mistake)
    """Raised in a child of `isolation`, whose time is limited: its parent makes the copy and asks again."""

    def __init__(self, key: Hashable, size: int, write: Callable[[Path], None]) -> None:
        super().__init__(key, size, write)

    def make(self) -> None:
        copied(*self.args)


def copied(key: Hashable, size: int, write: Callable[[Path], None]) -> Path:
    """Return a folder into which `write` has written `size` bytes, once per process and key."""
    with _making:
        if key in _copies:
            return Path(_copies[key])
        if not _may_copy:
            raise CopyNeeded(key, size, write)
        parent = private_folder()
        free = shutil.disk_usage(parent).free
        if size > free:
            got = f"{size / 1e9:.1f} GB unpacked, {parent.parent} has {free / 1e9:.1f} GB"
            remedy = "set TMPDIR to a larger disk, or unpack the file yourself"
            raise CubeFileError(got, "space for temporary files", remedy)
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            write(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _copies[key] = str(folder)
        return folder


def copies() -> dict[Hashable, str]:
    """Return the copies that exist, for a child."""
    return dict(_copies)


def use_copies(existing: dict[Hashable, str]) -> None:
    """Use only copies that the parent has made."""
    global _may_copy
    _may_copy = False
    _copies.clear()
    _copies.update(existing)


def private_folder() -> Path:
    """Return a folder that no other user can look into and that lasts as long as this process."""
    global _folder
    if _folder is None or _folder[0] != os.getpid():
        _remove_abandoned()
        # Named only when it is locked, so that no other process takes it for an abandoned one.
        unnamed = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        lock = FileLock(unnamed / LOCK)
        lock.acquire()
        folder = unnamed.rename(unnamed.with_name(unnamed.name.removeprefix(".")))
        _folder = (os.getpid(), folder, lock)
        atexit.register(_remove, os.getpid(), folder)
    return _folder[1]


def _remove(process: int, folder: Path) -> None:
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError, Timeout), FileLock(lock, timeout=0):
            shutil.rmtree(lock.parent, ignore_errors=True)
