"""Noise levels of an image from the image alone.

Shapes: B bands, H W pixels.

Noise is what is neither smooth in space nor shared with neighbouring bands. Each band's second differences are
regressed on those of its neighbours, and the quietest blocks of the residual tell the noise. Both steps can only
overestimate, so texture makes the result cautious.

Sensor noise: white and Gaussian, as strong in each band as a signal-to-noise ratio in dB says.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def noise_sigmas(image: NDArray[np.float32], snr_db: float) -> NDArray[np.float64]:
    """Per band (C,): sqrt(mean square of the band's valid pixels / 10^(snr/10)); 0 where a band has none."""
    sigmas = np.zeros(image.shape[0])
    for i, band in enumerate(image):
        valid = band[np.isfinite(band)].astype(np.float64)
        sigmas[i] = np.sqrt(np.mean(valid**2) / 10 ** (snr_db / 10)) if valid.size else 0.0
    return sigmas


def add_noise(image: NDArray[np.float32], sigmas: NDArray[np.float64], seed: int, stream: int) -> None:
    """Add noise in place, band by band. Streams of one seed are independent: noise on one image leaves the other's as
    it is.
    """
    generator = np.random.default_rng([seed, stream])
    for band, sigma in zip(image, sigmas, strict=True):
        band += (sigma * generator.standard_normal(band.shape)).astype(np.float32)


NEIGHBOURING_BANDS = 8
BLOCK = 8
QUIET_SHARE = 0.1
# The 10 % quantile of the root mean square of an 8x8 block of second differences of unit white noise, by simulation.
QUIET_BLOCK_OF_UNIT_NOISE = 0.83
MOST_PIXELS = 512 * 512
# Second differences of white noise are correlated: this many of them carry as much as one independent number.
SAMPLES_PER_INDEPENDENT_ONE = 3.78


def estimate_noise(image: Tensor, known: Tensor | None = None) -> Tensor:
    """Standard deviation per band, (B,) float64. `known` (H, W) marks pixels that are data and not filling."""
    sharp = second_differences(_sampled(image).double())
    if sharp is None:
        return torch.zeros(image.shape[0], dtype=torch.float64)
    mask = None if known is None else _sampled(known[None].double())[0]
    usable = torch.ones(sharp.shape[1:], dtype=torch.bool) if mask is None else _all_known(mask)
    if int(usable.sum()) < 4:
        return torch.zeros(image.shape[0], dtype=torch.float64)
    residual, shares = _unshared_variance(sharp, usable)
    # Residual variance of a band: its own noise plus what its neighbours' noise brought in through the slopes. Solved
    # for all bands together it is exact for noise but amplifies texture; as if all bands were equally noisy it is
    # neither. Their mean is safe.
    together: Tensor = torch.linalg.solve(torch.eye(len(residual), dtype=torch.float64) + shares, residual)
    alike = residual / (1 + shares.sum(1))
    return (together.maximum(0.2 * residual) * alike).clamp_min(0).sqrt().sqrt()


def weakest_components(spectra: Tensor, noise: Tensor) -> float:
    """How much of a noise estimate (C,) is believable, 0 to 1: noise leaves no component of the spectra (C, n) empty.

    In units of the noise, the weakest third of the components is compared with that of white noise of the same shape.
    """
    live = noise > 0
    bands, pixels = int(live.sum()), spectra.shape[1]
    if bands < 3 or pixels < 4:
        return 1.0
    white = (spectra[live] - spectra[live].mean(1, keepdim=True)) / noise[live, None]
    generator = torch.Generator().manual_seed(0)
    pure = torch.randn(bands, pixels, generator=generator, dtype=torch.float64)
    pure = pure - pure.mean(1, keepdim=True)
    weakest = []
    for matrix in (white, pure):
        gram = matrix @ matrix.T if bands <= pixels else matrix.T @ matrix
        # Without its mean, one direction of the smaller side is empty by construction.
        values = torch.linalg.eigvalsh(gram)[int(pixels <= bands) :]
        weakest.append(float(values[: max(1, len(values) // 3)].mean()))
    return math.sqrt(min(1.0, max(0.0, weakest[0] / weakest[1])))


def second_differences(image: Tensor) -> Tensor | None:
    """Along both axes, (B, H - 2, W - 2), scaled so that white noise keeps its variance; None for images too small."""
    if min(image.shape[1:]) < 3:
        return None
    rows = image[:, 2:] - 2 * image[:, 1:-1] + image[:, :-2]
    return (rows[:, :, 2:] - 2 * rows[:, :, 1:-1] + rows[:, :, :-2]) / 6


def _unshared_variance(sharp: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """Per band the variance that its neighbours do not explain, (B,), and the squares of the slopes on them, (B, B)."""
    bands, samples = sharp.shape[0], int(usable.sum()) / SAMPLES_PER_INDEPENDENT_ONE
    count = min(NEIGHBOURING_BANDS, bands - 1, int(samples // 6))
    known = sharp[:, usable]
    spread = known @ known.T
    spread = spread + (1e-9 * spread.trace() / bands + 1e-300) * torch.eye(bands, dtype=torch.float64)
    variances, shares = [], torch.zeros(bands, bands, dtype=torch.float64)
    for band in range(bands):
        target = sharp[band]
        others = _neighbours(band, bands, count)
        if others:
            slopes = torch.linalg.solve(spread[others][:, others], spread[others, band])
            shares[band, others] = slopes.square()
            target = target - torch.einsum("k,kij->ij", slopes, sharp[others])
        # The fit also took some of the target's own noise away.
        variances.append(quiet_level(target, usable).square() / (1 - len(others) / samples))
    return torch.stack(variances), shares


def quiet_level(residual: Tensor, usable: Tensor) -> Tensor:
    """Root mean square of the quietest blocks; of everything where there are too few blocks."""
    height, width = (size // BLOCK * BLOCK for size in residual.shape)
    if height // BLOCK * (width // BLOCK) < 20:
        return residual[usable].square().mean().sqrt()

    def blocks(image: Tensor) -> Tensor:
        cut = image[:height, :width].reshape(height // BLOCK, BLOCK, width // BLOCK, BLOCK)
        return cut.transpose(1, 2).reshape(-1, BLOCK * BLOCK)

    levels = blocks(residual).square().mean(1).sqrt()[blocks(usable).all(1)]
    if len(levels) < 20:
        return residual[usable].square().mean().sqrt()
    return levels.quantile(QUIET_SHARE) / QUIET_BLOCK_OF_UNIT_NOISE


def _neighbours(band: int, bands: int, count: int) -> list[int]:
    nearest = sorted((other for other in range(bands) if other != band), key=lambda other: abs(other - band))
    return nearest[:count]


def _all_known(mask: Tensor) -> Tensor:
    whole = mask > 0
    rows = whole[2:] & whole[1:-1] & whole[:-2]
    return rows[:, 2:] & rows[:, 1:-1] & rows[:, :-2]


def _sampled(image: Tensor) -> Tensor:
    """The middle of a large image: noise is alike everywhere, and second differences need neighbouring pixels."""
    height, width = image.shape[-2:]
    side = int(MOST_PIXELS**0.5)
    top, left = max(0, (height - side) // 2), max(0, (width - side) // 2)
    return image[..., top : top + side, left : left + side]
