"""A training so small that a test can run it: two generated scenes, a network of a few hundred weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

EXPERIMENT = """
name = "tiny"
seed = 3

[network]
width = 6
spectral_blocks = 1
spatial_blocks = 1
decoder_hidden = [8]
feature_width = 6
msi_kernel = "own"
channels = { kind = "components", count = 4 }

[[scenes]]
source = "SCENES/train_*.npz"
use = "train"

[[scenes]]
source = "SCENES/test_*.npz"
use = "test"

[split]
patch_size = 16
stride = 8

[simulation]
scale = 4
srfs = "random"
msi_bands = 3

[optimiser]
learning_rate = 3e-3
clip_norm = 1.0

[length]
steps = 12

[loop]
batch_size = 2
ema = 0.9
workers = 0
log_every = 2
checkpoint_every = 4

[validation]
every = 6
"""


def smooth_scene(bands: int, size: int, seed: int) -> np.ndarray[Any, Any]:
    """(rows, columns, bands) uint16 of three materials that vary smoothly."""
    generator = np.random.default_rng(seed)
    grid = np.linspace(0, 1, size)
    share = np.stack(
        [np.sin(7 * grid * (k + 1) + generator.random())[:, None] * np.cos(9 * grid)[None, :] for k in range(3)],
        axis=-1,
    )
    spectra = generator.random((3, bands)).cumsum(axis=1)
    return (1000 + 3000 * np.clip(share @ spectra / spectra.max(), -0.3, 1)).astype(np.uint16)


def write_scenes(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, bands, seed in (("train_a", 9, 0), ("train_b", 14, 1), ("test_a", 9, 2)):
        np.savez(
            folder / f"{name}.npz",
            cube=smooth_scene(bands, 32, seed),
            wavelength_nm=np.linspace(430, 900, bands),
            sensor=f"sensor of {bands} bands",
        )


def write_experiment(folder: Path) -> Path:
    write_scenes(folder / "scenes")
    path = folder / "tiny.toml"
    path.write_text(EXPERIMENT.replace("SCENES", str(folder / "scenes")))
    return path
