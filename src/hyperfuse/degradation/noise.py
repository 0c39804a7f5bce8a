"""Sensor noise: white and Gaussian, as strong in each band as a signal-to-noise ratio in dB says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def noise_sigmas(image: NDArray[np.float32], snr_db: float) -> NDArray[np.float64]:
    """Per band (C,): sqrt(mean square of the band's valid pixels / 10^(snr/10)); 0 where a band has none."""
    sigmas = np.zeros(image.shape[0])
    for i, band in enumerate(image):
        valid = band[np.isfinite(band)].astype(np.float64)
        sigmas[i] = np.sqrt(np.mean(valid**2) / 10 ** (snr_db / 10)) if valid.size else 0.0
    return sigmas


def add_noise(image: NDArray[np.float32], sigmas: NDArray[np.float64], seed: int, stream: int) -> None:
    """Add noise in place, band by band. Streams of one seed are independent: noise on one image leaves the other's as it is."""
    generator = np.random.default_rng([seed, stream])
    for band, sigma in zip(image, sigmas, strict=True):
        band += (sigma * generator.standard_normal(band.shape)).astype(np.float32)
