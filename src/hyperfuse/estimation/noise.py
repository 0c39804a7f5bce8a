"""Noise levels of an image from the image alone.

Shapes: B bands, H W pixels.

Noise is what is neither smooth in space nor shared with neighbouring bands. Each band's second differences are regressed on those
of its neighbours, and the quietest blocks of the residual tell the noise. Both steps can only overestimate, so texture makes the
result cautious.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURING_BANDS = 8
BLOCK = 8
QUIET_SHARE = 0.1
# The 10 % quantile of the root mean square of an 8x8 block of second differences of unit white noise, by simulation.
QUIET_BLOCK_OF_UNIT_NOISE = 0.83
MOST_PIXELS = 512 * 512


def estimate_noise(image: Tensor, known: Tensor | None = None) -> Tensor:
    """Standard deviation per band, (B,) float64. `known` (H, W) marks pixels that are data and not filling."""
    sharp = second_differences(_sampled(image).double())
    if sharp is None:
        return torch.zeros(image.shape[0], dtype=torch.float64)
    mask = None if known is None else _sampled(known[None].double())[0]
    usable = torch.ones(sharp.shape[1:], dtype=torch.bool) if mask is None else _all_known(mask)
    if int(usable.sum()) < 4:
        return torch.zeros(image.shape[0], dtype=torch.float64)
    return torch.stack([_band_noise(sharp, usable, band) for band in range(image.shape[0])])


def second_differences(image: Tensor) -> Tensor | None:
    """Along both axes, (B, H - 2, W - 2), scaled so that white noise keeps its variance; None for images too small."""
    if min(image.shape[1:]) < 3:
        return None
    rows = image[:, 2:] - 2 * image[:, 1:-1] + image[:, :-2]
    return (rows[:, :, 2:] - 2 * rows[:, :, 1:-1] + rows[:, :, :-2]) / 6


def _band_noise(sharp: Tensor, usable: Tensor, band: int) -> Tensor:
    samples = int(usable.sum())
    others = _neighbours(band, sharp.shape[0], min(NEIGHBOURING_BANDS, samples // 6))
    target = sharp[band]
    gain = torch.tensor(1.0, dtype=torch.float64)
    if others:
        inputs = sharp[others]
        known = inputs[:, usable]
        spread = known @ known.T
        slopes = torch.linalg.solve(
            spread + (1e-9 * spread.trace() + 1e-300) * torch.eye(len(others), dtype=torch.float64), known @ target[usable]
        )
        target = target - torch.einsum("k,kij->ij", slopes, inputs)
        # The neighbours' own noise came in with the slopes; and the fit took some of the target's away.
        gain = (1 + slopes.square().sum()).sqrt() * max(1e-3, 1 - len(others) / samples) ** 0.5
    return quiet_level(target, usable) / gain


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
