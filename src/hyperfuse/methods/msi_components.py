"""The msi as `universal` looks at it: without a level of its own, in its own principal components.

Shapes: M msi bands, k components of the msi, H W fine.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hyperfuse.methods.over_scene import SceneWise, scene_moments
from hyperfuse.methods.pair_model import PairModel

OFF_LEVEL = 1.0  # an msi whose mean is farther than this from what the hsi says, in deviations, has a level of its own


def without_own_level(model: PairModel) -> SceneWise[PairModel]:
    """The msi may have an unknown unit or offset."""
    level, spread = yield from scene_moments(model.window.fine(model.msi))
    off = level.abs() > OFF_LEVEL * spread.diagonal().sqrt()
    if not bool(off.any()):
        return model
    return replace(model, msi=model.msi - torch.where(off, level, 0.0)[:, None, None].to(model.msi))


def msi_axes(spread: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(M, k) principal axes of the msi, and (k,) what to divide its components by, halfway between one unit and one for each."""
    variances, axes = torch.linalg.eigh(spread)
    axes, deviations = axes.flip(1)[:, :most], variances.flip(0)[:most].clamp_min(0).sqrt()
    # The sign of an eigenvector is arbitrary; brighter is positive.
    axes = axes * torch.where(axes.sum(0) < 0, -1.0, 1.0)
    return axes, (deviations[0] * deviations.maximum(1e-3 * deviations[0])).sqrt().clamp_min(1e-12)
