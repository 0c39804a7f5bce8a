"""The scores of a fused image: one protocol for all tables.

The fused image is clipped to 0..1, the range of the reference. PSNR is pooled over all bands and pixels with peak 1, the spectral
angle is the mean over pixels in degrees, ERGAS has the factor 100/scale, SSIM is the mean over bands. See docs/metrics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import GridError, ValueRangeError
from hyperfuse.quality.metrics import ergas, psnr_db, spectral_angle_degrees, ssim
from hyperfuse.scoring.case import CasePair

PEAK = 1.0


@dataclass(frozen=True)
class Scores:
    """None is not defined: a PSNR of equal images, an SSIM of images without room for a window."""

    psnr_db: float | None
    spectral_angle_degrees: float | None
    ergas: float | None
    ssim: float | None


def scores(fused: NDArray[np.float32], pair: CasePair) -> Scores:
    reference = pair.reference.values
    if fused.shape != reference.shape:
        raise GridError(
            f"fused image of shape {fused.shape} for a reference of {reference.shape}",
            "the same bands and pixels",
            "cut the reference to what both images show",
        )
    valid = np.isfinite(reference).all(axis=0) if pair.valid is None else pair.valid
    holes = int(np.count_nonzero(~np.isfinite(fused).all(axis=0) & valid))
    if holes and pair.truth is not None:
        raise ValueRangeError(f"{holes} fused pixels without a value", "a value for every pixel of a pair without holes")
    shown = np.clip(fused, 0.0, PEAK)
    return Scores(
        _defined(psnr_db(shown, reference, PEAK, valid)),
        _defined(spectral_angle_degrees(shown, reference, valid)),
        _defined(ergas(shown, reference, pair.scale, valid)),
        _defined(ssim(shown, reference, PEAK, valid)),
    )


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) else None
