"""A picture of how an HSI lies on an MSI: arrows over the MSI in grey, from where its georeference puts it to where it
looks.

The paper's figure 6: the channels of each kernel as points of a plane, coloured by their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.fusion.registration_report import RegistrationReport
from hyperfuse.io.atomic import published, check_writable
from hyperfuse.models.analysis import KernelMap

SUFFIXES = (".png", ".svg", ".pdf")


def refuse_unwritable_figure(path: Path, *, overwrite: bool) -> None:
    """Complain before the maps are made, not after."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"figure {path}", f"a name that ends in {', '.join(SUFFIXES)}")
    check_writable(path, overwrite=overwrite)


def draw_kernel_maps(maps: Sequence[KernelMap], path: str | Path, projection: str) -> None:
    """Write one panel for each kernel; the suffix of `path` chooses the format. `projection` names how the plane was
    found.
    """
    from matplotlib.figure import Figure

    path = Path(path)
    refuse_unwritable_figure(path, overwrite=True)
    figure = Figure(figsize=(4.2 * len(maps), 4.2), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for panel, kernel in zip(panels, maps, strict=True):
        x, y = kernel.points[:, 0].tolist(), kernel.points[:, 1].tolist()
        panel.plot(x, y, color="0.8", linewidth=0.8, zorder=1)
        points = panel.scatter(x, y, c=range(len(x)), cmap="viridis", s=18, zorder=2)
        panel.set_title(f"{kernel.title}\nsmoothness {kernel.smoothness:.3f}")
        panel.set_xlabel(f"{projection} 1")
        panel.set_ylabel(f"{projection} 2")
    figure.colorbar(points, ax=panels.tolist(), label="channel index")
    with published(path, overwrite=True) as target:
        figure.savefig(target, dpi=150)


Floats = NDArray[np.float64]
DOTS_PER_INCH = 120
LARGEST_PICTURE = 900
WIDEST, TALLEST = 9.0, 9.0
ARROWS = 14  # along the longer side
COLOURS = "viridis"
GREY_PERCENTILES = (2.0, 98.0)
# Coloured arrows and black marks show on all greys above this.
DARKEST_GREY = 0.4
# A colour bar that spans less than this, in fine pixels, would show noise as a pattern.
SMALLEST_RANGE = 0.1
# The longest arrow fills its cell where it is at least this long, in fine pixels: offsets of nearly nothing look like
# it.
SMALLEST_FULL_LENGTH = 0.5
ROUND_LENGTHS = (1.0, 2.0, 5.0)
SMALL, MEDIUM, LARGE = 8.5, 10.0, 13.0


def offset_figure(path: Path, report: RegistrationReport, title: str) -> Path:
    """Write the picture as a PNG, whole or not at all, replacing one that is there."""
    _, height, width = report.pair.fine_shape
    shrink = min(WIDEST / width, TALLEST / height)
    size = max(3.5, width * shrink), max(2.0, height * shrink)
    figure = Figure(figsize=(size[0] + 2.1, size[1] + 1.5), dpi=DOTS_PER_INCH, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(
        _grey_picture(report), cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0), interpolation="nearest"
    )
    axes.set_facecolor("#d8d8d8")
    _draw_windows(axes, report)
    arrows = _draw_arrows(axes, report)
    _draw_colour_bar(figure, axes, arrows, report)
    axes.set(xlim=(0, width), ylim=(height, 0), xlabel="fine pixels", ylabel="fine pixels")
    axes.tick_params(labelsize=SMALL, length=2)
    axes.set_title(_described(report), fontsize=MEDIUM, loc="left")
    figure.suptitle(title, fontsize=LARGE, fontweight="bold", x=0.02, ha="left")
    with published(Path(path), overwrite=True) as target:
        figure.savefig(target, format="png")
    return Path(path)


def _grey_picture(report: RegistrationReport) -> Floats:
    """The mean of the MSI's bands, of every n-th pixel, from dark to bright; NaN where there is no data."""
    source = report.pair.msi_source
    every = max(1, -(-max(source.shape[1:]) // LARGEST_PICTURE))
    picture: Floats = source.thinned(every).mean(axis=0).astype(np.float64)
    seen = picture[np.isfinite(picture)]
    low, high = np.percentile(seen, GREY_PERCENTILES) if seen.size else (0.0, 1.0)
    shown = np.clip((picture - low) / (high - low if high > low else 1.0), 0, 1)
    return DARKEST_GREY + (1 - DARKEST_GREY) * shown


def _draw_windows(axes: Any, report: RegistrationReport) -> None:
    """Where offsets were measured, and where that was of no use."""
    field = report.field
    for used, marker, label in ((True, "o", "windows followed"), (False, "x", "windows left out")):
        places = [window.place for window, each in zip(field.windows, field.used, strict=True) if each == used]
        if places:
            rows, columns = np.array(places).T + 0.5
            colour = {"facecolors": "none", "edgecolors": "black"} if used else {"color": "#c1121f"}
            axes.scatter(columns, rows, s=14, marker=marker, linewidths=0.9, label=label, zorder=3, **colour)
    if field.windows:
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.07), ncols=2, fontsize=SMALL, frameon=False)


def _draw_arrows(axes: Any, report: RegistrationReport) -> Any:
    _, height, width = report.pair.fine_shape
    spacing = max(height, width) / ARROWS
    rows, columns = (
        (np.arange(max(1, round(size / spacing))) + 0.5) * size / max(1, round(size / spacing))
        for size in (height, width)
    )
    y, x = np.meshgrid(rows, columns, indexing="ij")
    down, right = report.field.at(y - 0.5, x - 0.5)
    length = np.hypot(down, right)
    stretch, shown = arrow_stretch(float(length.max()), spacing)
    low, high = float(length.min()), float(length.max())
    if high - low < SMALLEST_RANGE:
        low, high = max(0.0, (low + high - SMALLEST_RANGE) / 2), (low + high + SMALLEST_RANGE) / 2
    arrows = axes.quiver(
        x, y, right * stretch, down * stretch, length, cmap=COLOURS, norm=Normalize(low, high), angles="xy", scale_units="xy",
        scale=1, width=0.004, pivot="mid", edgecolor="black", linewidth=0.4, zorder=4,
    )  # fmt: skip
    axes.quiverkey(
        arrows,
        0.86,
        -0.1,
        shown * stretch,
        f"{shown:g} fine pixels",
        labelpos="E",
        coordinates="axes",
        fontproperties={"size": SMALL},
    )
    return arrows


def arrow_stretch(longest: float, spacing: float) -> tuple[float, float]:
    """How many times as long as they are offsets are drawn, all in fine pixels, and which round length to show as a
    key.
    """
    full = max(longest, SMALLEST_FULL_LENGTH)
    return 0.9 * spacing / full, _round_length(full)


def _round_length(longest: float) -> float:
    """1, 2 or 5 times a power of ten, not longer than the longest arrow."""
    power = 10.0 ** np.floor(np.log10(longest))
    return float(max(factor * power for factor in ROUND_LENGTHS if factor * power <= max(longest, power)))


def _draw_colour_bar(figure: Figure, axes: Any, arrows: Any, report: RegistrationReport) -> None:
    bar = figure.colorbar(arrows, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label("offset, fine pixels", fontsize=MEDIUM)
    bar.ax.tick_params(labelsize=SMALL, length=2)
    if report.metres is not None:
        metres = float(np.sqrt(report.metres[0] * report.metres[1]))

        def in_metres(pixels: Any) -> Any:
            return pixels * metres

        def in_pixels(length: Any) -> Any:
            return length / metres

        bar.ax.yaxis.set_ticks_position("left")
        bar.ax.yaxis.set_label_position("left")
        other = bar.ax.secondary_yaxis("right", functions=(in_metres, in_pixels))
        other.set_ylabel("offset, metres", fontsize=MEDIUM)
        other.tick_params(labelsize=SMALL, length=2)


def _described(report: RegistrationReport) -> str:
    field, whole = report.field, report.whole
    words = (
        f"whole scene {whole.offset[0]:+.2f} {whole.offset[1]:+.2f} (down, right), confidence {whole.confidence:.2f}"
    )
    if not any(field.used):
        return f"{words}; no local offsets"
    return f"{words}; local: varies by {field.variation:.2f}, at most {field.largest:.2f}, confidence {field.confidence:.2f}"
