"""Pictures for a page that needs nothing but itself: PNG inside of the HTML.

Shapes: picture (y, x, 3) bytes, map (y, x).

Line charts as inline SVG: their colours are the page's own, so that they follow its light and its dark look.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from hyperfuse.metrics.pairing import Floats

WIDTH, HEIGHT = 420, 250
# To the left there is room for a tick of six characters beside the axis' name, to the right for half of one.
LEFT, RIGHT, TOP, BOTTOM = 66, 22, 12, 40
DASH = 24
MOST_DIGITS = 8


@dataclass(frozen=True, eq=False)
class Line:
    """`look` is a class of the page's style sheet; a line is interrupted where its heights are NaN."""

    name: str
    look: str
    along: Floats
    heights: Floats


def line_chart(lines: Sequence[Line], *, title: str, along: str, upwards: str, from_zero: bool = False) -> str:
    """A figure's chart. `title` is for those who cannot see it; `along` and `upwards` name the axes."""
    drawn = [line for line in lines if np.isfinite(line.heights).any()]
    if not drawn:
        return '<p class="absent">Nothing to draw.</p>'
    across = _limits([line.along for line in drawn], around_one=0.5)
    up = _limits([line.heights for line in drawn], from_zero=from_zero)
    columns, rows = _labelled_ticks(*across, whole=True), _labelled_ticks(*up)

    def x(value: float) -> float:
        return LEFT + (value - across[0]) / (across[1] - across[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - up[0]) / (up[1] - up[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
    ]
    for value, label in rows:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{label}</text>')
    for value, label in columns:
        parts.append(
            f'<text class="tick" x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>'
        )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(along)}</text>'
    )
    parts.append(
        f'<text class="axis" x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{escape(upwards)}</text>'
    )
    for line in drawn:
        path = _path([(x(a), y(h)) for a, h in zip(line.along, line.heights, strict=True)])
        parts.append(f'<path class="line {escape(line.look)}" d="{path}"/>')
    return "".join(parts) + "</svg>"


def legend(lines: Sequence[Line]) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 28 8" aria-hidden="true"><path class="line {escape(line.look)}" d="M1 4H27"/></svg>'
        f"{escape(line.name)}</li>"
        for line in lines
    )
    return f'<ul class="legend">{keys}</ul>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Straight pieces between known points; one that stands alone becomes a dash."""
    known = [False, *(bool(np.isfinite(up)) for _, up in points), False]
    words = []
    for (across, up), before, here, after in zip(points, known, known[1:], known[2:], strict=False):
        if here and not before and not after:
            words.append(f"M{across - DASH / 2:.1f} {up:.1f}h{DASH}")
        elif here:
            words.append(f"{'L' if before else 'M'}{across:.1f} {up:.1f}")
    return "".join(words)


def _limits(
    series: Sequence[Floats], *, from_zero: bool = False, around_one: float | None = None
) -> tuple[float, float]:
    """Of all values; about a single one there is a tenth of it, or `around_one`."""
    values = np.concatenate([each[np.isfinite(each)] for each in series])
    low, high = float(values.min()), float(values.max())
    low = min(0.0, low) if from_zero else low
    if high == low:
        room = around_one or abs(high) / 10 or 1.0
        return low - (0 if from_zero else room), high + room
    return low, high


def _labelled_ticks(low: float, high: float, *, whole: bool = False) -> list[tuple[float, str]]:
    """With as many digits as it takes to tell them apart; `whole` numbers where they are enough, as for bands."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(5, integer=whole, min_n_ticks=1 if whole else 2)
    ticks = [float(value) for value in locator.tick_values(low, high) if low <= value <= high]
    fewest = 2 if max(map(abs, ticks), default=0.0) >= 1e5 else 4
    for digits in range(fewest, MOST_DIGITS + 1):
        labels = [f"{value:.{digits}g}" for value in ticks]
        if len(set(labels)) == len(labels):
            break
    return list(zip(ticks, labels, strict=True))


Picture = NDArray[np.uint8]
COLOURS = "cividis"
NO_DATA = (216, 216, 216)
# The largest errors are few and would leave the rest of a map dark.
PERCENTILE = 99.0
LARGEST_SIDE = 900


@dataclass(frozen=True)
class MapPicture:
    picture: Picture
    highest: float
    """The value of the brightest colour; 0 is the darkest."""


def data_address(picture: Picture) -> str:
    """A picture as the address of itself."""
    from matplotlib.image import imsave

    contents = io.BytesIO()
    imsave(contents, np.ascontiguousarray(picture), format="png")
    return "data:image/png;base64," + base64.b64encode(contents.getvalue()).decode("ascii")


def map_picture(values: Floats) -> MapPicture:
    from matplotlib import colormaps

    values = thinned(values)
    known = np.isfinite(values)
    highest = float(np.percentile(values[known], PERCENTILE)) if known.any() else 0.0
    shares = np.clip(np.where(known, values, 0) / (highest or 1.0), 0, 1)
    picture: Picture = np.round(255 * colormaps[COLOURS](shares)[..., :3]).astype(np.uint8)
    picture[~known] = NO_DATA
    return MapPicture(picture, highest)


def colour_bar() -> Picture:
    """One row of pixels, from 0 to the highest."""
    from matplotlib import colormaps

    bar: Picture = np.round(255 * colormaps[COLOURS](np.linspace(0, 1, 256))[None, :, :3]).astype(np.uint8)
    return bar


def thinned(values: Floats) -> Floats:
    """Means of blocks, so that no side is longer than a page shows."""
    every = -(-max(values.shape) // LARGEST_SIDE)
    if every == 1:
        return values
    rows, columns = -(-values.shape[0] // every), -(-values.shape[1] // every)
    whole = np.full((rows * every, columns * every), np.nan)
    whole[: values.shape[0], : values.shape[1]] = values
    blocks = whole.reshape(rows, every, columns, every)
    known = np.isfinite(blocks).sum(axis=(1, 3))
    means: Floats = np.full(known.shape, np.nan)
    np.divide(np.nansum(blocks, axis=(1, 3)), known, out=means, where=known > 0)
    return means


def most_detailed(image: NDArray[np.float32], side: int) -> tuple[slice, slice]:
    """The square of this side with the strongest edges; image (bands, y, x)."""
    filled = np.nan_to_num(image.astype(np.float64))
    level = filled.std(axis=(1, 2), keepdims=True)
    rows, columns = np.gradient((filled / np.where(level > 0, level, 1)).mean(axis=0))
    edges = np.hypot(rows, columns)
    # A hole has edges, too, but shows nothing.
    edges[~np.isfinite(image).all(axis=0)] = 0
    return highest_square(np.minimum(edges, np.percentile(edges, PERCENTILE)), side)


def highest_square(values: Floats, side: int) -> tuple[slice, slice]:
    """The square of this side, or what the map has of it, with the highest mean."""
    height, width = values.shape
    tall, wide = min(side, height), min(side, width)
    means = uniform_filter(np.nan_to_num(values), (tall, wide), mode="constant")
    means = means[tall // 2 : height - (tall - 1) // 2, wide // 2 : width - (wide - 1) // 2]
    top, left = np.unravel_index(int(means.argmax()), means.shape)
    return slice(int(top), int(top) + tall), slice(int(left), int(left) + wide)
