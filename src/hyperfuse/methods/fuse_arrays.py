"""The one entry on tensors: a pair in, the fused image out, whatever the method, the units and the holes.

Shapes: C bands, M msi bands, h w coarse, H W fine. NaN marks missing pixels in either image and in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.errors import BandError
from hyperfuse.estimation.estimate import NOTHING_KNOWN, KnownParts, estimate_observation
from hyperfuse.estimation.observation import Observation, require_pair
from hyperfuse.methods.catalogue import AUTO, DEFAULT, find_method
from hyperfuse.methods.consistency import make_consistent
from hyperfuse.methods.detail_injection import bicubic
from hyperfuse.methods.nodata import fill_missing, mask_missing, require_values, usable_msi_bands
from hyperfuse.methods.over_scene import SceneWise, alone
from hyperfuse.methods.pair_model import scene_levels
from hyperfuse.methods.selection import choose_method
from hyperfuse.methods.window import Window


def fuse_arrays(
    hsi: Tensor,
    msi: Tensor,
    observation: Observation | KnownParts | None = None,
    method: str = DEFAULT,
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
    window = Window(hsi, msi, observation)
    return alone(fuse_window(window, suited_method(window) if method == AUTO else method, consistency))


def suited_method(window: Window) -> str:
    """The method that `auto` stands for on this pair."""
    pair = alone(prepared_pair(window))
    return choose_method(pair.window.hsi, pair.window.msi, pair.window.observation) if pair.msi_says_something else "bicubic"


def fuse_window(window: Window, method: str, consistency: bool = False) -> SceneWise[Tensor]:
    """The core of a window, fused by the method of this name: NaN marks missing pixels, units are the hsi's."""
    found = find_method(method)
    return fuse_window_by(found.over_scene, window, consistency, found.without_msi)


def fuse_window_by(
    over_scene: Callable[[Window], SceneWise[Tensor]],
    window: Window,
    consistency: bool = False,
    without_msi: Callable[[Window], SceneWise[Tensor]] = bicubic,
) -> SceneWise[Tensor]:
    """The same by a method that has no name, such as one with weights of its own; `without_msi` where the msi is constant."""
    pair = yield from prepared_pair(window)
    if not pair.msi_says_something:
        over_scene, consistency = without_msi, False
    if consistency:
        fused = yield from over_scene(pair.window.for_everything())
        fused = yield from make_consistent(fused, pair.window)
    else:
        fused = yield from over_scene(pair.window)
    return mask_missing(fused * pair.hsi_unit, replace(window, msi=window.msi[pair.msi_bands]))


@dataclass(frozen=True)
class PreparedPair:
    window: Window
    hsi_unit: float
    msi_bands: Tensor
    msi_says_something: bool


def prepared_pair(window: Window) -> SceneWise[PreparedPair]:
    """Without holes, without msi bands that hold nothing, as float32 numbers of about 1, the observation in the same units."""
    kept, msi_says_something = yield from usable_msi_bands(window)
    hsi, msi, observation = fill_missing(window.hsi.double()), fill_missing(window.msi[kept].double()), window.observation
    hsi_unit, msi_unit = yield from scene_levels(window.coarse(hsi), window.fine(msi))
    in_units = replace(
        observation,
        response=observation.response[kept] * (hsi_unit / msi_unit),
        offset=observation.offset[kept] / msi_unit,
        hsi_noise=observation.hsi_noise / hsi_unit,
        msi_noise=observation.msi_noise[kept] / msi_unit,
    )
    prepared = replace(window, hsi=(hsi / hsi_unit).float(), msi=(msi / msi_unit).float(), observation=in_units)
    return PreparedPair(prepared, hsi_unit, kept, msi_says_something)


def _require_fitting(hsi: Tensor, msi: Tensor, observation: Observation) -> None:
    expected = (msi.shape[0], hsi.shape[0])
    if tuple(observation.response.shape) != expected:
        raise BandError(
            f"an observation whose response has shape {tuple(observation.response.shape)}",
            f"{expected}: one row per msi band, one column per hsi band",
        )
    assert torch.isfinite(observation.response).all()
