"""The PSNR of every competitor against the scale: one panel for each data set, response and condition that has several
scales.

Where everybody was scored blind and as an oracle, the blind ones are shown: the two lie so close that one hides the
other.

What pictures of a case need, kept while it is run: fused cubes themselves would fill the disk.

Of every competitor a colour composite, the map of its error and the spectra of a few pixels. Shapes: H W fine pixels, C
bands, P pixels.

One picture of a case: every competitor's image, a close-up, its error on a common colour scale, and spectra.

Drawn with matplotlib's object interface alone, so that it neither needs nor changes pyplot's global state. Lengths are
inches.
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
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from hyperfuse.benchmarking.cases import CaseName, CasePair
from hyperfuse.benchmarking.models import BLIND, ORACLE
from hyperfuse.benchmarking.paper import PrintedScores, printed_scores
from hyperfuse.benchmarking.results import Result
from hyperfuse.benchmarking.summary import entrants, scored_by_entrant, spread
from hyperfuse.io.atomic import published
from hyperfuse.io.cube import make_cube
from hyperfuse.metrics.pairing import Floats
from hyperfuse.reporting.colour import colour_composite, error_map, stretch_limits
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
from hyperfuse.reporting.spectra import broken_line, distinct_pixels, spectral_axis

FOLDER = "pictures"
INPUTS = "inputs"
SPECTRA = 4


@dataclass(frozen=True, eq=False)
class InputViews:
    """Of the pair and its reference."""

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
    words = re.sub(r"[^A-Za-z0-9.+]+", "_", f"{case.dataset} {case}")
    return folder / FOLDER / f"{words[:80]}_{zlib.crc32(repr(case).encode()):08x}"


def keep_views(folder: Path, pair: CasePair, competitor: str, fused: NDArray[np.float32]) -> None:
    """Into the folder of the case; what is common to all competitors is made once."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = folder / f"{INPUTS}.npz"
    if not inputs.exists():
        _save(inputs, _input_views(pair))
    pixels = load_inputs(folder).pixels
    cube = make_cube(np.clip(fused, 0.0, 1.0), wavelength_nm=pair.reference["wavelength"].values)
    views = FusedViews(
        colour_composite(cube, stretch_limits(pair.reference)),
        error_map(cube, _bare(pair.reference)).astype(np.float32),
        fused[:, pixels[:, 0], pixels[:, 1]].T.astype(np.float32),
    )
    _save(_fused_file(folder, competitor), views)


def load_inputs(folder: Path) -> InputViews:
    with np.load(folder / f"{INPUTS}.npz") as stored:
        return InputViews(**{name: stored[name] for name in stored} | {"axis_name": str(stored["axis_name"])})


def load_fused(folder: Path, competitors: Iterable[str]) -> dict[str, FusedViews]:
    """Of those that were kept, in the order asked for."""
    found = {}
    for competitor in competitors:
        path = _fused_file(folder, competitor)
        if path.exists():
            with np.load(path) as stored:
                found[competitor] = FusedViews(**{name: stored[name] for name in stored})
    return found


def _fused_file(folder: Path, competitor: str) -> Path:
    """Users call their weights as they like: names that are no file names, or the inputs', get another one."""
    words = re.sub(r"[^\w.+ -]+", "_", competitor)
    return folder / (
        f"{words}.npz" if words == competitor != INPUTS else f"{words}_{zlib.crc32(competitor.encode()):08x}.npz"
    )


def _input_views(pair: CasePair) -> InputViews:
    reference = pair.reference
    pixels = np.array(distinct_pixels(reference, SPECTRA))
    positions, axis_name = spectral_axis(reference)
    return InputViews(
        colour_composite(pair.hsi, stretch_limits(reference)),
        colour_composite(pair.msi),
        colour_composite(reference),
        pixels,
        reference.values[:, pixels[:, 0], pixels[:, 1]].T.astype(np.float32),
        np.asarray(positions, dtype=np.float64),
        axis_name,
    )


def _bare(cube: xr.DataArray) -> xr.DataArray:
    """Without a place, which a fused image of plain arrays has not."""
    return make_cube(cube.values, wavelength_nm=cube["wavelength"].values)


def _save(path: Path, views: Any) -> None:
    with published(path, overwrite=True) as target, target.open("wb") as file:
        np.savez_compressed(file, **{each.name: getattr(views, each.name) for each in fields(views)})


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


def _frames(
    left: float, top: float, aspect: float, width: float, height: float
) -> list[tuple[float, float, float, float]]:
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
    axes.set_title(
        shortened(name, room, MEDIUM), fontsize=MEDIUM, loc="left", pad=3, fontweight="bold" if bold else "normal"
    )
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
        box = {
            "boxstyle": "circle,pad=0.15",
            "facecolor": "black",
            "edgecolor": "white",
            "linewidth": 0.6,
            "alpha": 0.85,
        }
        axes.annotate(
            str(number), (column + 0.5, row + 0.5), ha="center", va="center", fontsize=6.5, color="white", bbox=box
        )


