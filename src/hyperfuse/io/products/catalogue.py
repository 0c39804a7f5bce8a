'''The missions whose products can be opened, and how to recognise them by file name.

Adding a mission takes one function and one entry in `MISSIONS`. The function receives the files of the product, the
file by which it was recognised, and the user's `--variable`, and returns the band table with a reader of the pixels::

    """ALI on EO-1: a GeoTIFF for each band and an MTL file."""

    KEY = re.compile(r"EO1A\\w+_MTL_L1\\w+\\.TXT", re.IGNORECASE)
    BANDS = {"B1": (482.5, 65.0), "B2": (565.0, 80.0), "B3": (660.0, 60.0)}

    def open_ali(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
        mtl = MtlMetadata(key)
        images = {name: mtl.text("PRODUCT_METADATA", f"BAND{name[1:]}_FILE_NAME") for name in BANDS}
        chosen = list(BANDS) if variable is None else select_bands(variable, {}, list(BANDS), images, files.path)
        if chosen is None:
            return Product(open_layer(files, variable or "", list(BANDS)))
        reader, finest = stack([read_info(files.require(images[name], key.base_name)) for name in chosen])
        bands = [Band(name, *BANDS[name], scale=mtl.number("RADIANCE_SCALING", f"{name}_SCALING")) for name in chosen]
        attributes = identity("ALI L1", "ALI", mtl.get("PRODUCT_METADATA", "ACQUISITION_DATE"), "radiance")
        return make_product(reader, bands, attributes, key.stem, nodata=0, grid=finest.grid, others=BANDS)

    Mission("ALI", ali.KEY, ali.open_ali)  # in MISSIONS

Products of one image with all bands and an XML file start from `dlr.image_product`; HDF5 and NetCDF-4 products from
`swath.Hdf5Metadata`, as `emit` does. A test writes a small product of the documented layout (see
tests/io/products) and compares the opened cube with what was written.
'''

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hyperfuse.errors import CubeFileError
from hyperfuse.io.arrays import cube_from_arrays
from hyperfuse.io.hdf5 import arrays_in_hdf5
from hyperfuse.io.products import aviris, dlr, emit, hyperion, landsat, prisma, sentinel2
from hyperfuse.io.products.band_files import open_band_files
from hyperfuse.io.products.product import (
    ARCHIVE_SUFFIXES,
    DEEPEST,
    Product,
    ProductFile,
    ProductFiles,
    list_files,
    list_names,
)

HDF5_SUFFIXES = (".he5", ".h5", ".hdf5", ".nc", ".nc4")
SENTINEL2_MANIFEST = "manifest.safe"

Opener = Callable[[ProductFiles, ProductFile, str | None], Product | None]


@dataclass(frozen=True)
class Mission:
    """How to recognise and open the products of a mission."""

    name: str
    key: re.Pattern[str]
    """Name of the file that identifies a product: its metadata, or the one file that holds everything."""
    open: Opener
    """Opens a product by its key; None for a variable that is the name of an array in the key."""
    choose_keys: Callable[[Iterable[ProductFile]], list[ProductFile]] = list
    """Keeps one key for each product, where several of its files match."""
    image: re.Pattern[str] | None = None
    """Names of images that can be opened by name."""
    open_image: Opener | None = None
    """Opens a product by one of its images; None for an image without its metadata."""
    signature: bytes | None = None
    """How the key begins, for copies under other names."""
    depth: int = 1
    """How many levels of folders a product has from its key downwards."""


