"""Where an msi shows something else than the hsi: clipped values, shadows, changes.

Shapes: M msi bands, h w coarse, H W fine.

On the coarse grid the msi under the PSF, A z, is compared with what the hsi predicts of it, t = R y. The difference
counts in units of a limit per band: a multiple of what is usual in this pair, or a share of the msi's detail, below
which no method suffers from it.

1. Clipped pixels show too little. What a coarse pixel lacks is given to the clipped pixels in it.
2. Where one gain explains the difference of all bands, something shades the ground: the msi is multiplied by the gain.
3. Where the rest is beyond the limit, the msi shows something else: it is replaced by the interpolated t, which adds no
   detail, by a weight between 0 and 1. A change of a coarse pixel ends where the difference has fallen to a part of its
   largest value nearby.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, maximum_filter
from torch import Tensor

from hyperfuse.physics.observation import Observation, SpatialOperator, mix_bands
from hyperfuse.physics.register import Block
from hyperfuse.physics.resample import Placement, upsample_bicubic

Floats = NDArray[np.float64]

USUAL_LIMIT = 5.0  # times the robust standard deviation of the difference
DETAIL_LIMIT = 0.4  # times the root mean square of the msi's detail
EDGE_LIMIT, EDGE_SIGMA = 0.5, 0.7  # times the local standard deviation of the hsi, over so many coarse pixels
MAD_OF_NORMAL = 1.4826
CLIPPED_SHARES = (0.004, 0.3)  # of the pixels at one end of a band's range, for them to be clipped
CLIPPED_NOISE = 0.1  # share of clipped pixels in a coarse one below which its difference is not theirs
GAIN_LIMITS = (0.2, 5.0)
GAIN_SIGMA = 1.5  # coarse pixels over which a gain must explain the difference
UNEXPLAINED_BY_GAIN = 0.05  # share of the difference
END_OF_CHANGE = 0.35
CHANGE_RADIUS = 2  # coarse pixels
STEEPNESS = 6
NOTICEABLE = 0.5  # of the limit
TRUNCATED = 2.0  # standard deviations of local means
HALO = 12
"""Coarse pixels around a window that its result depends on."""


@dataclass(frozen=True)
class Agreement:
    """How far the two images of a pair usually agree."""

    limits: Floats  # (M,)
    clipped: Floats  # (M, 2) the lowest and the highest value where many pixels have it, else NaN
    is_perfect: bool
    """Whether no pixel that was looked at differs noticeably, and these were all."""
    differing: float
    """Share of the coarse pixels that were looked at that differ beyond the limits."""


def measure_agreement(blocks: list[Block], corrected: list[Block], observation: Observation) -> Agreement:
    """From blocks all over a scene, before and after all corrections of the msi."""
    windows = [_Window.of(block.hsi, block.msi, block.origin_shift, observation) for block in corrected]
    pairs = list(zip(windows, corrected, strict=True))
    differences = [(window.predicted - window.seen).numpy() for window in windows]
    known = [block.usable.numpy() for block in corrected]
    usable_ones = np.concatenate([each[:, usable] for each, usable in zip(differences, known, strict=True)], axis=1)
    usual = MAD_OF_NORMAL * np.median(np.abs(usable_ones), axis=1) if usable_ones.size else np.zeros(len(usable_ones))
    details = [(block.msi.double() - window.up(window.seen)).square().flatten(1) for window, block in pairs]
    limits = np.maximum(USUAL_LIMIT * usual, DETAIL_LIMIT * torch.cat(details, dim=1).mean(1).sqrt().numpy()) + 1e-300
    distances = []
    for window, difference, usable in zip(windows, differences, known, strict=True):
        local = _local_limits(window.predicted, limits).numpy()
        distances.append(np.sqrt(((difference / local) ** 2).mean(axis=0))[usable])
    distance = np.concatenate(distances)
    bands = zip(*(block.msi.flatten(1).numpy() for block in blocks), strict=True)
    clipped = np.stack([_clipped_ends(np.concatenate(band)) for band in bands])
    is_perfect = len(blocks) == 1 and float(distance.max(initial=0.0)) < NOTICEABLE and not np.isfinite(clipped).any()
    return Agreement(limits, clipped, is_perfect, float((distance > 1).mean()) if distance.size else 0.0)


def _clipped_ends(values: NDArray[np.float32]) -> Floats:
    values = values[np.isfinite(values)]
    if not values.size or values.min() == values.max():
        return np.full(2, np.nan)
    ends = np.array([values.min(), values.max()], dtype=np.float64)
    shares = [float((values == end).mean()) for end in ends]
    return np.where([CLIPPED_SHARES[0] < share < CLIPPED_SHARES[1] for share in shares], ends, np.nan)


@dataclass(frozen=True)
class _Window:
    """Both images on the coarse grid of a window."""

    predicted: Tensor  # (M, h, w), of the msi, from the hsi
    seen: Tensor  # (M, h, w), the msi under the PSF
    operator: SpatialOperator
    placement: Placement
    fine_size: tuple[int, int]

    @classmethod
    def of(cls, hsi: Tensor, msi: Tensor, shift: tuple[float, float], observation: Observation) -> _Window:
        fine_size, coarse_size = (msi.shape[1], msi.shape[2]), (hsi.shape[1], hsi.shape[2])
        operator = SpatialOperator.from_psf(fine_size, coarse_size, observation.scale, observation.sigma, shift)
        predicted = mix_bands(observation.srf, hsi.double()) + observation.offset[:, None, None]
        placement = Placement.from_scale(observation.scale, shift)
        return cls(predicted, operator.apply(msi.double()), operator, placement, fine_size)

    def up(self, coarse: Tensor) -> Tensor:
        return upsample_bicubic(coarse, self.fine_size, self.placement)


def reconcile(
    hsi: Tensor, msi: Tensor, raw: Tensor, observation: Observation, agreement: Agreement, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Bring an msi (M, H, W) without missing pixels into agreement with the hsi (C, h, w).

    `raw` is the msi before its corrections, which shows where it was clipped; `observation` is that of the window.
    Coarse pixels outside of `known` (h, w) do not tell whether the images agree. Returns the msi and the weight (H, W),
    from 0 to 1, with which it is used.
    """
    window = _Window.of(hsi, msi, observation.shift, observation)
    values, predicted = msi.double(), window.predicted
    limits = _local_limits(predicted, agreement.limits)
    for side, sign in ((0, -1.0), (1, 1.0)):
        ends = torch.from_numpy(agreement.clipped[:, side])[:, None, None]
        if bool(torch.isfinite(ends).any()):
            clipped = ((sign * raw.double()) >= sign * ends).double()
            share = window.operator.apply(clipped)
            lacking = (sign * (predicted - window.operator.apply(values))).clamp_min(0)
            missing = window.up(lacking * share / (share.square() + CLIPPED_NOISE**2)).clamp_min(0)
            values = values + sign * clipped * missing
    seen = window.operator.apply(values)
    difference = (predicted - seen) / limits
    if known is not None:
        difference = difference * known
    distance = difference.square().mean(0).sqrt()
    if len(msi) > 1:
        shaded, gain = _shading(predicted / limits, seen / limits, difference, distance)
        values = values * window.up((shaded * distance**4 / (1 + distance**4) * gain.log())[None])[0].exp()
        distance = distance * (1 - shaded)
    nearby = torch.from_numpy(maximum_filter(distance.numpy(), 2 * CHANGE_RADIUS + 1))
    fine, largest = window.up(torch.stack([distance, nearby])).clamp_min(0)
    weight = 1 / (1 + (fine / (END_OF_CHANGE * largest).clamp_min(1)) ** STEEPNESS)
    return (weight * values + (1 - weight) * window.up(predicted)).to(msi), weight.to(msi)


