"""Small scenes of three sensors, and settings that vary everything at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from hyperfuse.data.observing import PairBatch
from hyperfuse.data.sampler import Bucket, make_buckets
from hyperfuse.data.scenes import Scene
from hyperfuse.data.settings import SimulationSettings
from hyperfuse.data.splits import SceneWindow

EVERYTHING: dict[str, Any] = {
    "scale": [2.0, 5.0],
    "psf_fwhm": [0.6, 1.4],
    "shift": 1.5,
    "srfs": ["random", "rgb", "Sentinel-2A"],
    "snr_hsi_db": [25.0, 45.0],
    "snr_msi_db": 40.0,
    "noise_free": 0.3,
    "keep_bands": {"probability": 0.5, "least": 4},
}


def settings_of(**values: Any) -> SimulationSettings:
    return SimulationSettings.model_validate(values)


def tiny_scene(
    sensor: str, bands: int, wavelength_nm: np.ndarray | None = None, size: int = 40, name: str = "", seed: int = 0
) -> Scene:
    """Smooth in space and spectrum, 16 bit."""
    noise = np.random.default_rng([seed, bands]).standard_normal((bands, size, size))
    smooth = gaussian_filter(noise, (1.5, 1.0, 1.0))
    scaled = (smooth - smooth.min()) / np.ptp(smooth)
    return Scene(name or sensor, sensor, (4000 * scaled).astype(np.uint16), 3900.0, wavelength_nm)


def tiny_scenes() -> list[Scene]:
    return [
        tiny_scene("visible", 12, np.linspace(420.0, 700.0, 12), name="visible 1"),
        tiny_scene("visible", 12, np.linspace(420.0, 700.0, 12), name="visible 2", seed=1),
        tiny_scene("wide", 40, np.linspace(400.0, 2400.0, 40)),
        tiny_scene("unknown", 9),
    ]


def tiny_buckets(size: int = 16) -> list[Bucket]:
    scenes = tiny_scenes()
    corners = [(0, 0), (5, 9), (40 - size, 40 - size)]
    return make_buckets(
        scenes, [SceneWindow(scene, *corner, size, size) for scene in range(len(scenes)) for corner in corners]
    )


def require_same(first: PairBatch, second: PairBatch) -> None:
    """Bit for bit."""
    for name, value in vars(first).items():
        other = getattr(second, name)
        if hasattr(value, "numpy"):
            np.testing.assert_array_equal(value.numpy(), other.numpy(), err_msg=name)
            assert value.dtype == other.dtype
        else:
            assert value == other, name
