"""Where pixels lie: the grid of one image, and how the grids of two images relate.

Pixel centres are the convention everywhere: pixel i covers [i, i + 1) of the affine transform and has its centre at i +
0.5.

Which transform a cube has now. One sliced by hand carries moved coordinates but the old transform: the coordinates win.

A grid whose axes follow the CRS has pixel centres as `x` and `y`; a turned one cannot, and has `pixel_row` and
`pixel_column`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyproj
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS

from hyperfuse.errors import GridError

# Grids written by different tools disagree in the last digits; a thousandth of a pixel is far below any registration.
PIXEL_TOLERANCE = 1e-3
# With pixels that small beside their coordinates, float64 cannot tell neighbours apart and the coordinates say nothing.
LARGEST_ROUNDING = 0.25


def is_usable(transform: Affine) -> bool:
    """Finite numbers, and pixels with an area."""
    return bool(np.isfinite(transform[:6]).all()) and transform.determinant != 0


def placed_coordinates(transform: Affine, height: int, width: int) -> dict[str, tuple[str, NDArray[Any]]]:
    """Coordinates along y and x that move along when a cube is sliced."""
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    if transform.b != 0 or transform.d != 0:
        return {"pixel_row": ("y", rows), "pixel_column": ("x", columns)}
    return {"y": ("y", transform.f + transform.e * rows), "x": ("x", transform.c + transform.a * columns)}


def has_transform(cube: xr.DataArray) -> bool:
    return stored_transform(cube) is not None


def stored_transform(cube: xr.DataArray) -> Affine | None:
    """The transform as it was written, whatever happened to the cube since."""
    reference = cube.rio.grid_mapping
    text = cube.coords[reference].attrs.get("GeoTransform") if reference in cube.coords else None
    return transform_from_text(text) if isinstance(text, str) else None


def transform_from_text(text: str) -> Affine | None:
    """GDAL's six numbers; None where the text is something else."""
    try:
        numbers = [float(number) for number in text.split()]
    except ValueError:
        return None
    transform = Affine.from_gdal(*numbers) if len(numbers) == 6 else None
    return transform if transform is not None and is_usable(transform) else None


def current_transform(cube: xr.DataArray) -> Affine | None:
    """The transform of the pixels that are left; None where there is none, or where they are not evenly spaced."""
    stored = stored_transform(cube)
    if stored is None:
        if "x" not in cube.coords or "y" not in cube.coords:
            return None
        return transform_from_axes(cube["x"].values, cube["y"].values, cube.rio.crs is not None)
    turned = stored.b != 0 or stored.d != 0
    along_y = _pixels_along(
        cube, "pixel_row" if turned else "y", 0.0 if turned else stored.f, 1.0 if turned else stored.e
    )
    along_x = _pixels_along(
        cube, "pixel_column" if turned else "x", 0.0 if turned else stored.c, 1.0 if turned else stored.a
    )
    if along_y is None or along_x is None:
        return None
    (top, step_y), (left, step_x) = along_y, along_x
    if (top, step_y, left, step_x) == (0, 1, 0, 1):
        return stored
    return stored @ Affine.translation(left, top) @ Affine.scale(step_x, step_y)


def transform_from_centres(x: NDArray[np.float64], y: NDArray[np.float64]) -> Affine | None:
    """Pixel centres on evenly spaced axes make a transform."""
    axes = []
    for centres in (x, y):
        if centres.ndim != 1 or centres.size < 2 or not np.isfinite(centres).all():
            return None
        step = (centres[-1] - centres[0]) / (centres.size - 1)
        rounding = 4 * np.finfo(np.float64).eps * np.abs(centres).max()
        if step == 0 or not np.allclose(np.diff(centres), step, rtol=PIXEL_TOLERANCE, atol=rounding):
            return None
        axes.append((float(centres[0] - step / 2), float(step)))
    (left, step_x), (top, step_y) = axes
    return Affine(step_x, 0.0, left, 0.0, step_y, top)


def transform_from_axes(x: NDArray[Any], y: NDArray[Any], has_crs: bool) -> Affine | None:
    """A transform from the coordinates that somebody's array carries."""
    if x.dtype.kind not in "iuf" or y.dtype.kind not in "iuf":
        return None
    counted = all(np.array_equal(axis, np.arange(axis.size)) for axis in (x, y))
    # 0, 1, 2, ... without a CRS is somebody's pixel index, not a place.
    return None if counted and not has_crs else transform_from_centres(x.astype(np.float64), y.astype(np.float64))


