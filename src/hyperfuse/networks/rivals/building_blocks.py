"""Layers that more than one rival is made of.

B batch, D features, H W rows and columns of whatever image they run on.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
            ChannelNorm(features), pointwise(features, wide), nn.GELU(), depthwise(wide), nn.GELU(), pointwise(wide, features)
        )


class PositionCode(nn.Sequential):
    """What attention over features forgets: where in the image a value stands."""

    def __init__(self, features: int) -> None:
        super().__init__(depthwise(features), nn.GELU(), depthwise(features))


def attention_map(queries: Tensor, keys: Tensor, temperature: Tensor) -> Tensor:
    """How much every feature of the queries takes from every feature of the keys: (B, heads, d, d), rows sum to 1.

    Features are compared over the whole image, so the cost grows with the pixels and not with their square. `queries` and `keys`
    (B, heads * d, H, W) are of one size; `temperature` (heads, 1, 1) multiplies their cosines.
    """
    heads = temperature.shape[0]
    return torch.softmax(F.normalize(_by_head(queries, heads), dim=-1) @ _transposed_unit(keys, heads) * temperature, dim=-1)


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
