"""Everything that is found out about a scene before its first pixel is fused, and is the same for all of its pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.estimation.observation import Observation
from hyperfuse.networks.rivals.catalogue import AnyNetwork
from hyperfuse.prediction.aligned_pair import AlignedPair
from hyperfuse.prediction.fuse_pair import fuse_pair, observe, resolved_method
from hyperfuse.prediction.fusion_request import HSI, FusionChoices
from hyperfuse.prediction.memory import SHARE_OF_PREPARING
from hyperfuse.prediction.moving import moved
from hyperfuse.prediction.network_fusion import load_network, require_fitting_bands
from hyperfuse.prediction.registered_pair import register_pair
from hyperfuse.prediction.straightening import Straightening
from hyperfuse.progress import Advance


@dataclass(frozen=True)
class PreparedScene:
    pair: AlignedPair
    hsi: xr.DataArray
    """As it was opened: whose bands, data type and metadata the fused cube has."""
    choices: FusionChoices
    observation: Observation
    method: str
    network: AnyNetwork | None
    aligned: AlignedPair
    """The pair before its HSI was straightened, where that was needed; else the same."""
    straightening: Straightening | None

    @property
    def method_used(self) -> str | None:
        return self.method if self.network is None else None

    @property
    def weights_digest(self) -> str | None:
        return None if self.network is None else self.network.weights_digest or "unsaved"


def prepare_scene(
    pair: AlignedPair,
    hsi: xr.DataArray,
    choices: FusionChoices,
    advance: Advance,
    budget: int | None = None,
    decided: str | None = None,
) -> PreparedScene:
    """How the pair was observed and what to fuse it with, in two steps.

    With a `budget` of memory, in bytes, large pairs are read in parts.
    `decided` is the method that an earlier run found to suit the pair: the choice is not made twice.
    """
    most_bytes = None if budget is None else int(SHARE_OF_PREPARING * budget)
    network = None if choices.weights is None else load_network(str(choices.weights))
    if network is not None:
        require_fitting_bands(network, int(pair.usable_bands.sum()), pair.fine_shape[0])
    found = register_pair(
        pair,
        lambda each: observe(each, hsi, choices.hints, most_bytes),
        local_shift=choices.local_shift,
        look_further=choices.hints.estimate and choices.hints.shift is None,
    )
    advance(1)
    method = decided or choices.method
    if network is None:
        method = resolved_method(found.pair, found.observation, method, most_bytes)
    advance(1)
    return PreparedScene(found.pair, hsi, choices, found.observation, method, network, pair, found.straightening)


def fuse_whole(scene: PreparedScene) -> NDArray[np.float32]:
    """(C, H, W) All of a scene at once, where the user wants it to lie."""
    fused = fuse_pair(scene.pair, scene.observation, scene.method, scene.network, consistency=scene.choices.consistency)
    return moved(fused, scene.observation.misregistration) if scene.choices.trust == HSI else fused
