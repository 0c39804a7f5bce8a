"""What an agency delivered: the files of a product by their names within it, in a folder, a .zip or a .tar.

Names in an archive are never used as paths on the disk, and what metadata name is looked up among the names that were
delivered: neither can lead outside of the product.

Members of an archive that no library can read in place: unpacked into a temporary folder, which goes when the process
ends.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from hyperfuse.errors import CubeFileError
from hyperfuse.io.lazy import promises_too_much, reading
from hyperfuse.progress import progress

WHOLE_ARCHIVE = "a whole archive"
BYTES_AT_ONCE = 16 * 2**20

Key = tuple[str, int, int, tuple[str, ...]]

_lock = threading.Lock()
_folders: dict[Key, tempfile.TemporaryDirectory[str]] = {}


def unpacked(files: Sequence[DeliveredFile]) -> list[Path]:
    """Members of one archive, side by side in a folder of their own; done once for as long as the archive stays the
    same.
    """
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
            f"{file.shown} promises {file.size} bytes, which the archive cannot hold",
            "an archive as delivered",
            "fetch it again",
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


ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
# Beyond any product; a folder of so many files is somebody's disk.
MOST_FILES = 100_000
DEEPEST = 8
LARGEST_METADATA = 64 * 2**20
LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True)
class DeliveredFile:
    """Where the bytes of one file are. It holds no open file and may travel to another process."""

    name: str
    """Within the product, with slashes."""
    container: str
    """The file itself, or the archive that holds it."""
    size: int
    offset: int | None = None
    """Where it begins in the archive, if it is stored there as it is."""
    is_member: bool = False

    @property
    def base_name(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def shown(self) -> str:
        """For messages."""
        return f"{self.container}: {self.name}" if self.is_member else self.container

    def on_disk(self) -> Path:
        """A file of its own: a member of an archive is unpacked once in each process."""
        return unpacked([self])[0] if self.is_member else Path(self.container)

    def place(self) -> tuple[Path, int]:
        """A file on the disk and where this one begins in it: an archive, where the member is not compressed."""
        return (Path(self.container), self.offset) if self.offset is not None else (self.on_disk(), 0)

    def for_gdal(self) -> Path:
        path, offset = self.place()
        return path if self.offset is None else Path(f"/vsisubfile/{offset}_{self.size},{path}")

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        with reading(Path(self.container), WHOLE_ARCHIVE if self.is_member else "a whole file"):
            if not self.is_member:
                with Path(self.container).open("rb") as stream:
                    yield stream
            elif is_zip(Path(self.container)):
                with zipfile.ZipFile(self.container) as archive, archive.open(self.name) as stream:
                    yield stream
            else:
                with tarfile.open(self.container) as bundle:
                    member = bundle.extractfile(self.name)
                    yield member or io.BytesIO()

    def content(self) -> bytes:
        """All of a small file."""
        if self.size > LARGEST_METADATA:
            raise CubeFileError(f"{self.shown} holds {self.size} bytes", f"at most {LARGEST_METADATA} of metadata")
        refuse_bomb(self)
        with self.opened() as stream:
            return stream.read(LARGEST_METADATA)


@dataclass(frozen=True)
class Delivery:
    """Files by name; `path` is what the user named."""

    path: Path
    files: dict[str, DeliveredFile]

    def __iter__(self) -> Iterator[DeliveredFile]:
        return iter(self.files.values())

    def beside(self, key: DeliveredFile) -> Delivery:
        """The files in the folder of `key` and below."""
        folder = PurePosixPath(key.name).parent
        return Delivery(
            self.path, {name: file for name, file in self.files.items() if PurePosixPath(name).is_relative_to(folder)}
        )

    def named(self, base_name: str) -> DeliveredFile | None:
        """The file of this name, whatever its case and folder."""
        return next((file for file in self if file.base_name.lower() == base_name.lower()), None)

    def require(self, base_name: str, named_by: str) -> DeliveredFile:
        """A file that the metadata name."""
        file = self.named(PurePosixPath(base_name.replace("\\", "/")).name)
        if file is None:
            raise CubeFileError(
                f"{self.path} is incomplete: {base_name}, which {named_by} names, is not in it",
                "the whole product",
                "fetch it again",
            )
        return file


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def is_zip(path: Path) -> bool:
    return path.name.lower().endswith(".zip")


def deliver(path: Path) -> Delivery:
    """Everything in a folder or an archive; for a file, everything in its folder, but not below."""
    if path.is_dir():
        return _indexed(path, _files_below(path, DEEPEST))
    if is_archive(path):
        with reading(path, WHOLE_ARCHIVE, "fetch it again"):
            return _indexed(path, _zip_members(path) if is_zip(path) else _tar_members(path))
    return _indexed(path, _files_below(path.parent, 1))


def deliver_folder_of(path: Path) -> Delivery:
    """For a product whose named file lies above its others."""
    return _indexed(path, _files_below(path.parent, DEEPEST))


def _indexed(path: Path, files: Iterable[DeliveredFile]) -> Delivery:
    found: dict[str, DeliveredFile] = {}
    for file in files:
        # What macOS adds to archives carries the names of the true files.
        if file.base_name.startswith("._") or file.name.startswith("__MACOSX/"):
            continue
        found[file.name] = file
        if len(found) > MOST_FILES:
            raise CubeFileError(
                f"{path} holds more than {MOST_FILES} files", "one product", "name its folder or metadata file"
            )
    return Delivery(path, dict(sorted(found.items())))


def _files_below(folder: Path, deepest: int) -> Iterator[DeliveredFile]:
    for parent, folders, names in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts) + 1
        if depth >= deepest:
            folders.clear()
        for name in names:
            file = Path(parent, name)
            if file.is_file():
                yield DeliveredFile(file.relative_to(folder).as_posix(), str(file), file.stat().st_size)


def _zip_members(path: Path) -> Iterator[DeliveredFile]:
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            if member.is_dir() or not _is_inside(member.filename):
                continue
            if member.flag_bits & 1:
                raise CubeFileError(f"{path} is encrypted", "an archive without a password", "unpack it")
            plain = member.compress_type == zipfile.ZIP_STORED
            offset = _data_offset(stream, member.header_offset) if plain else None
            yield DeliveredFile(member.filename, str(path), member.file_size, offset, is_member=True)


def _data_offset(stream: IO[bytes], header_offset: int) -> int:
    """A member's bytes come after its local header, whose length only that header tells."""
    stream.seek(header_offset)
    signature, name_length, extra_length = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise zipfile.BadZipFile("a member is not where the directory says")
    return header_offset + LOCAL_HEADER.size + int(name_length) + int(extra_length)


def _tar_members(path: Path) -> Iterator[DeliveredFile]:
    compressed = not path.name.lower().endswith(".tar")
    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isreg() or not _is_inside(member.name):
                continue
            if not compressed and member.offset_data + member.size > path.stat().st_size:
                raise CubeFileError(
                    f"{path} is truncated: {member.name} lies beyond its end", WHOLE_ARCHIVE, "fetch it again"
                )
            yield DeliveredFile(
                member.name,
                str(path),
                member.size,
                None if compressed or member.issparse() else member.offset_data,
                is_member=True,
            )


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name.replace("\\", "/"))
    return not parts.is_absolute() and ".." not in parts.parts
