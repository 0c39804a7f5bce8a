"""What the baselines share: configuration, layers, and how they are called.

Shapes: B batch, C hsi bands, M msi bands, D features, h w coarse, H W fine.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hyperfuse.errors import BandError
from hyperfuse.models.weights import BICUBIC, ModelConfig, Positive, PretrainedNetwork, ValueRange
from hyperfuse.physics.resample import Placement, shared_edges

# A width that may be halved, or divided among the groups of a convolution, without a remainder.
EvenWidth = Annotated[int, Field(ge=2, le=100_000, multiple_of=2)]
WidthOfEights = Annotated[int, Field(ge=8, le=100_000, multiple_of=8)]


class BaselineConfig(ModelConfig):
    """kind              which baseline
    bands, msi_bands  exactly these, no others
    width             features of the finest level
    value_range       pixel values that the network expects, from 0 up; scenes are scaled to it and back
    """

    base: ClassVar[str] = BICUBIC  # the network computes it itself

    kind: str
    bands: Positive
    msi_bands: Positive
    width: Positive
    value_range: ValueRange = (0.0, 1.0)

    def with_bands(self, bands: int, msi_bands: int) -> Self:
        """The same network for another pair of sensors."""
        return type(self).model_validate(self.model_dump() | {"bands": bands, "msi_bands": msi_bands})


class BaselineNetwork(PretrainedNetwork):
    """A published network for one pair of sensors: `hsi` (B, C, h, w) and `msi` (B, M, H, W) -> (B, C, H, W).

    It has no receptive field: every baseline weighs its features by statistics of the whole pair, so a tile of a scene
    does not give the pixels of the whole scene.
    """

    config: BaselineConfig

    def forward(self, hsi: Tensor, msi: Tensor, placement: Placement | None = None) -> Tensor:
        """Fuse a batch of pairs; without a placement both images cover the same ground."""
        return self.fuse(hsi, msi, self.checked_placement(hsi, msi, placement))

    def fuse(self, hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
        """`forward` for a checked pair."""
        raise NotImplementedError

    def checked_placement(self, hsi: Tensor, msi: Tensor, placement: Placement | None) -> Placement:
        self.check_pair(hsi, msi)
        return placement or shared_edges((msi.shape[2], msi.shape[3]), (hsi.shape[2], hsi.shape[3]))

    def check_bands(self, bands: int, msi_bands: int) -> None:
        if (bands, msi_bands) != (self.config.bands, self.config.msi_bands):
            raise BandError(
                f"{bands} hsi bands and {msi_bands} msi bands",
                f"exactly {self.config.bands} and {self.config.msi_bands}: the network is made for one pair of sensors",
                "select these bands, or use a network that takes any number of them",
            )


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
        layers = [pointwise(features, wide), nn.GELU(), depthwise(wide), nn.GELU(), pointwise(wide, features)]
        super().__init__(ChannelNorm(features), *layers)


class PositionCode(nn.Sequential):
    """Positional encoding, which attention over features lacks."""

    def __init__(self, features: int) -> None:
        super().__init__(depthwise(features), nn.GELU(), depthwise(features))


def attention_map(queries: Tensor, keys: Tensor, temperature: Tensor) -> Tensor:
    """Attention of features to features over the whole image: (B, heads, d, d), rows sum to 1.

    The cost grows with the number of pixels, not with its square. `queries` and `keys` (B, heads * d, H, W) are of one
    size; `temperature` (heads, 1, 1) multiplies their cosines.
    """
    heads = temperature.shape[0]
    queries, keys = (F.normalize(_by_head(each, heads), dim=-1) for each in (queries, keys))
    return torch.softmax(queries @ keys.transpose(-2, -1) * temperature, dim=-1)


def apply_map(weights: Tensor, values: Tensor) -> Tensor:
    """(B, heads, d, d) attention on (B, heads * d, H, W) values."""
    return (weights @ _by_head(values, weights.shape[1])).reshape(values.shape)


def _by_head(features: Tensor, heads: int) -> Tensor:
    return torch.unflatten(features, 1, (heads, -1)).flatten(3)


def pad_to_multiple(image: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column until both sizes are multiples."""
    rows, columns = image.shape[-2:]
    below, right = (multiple - rows % multiple) % multiple, (multiple - columns % multiple) % multiple
    if torch.compiler.is_compiling() or below or right:  # an exported file must not depend on the size of its example
        return F.pad(image, (0, right, 0, below), mode="replicate")
    return image


def crop_to(image: Tensor, size: tuple[int, int]) -> Tensor:
    return image[..., : size[0], : size[1]]


def halved(image: Tensor) -> Tensor:
    """Means of 2x2 pixels, which keep the outer edges of the image."""
    return F.avg_pool2d(image, 2)
