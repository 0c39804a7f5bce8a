"""Synthetic scenes: dead-leaves layouts of mixed, textured random materials under uneven light, from a seed.

All spatial effects act on a few maps, one per material; one matrix product then makes the bands.
Shapes: K materials, L leaves, C bands, H W rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import fft
from torch import Tensor

from hyperfuse.data.scenes import UNIT_QUANTILE, Scene
from hyperfuse.data.synthetic_parts import Layout, random_layout, random_light, random_materials, random_style
from hyperfuse.errors import BandError, OptionError

FloatArray = NDArray[np.float32]

SYNTHETIC = "synthetic"
USUAL_BANDS = (31, 64, 102, 145, 191)
# The layout is drawn this much finer than the image, which softens edges.
FINENESS = 2
LARGEST_SAMPLE = 60_000
FEWEST_MATERIALS, MOST_MATERIALS = 8, 18
KNOWN_RANGE_NM = (350.0, 2550.0)
# The parts of the spectrum that sensors with up to this many bands cover, in nm, without the water vapour bands.
USUAL_RANGES_NM: dict[float, tuple[tuple[float, float], ...]] = {
    40: ((400.0, 700.0),),
    140: ((400.0, 1000.0),),
    np.inf: ((400.0, 1340.0), (1440.0, 1800.0), (1960.0, 2450.0)),
}


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


def _per_pixel(table: FloatArray, labels: NDArray[np.int32], rows: int, columns: int) -> FloatArray:
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
