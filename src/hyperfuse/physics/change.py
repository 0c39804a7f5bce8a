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

All of it is looked for on the coarse grid, and the msi is worked on only near what is found there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import find_objects, gaussian_filter, label, maximum_filter
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
# The least distance of a coarse pixel that leads to it: interpolation exceeds what it interpolates by at most 25/16.
SUSPICIOUS = (1 / SMALLEST_CHANGE - 1) ** (-1 / STEEPNESS) * 16 / 25
INVISIBLE = 1e-8  # relative, in float32
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
CORE_HALO, PART_HALO = 4, 14  # those whose difference may change it, and those on which the change of one depends


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
    clipped = clipped_ends(blocks)
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


def clipped_ends(blocks: list[Block]) -> Floats:
    """(M, 2) The lowest and the highest value of each msi band where many pixels have it, else NaN."""
    bands = zip(*(block.msi.flatten(1).numpy() for block in blocks), strict=True)
    return np.stack([_clipped_ends(np.concatenate(band)) for band in bands])


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
        operator = replace(observation, shift=shift).spatial_operator(fine_size, coarse_size)
        predicted = mix_bands(observation.srf, hsi.double()) + observation.offset[:, None, None]
        placement = Placement.from_scale(observation.scale, shift)
        return cls(predicted, operator.apply(msi).double(), operator, placement, fine_size)

    def up(self, coarse: Tensor) -> Tensor:
        return upsample_bicubic(coarse, self.fine_size, self.placement)

    def part(self, rows: slice, columns: slice) -> tuple[_Window, tuple[slice, slice]]:
        """The window of some coarse pixels, and the fine pixels on them. At its border the PSF is cut off."""
        axes = (self.placement.rows, self.placement.columns)
        fine, placements = [], []
        for span, axis, size, all_fine in zip((rows, columns), axes, self.seen.shape[1:], self.fine_size, strict=True):
            edges = [math.ceil((edge - 0.5 - axis.origin) / axis.step) for edge in (span.start, span.stop)]
            start, stop = 0 if span.start == 0 else max(0, edges[0]), all_fine if span.stop == size else edges[1]
            fine.append(slice(start, min(all_fine, stop)))
            placements.append(axis.seen_from(start, span.start))
        operator = SpatialOperator(self.operator.rows[rows, fine[0]], self.operator.columns[columns, fine[1]])
        predicted, seen = (image[:, rows, columns] for image in (self.predicted, self.seen))
        fine_size = fine[0].stop - fine[0].start, fine[1].stop - fine[1].start
        return _Window(predicted, seen, operator, Placement(*placements), fine_size), (fine[0], fine[1])


def reconcile(
    hsi: Tensor,
    msi: Tensor,
    raw: Tensor,
    observation: Observation,
    agreement: Agreement,
    known: Tensor | None = None,
    core: tuple[slice, slice] = (slice(None), slice(None)),
) -> tuple[Tensor, Tensor]:
    """Bring the core, some coarse pixels, of an msi (M, H, W) without holes into agreement with the hsi (C, h, w).

    `raw` is the msi before its corrections, which shows where it was clipped; `observation` is that of the window.
    Coarse pixels outside of `known` (h, w) do not tell whether the images agree. Returns the msi and the weight (H, W),
    from 0 to 1, with which it is used.
    """
    window = _Window.of(hsi, msi, observation.shift, observation)
    values, predicted, seen = msi, window.predicted, window.seen
    limits = _local_limits(predicted, agreement.limits, agreement.edge_limits)
    if np.isfinite(agreement.clipped).any():
        values = _unclipped(msi.double(), raw.double(), window, agreement).to(msi)
        seen = window.operator.apply(values).double()
    difference = (predicted - seen) / limits
    if known is not None:
        difference = difference * known
    distance = difference.square().mean(0).sqrt()
    if len(msi) > 1:
        shaded, gain = _shading(predicted / limits, seen / limits, difference, distance)
        exponent = shaded * distance**4 / (1 + distance**4) * gain.log()
        if float(exponent.abs().max()) > INVISIBLE:
            values = values * window.up(exponent[None].to(msi)).exp_()
        distance = distance * (1 - shaded)
    trust = torch.ones_like(distance) if known is None else known.double()
    nearby = torch.from_numpy(maximum_filter(distance.numpy(), 2 * CHANGE_RADIUS + 1))
    changed = torch.zeros_like(values[0])
    suspicious = np.zeros(distance.shape, dtype=bool)
    suspicious[core] = distance[core].numpy() > SUSPICIOUS
    for rows, columns in _separate_parts(suspicious):
        part, fine = window.part(rows, columns)
        coarse = torch.stack([distance, nearby])[:, rows, columns]
        precision = trust[rows, columns] / limits[:, rows, columns].square()
        before = values[:, *fine].double()
        move, share = _replacement(before, part, coarse, precision, agreement)
        if values is msi:
            values = msi.clone()
        values[:, *fine], changed[fine] = (before + share * move).to(msi), share.to(msi)
    return values, 1 - changed


