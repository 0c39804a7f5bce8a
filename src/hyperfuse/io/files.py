"""Open and write cubes; the suffix says which format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, CubeWriteError, OptionError
from hyperfuse.io.arrays import LAST, FoundArray, cube_from_arrays
from hyperfuse.io.bands import check_selection
from hyperfuse.io.atomic import CubeWriter, check_writable, published, signal_safe
from hyperfuse.io.cube import as_cube, iterate_windows
from hyperfuse.io.envi import old_data
from hyperfuse.io.hdf5 import arrays_in_hdf5
from hyperfuse.io.matlab import arrays_in_mat, created_mat
from hyperfuse.io.netcdf import arrays_in_netcdf, created_netcdf
from hyperfuse.io.numpy_files import arrays_in_npy, arrays_in_npz, created_npy, created_npz, side_file
from hyperfuse.config import COMPRESSIONS, OutputConfig
from hyperfuse.io.output import AS_IT_IS, converted
from hyperfuse.io.products.catalogue import open_product
from hyperfuse.io.raster import open_raster_file
from hyperfuse.io.raster_writing import created_envi, created_geotiff, require_envi_type
from hyperfuse.io.stac import item_file, stac_item, write_item
from hyperfuse.io.zarr import arrays_in_zarr, created_zarr
from hyperfuse.progress import progress

PathLike = str | os.PathLike[str]


# Containers of arrays: how to list what is in them, and which axis holds the bands where nothing says so.
CONTAINERS: dict[str, tuple[Callable[[Path], list[FoundArray]], int | None]] = {
    ".nc": (arrays_in_netcdf, None),
    ".nc4": (arrays_in_netcdf, None),
    ".h5": (arrays_in_hdf5, None),
    ".hdf5": (arrays_in_hdf5, None),
    ".he5": (arrays_in_hdf5, None),
    ".zarr": (arrays_in_zarr, None),
    ".mat": (arrays_in_mat, LAST),
    ".npz": (arrays_in_npz, LAST),
    ".npy": (arrays_in_npy, LAST),
}
CREATORS: dict[str, Callable[[Path, xr.DataArray, Mapping[str, str]], AbstractContextManager[CubeWriter]]] = {
    ".tif": created_geotiff,
    ".tiff": created_geotiff,
    ".hdr": created_envi,
    ".nc": created_netcdf,
    ".nc4": created_netcdf,
    ".h5": created_netcdf,
    ".hdf5": created_netcdf,
    ".zarr": created_zarr,
    ".mat": created_mat,
    ".npz": created_npz,
    ".npy": created_npy,
}

# What each format calls the compressions that it has; None where it has only that one and no option for it.
TIFF_COMPRESSIONS = {name: name.upper() for name in COMPRESSIONS}
HDF5_COMPRESSIONS = {"deflate": "gzip", "none": "none"}
COMPRESSED_AS: dict[str, dict[str, str] | dict[str, None]] = {
    ".tif": TIFF_COMPRESSIONS,
    ".tiff": TIFF_COMPRESSIONS,
    ".hdr": {"none": None},
    ".nc": HDF5_COMPRESSIONS,
    ".nc4": HDF5_COMPRESSIONS,
    ".h5": HDF5_COMPRESSIONS,
    ".hdf5": HDF5_COMPRESSIONS,
    ".zarr": {"zstd": "zstd", "deflate": "gzip", "none": "none"},
    ".mat": {"deflate": None},
    ".npz": {"deflate": None},
    ".npy": {"none": None},
}
# Options of the formats that are not GDAL's, which knows its own.
OPTIONS: dict[str, tuple[str, ...]] = {
    ".nc": ("COMPRESS",),
    ".nc4": ("COMPRESS",),
    ".h5": ("COMPRESS",),
    ".hdf5": ("COMPRESS",),
    ".zarr": ("COMPRESS",),
    ".mat": ("VERSION",),
    ".npz": (),
    ".npy": (),
}
BLOCK = 256
SMALLEST_WINDOW_BYTES = 64 * 2**20
LARGEST_WINDOW_BYTES = 256 * 2**20


def open_cube(path: PathLike, variable: str | None = None, band_axis: int | None = None) -> xr.DataArray:
    """Open a cube lazily: metadata now, values when a window of them is asked for.

    A folder or an archive (.zip, .tar) is an agency's product, as is a file that belongs to one. `variable` names the
    array in a file that holds several, or a part of a product; `band_axis` (0, 1, 2) is where an unlabelled array has
    its bands.
    """
    return open_explained(path, variable, band_axis)[0]


def open_explained(
    path: PathLike, variable: str | None = None, band_axis: int | None = None
) -> tuple[xr.DataArray, Mapping[str, str]]:
    """A cube, and where it is an agency's product, what was found there: label -> sentence."""
    path = Path(path)
    suffix = path.suffix.lower()
    _refuse_unreadable(path)
    # A lazy cube reads later, perhaps when the working directory is another one.
    path = path.absolute()
    product = open_product(path, variable) if suffix != ".zarr" else None
    if product is not None and band_axis is not None:
        raise OptionError(f"a band axis for {path.name}", "none: a product knows its axes", "leave it out")
    if product is not None:
        return product.cube, product.notes
    if suffix in CONTAINERS:
        list_arrays, default_band_axis = CONTAINERS[suffix]
        return cube_from_arrays(path, list_arrays(path), variable, band_axis, default_band_axis), {}
    if variable is not None or band_axis is not None:
        raise OptionError(
            f"a variable or band axis for {path.name}", f"these only with {', '.join(CONTAINERS)}", "leave them out"
        )
    return open_raster_file(path), {}


