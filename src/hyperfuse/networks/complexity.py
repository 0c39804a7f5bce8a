"""How large a network is and how much it computes: parameters and multiply-adds.

Multiply-adds are counted by running the network on tensors without memory, each bias as one more addition per output value; that
is how the paper's own numbers come out (docs/paper_notes.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hyperfuse.networks.bicubic import upsample_bicubic
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.networks.implicit_decoder import NEIGHBOURS
from hyperfuse.networks.network_config import BICUBIC, Components, NetworkConfig, WavelengthBands
from hyperfuse.networks.pair_channels import find_channels
from hyperfuse.networks.pixel_centres import shared_edges
from hyperfuse.networks.plain_decoding import decode_plainly
from hyperfuse.networks.rivals.catalogue import AnyRivalConfig, build_rival


@dataclass(frozen=True)
class MultiplyAdds:
    """equation             the paper's equations as printed: the output kernel runs once, after the ensemble
    per_candidate        the output kernel on each of the four candidates, which is what the paper's table counts
    performed            what `FusionNetwork` runs: the same result by the split first and last layers of the decoder
    """

    equation: int
    per_candidate: int
    performed: int


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def count_multiply_adds(
    config: NetworkConfig, bands: int, msi_bands: int, fine_size: tuple[int, int], coarse_size: tuple[int, int]
) -> MultiplyAdds:
    """For one pair of these sizes. Needs neither weights nor memory."""
    with torch.device("meta"):
        network = FusionNetwork(config)
        hsi = torch.empty(1, bands, *coarse_size)
        msi = torch.empty(1, msi_bands, *fine_size)
        features = torch.empty(1, config.feature_width, *fine_size)
    performed = multiply_adds(lambda: network(hsi, msi))
    equation = multiply_adds(lambda: fuse_plainly(network, hsi, msi))
    output_kernel = multiply_adds(lambda: network.output_kernel(features, bands))
    return MultiplyAdds(
        equation=equation,
        per_candidate=equation + (NEIGHBOURS - 1) * output_kernel,
        performed=performed,
    )


def performed_multiply_adds(
    config: NetworkConfig | AnyRivalConfig, bands: int, msi_bands: int, fine_size: tuple[int, int], coarse_size: tuple[int, int]
) -> int:
    """What ours or a rival runs after training, for one pair of these sizes; the closed form that it adds to is not counted."""
    with torch.device("cpu" if _looks_at_values(config) else "meta"):
        hsi, msi = torch.rand(1, bands, *coarse_size), torch.rand(1, msi_bands, *fine_size)
        if not isinstance(config, NetworkConfig):
            rival = build_rival(config).eval()
            return multiply_adds(lambda: rival(hsi, msi))
        network = FusionNetwork(config)
    base = None if config.base == BICUBIC else hsi.new_zeros(1, bands, *fine_size)
    centres_nm = [torch.linspace(450.0, 900.0, count) for count in (bands, msi_bands)]
    return multiply_adds(lambda: network(hsi, msi, None, base, find_channels(config, hsi, msi, *centres_nm)))


def _looks_at_values(config: NetworkConfig | AnyRivalConfig) -> bool:
    """Whether its channels are found from the pair itself, which tensors without memory do not allow."""
    return isinstance(config, NetworkConfig) and isinstance(config.channels, Components | WavelengthBands)


def fuse_plainly(network: FusionNetwork, hsi: Tensor, msi: Tensor) -> Tensor:
    """`FusionNetwork.forward` with the decoder word for word from the equations."""
    fine_size, coarse_size = (msi.shape[2], msi.shape[3]), (hsi.shape[2], hsi.shape[3])
    placement = shared_edges(fine_size, coarse_size)
    hsi_upsampled = upsample_bicubic(hsi, fine_size, placement)
    spectral_code = network.spectral_encoder(network.hsi_kernel(hsi))
    spatial_code = network.spatial_encoder(network.pair_kernel(torch.cat([hsi_upsampled, msi], dim=1)))
    features = decode_plainly(network.implicit_decoder, spectral_code, spatial_code, placement)
    fused: Tensor = hsi_upsampled + network.output_kernel(features, hsi.shape[1])
    return fused


def multiply_adds(run: Callable[[], Tensor]) -> int:
    """Of matrix products and convolutions within `run`, whatever it runs and on whichever device."""
    operations = (torch.ops.aten.convolution, torch.ops.aten.addmm)
    counter = FlopCounterMode(display=False, custom_mapping={each: _with_bias(each) for each in operations})
    with torch.no_grad(), counter:
        run()
    return int(counter.get_total_flops()) // 2


def _with_bias(operation: Any) -> Callable[..., int]:
    """torch's own count of the operation plus its bias. torch counts two operations for each multiply-add."""
    without_bias = flop_registry[operation]
    bias_position = 0 if operation is torch.ops.aten.addmm else 2

    def count(*arguments: Any, out_val: Tensor, **options: Any) -> int:
        has_bias = arguments[bias_position] is not None
        return int(without_bias(*arguments, out_val=out_val, **options)) + 2 * out_val.numel() * has_bias

    count._get_raw = True  # type: ignore[attr-defined]  # asks the counter for tensors instead of shapes
    return count
