"""The images that are open together, where each lies on the grid that the page shows, and their spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import geometry_mask

from hyperfuse.config import PairInputConfig
from hyperfuse.errors import GridError, OptionError
from hyperfuse.io.cube import physical_values, wavelengths_nm
from hyperfuse.io.envi import find_data, find_header
from hyperfuse.io.files import open_explained
from hyperfuse.io.grid import Grid, GridPlacement, Positions, grid_of, parallel_placement, positions_in
from hyperfuse.io.raster import raster_dataset
from hyperfuse.io.summary import strict_json
from hyperfuse.io.wavelengths import supplied_to
from hyperfuse.metrics.sums import Floats

AS_STORED = PairInputConfig()
# What a file may be opened as, and its title on the page.
ROLES = {
    "fused": "Fused",
    "hsi": "HSI",
    "msi": "MSI",
    "reference": "Reference",
    "uncertainty": "Uncertainty",
    "change_mask": "Change mask",
}
# The first of these that is open gives the page its grid and the bands to choose from.
LEADING = ("fused", "reference", "msi", "hsi")
ON_ITSELF = GridPlacement(0.0, 1.0, 0.0, 1.0)
# What is read of one image for the mean of a region; of a larger region, evenly spread parts.
LARGEST_REGION_BYTES = 128 * 2**20
PART_SIDE = 64


@dataclass(frozen=True)
class RasterSource:
    """A single file that GDAL can also read at reduced resolution."""

    path: Path
    driver: str
    overviews: tuple[int, ...]
    """Decimation factors, empty without overviews."""
    bands_together: bool
    """Compressed and pixel-interleaved: reading one band decodes all of them."""


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


def open_images(paths: Mapping[str, Path], inputs: PairInputConfig = AS_STORED) -> OpenImages:
    """Open every file, by role, supply what it lacks and place it.

    Raises where a file cannot be read or the images do not overlap.
    """
    unknown = sorted(set(paths) - set(ROLES))
    if unknown:
        raise OptionError(f"an image opened as {unknown[0]!r}", f"one of {', '.join(ROLES)}")
    opened = {role: open_explained(paths[role]) for role in ROLES if role in paths}
    cubes = supplied_to({role: cube for role, (cube, _) in opened.items()}, inputs)
    lead = next((role for role in LEADING if role in opened), None)
    if lead is None:
        raise OptionError("no image to show", "a fused image, an HSI, an MSI or a reference", "choose a file")
    grid = grid_of(cubes[lead])
    images, notes = {}, []
    for role, cube in cubes.items():
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
        images[role] = OpenImage(role, paths[role], cube, raster, grid, placement, opened[role][1])
        if wavelengths_nm(cube) is None and role not in ("uncertainty", "change_mask"):
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


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Mean and standard deviation over `pixels` pixels; `sampled` where the region was too large to read all."""

    role: str
    row: int
    column: int
    pixels: int
    sampled: bool
    mean: Floats
    deviation: Floats

    def as_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = strict_json(vars(self))
        return record


def spectra_at(opened: OpenImages, row: float, column: float) -> list[Spectrum]:
    """The spectrum of every image that has a pixel at a position of the page, 0 is the centre of the first pixel."""
    spectra = (_pixel_spectrum(image, row, column) for image in opened.images.values())
    return [spectrum for spectrum in spectra if spectrum is not None]


def region_spectra(opened: OpenImages, corners: Sequence[tuple[float, float]]) -> list[Spectrum]:
    """The spectra over the pixels whose centres lie inside a polygon of (row, column) corners on the page."""
    spectra = (_region_spectrum(image, np.array(corners, dtype=np.float64)) for image in opened.images.values())
    return [spectrum for spectrum in spectra if spectrum is not None]


def _pixel_spectrum(image: OpenImage, row: float, column: float) -> Spectrum | None:
    """None where the image has no pixel there."""
    down, across = image.positions(np.array([[row]]), np.array([[column]]))
    if not image.contains(down, across).all():
        return None
    y, x = math.floor(down[0, 0] + 0.5), math.floor(across[0, 0] + 0.5)
    values = physical_values(image.cube, slice(y, y + 1), slice(x, x + 1), dtype=np.float64)
    return Spectrum(image.role, y, x, 1, False, values[:, 0, 0], np.zeros(image.bands))


def _region_spectrum(image: OpenImage, corners: Floats) -> Spectrum | None:
    moved = np.hstack(image.positions(corners[:, :1], corners[:, 1:]))
    if not np.isfinite(moved).all():
        return None
    size = image.height, image.width
    top, left = (int(value) for value in np.clip(np.ceil(moved.min(axis=0)), 0, size))
    bottom, right = (int(value) for value in np.clip(np.floor(moved.max(axis=0)) + 1, (top, left), size))
    windows, sampled = _windows(image.bands, slice(top, bottom), slice(left, right))
    parts = []
    for rows, columns in windows:
        inside = _inside_polygon(moved, rows, columns)
        if inside.any():
            parts.append(physical_values(image.cube, rows, columns, dtype=np.float64)[:, inside])
    pixels = sum(int(np.isfinite(part).any(axis=0).sum()) for part in parts)
    if pixels == 0:
        # Smaller than a pixel of this image: the pixel at its middle.
        return _pixel_spectrum(image, *corners.mean(axis=0))
    # Band by band, so that there is never a second copy of all values.
    mean, deviation = np.array([_mean_and_deviation(np.concatenate(band)) for band in zip(*parts, strict=True)]).T
    return Spectrum(image.role, (top + bottom) // 2, (left + right) // 2, pixels, sampled, mean, deviation)


def _mean_and_deviation(values: Floats) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.mean()), float(known.std())) if known.size else (np.nan, np.nan)


def _windows(bands: int, rows: slice, columns: slice) -> tuple[list[tuple[slice, slice]], bool]:
    """Windows to read of a region's bounding box, and whether they are only a sample of it."""
    down, across = (range(axis.start, axis.stop, PART_SIDE) for axis in (rows, columns))
    affordable = max(1, LARGEST_REGION_BYTES // (8 * bands * PART_SIDE**2))
    every = max(1, math.ceil(math.sqrt(len(down) * len(across) / affordable)))
    windows = [
        (slice(y, min(y + PART_SIDE, rows.stop)), slice(x, min(x + PART_SIDE, columns.stop)))
        for y in down[every // 2 :: every] or down[:1]
        for x in across[every // 2 :: every] or across[:1]
    ]
    return windows, every > 1


def _inside_polygon(corners: Floats, rows: slice, columns: slice) -> NDArray[np.bool_]:
    """Which pixel centres of a window lie in the polygon."""
    ring = [(column + 0.5, row + 0.5) for row, column in corners]
    inside: NDArray[np.bool_] = geometry_mask(
        [{"type": "Polygon", "coordinates": [[*ring, ring[0]]]}],
        (rows.stop - rows.start, columns.stop - columns.start),
        Affine.translation(columns.start, rows.start),
        invert=True,
    )
    return inside
