"""What the rivals share: how they are called, what they refuse, how their weights are kept.

B batch, C hsi bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from hyperfuse.networks import weights_folder
from hyperfuse.networks.network_errors import ChannelCountError, PairShapeError, PairTypeError
from hyperfuse.networks.pixel_centres import Placement, shared_edges
from hyperfuse.networks.rivals.rival_config import RivalConfig


class RivalNetwork(nn.Module):
    """Call it with `hsi` (B, C, h, w) and `msi` (B, M, H, W): the answer is (B, C, H, W).

    It has no margin: every rival weighs its features by what it sees in the whole pair, so that a tile of a scene does not give
    the pixels that the whole scene would.
    """

    config_class: ClassVar[type[RivalConfig]]
    margin: ClassVar[None] = None

    def __init__(self, config: RivalConfig) -> None:
        super().__init__()
        self.config = config
        self.weights_digest: str | None = None  # sha256 of the file that the weights were read from

    def forward(self, hsi: Tensor, msi: Tensor, placement: Placement | None = None) -> Tensor:
        """Without a placement both images cover the same ground."""
        return self.fuse(hsi, msi, self.checked_placement(hsi, msi, placement))

    def fuse(self, hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
        """What makes each rival: a checked pair in, (B, C, H, W) out."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path, provenance: Mapping[str, object] | None = None) -> None:
        """Write config.json and a safetensors file into `folder`; `provenance` (data, steps, versions) is kept in the config."""
        described = {
            "preset": None,
            "network": self.config.model_dump(mode="json"),
            "margin": self.margin,
            "provenance": dict(provenance or {}),
        }
        weights_folder.write(Path(folder), self.state_dict(), described)

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Self:
        """The network of a folder written by `save_pretrained`, or of `hf://owner/name[@revision]` (needs the extra `hub`)."""
        tensors, described, folder = weights_folder.read(source)
        config = weights_folder.parse_config(described, folder, cls.config_class)
        with torch.device("meta"):  # a config that claims a huge network is compared with the file before it costs memory
            network = cls(config)
        weights_folder.refuse_other_tensors(tensors, network.state_dict(), folder)
        network.load_state_dict(tensors, assign=True)
        network.weights_digest = weights_folder.listed_digest(described)
        return network.eval()

    def check_bands(self, bands: int, msi_bands: int) -> None:
        """Refuse a pair that has not the bands this network is made for."""
        if (bands, msi_bands) != (self.config.bands, self.config.msi_bands):
            raise ChannelCountError(
                f"{bands} hsi bands and {msi_bands} msi bands",
                f"exactly {self.config.bands} and {self.config.msi_bands}: this network is made for one pair of sensors",
                "select these bands, or use a network that takes any number of them",
            )

    def checked_placement(self, hsi: Tensor, msi: Tensor, placement: Placement | None) -> Placement:
        """Refuse what is no pair for this network, and say where the msi lies on the hsi."""
        if hsi.ndim != 4 or msi.ndim != 4 or hsi.shape[0] != msi.shape[0] or 0 in hsi.shape or 0 in msi.shape:
            raise PairShapeError(
                f"hsi {tuple(hsi.shape)} and msi {tuple(msi.shape)}",
                "(batch, bands, rows, columns) for both, of the same batch, none of them 0",
                "add a batch dimension with [None]",
            )
        precision = next(self.parameters()).dtype
        if hsi.dtype != precision or msi.dtype != precision:
            raise PairTypeError(
                f"hsi of {hsi.dtype} and msi of {msi.dtype}",
                f"{precision}, as the weights are",
                f"convert both with .to({precision})",
            )
        self.check_bands(hsi.shape[1], msi.shape[1])
        return placement or shared_edges((msi.shape[2], msi.shape[3]), (hsi.shape[2], hsi.shape[3]))
