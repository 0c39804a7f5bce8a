"""Write files whole or not at all, one run per target.

`atomic_write` replaces one file: write beside it, then rename. `published` does the same for a target with companions
(or a folder, such as a Zarr store), under the lock of `target_lock`, and turns errors into `CubeWriteError`. Several
files cannot be replaced in one step: the old target leaves first and the new one comes last, so that there is no moment
at which a target lies beside companions of another; the next process to take the lock completes what a killed run
began.

Two kinds of library code need protection while they write. A signal handler that raises inside a callback of GDAL or a
thread of Zarr gets lost, so signals wait (`deferred_signals`). On a full disk HDF5 ends the process and libtiff prints
to stderr, so they write into a `GuardedFile`, which accepts every byte and reports the error when asked.
"""

from __future__ import annotations

import errno
import glob
import io
import json
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
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from hyperfuse.errors import CubeWriteError

# Hidden names stay below what any file system allows.
LONGEST_NAME = 80
# In a work folder: the new files, the old ones until the new are in place, and what says that the new are complete.
MADE, ASIDE, COMPLETE = "made", "aside", "complete.json"
# Writing everything to the disk is faster than this many files one by one.
MOST_FLUSHED = 100
SECONDS_BETWEEN_FLUSHES = 0.5
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REMOVAL_ATTEMPTS, SECONDS_BETWEEN = 40, 0.05
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]

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

    The system frees the lock of a process that ends, however it ends.
    """
    target = target.absolute()
    path = lock_file(target)
    if path in _held.get():
        yield
        return
    lock = FileLock(path, timeout=0, is_singleton=False)
    try:
        lock.acquire()
    except Timeout as error:
        got = f"{target} is being written by another run"
        raise CubeWriteError(got, remedy="wait for it or choose another name") from error
    except OSError as error:
        got = f"cannot write beside {target}: {error.strerror}"
        raise CubeWriteError(got, remedy="choose another folder") from error
    before = _held.set(_held.get() | {path})
    try:
        _finish_publishing(target)
        yield
    finally:
        _held.reset(before)
        path.unlink(missing_ok=True)
        lock.release()


def recover(target: Path) -> None:
    """Publish a target that a killed run had completed, if there is such a run."""
    if not target.exists() and _unpublished(target.absolute()):
        with suppress(CubeWriteError), target_lock(target):
            pass


def lock_file(target: Path) -> Path:
    """Return the path of a target's lock."""
    return target.with_name(f".{_shortened(target.name)}.lock")


def make_work_folder(target: Path) -> Path:
    """Create a hidden folder beside the target to write into, and remove those of earlier runs that were killed."""
    with target_lock(target):
        for folder in _work_folders(target.absolute()):
            shutil.rmtree(folder, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f".{_shortened(target.name)}.", suffix=".partial", dir=target.parent))


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
        check_writable(target, overwrite=overwrite)
        try:
            with deferred_signals():
                if work_folder is None:
                    work_folder = make_work_folder(target)
                else:
                    work_folder.mkdir()
                made = work_folder / MADE
                made.mkdir()
            with _flushed_meanwhile(made):
                yield made / target.name
            _flush(made)
            with deferred_signals():
                _publish(work_folder, target, stale)
        finally:
            with deferred_signals():
                # The old files are still in it where they could not be moved back.
                if work_folder is not None and not (work_folder / COMPLETE).exists():
                    _remove(work_folder)


def _remove(work_folder: Path) -> None:
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
    # Only an empty folder or a Zarr store is replaced; any other may hold the user's files.
    names = {path.name for path in target.iterdir()} if target.is_dir() else set()
    if names and not names & {".zgroup", ".zarray", ".zmetadata", "zarr.json"}:
        got = f"{target} is a folder of other things"
        raise CubeWriteError(got, "a file name, or a Zarr store", "choose another name")
    if not target.parent.is_dir():
        got = f"{target.parent} is not a folder"
        in_the_way = any(each.is_file() for each in target.parents)
        remedy = "choose another folder" if in_the_way else f"mkdir -p {target.parent}"
        raise CubeWriteError(got, "an existing folder for the output", remedy)
    if not os.access(target.parent, os.W_OK):
        raise CubeWriteError(f"no permission to write into {target.parent}", remedy="choose another folder")


