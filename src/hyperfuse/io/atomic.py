"""Signals wait while a library writes: what their handlers raise would be lost, or worse, in its callbacks and threads.

One run per target: a second one is refused while the first works, also from another machine on the same disk.

Whoever holds the lock also knows that what an earlier run left beside the target belongs to nobody any more.

Outputs appear whole or not at all: write into a hidden folder beside the target, then rename.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from numpy.typing import NDArray

from hyperfuse.errors import CubeWriteError, HyperfuseError

# Where the system has no such locks, the file's own words are all there is.
fcntl: Any = import_module("fcntl") if os.name == "posix" else None


# Hidden names stay below what any disk allows.
LONGEST_NAME = 80
# Where a folder keeps the files that it replaces until the new ones are in place.
ASIDE = "aside"

_held: ContextVar[frozenset[Path]] = ContextVar("hyperfuse_held_targets", default=frozenset())


@contextmanager
def only_run_on(target: Path) -> Iterator[None]:
    """Holds `.NAME.lock` beside the target; a step of the same run may hold it again. A lock whose process is gone is
    taken over.

    The operating system forgets the lock when its process ends, however that happens; the file says who holds it.
    """
    path = lock_file(target.absolute())
    if path in _held.get():
        yield
        return
    file = _taken(path, target)
    before = _held.set(_held.get() | {path})
    try:
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        file.flush()
        yield
    finally:
        _held.reset(before)
        # Removed while it is still held, so that nobody else's lock is.
        with suppress(OSError):
            path.unlink()
        file.close()


def lock_file(target: Path) -> Path:
    return target.with_name(f".{_shortened(target.name)}.lock")


def new_workplace(target: Path) -> Path:
    """A hidden folder beside the target, to write into; those of earlier runs that were killed are removed. Holds the
    lock.
    """
    with only_run_on(target):
        name = _shortened(target.name)
        for folder in target.absolute().parent.glob(".*.partial"):
            # A run killed in the middle of replacing old files has their only copies.
            if (
                re.fullmatch(rf"\.{re.escape(name)}\.[a-z0-9_]{{8}}\.partial", folder.name)
                and not (folder / ASIDE).exists()
            ):
                shutil.rmtree(folder, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".partial", dir=target.parent))


def _shortened(name: str) -> str:
    """Of names that begin alike, each has its own."""
    digest = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}-{digest:08x}"


def _taken(path: Path, target: Path) -> BinaryIO:
    while True:
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
        except OSError as error:
            raise CubeWriteError(
                f"cannot write beside {target}: {error.strerror}", remedy="choose another folder"
            ) from error
        owner = _owner(file)
        if not _lock(file) or _may_be_alive(owner):
            file.close()
            raise CubeWriteError(
                f"{target} is being written by process {owner.get('pid', '?')} on {owner.get('host', '?')}",
                remedy=f"wait for it, choose another name, or delete {path} if that run is over",
            )
        # Between opening and locking, its holder may have removed it: then this is the lock of a file that is no more.
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _owner(file: BinaryIO) -> dict[str, Any]:
    try:
        owner = json.loads(file.read() or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _may_be_alive(owner: dict[str, Any]) -> bool:
    """A lock of this machine that can be taken is a dead one; of another machine's process nothing is known."""
    return bool(owner) and (fcntl is None or owner.get("host") != socket.gethostname())


def _lock(file: BinaryIO) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network disks know no locks; there the file's own words decide.
        return True
    return True


ATTEMPTS, SECONDS_BETWEEN = 40, 0.05
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def published(
    target: Path,
    *,
    overwrite: bool = False,
    beside: Sequence[Path] = (),
    stale: Sequence[Path] = (),
    workplace: Path | None = None,
) -> Iterator[Path]:
    """Yields a path to write to, of the same name; when the block ends well, it and every file made beside it move to
    the target's folder, the named one last. When it does not, nothing remains and the old target is untouched.

    `beside` are the files that will be made with the target and are protected like it; `stale` are files that described
    the old target and would now describe the new one wrongly. `workplace` names the hidden folder, where somebody must
    know it who comes after a run that ended without a chance to clear it away.
    """
    for path in (*beside, target):
        refuse_unwritable(path, overwrite=overwrite)
    with only_run_on(target):
        with _write_errors(target):
            if workplace is None:
                workplace = new_workplace(target)
            else:
                workplace.mkdir()
        try:
            with _write_errors(target):
                made = workplace / "made"
                made.mkdir()
                yield made / target.name
                _move_all(made, workplace, target, stale)
        finally:
            _remove(workplace)


