"""Figures of a benchmark: one per pictured case, and PSNR against scale.

What the figure of a case needs is kept while the benchmark runs: the fused cubes themselves would fill the disk.
Shapes: H W fine pixels, C bands, P pixels. Lengths are inches.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from hyperfuse.benchmarking.cases import CLEAN, CaseName, CasePair
from hyperfuse.benchmarking.paper import printed_scores
from hyperfuse.benchmarking.results import BLIND, NOMINAL, ORACLE, Result, columns_of, mean_score
from hyperfuse.io.atomic import published
from hyperfuse.io.cube import make_cube
from hyperfuse.physics.imperfections import IMPERFECTIONS
from hyperfuse.reporting import style
from hyperfuse.reporting.colour import colour_composite, distinct_pixels, error_map, stretch_limits

PICTURES, INPUTS = "pictures", "inputs"
DPI = 110
SPECTRA = 4
MOST_PER_ROW, FEWEST_PER_ROW = 7, 5
SIDE, TITLE, GAP, MARGIN, BAR, BAR_WIDTH = 2.1, 0.3, 0.12, 0.15, 0.75, 0.13
SPECTRUM_HEIGHT, HEADING, LEGEND = 2.2, 0.45, 0.5
TALLEST_ASPECT = 2.0
CLOSE_UP_COLOUR, CLOSE_UP_SHARE, SMALLEST_CLOSE_UP = "#ff2d2d", 6, 12
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW, LEGEND_HEIGHT = 5.2, 3.9, 3, 0.9
PRINTED_COLOUR, PRINTED_MARKERS = "#999999", "1234+x."


@dataclass(frozen=True, eq=False)
class InputViews:
    """Composites of a pair and its reference, and spectra of the reference."""

    hsi: NDArray[np.uint8]
    msi: NDArray[np.uint8]
    reference: NDArray[np.uint8]
    pixels: NDArray[np.int64]
    """(P, 2), rows and columns."""
    spectra: NDArray[np.float32]
    """(P, C) of the reference."""
    positions: NDArray[np.float64]
    """(C,) wavelengths, or band numbers."""
    axis_name: str


@dataclass(frozen=True, eq=False)
class FusedViews:
    composite: NDArray[np.uint8]
    error: NDArray[np.float32]
    """(H, W) root mean square error over the bands."""
    spectra: NDArray[np.float32]


def case_folder(folder: Path, case: CaseName) -> Path:
    """Where the views of a case are kept."""
    readable = re.sub(r"[^A-Za-z0-9.+]+", "_", f"{case.dataset} {case}")
    identity = repr(case).replace(", srf=", ", response=")  # as folders have been called from the beginning
    return folder / PICTURES / f"{readable[:80]}_{zlib.crc32(identity.encode()):08x}"


def keep_views(folder: Path, pair: CasePair, model: str, fused: NDArray[np.float32]) -> None:
    """Save what a figure shows of a fused image; what all models share is saved once."""
    folder.mkdir(parents=True, exist_ok=True)
    reference, wavelength_nm = pair.reference, pair.reference["wavelength"].values
    if not _file_of(folder).exists():
        pixels = np.array(distinct_pixels(reference, SPECTRA))
        composites = colour_composite(pair.hsi, stretch_limits(reference)), colour_composite(pair.msi)
        spectra = reference.values[:, pixels[:, 0], pixels[:, 1]].T.astype(np.float32)
        axis = style.spectral_axis(reference)
        _save(_file_of(folder), InputViews(*composites, colour_composite(reference), pixels, spectra, *axis))
    pixels = load_inputs(folder).pixels
    cube = make_cube(np.clip(fused, 0.0, 1.0), wavelength_nm=wavelength_nm)
    without_grid = make_cube(reference.values, wavelength_nm=wavelength_nm)  # as the fused array
    views = FusedViews(
        colour_composite(cube, stretch_limits(reference)),
        error_map(cube, without_grid).astype(np.float32),
        fused[:, pixels[:, 0], pixels[:, 1]].T.astype(np.float32),
    )
    _save(_file_of(folder, model), views)


def load_inputs(folder: Path) -> InputViews:
    with np.load(_file_of(folder)) as stored:
        return InputViews(**{name: stored[name] for name in stored} | {"axis_name": str(stored["axis_name"])})


def load_fused(folder: Path, models: Iterable[str]) -> dict[str, FusedViews]:
    """The views that were kept, in the order of `models`."""
    views = {}
    for model in models:
        path = _file_of(folder, model)
        if path.exists():
            with np.load(path) as stored:
                views[model] = FusedViews(**{name: stored[name] for name in stored})
    return views


def _file_of(folder: Path, model: str | None = None) -> Path:
    """Of the inputs, or of a model: a name that is no file name, or that of the inputs, gets another one."""
    if model is None:
        return folder / f"{INPUTS}.npz"
    usable = re.sub(r"[^\w.+ -]+", "_", model)
    unchanged = usable == model != INPUTS
    return folder / (f"{usable}.npz" if unchanged else f"{usable}_{zlib.crc32(model.encode()):08x}.npz")


def _save(path: Path, views: InputViews | FusedViews) -> None:
    with published(path, overwrite=True) as target, target.open("wb") as file:
        np.savez_compressed(file, **{each.name: getattr(views, each.name) for each in fields(views)})


def case_figures(folder: Path, results: Sequence[Result]) -> list[Path]:
    """Draw every case of which views were kept; the files that were written."""
    written = []
    for case in dict.fromkeys(result.case for result in results):
        kept = case_folder(folder, case)
        fused = load_fused(kept, [result.model for result in results if result.case == case])
        if fused and _file_of(kept).exists():
            written.append(_case_figure(kept.with_name(f"{kept.name}.png"), str(case), load_inputs(kept), fused))
    return written


def _case_figure(path: Path, title: str, inputs: InputViews, fused: Mapping[str, FusedViews]) -> Path:
    """Every model's image, a close-up, its error on a common colour scale, and spectra."""
    best = min(fused, key=lambda name: style.overall_rmse(fused[name].error))
    columns: list[tuple[str, NDArray[np.uint8], NDArray[np.float32] | None]] = [
        ("HSI", inputs.hsi, None),
        ("MSI", inputs.msi, None),
        ("reference", inputs.reference, None),
        *((name, views.composite, views.error) for name, views in fused.items()),
    ]
    rows = math.ceil(len(columns) / MOST_PER_ROW)
    per_row = max(FEWEST_PER_ROW, math.ceil(len(columns) / rows))
    tall = SIDE * min(TALLEST_ASPECT, inputs.reference.shape[0] / inputs.reference.shape[1])
    row_height = TITLE + 2 * tall + SIDE + 3 * GAP
    width = 2 * MARGIN + per_row * (SIDE + GAP) + BAR
    height = HEADING + rows * row_height + TITLE + SPECTRUM_HEIGHT + HEADING + LEGEND
    figure = style.new_figure(width, height, DPI)
    heading: dict[str, Any] = {"fontsize": style.LARGE - 1, "fontweight": "bold", "va": "center"}
    figure.text(MARGIN / width, 1 - HEADING / 2 / height, title, **heading)
    colours = _common_colours(fused)
    close_up = _most_detailed_square(inputs.reference)

    def frames(left: float, top: float) -> list[style.Frame]:
        """Image, close-up and error map, one above the other."""
        tops = (top, tall), (top + tall + GAP, SIDE), (top + tall + SIDE + 2 * GAP, tall)
        return [(left / width, 1 - (start + size) / height, SIDE / width, size / height) for start, size in tops]

    for place, (name, picture, error) in enumerate(columns):
        row, column = divmod(place, per_row)
        whole, detail, below = frames(MARGIN + column * (SIDE + GAP), HEADING + row * row_height + TITLE)
        score = "" if error is None else style.rmse_text(error)
        axes = style.image_axes(figure, whole, name, score, bold=name == best)
        _draw_images(axes, style.image_axes(figure, detail), picture, inputs.reference.shape[:2], close_up)
        if name == "reference":
            style.mark_pixels(axes, inputs.pixels)
        if error is not None:
            style.draw_error_map(style.image_axes(figure, below), error, colours)
    left, bottom, _, size = frames(width - MARGIN - BAR + 0.1, HEADING + TITLE)[2]
    style.draw_error_bar(figure, colours, (left, bottom, BAR_WIDTH / width, size))
    room = 0.98 / len(inputs.pixels)
    bottom, size = (LEGEND + HEADING) / height, SPECTRUM_HEIGHT / height
    panels = [(0.04 + place * room, bottom, room - 0.045, size) for place in range(len(inputs.pixels))]
    spectra = {"reference": inputs.spectra} | {name: views.spectra for name, views in fused.items()}
    handles = style.draw_spectra(figure, panels, inputs.pixels, (inputs.positions, inputs.axis_name), spectra, best)
    _draw_legend(figure, handles, "lower center", 12)
    return style.save_png(figure, path)


