"""Simulated pairs of training and of test scenes, with and without noise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.physics.observation import known_observation
from hyperfuse.physics.srf import find_srf

DATA = Path(os.environ.get("HYPERFUSE_DATA", Path(__file__).parents[3] / "shared" / "data"))
TEST_CASES = [
    ("jasperridge", "rgb"),
    ("jasperridge", "rgb+nir"),
    ("enmap_potsdam_c", "rgb+nir"),
    ("abu_urban_4", "rgb"),
    ("abu_urban_4", "rgb+nir+swir"),
    ("himspec_lung_j7", "rgb"),
]
NOISES: list[tuple[float, float] | None] = [None, (30.0, 40.0)]


@dataclass(frozen=True)
class Case:
    hsi: Tensor
    msi: Tensor
    reference: Tensor


def scene(name: str, folder: str, scale: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values (C, H, W), cut to whole coarse pixels, clipped at 0, divided by their 99.95th percentile and clipped to 1;
    and wavelengths.
    """
    with np.load(DATA / folder / f"{name}.npz") as stored:
        cube, wavelength_nm = (
            np.clip(stored["cube"].astype(np.float64), 0, None),
            stored["wavelength_nm"].astype(np.float64),
        )
    if len(wavelength_nm) != cube.shape[2]:
        wavelength_nm = np.linspace(400, 2500, cube.shape[2])
    height, width = (size // scale * scale for size in cube.shape[:2])
    cube = np.clip(cube[:height, :width] / np.percentile(cube, 99.95), 0, 1)
    return np.ascontiguousarray(cube.transpose(2, 0, 1)), wavelength_nm


def make_case(name: str, srf: str, scale: int, noise_db: tuple[float, float] | None, folder: str = "train") -> Case:
    """Wald's protocol."""
    values, wavelength_nm = scene(name, folder, scale)
    reference = torch.from_numpy(values)
    height, width = values.shape[1:]
    weights = find_srf(srf, wavelength_nm, None, np.ones(len(wavelength_nm), dtype=bool), skip_uncovered=True).weights
    matrix = torch.from_numpy(weights)
    observation = known_observation(matrix, float(scale))
    hsi = observation.spatial_operator((height, width), (height // scale, width // scale)).apply(reference)
    msi = torch.einsum("mc,cyx->myx", matrix, reference)
    if noise_db is not None:
        hsi, msi = (
            _noisy(image, level, seed) for seed, (image, level) in enumerate(zip((hsi, msi), noise_db, strict=True))
        )
    return Case(hsi.float(), msi.float(), reference.float())


def _noisy(image: Tensor, snr_db: float, seed: int) -> Tensor:
    level = image.square().mean((1, 2), keepdim=True).sqrt() * 10 ** (-snr_db / 20)
    return image + level * torch.randn(image.shape, generator=torch.Generator().manual_seed(seed), dtype=image.dtype)
