"""Plain convolutions in the place of the Matryoshka kernels: the variant "w/o MK" of the ablation in the paper.

Such a network is made for one sensor: one number of hsi bands, one of msi bands (`FusionNetwork.check_bands` refuses others).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class FixedInputKernel(nn.Conv2d):
    """(B, C, H, W) -> (B, D, H, W) for one C."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__(channels, features, kernel_size=3, padding=1)


class FixedOutputKernel(nn.Conv2d):
    """(B, D, H, W) -> (B, C, H, W) for one C."""

    def __init__(self, features: int, channels: int) -> None:
        super().__init__(features, channels, kernel_size=3, padding=1)

    def forward(self, features: Tensor, channels: int) -> Tensor:  # type: ignore[override]
        assert channels == self.out_channels
        return F.conv2d(features, self.weight, self.bias, padding=self.padding)
