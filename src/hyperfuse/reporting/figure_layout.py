"""Where the parts of the fusion figure lie: planned in inches, given in the figure's own units (0 to 1, from the lower left)."""

from __future__ import annotations

from dataclasses import dataclass

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
    map_width, map_tall = _image_size(WIDTH - 2 * MARGIN - COLOUR_BAR - COLOUR_BAR_LABELS, max(maps_per_row, COMPOSITES), aspect)
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
            frame(MARGIN + SPECTRUM_LABELS + k * (spectrum_width + SPECTRUM_LABELS), spectra_top, spectrum_width, SPECTRUM_HEIGHT)
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
