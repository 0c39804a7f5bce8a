"""Missing pixels (NaN), handled once around all methods: filled smoothly before, masked again after.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from hyperfuse.errors import ValueRangeError
from hyperfuse.estimation.observation import Observation


def fill_missing(image: Tensor) -> Tensor:
    """(B, H, W) with every hole filled from its surroundings, band by band; a band without any value becomes 0."""
    known = torch.isfinite(image)
    if bool(known.all()):
        return image
    return _filled(torch.where(known, image, torch.zeros_like(image)), known.to(image))


def _filled(values: Tensor, weights: Tensor) -> Tensor:
    """Push-pull: halve the image with known pixels only until no hole is left, then fill holes from the coarser level."""
    if min(values.shape[1:]) < 2 or bool((weights > 0).all()):
        total = weights.sum((1, 2), keepdim=True)
        mean = (values * weights).sum((1, 2), keepdim=True) / total.clamp_min(1e-30)
        return torch.where(weights > 0, values, mean)
    coarse_weights = avg_pool2d(weights[None], 2, ceil_mode=True)[0]
    coarse_values = avg_pool2d((values * weights)[None], 2, ceil_mode=True)[0] / coarse_weights.clamp_min(1e-30)
    coarse = _filled(coarse_values, coarse_weights)
    smooth = interpolate(coarse[None], size=values.shape[1:], mode="bilinear", align_corners=False)[0]
    return torch.where(weights > 0, values, smooth)


def mask_missing(fused: Tensor, hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """NaN back where the msi has none of its bands complete, and in each band where the hsi pixel underneath is missing."""
    missing = ~torch.isfinite(hsi)
    if bool(missing.any()):
        axes = zip(fused.shape[1:], hsi.shape[1:], observation.scale, observation.shift, strict=True)
        rows, columns = (_pixel_underneath(*axis) for axis in axes)
        fused = fused.masked_fill(missing[:, rows][:, :, columns], torch.nan)
    msi_missing = ~torch.isfinite(msi).all(0)
    return fused.masked_fill(msi_missing, torch.nan) if bool(msi_missing.any()) else fused


def _pixel_underneath(fine: int, coarse: int, scale: float, shift: float) -> Tensor:
    """The coarse index in which each fine pixel lies, (fine,)."""
    positions = (torch.arange(fine, dtype=torch.float64) + 0.5 - shift) / scale - 0.5
    return positions.round().long().clamp(0, coarse - 1)


def usable_msi_bands(msi: Tensor) -> Tensor:
    """Indices of the msi bands that hold any value and, if there are such, more than one."""
    known = torch.isfinite(msi)
    filled = known.flatten(1).any(1)
    if not bool(filled.any()):
        raise ValueRangeError("an msi without a single valid pixel", "some pixels with data", "check its nodata value")
    highest = msi.masked_fill(~known, -torch.inf).amax((1, 2))
    lowest = msi.masked_fill(~known, torch.inf).amin((1, 2))
    varied = filled & (highest > lowest)
    return (varied if bool(varied.any()) else filled).nonzero()[:, 0]


def require_values(hsi: Tensor) -> None:
    if not bool(torch.isfinite(hsi).any()):
        raise ValueRangeError("an hsi without a single valid pixel", "some pixels with data", "check its nodata value")
