"""What is computed on a tile: a method or a network together with everything it must know of the scene.

Both are frozen, know how far they look, and may travel to another process. Shapes: C bands, M msi bands, h w coarse, H
W fine.

A trained network on a pair of arrays of any unit and size.

Shapes: C bands, M msi bands, h w coarse, H W fine. The arrays have no holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from hyperfuse.methods.catalogue import find_method
from hyperfuse.methods.run import fuse_arrays, fuse_window, fuse_window_by
from hyperfuse.methods.scene_stats import alone, answered, learned
from hyperfuse.methods.universal import fuse_guided
from hyperfuse.methods.window import Window, fill_missing, mask_missing
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.baselines.catalogue import AnyNetwork, load_any_network
from hyperfuse.models.channels import PairChannels, find_channels
from hyperfuse.models.config import BICUBIC
from hyperfuse.models.pixel_centres import AxisPlacement, Placement
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.ssa import FusionNetwork
from hyperfuse.models.tiling import fuse_by_tiles
from hyperfuse.physics.observation import Observation

# Pixels above this share of all are highlights: they may leave the network's range of values.
RANGE_QUANTILE = 0.9995
LARGEST_SAMPLE = 1_000_000
# A response that explains less than this share of an msi band's brightness does not say its unit.
SMALLEST_GAIN = 0.2


def load_network(weights: str) -> AnyNetwork:
    """Ours or a rival."""
    return load_any_network(weights)


def require_fitting_bands(network: AnyNetwork, bands: int, msi_bands: int) -> None:
    """Said before the estimation, not after it."""
    network.check_bands(bands, msi_bands)


def fuse_with_network(
    network: AnyNetwork, hsi: Tensor, msi: Tensor, observation: Observation, wavelength_nm: Tensor | None = None
) -> Tensor:
    """hsi (C, h, w), msi (M, H, W) -> (C, H, W) in the hsi's unit. The closed form that the network adds to is run
    first.
    """
    if isinstance(network, PriorNetwork):
        return alone(fuse_window_by(partial(fuse_guided, network=network), Window(hsi, msi, observation)))
    hsi_unit = unit_of(hsi, network.config.value_range[1])
    msi_unit = msi_units(msi, observation, hsi_unit, network.config.value_range[1])
    placement = Placement(*(axis_placement(*axis) for axis in zip(observation.scale, observation.shift, strict=True)))
    base = None if network.config.base == BICUBIC else fuse_arrays(hsi, msi, observation, network.config.base)
    device = next(network.parameters()).device
    whole_hsi, whole_msi = (hsi / hsi_unit)[None].to(device), (msi / msi_unit)[None].to(device)
    if isinstance(network, BaselineNetwork):
        with torch.inference_mode():
            whole: Tensor = network(whole_hsi, whole_msi, placement)
        return whole[0].cpu() * hsi_unit
    channels = find_channels(
        network.config, whole_hsi, whole_msi, wavelength_nm, msi_centres_nm(observation.srf, wavelength_nm)
    )
    fused = fuse_by_tiles(
        network,
        whole_hsi,
        whole_msi,
        placement=placement,
        base=None if base is None else (base / hsi_unit)[None].to(device),
        channels=channels,
    )
    return fused[0].cpu() * hsi_unit


def msi_centres_nm(srf: Tensor, wavelength_nm: Tensor | None) -> Tensor | None:
    """Where the bands of an msi with this response (..., M, C) lie; a band that sees nothing lies in the middle of all."""
    if wavelength_nm is None:
        return None
    weights = srf.double().clamp(min=0) + 1e-9
    return (weights * wavelength_nm.double()).sum(dim=-1) / weights.sum(dim=-1)


def msi_units(msi: Tensor, observation: Observation, hsi_unit: float, high: float) -> Tensor:
    """(M, 1, 1): what to divide the msi's bands by, so that a grey pixel has the same value in both images, as in
    training.

    The response says it: its rows, which sum to 1 where both images are in one unit. A band that the response leaves
    dark is scaled by its own values.
    """
    gains = observation.srf.sum(dim=1)
    own = torch.tensor([unit_of(band, high) for band in msi], dtype=torch.float64)
    units = torch.where(gains > SMALLEST_GAIN * own / hsi_unit, gains * hsi_unit, own)
    return units[:, None, None].to(msi.dtype)


def axis_placement(scale: float, shift: float) -> AxisPlacement:
    """Fine pixel i lies at coarse position (i + 0.5 - shift) / scale - 0.5."""
    return AxisPlacement((0.5 - shift) / scale - 0.5, 1 / scale)


def unit_of(image: Tensor, high: float) -> float:
    """What to divide an image by, so that its values but for highlights fill the network's range, as they did in
    training.
    """
    values = image.flatten()[:: max(1, image.numel() // LARGEST_SAMPLE)]
    brightest = float(torch.quantile(values.float(), RANGE_QUANTILE)) / high
    return brightest if brightest > 0 else max(1.0, float(image.max()) / high)


# Of each window, so many values stand for its range and its components.
LARGEST_SAMPLE_OF_WINDOW = 100_000


class WindowFusion(Protocol):
    """`fuse_window` gives the core of a window (C, rows, columns), NaN where there is no data, in the hsi's unit."""

    def halo(self, observation: Observation) -> int:
        """How many coarse pixels around its core a window must show."""

    def fuse_window(self, window: Window) -> Tensor: ...


