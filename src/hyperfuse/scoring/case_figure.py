"""One picture of a case: every competitor's image, a close-up, its error on a common colour scale, and spectra.

Drawn with matplotlib's object interface alone, so that it neither needs nor changes pyplot's global state. Lengths are inches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from hyperfuse.cubes.publishing import published
from hyperfuse.quality.pairing import Floats
from hyperfuse.reporting.fusion_figure import (
    BEST_COLOUR,
    ERROR_COLOURS,
    ERROR_PERCENTILE,
    LETTER_WIDTH,
    METHOD_COLOURS,
    METHOD_LINES,
    NO_DATA_GREY,
    lone_marker,
    short_number,
    shortened,
)
from hyperfuse.reporting.spectra import broken_line
from hyperfuse.scoring.kept_views import FusedViews, InputViews

MOST_PER_ROW, FEWEST_PER_ROW = 7, 5
SIDE, TITLE, GAP, MARGIN, BAR = 2.1, 0.3, 0.12, 0.15, 0.75
BAR_WIDTH = 0.13
SPECTRUM_HEIGHT, HEADING, LEGEND = 2.2, 0.45, 0.5
TALLEST = 2.0
SMALL, MEDIUM, LARGE = 8.0, 9.5, 13.0
CLOSE_UP_COLOUR = "#ff2d2d"
CLOSE_UP_SHARE = 6
SMALLEST_CLOSE_UP = 12


def case_figure(path: Path, title: str, inputs: InputViews, fused: Mapping[str, FusedViews]) -> Path:
    """Write the picture as a PNG, whole or not at all, replacing one that is there."""
    close_up = busiest_square(inputs.reference)
    best = min(fused, key=lambda name: _overall(fused[name].error))
    shown = [*({"HSI": inputs.hsi, "MSI": inputs.msi, "reference": inputs.reference}.items())]
    columns: list[tuple[str, NDArray[np.uint8], Floats | None]] = [(name, picture, None) for name, picture in shown]
    columns += [(name, views.composite, views.error.astype(np.float64)) for name, views in fused.items()]
    bands = math.ceil(len(columns) / MOST_PER_ROW)
    per_row = max(FEWEST_PER_ROW, math.ceil(len(columns) / bands))
    aspect = min(TALLEST, inputs.reference.shape[0] / inputs.reference.shape[1])
    band_height = TITLE + 2 * SIDE * aspect + SIDE + 3 * GAP
    width = 2 * MARGIN + per_row * (SIDE + GAP) + BAR
    height = HEADING + bands * band_height + TITLE + SPECTRUM_HEIGHT + HEADING + LEGEND
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(MARGIN / width, 1 - HEADING / 2 / height, title, fontsize=LARGE, fontweight="bold", va="center")
    colours = _common_colours(fused)
    for place, (name, picture, error) in enumerate(columns):
        left = MARGIN + (place % per_row) * (SIDE + GAP)
        top = HEADING + (place // per_row) * band_height + TITLE
        frames = _frames(left, top, aspect, width, height)
        _draw_column(figure, frames, name, picture, error, inputs, close_up, colours, bold=name == best)
    *_, maps = _frames(width - MARGIN - BAR + 0.1, HEADING + TITLE, aspect, width, height)
    _draw_bar(figure, colours, (*maps[:2], BAR_WIDTH / width, maps[3]))
    _draw_spectra(figure, inputs, fused, best, (LEGEND + HEADING) / height, SPECTRUM_HEIGHT / height)
    with published(path, overwrite=True) as target:
        figure.savefig(target, format="png")
    return path


def busiest_square(picture: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Row, column and side of the square in which the reference varies most, a sixth of the shorter side wide."""
    height, width = picture.shape[:2]
    side = min(height, width, max(SMALLEST_CLOSE_UP, min(height, width) // CLOSE_UP_SHARE))
    grey = picture.astype(np.float64).mean(axis=2)
    detail = np.hypot(*np.gradient(grey)) if min(grey.shape) > 1 else grey
    level = uniform_filter(detail, side, mode="constant")
    half = side // 2
    inside = level[half : height - side + half + 1, half : width - side + half + 1]
    row, column = np.unravel_index(int(inside.argmax()), inside.shape)
    return int(row), int(column), side


def _frames(left: float, top: float, aspect: float, width: float, height: float) -> list[tuple[float, float, float, float]]:
    """Image, close-up and error map, one above the other."""
    frames = []
    for tall in (SIDE * aspect, SIDE, SIDE * aspect):
        frames.append((left / width, 1 - (top + tall) / height, SIDE / width, tall / height))
        top += tall + GAP
    return frames


def _draw_column(
    figure: Figure,
    frames: list[tuple[float, float, float, float]],
    name: str,
    picture: NDArray[np.uint8],
    error: Floats | None,
    inputs: InputViews,
    close_up: tuple[int, int, int],
    colours: Normalize,
    *,
    bold: bool,
) -> None:
    height, width = inputs.reference.shape[:2]
    row, column, side = close_up
    whole = (0.0, float(width), float(height), 0.0)
    axes, nearer = (figure.add_axes(frame, xticks=[], yticks=[]) for frame in frames[:2])
    score = "" if error is None else f"RMSE {short_number(_overall(error))}"
    room = SIDE - len(score) * LETTER_WIDTH * SMALL
    axes.set_title(shortened(name, room, MEDIUM), fontsize=MEDIUM, loc="left", pad=3, fontweight="bold" if bold else "normal")
    axes.set_title(score, fontsize=SMALL, loc="right", pad=3, color="#555555")
    for each in (axes, nearer):
        each.imshow(picture, extent=whole, interpolation="nearest", aspect="auto")
    axes.set(xlim=(0, width), ylim=(height, 0))
    nearer.set(xlim=(column, column + side), ylim=(row + side, row))
    nearer.spines[:].set(color=CLOSE_UP_COLOUR, linewidth=1.5)
    axes.add_patch(Rectangle((column, row), side, side, fill=False, edgecolor=CLOSE_UP_COLOUR, linewidth=1.2))
    if name == "reference":
        _mark_pixels(axes, inputs.pixels)
    if error is not None:
        below = figure.add_axes(frames[2], xticks=[], yticks=[])
        below.set_facecolor(NO_DATA_GREY)
        below.imshow(error, cmap=ERROR_COLOURS, norm=colours, interpolation="nearest", aspect="auto")


def _draw_bar(figure: Figure, colours: Normalize, frame: tuple[float, float, float, float]) -> None:
    bar = figure.colorbar(ScalarMappable(colours, ERROR_COLOURS), cax=figure.add_axes(frame), extend="max")
    bar.ax.tick_params(labelsize=SMALL, length=2)
    bar.ax.set_title("RMSE", fontsize=SMALL, loc="left", pad=6)


def _draw_spectra(
    figure: Figure, inputs: InputViews, fused: Mapping[str, FusedViews], best: str, bottom: float, tall: float
) -> None:
    styles = _line_styles(list(fused), best)
    handles: dict[str, Any] = {}
    good = np.ones(inputs.positions.size, dtype=bool)
    count = len(inputs.pixels)
    room = 0.98 / count
    for place, (row, column) in enumerate(inputs.pixels):
        axes = figure.add_axes((0.04 + place * room, bottom, room - 0.045, tall))
        lines = {"reference": inputs.spectra[place]} | {name: views.spectra[place] for name, views in fused.items()}
        for name, values in lines.items():
            line = broken_line(inputs.positions, values.astype(np.float64), good)
            (handles[name],) = axes.plot(*line, **styles[name], **lone_marker(line[0]))
        axes.set_title(f"pixel {place + 1}: row {row}, column {column}", fontsize=MEDIUM, loc="left")
        axes.set_xlabel(inputs.axis_name, fontsize=SMALL)
        axes.tick_params(labelsize=SMALL, length=2)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    figure.legend(list(handles.values()), list(handles), loc="lower center", ncols=12, fontsize=SMALL, frameon=False)


def _line_styles(names: list[str], best: str) -> dict[str, dict[str, Any]]:
    styles: dict[str, dict[str, Any]] = {
        best: {"color": BEST_COLOUR, "linewidth": 1.4, "zorder": 4},
        "reference": {"color": "black", "linewidth": 2.4, "zorder": 2},
    }
    looks = itertools.cycle(itertools.product(METHOD_LINES, METHOD_COLOURS))
    for name in names:
        if name != best:
            line, colour = next(looks)
            styles[name] = {"color": colour, "linestyle": line, "linewidth": 1.0, "zorder": 3}
    return styles


def _mark_pixels(axes: Any, pixels: NDArray[np.int64]) -> None:
    for number, (row, column) in enumerate(pixels, start=1):
        box = {"boxstyle": "circle,pad=0.15", "facecolor": "black", "edgecolor": "white", "linewidth": 0.6, "alpha": 0.85}
        axes.annotate(str(number), (column + 0.5, row + 0.5), ha="center", va="center", fontsize=6.5, color="white", bbox=box)


def _common_colours(fused: Mapping[str, FusedViews]) -> Normalize:
    """One scale for all, from 0 to where most of them have their largest errors: the worst would leave the others dark."""
    known = [views.error[np.isfinite(views.error)] for views in fused.values()]
    largest = [float(np.percentile(error, ERROR_PERCENTILE)) for error in known if error.size]
    return Normalize(0, (float(np.median(largest)) if largest else 0.0) or 1.0)


def _overall(error: NDArray[Any]) -> float:
    known = error[np.isfinite(error)]
    return float(np.sqrt(np.square(known.astype(np.float64)).mean())) if known.size else math.inf
