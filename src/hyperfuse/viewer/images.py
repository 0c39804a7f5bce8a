"""The images that are open together, and where each of them lies on the grid that the page shows."""

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
from hyperfuse.io.files import open_explained
from hyperfuse.io.grid import Grid, GridPlacement, Positions, grid_of, parallel_placement, positions_in
from hyperfuse.io.raster import find_data, find_header, raster_dataset

# What a file may be opened as, and its title on the page.
ROLES = {"fused": "Fused", "hsi": "HSI", "msi": "MSI", "reference": "Reference", "uncertainty": "Uncertainty"}
# The first of these that is open gives the page its grid and the bands to choose from.
LEADING = ("fused", "reference", "msi", "hsi")
ON_ITSELF = GridPlacement(0.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True)
class RasterSource:
    """A single file that GDAL can also read at reduced resolution."""

    path: Path
    driver: str
    overviews: tuple[int, ...]
    """Decimation factors, empty without overviews."""
    bands_together: bool
    """Compressed and pixel-interleaved: reading one band decodes all of them."""

    def read_decimated(
        self, bands: NDArray[np.int64], rows: slice, columns: slice, factor: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Read the stored values of every `factor`-th pixel from the best overview."""
        height, width = rows.stop - rows.start, columns.stop - columns.start
        with raster_dataset(self.path, self.driver) as source:
            values: NDArray[Any] = source.read(
                [int(band) + 1 for band in bands],
                window=Window(columns.start, rows.start, width, height),
                out_shape=(bands.size, -(-height // factor), -(-width // factor)),
                out_dtype=dtype,
            )
        return values


@dataclass(frozen=True, eq=False)
class OpenImage:
    """One image; `notes` explain what an agency's product is made of."""

    role: str
    path: Path
    cube: xr.DataArray
    raster: RasterSource | None
    page: Grid
    placement: GridPlacement | None
    """Where the centres of the page's pixels lie in this image; None where the grids are not parallel."""
    notes: Mapping[str, str]

    def positions(self, rows: Positions, columns: Positions) -> tuple[Positions, Positions]:
        """Convert page rows (n, 1) and columns (1, m) to rows and columns of this image, broadcastable to (n, m)."""
        if self.placement is not None:
            return self.placement.coarse_rows(rows), self.placement.coarse_columns(columns)
        return positions_in(grid_of(self.cube), self.page, *np.broadcast_arrays(rows, columns))

    def contains(self, rows: Positions, columns: Positions) -> NDArray[np.bool_]:
        """Which positions lie in a pixel of this image."""
        in_rows: NDArray[np.bool_] = (rows >= -0.5) & (rows < self.height - 0.5)
        return in_rows & (columns >= -0.5) & (columns < self.width - 0.5)

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
class OpenImages:
    """All open images by role; `lead` is the one whose grid the page shows."""

    images: Mapping[str, OpenImage]
    lead: OpenImage
    grid: Grid
    notes: tuple[str, ...]


def open_images(paths: Mapping[str, Path]) -> OpenImages:
    """Open every file, by role, and place it; raises where a file cannot be read or the images do not overlap."""
    unknown = sorted(set(paths) - set(ROLES))
    if unknown:
        raise OptionError(f"an image opened as {unknown[0]!r}", f"one of {', '.join(ROLES)}")
    opened = {role: open_explained(paths[role]) for role in ROLES if role in paths}
    lead = next((role for role in LEADING if role in opened), None)
    if lead is None:
        raise OptionError("no image to show", "a fused image, an HSI, an MSI or a reference", "choose a file")
    grid = grid_of(opened[lead][0])
    images, notes = {}, []
    for role, (cube, explained) in opened.items():
        own, page = grid_of(cube), grid
        if (own.transform is None) != (grid.transform is None):
            notes.append(f"{ROLES[role]}: only one image is georeferenced, assuming that they cover the same extent")
            own, page = replace(own, transform=None), replace(grid, transform=None)
        try:
            placement = ON_ITSELF if role == lead else parallel_placement(own, page)
        except GridError as error:
            both = f"{ROLES[role]} and {ROLES[lead]}"
            raise GridError(f"{both}: {error.got}", error.expected, error.remedy) from error
        raster = _raster_of(paths[role], cube)
        images[role] = OpenImage(role, paths[role], cube, raster, grid, placement, explained)
        if wavelengths_nm(cube) is None and role != "uncertainty":
            notes.append(f"{ROLES[role]}: wavelengths unknown, bands are matched by number")
    return OpenImages(images, images[lead], grid, tuple(notes))


def _raster_of(path: Path, cube: xr.DataArray) -> RasterSource | None:
    """The single raster that holds the cube pixel by pixel, if there is one."""
    suffix = path.suffix.lower()
    if suffix in (".tif", ".tiff"):
        data, driver = path, "GTiff"
    elif suffix == ".hdr" or (path.is_file() and find_header(path)):
        data, driver = find_data(path) if suffix == ".hdr" else path, "ENVI"
    else:
        return None
    with raster_dataset(data, driver) as source:
        if (source.count, source.height, source.width) != cube.shape:
            return None
        interleaved = source.profile.get("interleave") == "pixel" and source.count > 1
        overviews = tuple(source.overviews(1))
        return RasterSource(data, driver, overviews, bool(interleaved and source.profile.get("compress")))
