"""Parts of synthetic scenes: dead-leaves layouts and random spectra of materials.

Dead leaves are shapes of all sizes that fall on top of each other, which gives the statistics of natural images. The
spectra resemble those of real materials at any wavelengths from 350 to 2550 nm; every material is a function of the
wavelength, so that the same draw gives the same material to any sensor.

Shapes: H W rows and columns of the label map, L leaves, K materials, C bands.

References
----------
A. B. Lee, D. Mumford and J. Huang, "Occlusion models for natural images: a statistical study of a scale-invariant dead
leaves model", International Journal of Computer Vision 41, 2001.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

USUAL_SIDE = 128
# No point of a leaf is further from its centre than this many radii.
FARTHEST_OUTLINE = 1.5


@dataclass(frozen=True)
class LayoutStyle:
    """A kind of place. Lengths are in pixels of the image."""

    grounds: float  # number of the largest leaves, below all others, per 128 x 128 pixels
    leaves: float  # number of leaves on top of them
    smallest: float
    largest: float
    exponent: float  # radii r are drawn with density r^-exponent
    shapes: tuple[float, float, float, float]  # fractions of ellipses, rectangles, polygons, blobs
    turned: float  # standard deviation of the angle to the common direction of fields and streets, in radians
    threads: float  # number of thin structures (roads, wires, hairs), per 128 pixels of side
    striped: float  # fraction of rectangles with stripes of two materials
    relief: float  # variation of the light across a leaf
    softness: tuple[float, float]  # range of the blur of edges (sigma)


def random_style(generator: np.random.Generator) -> LayoutStyle:
    """Draw a style: fields, town, nature or objects on a table."""
    fields = LayoutStyle(16, 90, 1.0, 45.0, 2.0, (0.1, 0.75, 0.05, 0.1), 0.1, 1.5, 0.2, 0.05, (0.2, 0.6))
    town = LayoutStyle(16, 240, 0.7, 26.0, 2.2, (0.2, 0.65, 0.1, 0.05), 0.15, 3.0, 0.1, 0.15, (0.2, 0.6))
    nature = LayoutStyle(12, 240, 0.7, 40.0, 2.3, (0.3, 0.0, 0.1, 0.6), np.pi, 0.7, 0.0, 0.2, (0.2, 0.7))
    table = LayoutStyle(6, 22, 2.5, 55.0, 1.4, (0.5, 0.2, 0.2, 0.1), np.pi, 1.0, 0.1, 0.5, (0.5, 1.3))
    return (fields, town, nature, table)[int(generator.choice(4, p=(0.25, 0.3, 0.25, 0.2)))]


@dataclass(frozen=True)
class Layout:
    """Which leaf every point shows, and the leaves' centres and radii in pixels of the image."""

    labels: IntArray  # (H, W), on a grid `fineness` times as fine as the image
    centre: FloatArray  # (L, 2), row and column
    radius: FloatArray  # (L,)


def random_layout(generator: np.random.Generator, style: LayoutStyle, rows: int, columns: int, fineness: int) -> Layout:
    """Draw a dead-leaves layout."""
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
    narrow: float  # width over length
    angle: float
    shape: int
    outline: NDArray[np.float64]  # six normal numbers that vary the outline
    is_thread: bool


def _random_leaves(generator: np.random.Generator, style: LayoutStyle, rows: int, columns: int) -> list[_Leaf]:
    """From bottom to top."""
    side = max(rows, columns)
    images = rows * columns / USUAL_SIDE**2
    grounds = math.ceil(style.grounds * images)
    count = grounds + math.ceil(style.leaves * images)
    threads = generator.poisson(style.threads * side / USUAL_SIDE)
    every = count + threads
    power = 1 - style.exponent
    low, high = style.smallest**power, style.largest**power
    radius = (low + generator.random(count - grounds) * (high - low)) ** (1 / power)
    # Small leaves would mostly be hidden if the larger ones did not tend to lie below.
    radius = radius[np.argsort(-radius * np.exp(generator.normal(0, 0.6, count - grounds)))]
    below, thin = style.largest * generator.uniform(0.6, 1.2, grounds), side * generator.uniform(0.1, 0.8, threads)
    radius = np.concatenate([below, radius, thin])
    row, column = generator.uniform(-0.1, 1.1, (2, every)) * [[rows], [columns]]
    narrow = np.concatenate(
        [generator.uniform(0.3, 1.0, count), generator.uniform(0.35, 1.6, threads) / radius[count:]]
    )
    angle = (
        generator.uniform(0, np.pi)
        + generator.normal(0, style.turned, every)
        + np.pi / 2 * generator.integers(0, 2, every)
    )
    shape = [*generator.choice(len(INSIDE), count, p=style.shapes).tolist(), *[RECTANGLE] * threads]
    outline = generator.standard_normal((every, 6))
    return [
        _Leaf(row[i], column[i], radius[i], narrow[i], angle[i], shape[i], outline[i], is_thread=i >= count)
        for i in range(every)
    ]


