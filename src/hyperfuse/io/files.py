"""Open and write cubes; the suffix says which format.

To add a format, write a module with a reader and, if it is to be written, a writer, and add one line to `FORMATS`:

- A container of arrays (HDF5, .npz, ...) lists what it holds: `arrays(path) -> list[FoundArray]`; `cube_from_arrays`
  finds the cube, its bands and its place among them. Each `FoundArray` loads a part of its array on demand.
- A writer is a context manager `create(path, template, options)` that creates the file for a cube like `template`
  (whose values are zeros) and yields a function `write(rows, columns, block)`.

Everything that GDAL opens is read without an entry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.config import COMPRESSIONS, OutputConfig, takes_options
from hyperfuse.errors import CubeFileError, CubeWriteError, GridError, OptionError
from hyperfuse.io.arrays import FoundArray, cube_from_arrays, same_proportions, unlabelled_band_axis
from hyperfuse.io.atomic import CubeWriter, WriteWindow, check_writable, published, recover, signal_safe
from hyperfuse.io.cube import as_cube, iterate_windows, reading
from hyperfuse.io.envi import find_data, find_header
from hyperfuse.io.grid import grid_of
from hyperfuse.io.hdf5 import arrays_in_hdf5, arrays_in_netcdf, created_netcdf
from hyperfuse.io.isolation import isolated, start_server
from hyperfuse.io.matlab import arrays_in_mat, created_mat
from hyperfuse.io.numpy_files import arrays_in_npy, arrays_in_npz, created_npy, created_npz
from hyperfuse.io.output import UNCHANGED, check_selection, converted
from hyperfuse.io.products.catalogue import MISSIONS, open_product
from hyperfuse.io.raster import ENVI_TYPES, created_envi, created_geotiff, open_raster, require_type
from hyperfuse.io.spool import CopyNeeded
from hyperfuse.io.stac import item_file, stac_item, write_item
from hyperfuse.io.wavelengths import supplied
from hyperfuse.io.zarr import arrays_in_zarr, created_zarr
from hyperfuse.progress import progress

PathLike = str | os.PathLike[str]
Creator = Callable[[Path, xr.DataArray, Mapping[str, str]], AbstractContextManager[WriteWindow]]


@dataclass(frozen=True)
class Format:
    """How files of one format are read and written."""

    arrays: Callable[[Path], list[FoundArray]] | None = None
    """Lists the arrays of a container; None for rasters."""
    create: Creator | None = None
    """Creates a file; None for formats that are only read."""
    compressions: Mapping[str, str | None] = field(default_factory=dict)
    """Name of each --compress in the format; None where it is the only one and has no option."""
    options: tuple[str, ...] | None = ()
    """Known --co options; None where GDAL checks them."""
    companions: tuple[str, ...] = ()
    """Suffixes of further files, which replace the suffix of the first (".img") or are appended ("+.json")."""
    stale: tuple[str, ...] = ()
    """Suffixes of files that would describe a new cube wrongly."""
    libraries: tuple[str, ...] = ()
    """What reading it imports, if not always imported."""
    driver: str | None = None
    """GDAL's name of the format, as in `--of`."""


_TIFF = Format(
    None,
    created_geotiff,
    {name: name.upper() for name in COMPRESSIONS},
    options=None,
    stale=("+.aux.xml", "+.ovr", "+.msk"),
    driver="GTiff",
)
_NETCDF = Format(
    arrays_in_netcdf,
    created_netcdf,
    {"deflate": "gzip", "none": "none"},
    options=("COMPRESS",),
    libraries=("h5py", "pyproj"),
    driver="netCDF",
)
_HDF5 = replace(_NETCDF, arrays=arrays_in_hdf5, driver="HDF5")
FORMATS: dict[str, Format] = {
    ".tif": _TIFF,
    ".tiff": _TIFF,
    ".hdr": Format(
        None, created_envi, {"none": None}, None, companions=(".img",), stale=(".img.aux.xml",), driver="ENVI"
    ),
    ".nc": _NETCDF,
    ".nc4": _NETCDF,
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".he5": Format(arrays_in_hdf5, libraries=("h5py", "pyproj")),
    ".zarr": Format(
        arrays_in_zarr,
        created_zarr,
        {"zstd": "zstd", "deflate": "gzip", "none": "none"},
        options=("COMPRESS",),
        libraries=("zarr", "pyproj"),
        driver="Zarr",
    ),
    ".mat": Format(
        arrays_in_mat, created_mat, {"deflate": None}, options=("VERSION",), libraries=("h5py", "scipy.io", "pyproj")
    ),
    ".npz": Format(arrays_in_npz, created_npz, {"deflate": None}),
    ".npy": Format(arrays_in_npy, created_npy, {"none": None}, companions=("+.json",)),
}
WRITABLE = tuple(suffix for suffix, each in FORMATS.items() if each.create)
# A compressed block that is written in parts is compressed again: windows hold whole blocks, within reason.
BLOCK = 256
SMALLEST_WINDOW_BYTES, LARGEST_WINDOW_BYTES = 64 * 2**20, 256 * 2**20


