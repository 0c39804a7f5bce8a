"""How much a network computes (parameters, multiply-adds), and maps of the Matryoshka kernels (paper figure 6).

Multiply-adds are counted by running the network on tensors without memory, each bias as one more addition per output
value, which reproduces the paper's numbers (docs/paper_notes.md).

Shapes: C channels, N weights of one channel.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hyperfuse import compiled
from hyperfuse.errors import OptionError
from hyperfuse.models.catalogue import AnyBaselineConfig, build_network
from hyperfuse.models.decoder import NEIGHBOURS
from hyperfuse.models.matryoshka import Components, WavelengthBands
from hyperfuse.models.ssa import SSA, SSAConfig
from hyperfuse.models.weights import BICUBIC
from hyperfuse.physics.resample import shared_edges

_UMAP_NEIGHBOURS = 15
_FEWEST_CHANNELS = 4  # UMAP cannot place fewer
_SEED = 0


@dataclass(frozen=True)
class KernelMap:
    """A kernel as a curve through its channels."""

    title: str
    points: Tensor  # (C, 2) in the order of the channels
    smoothness: float  # 1: neighbouring channels have the same weights; 0: they differ as much as any two channels


def map_kernels(network: SSA, channels: int | None = None, *, umap: bool | None = None) -> list[KernelMap]:
    """Map the first `channels` of the two input kernels and of the output kernel to the plane.

    By default those that were trained, see `trained_channels`; the others are as they were initialised.

    With `umap` by UMAP [1]_, else by principal components; None takes UMAP where it is installed.

    References
    ----------
    .. [1] L. McInnes, J. Healy, J. Melville, "UMAP: uniform manifold approximation and projection for dimension
       reduction", 2018.
    """
    vectors = kernel_vectors(network)
    most = min(len(each) for each in vectors.values())
    drawn = trained_channels(network) if channels is None else channels
    if not _FEWEST_CHANNELS <= drawn <= most:
        expected = f"at least {_FEWEST_CHANNELS} and at most the {most} of the network"
        raise OptionError(f"{drawn} channels to draw", expected)
    project = umap_plane if (umap_is_installed() if umap is None else umap) else principal_plane
    return [KernelMap(title, project(each[:drawn]), smoothness(each[:drawn])) for title, each in vectors.items()]


def kernel_vectors(network: SSA) -> dict[str, Tensor]:
    """(C, N) float64 for each kernel: all weights that belong to a channel."""
    with torch.no_grad():
        return {
            "input kernel (hsi)": network.hsi_kernel.weight.transpose(0, 1).flatten(1).double(),
            "input kernel (pair)": network.pair_kernel.weight.transpose(0, 1).flatten(1).double(),
            "output kernel": network.output_kernel.weight.flatten(1).double(),
        }


def trained_channels(network: SSA) -> int:
    """Count the channels that training has reached, as recorded with the weights; all of them without a record.

    A slot above the band count of every training scene has no gradient and keeps its initial weights.
    """
    most = min(len(each) for each in kernel_vectors(network).values())
    return min(most, int(network.provenance.get("most_bands", most)))


def smoothness(vectors: Tensor) -> float:
    """1 - (mean squared distance of neighbouring channels) / (mean squared distance of all pairs of channels).

    Von Neumann's ratio for vectors: near 0 for channels in random order (an untrained network), negative where
    neighbours differ more than other pairs, 1 in the limit of a smooth curve.
    """
    neighbours = (vectors[1:] - vectors[:-1]).square().sum(dim=1).mean()
    spread = (vectors - vectors.mean(dim=0)).square().sum() * 2.0 / (len(vectors) - 1)
    return 1.0 if spread == 0.0 else float(1.0 - neighbours / spread)


def umap_is_installed() -> bool:
    return find_spec("umap") is not None


def principal_plane(vectors: Tensor) -> Tensor:
    """The two principal components; signs such that the last channel lies on the positive side of the first."""
    u, s, _ = torch.linalg.svd(vectors - vectors.mean(dim=0), full_matrices=False)
    points = u[:, :2] * s[:2]
    return torch.where(points[-1] < points[0], -points, points)


def umap_plane(vectors: Tensor) -> Tensor:
    from umap import UMAP

    reducer = UMAP(n_neighbors=min(_UMAP_NEIGHBOURS, len(vectors) - 1), random_state=_SEED)
    # It warns that a fixed seed runs on one thread.
    with warnings.catch_warnings(action="ignore"):
        points = reducer.fit_transform(vectors.numpy())
    return torch.as_tensor(points, dtype=torch.float64)


def count_parameters(network: nn.Module) -> int:
    """Count the parameters of a network, trained or not."""
    return sum(parameter.numel() for parameter in network.parameters())


@dataclass(frozen=True)
class MultiplyAdds:
    """equation       the paper's equations as printed: the output kernel runs once, after the ensemble
    per_candidate  the output kernel runs on each of the four candidates, which is what the paper's table counts
    performed      what `SSA` runs: the same result by the split first and last layers of the decoder
    """

    equation: int
    per_candidate: int
    performed: int


def count_multiply_adds(
    config: SSAConfig, bands: int, msi_bands: int, fine_size: tuple[int, int], coarse_size: tuple[int, int]
) -> MultiplyAdds:
    """Count the multiply-adds of SSA for one pair, without weights and without memory.

    Examples
    --------
    >>> from hyperfuse.models.ssa import preset
    >>> counts = count_multiply_adds(preset("ssa-small"), 31, 3, (128, 128), (32, 32))
    >>> round(counts.equation / 1e9, 2), round(counts.performed / 1e9, 2)
    (5.1, 4.43)
    """
    with torch.device("meta"):
        network = SSA(config)
        hsi, msi = torch.empty(1, bands, *coarse_size), torch.empty(1, msi_bands, *fine_size)
        spectral_code, spatial_code = (torch.empty(1, config.width, *size) for size in (coarse_size, fine_size))
        features = torch.empty(1, config.feature_width, *fine_size)
    decoder, placement = network.implicit_decoder, shared_edges(fine_size, coarse_size)
    performed = multiply_adds(lambda: network(hsi, msi))
    performed_by_decoder = multiply_adds(lambda: decoder(spectral_code, spatial_code, placement))
    output_kernel = multiply_adds(lambda: network.output_kernel(features, bands))
    # By eq. (7) the whole MLP, weights and biases, runs for each of the four neighbours of every fine pixel.
    equation = performed - performed_by_decoder + NEIGHBOURS * math.prod(fine_size) * count_parameters(decoder)
    return MultiplyAdds(equation, equation + (NEIGHBOURS - 1) * output_kernel, performed)


def performed_multiply_adds(
    config: SSAConfig | AnyBaselineConfig,
    bands: int,
    msi_bands: int,
    fine_size: tuple[int, int],
    coarse_size: tuple[int, int],
) -> int:
    """Count what any network runs at inference for one pair; a base other than bicubic is not counted."""
    # Channels that are found from the values of the pair need tensors with memory.
    on_values = isinstance(config, SSAConfig) and isinstance(config.channels, Components | WavelengthBands)
    with torch.device("cpu" if on_values else "meta"):
        hsi, msi = torch.rand(1, bands, *coarse_size), torch.rand(1, msi_bands, *fine_size)
        network = build_network(config).eval()
    if not isinstance(network, SSA):
        return multiply_adds(lambda: network(hsi, msi))
    base = None if network.config.base == BICUBIC else hsi.new_zeros(1, bands, *fine_size)
    error = base if network.config.expected_error else None
    centres_nm = [torch.linspace(450.0, 900.0, count) for count in (bands, msi_bands)]
    return multiply_adds(lambda: network(hsi, msi, None, base, network.find_channels(hsi, msi, *centres_nm), error))


def multiply_adds(run: Callable[[], Tensor]) -> int:
    """Count the multiply-adds of all matrix products and convolutions within `run`, on any device."""
    operations = (torch.ops.aten.convolution, torch.ops.aten.addmm)
    counter = FlopCounterMode(display=False, custom_mapping={each: _with_bias(each) for each in operations})
    with torch.no_grad(), compiled.left_to_torch(), counter:
        run()
    return int(counter.get_total_flops()) // 2


def _with_bias(operation: Any) -> Callable[..., int]:
    """torch's own count of the operation plus its bias. torch counts two operations for each multiply-add."""
    without_bias = flop_registry[operation]
    bias_position = 0 if operation is torch.ops.aten.addmm else 2

    def count(*arguments: Any, out_val: Tensor, **options: Any) -> int:
        has_bias = arguments[bias_position] is not None
        return int(without_bias(*arguments, out_val=out_val, **options)) + 2 * out_val.numel() * has_bias

    count._get_raw = True  # type: ignore[attr-defined]  # requests tensors instead of shapes
    return count
