"""Which method suits a pair: degrade the pair once more and see who gives the hsi back best.

Shapes: C bands, M msi bands, h w coarse, H W fine. The task (hsi degraded, msi degraded) -> hsi needs no reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.catalogue import DEFAULT, METHODS

# Another method must beat the default by this many decibels: the test is one scale coarser than the task.
MARGIN_DB = 1.0
IGNORED_SHARE = 0.02
FEWEST_COARSER_PIXELS = 5
SMALLEST_SCALE = 1.5
MOST_PIXELS = 128  # side of the coarse image that the test looks at


@dataclass(frozen=True)
class OnceMore:
    """The pair one scale coarser; the true hsi is its reference."""

    hsi: Tensor
    msi: Tensor
    observation: Observation
    reference: Tensor


def choose_method(hsi: Tensor, msi: Tensor, observation: Observation) -> str:
    scores = scores_once_more(hsi, msi, observation)
    if not scores:
        return DEFAULT
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] > scores[DEFAULT] + MARGIN_DB else DEFAULT


def scores_once_more(hsi: Tensor, msi: Tensor, observation: Observation) -> dict[str, float]:
    """Peak signal to noise ratio in dB per method, on the hsi's own grid; empty where the hsi is too small to degrade."""
    task = degraded_once_more(hsi, msi, observation)
    if task is None:
        return {}
    peak = float(task.reference.abs().max().clamp_min(1e-30))
    scores = {}
    for name, method in METHODS.items():
        error = method.function(task.hsi, task.msi, task.observation) - task.reference
        per_pixel = error.double().square().mean(0).flatten().sort().values
        # A handful of glaring pixels would decide alone, and they are not where the finer scale is won or lost.
        kept = per_pixel[: max(1, int(len(per_pixel) * (1 - IGNORED_SHARE)))]
        scores[name] = float(-10 * torch.log10(kept.mean() / peak**2 + 1e-30))
    return scores


def degraded_once_more(hsi: Tensor, msi: Tensor, observation: Observation) -> OnceMore | None:
    """Both images through the hsi's point spread; the scale shrinks where the hsi has too few pixels for it."""
    coarse = observation.spatial_operator((msi.shape[1], msi.shape[2]), (hsi.shape[1], hsi.shape[2])).apply(msi)
    rows, columns = (slice(max(0, (size - MOST_PIXELS) // 2), (size + MOST_PIXELS) // 2) for size in hsi.shape[1:])
    reference, coarse = hsi[:, rows, columns], coarse[:, rows, columns]
    sizes = reference.shape[1:]
    coarser = [
        int(min(size / SMALLEST_SCALE, max(FEWEST_COARSER_PIXELS, round(size / scale))))
        for size, scale in zip(sizes, observation.scale, strict=True)
    ]
    if min(coarser) < FEWEST_COARSER_PIXELS:
        return None
    scale = (sizes[0] / coarser[0], sizes[1] / coarser[1])
    moved = replace(
        observation,
        scale=scale,
        sigma=(observation.sigma[0] * scale[0] / observation.scale[0], observation.sigma[1] * scale[1] / observation.scale[1]),
        shift=(0.0, 0.0),
        grid_shift=(0.0, 0.0),
    )
    operator = moved.spatial_operator((sizes[0], sizes[1]), (coarser[0], coarser[1]))
    quieter = operator.mean_noise_gain() ** 0.5
    moved = replace(moved, hsi_noise=observation.hsi_noise * quieter, msi_noise=observation.msi_noise * quieter)
    return OnceMore(operator.apply(reference), coarse, moved, reference)
