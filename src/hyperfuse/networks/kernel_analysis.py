"""What the Matryoshka kernels have learned: every channel as a point, neighbouring channels close together or not (paper figure 6).

C channels, N weights of one channel.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.networks.network_errors import NetworkError

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
        raise NetworkError(f"{drawn} channels to draw", f"at least {_FEWEST_CHANNELS} and at most the {most} of the network")
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

    Von Neumann's ratio for vectors: near 0 for channels in random order (a fresh network), negative where neighbours differ more
    than strangers, 1 in the limit of a smooth curve. Needs no map, so it does not depend on UMAP's luck.
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
    """The two principal components; each sign is chosen so that the last channel lies on the positive side of the first."""
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
