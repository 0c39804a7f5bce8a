"""Synthetic scenes: dead-leaves layouts of mixed, textured random materials under uneven light, from a seed.

Dead leaves are shapes of all sizes that fall on top of each other, which gives the statistics of natural images. The
spectra resemble those of real materials at any wavelengths from 350 to 2550 nm; every material is a function of the
wavelength, so that the same draw gives the same material to any sensor. All spatial effects act on a few maps, one per
material; one matrix product then makes the bands.

Shapes: K materials, L leaves, C bands, H W rows and columns.

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
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import fft
from torch import Tensor

from hyperfuse.data.scenes import UNIT_QUANTILE, Scene
from hyperfuse.errors import BandError, OptionError

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
SpectraArray = NDArray[np.float64]
Feature = tuple[float, float, float]

SYNTHETIC = "synthetic"
USUAL_BANDS = (31, 64, 102, 145, 191)
# The layout is drawn this much finer than the image, which softens edges.
FINENESS = 2
LARGEST_SAMPLE = 60_000
USUAL_SIDE = 128
# No point of a leaf is further from its centre than this many radii.
FARTHEST_OUTLINE = 1.5
FEWEST_MATERIALS, MOST_MATERIALS = 8, 18
KNOWN_RANGE_NM = (350.0, 2550.0)
# The parts of the spectrum that sensors with up to this many bands cover, in nm, without the water vapour bands.
USUAL_RANGES_NM: dict[float, tuple[tuple[float, float], ...]] = {
    40: ((400.0, 700.0),),
    140: ((400.0, 1000.0),),
    np.inf: ((400.0, 1340.0), (1440.0, 1800.0), (1960.0, 2450.0)),
}
# Absorption bands: centre and width (one sigma) in nm, and depth.
LIQUID_WATER = ((970, 30, 0.12), (1190, 40, 0.25), (1450, 55, 1.0), (1940, 70, 1.5), (2600, 260, 1.8))
CELLULOSE = ((1730, 25, 0.15), (2100, 60, 0.35), (2310, 35, 0.3))
MINERAL = ((500, 40, 0.3), (900, 90, 0.3), (1410, 20, 0.2), (1910, 35, 0.4), (2205, 25, 0.35), (2340, 25, 0.3))
# Oxygen and water vapour between the sun and the sensor.
OXYGEN = ((687, 5, 0.15), (761, 6, 0.5))
VAPOUR = ((822, 12, 0.15), (940, 22, 0.6), (1130, 28, 0.8), (1380, 38, 3.0), (1870, 50, 3.5))
ATMOSPHERE = (*OXYGEN, *VAPOUR)


def synthetic_scene(seed: int | Sequence[int], wavelength_nm: ArrayLike, rows: int, columns: int) -> Tensor:
    """Draw a synthetic scene.

    Parameters
    ----------
    seed
        The same seed gives the same place at other wavelengths.
    wavelength_nm
        Wavelengths of the bands, 350 to 2550 nm, in any order.

    Returns
    -------
    (C, H, W) float32 in [0, 1].

    Examples
    --------
    >>> synthetic_scene(0, [450.0, 550.0, 650.0], rows=20, columns=30).shape
    torch.Size([3, 20, 30])
    """
    nm = np.atleast_1d(np.asarray(wavelength_nm, dtype=np.float64))
    low, high = KNOWN_RANGE_NM
    if nm.ndim != 1 or not nm.size or not (low <= nm.min() and nm.max() <= high):
        raise BandError("wavelengths of a synthetic scene", f"one or more from {low:g} to {high:g} nm", "choose others")
    if min(rows, columns) < 1:
        raise OptionError(f"a synthetic scene of {rows}x{columns} pixels", "at least one pixel")
    in_space, in_spectrum = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    materials = int(in_space.integers(FEWEST_MATERIALS, MOST_MATERIALS + 1))
    maps = _draw_maps(in_space, materials, rows, columns)
    reflectance = random_materials(in_spectrum, nm, materials)
    light, sky = random_light(in_spectrum, nm)
    mixing = np.concatenate([reflectance * light, reflectance * light * sky]).T.astype(np.float32)
    cube = torch.from_numpy(mixing) @ torch.from_numpy(maps.reshape(2 * materials, -1))
    sample = cube.flatten()[:: max(1, cube.numel() // LARGEST_SAMPLE)].numpy()
    unit = max(float(np.quantile(sample, UNIT_QUANTILE)), 1e-6)
    # Patches of a real scene seldom hold its brightest pixels.
    cube *= float(in_spectrum.uniform(0.6, 1.0)) / unit
    return cube.clamp_(0, 1).reshape(len(nm), rows, columns)


def usual_wavelengths(bands: int) -> NDArray[np.float64]:
    """Return typical wavelengths of a sensor with this many bands: evenly spaced but for the water vapour bands."""
    edges = np.array(next(ranges for most, ranges in USUAL_RANGES_NM.items() if bands <= most))
    covered = np.concatenate([[0.0], np.cumsum(edges[:, 1] - edges[:, 0])])
    gaps = edges[:, 0] - covered[:-1]
    along = np.linspace(0.0, covered[-1], bands)
    part = np.minimum(np.searchsorted(covered, along, side="right") - 1, len(edges) - 1)
    return np.asarray(along + gaps[part])


def synthetic_scenes(
    bands: Sequence[int] = USUAL_BANDS, scenes_per_sensor: int = 2, side: int = 192, seed: int = 0
) -> list[Scene]:
    """Make a few fixed square scenes of sensors with these numbers of bands, to try things out or to validate on.

    Examples
    --------
    >>> [scene.bands for scene in synthetic_scenes([31, 64], scenes_per_sensor=1, side=32)]
    [31, 64]
    """
    unit = np.iinfo(np.uint16).max
    scenes = []
    for count in bands:
        nm = usual_wavelengths(count)
        for number in range(scenes_per_sensor):
            cube = synthetic_scene((seed, count, number), nm, side, side)
            stored = (cube.numpy() * unit).round().astype(np.uint16)
            name, sensor = f"{SYNTHETIC}_{count}_{number + 1}", f"{SYNTHETIC} {count} bands"
            scenes.append(Scene(name, sensor, stored, float(unit), nm))
    return scenes


def _draw_maps(generator: np.random.Generator, materials: int, rows: int, columns: int) -> FloatArray:
    """(2 K, H, W): abundance of each material in sunlight, and in skylight alone."""
    style = random_style(generator)
    layout = random_layout(generator, style, rows, columns, FINENESS)
    mixtures_of_leaves = _leaf_mixtures(generator, len(layout.radius), materials)
    table = np.concatenate([mixtures_of_leaves, _leaf_light(generator, layout, style.relief)], axis=1)
    pixels = _per_pixel(table, layout.labels, rows, columns)
    mixtures, wavering = pixels[:materials], pixels[materials : 2 * materials]
    level, down, right, grain, sky = pixels[2 * materials :]
    grains, mixes, shades = (
        _fractal(generator, rows, columns, steepness) for steepness in (*generator.uniform(0.8, 1.7, 2), 2.0)
    )
    y, x = np.arange(rows, dtype=np.float32)[:, None] + 0.5, np.arange(columns, dtype=np.float32)[None, :] + 0.5
    slope = generator.normal(0, 0.12, 2).astype(np.float32)
    ramp = 1 + slope[0] * (2 * y / rows - 1) + slope[1] * (2 * x / columns - 1) + np.float32(0.06) * shades
    brightness = np.maximum((level + down * y + right * x) * (1 + grain * grains) * ramp, 0.01)
    lit = np.maximum(mixtures + wavering * mixes, 0) * brightness
    maps = np.concatenate([lit * (1 - sky), lit * sky])
    return _blurred(maps, generator.uniform(*style.softness))


def _leaf_mixtures(generator: np.random.Generator, leaves: int, materials: int) -> FloatArray:
    """(L, 2 K): the abundances of each leaf, and how they change with its texture."""
    common = generator.dirichlet(np.full(materials, 1.0))
    first, second = generator.choice(materials, (2, leaves), p=common)
    share = generator.beta(0.5, 2.0, leaves)
    waver = generator.beta(0.8, 4.0, leaves)
    table = np.zeros((leaves, 2 * materials))
    every = np.arange(leaves)
    table[every, first] = 1 - share
    table[every, second] += share
    table[every, materials + first] -= waver
    table[every, materials + second] += waver
    return table.astype(np.float32)


def _leaf_light(generator: np.random.Generator, layout: Layout, relief: float) -> FloatArray:
    """(L, 5): brightness at the image's corner, its slopes down and right, strength of the grain, share of skylight."""
    leaves = len(layout.radius)
    level = np.exp(generator.normal(0, 0.22, leaves))
    glint, shadow = generator.random((2, leaves))
    level = np.where(glint < 0.015, level * generator.uniform(1.5, 3, leaves), level)
    sky = np.where(shadow < 0.06, generator.uniform(0.5, 0.9, leaves), 0.0)
    level = np.where(sky > 0, level * 0.35, level)
    slopes = level[:, None] * generator.normal(0, relief, (leaves, 2)) / layout.radius[:, None]
    corner = level - np.sum(slopes * layout.centre, axis=1)
    grain = np.exp(generator.normal(np.log(0.1), 0.7, leaves))
    return np.column_stack([corner, slopes, grain, sky]).astype(np.float32)


