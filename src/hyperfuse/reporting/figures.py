"""Figures of a fusion, of a co-registration, and of the kernels of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from hyperfuse.errors import OptionError
from hyperfuse.fusion.registration import RegistrationReport
from hyperfuse.io.atomic import check_writable, published
from hyperfuse.io.cube import as_cube, physical_values
from hyperfuse.io.grid import grid_of, place
from hyperfuse.metrics.pairing import Floats, nothing_to_compare
from hyperfuse.models.analysis import KernelMap
from hyperfuse.reporting import style
from hyperfuse.reporting.colour import colour_composite, distinct_pixels, error_map, stretch_limits

LARGEST_PICTURE = 1200
SPECTRA = 4
# Lengths of the fusion figure, in inches.
WIDTH = 1600 / style.DOTS_PER_INCH
MARGIN, GUTTER, HEADING, TITLE = 0.25, 0.18, 0.32, 0.45
COLOUR_BAR, COLOUR_BAR_LABELS = 0.16, 0.5
TALLEST_IMAGE, NARROWEST_IMAGE, FLATTEST_ASPECT = 4.2, 1.8, 0.1
SPECTRUM_HEIGHT, SPECTRUM_LABELS, SPECTRUM_AXIS = 2.1, 0.6, 0.5
LEGEND_ROW, LEGEND_MARGIN = 0.25, 0.15
COMPOSITES, ERROR_MAPS_PER_ROW, LEGEND_ENTRIES_PER_ROW = 4, 6, 10


@dataclass(frozen=True)
class FigureLayout:
    size: tuple[float, float]
    title: tuple[float, float]
    composites: list[style.Frame]
    error_maps: list[style.Frame]
    colour_bar: style.Frame
    spectra: list[style.Frame]
    legend: tuple[float, float]


def plan_layout(image_shape: tuple[int, ...], methods: int, spectra: int) -> FigureLayout:
    """Rows from top to bottom: title, composites, as many rows of error maps as needed, spectra, legend."""
    aspect = max(image_shape[0] / image_shape[1], FLATTEST_ASPECT)
    room = WIDTH - 2 * MARGIN
    map_rows = -(-methods // ERROR_MAPS_PER_ROW)
    per_row = -(-methods // map_rows)  # rows of equal length as far as possible
    width, tall = _image_size(room, COMPOSITES, aspect)
    map_width, map_tall = _image_size(room - COLOUR_BAR - COLOUR_BAR_LABELS, max(per_row, COMPOSITES), aspect)
    maps_top = TITLE + HEADING + tall + GUTTER + HEADING
    maps_bottom = maps_top + map_rows * map_tall + (map_rows - 1) * (GUTTER + HEADING)
    spectra_top = maps_bottom + GUTTER + HEADING
    legend_top = spectra_top + SPECTRUM_HEIGHT + SPECTRUM_AXIS
    legend_height = -(-(methods + 1) // LEGEND_ENTRIES_PER_ROW) * LEGEND_ROW + LEGEND_MARGIN
    height = legend_top + legend_height
    spectrum_step = room / spectra

    def frame(left: float, top: float, wide: float, high: float) -> style.Frame:
        return (MARGIN + left) / WIDTH, 1 - (top + high) / height, wide / WIDTH, high / height

    def map_frame(place: int) -> style.Frame:
        row, column = divmod(place, per_row)
        return frame(column * (map_width + GUTTER), maps_top + row * (map_tall + GUTTER + HEADING), map_width, map_tall)

    return FigureLayout(
        size=(WIDTH, height),
        title=(MARGIN / WIDTH, 1 - TITLE / 2 / height),
        composites=[frame(k * (width + GUTTER), TITLE + HEADING, width, tall) for k in range(COMPOSITES)],
        error_maps=[map_frame(k) for k in range(methods)],
        colour_bar=frame(per_row * (map_width + GUTTER), maps_top, COLOUR_BAR, maps_bottom - maps_top),
        spectra=[
            frame(SPECTRUM_LABELS + k * spectrum_step, spectra_top, spectrum_step - SPECTRUM_LABELS, SPECTRUM_HEIGHT)
            for k in range(spectra)
        ],
        legend=(0.5, 1 - (legend_top + legend_height / 2) / height),
    )


def _image_size(room: float, images: int, aspect: float) -> tuple[float, float]:
    width = min((room - (images - 1) * GUTTER) / images, max(TALLEST_IMAGE / aspect, NARROWEST_IMAGE))
    return width, width * aspect


def fusion_figure(
    path: Path,
    *,
    hsi: xr.DataArray,
    msi: xr.DataArray,
    reference: xr.DataArray,
    fused_by_method: Mapping[str, xr.DataArray],
    scale: float,
    title: str,
    description: str = "",
) -> Path:
    """Draw inputs, best result, error maps and spectra of several methods into a PNG, replacing an existing one."""
    if not fused_by_method:
        raise OptionError("no fused cube to show", "at least one method's result")
    hsi, msi, reference = as_cube(hsi), as_cube(msi), as_cube(reference)
    methods = {name: as_cube(cube) for name, cube in fused_by_method.items()}
    errors = {name: error_map(cube, reference) for name, cube in methods.items()}
    best = min(errors, key=lambda name: style.overall_rmse(errors[name]))
    layout = plan_layout(reference.shape[1:], len(methods), SPECTRA)
    figure = style.new_figure(*layout.size)
    figure.text(*layout.title, title, fontsize=style.LARGE, fontweight="bold", va="center")
    pixels = distinct_pixels(reference, SPECTRA)
    shown = {f"HSI, {scale:g}x coarser": hsi, "MSI": msi, "reference": reference, f"fused: {best}": methods[best]}
    _draw_composites(figure, layout, shown, reference, _extent_on_fine_grid(hsi, msi), pixels)
    _draw_error_maps(figure, layout, errors, best)
    spectra = {name: _spectra_at(cube, pixels) for name, cube in {"reference": reference, **methods}.items()}
    handles = style.draw_spectra(figure, layout.spectra, pixels, style.spectral_axis(reference), spectra, best)
    entries = list(handles.values()), list(handles)
    figure.legend(*entries, loc="center", bbox_to_anchor=layout.legend, ncols=LEGEND_ENTRIES_PER_ROW, frameon=False)
    return style.save_png(figure, path, description)


def closeup_figure(
    path: Path, *, reference: xr.DataArray, fused_by_method: Mapping[str, xr.DataArray], side: int = 36
) -> Path:
    """Draw each result and its error where the last one gains most over the first, into a PNG."""
    reference = as_cube(reference)
    errors = {name: error_map(cube, reference) for name, cube in fused_by_method.items()}
    gain = np.nan_to_num(next(iter(errors.values())) - list(errors.values())[-1])
    sums = np.pad(gain, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    windows = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    row, column = np.unravel_index(windows.argmax(), windows.shape)
    part = {"y": slice(int(row), int(row) + side), "x": slice(int(column), int(column) + side)}
    limits = stretch_limits(reference.isel(part))
    shown = {"reference": reference, **{name: as_cube(cube) for name, cube in fused_by_method.items()}}
    figure = style.new_figure(2.1 * len(shown), 4.7)
    cut = {name: error[part["y"], part["x"]] for name, error in errors.items()}
    colours = Normalize(0, float(np.nanpercentile(np.stack(list(cut.values())), style.ERROR_PERCENTILE)) or 1.0)
    for index, (name, cube) in enumerate(shown.items()):
        left, width = (index + 0.04) / len(shown), 0.92 / len(shown)
        axes = style.image_axes(figure, (left, 0.5, width, 0.43), name)
        axes.imshow(colour_composite(cube.isel(part), limits), interpolation="nearest", aspect="auto")
        if name in cut:
            axes = style.image_axes(figure, (left, 0.02, width, 0.43), "", style.rmse_text(cut[name]))
            style.draw_error_map(axes, cut[name], colours)
    return style.save_png(figure, path)


def _draw_composites(
    figure: Figure,
    layout: FigureLayout,
    shown: Mapping[str, xr.DataArray],
    reference: xr.DataArray,
    hsi_extent: style.Frame,
    pixels: list[tuple[int, int]],
) -> None:
    _, height, width = reference.shape
    every = max(1, -(-max(height, width) // LARGEST_PICTURE))
    limits = stretch_limits(reference, every)
    for frame, (name, cube) in zip(layout.composites, shown.items(), strict=True):
        coarse = name.startswith("HSI")
        picture = colour_composite(cube, None if name == "MSI" else limits, 1 if coarse else every)
        bands, tall, wide = cube.shape
        axes = style.image_axes(figure, frame, name, f"{wide} x {tall}, {bands} {'band' if bands == 1 else 'bands'}")
        extent = hsi_extent if coarse else (0, width, height, 0)
        axes.imshow(picture, extent=extent, interpolation="nearest", aspect="auto")
        axes.set(xlim=(0, width), ylim=(height, 0))
        if cube is reference:
            style.mark_pixels(axes, pixels)


def _draw_error_maps(figure: Figure, layout: FigureLayout, errors: Mapping[str, Floats], best: str) -> None:
    every = max(1, -(-max(errors[best].shape) // LARGEST_PICTURE))
    known = np.concatenate([error[np.isfinite(error)] for error in errors.values()])
    if known.size == 0:
        raise nothing_to_compare()
    colours = Normalize(0, float(np.percentile(known, style.ERROR_PERCENTILE)) or 1.0)
    for frame, (name, error) in zip(layout.error_maps, errors.items(), strict=True):
        axes = style.image_axes(figure, frame, name, style.rmse_text(error), bold=name == best)
        style.draw_error_map(axes, error[::every, ::every], colours)
    style.draw_error_bar(figure, colours, layout.colour_bar)


def _spectra_at(cube: xr.DataArray, pixels: list[tuple[int, int]]) -> Floats:
    """(pixels, bands), NaN in bad bands."""
    values = [
        physical_values(cube, slice(row, row + 1), slice(column, column + 1), dtype=np.float64)[:, 0, 0]
        for row, column in pixels
    ]
    return np.where(cube["good"].values, np.stack(values), np.nan)


def _extent_on_fine_grid(hsi: xr.DataArray, msi: xr.DataArray) -> style.Frame:
    """Left, right, bottom and top of the HSI in pixels of the MSI."""
    placement = place(grid_of(hsi), grid_of(msi))
    rows, columns = np.array([-0.5, hsi.sizes["y"] - 0.5]), np.array([-0.5, hsi.sizes["x"] - 0.5])
    top, bottom = (rows - placement.start_y) / placement.step_y + 0.5
    left, right = (columns - placement.start_x) / placement.step_x + 0.5
    return float(left), float(right), float(bottom), float(top)


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
