"""What was found out about a scene, as plain containers of tensors and numbers, to be kept on disk, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hyperfuse.estimation.observation import Observation
from hyperfuse.networks.components import Subspace
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.networks.pair_channels import PairChannels
from hyperfuse.networks.rivals.catalogue import AnyNetwork
from hyperfuse.prediction.straightening import Straightening
from hyperfuse.prediction.window_fusion import MethodFusion, NetworkFusion

SUBSPACES = ("hsi_subspace", "msi_subspace")


def notes_of(
    observation: Observation, fusion: MethodFusion | NetworkFusion, straightening: Straightening | None = None
) -> dict[str, Any]:
    network = fusion if isinstance(fusion, NetworkFusion) else None
    method = fusion.base if isinstance(fusion, NetworkFusion) else fusion
    return {
        "observation": _contents(observation),
        "method": None if method is None else _contents(method),
        "network": None if network is None else _network_notes(network),
        "straightening": None if straightening is None else straightening.notes(),
    }


def observation_from(notes: Mapping[str, Any]) -> Observation:
    return Observation(**notes["observation"])


def straightening_from(notes: Mapping[str, Any]) -> Straightening | None:
    found = notes["straightening"]
    return None if found is None else Straightening.from_notes(found)


def fusion_from(notes: Mapping[str, Any], network: AnyNetwork | None) -> MethodFusion | NetworkFusion:
    method = None if notes["method"] is None else MethodFusion(**notes["method"])
    if network is None:
        assert method is not None
        return method
    assert isinstance(network, FusionNetwork), "rivals are run on whole scenes"
    found = notes["network"]
    channels = dict(found["channels"])
    for name in SUBSPACES:
        channels[name] = None if channels[name] is None else Subspace(**channels[name])
    return NetworkFusion(network, found["hsi_unit"], found["msi_unit"], PairChannels(**channels), method)


def _network_notes(fusion: NetworkFusion) -> dict[str, Any]:
    channels = _contents(fusion.channels)
    for name in SUBSPACES:
        channels[name] = None if channels[name] is None else _contents(channels[name])
    return {"hsi_unit": fusion.hsi_unit, "msi_unit": fusion.msi_unit, "channels": channels}


def _contents(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item)}