def open_cube(
    path: PathLike,
    variable: str | None = None,
    band_axis: int | None = None,
    *,
    wavelengths: Any = None,
    nodata_in: float | None = None,
    fitting: tuple[int, int] | None = None,
) -> xr.DataArray:
    """Open a cube lazily: metadata now, values when a window of them is read.

    Parameters
    ----------
    path
        A file of any known format, a .zarr folder, or a product of an agency: its folder, its archive (.zip, .tar) or
        one of its files.
    variable
        Name of the array in a file that holds several, or of a part of a product.
    band_axis
        Axis (0, 1, 2) of the bands in an unlabelled array.
    wavelengths, nodata_in
        What the file lacks: band centres (a list, a file that has them, "400:2500" for even spacing, or a sensor
        such as "Sentinel-2A:B2,B3,B4,B8") and the stored value of pixels without data.
    fitting
        Height and width of an image of the same place, by which the axes of an unlabelled array are identified.

    Returns
    -------
    xarray.DataArray
        A cube (see `hyperfuse.io.cube`).

    Raises
    ------
    CubeFileError
        The file is missing, damaged or holds no cube.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/scene.npy", np.zeros((20, 30, 4)))
    ...     open_cube(f"{folder}/scene.npy").shape
    (4, 20, 30)
    """
    return open_explained(path, variable, band_axis, wavelengths, nodata_in, fitting=fitting)[0]


def as_opened(
    image: PathLike | xr.DataArray | NDArray[Any], variable: str | None = None, band_axis: int | None = None, **how: Any
) -> xr.DataArray:
    """Return a file as an open cube, see `open_cube`, and anything else as a cube."""
    return open_cube(image, variable, band_axis, **how) if isinstance(image, str | os.PathLike) else as_cube(image)


def open_explained(
    path: PathLike,
    variable: str | None = None,
    band_axis: int | None = None,
    wavelengths: Any = None,
    nodata_in: float | None = None,
    *,
    fitting: tuple[int, int] | None = None,
) -> tuple[xr.DataArray, Mapping[str, str]]:
    """Open a cube; also return what was found in an agency's product: label -> sentence."""
    recover(Path(path))
    _check_readable(Path(path))
    # A lazy cube reads later, when the working directory may be another one.
    path = Path(path).absolute()
    known = FORMATS.get(path.suffix.lower())
    start_server(known.libraries if known else ())
    cube, notes = isolated(path, _first_look, path, known, variable, band_axis, fitting)
    return supplied(cube, wavelengths, nodata_in, str(path)), notes


def _first_look(
    path: Path, known: Format | None, variable: str | None, band_axis: int | None, fitting: tuple[int, int] | None
) -> tuple[xr.DataArray, Mapping[str, str]]:
    """Open a cube and read a pixel of it, which shows whether the library can allocate and decode a block."""
    with reading(path, "a whole file"):
        cube, notes = _opened(path, known, variable, band_axis, fitting)
        with suppress(CopyNeeded):
            # Of slices: for single positions xarray imports Dask, which takes a third of a second.
            _ = cube[-1:, -1:, -1:].values
        return cube, notes


def _opened(
    path: Path, known: Format | None, variable: str | None, band_axis: int | None, fitting: tuple[int, int] | None
) -> tuple[xr.DataArray, Mapping[str, str]]:
    # A folder is a product, unless its suffix is one of ours (.zarr).
    product = None if path.is_dir() and known is not None else open_product(path, variable)
    if product is not None:
        if band_axis is not None:
            raise OptionError(f"a band axis for {path.name}", "none: a product knows its axes", "leave it out")
        return product.cube, product.notes
    if known is not None and known.arrays is not None:
        return cube_from_arrays(path, known.arrays(path), variable, band_axis, fitting), {}
    if variable is not None or band_axis is not None:
        containers = ", ".join(suffix for suffix, each in FORMATS.items() if each.arrays)
        raise OptionError(f"a variable or band axis for {path.name}", f"these only with {containers}", "leave them out")
    return open_raster(path), {}


