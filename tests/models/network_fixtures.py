"""Small networks for the tests, from seeds."""

from __future__ import annotations

import torch

from hyperfuse.models.matryoshka import MatryoshkaBands
from hyperfuse.models.ssa import SSA, SSAConfig

TINY = SSAConfig(
    width=8,
    spectral_blocks=1,
    spatial_blocks=2,
    decoder_hidden=(12, 10),
    feature_width=6,
    channels=MatryoshkaBands(max_channels=16),
)


def tiny_network(seed: int = 0, config: SSAConfig = TINY) -> SSA:
    torch.manual_seed(seed)
    return SSA(config).eval()


def loud_network(seed: int = 0) -> SSA:
    """In double precision, with weights so large that every pixel of the receptive field shows in the result.

    With torch's own initial weights the outermost pixels change it by less than 1e-5, and too small a margin goes
    unnoticed.
    """
    network = tiny_network(seed).double()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.kaiming_normal_(parameter)
    return network


def random_pair(
    bands: int, msi_bands: int, coarse: tuple[int, int], fine: tuple[int, int], batch: int = 1, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(batch, bands, *coarse, generator=generator),
        torch.rand(batch, msi_bands, *fine, generator=generator),
    )
