"""Where an msi shows something else than the hsi: clipped values, shadows, changes.

Shapes: M msi bands, h w coarse, H W fine.

On the coarse grid the msi under the PSF, A z, is compared with what the hsi predicts of it, t = R y. The difference
counts in units of a limit per band: a multiple of what is usual in this pair, or a small share of the msi's detail.

1. Clipped pixels show too little. They get the smoothest values with which the coarse pixels lack nothing.
2. Where one gain explains the difference of all bands, something shades the ground: the msi is multiplied by the gain.
3. Where the rest is beyond the limit, the msi shows something else: it is replaced by f, the interpolated t with
   A f = t, by a weight between 0 and 1. The PSF spreads the difference over unchanged surroundings. There the msi
   differs from f by no more than its usual detail. Starting from there, shares of fine pixels are found that explain
   the difference; where they do not, all that is suspected is replaced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, maximum_filter
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse.physics.observation import Observation, SpatialOperator, mix_bands
from hyperfuse.physics.register import Block
from hyperfuse.physics.resample import Placement, upsample_bicubic

Floats = NDArray[np.float64]

USUAL_LIMIT = 5.0  # times the robust standard deviation of the difference
DETAIL_LIMIT = 0.1  # times the root mean square of the msi's detail
EDGE_LIMITS, EDGE_SIGMA = (0.1, 0.5), 0.7  # times the local standard deviation of the hsi, over so many coarse pixels
MAD_OF_NORMAL = 1.4826
CLIPPED_SHARES = (0.004, 0.3)  # of the pixels at one end of a band's range, for them to be clipped
# Weight of the smoothness of clipped pixels, in units of the squared limit over the msi's detail; steps of the descent.
CLIPPED_SMOOTHNESS, CLIPPED_ROUNDS, LARGEST_LAPLACIAN = 0.1, 60, 8.0
GAIN_LIMITS = (0.2, 5.0)
GAIN_SIGMA = 1.5  # coarse pixels over which a gain must explain the difference
UNEXPLAINED_BY_GAIN = 0.05  # share of the difference
END_OF_CHANGE = 0.1  # of the largest difference within a radius
CHANGE_RADIUS = 2  # coarse pixels
STEEPNESS = 6
SMALLEST_CHANGE = 0.01  # replaced share of a pixel that is worth the work
FILL_ROUNDS = 2  # of projecting what the filling lacks back onto it
# A pixel is changed if it differs from the filling by this multiple of the detail of trusted pixels nearby; means of
# squares over so many fine pixels, and so many coarse ones nearby, where the detail of the scene has a weight as well.
CHANGED_DETAIL, PIXEL_SIGMA, NEARBY_SIGMA, SCENE_WEIGHT = 2.0, 0.8, 2.0, 0.05
DETAIL_STEEPNESS = 4
# How the difference is explained by shares of fine pixels: suspected ones, rounds, their step, and between them a width
# in fine pixels and a power of the odds. Pixels that move by hardly more than the limit are pulled less.
SUSPECTED, EXPLAINING_ROUNDS, EXPLAINING_STEP, AREA_SIGMA, SHARPENED, SMALLEST_PULL = 0.05, 6, 1.5, 0.5, 1.3, 4.0
STAYING = 3.0  # limits by which a coarse pixel may differ before all that was suspected of it is replaced
NOTICEABLE = 0.5  # of the limit
TRUNCATED = 2.0  # standard deviations of local means
HALO = 18
"""Coarse pixels around a window that its result depends on."""


@dataclass(frozen=True)
class Agreement:
    """How far the two images of a pair usually agree."""

    limits: Floats  # (M,)
    edge_limits: Floats  # (M,) times the local standard deviation
    detail: Floats  # (M, M) covariance of what the msi shows beyond the hsi's resolution, where it is not clipped
    clipped: Floats  # (M, 2) the lowest and the highest value where many pixels have it, else NaN
    is_perfect: bool
    """Whether no pixel that was looked at differs noticeably, and these were all."""
    differing: float
    """Share of the coarse pixels that were looked at that differ beyond the limits."""


def measure_agreement(blocks: list[Block], corrected: list[Block], observation: Observation) -> Agreement:
    """From blocks all over a scene, before and after all corrections of the msi."""
    windows = [_Window.of(block.hsi, block.msi, block.origin_shift, observation) for block in corrected]
    differences = [(window.predicted - window.seen).numpy() for window in windows]
    known = [block.usable.numpy() for block in corrected]
    usable_ones = np.concatenate([each[:, usable] for each, usable in zip(differences, known, strict=True)], axis=1)
    usual = _usual(usable_ones)
    bands = zip(*(block.msi.flatten(1).numpy() for block in blocks), strict=True)
    clipped = np.stack([_clipped_ends(np.concatenate(band)) for band in bands])
    details = []
    for window, block, raw in zip(windows, corrected, blocks, strict=True):
        inside = ~torch.stack(_clipped_pixels(raw.msi.double(), clipped)).any(0).any(0)
        details.append((block.msi.double() - window.up(window.seen))[:, inside])
    detail = torch.cat(details, dim=1)
    covariance = (detail @ detail.T / max(1, detail.shape[1])).numpy()
    limits = np.maximum(USUAL_LIMIT * usual, DETAIL_LIMIT * np.sqrt(covariance.diagonal())) + 1e-300
    contrasts = [np.sqrt(_contrast(window.predicted))[:, usable] for window, usable in zip(windows, known, strict=True)]
    relative = usable_ones / (np.concatenate(contrasts, axis=1) + limits[:, None])
    edge_limits = (USUAL_LIMIT * _usual(relative)).clip(*EDGE_LIMITS)
    distances = []
    for window, difference, usable in zip(windows, differences, known, strict=True):
        local = _local_limits(window.predicted, limits, edge_limits).numpy()
        distances.append(np.sqrt(((difference / local) ** 2).mean(axis=0))[usable])
    distance = np.concatenate(distances)
    is_perfect = len(blocks) == 1 and float(distance.max(initial=0.0)) < NOTICEABLE and not np.isfinite(clipped).any()
    differing = float((distance > 1).mean()) if distance.size else 0.0
    return Agreement(limits, edge_limits, covariance, clipped, is_perfect, differing)


def _usual(differences: Floats) -> Floats:
    """(M,) Robust standard deviations of (M, n)."""
    if not differences.size:
        return np.zeros(len(differences))
    return np.asarray(MAD_OF_NORMAL * np.median(np.abs(differences), axis=1))


def _clipped_ends(values: NDArray[np.float32]) -> Floats:
    values = values[np.isfinite(values)]
    if not values.size or values.min() == values.max():
        return np.full(2, np.nan)
    ends = np.array([values.min(), values.max()], dtype=np.float64)
    shares = [float((values == end).mean()) for end in ends]
    return np.where([CLIPPED_SHARES[0] < share < CLIPPED_SHARES[1] for share in shares], ends, np.nan)


def _clipped_pixels(raw: Tensor, ends: Floats) -> tuple[Tensor, Tensor]:
    """(M, H, W) Where the msi has the lowest and where it has the highest of its values, if it is clipped there."""
    low, high = torch.from_numpy(ends).T[:, :, None, None]
    return raw <= low, raw >= high


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
    limits = _local_limits(predicted, agreement.limits, agreement.edge_limits)
    seen = window.seen
    if np.isfinite(agreement.clipped).any():
        values = _unclipped(values, raw.double(), window, agreement)
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
    if float(weight.min()) > 1 - SMALLEST_CHANGE:
        return values.to(msi), torch.ones_like(weight).to(msi)
    filled = window.up(predicted)
    for _ in range(FILL_ROUNDS):
        filled = filled + window.up(predicted - window.operator.apply(filled))
    trust = torch.ones_like(limits) if known is None else known.to(limits)
    changed = (1 - weight) * _changed_pixels(values, filled, weight, window, agreement)
    move, difference = filled - values, predicted - window.operator.apply(values)
    suspected = 1 - weight > SUSPECTED
    changed = _explaining(changed, move, difference, trust / limits.square(), suspected, window.operator)
    left = trust * (difference - window.operator.apply(changed * move)) / limits
    left = left.square().mean(0).sqrt() / STAYING
    stays = window.up((left**4 / (1 + left**4))[None])[0].clamp(0, 1)
    changed = changed + (1 - weight - changed).clamp_min(0) * stays
    return (values + changed * move).to(msi), (1 - changed).to(msi)


def _explaining(
    changed: Tensor, move: Tensor, difference: Tensor, precision: Tensor, suspected: Tensor, operator: SpatialOperator
) -> Tensor:
    """(H, W) Shares of the suspected fine pixels that are to be moved, by `move` (M, H, W), to explain the difference.

    Simultaneous iterative reconstruction from the given shares; between its steps the shares are smoothed and
    sharpened, because a change has an area.
    """
    share = 1 / math.prod(fine / coarse for fine, coarse in zip(operator.fine_size, operator.coarse_size, strict=True))
    own = (move.abs() * operator.adjoint(precision * operator.apply(move.abs() * suspected))).sum(0)
    own = own + SMALLEST_PULL * len(move) * share
    for _ in range(EXPLAINING_ROUNDS):
        left = operator.adjoint(precision * (difference - operator.apply(changed * move)))
        changed = ((changed + EXPLAINING_STEP * (move * left).sum(0) / own) * suspected).clamp(0, 1)
        changed = torch.from_numpy(gaussian_filter(changed.numpy(), AREA_SIGMA, mode="nearest"))
        changed = changed**SHARPENED / (changed**SHARPENED + (1 - changed) ** SHARPENED)
    return changed


def _changed_pixels(values: Tensor, filled: Tensor, weight: Tensor, window: _Window, agreement: Agreement) -> Tensor:
    """(H, W) From 0 for fine pixels that differ from the filling by the detail that is usual nearby, to 1."""
    unit = torch.from_numpy(agreement.detail.diagonal() + 1e-300)[:, None, None]
    detail = ((values - window.up(window.operator.apply(values))).square() / unit).mean(0)
    nearby = [
        gaussian_filter(window.operator.apply(each[None])[0].numpy(), NEARBY_SIGMA, mode="nearest", truncate=TRUNCATED)
        for each in (weight * detail, weight)
    ]
    usual = window.up(torch.from_numpy((nearby[0] + SCENE_WEIGHT) / (nearby[1] + SCENE_WEIGHT))[None])[0]
    difference = gaussian_filter(((filled - values).square() / unit).mean(0).numpy(), PIXEL_SIGMA, mode="nearest")
    ratio = torch.from_numpy(difference) / (CHANGED_DETAIL**2 * usual.clamp_min(1e-6))
    power = ratio ** (DETAIL_STEEPNESS / 2)
    return power / (1 + power)


def _unclipped(values: Tensor, raw: Tensor, window: _Window, agreement: Agreement) -> Tensor:
    """The msi with the smoothest values of its clipped pixels, beyond the ends, that agree with the hsi.

    They minimise |A x - t|^2 + s |grad x|^2, by projected gradient descent with momentum (Beck and Teboulle 2009).
    """
    low, high = _clipped_pixels(raw, agreement.clipped)
    clipped = low | high
    if not bool(clipped.any()):
        return values
    ends, operator = values.float(), window.operator
    predicted, smoothness = window.predicted.float(), agreement.limits**2 / (agreement.detail.diagonal() + 1e-300)
    share = math.prod(coarse / fine for fine, coarse in zip(operator.fine_size, operator.coarse_size, strict=True))
    weight = torch.from_numpy(CLIPPED_SMOOTHNESS * share * smoothness).float()[:, None, None]
    step = 1 / (share + LARGEST_LAPLACIAN * weight)
    guess = ahead = ends
    momentum = 1.0
    for _ in range(CLIPPED_ROUNDS):
        slope = operator.adjoint(operator.apply(ahead) - predicted) + weight * _laplacian(ahead)
        moved = ahead - step * slope
        moved = torch.where(low, moved.minimum(ends), torch.where(high, moved.maximum(ends), ends))
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - guess)
        guess, momentum = moved, following
    return torch.where(clipped, guess.to(values), values)


def _laplacian(images: Tensor) -> Tensor:
    """Four times every pixel (M, H, W) less its four neighbours, the edge repeated."""
    around = pad(images[None], (1, 1, 1, 1), mode="replicate")[0]
    rows, columns = around[:, :, 1:-1], around[:, 1:-1]
    return 4 * images - rows[:, 2:] - rows[:, :-2] - columns[:, :, 2:] - columns[:, :, :-2]


def _local_limits(predicted: Tensor, limits: Floats, edge_limits: Floats) -> Tensor:
    """(M, h, w) Higher near edges, where a slightly different PSF or shift makes a difference, too."""
    squared = limits[:, None, None] ** 2 + edge_limits[:, None, None] ** 2 * _contrast(predicted)
    return torch.from_numpy(np.sqrt(squared))


def _contrast(predicted: Tensor) -> Floats:
    """(M, h, w) The local variance."""
    image, width = predicted.numpy(), (0.0, EDGE_SIGMA, EDGE_SIGMA)
    mean, square = (gaussian_filter(each, width, mode="nearest", truncate=TRUNCATED) for each in (image, image**2))
    return np.asarray((square - mean**2).clip(0))


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
