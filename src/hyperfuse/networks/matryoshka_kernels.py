"""Matryoshka kernel layers: one nested weight serves every channel count up to C_max (paper section 3.2, algorithms 1 and 2).

A cube of C channels uses the first C slices of the weight and nothing else, so what is learned on few channels is the prefix of
what is used on many. At C = C_max the whole weight is used as it is.

B batch, C channels, D features, k kernel size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.networks.network_errors import ChannelCountError


class MatryoshkaInputKernel(nn.Conv2d):
    """Algorithm 1: (B, C, H, W) -> (B, D, H', W') for any C up to `max_channels`.

    The weight W_nested (D, C_max, k, k), the bias and their initial values are those of a convolution of the full width.
    """

    def __init__(
        self,
        max_channels: int,
        features: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: int = 1,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(max_channels, features, kernel_size, stride, padding, dilation, bias=bias)

    def forward(self, image: Tensor) -> Tensor:
        channels = image.shape[1]
        _refuse_more_channels(channels, self.in_channels)
        # Eq. (2): W_valid = W_nested[:, :C]
        weight = self.weight if channels == self.in_channels else self.weight[:, :channels]
        return F.conv2d(image, weight, self.bias, self.stride, self.padding, self.dilation)


class MatryoshkaOutputKernel(nn.Conv2d):
    """Algorithm 2: (B, D, H, W) -> (B, C, H', W') for any asked C up to `max_channels`."""

    def __init__(
        self,
        features: int,
        max_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: int = 1,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(features, max_channels, kernel_size, stride, padding, dilation, bias=bias)

    def forward(self, features: Tensor, channels: int) -> Tensor:  # type: ignore[override]
        _refuse_more_channels(channels, self.out_channels)
        if channels == self.out_channels:
            return F.conv2d(features, self.weight, self.bias, self.stride, self.padding, self.dilation)
        # Eq. (4) and (5): W_valid = W_nested[:C], b_valid = b_nested[:C]
        bias = None if self.bias is None else self.bias[:channels]
        return F.conv2d(features, self.weight[:channels], bias, self.stride, self.padding, self.dilation)


def _refuse_more_channels(channels: int, max_channels: int) -> None:
    if channels > max_channels:
        raise ChannelCountError(
            f"{channels} channels",
            f"at most {max_channels}, the width of this Matryoshka kernel",
            f"select at most {max_channels} channels, or build the network with max_channels={channels} and train it",
        )
