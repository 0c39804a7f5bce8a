"""HDF5 files may take their values from other files; a file that came through the page must not reach for those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hyperfuse.errors import CubeFileError

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
        raise CubeFileError(f"{path.name} takes values from other files", "a file that holds its own", "repack it (h5repack)")


def _reaches_out(file: Any) -> bool:
    """External links, virtual datasets and raw storage in other files, anywhere in the tree."""
    import h5py

    def is_external(name: str, link: object) -> bool | None:
        return isinstance(link, h5py.ExternalLink) or None

    def is_stored_elsewhere(name: str, item: Any) -> bool | None:
        return (isinstance(item, h5py.Dataset) and bool(item.is_virtual or item.external)) or None

    return bool(file.visititems_links(is_external) or file.visititems(is_stored_elsewhere))
