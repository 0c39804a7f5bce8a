"""Write files whole or not at all, one run per target.

`atomic_write` replaces one file: write beside it, then rename. `published` does the same for a target with companions
(or a folder, such as a Zarr store), under the lock of `target_lock`, and turns errors into `CubeWriteError`.

Two kinds of library code need protection while they write. A signal handler that raises inside a callback of GDAL or a
thread of Zarr gets lost, so signals wait (`deferred_signals`). On a full disk HDF5 ends the process and libtiff prints
to stderr, so they write into a `GuardedFile`, which accepts every byte and reports the error when asked.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

from filelock import SoftFileLock, Timeout
from numpy.typing import NDArray

from hyperfuse.errors import CubeWriteError

# Hidden names stay below what any file system allows.
LONGEST_NAME = 80
# Where a work folder keeps the files that it replaces until the new ones are in place.
ASIDE = "aside"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REMOVAL_ATTEMPTS, SECONDS_BETWEEN = 40, 0.05
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

WriteWindow = Callable[[slice, slice, NDArray[Any]], None]

_held: ContextVar[frozenset[Path]] = ContextVar("hyperfuse_held_targets", default=frozenset())


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a path beside `path` to write to; rename it to `path` on success, delete it on failure.

    The temporary name is fixed, so that what a killed process left is overwritten. `sync` waits until the disk has it.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        yield temporary
        if sync:
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def target_lock(target: Path) -> Iterator[None]:
    """Hold `.NAME.lock` beside the target; the same run may hold it again, any other one is refused.

    The file names the process and the machine: the lock of a process of this machine that has ended is taken over.
    """
    path = lock_file(target.absolute())
    if path in _held.get():
        yield
        return
    lock = SoftFileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        owner = [*(path.read_text(errors="replace").split() if path.is_file() else ()), "?", "?"]
        got = f"{target} is being written by process {owner[0]} on {owner[1]}"
        remedy = f"wait for it, choose another name, or delete {path} if that run is over"
        raise CubeWriteError(got, remedy=remedy) from error
    except OSError as error:
        got = f"cannot write beside {target}: {error.strerror}"
        raise CubeWriteError(got, remedy="choose another folder") from error
    before = _held.set(_held.get() | {path})
    try:
        yield
    finally:
        _held.reset(before)
        lock.release()


def lock_file(target: Path) -> Path:
    """Return the path of a target's lock."""
    return target.with_name(f".{_shortened(target.name)}.lock")


def make_work_folder(target: Path) -> Path:
    """Create a hidden folder beside the target to write into, and remove those of earlier runs that were killed."""
    with target_lock(target):
        name = _shortened(target.name)
        for folder in target.absolute().parent.glob(".*.partial"):
            own = re.fullmatch(rf"\.{re.escape(name)}\.[a-z0-9_]{{8}}\.partial", folder.name)
            # A run killed while it replaced old files has their only copies.
            if own and not (folder / ASIDE).exists():
                shutil.rmtree(folder, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".partial", dir=target.parent))


def _shortened(name: str) -> str:
    """Shorten a name; a checksum keeps names with the same beginning apart."""
    digest = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}-{digest:08x}"


@contextmanager
def published(
    target: Path,
    *,
    overwrite: bool = False,
    beside: Sequence[Path] = (),
    stale: Sequence[Path] = (),
    work_folder: Path | None = None,
) -> Iterator[Path]:
    """Yield a path of the same name in a hidden folder; on success it and all files made beside it move to the target.

    On failure nothing remains and the old target is untouched. Files `beside` the target will be created with it and
    are protected like it; `stale` ones would describe the new target wrongly and are removed. `work_folder` is the
    hidden folder (must not exist yet), for callers that clean up after a killed run themselves.
    """
    for path in (*beside, target):
        check_writable(path, overwrite=overwrite)
    with target_lock(target), _write_errors(target):
        if work_folder is None:
            work_folder = make_work_folder(target)
        else:
            work_folder.mkdir()
        try:
            made = work_folder / "made"
            made.mkdir()
            yield made / target.name
            _move_all(made, work_folder / ASIDE, target, stale)
        finally:
            # Threads of Zarr may still write into it for a moment after an error.
            for _ in range(REMOVAL_ATTEMPTS):
                shutil.rmtree(work_folder, ignore_errors=True)
                if not work_folder.exists():
                    break
                time.sleep(SECONDS_BETWEEN)


