"""Common style of all figures: colours, fonts, axes, spectra.

Figures use matplotlib's object interface only: pyplot's global state is neither needed nor changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from hyperfuse.io.atomic import published
from hyperfuse.io.cube import as_cube, wavelengths_nm
from hyperfuse.metrics.sums import Floats

DOTS_PER_INCH = 120
# Okabe and Ito (2008), distinguishable with any colour vision; of spectra black is the reference, vermilion the best.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BEST_COLOUR = "#D55E00"
METHOD_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
METHOD_LINES = ("-", "--", ":")
ERROR_COLOURS = "cividis"
# The largest errors are few and would leave the rest of a map dark.
ERROR_PERCENTILE = 99.0
NO_DATA_GREY = "#d8d8d8"
SMALL, MEDIUM, LARGE = 8.5, 10.0, 14.0
LETTER_WIDTH = 0.0087  # mean width of a letter, in inches per point of its size
# Bands further apart than this many median steps have a gap between them (water vapour, a missing detector).
GAP_STEPS = 3.5


def new_figure(width: float, height: float, dpi: int = DOTS_PER_INCH, **options: Any) -> Figure:
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white", **options)
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path, description: str = "") -> Path:
    """Write a PNG atomically, replacing an existing one; the description is kept in the file."""
    with published(Path(path), overwrite=True) as target:
        figure.savefig(target, format="png", metadata={"Description": description} if description else None)
    return Path(path)


def clean_axes(axes: Any, fontsize: float = SMALL, alpha: float = 0.25) -> None:
    """Faint grid, small ticks, no frame at the top and right."""
    axes.tick_params(labelsize=fontsize, length=2)
    axes.grid(which="major", alpha=alpha, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def title_beside(axes: Any, name: str, detail: str, inches: float, *, bold: bool = False) -> None:
    """A title at the left, shortened to the room that the detail at the right leaves of so many inches."""
    room = inches - len(detail) * LETTER_WIDTH * SMALL
    letters = max(4, int(room / (LETTER_WIDTH * MEDIUM)))
    title = name if len(name) <= letters else f"{name[: letters - 2]}.."
    axes.set_title(title, fontsize=MEDIUM, loc="left", fontweight="bold" if bold else "normal", pad=4)
    axes.set_title(detail, fontsize=SMALL, loc="right", color="#555555", pad=4)


def mark_pixels(axes: Any, pixels: Sequence[Sequence[int]] | NDArray[np.int64]) -> None:
    box = {"boxstyle": "circle,pad=0.2", "facecolor": "black", "edgecolor": "white", "linewidth": 0.8, "alpha": 0.85}
    text = {"ha": "center", "va": "center", "fontsize": SMALL, "color": "white", "bbox": box}
    for number, (row, column) in enumerate(pixels, start=1):
        axes.annotate(str(number), (column + 0.5, row + 0.5), **text)


def draw_spectra(
    panels: Iterable[Any],
    pixels: Sequence[Sequence[int]] | NDArray[np.int64],
    axis: tuple[Floats, str],
    spectra: Mapping[str, NDArray[Any]],
    best: str,
) -> dict[str, Any]:
    """One of the axes per pixel, one line per entry of `spectra` (pixels, bands); the legend's handles by name."""
    positions, axis_name = axis
    styles = _line_styles(list(spectra), best)
    handles: dict[str, Any] = {}
    for place, (axes, (row, column)) in enumerate(zip(panels, pixels, strict=True)):
        for name, values in spectra.items():
            along, heights = broken_line(positions, values[place].astype(np.float64))
            # A line through a single band would be invisible.
            marker: dict[str, Any] = {"marker": "_", "markersize": 16} if along.size == 1 else {}
            (handles[name],) = axes.plot(along, heights, **styles[name], **marker)
        axes.set_title(f"pixel {place + 1}: row {row}, column {column}", fontsize=MEDIUM, loc="left")
        axes.set_xlabel(axis_name, fontsize=SMALL)
        axes.margins(x=0.01)
        clean_axes(axes)
        if place == 0:
            axes.set_ylabel("signal", fontsize=SMALL)
    return handles


def _line_styles(names: Sequence[str], best: str) -> dict[str, dict[str, Any]]:
    """The reference in black beneath all others; the best on top, in a colour of its own."""
    styles_in_turn = itertools.cycle(itertools.product(METHOD_LINES, METHOD_COLOURS))
    styles: dict[str, dict[str, Any]] = {}
    for name in names:
        if name == best:
            styles[name] = {"color": BEST_COLOUR, "linewidth": 1.4, "zorder": 4}
        elif name == "reference":
            styles[name] = {"color": "black", "linewidth": 2.4, "zorder": 2}
        else:
            line, colour = next(styles_in_turn)
            styles[name] = {"color": colour, "linestyle": line, "linewidth": 1.0, "zorder": 3}
    return styles


def draw_legend(figure: FigureBase, handles: Mapping[str, Any], place: Any, columns: int) -> None:
    figure.legend(list(handles.values()), list(handles), loc=place, ncols=columns, fontsize=SMALL, frameon=False)


def spectral_axis(cube: xr.DataArray) -> tuple[Floats, str]:
    """Positions of the bands along a plot's axis, and its label: wavelengths, or band numbers where unknown."""
    cube = as_cube(cube)
    centres_nm = wavelengths_nm(cube)
    if centres_nm is None:
        return np.arange(1.0, cube.sizes["band"] + 1), "band"
    return centres_nm, "wavelength (nm)"


def broken_line(positions: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Sort the points of a spectrum by position and insert a NaN wherever bands are missing."""
    order = np.argsort(positions, kind="stable")
    along, heights = positions[order], values[order]
    if along.size < 3:
        return along, heights
    steps = np.diff(along)
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else np.inf
    breaks = np.flatnonzero(steps > GAP_STEPS * usual)
    middles = (along[breaks] + along[breaks + 1]) / 2
    return np.insert(along, breaks + 1, middles), np.insert(heights, breaks + 1, np.nan)


def highest_square(values: Floats, side: int) -> tuple[slice, slice]:
    """Rows and columns of the square of this side, or what the map has of it, with the highest mean."""
    height, width = values.shape
    tall, wide = min(side, height), min(side, width)
    means = uniform_filter(np.nan_to_num(values), (tall, wide), mode="constant")
    means = means[tall // 2 : height - (tall - 1) // 2, wide // 2 : width - (wide - 1) // 2]
    top, left = np.unravel_index(int(means.argmax()), means.shape)
    return slice(int(top), int(top) + tall), slice(int(left), int(left) + wide)
