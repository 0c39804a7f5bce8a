"""Where pixels lie: the grid of one image, and how the grids of two images relate.

Pixel i covers [i, i + 1) of the affine transform, as in GDAL, and has its centre at i + 0.5. Pixel positions in this
package (`positions_in`, `GridPlacement`) count from the centre of the first pixel.

A cube that was sliced by hand has new coordinates but the old transform: the coordinates win (`current_transform`). A
grid parallel to the axes of the CRS has pixel centres as `x` and `y`; a rotated one cannot, and has `pixel_row` and
`pixel_column` instead.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.errors import GridError

# Grids written by different tools disagree in the last digits; a thousandth of a pixel is far below any registration.
PIXEL_TOLERANCE = 1e-3
# With pixels that small beside their coordinates, float64 does not resolve neighbours and the coordinates are useless.
LARGEST_ROUNDING = 0.25
# Grids that are rotated or bent against each other by less than this many fine pixels where they overlap are parallel.
LARGEST_IGNORED_TURN = 0.05
# Along each side of an image, where two grids are compared.
COMPARED_POINTS = 33

Positions = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Size and georeference of an image."""

    height: int
    width: int
    transform: Affine | None
    crs: CRS | None

    @property
    def pixel_size(self) -> tuple[float, float]:
        """Height and width of a pixel in units of the CRS (1, 1 where the image has no georeference)."""
        t = self.transform or Affine.identity()
        return float(np.hypot(t.b, t.e)), float(np.hypot(t.a, t.d))

    def transform_text(self) -> str:
        """GDAL's six numbers, exact; "" without a transform."""
        return " ".join(repr(float(number)) for number in self.transform.to_gdal()) if self.transform else ""


def grid_of(cube: xr.DataArray) -> Grid:
    """Return the grid of a cube as it is now, also after slicing by hand."""
    return Grid(cube.sizes["y"], cube.sizes["x"], current_transform(cube), crs_of(cube))


def grid_mapping_name(cube: xr.DataArray) -> str:
    """Return the name of the coordinate that holds CRS and transform, by CF."""
    return str(cube.encoding.get("grid_mapping") or cube.attrs.get("grid_mapping") or "spatial_ref")


def crs_of(cube: xr.DataArray) -> CRS | None:
    """Return the CRS where rioxarray keeps it."""
    mapping = grid_mapping_name(cube)
    reference = cube.coords[mapping].attrs if mapping in cube.coords else {}
    for name in ("spatial_ref", "crs_wkt"):
        with contextlib.suppress(CRSError):
            if name in reference:
                return CRS.from_user_input(reference[name])
    if "grid_mapping_name" not in reference and "crs" not in cube.attrs:
        return None
    import rioxarray  # noqa: F401  (knows CF without WKT, and older conventions)

    return cube.rio.crs


def is_usable(transform: Affine) -> bool:
    """Return whether the numbers are finite and pixels have an area."""
    return bool(np.isfinite(transform[:6]).all()) and transform.determinant != 0


def placed_coordinates(transform: Affine, height: int, width: int) -> dict[str, xr.Variable]:
    """Return coordinates along y and x that follow when a cube is sliced."""
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    if transform.b != 0 or transform.d != 0:
        return {"pixel_row": plain_variable("y", rows), "pixel_column": plain_variable("x", columns)}
    y, x = transform.f + transform.e * rows, transform.c + transform.a * columns
    # Of pandas' type, since xarray imports Dask to turn an array into that.
    axes = (("y", pd.Index(y)), ("x", pd.Index(x)))
    return {name: xr.IndexVariable(name, values, fastpath=True) for name, values in axes}  # type: ignore[no-untyped-call]


def plain_variable(
    dims: str | tuple[Hashable, ...], values: NDArray[Any] | np.generic, attributes: Mapping[str, Any] | None = None
) -> xr.Variable:
    """Return a variable of a numpy array; xarray's own check of the type imports dask where it is installed."""
    return xr.Variable(dims, np.asarray(values), attributes, fastpath=True)


def transform_from_text(text: str) -> Affine | None:
    """Parse GDAL's six numbers; None where the text is something else."""
    try:
        transform = Affine.from_gdal(*(float(number) for number in text.split()))
    except (TypeError, ValueError):
        return None
    return transform if is_usable(transform) else None


