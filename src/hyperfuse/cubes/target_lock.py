"""One run per target: a second one is refused while the first works, also from another machine on the same disk.

Whoever holds the lock also knows that what an earlier run left beside the target belongs to nobody any more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hyperfuse.errors import CubeWriteError

# Where the system has no such locks, the file's own words are all there is.
fcntl: Any = import_module("fcntl") if os.name == "posix" else None


# Hidden names stay below what any disk allows.
LONGEST_NAME = 80
# Where a folder keeps the files that it replaces until the new ones are in place.
ASIDE = "aside"

_held: ContextVar[frozenset[Path]] = ContextVar("hyperfuse_held_targets", default=frozenset())


@contextmanager
def only_run_on(target: Path) -> Iterator[None]:
    """Holds `.NAME.lock` beside the target; a step of the same run may hold it again. A lock whose process is gone is taken over.

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
    """A hidden folder beside the target, to write into; those of earlier runs that were killed are removed. Holds the lock."""
    with only_run_on(target):
        name = _shortened(target.name)
        for folder in target.absolute().parent.glob(".*.partial"):
            # A run killed in the middle of replacing old files has their only copies.
            if re.fullmatch(rf"\.{re.escape(name)}\.[a-z0-9_]{{8}}\.partial", folder.name) and not (folder / ASIDE).exists():
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
            raise CubeWriteError(f"cannot write beside {target}: {error.strerror}", remedy="choose another folder") from error
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
