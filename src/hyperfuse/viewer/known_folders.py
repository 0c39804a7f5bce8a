"""Folders that mean something: agencies' products and networks, told by the names of their files, without opening any."""

from __future__ import annotations

from pathlib import Path

from hyperfuse.cubes.products.catalogue import KINDS
from hyperfuse.cubes.products.delivery import DeliveredFile, Delivery, deliver, is_zip
from hyperfuse.errors import HyperfuseError

ARCHIVE = ".zip"


def is_product(path: Path) -> bool:
    """A folder whose own files are those of a product, or a .zip that holds one."""
    try:
        if path.is_dir():
            delivery = Delivery(path, {file.name: DeliveredFile(file.name, str(file), 0) for file in path.iterdir()})
        elif path.suffix.lower() == ARCHIVE and is_zip(path):
            delivery = deliver(path)
        else:
            return False
    except (OSError, HyperfuseError):
        return False
    return any(kind.keys(delivery) for kind in KINDS)


def is_network(path: Path) -> bool:
    return (path / "config.json").is_file() and any(path.glob("weights-*.safetensors"))