def _window(leaf: _Leaf, shape: tuple[int, ...], fineness: int) -> tuple[slice, slice] | None:
    """The part of the grid that a leaf can touch."""
    reach = leaf.radius * FARTHEST_OUTLINE
    rows, columns = (
        slice(max(0, int((middle - reach) * fineness)), min(length, int((middle + reach) * fineness) + 2))
        for middle, length in zip((leaf.row, leaf.column), shape, strict=True)
    )
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def _coordinates(leaf: _Leaf, window: tuple[slice, slice], fineness: int) -> tuple[FloatArray, FloatArray]:
    """Coordinates of the points of a window along and across a leaf."""
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
    return inside & (along * along + across * across < (1.4 * leaf.radius) ** 2)


def _in_blob(along: FloatArray, across: FloatArray, leaf: _Leaf) -> BoolArray:
    """The radius varies with the second and third harmonic of the angle, computed without the angle itself."""
    length = np.sqrt(along * along + across * across) + np.float32(1e-6)
    cos1, sin1 = along / length, across / length
    cos2, sin2 = cos1 * cos1 - sin1 * sin1, 2 * cos1 * sin1
    cos3, sin3 = cos1 * cos2 - sin1 * sin2, sin1 * cos2 + cos1 * sin2
    weights = (np.array([0.14, 0.14, 0.1, 0.1]) * leaf.outline[:4]).astype(np.float32)
    waves = weights[0] * cos2 + weights[1] * sin2 + weights[2] * cos3 + weights[3] * sin3
    return np.asarray(length < leaf.radius * np.clip(1 + waves, 0.4, FARTHEST_OUTLINE))


INSIDE = (_in_ellipse, _in_rectangle, _in_polygon, _in_blob)
RECTANGLE = INSIDE.index(_in_rectangle)


SpectraArray = NDArray[np.float64]
Feature = tuple[float, float, float]
# Absorption bands: centre and width (one sigma) in nm, and depth.
LIQUID_WATER = ((970, 30, 0.12), (1190, 40, 0.25), (1450, 55, 1.0), (1940, 70, 1.5), (2600, 260, 1.8))
CELLULOSE = ((1730, 25, 0.15), (2100, 60, 0.35), (2310, 35, 0.3))
MINERAL = ((500, 40, 0.3), (900, 90, 0.3), (1410, 20, 0.2), (1910, 35, 0.4), (2205, 25, 0.35), (2340, 25, 0.3))
# Oxygen and water vapour between the sun and the sensor.
OXYGEN = ((687, 5, 0.15), (761, 6, 0.5))
VAPOUR = ((822, 12, 0.15), (940, 22, 0.6), (1130, 28, 0.8), (1380, 38, 3.0), (1870, 50, 3.5))
ATMOSPHERE = (*OXYGEN, *VAPOUR)


def random_materials(generator: np.random.Generator, wavelength_nm: SpectraArray, count: int) -> SpectraArray:
    """Draw (K, C) reflectances between 0 and 1."""
    # The mixture of kinds differs between scenes: there are deserts, meadows and toy shops.
    shares = generator.dirichlet([4 * share for _, share in MATERIALS])
    kinds = generator.choice(len(MATERIALS), size=count, p=shares)
    spectra = np.stack([MATERIALS[kind][0](generator, wavelength_nm) for kind in kinds])
    shapes = 0.22 * _smooth_curves(generator, wavelength_nm, count)
    shapes = shapes + 0.012 * _fine_curves(generator, wavelength_nm, count)
    return np.asarray(np.clip(spectra * np.exp(shapes), 0.002, 1.0))


def random_light(generator: np.random.Generator, wavelength_nm: SpectraArray) -> tuple[SpectraArray, SpectraArray]:
    """Draw two (C,) spectra: the factor from reflectance to the sensor's values, and skylight relative to sunlight.

    Some scenes are reflectance already; the others include the sun's light, the atmosphere and the detector.
    """
    sky = np.clip((wavelength_nm / 450) ** -generator.uniform(1.0, 3.0), 0.02, 1.2)
    if generator.random() < 0.4:
        return np.ones(wavelength_nm.shape), sky
    sun = wavelength_nm**-5 / np.expm1(14388e3 / 5800 / wavelength_nm)
    ripples = generator.uniform(0, 0.08) * _fine_curves(generator, wavelength_nm, 1)[0]
    detector = np.exp(0.4 * _smooth_curves(generator, wavelength_nm, 1)[0] + ripples)
    amount = generator.uniform(0.3, 1.2)
    mixed = sun ** generator.uniform(0.3, 1.0) * detector * np.exp(-amount * _absorption(wavelength_nm, ATMOSPHERE))
    return mixed / mixed.max(), sky


def _leaf(generator: np.random.Generator, nm: SpectraArray) -> SpectraArray:
    """Green vegetation: dark in the visible but for green, a red edge, a bright near infrared with water absorption."""
    visible = generator.uniform(0.02, 0.07)
    green = generator.uniform(0.02, 0.1) * _bump(nm, generator.uniform(545, 558), generator.uniform(22, 35))
    edge = _step(nm, generator.uniform(700, 728), generator.uniform(9, 18))
    infrared = generator.uniform(0.25, 0.6)
    water = np.exp(-generator.uniform(0.3, 1.6) * _absorption(nm, LIQUID_WATER))
    return visible + green + (infrared - visible) * edge * water


