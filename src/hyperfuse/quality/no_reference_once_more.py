"""A method judged one scale coarser: both inputs are degraded once more, fused, and compared with the true hsi (Wald's protocol).

Shapes: C bands, M msi bands, h w coarse, H W fine; NaN where there is no data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.bicubic import upsample
from hyperfuse.methods.nodata import fill_missing
from hyperfuse.methods.selection import degraded_once_more
from hyperfuse.quality.metrics import psnr_db, spectral_angle_degrees
from hyperfuse.quality.pairing import default_peak

Fuse = Callable[[Tensor, Tensor, Observation], Tensor]


@dataclass(frozen=True)
class OnceMoreScores:
    """Bicubic stands beside the method: what interpolation alone would have reached."""

    psnr_db: float
    spectral_angle_degrees: float
    bicubic_psnr_db: float
    bicubic_angle_degrees: float
    peak: float
    coarser_size: tuple[int, int]
    scale: tuple[float, float]


def scored_once_more(hsi: Tensor, msi: Tensor, observation: Observation, fuse: Fuse) -> OnceMoreScores | None:
    """None where the hsi has too few pixels to be degraded."""
    missing = torch.where(torch.isfinite(hsi), 0.0, torch.nan)
    task = degraded_once_more(fill_missing(hsi), fill_missing(msi), observation)
    if task is None:
        return None
    # The task looks at the middle of the hsi; its holes must not be scored.
    top, left = ((whole - part) // 2 for whole, part in zip(hsi.shape[1:], task.reference.shape[1:], strict=True))
    holes = missing[:, top : top + task.reference.shape[1], left : left + task.reference.shape[2]]
    reference = (task.reference + holes).numpy()
    by_method = fuse(task.hsi, task.msi, task.observation).numpy()
    interpolated = upsample(task.hsi, (task.msi.shape[1], task.msi.shape[2]), task.observation).numpy()
    peak = default_peak(reference)
    return OnceMoreScores(
        psnr_db=psnr_db(by_method, reference, peak),
        spectral_angle_degrees=spectral_angle_degrees(by_method, reference),
        bicubic_psnr_db=psnr_db(interpolated, reference, peak),
        bicubic_angle_degrees=spectral_angle_degrees(interpolated, reference),
        peak=peak,
        coarser_size=(task.hsi.shape[1], task.hsi.shape[2]),
        scale=task.observation.scale,
    )
