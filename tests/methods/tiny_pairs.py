"""Seeded pairs for the tests of methods and estimation: dead leaves of random spectra, degraded by independent code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hyperfuse.physics.observation import Observation, known_observation


@dataclass(frozen=True)
class TinyPair:
    reference: Tensor
    hsi: Tensor
    msi: Tensor
    observation: Observation


def dead_leaves(bands: int, height: int, width: int, seed: int = 0, materials: int = 6) -> Tensor:
    """Overlapping discs, each a smooth random spectrum with a little shading: (bands, height, width) in 0..1."""
    generator = np.random.default_rng(seed)
    grid = np.linspace(0, 1, bands)
    spectra = [
        0.2 + 0.5 * generator.random() * np.exp(-((grid - generator.random()) ** 2) / (0.02 + 0.2 * generator.random()))
        for _ in range(materials)
    ]
    rows, columns = np.mgrid[:height, :width]
    image = np.tile(spectra[0][:, None, None], (1, height, width))
    for _ in range(min(2000, height * width // 12)):
        centre_y, centre_x = generator.random() * height, generator.random() * width
        radius = 1.5 + generator.exponential(0.06 * min(height, width))
        inside = (rows - centre_y) ** 2 + (columns - centre_x) ** 2 < radius**2
        spectrum = spectra[generator.integers(materials)] * (0.8 + 0.4 * generator.random())
        image[:, inside] = spectrum[:, None]
    return torch.from_numpy(np.clip(image, 0, 1))


def tiny_pair(
    bands: int = 20,
    msi_bands: int = 3,
    coarse: tuple[int, int] = (12, 14),
    scale: float = 4.0,
    sigma: float | tuple[float, float] | None = None,
    shift: tuple[float, float] = (0.0, 0.0),
    snr_db: float | None = None,
    seed: int = 0,
) -> TinyPair:
    fine = (round(coarse[0] * scale), round(coarse[1] * scale))
    reference = dead_leaves(bands, *fine, seed=seed)
    centres = torch.linspace(0, bands - 1, msi_bands + 2, dtype=torch.float64)[1:-1]
    distance = (torch.arange(bands) - centres[:, None]) / max(1.0, bands / (2 * msi_bands))
    srf = torch.exp(-0.5 * distance**2)
    srf = srf / srf.sum(1, keepdim=True)
    exact_scale = (fine[0] / coarse[0], fine[1] / coarse[1])
    observation = known_observation(srf, exact_scale, sigma, shift)
    hsi = observation.spatial_operator(fine, coarse).apply(reference)
    msi = torch.einsum("mc,cyx->myx", srf, reference)
    if snr_db is not None:
        generator = torch.Generator().manual_seed(seed + 1)
        level = 10 ** (-snr_db / 20)
        hsi = hsi + level * hsi.square().mean().sqrt() * torch.randn(hsi.shape, generator=generator, dtype=hsi.dtype)
        msi = msi + level * msi.square().mean().sqrt() * torch.randn(msi.shape, generator=generator, dtype=msi.dtype)
    return TinyPair(reference.float(), hsi.float(), msi.float(), observation)


def psnr_db(fused: Tensor, reference: Tensor) -> float:
    known = torch.isfinite(fused)
    error = (fused - reference)[known].double().square().mean()
    return float(10 * torch.log10(reference.double().max() ** 2 / error.clamp_min(1e-30)))
