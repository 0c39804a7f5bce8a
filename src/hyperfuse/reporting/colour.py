"""Where the parts of the fusion figure lie: planned in inches, given in the figure's own units (0 to 1, from the lower
left).

What a cube looks like: red, green and blue from the bands nearest to them, stretched from dark to bright.

Shapes: composite (y, x, 3) uint8; limits (3, 2), the values that become black and full colour for red, green, blue.

Where a fused image is wrong: the root mean square error over bands, pixel by pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.io.cube import as_cube, iterate_windows, physical_values
from hyperfuse.metrics.evaluation import WINDOW_BYTES
from hyperfuse.metrics.pairing import blank_incomparable, plan_comparison

RED_GREEN_BLUE_NM = (650.0, 550.0, 470.0)
# A band further than this from a colour does not show it; then position in the spectrum says more than wavelength.
FAR_NM = 100.0
PERCENTILES = (2.0, 98.0)
NO_DATA = 255


def composite_bands(cube: xr.DataArray) -> tuple[int, int, int]:
    """The bands shown as red, green and blue: the good ones nearest to 650, 550 and 470 nm, else those at 3/4, 1/2 and
    1/4.

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


def colour_composite(
    cube: xr.DataArray, limits: NDArray[np.float64] | None = None, every: int = 1
) -> NDArray[np.uint8]:
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


def error_map(fused: xr.DataArray, reference: xr.DataArray, max_bytes: int = WINDOW_BYTES) -> NDArray[np.float64]:
    """RMSE over the bands good in both and valid at that pixel, (y, x); NaN where there are none."""
    comparison = plan_comparison(fused, reference, scale=None, peak=1.0, max_bytes=max_bytes)
    errors = np.full(comparison.reference.shape[1:], np.nan)
    for rows, columns in iterate_windows(comparison.reference, max_bytes):
        fused_values, reference_values = comparison.read_pair(rows, columns, comparison.bands)
        comparable = blank_incomparable(fused_values, reference_values)
        squared = np.nan_to_num(np.square(fused_values - reference_values)).sum(axis=0)
        bands = np.count_nonzero(comparable, axis=0)
        window = errors[rows, columns]
        window[bands > 0] = np.sqrt(squared[bands > 0] / bands[bands > 0])
    return errors


DOTS_PER_INCH = 120
WIDTH = 1600 / DOTS_PER_INCH
MARGIN = 0.25
GUTTER = 0.18
HEADING = 0.32
TITLE = 0.45
COLOUR_BAR, COLOUR_BAR_LABELS = 0.16, 0.5
TALLEST_IMAGE, NARROWEST_IMAGE = 4.2, 1.8
FLATTEST_ASPECT = 0.1
ERROR_MAPS_PER_ROW = 6
SPECTRUM_HEIGHT, SPECTRUM_LABELS, SPECTRUM_AXIS = 2.1, 0.6, 0.5
LEGEND_ROW, LEGEND_MARGIN = 0.25, 0.15
LEGEND_ENTRIES_PER_ROW = 10
COMPOSITES = 4

Frame = tuple[float, float, float, float]


@dataclass(frozen=True)
class FigureLayout:
    """Frames are (left, bottom, width, height)."""

    size: tuple[float, float]
    title: tuple[float, float]
    composites: list[Frame]
    error_maps: list[Frame]
    colour_bar: Frame
    spectra: list[Frame]
    legend: tuple[float, float]


def plan_layout(image_shape: tuple[int, ...], methods: int, spectra: int) -> FigureLayout:
    """Rows from top to bottom: title, composites, as many rows of error maps as needed, spectra, legend."""
    aspect = max(image_shape[0] / image_shape[1], FLATTEST_ASPECT)
    maps_per_row = _maps_per_row(methods)
    map_rows = -(-methods // maps_per_row)
    width, tall = _image_size(WIDTH - 2 * MARGIN, COMPOSITES, aspect)
    map_width, map_tall = _image_size(
        WIDTH - 2 * MARGIN - COLOUR_BAR - COLOUR_BAR_LABELS, max(maps_per_row, COMPOSITES), aspect
    )
    maps_top = TITLE + HEADING + tall + GUTTER + HEADING
    maps_bottom = maps_top + map_rows * map_tall + (map_rows - 1) * (GUTTER + HEADING)
    spectra_top = maps_bottom + GUTTER + HEADING
    legend_top = spectra_top + SPECTRUM_HEIGHT + SPECTRUM_AXIS
    legend_height = -(-(methods + 1) // LEGEND_ENTRIES_PER_ROW) * LEGEND_ROW + LEGEND_MARGIN
    height = legend_top + legend_height

    def frame(left: float, top: float, wide: float, high: float) -> Frame:
        return left / WIDTH, 1 - (top + high) / height, wide / WIDTH, high / height

    maps = [
        frame(
            MARGIN + (k % maps_per_row) * (map_width + GUTTER),
            maps_top + (k // maps_per_row) * (map_tall + GUTTER + HEADING),
            map_width,
            map_tall,
        )
        for k in range(methods)
    ]
    bar_left = MARGIN + maps_per_row * (map_width + GUTTER)
    spectrum_width = (WIDTH - 2 * MARGIN) / spectra - SPECTRUM_LABELS
    return FigureLayout(
        size=(WIDTH, height),
        title=(MARGIN / WIDTH, 1 - TITLE / 2 / height),
        composites=[frame(MARGIN + k * (width + GUTTER), TITLE + HEADING, width, tall) for k in range(COMPOSITES)],
        error_maps=maps,
        colour_bar=frame(bar_left, maps_top, COLOUR_BAR, maps_bottom - maps_top),
        spectra=[
            frame(
                MARGIN + SPECTRUM_LABELS + k * (spectrum_width + SPECTRUM_LABELS),
                spectra_top,
                spectrum_width,
                SPECTRUM_HEIGHT,
            )
            for k in range(spectra)
        ],
        legend=(0.5, 1 - (legend_top + legend_height / 2) / height),
    )


def _maps_per_row(methods: int) -> int:
    """Rows of equal length as far as possible."""
    rows = -(-methods // ERROR_MAPS_PER_ROW)
    return -(-methods // rows)


def _image_size(room: float, images: int, aspect: float) -> tuple[float, float]:
    width = min((room - (images - 1) * GUTTER) / images, max(TALLEST_IMAGE / aspect, NARROWEST_IMAGE))
    return width, width * aspect