def make_folder(folder: Path) -> None:
    """Create a folder, and those above it, where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        is_file = isinstance(error, FileExistsError)
        got = f"{folder} is a file" if is_file else f"cannot make the folder {folder}: {error.strerror}"
        raise CubeWriteError(got, "a folder", "choose another with -o") from error


def write_text(path: Path, text: str) -> Path:
    """Write or replace a text file."""
    with published(path, overwrite=True) as target:
        target.write_text(text, encoding="utf-8")
    return path


def _publish(work_folder: Path, target: Path, stale: Sequence[Path]) -> None:
    """Replace the target and its companions; a failure undoes everything."""
    made, aside = work_folder / MADE, work_folder / ASIDE
    names = [path.name for path in made.iterdir()]
    stale = [path for path in stale if path.name not in names]
    in_one_step = not target.exists() or (target.is_file() and (made / target.name).is_file())
    if names == [target.name] and in_one_step and not any(path.exists() for path in stale):
        (made / target.name).replace(target)
        _flush_folder(target.parent)
        return
    aside.mkdir()
    (aside / COMPLETE).write_text(json.dumps([path.name for path in stale]), encoding="utf-8")
    _flush(aside)
    complete = (aside / COMPLETE).rename(work_folder / COMPLETE)
    try:
        _move_in(work_folder, target, stale)
    except BaseException:
        for name in names:
            if not (made / name).exists():
                (target.parent / name).rename(made / name)
        for kept in sorted(aside.iterdir(), key=lambda path: path.name == target.name):
            kept.rename(target.parent / kept.name)
        complete.unlink()
        raise
    complete.unlink()


def _move_in(work_folder: Path, target: Path, stale: Sequence[Path]) -> None:
    """Move old files away, the target first, and the new ones in, the target last; repeating it is harmless."""
    made, aside = work_folder / MADE, work_folder / ASIDE
    new = sorted((path.name for path in made.iterdir()), key=lambda name: (name == target.name, name))
    for name in (*reversed(new), *(path.name for path in stale)):
        if (target.parent / name).exists():
            (target.parent / name).rename(aside / name)
    for name in new:
        (made / name).rename(target.parent / name)
    _flush_folder(target.parent)


def _work_folders(target: Path) -> Iterator[Path]:
    """The hidden folders of this target beside it, which belong to killed runs unless its lock is held."""
    own = re.compile(rf"\.{re.escape(_shortened(target.name))}\.[a-z0-9_]{{8}}\.partial")
    return (folder for folder in target.parent.glob(".*.partial") if own.fullmatch(folder.name))


def _unpublished(target: Path) -> list[Path]:
    """Work folders of runs that were killed while they published this target; also those of `fusion.run`."""
    folders = [*_work_folders(target), *target.parent.glob(f".{glob.escape(target.name)}.tiles/*")]
    return [folder for folder in folders if (folder / COMPLETE).is_file() and (folder / MADE).is_dir()]


def _finish_publishing(target: Path) -> None:
    for work_folder in _unpublished(target):
        stale = json.loads((work_folder / COMPLETE).read_text(encoding="utf-8"))
        with _write_errors(target):
            _move_in(work_folder, target, [target.with_name(name) for name in stale])
        shutil.rmtree(work_folder, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Wait until the disk has everything in a folder: no rename may survive a power failure that its file does not."""
    files = list(_files_in(folder))
    if len(files) > MOST_FLUSHED and hasattr(os, "sync"):
        os.sync()
        return
    for path in files:
        _flush_file(path)
    _flush_folder(folder)


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _flush_file(path: Path) -> None:
    # Windows flushes only files that are open for writing.
    with path.open("rb" if os.name == "posix" else "r+b") as file:
        os.fsync(file.fileno())


@contextmanager
def _flushed_meanwhile(folder: Path) -> Iterator[None]:
    """Have the disk take what there is every now and then, so that little is left to wait for at the end."""
    ended, errors = threading.Event(), list[OSError]()

    def flush() -> None:
        while not errors and not ended.wait(SECONDS_BETWEEN_FLUSHES):
            try:
                files = list(islice(_files_in(folder), MOST_FLUSHED + 1))
                if len(files) > MOST_FLUSHED:
                    return  # they will not become fewer, and to look at all of them takes long
                for path in files:
                    _flush_file(path)
            except FileNotFoundError:
                pass  # removed meanwhile
            except OSError as error:
                errors.append(error)  # the system tells it only once

    thread = threading.Thread(target=flush, name="hyperfuse-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def _flush_folder(folder: Path) -> None:
    # Some file systems do not allow it, and need not.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
