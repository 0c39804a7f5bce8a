"""A network on windows of a scene, with the units and channels that it needs, found in windows spread over the scene.

A fuser, this one or that of a method, is frozen, knows its halo, and can be sent to another process. Shapes: C bands, M
msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hyperfuse.methods.catalogue import MethodFuser
from hyperfuse.methods.missing import fill_pair
from hyperfuse.methods.window import (
    FusedCore,
    Window,
    gather_statistics,
    in_parts,
    mask_missing,
    run_on_scene,
    run_with_statistics,
)
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.catalogue import AnyNetwork, load_model
from hyperfuse.models.matryoshka import PairChannels
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.ssa import SSA
from hyperfuse.models.weights import BICUBIC
from hyperfuse.physics.observation import Observation

# Highlights, the brightest pixels beyond this quantile, may exceed the range of values that a network was trained on.
RANGE_QUANTILE = 0.9995
LARGEST_SAMPLE = 1_000_000
# One of several windows contributes this many values to the range and the components of the scene.
LARGEST_SAMPLE_OF_WINDOW = 100_000
# An SRF that explains less than this share of an msi band's brightness does not determine the band's unit.
SMALLEST_GAIN = 0.2


@dataclass(frozen=True)
class NetworkFuser:
    network: SSA | BaselineNetwork | None
    """None only while the fuser is stored on disk."""
    hsi_unit: float
    msi_unit: Tensor  # (M, 1, 1)
    channels: PairChannels
    base: MethodFuser | None
    """The method whose result the network refines; None is bicubic, which the network computes itself."""
    filling: tuple[Any, ...] | None = None
    """Statistics of the scene that missing pixels are filled by; None where every window is a scene of its own."""
    interpolates_bad_bands: bool = True

    def halo(self, observation: Observation) -> int:
        own = network_halo(self.network, observation)
        return own if self.base is None else own + self.base.halo(observation)

    def fused_core(self, window: Window) -> FusedCore:
        return in_parts(self.fuse_window(window))

    @torch.inference_mode()
    def fuse_window(self, window: Window) -> Tensor:
        network = self.network
        assert network is not None
        filled = _filled(window, self.filling)
        cut = window.near_core(network_halo(network, window.observation))
        base = None if self.base is None else self.base.fuse_window(filled.widened(cut.fine))
        inner = cut.window(filled)
        device = next(network.parameters()).device
        hsi, msi = (inner.hsi / self.hsi_unit)[None].to(device), (inner.msi / self.msi_unit)[None].to(device)
        placement = inner.observation.placement
        if isinstance(network, BaselineNetwork):
            fused = network(hsi, msi, placement)
        else:
            scaled_base = None if base is None else (base / self.hsi_unit)[None].to(device)
            fused = network(hsi, msi, placement, scaled_base, self.channels)
        return mask_missing(inner.fine(fused[0]).float().cpu() * self.hsi_unit, window)


Fuser = MethodFuser | NetworkFuser


def network_halo(network: AnyNetwork | None, observation: Observation) -> int:
    """The receptive field in coarse pixels, and two for interpolation; 0 for a baseline that needs the whole scene."""
    field = None if network is None else network.receptive_field
    return 0 if field is None else max(field.coarse, math.ceil(field.fine / min(observation.scale))) + 2


def method_of(network: AnyNetwork) -> str | None:
    """The method whose weights these are: a network that runs inside or after a method, and not on its own."""
    if isinstance(network, PriorNetwork):
        return "universal"
    return "ssa-residual" if isinstance(network, SSA) and network.config.expected_error else None


def network_fuser(
    network: AnyNetwork,
    observation: Observation,
    wavelength_nm: Tensor | None,
    windows: Sequence[Callable[[], Window]],
    most_held: int | None = None,
    *,
    whole: bool = False,
) -> Fuser:
    """A network with the units and channels of a scene, from some of its windows; `whole`: the window is the scene."""
    if (method := method_of(network)) is not None and not isinstance(network, BaselineNetwork):
        fuser = MethodFuser(method, network=network)
        return fuser if whole else fuser.gather(windows, most_held)
    assert not isinstance(network, PriorNetwork)
    filling = None if whole else gather_statistics(fill_pair, windows, most_held)
    samples: list[list[Tensor]] = []  # (C, n) and (M, N) of every window: pixels of the cores, without holes
    for window in windows:
        filled = _filled(window(), filling)
        pixels = [filled.coarse(filled.hsi).flatten(1), filled.counted(filled.msi).flatten(1)]
        steps = [1 if whole else max(1, each.numel() // LARGEST_SAMPLE_OF_WINDOW) for each in pixels]
        samples.append(
            [each if step == 1 else each[:, ::step].clone() for each, step in zip(pixels, steps, strict=True)]
        )
    hsi, msi = (torch.cat(parts, dim=1)[:, None] for parts in zip(*samples, strict=True))
    high = network.config.value_range[1]
    hsi_unit = unit_of(hsi, high)
    msi_unit = msi_units(msi, observation, hsi_unit, high)
    channels, base = PairChannels(), None
    if isinstance(network, SSA):
        centres = msi_centres_nm(observation.srf, wavelength_nm)
        srf = observation.srf * hsi_unit / msi_unit[:, 0].double()
        channels = network.find_channels((hsi / hsi_unit)[None], (msi / msi_unit)[None], wavelength_nm, centres, srf)
        if network.config.base != BICUBIC:
            base = MethodFuser(network.config.base)
            base = base if whole else base.gather(windows, most_held)
    return NetworkFuser(network, hsi_unit, msi_unit, channels, base, filling)


def fuse_with_network(
    network: AnyNetwork, hsi: Tensor, msi: Tensor, observation: Observation, wavelength_nm: Tensor | None = None
) -> Tensor:
    """hsi (C, h, w), msi (M, H, W) -> (C, H, W) in the hsi's unit: a network on a pair that is the whole scene."""
    window = Window(hsi, msi, observation)
    return network_fuser(network, observation, wavelength_nm, [lambda: window], whole=True).fuse_window(window)


