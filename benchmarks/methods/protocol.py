"""The protocol of the benchmark: which scenes, how they are observed, how a fused image is scored.

Wald's: Gaussian point spread with a full width at half maximum of one coarse pixel, grids centre-aligned. Before simulation a
scene is clipped at 0, divided by its 99.95th percentile and clipped to 1, and cropped to a multiple of the scale. Scores: pooled
PSNR with peak 1 of the image clipped to [0, 1], and the spectral angle in degrees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.estimation.observation import Observation, known_observation
from hyperfuse.quality.metrics import psnr_db, spectral_angle_degrees

DATA = Path(os.environ.get("HYPERFUSE_DATA", Path(__file__).parents[3] / "shared" / "data"))
GAUSSIAN_BANDS_NM = {"R": (665, 60), "G": (560, 70), "B": (480, 65), "NIR": (835, 100), "SWIR1": (1610, 100), "SWIR2": (2200, 180)}
RESPONSES = {
    "rgb": ("R", "G", "B"),
    "rgb+nir": ("R", "G", "B", "NIR"),
    "rgb+nir+swir": ("R", "G", "B", "NIR", "SWIR1", "SWIR2"),
}
SCENES = {
    "test": {
        "cave_balloons": ("camera",),
        "cave_face": ("camera",),
        "jasperridge": tuple(RESPONSES),
        "enmap_potsdam_c": tuple(RESPONSES),
        "abu_urban_4": tuple(RESPONSES),
    },
    "train": {
        "cave_paints": ("camera",),
        "cave_flowers": ("camera",),
        "samson": ("rgb", "rgb+nir"),
        "paviacentre_a": ("rgb", "rgb+nir"),
        "muufl_munet": ("rgb", "rgb+nir"),
        "enmap_potsdam_rect": tuple(RESPONSES),
        "abu_airport_1": tuple(RESPONSES),
        "abu_urban_1": tuple(RESPONSES),
        "salinasa_224": tuple(RESPONSES),
    },
}
NOISE_DB = (30.0, 40.0)  # hsi, msi


@dataclass(frozen=True)
class Case:
    name: str
    response: str
    scale: int
    noisy: bool
    reference: Tensor
    hsi: Tensor
    msi: Tensor
    observation: Observation


def make_case(folder: str, name: str, response: str, scale: int, noisy: bool, shift: tuple[float, float] = (0.0, 0.0)) -> Case:
    reference, wavelength_nm = load_scene(folder, name)
    height, width = (size // scale * scale for size in reference.shape[1:])
    reference = reference[:, :height, :width]
    matrix = camera_response(wavelength_nm) if response == "camera" else gaussian_response(wavelength_nm, RESPONSES[response])
    observation = known_observation(matrix, float(scale), shift=shift)
    hsi = observation.spatial_operator((height, width), (height // scale, width // scale)).apply(reference)
    msi = torch.einsum("mc,cyx->myx", matrix, reference)
    if noisy:
        hsi, hsi_noise = add_noise(hsi, NOISE_DB[0], seed=1)
        msi, msi_noise = add_noise(msi, NOISE_DB[1], seed=2)
        observation = replace(observation, hsi_noise=hsi_noise, msi_noise=msi_noise)
    return Case(name, response, scale, noisy, reference.float(), hsi.float(), msi.float(), observation)


def load_scene(folder: str, name: str) -> tuple[Tensor, NDArray[np.float64]]:
    """(C, H, W) in 0..1 and wavelengths; where these are unknown, evenly from 400 to 2500 nm."""
    with np.load(DATA / folder / f"{name}.npz") as stored:
        cube, wavelength_nm = np.clip(stored["cube"].astype(np.float64), 0, None), stored["wavelength_nm"].astype(np.float64)
    cube = np.clip(cube / np.percentile(cube, 99.95), 0, 1)
    if len(wavelength_nm) != cube.shape[2]:
        wavelength_nm = np.linspace(400, 2500, cube.shape[2])
    return torch.from_numpy(np.ascontiguousarray(cube.transpose(2, 0, 1))), wavelength_nm


def gaussian_response(wavelength_nm: NDArray[np.float64], bands: tuple[str, ...]) -> Tensor:
    rows = []
    for centre, fwhm in (GAUSSIAN_BANDS_NM[band] for band in bands):
        row = np.exp(-0.5 * ((wavelength_nm - centre) / (fwhm / 2.355)) ** 2)
        row[np.abs(wavelength_nm - centre) > 3 * fwhm / 2.355] = 0
        if row.sum() == 0:
            row[np.abs(wavelength_nm - centre).argmin()] = 1
        rows.append(row / row.sum())
    return torch.from_numpy(np.stack(rows))


def camera_response(wavelength_nm: NDArray[np.float64]) -> Tensor:
    table = np.genfromtxt(DATA.parent / "responses" / "nikon_d700.csv", delimiter=",", skip_header=1)
    rows = np.stack([np.interp(wavelength_nm, table[:, 0], table[:, column]) for column in (1, 2, 3)])
    return torch.from_numpy(rows / rows.sum(1, keepdims=True))


def add_noise(image: Tensor, snr_db: float, seed: int) -> tuple[Tensor, Tensor]:
    """White noise per band at a signal-to-noise ratio, and its standard deviations."""
    level = image.square().mean((1, 2)).sqrt() * 10 ** (-snr_db / 20)
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed), dtype=image.dtype)
    return image + level[:, None, None] * noise, level


def scores(fused: Tensor, reference: Tensor) -> tuple[float, float]:
    """Pooled PSNR in dB and the mean spectral angle in degrees."""
    clipped = fused.clamp(0, 1).numpy()
    return psnr_db(clipped, reference.numpy(), peak=1.0), spectral_angle_degrees(clipped, reference.numpy())