def open_mask(mask: PathLike | xr.DataArray | NDArray[Any], image: xr.DataArray) -> xr.DataArray:
    """Return the mask of an image as a cube, from a file, a cube or an array (y, x), (band, y, x) or (y, x, band).

    Its axes are found by the size of the image, which an array without georeference must fit.
    """
    size = image.sizes["y"], image.sizes["x"]
    if isinstance(mask, str | os.PathLike):
        opened = open_cube(mask, fitting=size)
    elif isinstance(mask, xr.DataArray):
        opened = as_cube(mask.astype(np.uint8) if mask.dtype.kind == "b" else mask)
    else:
        values = np.asarray(mask)
        bands_last = values.ndim == 3 and unlabelled_band_axis(values.shape, size, "a mask") == 2
        values = values.transpose(2, 0, 1) if bands_last else values
        opened = as_cube(values.astype(np.uint8) if values.dtype.kind == "b" else values)
    mask_size = opened.sizes["y"], opened.sizes["x"]
    placed = all(grid_of(each).transform is not None for each in (opened, image))
    if not placed and not same_proportions(mask_size, size):
        height, width = mask_size
        got = f"a mask of {height} x {width} pixels without georeference for an image of {size[0]} x {size[1]}"
        raise GridError(got, "the rows and columns of the image, or its proportions", "check the order of its axes")
    return opened


def _check_readable(path: Path) -> None:
    try:
        if not path.exists():
            got = f"{path} does not exist"
            raise CubeFileError(got, "a file, a .zarr folder or the folder of a product", "check the name")
        if path.is_dir():
            return
        if not path.is_file():
            raise CubeFileError(f"{path} is not a regular file", "a file or a folder", "save it to a file first")
        with path.open("rb") as stream:
            if not stream.read(1):
                raise CubeFileError(f"{path} is empty", "a whole file", "fetch it again")
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        got = f"{path} cannot be read: {text}"
        raise CubeFileError(got, "a readable file", "check its name and permissions") from error