def check_writable(target: Path, *, overwrite: bool) -> None:
    """Raise `CubeWriteError` where a target cannot be written; to be called before hours of work."""
    if target.exists() and not overwrite:
        raise CubeWriteError(
            f"{target} exists already", remedy="choose another name or add --overwrite (in Python overwrite=True)"
        )
    # Only an empty folder or a Zarr store is replaced; any other may hold somebody's work.
    names = {path.name for path in target.iterdir()} if target.is_dir() else set()
    if names and not names & {".zgroup", ".zarray", ".zmetadata", "zarr.json"}:
        got = f"{target} is a folder of other things"
        raise CubeWriteError(got, "a file name, or a Zarr store", "choose another name")
    if not target.parent.is_dir():
        got = f"{target.parent} is not a folder"
        raise CubeWriteError(got, "an existing folder for the output", f"mkdir -p {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise CubeWriteError(f"no permission to write into {target.parent}", remedy="choose another folder")


def _move_all(made: Path, aside: Path, target: Path, stale: Sequence[Path]) -> None:
    """Move the new files in, the target last; stale files and folders step aside, and a failure undoes everything."""
    sources = sorted(made.iterdir(), key=lambda path: path.name == target.name)
    destinations = {source: target.parent / source.name for source in sources}
    folders = [place for source, place in destinations.items() if source.is_dir() or place.is_dir()]
    created = {place for place in destinations.values() if not place.exists()}
    replaced: dict[Path, Path] = {}
    moved: list[Path] = []
    try:
        for old in (*stale, *folders):
            if old.exists():
                aside.mkdir(exist_ok=True)
                replaced[old] = old.rename(aside / old.name)
        for source, place in destinations.items():
            source.replace(place)
            moved.append(place)
    except BaseException:
        for place in moved:
            if place in created or place in replaced:
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        for old, kept in reversed(replaced.items()):
            kept.rename(old)
        raise


@contextmanager
def _write_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        got = f"not enough memory to write {target}"
        raise CubeWriteError(got, remedy="choose .tif, .nc, .zarr or .npy") from error
    except OSError as error:
        full = error.errno in DISK_FULL
        got = f"no space left while writing {target}" if full else f"cannot write {target}: {error.strerror or error}"
        remedy = "free space or choose another disk" if full else "choose another folder"
        raise CubeWriteError(got, remedy=f"nothing was left behind; {remedy}") from error


class CubeWriter:
    """What `files.created_cube` yields: writes windows without being interrupted by signals."""

    def __init__(self, write_window: WriteWindow) -> None:
        self._write_window = write_window

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        """Write one window of all bands, (band, rows, columns)."""
        with deferred_signals():
            self._write_window(rows, columns, block)


@contextmanager
def signal_safe(creation: AbstractContextManager[WriteWindow]) -> Iterator[CubeWriter]:
    """Create, write and close a file without being interrupted; signals are handled in between."""
    with deferred_signals():
        write_window = creation.__enter__()
    try:
        yield CubeWriter(write_window)
    except BaseException:
        with deferred_signals():
            if not creation.__exit__(*sys.exc_info()):
                raise
    else:
        with deferred_signals():
            creation.__exit__(None, None, None)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle signals that have Python handlers when the block ends; only the main thread ever handles them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


class GuardedFile(io.FileIO):
    """A file that discards what does not fit on the disk and keeps the error for `raise_error`."""

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
