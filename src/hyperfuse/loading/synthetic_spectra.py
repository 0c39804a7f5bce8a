"""Random spectra that could be those of real materials, at any wavelengths from 350 to 2550 nm.

Shapes: K materials, C bands. Every function of a material is one of wavelength in nm, so that the same draw gives the same material
to any sensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Feature = tuple[float, float, float]
"""Centre and width (one sigma) in nm, and depth, of an absorption band."""

LIQUID_WATER = ((970, 30, 0.12), (1190, 40, 0.25), (1450, 55, 1.0), (1940, 70, 1.5), (2600, 260, 1.8))
CELLULOSE = ((1730, 25, 0.15), (2100, 60, 0.35), (2310, 35, 0.3))
MINERAL = ((500, 40, 0.3), (900, 90, 0.3), (1410, 20, 0.2), (1910, 35, 0.4), (2205, 25, 0.35), (2340, 25, 0.3))
# Oxygen and water vapour between the sun and the sensor.
ATMOSPHERE = ((687, 5, 0.15), (761, 6, 0.5), (822, 12, 0.15), (940, 22, 0.6), (1130, 28, 0.8), (1380, 38, 3.0), (1870, 50, 3.5))


def random_materials(generator: np.random.Generator, wavelength_nm: FloatArray, count: int) -> FloatArray:
    """(K, C) reflectances between 0 and 1."""
    # No two places have the same mixture of kinds: there are deserts, meadows and toy shops.
    shares = generator.dirichlet([4 * share for _, share in MATERIALS])
    kinds = generator.choice(len(MATERIALS), size=count, p=shares)
    spectra = np.stack([MATERIALS[kind][0](generator, wavelength_nm) for kind in kinds])
    shapes = 0.22 * _smooth_curves(generator, wavelength_nm, count) + 0.012 * _fine_curves(generator, wavelength_nm, count)
    return np.asarray(np.clip(spectra * np.exp(shapes), 0.002, 1.0))


def random_light(generator: np.random.Generator, wavelength_nm: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Two (C,) spectra: what turns reflectance into the sensor's values, and the light of the sky as a part of the sun's.

    Some scenes are reflectance already; in the others the sun's light, the atmosphere and the detector still show.
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


def _leaf(generator: np.random.Generator, nm: FloatArray) -> FloatArray:
    """Green vegetation: dark in the visible but for green, a red edge, a bright near infrared that liquid water cuts into."""
    visible = generator.uniform(0.02, 0.07)
    green = generator.uniform(0.02, 0.1) * _bump(nm, generator.uniform(545, 558), generator.uniform(22, 35))
    edge = _step(nm, generator.uniform(700, 728), generator.uniform(9, 18))
    infrared = generator.uniform(0.25, 0.6)
    water = np.exp(-generator.uniform(0.3, 1.6) * _absorption(nm, LIQUID_WATER))
    return visible + green + (infrared - visible) * edge * water


def _straw(generator: np.random.Generator, nm: FloatArray) -> FloatArray:
    """Dry plants and wood."""
    rise = 1 - np.exp(-(nm - 330) / generator.uniform(200, 500))
    return generator.uniform(0.25, 0.6) * rise * np.exp(-generator.uniform(0.3, 1.2) * _absorption(nm, CELLULOSE))


def _soil(generator: np.random.Generator, nm: FloatArray) -> FloatArray:
    """Soil, rock, brick: a rise towards the infrared with features of iron, hydroxyl and moisture."""
    rise = 1 - np.exp(-(nm - 300) / generator.uniform(250, 900))
    strengths = generator.uniform(0, 1.2, len(MINERAL))
    features = [(centre, width, depth * strength) for (centre, width, depth), strength in zip(MINERAL, strengths, strict=True)]
    wet = np.exp(-generator.uniform(0, 0.4) * _absorption(nm, LIQUID_WATER))
    return generator.uniform(0.15, 0.7) * rise * np.exp(-_absorption(nm, features)) * wet


def _dye(generator: np.random.Generator, nm: FloatArray) -> FloatArray:
    """Paint, plastic, cloth: edges, bumps and pigments in the visible, then bright, with a few hydrocarbon features."""
    base = generator.uniform(0.01, 0.12)
    edge = _step(nm, generator.uniform(420, 760), generator.uniform(10, 35)) * generator.uniform(0.2, 0.8)
    colour = _bump(nm, generator.uniform(400, 680), generator.uniform(20, 60)) * generator.uniform(0.0, 0.6)
    pigments = [(generator.uniform(400, 750), generator.uniform(12, 40), generator.uniform(0, 0.6)) for _ in range(2)]
    features = [*pigments, (1720, 20, generator.uniform(0, 0.5)), (2310, 25, generator.uniform(0, 0.6))]
    return np.asarray((base + edge + colour) * np.exp(-_absorption(nm, features)))


def _grey(generator: np.random.Generator, nm: FloatArray) -> FloatArray:
    """Asphalt, concrete, metal, cloud: almost flat, from almost black to almost white."""
    return np.asarray(np.exp(generator.uniform(np.log(0.04), np.log(0.9))) * (nm / 1000) ** generator.uniform(-0.2, 0.35))


def _water(generator: np.random.Generator, nm: FloatArray) -> FloatArray:
    """Water and deep shadow: dark, and black in the infrared."""
    turbid = generator.uniform(0.0, 0.08) * _bump(nm, generator.uniform(480, 600), 70)
    return 0.004 + generator.uniform(0.01, 0.06) * np.exp(-np.maximum(0, nm - 400) / generator.uniform(80, 250)) + turbid


def _anything(generator: np.random.Generator, nm: FloatArray) -> FloatArray:
    """Any smooth curve: what no list of materials foresees."""
    curve = _smooth_curves(generator, nm, 1)[0]
    return np.asarray(1 / (1 + np.exp(-1.2 * curve - generator.uniform(-2.5, 0.5))))


MATERIALS: tuple[tuple[Callable[[np.random.Generator, FloatArray], FloatArray], float], ...] = (
    (_leaf, 0.22),
    (_straw, 0.08),
    (_soil, 0.17),
    (_dye, 0.24),
    (_grey, 0.16),
    (_water, 0.07),
    (_anything, 0.06),
)


def _smooth_curves(generator: np.random.Generator, nm: FloatArray, count: int, bumps: int = 8) -> FloatArray:
    """(count, C): sums of a few broad bumps, of roughly unit size."""
    shape = (count, bumps, 1)
    centres = generator.uniform(300, 2600, shape)
    widths = np.exp(generator.uniform(np.log(60), np.log(500), shape))
    return np.asarray(np.sum(generator.standard_normal(shape) * _bump(nm, centres, widths), axis=1))


def _fine_curves(generator: np.random.Generator, nm: FloatArray, count: int) -> FloatArray:
    """(count, C): sums of waves 25 to 100 nm long, of roughly unit size."""
    shape = (count, 6, 1)
    lengths = generator.uniform(25, 100, shape)
    waves = np.sin(2 * np.pi * nm / lengths + generator.uniform(0, 2 * np.pi, shape))
    return np.asarray(np.sum(waves, axis=1) / np.sqrt(3))


def _absorption(nm: FloatArray, features: Sequence[Feature]) -> FloatArray:
    centres, widths, depths = np.array(features, dtype=np.float64).T[:, :, None]
    return np.asarray(np.sum(depths * _bump(nm, centres, widths), axis=0))


def _bump(nm: FloatArray, centre: float | FloatArray, width: float | FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * ((nm - centre) / width) ** 2))


def _step(nm: FloatArray, edge: float, width: float) -> FloatArray:
    return np.asarray(0.5 + 0.5 * np.tanh((nm - edge) / (2 * width)))
