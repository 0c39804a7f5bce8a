"""The two encoders phi and psi of the paper: EDSR trunks (Lim et al. 2017) without batch norm and without an upsampler.

B batch, D features.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """conv - ReLU - conv, added to its input with residual scale 1."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, kernel_size=3, padding=1)
        self.second = nn.Conv2d(features, features, kernel_size=3, padding=1)

    def forward(self, code: Tensor) -> Tensor:
        change = self.second(F.relu(self.first(code), inplace=True))
        # In place: a convolution does not need its own output for the backward pass, and a fine feature map is large.
        return change.add_(code)  # type: ignore[no-any-return]


def encoder_reach(blocks: int) -> int:
    """How many pixels to each side one output pixel of an encoder depends on."""
    return 2 + 2 * blocks


class Encoder(nn.Module):
    """Head convolution, residual blocks, tail convolution, and the long skip from head to end: (B, D, H, W) -> the same."""

    def __init__(self, features: int, blocks: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(features, features, kernel_size=3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(features) for _ in range(blocks))
        self.tail = nn.Conv2d(features, features, kernel_size=3, padding=1)

    def forward(self, embedded: Tensor) -> Tensor:
        start = self.head(embedded)
        code = start
        for block in self.blocks:
            code = block(code)
        return self.tail(code).add_(start)  # type: ignore[no-any-return]