def _draw_images(
    axes: Any, detail: Any, picture: NDArray[np.uint8], fine_size: tuple[int, ...], close_up: tuple[slice, slice]
) -> None:
    (height, width), (rows, columns) = fine_size, close_up
    for each in (axes, detail):
        each.imshow(picture, interpolation="nearest", aspect="auto", extent=(0, width, height, 0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    detail.set(xlim=(columns.start, columns.stop), ylim=(rows.stop, rows.start))
    detail.spines[:].set(color=CLOSE_UP_COLOUR, linewidth=1.5)
    size = columns.stop - columns.start, rows.stop - rows.start
    corner = columns.start, rows.start
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=CLOSE_UP_COLOUR, linewidth=1.2))


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


def _draw_legend(figure: Figure, handles: Mapping[str, Any], place: Any, columns: int) -> None:
    figure.legend(list(handles.values()), list(handles), loc=place, ncols=columns, fontsize=style.SMALL, frameon=False)


def chart_panels(results: Sequence[Result]) -> dict[tuple[str, str, str], list[Result]]:
    """Results by data set, SRF and condition, where there are several scales; imperfections only in tables.

    Of results both blind and oracle the blind ones are shown: the two lie so close that one hides the other.
    """
    panels: dict[tuple[str, str, str], list[Result]] = {}
    given = {result.knowledge for result in results}
    shown = next((each for each in (BLIND, ORACLE) if each in given), NOMINAL)
    for result in results:
        if result.knowledge != shown or result.case.condition in IMPERFECTIONS:
            continue
        panels.setdefault((result.case.dataset, result.case.srf, result.case.condition), []).append(result)
    return {key: group for key, group in panels.items() if len({result.case.scale for result in group}) > 1}


