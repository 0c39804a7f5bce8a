"""The folder that the page may use: its files, and nothing outside of it, wherever a name or link leads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hyperfuse.errors import CubeFileError, CubeWriteError, HyperfuseError, OptionError
from hyperfuse.io.atomic import check_writable
from hyperfuse.io.envi import DATA_SUFFIXES, find_data
from hyperfuse.io.files import FORMATS, WRITABLE
from hyperfuse.io.isolation import isolated
from hyperfuse.io.products.catalogue import find_products
from hyperfuse.io.products.product import ProductFile, ProductFiles, is_zip, list_files

HDF5_SUFFIXES = (".h5", ".hdf5", ".he5", ".nc", ".nc4", ".mat")
# Suffixes that name their format: GDAL would guess others by content, and some formats refer to other files or hosts.
CUBE_SUFFIXES = tuple(FORMATS)
UPLOAD_SUFFIXES = tuple(sorted({*CUBE_SUFFIXES, *DATA_SUFFIXES} - {"", ".zarr"}))
MOST_FILES = 1000
DEEPEST = 4
OTHER_FOLDER = "start hyperfuse view with another --folder"


class RequestError(HyperfuseError):
    """A request that is refused with an HTTP status of its own."""

    def __init__(self, status: int, got: str, expected: str, remedy: str) -> None:
        super().__init__(got, expected, remedy)
        self.status = status


@dataclass(frozen=True)
class Folder:
    """All names are relative to `root`, which is absolute and without links."""

    root: Path

    @classmethod
    def at(cls, path: Path) -> Folder:
        if not path.is_dir():
            raise OptionError(f"{path} is not a folder", "a folder with the files to work on", "check the name")
        return cls(path.resolve())

    def files(self) -> list[dict[str, Any]]:
        """Path, size and time of change of the cubes in the folder, not too many and not too deep."""
        files = []
        for path in self._find(_is_cube):
            try:
                status = path.stat()
            except OSError:
                continue
            name = path.relative_to(self.root).as_posix()
            files.append({"path": name, "bytes": status.st_size, "modified": status.st_mtime})
            if len(files) == MOST_FILES:
                break
        return sorted(files, key=lambda file: (file["path"].count("/"), file["path"].lower()))

    def networks(self) -> list[str]:
        """Folders that hold the weights of a network."""
        return sorted(path.relative_to(self.root).as_posix() for path in self._find(is_network))

    def _find(self, is_wanted: Callable[[Path], bool]) -> Iterator[Path]:
        """Entries below the folder, neither hidden nor leading out of it; those found are not searched further."""
        for top, folders, files in os.walk(self.root):
            visible = [Path(top, name) for name in sorted(folders + files) if not name.startswith(".")]
            inside = [path for path in visible if self._holds(path)]
            found = {path for path in inside if is_wanted(path)}
            yield from sorted(found)
            depth = len(Path(top).relative_to(self.root).parts) + 1
            folders[:] = [path.name for path in inside if path.is_dir() and path not in found and depth < DEEPEST]

    def cube(self, name: str) -> Path:
        """A file of the folder that may be opened as a cube."""
        path = self.existing(name)
        if is_product(path):
            return path
        if path.suffix.lower() not in CUBE_SUFFIXES:
            raise CubeFileError(f"{path.name}", f"a file of {', '.join(CUBE_SUFFIXES)}", "for ENVI name the .hdr")
        if path.suffix.lower() == ".hdr":
            self._require_inside(find_data(path))
        isolated(path, refuse_foreign_storage, path)
        return path

    def network(self, name: str) -> Path:
        path = self.existing(name)
        if not is_network(path):
            raise OptionError(f"{path.name!r}", "a folder with config.json and weights", "choose one of the list")
        return path

    def existing(self, name: str) -> Path:
        """A file of the folder, or a folder (product, Zarr store, weights) without links out of it."""
        path = self._below(name)
        if not path.exists():
            raise CubeFileError(f"{path.name} is not in the folder", "one of its files", "reload the list")
        if path.is_dir():
            self._require_inside(*path.rglob("*"))
        return path

    def download(self, name: str) -> Path:
        """A cube that is a single file: other files of the folder are not given away."""
        path = self.existing(name)
        if path.is_dir():
            remedy = "find it in the folder that the page was started in"
            raise OptionError(f"{path.name} is a folder", "a single file", remedy)
        is_hidden = any(part.startswith(".") for part in path.relative_to(self.root).parts)
        if not path.is_file() or path.suffix.lower() not in UPLOAD_SUFFIXES or is_hidden:
            raise OptionError(f"{path.name!r}", f"a file of {', '.join(UPLOAD_SUFFIXES)}", "choose one of the list")
        return path

    def output(self, name: str, *, overwrite: bool) -> Path:
        """Where a result may be written."""
        path = self._below(name)
        if path.suffix.lower() not in WRITABLE or path.name.startswith(".") or not path.name.isprintable():
            expected = f"a plain name ending with {', '.join(WRITABLE)}"
            raise CubeWriteError(f"{path.name!r}", expected, "for example fused.tif")
        check_writable(path, overwrite=overwrite)
        return path

    def upload(self, name: str) -> Path:
        """Where a file that was dropped onto the page is stored: straight in the folder, never in place of another."""
        is_plain = name == PurePosixPath(name).name and "\\" not in name and name.isprintable()
        if not is_plain or name.startswith(".") or len(name) > 200:
            raise OptionError(f"file name {name[:80]!r}", "a plain name", "rename the file")
        if PurePosixPath(name).suffix.lower() not in UPLOAD_SUFFIXES:
            raise OptionError(f"{name}", f"a file of {', '.join(UPLOAD_SUFFIXES)}", "convert it first")
        path = self._below(name)
        if path.exists():
            remedy = "choose it from the list, or rename the file"
            raise CubeWriteError(f"{name} is in the folder already", remedy=remedy)
        if not os.access(self.root, os.W_OK):
            raise CubeWriteError("no permission to write into the folder", remedy=OTHER_FOLDER)
        return path

    def name_of(self, path: Path) -> str | None:
        """By which name the page may open this file again; None where it lies outside."""
        return path.resolve().relative_to(self.root).as_posix() if self._holds(path) else None

    def _below(self, name: str) -> Path:
        try:
            path = (self.root / name).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise OptionError("a name that no file can have", "the name of a file in the folder") from error
        self._require_inside(path)
        return path

    def _require_inside(self, *paths: Path) -> None:
        if not all(self._holds(path) and path != self.root for path in paths):
            raise RequestError(403, "a path outside of the folder", "a file below it", OTHER_FOLDER)

    def _holds(self, path: Path) -> bool:
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False


def _is_cube(path: Path) -> bool:
    suffix = path.suffix.lower()
    return (suffix in CUBE_SUFFIXES and (path.is_file() or suffix == ".zarr")) or is_product(path)


def is_product(path: Path) -> bool:
    """A folder whose own files are those of a product, or a .zip that holds one."""
    try:
        if path.is_dir():
            files = ProductFiles(path, {file.name: ProductFile.at(file) for file in path.iterdir()})
        elif path.suffix.lower() == ".zip" and is_zip(path):
            files = list_files(path)
        else:
            return False
    except (OSError, HyperfuseError):
        return False
    return bool(find_products(files))


def is_network(path: Path) -> bool:
    return (path / "config.json").is_file() and any(path.glob("weights-*.safetensors"))


def refuse_foreign_storage(path: Path) -> None:
    """Raise for an HDF5 file with external links, virtual datasets or raw storage in other files."""
    import h5py

    def is_foreign(name: str, item: Any) -> bool | None:
        is_stored_elsewhere = isinstance(item, h5py.Dataset) and (item.is_virtual or item.external)
        return isinstance(item, h5py.ExternalLink) or bool(is_stored_elsewhere) or None

    try:
        if path.suffix.lower() not in HDF5_SUFFIXES or not path.is_file() or not h5py.is_hdf5(path):
            return
        with h5py.File(path, "r") as file:
            foreign = file.visititems_links(is_foreign) or file.visititems(is_foreign)
    except (OSError, RuntimeError, KeyError) as error:
        raise CubeFileError(f"{path.name} cannot be read", "a whole HDF5 file", "fetch it again") from error
    if foreign:
        got = f"{path.name} takes values from other files"
        raise CubeFileError(got, "a file that holds its own", "repack it (h5repack)")