def _pixels_along(cube: xr.DataArray, name: str, origin: float, size: float) -> tuple[float, float] | None:
    """Where the first pixel begins and how far apart pixels are, in pixels of the stored transform; (0, 1) where
    nothing moved.
    """
    if name not in cube.coords:
        return 0.0, 1.0
    coordinates = np.asarray(cube[name].values, dtype=np.float64)
    rounding = 4 * np.finfo(np.float64).eps * float(np.abs(coordinates).max()) / abs(size)
    if not rounding < LARGEST_ROUNDING:
        return 0.0, 1.0
    tolerance = max(PIXEL_TOLERANCE, rounding)
    centres = (coordinates - origin) / size
    step = (centres[-1] - centres[0]) / (centres.size - 1) if centres.size > 1 else 1.0
    expected = centres[0] + step * np.arange(centres.size)
    if step == 0 or np.abs(centres - expected).max() > tolerance:
        return None
    step = _snapped(step, tolerance)
    return _snapped(centres[0] - step / 2, tolerance), step


def _snapped(value: float, tolerance: float) -> float:
    """Slicing moves by whole pixels or, with a step, by halves: undo the rounding of the coordinates."""
    nearest = round(2 * value) / 2
    return float(nearest) if abs(value - nearest) <= tolerance else float(value)


__all__ = [
    "PIXEL_TOLERANCE",
    "Grid",
    "Placement",
    "crs_name",
    "fine_grid",
    "grid_nodes",
    "grid_of",
    "metres_per_pixel",
    "parallel_placement",
    "place",
    "positions_in",
    "require_finer",
    "same_crs",
    "window_of_grid",
]

Positions = NDArray[np.float64]
# Grids that are turned or bent against each other by less than this many fine pixels over what they share are taken as
# parallel.
LARGEST_IGNORED_TURN = 0.05
# Along each side of an image, where two grids are compared.
COMPARED_POINTS = 33


@dataclass(frozen=True)
class Grid:
    height: int
    width: int
    transform: Affine | None
    crs: CRS | None

    @property
    def pixel_size(self) -> tuple[float, float]:
        """Height and width of a pixel in units of the CRS (1, 1 where the image has no georeference)."""
        t = self.transform or Affine.identity()
        return float(np.hypot(t.b, t.e)), float(np.hypot(t.a, t.d))


