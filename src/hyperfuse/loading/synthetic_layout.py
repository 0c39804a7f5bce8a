"""Dead leaves: shapes of all sizes that fall on top of each other, which is what makes the statistics of natural images.

Shapes of arrays: H W rows and columns of the label map.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

USUAL_SIDE = 128
FARTHEST_OUTLINE = 1.5
"""No point of a leaf is further from its centre than so many radii."""


@dataclass(frozen=True)
class LayoutStyle:
    """What kind of place it is. Lengths are in pixels of the image."""

    grounds: float
    """How many leaves of the largest kind lie below all others, per 128 x 128 pixels."""
    leaves: float
    """How many leaves lie on them."""
    smallest: float
    largest: float
    exponent: float
    """Sizes r are drawn with density r^-exponent."""
    shapes: tuple[float, float, float, float]
    """Shares of discs and ellipses, rectangles, polygons, blobs."""
    turned: float
    """How far, in radians, leaves are turned against the common direction of fields and streets."""
    threads: float
    """How many thin structures (roads, wires, hairs), per 128 pixels of side."""
    striped: float
    """The share of rectangles in stripes of two materials."""
    relief: float
    """How unevenly the light falls on each leaf by itself."""
    softness: tuple[float, float]
    """From which to which width (sigma) edges are blurred."""


def random_style(generator: np.random.Generator) -> LayoutStyle:
    """Fields, town, nature or things on a table."""
    fields = LayoutStyle(16, 90, 1.0, 45.0, 2.0, (0.1, 0.75, 0.05, 0.1), 0.1, 1.5, 0.2, 0.05, (0.2, 0.6))
    town = LayoutStyle(16, 240, 0.7, 26.0, 2.2, (0.2, 0.65, 0.1, 0.05), 0.15, 3.0, 0.1, 0.15, (0.2, 0.6))
    nature = LayoutStyle(12, 240, 0.7, 40.0, 2.3, (0.3, 0.0, 0.1, 0.6), np.pi, 0.7, 0.0, 0.2, (0.2, 0.7))
    table = LayoutStyle(6, 22, 2.5, 55.0, 1.4, (0.5, 0.2, 0.2, 0.1), np.pi, 1.0, 0.1, 0.5, (0.5, 1.3))
    return (fields, town, nature, table)[int(generator.choice(4, p=(0.25, 0.3, 0.25, 0.2)))]


@dataclass(frozen=True)
class Layout:
    """Which leaf every point shows, and where the leaves are: L of them, centres and radii in pixels of the image."""

    labels: IntArray
    """(H, W), on a grid `fineness` times as fine as the image."""
    centre: FloatArray
    """(L, 2), row and column."""
    radius: FloatArray
    """(L,)"""


def random_layout(generator: np.random.Generator, style: LayoutStyle, rows: int, columns: int, fineness: int) -> Layout:
    leaves = _random_leaves(generator, style, rows, columns)
    striped = (generator.random(len(leaves)) < style.striped).tolist()
    labels = np.zeros((rows * fineness, columns * fineness), np.int32)
    for number, (leaf, stripes) in enumerate(zip(leaves, striped, strict=True), start=1):
        window = _window(leaf, labels.shape, fineness)
        if window is None:
            continue
        along, across = _coordinates(leaf, window, fineness)
        inside = INSIDE[leaf.shape](along, across, leaf)
        label: Any = number
        if stripes and leaf.shape == RECTANGLE and not leaf.is_thread:
            odd = np.floor(along / np.float32(max(2.0, leaf.radius * 0.3))).astype(np.int32) % 2
            label = number + odd * np.int32(len(leaves))
        np.copyto(labels[window], label, where=inside)
    # Leaf 0 is the ground below all others; after all leaves come their second stripes.
    centres = [(leaf.row, leaf.column) for leaf in leaves]
    radii = [leaf.radius for leaf in leaves]
    return Layout(
        labels,
        np.array([(rows / 2, columns / 2), *centres, *centres], np.float32),
        np.array([max(rows, columns), *radii, *radii], np.float32),
    )


@dataclass(frozen=True)
class _Leaf:
    row: float
    column: float
    radius: float
    narrow: float
    """How much shorter it is across than along."""
    angle: float
    shape: int
    outline: NDArray[np.float64]
    """Six numbers around 0 that make it unlike others of its shape."""
    is_thread: bool


def _random_leaves(generator: np.random.Generator, style: LayoutStyle, rows: int, columns: int) -> list[_Leaf]:
    """From the lowest to the topmost."""
    side = max(rows, columns)
    images = rows * columns / USUAL_SIDE**2
    grounds = math.ceil(style.grounds * images)
    count = grounds + math.ceil(style.leaves * images)
    threads = generator.poisson(style.threads * side / USUAL_SIDE)
    every = count + threads
    radius = _power_law(generator, count - grounds, style)
    # Small leaves would mostly be hidden: the larger ones tend to lie below.
    radius = radius[np.argsort(-radius * np.exp(generator.normal(0, 0.6, count - grounds)))]
    below, thin = style.largest * generator.uniform(0.6, 1.2, grounds), side * generator.uniform(0.1, 0.8, threads)
    radius = np.concatenate([below, radius, thin])
    row, column = generator.uniform(-0.1, 1.1, (2, every)) * [[rows], [columns]]
    narrow = np.concatenate([generator.uniform(0.3, 1.0, count), generator.uniform(0.35, 1.6, threads) / radius[count:]])
    angle = generator.uniform(0, np.pi) + generator.normal(0, style.turned, every) + np.pi / 2 * generator.integers(0, 2, every)
    shape = [*generator.choice(len(INSIDE), count, p=style.shapes).tolist(), *[RECTANGLE] * threads]
    outline = generator.standard_normal((every, 6))
    return [
        _Leaf(row[i], column[i], radius[i], narrow[i], angle[i], shape[i], outline[i], is_thread=i >= count) for i in range(every)
    ]


def _power_law(generator: np.random.Generator, count: int, style: LayoutStyle) -> NDArray[np.float64]:
    power = 1 - style.exponent
    low, high = style.smallest**power, style.largest**power
    radii: NDArray[np.float64] = (low + generator.random(count) * (high - low)) ** (1 / power)
    return radii


def _window(leaf: _Leaf, shape: tuple[int, ...], fineness: int) -> tuple[slice, slice] | None:
    """The part of the grid that a leaf can touch."""
    reach = leaf.radius * FARTHEST_OUTLINE
    starts, stops = [], []
    for middle, length in zip((leaf.row, leaf.column), shape, strict=True):
        starts.append(max(0, int((middle - reach) * fineness)))
        stops.append(min(length, int((middle + reach) * fineness) + 2))
    if starts[0] >= stops[0] or starts[1] >= stops[1]:
        return None
    return slice(starts[0], stops[0]), slice(starts[1], stops[1])


def _coordinates(leaf: _Leaf, window: tuple[slice, slice], fineness: int) -> tuple[FloatArray, FloatArray]:
    """Every point of a window as seen from a leaf: along it and across it."""
    down, right = (np.arange(part.start, part.stop, dtype=np.float32) for part in window)
    down = (down + np.float32(0.5)) / np.float32(fineness) - np.float32(leaf.row)
    right = (right + np.float32(0.5)) / np.float32(fineness) - np.float32(leaf.column)
    cosine, sine = np.float32(np.cos(leaf.angle)), np.float32(np.sin(leaf.angle))
    stretch = np.float32(1 / leaf.narrow)
    along = (cosine * right)[None, :] + (sine * down)[:, None]
    across = (-sine * stretch * right)[None, :] + (cosine * stretch * down)[:, None]
    return along, across


def _in_ellipse(along: FloatArray, across: FloatArray, leaf: _Leaf) -> BoolArray:
    return np.asarray(along * along + across * across < leaf.radius**2)


def _in_rectangle(along: FloatArray, across: FloatArray, leaf: _Leaf) -> BoolArray:
    return np.asarray((np.abs(along) < leaf.radius) & (np.abs(across) < leaf.radius))


def _in_polygon(along: FloatArray, across: FloatArray, leaf: _Leaf) -> BoolArray:
    inside = np.ones(along.shape, dtype=bool)
    for edge in range(5):
        turn = edge * 2 * np.pi / 5 + 0.3 * leaf.outline[edge]
        inside &= np.float32(np.cos(turn)) * along + np.float32(np.sin(turn)) * across < 0.7 * leaf.radius
    return inside & _in_ellipse(along, across, replace(leaf, radius=1.4 * leaf.radius))


def _in_blob(along: FloatArray, across: FloatArray, leaf: _Leaf) -> BoolArray:
    """The radius changes with the angle in waves of two and three to the round, written without the angle itself."""
    length = np.sqrt(along * along + across * across) + np.float32(1e-6)
    cos1, sin1 = along / length, across / length
    cos2, sin2 = cos1 * cos1 - sin1 * sin1, 2 * cos1 * sin1
    cos3, sin3 = cos1 * cos2 - sin1 * sin2, sin1 * cos2 + cos1 * sin2
    weights = (np.array([0.14, 0.14, 0.1, 0.1]) * leaf.outline[:4]).astype(np.float32)
    waves = weights[0] * cos2 + weights[1] * sin2 + weights[2] * cos3 + weights[3] * sin3
    return np.asarray(length < leaf.radius * np.clip(1 + waves, 0.4, FARTHEST_OUTLINE))


INSIDE: tuple[Callable[[FloatArray, FloatArray, _Leaf], BoolArray], ...] = (_in_ellipse, _in_rectangle, _in_polygon, _in_blob)
RECTANGLE = INSIDE.index(_in_rectangle)
