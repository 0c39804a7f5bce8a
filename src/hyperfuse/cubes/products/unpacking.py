"""Members of an archive that no library can read in place: unpacked into a temporary folder, which goes when the process ends."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hyperfuse.cubes.damaged_files import promises_too_much
from hyperfuse.errors import CubeFileError
from hyperfuse.progress import progress

if TYPE_CHECKING:
    from hyperfuse.cubes.products.delivery import DeliveredFile

WHOLE_ARCHIVE = "a whole archive"
BYTES_AT_ONCE = 16 * 2**20

Key = tuple[str, int, int, tuple[str, ...]]

_lock = threading.Lock()
_folders: dict[Key, tempfile.TemporaryDirectory[str]] = {}


def unpacked(files: Sequence[DeliveredFile]) -> list[Path]:
    """Members of one archive, side by side in a folder of their own; done once for as long as the archive stays the same."""
    archive = Path(files[0].container)
    try:
        state = archive.stat()
    except OSError as error:
        raise CubeFileError(f"{archive} cannot be read: {error.strerror}", WHOLE_ARCHIVE, "put it back") from error
    key = (str(archive), state.st_mtime_ns, state.st_size, tuple(file.name for file in files))
    with _lock:
        folder = _folders.get(key)
        if folder is None:
            folder = tempfile.TemporaryDirectory(prefix="hyperfuse-", ignore_cleanup_errors=True)
            try:
                _unpack(files, Path(folder.name))
            except BaseException:
                folder.cleanup()
                raise
            _folders[key] = folder
    return [Path(folder.name, file.base_name) for file in files]


def refuse_bomb(file: DeliveredFile) -> None:
    """A small archive that unpacks into a disk full of zeros was not made by an agency."""
    if file.is_member and promises_too_much(file.size, Path(file.container).stat().st_size):
        raise CubeFileError(
            f"{file.shown} promises {file.size} bytes, which the archive cannot hold", "an archive as delivered", "fetch it again"
        )


def _unpack(files: Sequence[DeliveredFile], folder: Path) -> None:
    for file in files:
        refuse_bomb(file)
    needed, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if needed > free:
        raise CubeFileError(
            f"{files[0].shown} needs {needed / 1e9:.1f} GB unpacked, {folder.parent} has {free / 1e9:.1f} GB",
            "space for temporary files",
            "set TMPDIR to a larger disk, or unpack it yourself",
        )
    with progress("Unpacking", -(-needed // BYTES_AT_ONCE)) as advance:
        for file in files:
            with file.opened() as source, Path(folder, file.base_name).open("xb") as target:
                for _ in _copied(source, target, file):
                    advance(1)


def _copied(source: IO[bytes], target: IO[bytes], file: DeliveredFile) -> Iterator[int]:
    left = file.size
    while left:
        piece = source.read(min(left, BYTES_AT_ONCE))
        if not piece:
            raise CubeFileError(f"{file.shown} ends {left} bytes early", WHOLE_ARCHIVE, "fetch it again")
        target.write(piece)
        left -= len(piece)
        yield len(piece)
    # Reading on also has the checksum compared.
    if source.read(1):
        raise CubeFileError(f"{file.shown} is longer than the archive says", WHOLE_ARCHIVE, "fetch it again")