def _separate_parts(suspicious: NDArray[np.bool_]) -> Iterator[tuple[slice, slice]]:
    """Rectangles that contain the suspicious coarse pixels (h, w) with all that they depend on and do not overlap."""
    halo, covered = PART_HALO, -1
    while np.count_nonzero(suspicious) > covered:
        covered = int(np.count_nonzero(suspicious))
        parts = [
            (
                slice(max(0, rows.start - halo), rows.stop + halo),
                slice(max(0, columns.start - halo), columns.stop + halo),
            )
            for rows, columns in find_objects(label(suspicious, np.ones((3, 3)))[0])
        ]
        suspicious, halo = np.zeros_like(suspicious), 0
        for part in parts:
            suspicious[part] = True
    for rows, columns in parts:
        yield slice(*rows.indices(suspicious.shape[0])[:2]), slice(*columns.indices(suspicious.shape[1])[:2])


def _replacement(
    values: Tensor, window: _Window, distances: Tensor, precision: Tensor, agreement: Agreement
) -> tuple[Tensor, Tensor]:
    """What replaces an msi (M, H, W), as a difference to it, and the shares (H, W) to which it does.

    `distances` (2, h, w) are those of the coarse pixels and the largest ones near them; `precision` (M, h, w) is 1 over
    squared limits, 0 where nothing is known.
    """
    fine, largest = window.up(distances).clamp_min(0)
    weight = 1 / (1 + (fine / (END_OF_CHANGE * largest).clamp_min(1)) ** STEEPNESS)
    change = (1 - weight) * (1 - weight > SMALLEST_CHANGE)
    filled = window.up(window.predicted)
    for _ in range(FILL_ROUNDS):
        filled = filled + window.up(window.predicted - window.operator.apply(filled))
    move, difference = filled - values, window.predicted - window.operator.apply(values)
    changed = change * _changed_pixels(values, filled, weight, window, agreement)
    changed = _explaining(changed, move, difference, precision, change > SUSPECTED, window)
    left = (difference - window.operator.apply(changed * move)).square() * precision
    left = left.mean(0).sqrt() / STAYING
    stays = window.up((left**4 / (1 + left**4))[None])[0].clamp(0, 1)
    return move, changed + (change - changed).clamp_min(0) * stays


def _explaining(
    changed: Tensor, move: Tensor, difference: Tensor, precision: Tensor, suspected: Tensor, window: _Window
) -> Tensor:
    """(H, W) Shares of the suspected fine pixels that are to be moved, by `move` (M, H, W), to explain the difference.

    Simultaneous iterative reconstruction from the given shares; between its steps the shares are smoothed and
    sharpened, because a change has an area.
    """
    operator, share = window.operator, window.placement.rows.step * window.placement.columns.step
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
