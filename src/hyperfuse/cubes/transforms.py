"""Which transform a cube has now. One sliced by hand carries moved coordinates but the old transform: the coordinates win.

A grid whose axes follow the CRS has pixel centres as `x` and `y`; a turned one cannot, and has `pixel_row` and `pixel_column`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

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
    along_y = _pixels_along(cube, "pixel_row" if turned else "y", 0.0 if turned else stored.f, 1.0 if turned else stored.e)
    along_x = _pixels_along(cube, "pixel_column" if turned else "x", 0.0 if turned else stored.c, 1.0 if turned else stored.a)
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
    """Where the first pixel begins and how far apart pixels are, in pixels of the stored transform; (0, 1) where nothing moved."""
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