def load_network(weights: Any) -> AnyNetwork:
    """The network in a folder, one of ours or a baseline; a network itself is returned as it is."""
    return weights if isinstance(weights, AnyNetwork) else load_model(str(weights))


def msi_centres_nm(srf: Tensor, wavelength_nm: Tensor | None) -> Tensor | None:
    """Centre wavelengths of msi bands with this SRF (..., M, C); the mean of all for a band without weight."""
    if wavelength_nm is None:
        return None
    weights = srf.double().clamp(min=0) + 1e-9
    return (weights * wavelength_nm.double()).sum(dim=-1) / weights.sum(dim=-1)


def msi_units(msi: Tensor, observation: Observation, hsi_unit: float, high: float) -> Tensor:
    """(M, 1, 1): what to divide the msi's bands by, so that a grey pixel has the same value in both images.

    The rows of the SRF sum to 1 where both images have one unit. A band that the SRF does not explain is scaled by its
    own values.
    """
    gains = observation.srf.sum(dim=1)
    own = torch.tensor([unit_of(band, high) for band in msi], dtype=torch.float64)
    units = torch.where(gains > SMALLEST_GAIN * own / hsi_unit, gains * hsi_unit, own)
    return units[:, None, None].to(msi.dtype)


def unit_of(image: Tensor, high: float) -> float:
    """What to divide an image by, so that its values fill the range of a network's training data."""
    values = image.flatten()[:: max(1, image.numel() // LARGEST_SAMPLE)]
    brightest = float(torch.quantile(values.float(), RANGE_QUANTILE)) / high
    return brightest if brightest > 0 else max(1.0, float(image.max()) / high)


def _filled(window: Window, statistics: tuple[Any, ...] | None) -> Window:
    filling = fill_pair(window)
    return run_on_scene(filling) if statistics is None else run_with_statistics(filling, statistics)