def _per_pixel(table: FloatArray, labels: IntArray, rows: int, columns: int) -> FloatArray:
    """(L, N) at the leaf of every point of the finer grid -> (N, H, W), averaged over pixels."""
    points = table[labels.reshape(rows, FINENESS, columns, FINENESS).transpose(1, 3, 0, 2).reshape(FINENESS**2, -1)]
    total = points[0]
    for part in points[1:]:
        total += part
    total /= FINENESS**2
    return np.ascontiguousarray(total.T).reshape(-1, rows, columns)


def _fractal(generator: np.random.Generator, rows: int, columns: int, steepness: float) -> FloatArray:
    """(H, W), mean 0, variance 1: noise whose amplitude falls with frequency to the power of -steepness."""
    down, right = fft.fftfreq(rows)[:, None], fft.rfftfreq(columns)[None, :]
    squared = (down**2 + right**2).astype(np.float32)
    squared[0, 0] = np.inf
    noise = generator.standard_normal((2, *squared.shape), dtype=np.float32)
    field: FloatArray = fft.irfft2(
        (noise[0] + 1j * noise[1]) * squared ** np.float32(-steepness / 2), s=(rows, columns)
    )
    return field / max(float(field.std()), 1e-12)


def _blurred(maps: FloatArray, sigma: float) -> FloatArray:
    """Three-tap filters along both axes, repeated until the width is reached, with the edge pixel repeated."""
    times = int(np.ceil(sigma**2 / 0.5))
    side = np.float32(sigma**2 / (2 * times))
    for _ in range(times):
        for axis in (1, 2):
            # As a flux between neighbours, so that the sum is preserved at the edges.
            steps = np.moveaxis(side * np.diff(maps, axis=axis), axis, 0)
            along = np.moveaxis(maps, axis, 0)
            along[:-1] += steps
            along[1:] -= steps
    return maps


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
