"""Figures of a fusion, of a co-registration, and of the kernels of a network.

Shapes: H W fine pixels, C bands, P pixels. Lengths are inches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.fusion.registration import RegistrationReport
from hyperfuse.io.atomic import check_writable, published
from hyperfuse.io.cube import as_cube, physical_values
from hyperfuse.metrics.sums import Floats
from hyperfuse.models.analysis import KernelMap
from hyperfuse.reporting import style
from hyperfuse.reporting.colour import colour_composite, distinct_pixels, error_map, stretch_limits

SPECTRA = 4
MOST_PER_ROW, FEWEST_PER_ROW = 8, 5
SIDE, TITLE, BAR, SPECTRUM_HEIGHT, LEGEND, LEGEND_ENTRIES_PER_ROW = 2.2, 0.4, 0.9, 2.8, 0.5, 14
FLATTEST_ASPECT, TALLEST_ASPECT = 0.1, 2.0
CLOSE_UP_COLOUR, CLOSE_UP_SHARE, SMALLEST_CLOSE_UP = "#ff2d2d", 6, 12


@dataclass(frozen=True, eq=False)
class InputViews:
    """What a figure shows of a pair and its reference."""

    hsi: NDArray[np.uint8]
    msi: NDArray[np.uint8]
    reference: NDArray[np.uint8]
    """Composites."""
    pixels: NDArray[np.int64]
    """(P, 2), rows and columns."""
    spectra: NDArray[np.float32]
    """(P, C) of the reference."""
    positions: NDArray[np.float64]
    """(C,) wavelengths, or band numbers."""
    axis_name: str


@dataclass(frozen=True, eq=False)
class FusedViews:
    """What a figure shows of a fused image."""

    composite: NDArray[np.uint8]
    error: NDArray[np.float32]
    """(H, W) root mean square error over the bands."""
    spectra: NDArray[np.float32]


def view_inputs(hsi: xr.DataArray, msi: xr.DataArray, reference: xr.DataArray) -> InputViews:
    """Draw the composites, with the stretch of the reference except for the MSI, and choose pixels for spectra."""
    limits = stretch_limits(reference)
    composites = colour_composite(hsi, limits), colour_composite(msi), colour_composite(reference, limits)
    pixels = np.array(distinct_pixels(reference, SPECTRA))
    return InputViews(*composites, pixels, _spectra_at(reference, pixels), *style.spectral_axis(reference))


def view_fused(fused: xr.DataArray, reference: xr.DataArray, pixels: NDArray[np.int64]) -> FusedViews:
    composite = colour_composite(fused, stretch_limits(reference))
    return FusedViews(composite, error_map(fused, reference).astype(np.float32), _spectra_at(fused, pixels))


def _spectra_at(cube: xr.DataArray, pixels: NDArray[np.int64]) -> NDArray[np.float32]:
    """(P, C), NaN in bad bands."""
    cube = as_cube(cube)
    windows = ((slice(row, row + 1), slice(column, column + 1)) for row, column in pixels.tolist())
    spectra = np.stack([physical_values(cube, *window)[:, 0, 0] for window in windows])
    return np.where(cube["good"].values, spectra, np.float32(np.nan))


def fusion_figure(
    path: Path, title: str, inputs: InputViews, fused: Mapping[str, FusedViews], description: str = ""
) -> Path:
    """Draw inputs and fused images by their names into a PNG, replacing an existing one.

    Each with a close-up and its error on a common colour scale; spectra below.
    """
    best = min(fused, key=lambda name: overall_rmse(fused[name].error))
    pictures = {"HSI": inputs.hsi, "MSI": inputs.msi, "reference": inputs.reference}
    pictures |= {name: views.composite for name, views in fused.items()}
    rows = math.ceil(len(pictures) / MOST_PER_ROW)
    per_row = max(FEWEST_PER_ROW, math.ceil(len(pictures) / rows))
    height, width = inputs.reference.shape[:2]
    tall = SIDE * min(TALLEST_ASPECT, max(FLATTEST_ASPECT, height / width))
    images_height, spectra_height = rows * (TITLE + 2 * tall + SIDE), SPECTRUM_HEIGHT + LEGEND
    figure = style.new_figure(per_row * SIDE + BAR, images_height + spectra_height, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=style.LARGE - 1, fontweight="bold")
    parts: Any = figure.subfigures(2, 1, height_ratios=(images_height, spectra_height))
    above, below = parts
    grid = above.subplots(3 * rows, per_row, squeeze=False, gridspec_kw={"height_ratios": [tall, SIDE, tall] * rows})
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.set_axis_off()
    colours = _common_colours(fused)
    close_up = _most_detailed_square(inputs.reference)
    for place, (name, picture) in enumerate(pictures.items()):
        row, column = divmod(place, per_row)
        whole, detail, error_axes = grid[3 * row : 3 * row + 3, column]
        error = fused[name].error if name in fused else None
        score = "{1} x {0}".format(*picture.shape) if error is None else _rmse_text(error)
        style.title_beside(whole, name, score, SIDE, bold=name == best)
        _draw_images(whole, detail, picture, (height, width), close_up)
        if name == "reference":
            style.mark_pixels(whole, inputs.pixels)
        if error is not None:
            error_axes.set_axis_on()
            error_axes.set_facecolor(style.NO_DATA_GREY)
            error_axes.imshow(error, cmap=style.ERROR_COLOURS, norm=colours, interpolation="nearest", aspect="auto")
    bar = above.colorbar(ScalarMappable(colours, style.ERROR_COLOURS), ax=grid[-1], extend="max", label="RMSE")
    bar.ax.tick_params(labelsize=style.SMALL, length=2)
    spectra = {"reference": inputs.spectra} | {name: views.spectra for name, views in fused.items()}
    panels = below.subplots(1, len(inputs.pixels), squeeze=False)[0]
    handles = style.draw_spectra(panels, inputs.pixels, (inputs.positions, inputs.axis_name), spectra, best)
    style.draw_legend(below, handles, "outside lower center", LEGEND_ENTRIES_PER_ROW)
    return style.save_png(figure, path, description)


def overall_rmse(error: NDArray[Any]) -> float:
    """RMSE over a whole error map; infinite, hence never the best, where there is no data at all."""
    known = error[np.isfinite(error)].astype(np.float64)
    return float(np.sqrt(np.square(known).mean())) if known.size else float("inf")


def _rmse_text(error: NDArray[Any]) -> str:
    value = overall_rmse(error)
    return "RMSE -" if np.isinf(value) else f"RMSE {value:.0f}" if value >= 1000 else f"RMSE {value:.3g}"


def _draw_images(
    axes: Any, detail: Any, picture: NDArray[np.uint8], size: tuple[int, int], close_up: tuple[slice, slice]
) -> None:
    """A picture of any resolution over an area of `size` fine pixels, and the close-up below it."""
    (height, width), (rows, columns) = size, close_up
    for each in (axes, detail):
        each.set_axis_on()
        each.imshow(picture, interpolation="nearest", aspect="auto", extent=(0, width, height, 0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    detail.set(xlim=(columns.start, columns.stop), ylim=(rows.stop, rows.start))
    detail.spines[:].set(color=CLOSE_UP_COLOUR, linewidth=1.5)
    corner, sides = (columns.start, rows.start), (columns.stop - columns.start, rows.stop - rows.start)
    axes.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=CLOSE_UP_COLOUR, linewidth=1.2))


def _most_detailed_square(picture: NDArray[np.uint8]) -> tuple[slice, slice]:
    """Rows and columns of the square with the most detail, a sixth of the shorter side wide."""
    grey = picture.astype(np.float64).mean(axis=2)
    detail = np.hypot(*np.gradient(grey)) if min(grey.shape) > 1 else grey
    side = min(*grey.shape, max(SMALLEST_CLOSE_UP, min(grey.shape) // CLOSE_UP_SHARE))
    return style.highest_square(detail, side)


def _common_colours(fused: Mapping[str, FusedViews]) -> Normalize:
    """From 0 to where most models have their largest errors: the worst one would leave the others dark."""
    known = [views.error[np.isfinite(views.error)] for views in fused.values()]
    largest = [float(np.percentile(error, style.ERROR_PERCENTILE)) for error in known if error.size]
    return Normalize(0, (float(np.median(largest)) if largest else 0.0) or 1.0)


SUFFIXES = (".png", ".svg", ".pdf")


def check_figure(path: Path, *, overwrite: bool) -> None:
    """Raise before the work rather than after it."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"figure {path}", f"a name that ends in {', '.join(SUFFIXES)}")
    check_writable(path, overwrite=overwrite)


