"""SSA with the weights that ship: one network with sliced Matryoshka kernels for every sensor (docs/networks.md).

Shapes: C bands, M msi bands, h w coarse, H W fine.

The network sees standardised bands, so units do not matter, and needs mean and covariance of the bands of both images
over the scene. How far each HSI band follows the MSI's components is known from them and the SRF. What the
network returns need not reproduce the two images when it is degraded; conditioning it on both adds about a decibel
(docs/model_card_ssa.md). `--weights ssa` is the network alone.

`ssa-residual` is the same architecture over the principal components of the HSI, as a residual over `universal`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch
from torch import Tensor

from hyperfuse.methods.pair_model import fuse_halo, make_consistent
from hyperfuse.methods.universal import universal_halo, universal_with_error
from hyperfuse.methods.window import (
    INTERPOLATION_HALO,
    FusedCore,
    SceneComputation,
    Window,
    in_one_pass,
    in_parts,
    scene_moments,
)
from hyperfuse.models.matryoshka import (
    Components,
    MatryoshkaBands,
    PairChannels,
    band_units,
    regressed_units,
    subspace_of_moments,
)
from hyperfuse.models.ssa import SSA
from hyperfuse.physics.observation import Observation


@functools.cache
def shipped_ssa(name: str = "ssa") -> SSA:
    """The network whose weights are part of the package."""
    return SSA.from_pretrained(name)


def ssa_halo(observation: Observation) -> int:
    """Coarse pixels of the receptive field, and those that conditioning reads around the network's result."""
    return _network_halo(shipped_ssa(), observation) + fuse_halo(observation)


def _network_halo(network: SSA, observation: Observation) -> int:
    field = network.config.receptive_field
    return max(field.coarse, math.ceil(field.fine / min(observation.scale))) + INTERPOLATION_HALO


def ssa(window: Window) -> SceneComputation[FusedCore]:
    """Fuse the core of a window by the shipped network (Liang et al. 2026), conditioned on both images."""
    return fuse_conditioned(window, shipped_ssa())


def fuse_conditioned(window: Window, network: SSA) -> SceneComputation[FusedCore]:
    """Fuse the core of a window by a network, conditioned on both images."""
    fused = yield from network_alone(window.widened(), network)
    return (yield from make_consistent(fused, window, broad_prior=True))


def network_alone(window: Window, network: SSA) -> SceneComputation[Tensor]:
    """Fuse the core of a window by a network of bands in regressed units, such as the shipped one: (C, H, W).

    Of more MSI bands than the network has slots it sees as many, evenly spaced; more HSI bands than slots are fused in
    turns, every second or third band at a time.
    """
    assert isinstance(network.config.channels, MatryoshkaBands)
    slots, msi_slots = network.config.channels.max_channels, network.config.max_msi_bands
    msi_bands = torch.linspace(0, len(window.msi) - 1, min(len(window.msi), msi_slots)).round().long()
    window = replace(
        window,
        msi=window.msi[msi_bands],
        observation=replace(window.observation, srf=window.observation.srf[msi_bands]),
    )
    (mean, covariance), (msi_mean, msi_covariance) = yield from in_one_pass(
        scene_moments(window.coarse(window.hsi)), scene_moments(window.counted(window.msi))
    )
    msi_units = band_units(msi_mean[None], msi_covariance.diagonal()[None])
    inner = window.near_core(_network_halo(network, window.observation)).window(window)
    turns = math.ceil(len(window.hsi) / slots)
    fused = torch.empty(len(window.hsi), *inner.fine_size)
    for turn in range(turns):
        own = slice(turn, None, turns)
        units = band_units(mean[None, own], covariance.diagonal()[None, own])
        # Every second or third band stands for its neighbours.
        srf = turns * window.observation.srf[:, own] * units.unit / msi_units.unit.T
        correlation = covariance[own, own] / (units.unit * units.unit.T)
        cross = correlation @ srf.T
        coding = regressed_units(units, msi_units, *(each[None] for each in (srf, srf @ cross, cross)))
        pair = inner.hsi[None, own], inner.msi[None]
        with torch.inference_mode():
            fused[own] = network(*pair, inner.observation.placement, None, PairChannels(None, None, *coding))[0]
    return inner.fine(fused)


def ssa_residual(window: Window) -> SceneComputation[FusedCore]:
    """Fuse the core of a window by `universal`, refined by the shipped network."""
    return fuse_refined(window, shipped_ssa("ssa-residual"))


def ssa_residual_halo(observation: Observation) -> int:
    return _network_halo(shipped_ssa("ssa-residual"), observation) + universal_halo(observation)


def fuse_refined(window: Window, network: SSA) -> SceneComputation[FusedCore]:
    """`universal`, to which a network adds a residual in components of the hsi and units of the expected error."""
    assert isinstance(network.config.channels, Components)
    cut = window.near_core(_network_halo(network, window.observation))
    base, error = yield from universal_with_error(window.widened(cut.fine))
    (mean, covariance), (msi_mean, msi_covariance) = yield from in_one_pass(
        scene_moments(window.coarse(window.hsi)), scene_moments(window.counted(window.msi))
    )
    coding = (
        subspace_of_moments(mean[None], covariance[None], network.config.channels.count),
        subspace_of_moments(msi_mean[None], msi_covariance[None], network.config.max_msi_bands),
    )
    inner = cut.window(window)
    images = inner.hsi[None], inner.msi[None], inner.observation.placement, base[None]
    with torch.inference_mode():
        fused = network(*images, PairChannels(None, None, *coding), error[None])[0]
    return in_parts(inner.fine(fused))
