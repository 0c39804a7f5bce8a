"""Synthetic scenes as a training uses them: buckets without end, and a few fixed scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.loading.buckets import Bucket, synthetic_bucket
from hyperfuse.loading.scene import Scene
from hyperfuse.loading.synthetic_scene import synthetic_scene

SYNTHETIC = "synthetic"
USUAL_BANDS = (31, 64, 102, 145, 191)
SCENE_SIDE = 192
SCENES_PER_SENSOR = 2
# Which part of the spectrum sensors with so many bands look at, in nm, the bands in water vapour left out.
VISIBLE = ((400.0, 700.0),)
VISIBLE_TO_NEAR_INFRARED = ((400.0, 1000.0),)
WHOLE_RANGE = ((400.0, 1340.0), (1440.0, 1800.0), (1960.0, 2450.0))
MOST_BANDS_IN_THE_VISIBLE = 40
MOST_BANDS_TO_NEAR_INFRARED = 140


@dataclass(frozen=True, eq=False)
class SyntheticPatches:
    """From a key of whole numbers, such as (seed, draw, slot), to a patch of its own; can be sent to another process."""

    wavelength_nm: NDArray[np.float64]
    size: int

    def __call__(self, key: tuple[int, ...]) -> Tensor:
        return synthetic_scene(key, self.wavelength_nm, self.size, self.size)


def usual_wavelengths(bands: int) -> NDArray[np.float64]:
    """Where the bands of a sensor with so many of them usually lie, evenly spaced but for the gaps of the atmosphere."""
    parts: tuple[tuple[float, float], ...] = VISIBLE
    if bands > MOST_BANDS_IN_THE_VISIBLE:
        parts = VISIBLE_TO_NEAR_INFRARED
    if bands > MOST_BANDS_TO_NEAR_INFRARED:
        parts = WHOLE_RANGE
    if bands == 1:
        return np.array([parts[0][0]])
    edges = np.array(parts)
    covered = np.concatenate([[0.0], np.cumsum(edges[:, 1] - edges[:, 0])])
    gaps = edges[:, 0] - covered[:-1]
    along = np.linspace(0.0, covered[-1], bands)
    part = np.minimum(np.searchsorted(covered, along, side="right") - 1, len(parts) - 1)
    return np.asarray(along + gaps[part])


def synthetic_buckets(bands: Sequence[int], size: int) -> list[Bucket]:
    """A bucket without end for each number of bands; every patch is drawn anew."""
    buckets = []
    for count in bands:
        wavelength_nm = usual_wavelengths(count)
        name = f"{SYNTHETIC}, {count} bands"
        buckets.append(synthetic_bucket(name, SyntheticPatches(wavelength_nm, size), size, wavelength_nm))
    return buckets


def synthetic_scenes(
    bands: Sequence[int] = USUAL_BANDS, scenes_per_sensor: int = SCENES_PER_SENSOR, side: int = SCENE_SIDE, seed: int = 0
) -> list[Scene]:
    """Some scenes to keep: to try things out without data, or to validate on."""
    scenes = []
    for count in bands:
        wavelength_nm = usual_wavelengths(count)
        for number in range(scenes_per_sensor):
            cube = synthetic_scene((seed, count, number), wavelength_nm, side, side)
            stored = (cube.numpy() * np.iinfo(np.uint16).max).round().astype(np.uint16)
            name = f"{SYNTHETIC}_{count}_{number + 1}"
            unit = float(np.iinfo(np.uint16).max)
            scenes.append(Scene(name, f"{SYNTHETIC} {count} bands", stored, unit, wavelength_nm))
    return scenes
