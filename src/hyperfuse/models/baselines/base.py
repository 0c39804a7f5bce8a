"""What the rivals share: how they are called, what they refuse, how their weights are kept.

B batch, C hsi bands, M msi bands, h w coarse, H W fine.

What all rivals have to be told: the one pair of sensors that they are made for, and the range of their pixel values.

Layers that more than one rival is made of.

B batch, D features, H W rows and columns of whatever image they run on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from hyperfuse.errors import BandError, GridError, OptionError
from hyperfuse.models import weights as weights_folder
from hyperfuse.models.config import BICUBIC, Positive
from hyperfuse.models.pixel_centres import Placement, shared_edges

# A width that may be halved, or shared out among the groups of a convolution, without a remainder.
EvenWidth = Annotated[int, Field(ge=2, le=100_000, multiple_of=2)]
WidthOfEights = Annotated[int, Field(ge=8, le=100_000, multiple_of=8)]


class BaselineConfig(BaseModel):
    """kind             which rival
    bands, msi_bands  exactly these, no others
    width            features of the finest level
    value_range      pixel values that the network expects, from 0 up; a scene is scaled to it before, and back after
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: ClassVar[str] = BICUBIC  # the network makes it itself, from the hsi

    kind: str
    bands: Positive
    msi_bands: Positive
    width: Positive
    value_range: tuple[float, float] = (0.0, 1.0)

    @field_validator("value_range")
    @classmethod
    def _scales_from_zero(cls, value_range: tuple[float, float]) -> tuple[float, float]:
        low, high = value_range
        if low != 0.0 or not 0.0 < high < math.inf:
            raise ValueError(
                f"got {low:g} to {high:g}, expected 0 to a finite number above it: scenes are scaled, not shifted"
            )
        return value_range

    def with_bands(self, bands: int, msi_bands: int) -> Self:
        """The same network for another pair of sensors."""
        return type(self).model_validate(self.model_dump() | {"bands": bands, "msi_bands": msi_bands})


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the features of every pixel: (B, D, H, W) -> the same."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.movedim(1, -1)).movedim(-1, 1)


def pointwise(inputs: int, outputs: int, *, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, bias=bias)


def conv3(inputs: int, outputs: int, *, bias: bool = True, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=bias, groups=groups)


def depthwise(features: int) -> nn.Conv2d:
    return conv3(features, features, bias=False, groups=features)


class FeedForward(nn.Sequential):
    """Normalise, widen four times, mix each feature with its neighbours, narrow again."""

    def __init__(self, features: int, widening: int = 4) -> None:
        wide = features * widening
        super().__init__(
            ChannelNorm(features),
            pointwise(features, wide),
            nn.GELU(),
            depthwise(wide),
            nn.GELU(),
            pointwise(wide, features),
        )


class PositionCode(nn.Sequential):
    """What attention over features forgets: where in the image a value stands."""

    def __init__(self, features: int) -> None:
        super().__init__(depthwise(features), nn.GELU(), depthwise(features))


def attention_map(queries: Tensor, keys: Tensor, temperature: Tensor) -> Tensor:
    """How much every feature of the queries takes from every feature of the keys: (B, heads, d, d), rows sum to 1.

    Features are compared over the whole image, so the cost grows with the pixels and not with their square. `queries`
    and `keys` (B, heads * d, H, W) are of one size; `temperature` (heads, 1, 1) multiplies their cosines.
    """
    heads = temperature.shape[0]
    return torch.softmax(
        F.normalize(_by_head(queries, heads), dim=-1) @ _transposed_unit(keys, heads) * temperature, dim=-1
    )


def apply_map(weights: Tensor, values: Tensor) -> Tensor:
    """(B, heads, d, d) on (B, heads * d, H, W)."""
    return (weights @ _by_head(values, weights.shape[1])).reshape(values.shape)


def pad_to_multiple(image: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column until both sizes are multiples; the first pixel stays where it is."""
    rows, columns = image.shape[-2:]
    below, right = -rows % multiple, -columns % multiple
    return F.pad(image, (0, right, 0, below), mode="replicate") if below or right else image


def crop_to(image: Tensor, size: tuple[int, int]) -> Tensor:
    return image[..., : size[0], : size[1]]


def halved(image: Tensor) -> Tensor:
    """Means of 2x2 pixels, which keep the pixel centres where they belong."""
    return F.avg_pool2d(image, 2)


def _by_head(features: Tensor, heads: int) -> Tensor:
    batch, channels, rows, columns = features.shape
    return features.reshape(batch, heads, channels // heads, math.prod((rows, columns)))


def _transposed_unit(keys: Tensor, heads: int) -> Tensor:
    return F.normalize(_by_head(keys, heads), dim=-1).transpose(-2, -1)


class BaselineNetwork(nn.Module):
    """Call it with `hsi` (B, C, h, w) and `msi` (B, M, H, W): the answer is (B, C, H, W).

    It has no margin: every rival weighs its features by what it sees in the whole pair, so that a tile of a scene does
    not give the pixels that the whole scene would.
    """

    config_class: ClassVar[type[BaselineConfig]]
    receptive_field: ClassVar[None] = None

    def __init__(self, config: BaselineConfig) -> None:
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
        """Write config.json and a safetensors file into `folder`; `provenance` (data, steps, versions) is kept in the
        config.
        """
        described = {
            "preset": None,
            "network": self.config.model_dump(mode="json"),
            "margin": self.receptive_field,
            "provenance": dict(provenance or {}),
        }
        weights_folder.write(Path(folder), self.state_dict(), described)

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Self:
        """The network of a folder written by `save_pretrained`, or of `hf://owner/name[@revision]` (needs the extra
        `hub`).
        """
        tensors, described, folder = weights_folder.read(source)
        config = weights_folder.parse_config(described, folder, cls.config_class)
        with torch.device(
            "meta"
        ):  # a config that claims a huge network is compared with the file before it costs memory
            network = cls(config)
        weights_folder.refuse_other_tensors(tensors, network.state_dict(), folder)
        network.load_state_dict(tensors, assign=True)
        network.weights_digest = weights_folder.listed_digest(described)
        return network.eval()

    def check_bands(self, bands: int, msi_bands: int) -> None:
        """Refuse a pair that has not the bands this network is made for."""
        if (bands, msi_bands) != (self.config.bands, self.config.msi_bands):
            raise BandError(
                f"{bands} hsi bands and {msi_bands} msi bands",
                f"exactly {self.config.bands} and {self.config.msi_bands}: this network is made for one pair of sensors",
                "select these bands, or use a network that takes any number of them",
            )

    def checked_placement(self, hsi: Tensor, msi: Tensor, placement: Placement | None) -> Placement:
        """Refuse what is no pair for this network, and say where the msi lies on the hsi."""
        if hsi.ndim != 4 or msi.ndim != 4 or hsi.shape[0] != msi.shape[0] or 0 in hsi.shape or 0 in msi.shape:
            raise GridError(
                f"hsi {tuple(hsi.shape)} and msi {tuple(msi.shape)}",
                "(batch, bands, rows, columns) for both, of the same batch, none of them 0",
                "add a batch dimension with [None]",
            )
        precision = next(self.parameters()).dtype
        if hsi.dtype != precision or msi.dtype != precision:
            raise OptionError(
                f"hsi of {hsi.dtype} and msi of {msi.dtype}",
                f"{precision}, as the weights are",
                f"convert both with .to({precision})",
            )
        self.check_bands(hsi.shape[1], msi.shape[1])
        return placement or shared_edges((msi.shape[2], msi.shape[3]), (hsi.shape[2], hsi.shape[3]))