def draw_kernel_maps(maps: Sequence[KernelMap], path: str | Path, projection: str) -> None:
    """Draw the channels of each kernel as points of a plane, coloured by their index (figure 6 of the paper).

    The suffix of `path` chooses the format; `projection` names how the plane was found.
    """
    path = Path(path)
    check_figure(path, overwrite=True)
    figure = Figure(figsize=(4.2 * len(maps), 4.2), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for panel, kernel in zip(panels, maps, strict=True):
        x, y = kernel.points[:, 0].tolist(), kernel.points[:, 1].tolist()
        panel.plot(x, y, color="0.8", linewidth=0.8, zorder=1)
        points = panel.scatter(x, y, c=range(len(x)), cmap="viridis", s=18, zorder=2)
        panel.set_title(f"{kernel.title}\nsmoothness {kernel.smoothness:.3f}")
        panel.set(xlabel=f"{projection} 1", ylabel=f"{projection} 2")
    figure.colorbar(points, ax=panels.tolist(), label="channel index")
    with published(path, overwrite=True) as target:
        figure.savefig(target, dpi=150)


LARGEST_GREY_PICTURE = 900
LONGEST_SIDE_INCHES = 9.0
ARROWS = 14  # along the longer side
GREY_PERCENTILES = (2.0, 98.0)
# Coloured arrows and black marks are visible on all greys above this.
DARKEST_GREY = 0.4
# A colour bar that spans less than this, in fine pixels, would show noise as a pattern.
SMALLEST_RANGE = 0.1
# The longest arrow fills its cell only from this length on, in fine pixels: tiny offsets should appear tiny.
SMALLEST_FULL_LENGTH = 0.5
ROUND_LENGTHS = (1.0, 2.0, 5.0)


def offset_figure(path: Path, report: RegistrationReport, title: str) -> Path:
    """Draw the HSI's offsets as arrows over the MSI in grey into a PNG, replacing an existing one."""
    _, height, width = report.pair.fine_shape
    inches = LONGEST_SIDE_INCHES / max(width, height)
    figure = style.new_figure(max(3.5, width * inches) + 2.1, max(2.0, height * inches) + 1.5, layout="constrained")
    axes: Any = figure.add_subplot()
    grey = {"cmap": "gray", "vmin": 0, "vmax": 1, "extent": (0, width, height, 0), "interpolation": "nearest"}
    axes.imshow(_grey_picture(report), **grey)
    axes.set_facecolor(style.NO_DATA_GREY)
    _draw_windows(axes, report)
    _draw_colour_bar(figure, axes, _draw_arrows(axes, report), report)
    axes.set(xlim=(0, width), ylim=(height, 0), xlabel="fine pixels", ylabel="fine pixels")
    axes.tick_params(labelsize=style.SMALL, length=2)
    axes.set_title(_summary(report), fontsize=style.MEDIUM, loc="left")
    figure.suptitle(title, fontsize=style.LARGE - 1, fontweight="bold", x=0.02, ha="left")
    return style.save_png(figure, path)


def _grey_picture(report: RegistrationReport) -> Floats:
    """The mean of the MSI's bands, of every n-th pixel, stretched; NaN where there is no data."""
    source = report.pair.msi_source
    picture: Floats = source.thinned(max(1, -(-max(source.shape[1:]) // LARGEST_GREY_PICTURE))).mean(axis=0)
    picture = picture.astype(np.float64)
    known = picture[np.isfinite(picture)]
    low, high = np.percentile(known, GREY_PERCENTILES) if known.size else (0.0, 1.0)
    return DARKEST_GREY + (1 - DARKEST_GREY) * np.clip((picture - low) / (high - low if high > low else 1.0), 0, 1)


def _draw_windows(axes: Any, report: RegistrationReport) -> None:
    """Where offsets were measured, and which of them were discarded."""
    field = report.field
    kept = {"marker": "o", "label": "windows used", "facecolors": "none", "edgecolors": "black"}
    dropped = {"marker": "x", "label": "windows discarded", "color": "#c1121f"}
    for used, mark in ((True, kept), (False, dropped)):
        places = [window.place for window, each in zip(field.windows, field.used, strict=True) if each == used]
        if places:
            rows, columns = np.array(places).T + 0.5
            axes.scatter(columns, rows, s=14, linewidths=0.9, zorder=3, **mark)
    if field.windows:
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.07), ncols=2, fontsize=style.SMALL, frameon=False)


def _draw_arrows(axes: Any, report: RegistrationReport) -> Any:
    _, height, width = report.pair.fine_shape
    spacing = max(height, width) / ARROWS
    counts = [(size, max(1, round(size / spacing))) for size in (height, width)]
    y, x = np.meshgrid(*((np.arange(count) + 0.5) * size / count for size, count in counts), indexing="ij")
    down, right = report.field.at(y - 0.5, x - 0.5)
    length = np.hypot(down, right)
    low, high = float(length.min()), float(length.max())
    stretch, key = arrow_stretch(high, spacing)
    if high - low < SMALLEST_RANGE:
        low, high = max(0.0, (low + high - SMALLEST_RANGE) / 2), (low + high + SMALLEST_RANGE) / 2
    colours = {"cmap": "viridis", "norm": Normalize(low, high), "edgecolor": "black", "linewidth": 0.4, "zorder": 4}
    units = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.004, "pivot": "mid"}
    arrows = axes.quiver(x, y, right * stretch, down * stretch, length, **colours, **units)
    key_look = {"labelpos": "E", "coordinates": "axes", "fontproperties": {"size": style.SMALL}}
    axes.quiverkey(arrows, 0.86, -0.1, key * stretch, f"{key:g} fine pixels", **key_look)
    return arrows


def arrow_stretch(longest: float, spacing: float) -> tuple[float, float]:
    """By which factor offsets are drawn longer than they are, and the round length (1, 2, 5 x 10^n) for the key."""
    full = max(longest, SMALLEST_FULL_LENGTH)
    power = 10.0 ** np.floor(np.log10(full))
    key = max(factor * power for factor in ROUND_LENGTHS if factor * power <= max(full, power))
    return 0.9 * spacing / full, float(key)


def _draw_colour_bar(figure: Figure, axes: Any, arrows: Any, report: RegistrationReport) -> None:
    bar = figure.colorbar(arrows, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label("offset, fine pixels", fontsize=style.MEDIUM)
    bar.ax.tick_params(labelsize=style.SMALL, length=2)
    if report.metres is not None:
        metres = float(np.sqrt(report.metres[0] * report.metres[1]))
        bar.ax.yaxis.set_ticks_position("left")
        bar.ax.yaxis.set_label_position("left")
        functions: Any = (lambda pixels: pixels * metres, lambda length: length / metres)
        other = bar.ax.secondary_yaxis("right", functions=functions)
        other.set_ylabel("offset, metres", fontsize=style.MEDIUM)
        other.tick_params(labelsize=style.SMALL, length=2)


def _summary(report: RegistrationReport) -> str:
    field, whole = report.field, report.whole
    down, right = whole.offset
    text = f"whole scene {down:+.2f} {right:+.2f} (down, right), confidence {whole.confidence:.2f}; "
    if not any(field.used):
        return text + "no local offsets"
    local = f"local: varies by {field.variation:.2f}, at most {field.largest:.2f}, confidence {field.confidence:.2f}"
    return text + local
