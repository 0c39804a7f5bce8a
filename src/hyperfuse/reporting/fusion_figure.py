"""One picture of a fusion: what went in, what came out, where it is wrong, and how spectra fare.

Drawn with matplotlib's object interface alone, so that it neither needs nor changes pyplot's global state. Lengths are
inches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import published
from hyperfuse.io.cube import as_cube, physical_values
from hyperfuse.io.grid import grid_of, place
from hyperfuse.metrics.pairing import Floats, nothing_to_compare
from hyperfuse.reporting.colour import (
    DOTS_PER_INCH,
    LEGEND_ENTRIES_PER_ROW,
    WIDTH,
    FigureLayout,
    colour_composite,
    error_map,
    plan_layout,
    stretch_limits,
)
from hyperfuse.reporting.spectra import broken_line, distinct_pixels, spectral_axis

# Okabe and Ito's colours, told apart by everyone; black is the reference's, vermilion the best method's.
BEST_COLOUR = "#D55E00"
METHOD_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
METHOD_LINES = ("-", "--", ":")
ERROR_COLOURS = "cividis"
# The brightest errors are few and would leave the rest of the map dark.
ERROR_PERCENTILE = 99.0
NO_DATA_GREY = "#d8d8d8"
LARGEST_PICTURE = 1200
SPECTRA = 4
SMALL, MEDIUM, LARGE = 8.5, 10.0, 14.0
# Usual width of a letter, in inches per point of its size.
LETTER_WIDTH = 0.0087


def fusion_figure(
    path: Path,
    *,
    hsi: xr.DataArray,
    msi: xr.DataArray,
    reference: xr.DataArray,
    fused_by_method: Mapping[str, xr.DataArray],
    scale: float,
    title: str,
) -> Path:
    """Write the picture as a PNG, whole or not at all, replacing one that is there."""
    if not fused_by_method:
        raise OptionError("no fused cube to show", "at least one method's result")
    hsi, msi, reference = as_cube(hsi), as_cube(msi), as_cube(reference)
    methods = {name: as_cube(cube) for name, cube in fused_by_method.items()}
    errors = {name: error_map(cube, reference) for name, cube in methods.items()}
    best = min(errors, key=lambda name: _overall(errors[name]))
    layout = plan_layout(reference.shape[1:], len(methods), SPECTRA)
    figure = Figure(figsize=layout.size, dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(*layout.title, title, fontsize=LARGE, fontweight="bold", va="center")
    pixels = distinct_pixels(reference, SPECTRA)
    _draw_composites(figure, layout, hsi, msi, reference, (best, methods[best]), scale, pixels)
    _draw_error_maps(figure, layout, errors, best)
    _draw_spectra(figure, layout, reference, methods, best, pixels)
    with published(Path(path), overwrite=True) as target:
        figure.savefig(target, format="png")
    return Path(path)


def _draw_composites(
    figure: Figure,
    layout: FigureLayout,
    hsi: xr.DataArray,
    msi: xr.DataArray,
    reference: xr.DataArray,
    best: tuple[str, xr.DataArray],
    scale: float,
    pixels: list[tuple[int, int]],
) -> None:
    height, width = reference.shape[1:]
    every = max(1, -(-max(height, width) // LARGEST_PICTURE))
    limits = stretch_limits(reference, every)
    whole = (0.0, float(width), float(height), 0.0)
    pictures = [
        (f"HSI, {scale:g}x coarser", hsi, colour_composite(hsi, limits), _extent_on_fine_grid(hsi, msi)),
        ("MSI", msi, colour_composite(msi, every=every), whole),
        ("reference", reference, colour_composite(reference, limits, every), whole),
        (f"fused: {best[0]}", best[1], colour_composite(best[1], limits, every), whole),
    ]
    for frame, (name, cube, picture, extent) in zip(layout.composites, pictures, strict=True):
        axes = _image_axes(figure, frame, name, _size_of(cube))
        axes.imshow(picture, extent=extent, interpolation="nearest", aspect="auto")
        axes.set(xlim=(0, width), ylim=(height, 0))
        if cube is reference:
            _mark_pixels(axes, pixels)


def _draw_error_maps(figure: Figure, layout: FigureLayout, errors: Mapping[str, Floats], best: str) -> None:
    every = max(1, -(-max(errors[best].shape) // LARGEST_PICTURE))
    seen = np.concatenate([error[np.isfinite(error)] for error in errors.values()])
    if seen.size == 0:
        raise nothing_to_compare()
    colours = Normalize(0, float(np.percentile(seen, ERROR_PERCENTILE)) or 1.0)
    for frame, (name, error) in zip(layout.error_maps, errors.items(), strict=True):
        axes = _image_axes(figure, frame, name, f"RMSE {short_number(_overall(error))}", bold=name == best)
        axes.set_facecolor(NO_DATA_GREY)
        axes.imshow(error[::every, ::every], cmap=ERROR_COLOURS, norm=colours, interpolation="nearest", aspect="auto")
    bar = figure.colorbar(ScalarMappable(colours, ERROR_COLOURS), cax=figure.add_axes(layout.colour_bar), extend="max")
    bar.ax.tick_params(labelsize=SMALL, length=2)
    bar.outline.set_linewidth(0.5)
    bar.ax.set_title("RMSE", fontsize=SMALL, loc="left", pad=4)


def _draw_spectra(
    figure: Figure,
    layout: FigureLayout,
    reference: xr.DataArray,
    methods: Mapping[str, xr.DataArray],
    best: str,
    pixels: list[tuple[int, int]],
) -> None:
    positions, axis_name = spectral_axis(reference)
    styles = _line_styles(list(methods), best)
    handles: dict[str, Any] = {}
    for number, (frame, (row, column)) in enumerate(zip(layout.spectra, pixels, strict=False), start=1):
        axes = figure.add_axes(frame)
        at = slice(row, row + 1), slice(column, column + 1)
        for name, cube in [("reference", reference), *methods.items()]:
            line = broken_line(positions, physical_values(cube, *at, dtype=np.float64)[:, 0, 0], cube["good"].values)
            (handles[name],) = axes.plot(*line, **styles[name], **lone_marker(line[0]))
        axes.set_title(f"pixel {number}: row {row}, column {column}", fontsize=MEDIUM, loc="left")
        axes.set_xlabel(axis_name, fontsize=SMALL)
        axes.tick_params(labelsize=SMALL, length=2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.margins(x=0.01)
        if number == 1:
            axes.set_ylabel("signal", fontsize=SMALL)
    legend = figure.legend(
        list(handles.values()), list(handles), loc="center", bbox_to_anchor=layout.legend, ncols=LEGEND_ENTRIES_PER_ROW
    )
    legend.set_frame_on(False)


def _image_axes(
    figure: Figure, frame: tuple[float, float, float, float], name: str, detail: str, bold: bool = False
) -> Any:
    axes = figure.add_axes(frame, xticks=[], yticks=[])
    axes.spines[:].set_linewidth(0.5)
    room = frame[2] * WIDTH - len(detail) * LETTER_WIDTH * SMALL
    axes.set_title(
        shortened(name, room, MEDIUM), fontsize=MEDIUM, loc="left", fontweight="bold" if bold else "normal", pad=4
    )
    axes.set_title(detail, fontsize=SMALL, loc="right", color="#555555", pad=4)
    return axes


def _line_styles(methods: list[str], best: str) -> dict[str, dict[str, Any]]:
    """The reference in black beneath all others; the best method on top, in a colour of its own."""
    styles: dict[str, dict[str, Any]] = {
        best: {"color": BEST_COLOUR, "linewidth": 1.4, "zorder": 4},
        "reference": {"color": "black", "linewidth": 2.4, "zorder": 2},
    }
    looks = itertools.cycle(itertools.product(METHOD_LINES, METHOD_COLOURS))
    for method in methods:
        if method != best:
            line, colour = next(looks)
            styles[method] = {"color": colour, "linestyle": line, "linewidth": 1.0, "zorder": 3}
    return styles


def lone_marker(along: Floats) -> dict[str, Any]:
    """A line through one band is no line; a dash shows it."""
    return {"marker": "_", "markersize": 16} if along.size == 1 else {}


def _mark_pixels(axes: Any, pixels: list[tuple[int, int]]) -> None:
    for number, (row, column) in enumerate(pixels, start=1):
        axes.annotate(
            str(number),
            (column + 0.5, row + 0.5),
            ha="center",
            va="center",
            fontsize=SMALL,
            color="white",
            bbox={
                "boxstyle": "circle,pad=0.2",
                "facecolor": "black",
                "edgecolor": "white",
                "linewidth": 0.8,
                "alpha": 0.85,
            },
        )


def _extent_on_fine_grid(hsi: xr.DataArray, msi: xr.DataArray) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the HSI in pixels of the MSI."""
    placement = place(grid_of(hsi), grid_of(msi))
    rows, columns = np.array([-0.5, hsi.sizes["y"] - 0.5]), np.array([-0.5, hsi.sizes["x"] - 0.5])
    top, bottom = (rows - placement.start_y) / placement.step_y + 0.5
    left, right = (columns - placement.start_x) / placement.step_x + 0.5
    return float(left), float(right), float(bottom), float(top)


def _size_of(cube: xr.DataArray) -> str:
    bands, height, width = cube.shape
    return f"{width} x {height}, {bands} {'band' if bands == 1 else 'bands'}"


def _overall(error: Floats) -> float:
    """RMSE over the whole map; infinite, hence never the best, for a method that has no data at all."""
    known = error[np.isfinite(error)]
    return float(np.sqrt(np.square(known).mean())) if known.size else float("inf")


def short_number(value: float) -> str:
    return "-" if np.isinf(value) else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def shortened(name: str, room: float, size: float) -> str:
    """As much of a name as the room, in inches, holds in letters of this size."""
    letters = max(4, int(room / (LETTER_WIDTH * size)))
    return name if len(name) <= letters else f"{name[: letters - 2]}.."
