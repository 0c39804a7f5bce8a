"""The images that are open together, and where each of them lies on the one grid that the page shows.

Rasters that GDAL reads: how their pixels lie in the file, and coarse pictures of them from their overviews.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperfuse.errors import GridError, OptionError
from hyperfuse.io.cube import wavelengths_nm
from hyperfuse.io.envi import find_data, find_header
from hyperfuse.io.files import open_explained
from hyperfuse.io.grid import Grid, Placement, Positions, grid_of, parallel_placement, positions_in
from hyperfuse.io.raster import opened_raster


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


# What a file may be opened as, and under which name a person sees it.
ROLES = {"fused": "Fused", "hsi": "HSI", "msi": "MSI", "reference": "Reference", "uncertainty": "Uncertainty"}
# The page's pixels are those of the first of these that is open; its bands are the ones that a person chooses from.
LEADING = ("fused", "reference", "msi", "hsi")
ON_ITSELF = Placement(0.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class OpenImage:
    role: str
    path: Path
    cube: xr.DataArray
    raster: RasterSource | None
    page: Grid
    placement: Placement | None
    """Where the centres of the page's pixels lie in this image; None where the two grids are not parallel."""

    found: Mapping[str, str]
    """What an agency's product is made of: label -> sentence."""

    def positions(self, rows: Positions, columns: Positions) -> tuple[Positions, Positions]:
        """Rows (n, 1) and columns (1, m) of pixels of the page as rows and columns of this image, that broadcast to (n,
        m).
        """
        if self.placement is not None:
            return self.placement.coarse_rows(rows), self.placement.coarse_columns(columns)
        shape = np.broadcast_shapes(rows.shape, columns.shape)
        return positions_in(
            grid_of(self.cube), self.page, np.broadcast_to(rows, shape), np.broadcast_to(columns, shape)
        )

    @property
    def height(self) -> int:
        return int(self.cube.sizes["y"])

    @property
    def width(self) -> int:
        return int(self.cube.sizes["x"])

    @property
    def bands(self) -> int:
        return int(self.cube.sizes["band"])


@dataclass(frozen=True, eq=False)
class Scene:
    number: int
    images: Mapping[str, OpenImage]
    lead: OpenImage
    grid: Grid
    notes: tuple[str, ...]

    @property
    def longer_side(self) -> int:
        return max(self.grid.height, self.grid.width)


def open_scene(paths: Mapping[str, Path], number: int = 0) -> Scene:
    """Open every file and place it; a file that cannot be read, or lies elsewhere, is refused."""
    unknown = sorted(set(paths) - set(ROLES))
    if unknown:
        raise OptionError(f"an image opened as {unknown[0]!r}", f"one of {', '.join(ROLES)}")
    explained = {role: open_explained(paths[role]) for role in ROLES if role in paths}
    cubes = {role: cube for role, (cube, _) in explained.items()}
    leading = next((role for role in LEADING if role in cubes), None)
    if leading is None:
        raise OptionError("no image to show", "a fused image, an HSI, an MSI or a reference", "choose a file")
    grid = grid_of(cubes[leading])
    images, notes = {}, []
    for role, cube in cubes.items():
        placement, complaints = (
            (ON_ITSELF, []) if role == leading else _lying(grid_of(cube), grid, f"{ROLES[role]} and {ROLES[leading]}")
        )
        images[role] = OpenImage(
            role, paths[role], cube, raster_behind(paths[role], cube), grid, placement, explained[role][1]
        )
        notes += [f"{ROLES[role]}: {complaint}" for complaint in complaints]
        if wavelengths_nm(cube) is None and role != "uncertainty":
            notes.append(f"{ROLES[role]}: wavelengths unknown, bands are matched by their number")
    return Scene(number, images, images[leading], grid, tuple(notes))


def _lying(own: Grid, page: Grid, both: str) -> tuple[Placement | None, list[str]]:
    """Where an image lies; None where its grid is turned or bent against the page's."""
    if (own.transform is None) == (page.transform is None):
        try:
            return parallel_placement(own, page), []
        except GridError as error:
            raise GridError(f"{both}: {error.got}", error.expected, error.remedy) from error
    return parallel_placement(replace(own, transform=None), replace(page, transform=None)), [
        "only one of the images is georeferenced, they are taken to cover the same extent"
    ]
