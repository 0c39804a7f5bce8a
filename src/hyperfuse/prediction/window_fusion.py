"""What is computed on a tile: a method or a network together with everything it must know of the scene.

Both are frozen, know how far they look, and may travel to another process. Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.catalogue import find_method
from hyperfuse.methods.fuse_arrays import fuse_window
from hyperfuse.methods.nodata import fill_missing, mask_missing
from hyperfuse.methods.over_scene import answered, learned
from hyperfuse.methods.window import Window
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.networks.network_config import BICUBIC
from hyperfuse.networks.pair_channels import PairChannels, find_channels
from hyperfuse.networks.pixel_centres import Placement
from hyperfuse.networks.rivals.catalogue import AnyNetwork
from hyperfuse.prediction.network_fusion import axis_placement, msi_centres_nm, msi_units, network_errors, unit_of

# Of each window, so many values stand for its range and its components.
LARGEST_SAMPLE_OF_WINDOW = 100_000


class WindowFusion(Protocol):
    """`fuse_window` gives the core of a window (C, rows, columns), NaN where there is no data, in the hsi's unit."""

    def reach(self, observation: Observation) -> int:
        """How many coarse pixels around its core a window must show."""

    def fuse_window(self, window: Window) -> Tensor: ...


@dataclass(frozen=True)
class MethodFusion:
    method: str
    consistency: bool
    answers: tuple[Any, ...]
    """What the scene's windows answered to the method's questions."""

    def reach(self, observation: Observation) -> int:
        return method_reach(self.method, self.consistency, observation)

    def fuse_window(self, window: Window) -> Tensor:
        return answered(fuse_window(window, self.method, self.consistency), self.answers)


def method_reach(method: str, consistency: bool, observation: Observation) -> int:
    """Consistency looks as far as FUSE does, around the result of the method."""
    own = find_method(method).footprint.reach(observation)
    return own + find_method("fuse").footprint.reach(observation) if consistency else own


def learn_method(method: str, consistency: bool, windows: Sequence[Callable[[], Window]]) -> MethodFusion:
    """Statistics of the scene from some of its windows, which all hold data."""
    return MethodFusion(method, consistency, learned(lambda window: fuse_window(window, method, consistency), windows))


@dataclass(frozen=True)
class NetworkFusion:
    network: FusionNetwork
    hsi_unit: float
    msi_unit: Tensor
    """(M, 1, 1)"""
    channels: PairChannels
    base: MethodFusion | None
    """The closed form that the network adds to; None is bicubic, which the network makes itself."""

    def reach(self, observation: Observation) -> int:
        own = network_reach(self.network, observation)
        return own if self.base is None else own + self.base.reach(observation)

    @torch.inference_mode()
    def fuse_window(self, window: Window) -> Tensor:
        cut = window.near_core(network_reach(self.network, window.observation))
        base = None if self.base is None else self.base.fuse_window(replace(_filled(window), fine_core=cut.fine))
        inner = cut.window(_filled(window))
        observation = inner.observation
        placement = Placement(*(axis_placement(*axis) for axis in zip(observation.scale, observation.shift, strict=True)))
        with network_errors():
            fused = self.network(
                (inner.hsi / self.hsi_unit)[None],
                (inner.msi / self.msi_unit)[None],
                placement,
                None if base is None else (base / self.hsi_unit)[None],
                self.channels,
            )
        return mask_missing(inner.fine(fused[0]) * self.hsi_unit, window)


def network_reach(network: AnyNetwork, observation: Observation) -> int:
    """The receptive field in coarse pixels, and two for interpolation. A rival sees the whole scene, or none of it."""
    margin = network.margin
    if margin is None:
        return 0
    return max(margin.coarse, math.ceil(margin.fine / min(observation.scale))) + 2


def learn_network(
    network: FusionNetwork, observation: Observation, wavelength_nm: Tensor | None, windows: Sequence[Callable[[], Window]]
) -> NetworkFusion:
    """Units and channels of the scene from some of its windows, and the statistics of the closed form that the network adds to."""
    samples = [_pixels_of(window()) for window in windows]
    hsi, msi = (torch.cat(parts, dim=1)[:, None] for parts in zip(*samples, strict=True))
    hsi_unit = unit_of(hsi, network.config.value_range[1])
    msi_unit = msi_units(msi, observation, hsi_unit, network.config.value_range[1])
    centres = msi_centres_nm(observation.response, wavelength_nm)
    with network_errors():
        channels = find_channels(network.config, (hsi / hsi_unit)[None], (msi / msi_unit)[None], wavelength_nm, centres)
    name = network.config.base
    base = None if name == BICUBIC else learn_method(name, False, windows)
    return NetworkFusion(network, hsi_unit, msi_unit, channels, base)


def _pixels_of(window: Window) -> tuple[Tensor, Tensor]:
    """(C, n) and (M, N): known pixels of the cores, not too many."""
    filled = _filled(window)
    hsi, msi = filled.coarse(filled.hsi).flatten(1), filled.fine(filled.msi).flatten(1)
    return _thinned(hsi), _thinned(msi)


def _thinned(pixels: Tensor) -> Tensor:
    return pixels[:, :: max(1, pixels.numel() // LARGEST_SAMPLE_OF_WINDOW)].clone()


def _filled(window: Window) -> Window:
    return replace(window, hsi=fill_missing(window.hsi), msi=fill_missing(window.msi))