def _straw(generator: np.random.Generator, nm: SpectraArray) -> SpectraArray:
    """Dry plants and wood."""
    rise = 1 - np.exp(-(nm - 330) / generator.uniform(200, 500))
    return generator.uniform(0.25, 0.6) * rise * np.exp(-generator.uniform(0.3, 1.2) * _absorption(nm, CELLULOSE))


def _soil(generator: np.random.Generator, nm: SpectraArray) -> SpectraArray:
    """Soil, rock, brick: a rise towards the infrared with features of iron, hydroxyl and moisture."""
    rise = 1 - np.exp(-(nm - 300) / generator.uniform(250, 900))
    strengths = generator.uniform(0, 1.2, len(MINERAL))
    features = [(nm0, width, depth * part) for (nm0, width, depth), part in zip(MINERAL, strengths, strict=True)]
    wet = np.exp(-generator.uniform(0, 0.4) * _absorption(nm, LIQUID_WATER))
    return generator.uniform(0.15, 0.7) * rise * np.exp(-_absorption(nm, features)) * wet


def _dye(generator: np.random.Generator, nm: SpectraArray) -> SpectraArray:
    """Paint, plastic, cloth: edges, bumps and pigments in the visible, then bright, with a few hydrocarbon features."""
    base = generator.uniform(0.01, 0.12)
    edge = _step(nm, generator.uniform(420, 760), generator.uniform(10, 35)) * generator.uniform(0.2, 0.8)
    colour = _bump(nm, generator.uniform(400, 680), generator.uniform(20, 60)) * generator.uniform(0.0, 0.6)
    pigments = [(generator.uniform(400, 750), generator.uniform(12, 40), generator.uniform(0, 0.6)) for _ in range(2)]
    features = [*pigments, (1720, 20, generator.uniform(0, 0.5)), (2310, 25, generator.uniform(0, 0.6))]
    return np.asarray((base + edge + colour) * np.exp(-_absorption(nm, features)))


def _grey(generator: np.random.Generator, nm: SpectraArray) -> SpectraArray:
    """Asphalt, concrete, metal, cloud: almost flat, from almost black to almost white."""
    level = np.exp(generator.uniform(np.log(0.04), np.log(0.9)))
    return np.asarray(level * (nm / 1000) ** generator.uniform(-0.2, 0.35))


def _water(generator: np.random.Generator, nm: SpectraArray) -> SpectraArray:
    """Water and deep shadow: dark, and black in the infrared."""
    turbid = generator.uniform(0.0, 0.08) * _bump(nm, generator.uniform(480, 600), 70)
    blue = generator.uniform(0.01, 0.06) * np.exp(-np.maximum(0, nm - 400) / generator.uniform(80, 250))
    return 0.004 + blue + turbid


def _anything(generator: np.random.Generator, nm: SpectraArray) -> SpectraArray:
    """Any smooth curve, for materials that are not in the list."""
    curve = _smooth_curves(generator, nm, 1)[0]
    return np.asarray(1 / (1 + np.exp(-1.2 * curve - generator.uniform(-2.5, 0.5))))


MATERIALS: tuple[tuple[Callable[[np.random.Generator, SpectraArray], SpectraArray], float], ...] = (
    (_leaf, 0.22),
    (_straw, 0.08),
    (_soil, 0.17),
    (_dye, 0.24),
    (_grey, 0.16),
    (_water, 0.07),
    (_anything, 0.06),
)


def _smooth_curves(generator: np.random.Generator, nm: SpectraArray, count: int, bumps: int = 8) -> SpectraArray:
    """(count, C): sums of a few broad bumps, of about unit amplitude."""
    shape = (count, bumps, 1)
    centres = generator.uniform(300, 2600, shape)
    widths = np.exp(generator.uniform(np.log(60), np.log(500), shape))
    return np.asarray(np.sum(generator.standard_normal(shape) * _bump(nm, centres, widths), axis=1))


def _fine_curves(generator: np.random.Generator, nm: SpectraArray, count: int) -> SpectraArray:
    """(count, C): sums of waves 25 to 100 nm long, of about unit amplitude."""
    shape = (count, 6, 1)
    lengths = generator.uniform(25, 100, shape)
    waves = np.sin(2 * np.pi * nm / lengths + generator.uniform(0, 2 * np.pi, shape))
    return np.asarray(np.sum(waves, axis=1) / np.sqrt(3))


def _absorption(nm: SpectraArray, features: Sequence[Feature]) -> SpectraArray:
    centres, widths, depths = np.array(features, dtype=np.float64).T[:, :, None]
    return np.asarray(np.sum(depths * _bump(nm, centres, widths), axis=0))


def _bump(nm: SpectraArray, centre: float | SpectraArray, width: float | SpectraArray) -> SpectraArray:
    return np.asarray(np.exp(-0.5 * ((nm - centre) / width) ** 2))


def _step(nm: SpectraArray, edge: float, width: float) -> SpectraArray:
    return np.asarray(0.5 + 0.5 * np.tanh((nm - edge) / (2 * width)))