def _refuse_unreadable(path: Path) -> None:
    try:
        if not path.exists():
            raise CubeFileError(
                f"{path} does not exist", "a file, a .zarr folder or the folder of a product", "check the name"
            )
        if path.is_dir():
            return
        if not path.is_file():
            raise CubeFileError(f"{path} is no regular file", "a file or a folder", "save it to a file first")
        with path.open("rb") as stream:
            if not stream.read(1):
                raise CubeFileError(f"{path} is empty", "a whole file", "fetch it again")
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise CubeFileError(
            f"{path} cannot be read: {text}", "a readable file", "check its name and permissions"
        ) from error


def write_cube(
    cube: xr.DataArray | NDArray[Any],
    path: PathLike,
    *,
    output: OutputConfig = AS_IT_IS,
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
    inputs: Sequence[PathLike] = (),
) -> Path:
    """Write a cube, window by window, in the format of the suffix; the file appears whole or not at all.

    `output` says which bands to write and in which numbers; `options` are the format's own. `inputs` are the files that
    the cube was made from, for a STAC item.
    """
    check_target(Path(path), output=output, options=options, cog=cog, overwrite=overwrite)
    source = as_cube(cube)
    cube, clipping = converted(source, output)
    windows = list(
        iterate_windows(cube, _window_bytes(cube.sizes["band"], max(source.dtype.itemsize, cube.dtype.itemsize)))
    )
    with (
        created_cube(path, cube, output=output, options=options, cog=cog, overwrite=overwrite, inputs=inputs) as writer,
        progress("Writing", len(windows)) as advance,
    ):
        for rows, columns in windows:
            writer.write(rows, columns, cube.isel(y=rows, x=columns).values)
            advance(1)
    clipping.report(cube)
    return Path(path)


def _window_bytes(bands: int, itemsize: int) -> int:
    """Enough for a whole block of all bands, within reason: a compressed block that is written in parts is compressed
    again.
    """
    block_bytes = 4 * bands * BLOCK * BLOCK
    return min(max(SMALLEST_WINDOW_BYTES, block_bytes), LARGEST_WINDOW_BYTES) * 4 // max(4, itemsize)


