"""Reading rasters through GDAL (rasterio): GeoTIFF, COG, ENVI and whatever else it opens, with all spectral metadata."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.damaged_files import promises_too_much
from hyperfuse.cubes.envi import check_header, find_data, find_header
from hyperfuse.cubes.exact_record import with_exact_values
from hyperfuse.cubes.lazy import lazy_variable
from hyperfuse.cubes.raster_tags import band_tags, good_bands, lengths, natively_described, record_of
from hyperfuse.errors import CubeFileError

GDAL_ERRORS = (RasterioError, CPLE_BaseError)
MOST_BLOCKS_CHECKED = 20_000


@dataclass(frozen=True)
class RasterReader:
    path: str
    driver: str | None
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        window = Window(columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start)
        with opened_raster(Path(self.path), self.driver) as source:
            values: NDArray[Any] = source.read([int(band) + 1 for band in bands], window=window, out_dtype=self.dtype)
        return values


@contextmanager
def opened_raster(path: Path, driver: str | None = None) -> Iterator[Any]:
    """A rasterio dataset; GDAL's complaints, also those of later reads, become one `CubeFileError`."""
    try:
        with warnings.catch_warnings(), rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=16):
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(path, driver=driver) as source:
                yield source
    except (*GDAL_ERRORS, ValueError, OverflowError, MemoryError) as error:
        raise CubeFileError(f"{path} cannot be read: {reason(error, path)}", "a whole raster file", "fetch it again") from error


def reason(error: BaseException, path: Path) -> str:
    """GDAL's own words, on one line."""
    text = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
    return text.replace(str(path), path.name)[:200]


def open_raster_file(path: Path) -> xr.DataArray:
    """A raster by its name: ENVI by its header or its data, GeoTIFF, and whatever else GDAL opens."""
    suffix = path.suffix.lower()
    if suffix == ".hdr":
        data = find_data(path)
        check_header(path, data)
        return read_raster(path, data, "ENVI")
    if suffix in (".tif", ".tiff"):
        return read_raster(path, driver="GTiff")
    header = find_header(path)
    if header is None:
        return read_raster(path)
    check_header(header, path)
    return read_raster(path, driver="ENVI")


def read_raster(path: Path, data_path: Path | None = None, driver: str | None = None) -> xr.DataArray:
    """A lazy cube of `path`; `data_path` is where the pixels are when that is another file (ENVI's header named by the user)."""
    data_path = data_path or path
    with opened_raster(data_path, driver) as source:
        dtype = _common_dtype(source, path)
        _refuse_huge_blocks(source, data_path)
        refuse_truncated(source, data_path)
        tags = band_tags(source)
        wavelength, fwhm = lengths(source, tags, path)
        described = with_exact_values(natively_described(source, dtype, wavelength), record_of(source))
        reader = RasterReader(str(data_path), driver, (source.count, source.height, source.width), dtype)
        return make_cube(
            lazy_variable(reader),
            wavelength_nm=wavelength,
            fwhm_nm=fwhm,
            good=good_bands(source, tags),
            band_names=described.band_name,
            scale=described.scale,
            offset=described.offset,
            nodata=described.nodata_number(),
            crs=CRS.from_wkt(described.crs) if described.crs else None,
            transform=Affine(*described.transform) if described.transform else None,
            attributes=described.attributes,
        )


def held_bytes(path: Path) -> int:
    """The size of a file, or of the stretch of a file that GDAL is to read: /vsisubfile/OFFSET_SIZE,FILE."""
    stretch = re.match(r"/vsisubfile/\d+_(\d+),", str(path))
    return int(stretch[1]) if stretch else path.stat().st_size


def missing_blocks(source: Any, path: Path, *, all_rows: bool) -> int:
    """How many blocks of a TIFF lie beyond the end of the file, of all or of the last row; blocks never written do not count."""
    size = held_bytes(path)
    height, width = source.block_shapes[0]
    rows, columns = -(-source.height // height), -(-source.width // width)
    looked_at = range(rows) if all_rows else range(rows - 1, rows)
    bands = source.indexes[:1] if str(source.profile.get("interleave")) == "pixel" else source.indexes
    places = [(band, y, x) for band in bands for y in looked_at for x in range(columns)]
    beyond = 0
    for band, y, x in places if all_rows else places[-MOST_BLOCKS_CHECKED:]:
        offset, length = (source.get_tag_item(f"BLOCK_{word}_{x}_{y}", "TIFF", bidx=band) for word in ("OFFSET", "SIZE"))
        beyond += offset is not None and length is not None and int(offset) + int(length) > size
    return beyond


def _common_dtype(source: Any, path: Path) -> np.dtype[Any]:
    if source.count == 0:
        raise CubeFileError(f"{path} has no bands", "at least one", "name one of its subdatasets")
    dtype = np.result_type(*{np.dtype(name) for name in source.dtypes})
    if dtype.kind not in "iuf":
        raise CubeFileError(f"{path} holds values of type {dtype}", "integers or real numbers", "convert it first")
    return dtype


def _refuse_huge_blocks(source: Any, path: Path) -> None:
    """GDAL allocates a whole block, of all bands if they are stored together, however long the file is."""
    height, width = source.block_shapes[0]
    together = source.count if str(source.profile.get("interleave")) == "pixel" else 1
    if promises_too_much(height * width * together * np.dtype(source.dtypes[0]).itemsize, held_bytes(path)):
        raise CubeFileError(
            f"{path} promises blocks of {height} x {width} pixels, {together} bands together", "a whole file", "fetch it again"
        )


def refuse_truncated(source: Any, path: Path) -> None:
    if source.driver == "GTiff" and missing_blocks(source, path, all_rows=False):
        raise CubeFileError(f"{path} is truncated: its last pixels lie beyond its end", "a whole file", "fetch it again")