MISSIONS = (
    Mission("EnMAP", dlr.ENMAP_KEY, dlr.open_enmap, image=dlr.ENMAP_IMAGE, open_image=dlr.open_image),
    Mission("PRISMA", prisma.KEY, prisma.open_prisma),
    Mission("EMIT", emit.KEY, emit.open_emit),
    Mission("DESIS", dlr.DESIS_KEY, dlr.open_desis, image=dlr.DESIS_IMAGE, open_image=dlr.open_image),
    Mission("AVIRIS", aviris.KEY, aviris.open_aviris, aviris.choose_keys, aviris.IMAGE, aviris.open_image),
    Mission(
        "Hyperion", hyperion.KEY, hyperion.open_hyperion, hyperion.choose_keys, hyperion.IMAGE, hyperion.open_image
    ),
    Mission("Sentinel-2", sentinel2.KEY, sentinel2.open_sentinel2, depth=DEEPEST),
    Mission("Landsat", landsat.KEY, landsat.open_landsat, landsat.choose_keys, signature=landsat.SIGNATURE),
)


def open_product(path: Path, variable: str | None = None) -> Product | None:
    """Open the product in a folder or an archive, or to which a file belongs; None for a file that belongs to none.

    `variable` names what to open instead of the default: a detector, a set or list of bands, another raster or array.
    """
    if path.name.lower() == SENTINEL2_MANIFEST:
        path = path.parent
    if path.is_dir() or path.name.lower().endswith(ARCHIVE_SUFFIXES):
        files = list_files(path)
        stacked = None if find_products(files) else open_band_files(files, variable)
        return stacked or _open(*_require_one(files), files, variable)
    if path.suffix.lower() in HDF5_SUFFIXES:
        import h5py

        # Recognised by content, so that a renamed file is still opened as a product.
        key = ProductFile.at(path)
        files = ProductFiles(path.parent, {key.name: key})
        openers = (prisma.open_prisma, emit.open_emit) if h5py.is_hdf5(path) else ()
        return next((product for opener in openers if (product := opener(files, key, variable))), None)
    for mission in MISSIONS:
        # A band that is named itself is an image.
        if (mission.key.fullmatch(path.name) and path.suffix.lower() != ".tif") or _begins_like(path, mission):
            files = list_files(path.parent, mission.depth)
            return _open(mission, files.files[path.name], files, variable)
        if mission.image and mission.open_image and mission.image.fullmatch(path.name):
            files = list_files(path.parent, depth=1)
            return mission.open_image(files, files.files[path.name], variable)
    return None


def _begins_like(path: Path, mission: Mission) -> bool:
    if mission.signature is None or path.suffix.lower() != ".txt":
        return False
    with path.open("rb") as stream:
        return stream.read(len(mission.signature)) == mission.signature


def find_products(files: ProductFiles) -> list[tuple[Mission, ProductFile]]:
    """Return mission and key of each product among the files, by file name."""
    found = [
        (mission, key)
        for mission in MISSIONS
        for key in mission.choose_keys(
            # Empty copies of metadata come with some downloads.
            file
            for file in files
            if file.size and mission.key.fullmatch(file.base_name)
        )
    ]
    if found:
        return found
    # Renamed copies are recognised by their content, which opens the files: only where no name matches.
    texts = [file for file in files if file.base_name.lower().endswith(".txt") and not file.is_member]
    return [(mission, key) for mission in MISSIONS for key in texts if _begins_like(Path(key.container), mission)]


def _open(mission: Mission, key: ProductFile, files: ProductFiles, variable: str | None) -> Product:
    product = mission.open(files, key, variable)
    return product or Product(cube_from_arrays(Path(str(key)), arrays_in_hdf5(key), variable, None))


def _require_one(files: ProductFiles) -> tuple[Mission, ProductFile]:
    products = find_products(files)
    if len(products) == 1:
        return products[0]
    if products:
        names = list_names(key.name for _, key in products)
        raise CubeFileError(f"{files.path} has {len(products)} products", "one", f"name one of them: {names}")
    known = ", ".join(mission.name for mission in MISSIONS)
    inner = next((file.name for file in files if file.name.lower().endswith(ARCHIVE_SUFFIXES)), None)
    got = f"no product was recognised in {files.path}"
    remedy = f"unpack it: {inner} in it is an archive itself" if inner else "name the file in it"
    expected = f"a file, a .zarr folder, a product of {known}, or files of single bands called after them (B02.tif)"
    raise CubeFileError(got, expected, remedy)