def scale_chart(path: Path, results: Sequence[Result], beside_paper: bool = False) -> Path | None:
    """Draw the PSNR of every model against the scale; None where nothing was measured at several scales."""
    panels = chart_panels(results)
    if not panels:
        return None
    across = min(PANELS_PER_ROW, len(panels))
    down = math.ceil(len(panels) / across)
    figure = style.new_figure(across * PANEL_WIDTH, down * PANEL_HEIGHT + LEGEND_HEIGHT, DPI, layout="constrained")
    dashes = ("-", *itertools.repeat("-.", 20))
    styles_in_turn = itertools.product(dashes, zip(style.COLOURS, style.MARKERS, strict=True))
    names = dict.fromkeys(result.model for result in results)
    styles = {
        name: {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.4, "markersize": 4.5}
        for name, (dash, (colour, marker)) in zip(names, styles_in_turn, strict=False)
    }
    measured: dict[str, Any] = {}
    printed: dict[str, Any] = {}
    for place, (key, group) in enumerate(panels.items()):
        axes: Any = figure.add_subplot(down, across, place + 1)
        scales = sorted({result.case.scale for result in group})
        if beside_paper and key[2] == CLEAN:
            printed |= _draw_printed(axes, key[0], scales)
        for column in columns_of(group):
            own = [each for each in group if each.model == column.model]
            means = [(x, mean_score((each for each in own if each.case.scale == x), "psnr_db")) for x in scales]
            if points := [(scale, spread.mean) for scale, spread in means if spread is not None]:
                (measured[column.label],) = axes.plot(*zip(*points, strict=True), **styles[column.model])
        axes.set_title(", ".join(dict.fromkeys(key)), fontsize=style.MEDIUM, loc="left")
        axes.set_xscale("log", base=2)
        axes.set_xticks(scales, [f"x{scale:g}" for scale in scales])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("scale", fontsize=style.SMALL)
        if place % across == 0:
            axes.set_ylabel("PSNR (dB), mean over scenes", fontsize=style.SMALL)
        style.clean_axes(axes)
    _draw_legend(figure, measured | printed, "outside lower center", 3 * across)
    return style.save_png(figure, path)


def _draw_printed(axes: Any, dataset: str, scales: Sequence[float]) -> dict[str, Any]:
    by_method: dict[str, list[tuple[float, float]]] = {}
    for each in printed_scores(dataset):
        if each.scale in scales:
            by_method.setdefault(each.method, []).append((each.scale, float(each.figures["psnr_db"].mean)))
    handles = {}
    for (method, points), marker in zip(by_method.items(), itertools.cycle(PRINTED_MARKERS)):
        line = {"color": PRINTED_COLOUR, "marker": marker, "markersize": 6, "linewidth": 0.8}
        (handles[f"{method}, as printed"],) = axes.plot(*zip(*sorted(points), strict=True), **line)
    return handles