@dataclass(frozen=True)
class Placement:
    """Fine pixel i along an axis has its centre at coarse pixel index `start + i * step` (0 is the centre of the
    first).
    """

    start_y: float
    step_y: float
    start_x: float
    step_x: float

    @property
    def scale(self) -> tuple[float, float]:
        """How many fine pixels make a coarse one, along y and x."""
        return 1 / abs(self.step_y), 1 / abs(self.step_x)

    def moved(self, offset: tuple[float, float]) -> Placement:
        """The same for an HSI that looks this much further down and right, in fine pixels."""
        start_y, start_x = self.start_y - offset[0] * self.step_y, self.start_x - offset[1] * self.step_x
        return Placement(start_y, self.step_y, start_x, self.step_x)

    def coarse_rows(self, fine_rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start_y + fine_rows * self.step_y

    def coarse_columns(self, fine_columns: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start_x + fine_columns * self.step_x


def grid_of(cube: xr.DataArray) -> Grid:
    """The grid of a cube as it is now, also after slicing by hand."""
    return Grid(cube.sizes["y"], cube.sizes["x"], current_transform(cube), cube.rio.crs)


def place(hsi: Grid, msi: Grid) -> Placement:
    """How the MSI's pixels lie in the HSI's, whose axes are parallel. Without georeference on both, they cover the same
    extent.
    """
    placement = parallel_placement(hsi, msi)
    if placement is None:
        raise GridError(
            f"HSI in {crs_name(hsi.crs)}, MSI in {crs_name(msi.crs)}, their axes not parallel",
            "grids with parallel axes",
            "reproject one of them with gdalwarp",
        )
    return placement


def parallel_placement(hsi: Grid, msi: Grid) -> Placement | None:
    """The same, or None where the two grids are turned or bent against each other."""
    if hsi.transform is None or msi.transform is None:
        if (hsi.transform is None) != (msi.transform is None):
            warnings.warn(
                "only one of the two images is georeferenced: they are taken to cover the same extent", stacklevel=2
            )
        return _same_extent(hsi, msi)
    fine, coarse = _shared_positions(hsi, msi)
    placement = _exact_placement(hsi, msi) or _fitted_placement(fine, coarse)
    if placement is None:
        return None
    rows, columns = placement.coarse_rows(fine[0]), placement.coarse_columns(fine[1])
    turn_y, turn_x = np.abs(rows - coarse[0]) * placement.scale[0], np.abs(columns - coarse[1]) * placement.scale[1]
    return placement if max(turn_y.max(), turn_x.max()) < LARGEST_IGNORED_TURN else None


def positions_in(target: Grid, source: Grid, rows: Positions, columns: Positions) -> tuple[Positions, Positions]:
    """Where pixels of one georeferenced grid lie in another: rows and columns, 0 is the centre of the first pixel.

    Infinite where the target's CRS does not reach.
    """
    assert source.transform is not None
    assert target.transform is not None
    x, y = _applied(source.transform, columns + 0.5, rows + 0.5)
    if not same_crs(source.crs, target.crs):
        assert source.crs is not None
        assert target.crs is not None
        x, y = _transformed(x, y, source.crs, target.crs)
    target_columns, target_rows = _applied(~target.transform, x, y)
    return target_rows - 0.5, target_columns - 0.5


def window_of_grid(grid: Grid, rows: slice, columns: slice) -> Grid:
    """A part of a grid, or the grid continued beyond its edges: slices count its pixels and may be negative."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    moved = None if grid.transform is None else grid.transform @ Affine.translation(columns.start, rows.start)
    return Grid(height, width, moved, grid.crs)


def metres_per_pixel(grid: Grid) -> tuple[float, float] | None:
    """Height and width of the pixel in the middle; None for an image that does not say where on Earth it lies."""
    if grid.transform is None or grid.crs is None or not (grid.crs.is_projected or grid.crs.is_geographic):
        return None
    if grid.crs.is_projected:
        height, width = grid.pixel_size
        factor = float(grid.crs.linear_units_factor[1])
        return height * factor, width * factor
    rows = (grid.height - 1) / 2 + np.array([0.0, 1.0, 0.0])
    columns = (grid.width - 1) / 2 + np.array([0.0, 0.0, 1.0])
    longitude, latitude = _applied(grid.transform, columns + 0.5, rows + 0.5)
    ellipsoid = pyproj.CRS.from_wkt(grid.crs.to_wkt()).get_geod() or pyproj.Geod(ellps="WGS84")
    _, _, lengths = ellipsoid.inv(longitude[[0, 0]], latitude[[0, 0]], longitude[1:], latitude[1:])
    return float(lengths[0]), float(lengths[1])


def fine_grid(hsi: Grid, msi: Grid) -> Grid:
    """The grid of the fused image: the MSI's, georeferenced through the HSI where the MSI itself is not."""
    if msi.transform is not None or hsi.transform is None:
        return Grid(msi.height, msi.width, msi.transform, msi.crs or hsi.crs)
    shrink = Affine.scale(hsi.width / msi.width, hsi.height / msi.height)
    return Grid(msi.height, msi.width, hsi.transform @ shrink, hsi.crs)


def require_finer(hsi: Grid, msi: Grid, placement: Placement) -> None:
    if min(placement.scale) < 1 - PIXEL_TOLERANCE:
        raise GridError(
            f"the HSI's pixels are finer than the MSI's (scale {min(placement.scale):.3g}; HSI {hsi.width}x{hsi.height}, "
            f"MSI {msi.width}x{msi.height})",
            "an MSI with smaller pixels than the HSI's",
            "give the coarse HSI first and the fine MSI second",
        )


def _same_extent(hsi: Grid, msi: Grid) -> Placement:
    step_y, step_x = hsi.height / msi.height, hsi.width / msi.width
    return Placement(0.5 * step_y - 0.5, step_y, 0.5 * step_x - 0.5, step_x)


def _applied(transform: Affine, x: Positions, y: Positions) -> tuple[Positions, Positions]:
    return transform.a * x + transform.b * y + transform.c, transform.d * x + transform.e * y + transform.f


def _transformed(x: Positions, y: Positions, source: CRS, target: CRS) -> tuple[Positions, Positions]:
    try:
        # Made anew each time: a transformer must not be shared between threads, nor travel to another process.
        return pyproj.Transformer.from_crs(source.to_wkt(), target.to_wkt(), always_xy=True).transform(x, y)
    except pyproj.exceptions.ProjError as error:
        raise GridError(
            f"no way from {crs_name(source)} to {crs_name(target)}",
            "two images on the Earth",
            "check their CRS with `hyperfuse info`",
        ) from error


def _exact_placement(hsi: Grid, msi: Grid) -> Placement | None:
    """Straight from the transforms, where nothing but offset and pixel size tells them apart."""
    assert hsi.transform is not None
    if not same_crs(hsi.crs, msi.crs):
        return None
    fine_to_coarse = ~hsi.transform @ msi.transform
    turn = max(abs(fine_to_coarse.b) * msi.height, abs(fine_to_coarse.d) * msi.width)
    if turn > PIXEL_TOLERANCE * min(abs(fine_to_coarse.a), abs(fine_to_coarse.e)):
        return None
    start_x, start_y = fine_to_coarse @ (0.5, 0.5)
    return Placement(start_y - 0.5, fine_to_coarse.e, start_x - 0.5, fine_to_coarse.a)


def _fitted_placement(fine: tuple[Positions, Positions], coarse: tuple[Positions, Positions]) -> Placement | None:
    """The parallel grids that come closest to two that are not quite so."""
    axes = []
    for fine_axis, coarse_axis in zip(fine, coarse, strict=True):
        if np.ptp(fine_axis) == 0:
            return None
        step, start = np.polyfit(fine_axis, coarse_axis, 1)
        if step == 0:
            return None
        axes += [float(start), float(step)]
    return Placement(*axes)


def _shared_positions(hsi: Grid, msi: Grid) -> tuple[tuple[Positions, Positions], tuple[Positions, Positions]]:
    """Points all over what the two images share, as rows and columns of the MSI and of the HSI."""
    fine_nodes, coarse_nodes = grid_nodes(msi), grid_nodes(hsi)
    in_hsi, in_msi = positions_in(hsi, msi, *fine_nodes), positions_in(msi, hsi, *coarse_nodes)
    shared_fine, shared_coarse = _inside(hsi, in_hsi), _inside(msi, in_msi)
    if not shared_fine.any() and not shared_coarse.any():
        reached_rows, reached_columns = (axis[np.isfinite(axis)] for axis in in_hsi)
        covered = (
            f"in HSI pixels the MSI covers rows {reached_rows.min():.0f} to {reached_rows.max():.0f}, "
            f"columns {reached_columns.min():.0f} to {reached_columns.max():.0f} of {hsi.height}x{hsi.width}"
            if reached_rows.size
            else f"the MSI lies outside of {crs_name(hsi.crs)}"
        )
        raise GridError(
            f"the two images do not overlap: {covered}",
            "two images of the same place",
            "check their coordinates with `hyperfuse info`",
        )
    rows, columns = (
        (
            np.concatenate([fine_nodes[axis][shared_fine], in_msi[axis][shared_coarse]]),
            np.concatenate([in_hsi[axis][shared_fine], coarse_nodes[axis][shared_coarse]]),
        )
        for axis in (0, 1)
    )
    return (rows[0], columns[0]), (rows[1], columns[1])


def grid_nodes(grid: Grid) -> tuple[Positions, Positions]:
    """Corners, edges and inside of an image, evenly spread."""
    rows, columns = (np.linspace(-0.5, size - 0.5, COMPARED_POINTS) for size in (grid.height, grid.width))
    nodes = np.meshgrid(rows, columns, indexing="ij")
    return nodes[0].ravel(), nodes[1].ravel()


def _inside(grid: Grid, positions: tuple[Positions, Positions]) -> NDArray[np.bool_]:
    """Not on the very edge: images that only touch share nothing."""
    rows, columns = positions
    inside = (rows > -0.5 + 1e-6) & (rows < grid.height - 0.5 - 1e-6) & (columns > -0.5 + 1e-6)
    found: NDArray[np.bool_] = inside & (columns < grid.width - 0.5 - 1e-6)
    return found


def same_crs(one: CRS | None, other: CRS | None) -> bool:
    """Also where one of them is unknown; and where tools have written the same system in different words."""
    if one is None or other is None or one == other:
        return True
    return bool(pyproj.CRS.from_wkt(one.to_wkt()).equals(pyproj.CRS.from_wkt(other.to_wkt()), ignore_axis_order=True))


def crs_name(crs: CRS | None) -> str:
    if crs is None:
        return "no CRS"
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.to_wkt()[:60]