@takes_options(OutputConfig)
def write_cube(
    cube: xr.DataArray | NDArray[Any], path: PathLike, config: OutputConfig = UNCHANGED, inputs: Sequence[PathLike] = ()
) -> Path:
    """Write a cube, window by window, in the format of the suffix; the file appears whole or not at all.

    Parameters
    ----------
    cube
        A cube, lazy or in memory, or a (band, y, x) array.
    path
        The new file: .tif, .hdr (ENVI), .nc, .h5, .zarr, .mat, .npz or .npy.
    config
        Which bands to write, as which numbers, and options of the format. Each may also be given as a keyword:
        ``bands``, ``dtype``, ``scale_factor``, ``nodata``, ``compress``, ``overviews``, ``stac``, ``cog``,
        ``creation_options``, ``overwrite``.
    inputs
        Files that the cube was made from, for a STAC item.

    Returns
    -------
    pathlib.Path
        The path.

    Raises
    ------
    CubeWriteError
        The target exists, cannot be written or cannot hold the data type.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from hyperfuse.io.cube import make_cube
    >>> cube = make_cube(np.zeros((3, 4, 5), np.float32), wavelength_nm=[450, 550, 650])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_cube(cube, f"{folder}/scene.tif")
    ...     open_cube(path)["wavelength"].values.tolist()
    [450.0, 550.0, 650.0]
    """
    check_target(Path(path), config)
    source = as_cube(cube)
    cube, clipping = converted(source, config)
    block_bytes = 4 * cube.sizes["band"] * BLOCK * BLOCK
    window_bytes = min(max(SMALLEST_WINDOW_BYTES, block_bytes), LARGEST_WINDOW_BYTES)
    windows = list(iterate_windows(cube, window_bytes * 4 // max(4, source.dtype.itemsize, cube.dtype.itemsize)))
    with created_cube(path, cube, config, inputs) as writer, progress("Writing", len(windows)) as advance:
        for rows, columns in windows:
            writer.write(rows, columns, cube.isel(y=rows, x=columns).values)
            advance(1)
    clipping.report(cube)
    return Path(path)


@contextmanager
def created_cube(
    path: PathLike,
    template: xr.DataArray,
    config: OutputConfig = UNCHANGED,
    inputs: Sequence[PathLike] = (),
    work_folder: Path | None = None,
) -> Iterator[CubeWriter]:
    """Create a cube like `template`, to be written window by window; it appears when the block ends.

    The template (see `output_template`) already has the bands, data type, scale and nodata to be written: of `config`
    only the other options count. `work_folder` is passed on to `published`.
    """
    path = Path(path)
    check_target(path, config)
    create, options = _writable_format(path)[1], _format_options(path, config)
    if create is created_geotiff:
        create = partial(created_geotiff, cog=config.writes_cog, overviews=config.overviews)
    item = stac_item(path, template, _companions(path), inputs, cog=config.writes_cog) if config.stac else None
    with published(
        path,
        overwrite=config.overwrite,
        beside=_written_beside(path, config),
        stale=_stale(path),
        work_folder=work_folder,
    ) as temporary:
        with signal_safe(create(temporary, template, options)) as writer:
            yield writer
        if item is not None:
            write_item(item_file(temporary), item)


def check_target(path: Path, config: OutputConfig = UNCHANGED) -> None:
    """Check a target before there is anything to write; call it before hours of work."""
    known, create = _writable_format(path)
    if config.bands is not None:
        check_selection(config.bands)
    driver = "GTiff" if config.format == "COG" else config.format
    if driver not in (None, known.driver):
        suffixes = [suffix for suffix, each in FORMATS.items() if each.driver == driver]
        raise OptionError(f"--of {config.format} for {path.name}", f"a name that ends in {' or '.join(suffixes)}")
    if create is not created_geotiff and (config.writes_cog or config.overviews):
        got = f"{'a cloud-optimised' if config.writes_cog else 'overviews in'} {path.suffix}"
        raise OptionError(got, "--cog or --overviews with .tif")
    if create is created_envi and config.dtype is not None:
        require_type(config.dtype, "ENVI", ENVI_TYPES)
    for name in _format_options(path, config):
        if known.options is not None and name not in known.options:
            expected = " or ".join(known.options) or f"none: {path.suffix} has no options"
            raise OptionError(f"option {name} for {path.name}", expected, "check --co NAME=VALUE")
    for each in (*_written_beside(path, config), path):
        check_writable(each, overwrite=config.overwrite)


def _writable_format(path: Path) -> tuple[Format, Creator]:
    known = FORMATS.get(path.suffix.lower(), Format())
    if known.create is None:
        got = f"unknown suffix {path.suffix!r} of {path.name}"
        raise CubeWriteError(got, f"one of {', '.join(WRITABLE)}", "ENVI is written as NAME.hdr + NAME.img")
    return known, known.create


def _format_options(path: Path, config: OutputConfig) -> dict[str, str]:
    """The options of the format, with the compression among them under the name that it has there."""
    given = {key.upper(): value for key, value in config.creation_options.items()}
    if config.compress is None:
        return given
    known = _writable_format(path)[0].compressions
    if config.compress not in known:
        raise OptionError(f"--compress {config.compress} for {path.name}", f"{' or '.join(known)} with {path.suffix}")
    if "COMPRESS" in given:
        raise OptionError("--compress and --co COMPRESS", "one of the two")
    name = known[config.compress]
    return given if name is None else given | {"COMPRESS": name}


def _written_beside(path: Path, config: OutputConfig) -> list[Path]:
    return [*_companions(path), *([item_file(path)] if config.stac else [])]


def parts_of(path: Path) -> Iterator[Path]:
    """Return the files that are read for a cube: a file and its companions, or everything in a folder."""
    if not path.is_dir() and any(mission.key.fullmatch(path.name) for mission in MISSIONS):
        path = path.parent
    if path.is_dir():
        yield from (each for each in path.rglob("*") if each.is_file())
        return
    known = FORMATS.get(path.suffix.lower(), _TIFF)
    beside = {path, *(_named_beside(path, suffix) for suffix in (*known.companions, *known.stale))}
    with suppress(CubeFileError):
        beside.add(find_data(path) if path.suffix.lower() == ".hdr" else find_header(path) or path)
    yield from (each for each in beside if each.is_file())


def _companions(path: Path) -> list[Path]:
    """The files without which the cube at `path` would not be whole."""
    return [_named_beside(path, suffix) for suffix in FORMATS[path.suffix.lower()].companions]


def _stale(path: Path) -> list[Path]:
    """Files that GDAL or ENVI would take for part of the new cube: statistics, overviews, masks, other old data."""
    stale = [_named_beside(path, suffix) for suffix in FORMATS[path.suffix.lower()].stale]
    if path.suffix.lower() == ".hdr" and path.is_file():
        with suppress(CubeFileError):
            stale += {find_data(path)} - {path.with_suffix(".img")}
    return stale


def _named_beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix[1:]) if suffix.startswith("+") else path.with_suffix(suffix)
