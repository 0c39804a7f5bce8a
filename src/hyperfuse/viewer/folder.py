"""The folder that the page may see: what lies in it, and never anything outside, whatever the name or link says.

HDF5 files may take their values from other files; a file that came through the page must not reach for those.

Folders that mean something: agencies' products and networks, told by the names of their files, without opening any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hyperfuse.errors import CubeFileError, CubeWriteError, HyperfuseError, OptionError
from hyperfuse.io.atomic import check_writable
from hyperfuse.io.files import FORMATS, WRITABLE
from hyperfuse.io.products.catalogue import find_products
from hyperfuse.io.products.product import ProductFile, ProductFiles, is_zip, list_files
from hyperfuse.io.raster import DATA_SUFFIXES, find_data

HDF5_SUFFIXES = (".h5", ".hdf5", ".he5", ".nc", ".nc4", ".mat")


def refuse_foreign_storage(path: Path) -> None:
    if path.suffix.lower() not in HDF5_SUFFIXES or not path.is_file():
        return
    import h5py

    try:
        if not h5py.is_hdf5(path):
            return
        with h5py.File(path, "r") as file:
            foreign = _reaches_out(file)
    except (OSError, RuntimeError, KeyError) as error:
        raise CubeFileError(f"{path.name} cannot be read", "a whole HDF5 file", "fetch it again") from error
    if foreign:
        raise CubeFileError(
            f"{path.name} takes values from other files", "a file that holds its own", "repack it (h5repack)"
        )


def _reaches_out(file: Any) -> bool:
    """External links, virtual datasets and raw storage in other files, anywhere in the tree."""
    import h5py

    def is_external(name: str, link: object) -> bool | None:
        return isinstance(link, h5py.ExternalLink) or None

    def is_stored_elsewhere(name: str, item: Any) -> bool | None:
        return (isinstance(item, h5py.Dataset) and bool(item.is_virtual or item.external)) or None

    return bool(file.visititems_links(is_external) or file.visititems(is_stored_elsewhere))


ARCHIVE = ".zip"


def is_product(path: Path) -> bool:
    """A folder whose own files are those of a product, or a .zip that holds one."""
    try:
        if path.is_dir():
            files = ProductFiles(path, {file.name: ProductFile(file.name, str(file), 0) for file in path.iterdir()})
        elif path.suffix.lower() == ARCHIVE and is_zip(path):
            files = list_files(path)
        else:
            return False
    except (OSError, HyperfuseError):
        return False
    return bool(find_products(files))


def is_network(path: Path) -> bool:
    return (path / "config.json").is_file() and any(path.glob("weights-*.safetensors"))


# Suffixes that name their format. GDAL would guess others by their content, and some formats point at other files or
# hosts.
CUBE_SUFFIXES = tuple(FORMATS)
UPLOAD_SUFFIXES = tuple(sorted({*CUBE_SUFFIXES, *DATA_SUFFIXES} - {"", ".zarr"}))
MOST_FILES = 1000
DEEPEST = 4


class OutsideFolderError(HyperfuseError):
    """A path that leads out of the folder."""


@dataclass(frozen=True)
class FoundFile:
    path: str
    """Below the folder, with forward slashes."""
    bytes: int
    modified: float


@dataclass(frozen=True)
class Folder:
    root: Path
    """Absolute, without links."""

    @classmethod
    def at(cls, path: Path) -> Folder:
        if not path.is_dir():
            raise OptionError(f"{path} is no folder", "a folder with the files to work on", "check the name")
        return cls(path.resolve())

    def files(self) -> list[FoundFile]:
        """The cubes in it, not too many and not too deep."""
        found = []
        for path in self._walk(self.root, DEEPEST):
            try:
                size = path.stat()
            except OSError:
                continue
            found.append(FoundFile(path.relative_to(self.root).as_posix(), size.st_size, size.st_mtime))
            if len(found) == MOST_FILES:
                break
        return sorted(found, key=lambda file: (file.path.count("/"), file.path.lower()))

    def _walk(self, folder: Path, depth: int) -> Iterator[Path]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            path = Path(entry.path)
            suffix = path.suffix.lower()
            if entry.name.startswith(".") or not self._holds(path):
                continue
            is_cube = suffix in CUBE_SUFFIXES and (entry.is_file() or suffix == ".zarr")
            if is_cube or is_product(path):
                yield path
            elif entry.is_dir(follow_symlinks=False) and depth > 1:
                yield from self._walk(path, depth - 1)

    def cube(self, name: str) -> Path:
        """A file of the folder that may be opened as a cube."""
        path = self.existing(name)
        self._refuse_links_out_of(path)
        if is_product(path):
            return path
        if path.suffix.lower() not in CUBE_SUFFIXES:
            raise CubeFileError(f"{path.name}", f"a file of {', '.join(CUBE_SUFFIXES)}", "for ENVI name the .hdr")
        if path.suffix.lower() == ".hdr" and not self._holds(find_data(path)):
            raise _outside()
        refuse_foreign_storage(path)
        return path

    def networks(self) -> list[str]:
        """Folders in it that hold the weights of a network."""
        return sorted(
            path.relative_to(self.root).as_posix() for path in self._folders(self.root, DEEPEST) if is_network(path)
        )

    def _folders(self, folder: Path, depth: int) -> Iterator[Path]:
        try:
            inner = [Path(entry) for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
        except OSError:
            return
        for path in filter(self._holds, inner):
            yield path
            if depth > 1 and not path.is_symlink():
                yield from self._folders(path, depth - 1)

    def network(self, name: str) -> Path:
        path = self.existing(name)
        self._refuse_links_out_of(path)
        if not is_network(path):
            raise OptionError(f"{path.name!r}", "a folder with config.json and weights", "choose one of the list")
        return path

    def _refuse_links_out_of(self, path: Path) -> None:
        """Products, Zarr stores and weights are folders."""
        if path.is_dir() and not all(self._holds(inner) for inner in path.rglob("*")):
            raise _outside()

    def existing(self, name: str) -> Path:
        path = self._below(name)
        if not path.exists():
            raise CubeFileError(
                f"{PurePosixPath(name).name} is not in the folder", "one of its files", "look at the list again"
            )
        return path

    def download(self, name: str) -> Path:
        """A cube that is a single file: what else lies in the folder is not the page's business."""
        path = self.existing(name)
        if path.is_dir():
            raise OptionError(
                f"{path.name} is a folder", "a single file", "find it in the folder that the page was started in"
            )
        if not path.is_file() or path.suffix.lower() not in UPLOAD_SUFFIXES or self._is_hidden(path):
            raise OptionError(f"{path.name!r}", f"a file of {', '.join(UPLOAD_SUFFIXES)}", "choose one of the list")
        return path

    def output(self, name: str, *, overwrite: bool) -> Path:
        """Where a result may be written."""
        path = self._below(name)
        if path.suffix.lower() not in WRITABLE or path.name.startswith(".") or not path.name.isprintable():
            raise CubeWriteError(
                f"{path.name!r}", f"a plain name ending with {', '.join(WRITABLE)}", "for example fused.tif"
            )
        check_writable(path, overwrite=overwrite)
        return path

    def upload(self, name: str) -> Path:
        """Where a file that was dropped onto the page is stored: straight in the folder, never in place of another."""
        if (
            name != PurePosixPath(name).name
            or "\\" in name
            or name.startswith(".")
            or not name.isprintable()
            or len(name) > 200
        ):
            raise OptionError(f"file name {name[:80]!r}", "a plain name", "rename the file")
        if PurePosixPath(name).suffix.lower() not in UPLOAD_SUFFIXES:
            raise OptionError(f"{name}", f"a file of {', '.join(UPLOAD_SUFFIXES)}", "convert it first")
        path = self._below(name)
        if path.exists():
            raise CubeWriteError(
                f"{name} is in the folder already", remedy="choose it from the list, or rename the file"
            )
        if not os.access(self.root, os.W_OK):
            raise CubeWriteError(
                "no permission to write into the folder", remedy="start hyperfuse view with another --folder"
            )
        return path

    def name_of(self, path: Path) -> str | None:
        """By which name the page may open this file again; None where it lies outside."""
        return path.resolve().relative_to(self.root).as_posix() if self._holds(path) else None

    def _below(self, name: str) -> Path:
        try:
            path = (self.root / name).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise OptionError("a name that no file can have", "the name of a file in the folder") from error
        if not path.is_relative_to(self.root) or path == self.root:
            raise _outside()
        return path

    def _is_hidden(self, path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(self.root).parts)

    def _holds(self, path: Path) -> bool:
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False


def _outside() -> OutsideFolderError:
    return OutsideFolderError(
        "a path outside of the folder", "a file below it", "start hyperfuse view with another --folder"
    )