def current_transform(cube: xr.DataArray) -> Affine | None:
    """Return the transform of the pixels that are left; None without one, or where they are not evenly spaced."""
    reference = grid_mapping_name(cube)
    text = cube.coords[reference].attrs.get("GeoTransform") if reference in cube.coords else None
    stored = transform_from_text(text) if isinstance(text, str) else None
    if stored is None:
        if "x" not in cube.coords or "y" not in cube.coords:
            return None
        return transform_from_axes(cube["x"].values, cube["y"].values, crs_of(cube) is not None)
    if stored.b != 0 or stored.d != 0:
        along_y, along_x = _pixels_along(cube, "pixel_row", 0.0, 1.0), _pixels_along(cube, "pixel_column", 0.0, 1.0)
    else:
        along_y, along_x = _pixels_along(cube, "y", stored.f, stored.e), _pixels_along(cube, "x", stored.c, stored.a)
    if along_y is None or along_x is None:
        return None
    (top, step_y), (left, step_x) = along_y, along_x
    if (top, step_y, left, step_x) == (0, 1, 0, 1):
        return stored
    return stored @ Affine.translation(left, top) @ Affine.scale(step_x, step_y)


def transform_from_axes(x: NDArray[Any], y: NDArray[Any], has_crs: bool) -> Affine | None:
    """Return the transform of evenly spaced pixel centres; None where they are something else."""
    if x.dtype.kind not in "iuf" or y.dtype.kind not in "iuf":
        return None
    # 0, 1, 2, ... without a CRS is a pixel index, not a place.
    if not has_crs and all(np.array_equal(axis, np.arange(axis.size)) for axis in (x, y)):
        return None
    axes = []
    for centres in (x.astype(np.float64), y.astype(np.float64)):
        if centres.ndim != 1 or centres.size < 2 or not np.isfinite(centres).all():
            return None
        step = (centres[-1] - centres[0]) / (centres.size - 1)
        rounding = 4 * np.finfo(np.float64).eps * np.abs(centres).max()
        if step == 0 or not np.allclose(np.diff(centres), step, rtol=PIXEL_TOLERANCE, atol=rounding):
            return None
        axes.append((float(centres[0] - step / 2), float(step)))
    (left, step_x), (top, step_y) = axes
    return Affine(step_x, 0.0, left, 0.0, step_y, top)


def _pixels_along(cube: xr.DataArray, name: str, origin: float, size: float) -> tuple[float, float] | None:
    """Start and spacing of the pixels along an axis, in pixels of the stored transform; (0, 1) where nothing moved."""
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
    """Undo the rounding of the coordinates: slicing moves by whole pixels or, with a step, by halves."""
    nearest = round(2 * value) / 2
    return float(nearest) if abs(value - nearest) <= tolerance else float(value)


