"""What a cube looks like: red, green and blue from the bands nearest to them, stretched from dark to bright.

Shapes: composite (y, x, 3) uint8; limits (3, 2), the values that become black and full colour for red, green, blue.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import as_cube, physical_values

RED_GREEN_BLUE_NM = (650.0, 550.0, 470.0)
# A band further than this from a colour does not show it; then position in the spectrum says more than wavelength.
FAR_NM = 100.0
PERCENTILES = (2.0, 98.0)
NO_DATA = 255


def composite_bands(cube: xr.DataArray) -> tuple[int, int, int]:
    """The bands shown as red, green and blue: the good ones nearest to 650, 550 and 470 nm, else those at 3/4, 1/2 and 1/4.

    Else: where wavelengths are unknown, or no three bands lie near the three colours.
    """
    cube = as_cube(cube)
    good = np.flatnonzero(cube["good"].values)
    good = good if good.size else np.arange(cube.sizes["band"])
    centres_nm = cube["wavelength"].values[good]
    known = np.isfinite(centres_nm)
    if known.any():
        distance = np.abs(centres_nm[known, None] - np.array(RED_GREEN_BLUE_NM))
        if (distance.min(axis=0) <= FAR_NM).all():
            red, green, blue = (int(band) for band in good[known][distance.argmin(axis=0)])
            if len({red, green, blue}) == 3 or good.size < 3:
                return red, green, blue
    red, green, blue = (int(good[min(good.size * quarter // 4, good.size - 1)]) for quarter in (3, 2, 1))
    return red, green, blue


def stretch_limits(cube: xr.DataArray, every: int = 1) -> NDArray[np.float64]:
    """The 2nd and 98th percentile of each of the three bands, to be shared between images that shall look alike."""
    limits = np.empty((3, 2))
    for colour, plane in enumerate(_planes(cube, every)):
        seen = plane[np.isfinite(plane)]
        limits[colour] = np.percentile(seen, PERCENTILES) if seen.size else (0.0, 1.0)
    return limits


def colour_composite(cube: xr.DataArray, limits: NDArray[np.float64] | None = None, every: int = 1) -> NDArray[np.uint8]:
    """A picture of the cube, of every n-th pixel; white where there is no data."""
    planes = _planes(cube, every)
    low, high = (stretch_limits(cube, every) if limits is None else limits).T.reshape(2, 3, 1, 1)
    span = np.where(high > low, high - low, 1.0)
    shown = np.clip((planes - low) / span, 0, 1)
    missing = ~np.isfinite(planes).all(axis=0)
    shown[:, missing] = NO_DATA / 255
    return np.moveaxis(np.round(255 * shown).astype(np.uint8), 0, -1)


def _planes(cube: xr.DataArray, every: int) -> NDArray[np.float64]:
    cube = as_cube(cube)
    step = slice(None, None, every)
    # One by one: a band may serve for two colours, and a reader may want its bands in order.
    return np.stack([physical_values(cube, step, step, [band], np.float64)[0] for band in composite_bands(cube)])
