"""Rasters that GDAL reads: how their pixels lie in the file, and coarse pictures of them from their overviews."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperfuse.cubes.envi import find_data, find_header
from hyperfuse.cubes.raster import opened_raster


@dataclass(frozen=True)
class RasterSource:
    path: Path
    driver: str | None
    overviews: tuple[int, ...]
    """How many pixels of the image, along a side, make one of each overview; empty where there are none."""
    bands_together: bool
    """Stored pixel by pixel: one band cannot be had without decoding all of them."""


def raster_behind(path: Path, cube: xr.DataArray) -> RasterSource | None:
    """The raster that a cube was read from, or None where it does not lie in a single one, pixel for pixel."""
    suffix = path.suffix.lower()
    if suffix in (".tif", ".tiff"):
        data, driver = path, "GTiff"
    elif suffix == ".hdr" or (path.is_file() and find_header(path)):
        data, driver = find_data(path) if suffix == ".hdr" else path, "ENVI"
    else:
        return None
    with opened_raster(data, driver) as source:
        if (source.count, source.height, source.width) != cube.shape:
            return None
        together = str(source.profile.get("interleave")) == "pixel" and source.count > 1
        return RasterSource(data, driver, tuple(source.overviews(1)), together and bool(source.profile.get("compress")))


def read_decimated(
    raster: RasterSource, bands: NDArray[np.int64], rows: slice, columns: slice, factor: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Stored values of every `factor`-th pixel, from the overview that suits."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    shape = (bands.size, -(-height // factor), -(-width // factor))
    with opened_raster(raster.path, raster.driver) as source:
        values: NDArray[Any] = source.read(
            [int(band) + 1 for band in bands],
            window=Window(columns.start, rows.start, width, height),
            out_shape=shape,
            out_dtype=dtype,
        )
    return values
