"""Figures of a benchmark: one per pictured case, and PSNR against scale.

What the figure of a case needs is kept while the benchmark runs: the fused cubes themselves would fill the disk.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from hyperfuse.benchmarking.cases import CLEAN, CasePair
from hyperfuse.benchmarking.paper import printed_scores
from hyperfuse.benchmarking.results import BLIND, NOMINAL, ORACLE, CaseName, Result, columns_of, mean_score
from hyperfuse.io.atomic import published
from hyperfuse.physics.imperfections import IMPERFECTIONS
from hyperfuse.reporting import style
from hyperfuse.reporting.figures import FusedViews, InputViews, fusion_figure, view_fused, view_inputs

PICTURES, INPUTS = "pictures", "inputs"
# Inches.
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW, LEGEND_HEIGHT = 5.2, 3.9, 3, 0.9
PRINTED_COLOUR, PRINTED_MARKERS = "#999999", "1234+x."


def case_folder(folder: Path, case: CaseName) -> Path:
    """Where the views of a case are kept."""
    readable = re.sub(r"[^A-Za-z0-9.+]+", "_", f"{case.dataset} {case}")
    return folder / PICTURES / f"{readable[:80]}_{zlib.crc32(repr(case).encode()):08x}"


def keep_views(folder: Path, pair: CasePair, model: str, fused: NDArray[np.float32]) -> None:
    """Save what a figure shows of a fused image; what all models share is saved once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not _file_of(folder).exists():
        _save(_file_of(folder), view_inputs(pair.hsi, pair.msi, pair.reference))
    shown = pair.reference.copy(data=np.clip(fused, 0.0, 1.0))
    _save(_file_of(folder, model), view_fused(shown, pair.reference, load_inputs(folder).pixels))


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
    """The file of the inputs, or of a model; a name that no file can have, or that of the inputs, is changed."""
    if model is None:
        return folder / f"{INPUTS}.npz"
    usable = re.sub(r"[^\w.+ -]+", "_", model)
    unchanged = usable == model != INPUTS
    return folder / (f"{usable}.npz" if unchanged else f"{usable}_{zlib.crc32(model.encode()):08x}.npz")


def _save(path: Path, views: InputViews | FusedViews) -> None:
    with published(path, overwrite=True) as target, target.open("wb") as file:
        np.savez_compressed(file, **vars(views))


def case_figures(folder: Path, results: Sequence[Result]) -> list[Path]:
    """Draw every case of which views were kept; the files that were written."""
    written = []
    for case in dict.fromkeys(result.case for result in results):
        kept = case_folder(folder, case)
        fused = load_fused(kept, [result.model for result in results if result.case == case])
        if fused and _file_of(kept).exists():
            written.append(fusion_figure(kept.with_name(f"{kept.name}.png"), str(case), load_inputs(kept), fused))
    return written


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
    figure = style.new_figure(across * PANEL_WIDTH, down * PANEL_HEIGHT + LEGEND_HEIGHT, layout="constrained")
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
    style.draw_legend(figure, measured | printed, "outside lower center", 3 * across)
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
