"""How large a network is and how much it computes: parameters and multiply-adds.

Multiply-adds are counted by running the network on tensors without memory, each bias as one more addition per output
value; that is how the paper's own numbers come out (docs/paper_notes.md).

What the Matryoshka kernels have learned: every channel as a point, neighbouring channels close together or not (paper
figure 6).

C channels, N weights of one channel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hyperfuse.errors import OptionError
from hyperfuse.models.baselines.catalogue import AnyBaselineConfig, build_baseline
from hyperfuse.models.channels import find_channels
from hyperfuse.models.config import BICUBIC, Components, NetworkConfig, WavelengthBands
from hyperfuse.models.decoder import NEIGHBOURS, decode_plainly
from hyperfuse.models.pixel_centres import shared_edges, upsample_bicubic
from hyperfuse.models.ssa import FusionNetwork

_UMAP_NEIGHBOURS = 15
_FEWEST_CHANNELS = 4  # UMAP cannot place fewer
_SEED = 0


@dataclass(frozen=True)
class KernelMap:
    """One kernel seen from its channels.

    title       which kernel
    points      (C, 2) a plane map of the channels, in the order of the channels
    smoothness  1 where neighbouring channels have the same weights, 0 where they differ as much as any two channels do
    """

    title: str
    points: Tensor
    smoothness: float


def map_kernels(network: FusionNetwork, channels: int | None = None, *, umap: bool | None = None) -> list[KernelMap]:
    """Maps of the two input kernels and of the output kernel, of the first `channels` channels or of all.

    umap True or False asks for UMAP or for principal components; None takes UMAP where it is installed.
    """
    vectors = kernel_vectors(network)
    most = min(len(each) for each in vectors.values())
    drawn = most if channels is None else channels
    if not _FEWEST_CHANNELS <= drawn <= most:
        raise OptionError(
            f"{drawn} channels to draw", f"at least {_FEWEST_CHANNELS} and at most the {most} of the network"
        )
    vectors = {title: each[:channels] for title, each in vectors.items()}
    use_umap = umap_is_installed() if umap is None else umap
    project = umap_plane if use_umap else principal_plane
    return [KernelMap(title, project(each), smoothness(each)) for title, each in vectors.items()]


def kernel_vectors(network: FusionNetwork) -> dict[str, Tensor]:
    """(C, N) for each kernel: all weights that belong to a channel, as float64."""
    with torch.no_grad():
        return {
            "input kernel (hsi)": network.hsi_kernel.weight.transpose(0, 1).flatten(1).double(),
            "input kernel (pair)": network.pair_kernel.weight.transpose(0, 1).flatten(1).double(),
            "output kernel": network.output_kernel.weight.flatten(1).double(),
        }


def smoothness(vectors: Tensor) -> float:
    """1 - (mean squared distance of neighbouring channels) / (mean squared distance of all pairs of channels).

    Von Neumann's ratio for vectors: near 0 for channels in random order (a fresh network), negative where neighbours
    differ more than strangers, 1 in the limit of a smooth curve. Needs no map, so it does not depend on UMAP's luck.
    """
    neighbours = (vectors[1:] - vectors[:-1]).square().sum(dim=1).mean()
    count = vectors.shape[0]
    spread = (vectors - vectors.mean(dim=0)).square().sum() * 2.0 / (count - 1)
    if spread == 0.0:
        return 1.0
    return float(1.0 - neighbours / spread)


def umap_is_installed() -> bool:
    return find_spec("umap") is not None


def principal_plane(vectors: Tensor) -> Tensor:
    """The two principal components; each sign is chosen so that the last channel lies on the positive side of the
    first.
    """
    centred = vectors - vectors.mean(dim=0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    points = u[:, :2] * s[:2]
    return torch.where(points[-1] < points[0], -points, points)


def umap_plane(vectors: Tensor) -> Tensor:
    """UMAP (McInnes et al. 2018) with a fixed seed."""
    from umap import UMAP

    reducer = UMAP(n_neighbors=min(_UMAP_NEIGHBOURS, len(vectors) - 1), random_state=_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that a fixed seed runs on one thread
        points = reducer.fit_transform(vectors.numpy())
    return torch.as_tensor(points, dtype=torch.float64)


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
    config: NetworkConfig | AnyBaselineConfig,
    bands: int,
    msi_bands: int,
    fine_size: tuple[int, int],
    coarse_size: tuple[int, int],
) -> int:
    """What ours or a rival runs after training, for one pair of these sizes; the closed form that it adds to is not
    counted.
    """
    with torch.device("cpu" if _looks_at_values(config) else "meta"):
        hsi, msi = torch.rand(1, bands, *coarse_size), torch.rand(1, msi_bands, *fine_size)
        if not isinstance(config, NetworkConfig):
            baseline = build_baseline(config).eval()
            return multiply_adds(lambda: baseline(hsi, msi))
        network = FusionNetwork(config)
    base = None if config.base == BICUBIC else hsi.new_zeros(1, bands, *fine_size)
    centres_nm = [torch.linspace(450.0, 900.0, count) for count in (bands, msi_bands)]
    return multiply_adds(lambda: network(hsi, msi, None, base, find_channels(config, hsi, msi, *centres_nm)))


def _looks_at_values(config: NetworkConfig | AnyBaselineConfig) -> bool:
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