def _common_colours(fused: Mapping[str, FusedViews]) -> Normalize:
    """One scale for all, from 0 to where most of them have their largest errors: the worst would leave the others dark."""
    known = [views.error[np.isfinite(views.error)] for views in fused.values()]
    largest = [float(np.percentile(error, ERROR_PERCENTILE)) for error in known if error.size]
    return Normalize(0, (float(np.median(largest)) if largest else 0.0) or 1.0)


def _overall(error: NDArray[Any]) -> float:
    known = error[np.isfinite(error)]
    return float(np.sqrt(np.square(known.astype(np.float64)).mean())) if known.size else math.inf


# Okabe and Ito's colours, told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PRINTED_COLOUR = "#999999"
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW = 5.2, 3.9, 3
LEGEND_HEIGHT = 0.9
SMALL_SCALE_CHART, MEDIUM_SCALE_CHART = 8.5, 10.0

Panel = tuple[str, str, str]


def chart_panels(results: Sequence[Result]) -> dict[Panel, list[Result]]:
    """Results by data set, response and condition, where there are several scales."""
    panels: dict[Panel, list[Result]] = {}
    shown = BLIND if any(result.knowledge == BLIND for result in results) else ORACLE
    for result in (result for result in results if result.knowledge == shown):
        panels.setdefault((result.case.dataset, result.case.srf, result.case.condition), []).append(result)
    return {key: found for key, found in panels.items() if len({result.case.scale for result in found}) > 1}


def scale_chart(path: Path, results: Sequence[Result], beside_paper: bool = False) -> Path | None:
    """Writes a PNG, whole or not at all; None where nothing was measured at several scales."""
    panels = chart_panels(results)
    if not panels:
        return None
    across = min(PANELS_PER_ROW, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(across * PANEL_WIDTH, down * PANEL_HEIGHT + LEGEND_HEIGHT), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    handles: dict[str, Any] = {}
    styles = _styles(results)
    for place, (key, found) in enumerate(panels.items()):
        axes = figure.add_subplot(down, across, place + 1)
        if beside_paper and key[2] == "clean":
            handles |= _draw_printed(axes, printed_scores(key[0]), {result.case.scale for result in found})
        handles |= _draw_measured(axes, found, styles)
        _dress(axes, key, sorted({result.case.scale for result in found}), first=place % across == 0)
    ordered = sorted(handles, key=lambda name: name.endswith("printed"))
    figure.legend(
        [handles[name] for name in ordered],
        ordered,
        loc="outside lower center",
        ncols=3 * across,
        fontsize=SMALL_SCALE_CHART,
        frameon=False,
    )
    with published(path, overwrite=True) as target:
        figure.savefig(target, format="png")
    return path


def _styles(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(result.competitor for result in results)
    looks = itertools.cycle(zip(COLOURS, MARKERS, strict=True))
    dashes = itertools.chain.from_iterable(itertools.repeat(dash, len(COLOURS)) for dash in ("-", "-."))
    return {
        name: {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.4, "markersize": 4.5}
        for name, (colour, marker), dash in zip(
            names, looks, itertools.chain(dashes, itertools.repeat("-.")), strict=False
        )
    }


def _draw_measured(axes: Any, results: Sequence[Result], styles: dict[str, dict[str, Any]]) -> dict[str, Any]:
    handles = {}
    table = scored_by_entrant(results)
    for entrant in entrants(results):
        points = []
        for scale in sorted({case.scale for case in table[entrant]}):
            of_scale = [result for case, result in table[entrant].items() if case.scale == scale]
            found = spread(of_scale, lambda result: result.psnr_db)
            if found is not None:
                points.append((scale, found.mean))
        if not points:
            continue
        (handles[entrant.label],) = axes.plot(*zip(*points, strict=True), **styles[entrant.competitor])
    return handles


def _draw_printed(axes: Any, printed: Sequence[PrintedScores], scales: set[float]) -> dict[str, Any]:
    handles = {}
    for method, marker in zip(dict.fromkeys(each.method for each in printed), itertools.cycle("1234+x.")):
        points = sorted((each.scale, float(each.figures["psnr_db"].mean)) for each in printed if each.method == method)
        points = [point for point in points if point[0] in scales]
        if points:
            (handles[f"{method}, as printed"],) = axes.plot(
                *zip(*points, strict=True), color=PRINTED_COLOUR, marker=marker, markersize=6, linewidth=0.8
            )
    return handles


def _dress(axes: Any, key: Panel, scales: Sequence[float], *, first: bool) -> None:
    axes.set_title(", ".join(dict.fromkeys(key)), fontsize=MEDIUM_SCALE_CHART, loc="left")
    axes.set_xscale("log", base=2)
    axes.set_xticks(scales, [f"x{scale:g}" for scale in scales])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=SMALL_SCALE_CHART)
    axes.set_xlabel("scale", fontsize=SMALL_SCALE_CHART)
    if first:
        axes.set_ylabel("PSNR (dB), mean over scenes", fontsize=SMALL_SCALE_CHART)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
