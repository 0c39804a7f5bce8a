"""The PSNR of every competitor against the scale: one panel for each data set, response and condition that has several scales.

Where everybody was scored blind and as an oracle, the blind ones are shown: the two lie so close that one hides the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from hyperfuse.cubes.publishing import published
from hyperfuse.reporting.paper_tables.printed import PrintedScores, printed_scores
from hyperfuse.scoring.competitors import BLIND, ORACLE
from hyperfuse.scoring.results import Result
from hyperfuse.scoring.statistics import entrants, scored_by_entrant, spread

# Okabe and Ito's colours, told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PRINTED_COLOUR = "#999999"
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW = 5.2, 3.9, 3
LEGEND_HEIGHT = 0.9
SMALL, MEDIUM = 8.5, 10.0

Panel = tuple[str, str, str]


def chart_panels(results: Sequence[Result]) -> dict[Panel, list[Result]]:
    """Results by data set, response and condition, where there are several scales."""
    panels: dict[Panel, list[Result]] = {}
    shown = BLIND if any(result.knowledge == BLIND for result in results) else ORACLE
    for result in (result for result in results if result.knowledge == shown):
        panels.setdefault((result.case.dataset, result.case.response, result.case.condition), []).append(result)
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
        [handles[name] for name in ordered], ordered, loc="outside lower center", ncols=3 * across, fontsize=SMALL, frameon=False
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
        for name, (colour, marker), dash in zip(names, looks, itertools.chain(dashes, itertools.repeat("-.")), strict=False)
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
    axes.set_title(", ".join(dict.fromkeys(key)), fontsize=MEDIUM, loc="left")
    axes.set_xscale("log", base=2)
    axes.set_xticks(scales, [f"x{scale:g}" for scale in scales])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=SMALL)
    axes.set_xlabel("scale", fontsize=SMALL)
    if first:
        axes.set_ylabel("PSNR (dB), mean over scenes", fontsize=SMALL)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
