"""Missing pixels (NaN), handled once around all methods: filled smoothly before, masked again after.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from hyperfuse.errors import ValueRangeError
from hyperfuse.methods.over_scene import SceneWise, ask
from hyperfuse.methods.window import Window


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
    # By exactly two, whatever is cut off then: pixels must not drift with the size of the image.
    smooth = interpolate(coarse[None], scale_factor=2, mode="bilinear", align_corners=False)[0]
    return torch.where(weights > 0, values, smooth[:, : values.shape[1], : values.shape[2]])


def mask_missing(fused: Tensor, window: Window) -> Tensor:
    """NaN back, in the core of a window with holes, where the msi has none of its bands complete, and in each band where the hsi
    pixel underneath is missing.
    """
    missing = ~torch.isfinite(window.hsi)
    if bool(missing.any()):
        observation = window.observation
        axes = zip(window.fine_core, window.fine_size, window.coarse_size, observation.scale, observation.shift, strict=True)
        rows, columns = (_pixel_underneath(*axis) for axis in axes)
        fused = fused.masked_fill(missing[:, rows][:, :, columns], torch.nan)
    msi_missing = ~torch.isfinite(window.fine(window.msi)).all(0)
    return fused.masked_fill(msi_missing, torch.nan) if bool(msi_missing.any()) else fused


def _pixel_underneath(core: slice, fine: int, coarse: int, scale: float, shift: float) -> Tensor:
    """The coarse index in which each fine pixel of the core lies."""
    start, stop, _ = core.indices(fine)
    positions = (torch.arange(start, stop, dtype=torch.float64) + 0.5 - shift) / scale - 0.5
    return positions.round().long().clamp(0, coarse - 1)


def usable_msi_bands(window: Window) -> SceneWise[tuple[Tensor, bool]]:
    """Indices of the msi bands that hold any value and, if there are such, more than one; and whether there are such."""
    msi = window.fine(window.msi)

    def share() -> tuple[Tensor, Tensor]:
        known = torch.isfinite(msi)
        return msi.masked_fill(~known, torch.inf).amin((1, 2)), msi.masked_fill(~known, -torch.inf).amax((1, 2))

    return ask(share, _varied_bands)


def _varied_bands(shares: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, bool]:
    lowest = torch.stack([low for low, _ in shares]).amin(0)
    highest = torch.stack([high for _, high in shares]).amax(0)
    filled, varied = highest >= lowest, highest > lowest
    if not bool(filled.any()):
        raise ValueRangeError("an msi without a single valid pixel", "some pixels with data", "check its nodata value")
    if not bool(varied.any()):
        warnings.warn("the msi is constant and adds nothing: the hsi is interpolated", stacklevel=2)
    return (varied if bool(varied.any()) else filled).nonzero()[:, 0], bool(varied.any())


def require_values(hsi: Tensor) -> None:
    if not bool(torch.isfinite(hsi).any()):
        raise ValueRangeError("an hsi without a single valid pixel", "some pixels with data", "check its nodata value")
