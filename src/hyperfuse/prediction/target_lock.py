"""One run per target: a second one is refused while the first works, also from another machine on the same disk."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hyperfuse.errors import CubeWriteError

# Where the system has no such locks, the file's own words are all there is.
fcntl: Any = import_module("fcntl") if os.name == "posix" else None


@contextmanager
def only_run_on(target: Path) -> Iterator[None]:
    """Holds `.NAME.lock` beside the target. A lock whose process is gone is taken over.

    The operating system forgets the lock when its process ends, however that happens; the file says who holds it.
    """
    path = lock_file(target)
    file = _taken(path, target)
    try:
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        file.flush()
        yield
    finally:
        # Removed while it is still held, so that nobody else's lock is.
        with suppress(OSError):
            path.unlink()
        file.close()


def lock_file(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


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