def _local_limits(predicted: Tensor, limits: Floats) -> Tensor:
    """(M, h, w) Higher near edges, where a slightly different PSF or shift makes a difference, too."""
    image = predicted.numpy()
    width = (0.0, EDGE_SIGMA, EDGE_SIGMA)
    mean, square = (gaussian_filter(each, width, mode="nearest", truncate=TRUNCATED) for each in (image, image**2))
    contrast = (square - mean**2).clip(0)
    return torch.from_numpy(np.sqrt(limits[:, None, None] ** 2 + EDGE_LIMIT**2 * contrast))


def _shading(predicted: Tensor, seen: Tensor, difference: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """(h, w) How far one gain explains the difference of all bands, from 0 to 1, and the gain."""
    t, z = predicted.clamp_min(1e-6), seen.clamp_min(1e-6)
    gain = ((t * z).sum(0) / z.square().sum(0)).clamp(*GAIN_LIMITS)
    outside = distance**4 / (1 + distance**4)
    rest, total = (
        gaussian_filter((outside * part.square().sum(0)).numpy(), GAIN_SIGMA, mode="nearest", truncate=TRUNCATED)
        for part in (predicted - gain * seen, difference)
    )
    # A gain per pixel takes one of the bands' degrees of freedom by chance.
    unexplained = torch.from_numpy(rest / total.clip(1e-12)) * (len(seen) / (len(seen) - 1))
    return 1 / (1 + (unexplained / UNEXPLAINED_BY_GAIN) ** 2), gain
