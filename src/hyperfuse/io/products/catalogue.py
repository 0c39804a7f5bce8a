"""Which agency's product is this? By the names of its files; HDF5 files by what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hyperfuse.errors import CubeFileError
from hyperfuse.io.arrays import cube_from_arrays
from hyperfuse.io.hdf5 import opened_hdf5
from hyperfuse.io.products import aviris, desis, emit, enmap, hyperion, landsat, prisma, sentinel2
from hyperfuse.io.products.delivery import DeliveredFile, Delivery, deliver, deliver_folder_of, is_archive
from hyperfuse.io.products.product import Product, listed
from hyperfuse.io.products.swath import arrays_of
from hyperfuse.io.raster import open_raster_file

HDF5_SUFFIXES = (".he5", ".h5", ".hdf5", ".nc", ".nc4")
ENVI_OR_TIFF = ("", ".hdr", ".img", ".dat", ".bsq", ".bil", ".bip", ".tif", ".tiff")
MANIFEST = "manifest.safe"

Opener = Callable[[Delivery, DeliveredFile, str | None], Product | None]
Keys = Callable[[Delivery], list[DeliveredFile]]


@dataclass(frozen=True)
class Kind:
    name: str
    keys: Keys
    """The files by which products of this kind are known, one for each product."""
    opened: Opener


def _matching(pattern: re.Pattern[str]) -> Keys:
    return lambda delivery: [file for file in delivery if pattern.fullmatch(file.base_name)]


def _landsat_keys(delivery: Delivery) -> list[DeliveredFile]:
    """One of the three forms in which a scene's metadata come."""
    found = {file.name.rpartition(".")[0]: file for file in sorted(_matching(landsat.KEY)(delivery), key=_preference)}
    return list(found.values())


def _preference(file: DeliveredFile) -> int:
    return ("xml", "json", "txt").index(file.base_name.rpartition(".")[2].lower())


ENMAP = Kind("EnMAP", _matching(enmap.KEY), enmap.open_enmap)
DESIS = Kind("DESIS", _matching(desis.KEY), desis.open_desis)
PRISMA = Kind("PRISMA", _matching(prisma.KEY), prisma.open_prisma)
EMIT = Kind("EMIT", _matching(emit.KEY), emit.open_emit)
AVIRIS = Kind("AVIRIS", aviris.aviris_keys, aviris.open_aviris)
HYPERION = Kind("Hyperion", hyperion.hyperion_keys, hyperion.open_hyperion)
SENTINEL2 = Kind("Sentinel-2", _matching(sentinel2.KEY), sentinel2.open_sentinel2)
LANDSAT = Kind("Landsat 8/9", _landsat_keys, landsat.open_landsat)
KINDS = (ENMAP, PRISMA, EMIT, DESIS, AVIRIS, HYPERION, SENTINEL2, LANDSAT)


def open_product(path: Path, variable: str | None = None) -> Product | None:
    """The product in a folder, in an archive, or to which a file belongs; None for a file that belongs to none."""
    if path.name.lower() == MANIFEST:
        path = path.parent
    if path.is_dir() or is_archive(path):
        delivery = deliver(path)
        kind, key = _only_product(delivery)
        return _opened(kind, delivery, key, variable)
    hyperion.refuse_hdf4(path)
    if path.suffix.lower() in HDF5_SUFFIXES:
        return _hdf5_product(path, variable)
    if sentinel2.KEY.fullmatch(path.name):
        delivery = deliver_folder_of(path)
        return _opened(SENTINEL2, delivery, delivery.files[path.name], variable)
    for kind, pattern in (
        (ENMAP, enmap.KEY),
        (DESIS, desis.KEY),
        (LANDSAT, landsat.KEY),
        (HYPERION, hyperion.METADATA),
    ):
        if pattern.fullmatch(path.name):
            delivery = deliver(path)
            return _opened(kind, delivery, delivery.files[path.name], variable)
    return _image_of_product(path, variable)


def _image_of_product(path: Path, variable: str | None) -> Product | None:
    """An image that was named itself: with the metadata beside it, if they are there."""
    for kind, pattern in ((ENMAP, enmap.IMAGE), (DESIS, desis.IMAGE)):
        named = pattern.fullmatch(path.name)
        if named:
            delivery = deliver(path)
            keys = [
                key for key in kind.keys(delivery) if key.base_name.upper().startswith(f"{named[1].upper()}-METADATA")
            ]
            part = (named[2] or "").strip("_") if kind is ENMAP else ""
            return _opened(kind, delivery, keys[0], variable or part or None) if keys else None
    if variable is not None or path.suffix.lower() not in ENVI_OR_TIFF:
        return None
    if aviris.is_image(path.name):
        return aviris.completed(open_raster_file(path), deliver(path), path.name)
    if hyperion.CUBE.fullmatch(path.name) and not hyperion.BAND.fullmatch(path.name):
        return hyperion.completed(open_raster_file(path), path)
    return None


def _hdf5_product(path: Path, variable: str | None) -> Product | None:
    try:
        with opened_hdf5(path) as source:
            kind = PRISMA if prisma.is_prisma(source) else EMIT if emit.is_emit(source) else None
    except CubeFileError:
        # Whoever reads it next says what is wrong with it.
        return None
    if kind is None:
        return None
    key = DeliveredFile(path.name, str(path), path.stat().st_size)
    return kind.opened(Delivery(path, {path.name: key}), key, variable)


def _opened(kind: Kind, delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product:
    product = kind.opened(delivery, key, variable)
    if product is not None:
        return product
    return Product(cube_from_arrays(Path(key.shown), arrays_of(key), variable, None))


def _only_product(delivery: Delivery) -> tuple[Kind, DeliveredFile]:
    found = [(kind, key) for kind in KINDS for key in kind.keys(delivery)]
    if len(found) == 1:
        return found[0]
    if found:
        names = listed(key.name for _, key in found)
        raise CubeFileError(f"{delivery.path} holds {len(found)} products", "one", f"name one of them: {names}")
    known = ", ".join(kind.name for kind in KINDS)
    inner = next((file.name for file in delivery if is_archive(Path(file.name))), None)
    remedy = f"unpack it: {inner} in it is an archive itself" if inner else "name the file in it"
    raise CubeFileError(
        f"no product was recognised in {delivery.path}", f"a file, a .zarr folder, or a product of {known}", remedy
    )