def refuse_unwritable(target: Path, *, overwrite: bool) -> None:
    """Complain before hours of work, not after."""
    if target.exists() and not overwrite:
        raise CubeWriteError(f"{target} exists already", remedy="choose another name or add --overwrite")
    if target.is_dir() and not _is_replaceable_folder(target):
        raise CubeWriteError(
            f"{target} is a folder of other things", "a file name, or a Zarr store", "choose another name"
        )
    if not target.parent.is_dir():
        raise CubeWriteError(
            f"{target.parent} is not a folder", "an existing folder for the output", f"mkdir -p {target.parent}"
        )
    if not os.access(target.parent, os.W_OK):
        raise CubeWriteError(f"no permission to write into {target.parent}", remedy="choose another folder")


def _is_replaceable_folder(folder: Path) -> bool:
    """An empty folder or a Zarr store; any other may hold somebody's work."""
    names = {path.name for path in folder.iterdir()}
    return not names or bool(names & {".zgroup", ".zarray", ".zmetadata", "zarr.json"})


def _move_all(made: Path, workplace: Path, target: Path, stale: Sequence[Path]) -> None:
    """Old files step aside into the workplace, which is removed at the end; where a step fails, they go back."""
    aside = workplace / ASIDE
    replaced: list[tuple[Path, Path]] = []
    published_now: list[Path] = []
    try:
        sources = sorted(made.iterdir(), key=lambda path: path.name == target.name)
        in_the_way = [
            target.parent / source.name
            for source in sources
            if source.is_dir() or (target.parent / source.name).is_dir()
        ]
        for destination in (*stale, *in_the_way):
            if destination.exists():
                aside.mkdir(exist_ok=True)
                destination.rename(aside / destination.name)
                replaced.append((aside / destination.name, destination))
        for source in sources:
            source.replace(target.parent / source.name)
            published_now.append(target.parent / source.name)
    except OSError:
        for kept, destination in reversed(replaced):
            if destination not in published_now:
                kept.rename(destination)
        raise


def _remove(workplace: Path) -> None:
    """Zarr's threads may still be writing into it for a moment after an error."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(workplace, ignore_errors=True)
        if not workplace.exists():
            return
        time.sleep(SECONDS_BETWEEN)


@contextmanager
def _write_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _as_write_error(error, target) from error
    except MemoryError as error:
        raise CubeWriteError(
            f"not enough memory to write {target}", remedy="choose .tif, .nc, .zarr or .npy"
        ) from error


def _as_write_error(error: OSError, target: Path) -> HyperfuseError:
    if error.errno in FULL:
        return CubeWriteError(
            f"no space left while writing {target}", remedy="nothing was left behind; free space or choose another disk"
        )
    return CubeWriteError(
        f"cannot write {target}: {error.strerror or error}", remedy="nothing was left behind; choose another folder"
    )


SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class CubeWriter(Protocol):
    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        """Write one window of all bands, (band, rows, columns)."""


class _UndisturbedWriter:
    def __init__(self, writer: CubeWriter) -> None:
        self._writer = writer

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        with signals_waiting():
            self._writer.write(rows, columns, block)


@contextmanager
def undisturbed(creation: AbstractContextManager[CubeWriter]) -> Iterator[CubeWriter]:
    """The same writer: its beginning, each of its writes and its end happen whole, and signals are heard in between."""
    with signals_waiting():
        writer = creation.__enter__()
    try:
        yield _UndisturbedWriter(writer)
    except BaseException:
        with signals_waiting():
            if not creation.__exit__(*sys.exc_info()):
                raise
    else:
        with signals_waiting():
            creation.__exit__(None, None, None)


@contextmanager
def signals_waiting() -> Iterator[None]:
    """Signals that Python code would handle are handled when the block ends. Only the main thread ever handles them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
