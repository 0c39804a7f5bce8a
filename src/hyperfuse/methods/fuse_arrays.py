"""The one entry on tensors: a pair in, the fused image out, whatever the method, the units and the holes.

Shapes: C bands, M msi bands, h w coarse, H W fine. NaN marks missing pixels in either image and in the result.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.errors import BandError
from hyperfuse.estimation.estimate import NOTHING_KNOWN, KnownParts, estimate_observation
from hyperfuse.estimation.observation import Observation, require_pair
from hyperfuse.methods.catalogue import AUTO, find_method
from hyperfuse.methods.consistency import make_consistent
from hyperfuse.methods.nodata import fill_missing, mask_missing, require_values, usable_msi_bands
from hyperfuse.methods.pair_model import root_mean_square
from hyperfuse.methods.selection import choose_method


def fuse_arrays(
    hsi: Tensor,
    msi: Tensor,
    observation: Observation | KnownParts | None = None,
    method: str = AUTO,
    consistency: bool = False,
) -> Tensor:
    """hsi (C, h, w) and msi (M, H, W) -> (C, H, W), on the msi's grid, in the hsi's units.

    What the observation leaves open is estimated from the pair. `consistency` appends a noise-weighted step onto both images.
    """
    require_pair(hsi, msi)
    require_values(hsi)
    if method != AUTO:
        find_method(method)
    if not isinstance(observation, Observation):
        observation = estimate_observation(hsi, msi, known=observation or NOTHING_KNOWN)
    _require_fitting(hsi, msi, observation)
    pair = _prepared(hsi, msi, observation)
    if pair.msi_is_constant:
        warnings.warn("the msi is constant and adds nothing: the hsi is interpolated", stacklevel=2)
        method, consistency = "bicubic", False
    name = choose_method(pair.hsi, pair.msi, pair.observation) if method == AUTO else method
    fused = find_method(name).function(pair.hsi, pair.msi, pair.observation)
    if consistency:
        fused = make_consistent(fused, pair.hsi, pair.msi, pair.observation)
    fused = fused.mul_(pair.hsi_unit)
    return mask_missing(fused, hsi, msi[usable_msi_bands(msi)], observation)


def suited_method(hsi: Tensor, msi: Tensor, observation: Observation) -> str:
    """The method that `auto` stands for on this pair."""
    pair = _prepared(hsi, msi, observation)
    return "bicubic" if pair.msi_is_constant else choose_method(pair.hsi, pair.msi, pair.observation)


@dataclass(frozen=True)
class _PreparedPair:
    hsi: Tensor
    msi: Tensor
    observation: Observation
    hsi_unit: float

    @property
    def msi_is_constant(self) -> bool:
        return bool((self.msi.amax((1, 2)) == self.msi.amin((1, 2))).all())


def _prepared(hsi: Tensor, msi: Tensor, observation: Observation) -> _PreparedPair:
    """Without holes, without msi bands that hold nothing, as float32 numbers of about 1, the observation in the same units."""
    kept = usable_msi_bands(msi)
    whole_hsi, whole_msi = fill_missing(hsi.double()), fill_missing(msi[kept].double())
    hsi_unit, msi_unit = root_mean_square(whole_hsi), root_mean_square(whole_msi)
    in_units = replace(
        observation,
        response=observation.response[kept] * (hsi_unit / msi_unit),
        offset=observation.offset[kept] / msi_unit,
        hsi_noise=observation.hsi_noise / hsi_unit,
        msi_noise=observation.msi_noise[kept] / msi_unit,
    )
    return _PreparedPair((whole_hsi / hsi_unit).float(), (whole_msi / msi_unit).float(), in_units, hsi_unit)


def _require_fitting(hsi: Tensor, msi: Tensor, observation: Observation) -> None:
    expected = (msi.shape[0], hsi.shape[0])
    if tuple(observation.response.shape) != expected:
        raise BandError(
            f"an observation whose response has shape {tuple(observation.response.shape)}",
            f"{expected}: one row per msi band, one column per hsi band",
        )
    assert torch.isfinite(observation.response).all()