@dataclass(frozen=True)
class MethodFusion:
    method: str
    consistency: bool
    answers: tuple[Any, ...]
    """What the scene's windows answered to the method's questions."""

    def halo(self, observation: Observation) -> int:
        return method_halo(self.method, self.consistency, observation)

    def fuse_window(self, window: Window) -> Tensor:
        return answered(fuse_window(window, self.method, self.consistency), self.answers)


def method_halo(method: str, consistency: bool, observation: Observation) -> int:
    """Consistency looks as far as FUSE does, around the result of the method."""
    own = find_method(method).footprint.halo(observation)
    return own + find_method("fuse").footprint.halo(observation) if consistency else own


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

    def halo(self, observation: Observation) -> int:
        own = network_halo(self.network, observation)
        return own if self.base is None else own + self.base.halo(observation)

    @torch.inference_mode()
    def fuse_window(self, window: Window) -> Tensor:
        cut = window.near_core(network_halo(self.network, window.observation))
        base = None if self.base is None else self.base.fuse_window(replace(_filled(window), fine_core=cut.fine))
        inner = cut.window(_filled(window))
        observation = inner.observation
        placement = Placement(
            *(axis_placement(*axis) for axis in zip(observation.scale, observation.shift, strict=True))
        )
        fused = self.network(
            (inner.hsi / self.hsi_unit)[None],
            (inner.msi / self.msi_unit)[None],
            placement,
            None if base is None else (base / self.hsi_unit)[None],
            self.channels,
        )
        return mask_missing(inner.fine(fused[0]) * self.hsi_unit, window)


def network_halo(network: AnyNetwork, observation: Observation) -> int:
    """The receptive field in coarse pixels, and two for interpolation. A rival sees the whole scene, or none of it."""
    margin = network.receptive_field
    if margin is None:
        return 0
    return max(margin.coarse, math.ceil(margin.fine / min(observation.scale))) + 2


def learn_network(
    network: FusionNetwork,
    observation: Observation,
    wavelength_nm: Tensor | None,
    windows: Sequence[Callable[[], Window]],
) -> NetworkFusion:
    """Units and channels of the scene from some of its windows, and the statistics of the closed form that the network
    adds to.
    """
    samples = [_pixels_of(window()) for window in windows]
    hsi, msi = (torch.cat(parts, dim=1)[:, None] for parts in zip(*samples, strict=True))
    hsi_unit = unit_of(hsi, network.config.value_range[1])
    msi_unit = msi_units(msi, observation, hsi_unit, network.config.value_range[1])
    centres = msi_centres_nm(observation.srf, wavelength_nm)
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