@dataclass(frozen=True)
class GridPlacement:
    """How two parallel grids relate: fine pixel i has its centre at coarse position `start + i * step`."""

    start_y: float
    step_y: float
    start_x: float
    step_x: float

    @property
    def scale(self) -> tuple[float, float]:
        """Fine pixels per coarse pixel, along y and x."""
        return 1 / abs(self.step_y), 1 / abs(self.step_x)

    def moved(self, offset: tuple[float, float]) -> GridPlacement:
        """Return the placement for an HSI displaced down and right by this many fine pixels."""
        start_y, start_x = self.start_y - offset[0] * self.step_y, self.start_x - offset[1] * self.step_x
        return GridPlacement(start_y, self.step_y, start_x, self.step_x)

    def coarse_rows(self, fine_rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start_y + fine_rows * self.step_y

    def coarse_columns(self, fine_columns: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start_x + fine_columns * self.step_x


def place(hsi: Grid, msi: Grid) -> GridPlacement:
    """Return how the MSI's pixels lie in the HSI's, or raise `GridError` where the axes are not parallel.

    Unless both are georeferenced, they are taken to cover the same extent.
    """
    placement = parallel_placement(hsi, msi)
    if placement is None:
        got = f"HSI in {crs_name(hsi.crs)}, MSI in {crs_name(msi.crs)}, their axes not parallel"
        raise GridError(got, "grids with parallel axes", "reproject one of them with gdalwarp")
    return placement


def parallel_placement(hsi: Grid, msi: Grid) -> GridPlacement | None:
    """Return the same, or None where the two grids are rotated or bent against each other."""
    if hsi.transform is None or msi.transform is None:
        if (hsi.transform is None) != (msi.transform is None):
            warnings.warn(
                "only one of the two images is georeferenced: they are taken to cover the same extent", stacklevel=2
            )
        step_y, step_x = hsi.height / msi.height, hsi.width / msi.width
        return GridPlacement(0.5 * step_y - 0.5, step_y, 0.5 * step_x - 0.5, step_x)
    fine, coarse = _shared_positions(hsi, msi)
    placement = _exact_placement(hsi, msi) or _fitted_placement(fine, coarse)
    if placement is None:
        return None
    rows, columns = placement.coarse_rows(fine[0]), placement.coarse_columns(fine[1])
    turn_y, turn_x = np.abs(rows - coarse[0]) * placement.scale[0], np.abs(columns - coarse[1]) * placement.scale[1]
    return placement if max(turn_y.max(), turn_x.max()) < LARGEST_IGNORED_TURN else None


def positions_in(target: Grid, source: Grid, rows: Positions, columns: Positions) -> tuple[Positions, Positions]:
    """Return the rows and columns in `target` of positions in `source`, both georeferenced.

    0 is the centre of the first pixel; infinite where the target's CRS is not defined.
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
    """Return a part of a grid, or the grid extended past its edges: slices count its pixels and may be negative."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    moved = None if grid.transform is None else grid.transform @ Affine.translation(columns.start, rows.start)
    return Grid(height, width, moved, grid.crs)


def metres_per_pixel(grid: Grid) -> tuple[float, float] | None:
    """Return the height and width of the central pixel; None without a projected or geographic CRS."""
    if grid.transform is None or grid.crs is None or not (grid.crs.is_projected or grid.crs.is_geographic):
        return None
    if grid.crs.is_projected:
        height, width = grid.pixel_size
        factor = float(grid.crs.linear_units_factor[1])
        return height * factor, width * factor
    rows = (grid.height - 1) / 2 + np.array([0.0, 1.0, 0.0])
    columns = (grid.width - 1) / 2 + np.array([0.0, 0.0, 1.0])
    longitude, latitude = _applied(grid.transform, columns + 0.5, rows + 0.5)
    import pyproj

    ellipsoid = pyproj.CRS.from_wkt(grid.crs.to_wkt()).get_geod() or pyproj.Geod(ellps="WGS84")
    _, _, lengths = ellipsoid.inv(longitude[[0, 0]], latitude[[0, 0]], longitude[1:], latitude[1:])
    return float(lengths[0]), float(lengths[1])


def fine_grid(hsi: Grid, msi: Grid) -> Grid:
    """Return the grid of the fused image: the MSI's, georeferenced through the HSI where the MSI itself is not."""
    if msi.transform is not None or hsi.transform is None:
        return Grid(msi.height, msi.width, msi.transform, msi.crs or hsi.crs)
    shrink = Affine.scale(hsi.width / msi.width, hsi.height / msi.height)
    return Grid(msi.height, msi.width, hsi.transform @ shrink, hsi.crs)


def require_finer(hsi: Grid, msi: Grid, placement: GridPlacement, *, allow_equal: bool = False) -> None:
    """Raise `GridError` where the MSI's pixels are larger than the HSI's, or as large unless that is allowed."""
    sizes = f"HSI {hsi.width}x{hsi.height}, MSI {msi.width}x{msi.height}"
    expected = "an MSI with smaller pixels than the HSI's"
    if min(placement.scale) < 1 - PIXEL_TOLERANCE:
        got = f"the HSI's pixels are finer than the MSI's (scale {min(placement.scale):.3g}; {sizes})"
        raise GridError(got, expected, "there is nothing to gain, unless HSI and MSI are swapped")
    if max(placement.scale) < 1 + PIXEL_TOLERANCE and not allow_equal:
        got = f"pixels of the same size in HSI and MSI (scale 1; {sizes})"
        raise GridError(got, expected, "degrade the HSI with `hyperfuse simulate`, or fuse anyway (--allow-scale-1)")


def _applied(transform: Affine, x: Positions, y: Positions) -> tuple[Positions, Positions]:
    return transform.a * x + transform.b * y + transform.c, transform.d * x + transform.e * y + transform.f


def _transformed(x: Positions, y: Positions, source: CRS, target: CRS) -> tuple[Positions, Positions]:
    import pyproj

    try:
        # Created each time: a transformer must not be shared between threads nor pickled to another process.
        return pyproj.Transformer.from_crs(source.to_wkt(), target.to_wkt(), always_xy=True).transform(x, y)
    except pyproj.exceptions.ProjError as error:
        got = f"no way from {crs_name(source)} to {crs_name(target)}"
        raise GridError(got, "two images on the Earth", "check their CRS with `hyperfuse info`") from error


def _exact_placement(hsi: Grid, msi: Grid) -> GridPlacement | None:
    """Placement straight from the transforms, where they differ by nothing but offset and pixel size."""
    assert hsi.transform is not None
    if not same_crs(hsi.crs, msi.crs):
        return None
    fine_to_coarse = ~hsi.transform @ msi.transform
    turn = max(abs(fine_to_coarse.b) * msi.height, abs(fine_to_coarse.d) * msi.width)
    if turn > PIXEL_TOLERANCE * min(abs(fine_to_coarse.a), abs(fine_to_coarse.e)):
        return None
    start_x, start_y = fine_to_coarse @ (0.5, 0.5)
    return GridPlacement(start_y - 0.5, fine_to_coarse.e, start_x - 0.5, fine_to_coarse.a)


def _fitted_placement(fine: tuple[Positions, Positions], coarse: tuple[Positions, Positions]) -> GridPlacement | None:
    """Least-squares placement of two grids that are nearly parallel."""
    axes = []
    for fine_axis, coarse_axis in zip(fine, coarse, strict=True):
        if np.ptp(fine_axis) == 0:
            return None
        step, start = np.polyfit(fine_axis, coarse_axis, 1)
        if step == 0:
            return None
        axes += [float(start), float(step)]
    return GridPlacement(*axes)


def _shared_positions(hsi: Grid, msi: Grid) -> tuple[tuple[Positions, Positions], tuple[Positions, Positions]]:
    """Points all over the overlap of the two images, as rows and columns of the MSI and of the HSI."""
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
        got = f"the two images do not overlap: {covered}"
        raise GridError(got, "two images of the same place", "check their coordinates with `hyperfuse info`")
    rows, columns = (
        (
            np.concatenate([fine_nodes[axis][shared_fine], in_msi[axis][shared_coarse]]),
            np.concatenate([in_hsi[axis][shared_fine], coarse_nodes[axis][shared_coarse]]),
        )
        for axis in (0, 1)
    )
    return (rows[0], columns[0]), (rows[1], columns[1])


def grid_nodes(grid: Grid) -> tuple[Positions, Positions]:
    """Return rows and columns of points spread evenly over an image, its edges included."""
    rows, columns = (np.linspace(-0.5, size - 0.5, COMPARED_POINTS) for size in (grid.height, grid.width))
    nodes = np.meshgrid(rows, columns, indexing="ij")
    return nodes[0].ravel(), nodes[1].ravel()


def _inside(grid: Grid, positions: tuple[Positions, Positions]) -> NDArray[np.bool_]:
    """Not on the very edge: images that only touch do not overlap."""
    inside: NDArray[np.bool_] = np.ones(positions[0].shape, dtype=bool)
    for axis, size in zip(positions, (grid.height, grid.width), strict=True):
        inside &= (axis > -0.5 + 1e-6) & (axis < size - 0.5 - 1e-6)
    return inside


def same_crs(one: CRS | None, other: CRS | None) -> bool:
    """Return whether two CRS are equivalent, however they are written; an unknown one equals any."""
    if one is None or other is None or one == other:
        return True
    import pyproj

    return bool(pyproj.CRS.from_wkt(one.to_wkt()).equals(pyproj.CRS.from_wkt(other.to_wkt()), ignore_axis_order=True))


def crs_name(crs: CRS | None) -> str:
    """Return a short name for messages."""
    if crs is None:
        return "no CRS"
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.to_wkt()[:60]