@contextmanager
def created_cube(
    path: PathLike,
    template: xr.DataArray,
    *,
    output: OutputConfig = AS_IT_IS,
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
    inputs: Sequence[PathLike] = (),
    work_folder: Path | None = None,
) -> Iterator[CubeWriter]:
    """A new cube like `template` (whose values are not looked at), written window by window; it appears when the block
    ends.

    The template is what is to be written: of `output` only counts how it is stored (see `output_template` for the
    rest). `work_folder` is a folder that does not exist yet, on the target's disk, for the time until then; without it
    one is made up.
    """
    path = Path(path)
    check_target(path, output=output, options=options, cog=cog, overwrite=overwrite)
    create, given = creator_for(path), _format_options(path, output, options)
    item = stac_item(path, template, _companions(path), inputs, cog=cog) if output.stac else None
    beside = _written_beside(path, output)
    with published(path, overwrite=overwrite, beside=beside, stale=_stale(path), work_folder=work_folder) as temporary:
        if create is created_geotiff:
            creation: AbstractContextManager[CubeWriter] = created_geotiff(
                temporary, template, given, cog=cog, overviews=output.overviews
            )
        else:
            creation = create(temporary, template, given)
        with signal_safe(creation) as writer:
            yield writer
        if item is not None:
            write_item(item_file(temporary), item)


def check_target(
    path: Path,
    *,
    output: OutputConfig = AS_IT_IS,
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
) -> None:
    """Whatever can be said against a target before there is anything to write to it; to be asked before hours of work."""
    if output.bands is not None:
        check_selection(output.bands)
    if creator_for(path) is not created_geotiff and (cog or output.overviews):
        raise OptionError(
            f"{'a cloud-optimised' if cog else 'overviews in'} {path.suffix}", "--cog or --overviews with .tif"
        )
    if creator_for(path) is created_envi and output.dtype is not None:
        require_envi_type(output.dtype)
    _refuse_unknown_options(path, _format_options(path, output, options))
    for each in (*_written_beside(path, output), path):
        check_writable(each, overwrite=overwrite)


def _format_options(path: Path, output: OutputConfig, options: Mapping[str, str] | None) -> dict[str, str]:
    """The format's own options, with the compression among them under the name that it has there."""
    given = {key.upper(): value for key, value in (options or {}).items()}
    if output.compress is None:
        return given
    known = COMPRESSED_AS[path.suffix.lower()]
    if output.compress not in known:
        raise OptionError(f"--compress {output.compress} for {path.name}", f"{' or '.join(known)} with {path.suffix}")
    if "COMPRESS" in given:
        raise OptionError("--compress and --co COMPRESS", "one of the two")
    word = known[output.compress]
    return given if word is None else given | {"COMPRESS": word}


def _refuse_unknown_options(path: Path, given: Mapping[str, str]) -> None:
    known = OPTIONS.get(path.suffix.lower())
    for name in map(str.upper, given if known is not None else ()):
        if name not in (known or ()):
            expected = f"{' or '.join(known)}" if known else f"none: {path.suffix} has no options"
            raise OptionError(f"option {name} for {path.name}", expected, "check --co NAME=VALUE")


def _written_beside(path: Path, output: OutputConfig) -> list[Path]:
    """Every file that is written together with `path`."""
    return [*_companions(path), *([item_file(path)] if output.stac else [])]


def _companions(path: Path) -> list[Path]:
    """The files without which the cube at `path` would not be whole."""
    suffix = path.suffix.lower()
    return [path.with_suffix(".img")] if suffix == ".hdr" else [side_file(path)] if suffix == ".npy" else []


def _stale(path: Path) -> list[Path]:
    """Files that GDAL or ENVI would take for part of the new cube: statistics, overviews and masks of the old one, its
    old data.
    """
    suffix = path.suffix.lower()
    if suffix in (".tif", ".tiff"):
        return [path.with_name(path.name + tail) for tail in (".aux.xml", ".ovr", ".msk")]
    if suffix == ".hdr":
        image = path.with_suffix(".img")
        return [image.with_name(image.name + ".aux.xml"), *(data for data in old_data(path) if data != image)]
    return []


def creator_for(path: Path) -> Callable[[Path, xr.DataArray, Mapping[str, str]], AbstractContextManager[CubeWriter]]:
    creator = CREATORS.get(path.suffix.lower())
    if creator is None:
        known = ", ".join(CREATORS)
        raise CubeWriteError(
            f"unknown suffix {path.suffix!r} of {path.name}",
            f"one of {known}",
            "ENVI is written as NAME.hdr + NAME.img",
        )
    return creator
