"""A batch as the network takes it: the simulated pairs, the base that the residual is added to, the channels.

B batch, C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from hyperfuse.estimation.observation import Observation, known_observation
from hyperfuse.loading.observing import PairBatch
from hyperfuse.methods.fuse_arrays import fuse_arrays
from hyperfuse.networks.network_config import BICUBIC
from hyperfuse.networks.pair_channels import find_channels
from hyperfuse.networks.prior_network import PriorNetwork
from hyperfuse.networks.rivals.catalogue import AnyNetwork
from hyperfuse.networks.rivals.mimo_sst import MimoSst, ScaleOutputs
from hyperfuse.networks.rivals.rival_network import RivalNetwork
from hyperfuse.prediction.network_fusion import fuse_with_network, msi_centres_nm


@dataclass(frozen=True, eq=False)
class TrainingBatch(PairBatch):
    base: Tensor | None = None  # (B, C, H, W); None: bicubic, which the network makes itself


@dataclass(frozen=True)
class BaseMaker:
    """Runs the closed form of the network's base on every pair of a batch; travels to the loader's workers."""

    method: str | None  # None: the network runs it itself

    def __call__(self, batch: PairBatch) -> TrainingBatch:
        pairs = {field.name: getattr(batch, field.name) for field in fields(PairBatch)}
        base = None if self.method in (None, BICUBIC) else closed_form(batch, str(self.method))
        return TrainingBatch(**pairs, base=base)


def closed_form(batch: PairBatch, method: str) -> Tensor:
    """(B, C, H, W) by a method that is told how each pair was observed."""
    observations = believed_observations(batch.response, batch.scale, batch.believed)
    pairs = zip(batch.hsi, batch.msi, observations, strict=True)
    return torch.stack([fuse_arrays(hsi, msi, observation, method) for hsi, msi, observation in pairs])


def believed_observations(response: Tensor, scale: float, believed: Tensor) -> list[Observation]:
    """How each pair of a batch was observed, as far as a closed form is told."""
    return [
        known_observation(own_response, scale, sigma, (down, right), hsi_noise, msi_noise)
        for own_response, (sigma, down, right, hsi_noise, msi_noise) in zip(response, believed.tolist(), strict=True)
    ]


class NetworkOnBatch(nn.Module):
    """The network with its channels found from the pair itself. Takes tensors only, which every engine can move and convert."""

    def __init__(self, network: AnyNetwork, *, bfloat16: bool = False) -> None:
        super().__init__()
        self.network, self.in_bfloat16 = network, bfloat16

    def forward(
        self,
        hsi: Tensor,
        msi: Tensor,
        base: Tensor | None,
        wavelength_nm: Tensor | None,
        msi_centres_nm: Tensor | None,
        response: Tensor,
        believed: Tensor,
        scale: float,
    ) -> Tensor | ScaleOutputs:
        """(B, C, H, W), and at smaller scales too where a network is trained on them.

        Coarse pixels lie where their grid says: a simulated shift is an error that the network has to bear.
        """
        if isinstance(self.network, PriorNetwork):
            pairs = zip(hsi, msi, believed_observations(response, scale, believed), strict=True)
            guided = torch.stack([fuse_with_network(self.network, *pair) for pair in pairs])
            # A pair of very few coarse pixels is fused without the network, which must still have a gradient.
            return guided + 0 * sum(parameter.sum() for parameter in self.network.parameters())
        with torch.autocast(hsi.device.type, dtype=torch.bfloat16, enabled=self.in_bfloat16):
            if isinstance(self.network, MimoSst):
                return self.network.forward_scales(hsi, msi)
            if isinstance(self.network, RivalNetwork):
                by_rival: Tensor = self.network(hsi, msi)
                return by_rival
            channels = find_channels(self.network.config, hsi, msi, wavelength_nm, msi_centres_nm)
            fused: Tensor = self.network(hsi, msi, None, base, channels)
        return fused


def run_network(module: nn.Module, batch: TrainingBatch) -> Tensor | ScaleOutputs:
    centres = msi_centres_nm(batch.response, batch.wavelength_nm)
    outputs: Tensor | ScaleOutputs = module(
        batch.hsi, batch.msi, batch.base, batch.wavelength_nm, centres, batch.response, batch.believed, batch.scale
    )
    return outputs
