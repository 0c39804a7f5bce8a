"""Steps that can be undone, for DCINN: each has `forward` and `inverse`.

B batch, C channels, H W rows and columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.networks.rivals.building_blocks import ChannelNorm, pointwise


class ActivationNorm(nn.Module):
    """A scale and a shift for each channel. The first batch it is trained on leaves it with mean 0 and variance 1.

    Several processes take the mean over all of their batches, and so stay alike. `fitted` is a number and no flag because weights
    are averaged and stored as numbers; it is above 0 once there was a batch.
    """

    fitted: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.scale = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.register_buffer("fitted", torch.zeros(()))

    def forward(self, image: Tensor) -> Tensor:
        if self.training and not bool(self.fitted > 0):
            self._fit(image)
        return self.normalised(image)

    def normalised(self, image: Tensor) -> Tensor:
        return self.scale * (image + self.shift)

    def inverse(self, image: Tensor) -> Tensor:
        return image / self.scale - self.shift

    @torch.no_grad()
    def _fit(self, image: Tensor) -> None:
        values = image.detach().float()
        mean = _mean_over_processes(values.mean(dim=(0, 2, 3), keepdim=True))
        variance = _mean_over_processes((values - mean).square().mean(dim=(0, 2, 3), keepdim=True))
        self.shift.copy_(-mean)
        self.scale.copy_(1 / (variance.sqrt() + 1e-6))
        self.fitted.fill_(1.0)


def _mean_over_processes(values: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(values)
        values = values / torch.distributed.get_world_size()
    return values


class ConvolutionExponential(nn.Module):
    """exp(K) of a 5x5 convolution K, as the first terms of its power series; exp(-K) undoes it as well as so many terms can."""

    def __init__(self, channels: int, terms: int) -> None:
        super().__init__()
        self.terms = terms
        self.kernel = nn.Parameter(torch.zeros(channels, channels, 5, 5))  # the identity to begin with

    def forward(self, image: Tensor) -> Tensor:
        return self._exponential(image, self.kernel)

    def inverse(self, image: Tensor) -> Tensor:
        return self._exponential(image, -self.kernel)

    def _exponential(self, image: Tensor, kernel: Tensor) -> Tensor:
        result, term = image, image
        for power in range(1, self.terms + 1):
            term = F.conv2d(term, kernel, padding=2) / power
            result = result + term
        return result


class HaarTransform(nn.Module):
    """Every 2x2 pixels to their mean and three differences, which become channels: (B, C, H, W) -> (B, 4C, H/2, W/2).

    The kernels are parameters that are never trained, since the published count of parameters includes them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        signs = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, -1.0, 1.0]])
        self.kernels = nn.Parameter(signs.reshape(4, 1, 2, 2).repeat(channels, 1, 1, 1), requires_grad=False)
        self.channels = channels

    def forward(self, image: Tensor) -> Tensor:
        """Means first, then the differences: the first C channels are the image at half scale."""
        return self._regrouped(F.conv2d(image, self.kernels, stride=2, groups=self.channels) / 4, self.channels, 4)

    def inverse(self, pieces: Tensor) -> Tensor:
        by_channel = self._regrouped(pieces, 4, self.channels)
        return F.conv_transpose2d(by_channel, self.kernels, stride=2, groups=self.channels)

    @staticmethod
    def _regrouped(pieces: Tensor, groups: int, members: int) -> Tensor:
        """From the members of each group one after the other, to the groups of each member one after the other."""
        batch, _, rows, columns = pieces.shape
        return pieces.reshape(batch, groups, members, rows, columns).transpose(1, 2).reshape(pieces.shape)


class InvertibleBlock(nn.Module):
    """Normalise, mix by a convolution exponential, and couple: one part of the channels is changed by what the other part says."""

    def __init__(self, channels: int, first_part: int, conditions: int, width: int, terms: int) -> None:
        super().__init__()
        second_part = channels - first_part
        self.parts = [first_part, second_part]
        self.norm = ActivationNorm(channels)
        self.mixing = ConvolutionExponential(channels, terms)
        self.first_shift = GatedSubnet(second_part + conditions, first_part, width)
        self.second_shift = GatedSubnet(first_part + conditions, second_part, width)
        self.second_log_scale = GatedSubnet(first_part + conditions, second_part, width)
        self.log_scale_bound = nn.Parameter(torch.ones(1, second_part, 1, 1))

    def forward(self, image: Tensor, conditions: Tensor) -> Tensor:
        first, second = torch.split(self.mixing(self.norm(image)), self.parts, dim=1)
        first = first + self.first_shift(torch.cat([second, conditions], dim=1))
        told = torch.cat([first, conditions], dim=1)
        second = second * torch.exp(self._log_scale(told)) + self.second_shift(told)
        return torch.cat([first, second], dim=1)

    def inverse(self, image: Tensor, conditions: Tensor) -> Tensor:
        first, second = torch.split(image, self.parts, dim=1)
        told = torch.cat([first, conditions], dim=1)
        second = (second - self.second_shift(told)) * torch.exp(-self._log_scale(told))
        first = first - self.first_shift(torch.cat([second, conditions], dim=1))
        answer: Tensor = self.norm.inverse(self.mixing.inverse(torch.cat([first, second], dim=1)))
        return answer

    def _log_scale(self, told: Tensor) -> Tensor:
        """Bounded, so that no exponential of it can overflow."""
        return self.log_scale_bound * (2 * torch.sigmoid(self.second_log_scale(told)) - 1)


class GatedSubnet(nn.Sequential):
    """What a coupling adds or multiplies with. Its last layer starts at zero, and so a block starts as normalisation alone."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        last = edge_conv3(width, outputs)
        nn.init.zeros_(last.weight)
        assert last.bias is not None
        nn.init.zeros_(last.bias)
        super().__init__(edge_conv3(inputs, width), Gate(width), SqueezeExciteBlock(width), last)


class Gate(nn.Module):
    """One projection of every pixel decides how much of another passes."""

    def __init__(self, width: int, widening: int = 2) -> None:
        super().__init__()
        self.norm = ChannelNorm(width)
        self.decide = pointwise(width, width * widening)
        self.passing = pointwise(width, width * widening)
        self.narrow = pointwise(width * widening, width)

    def forward(self, features: Tensor) -> Tensor:
        normed = self.norm(features)
        gated: Tensor = features + self.narrow(F.gelu(self.decide(normed)) * self.passing(normed))
        return gated


class SqueezeExciteBlock(nn.Module):
    """conv - LeakyReLU - conv, weighed by what the whole image says of each feature, and added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = max(1, width // 16)
        self.convolve = nn.Sequential(edge_conv3(width, width), nn.LeakyReLU(0.2), edge_conv3(width, width))
        self.weigh = nn.Sequential(
            pointwise(width, squeezed, bias=True), nn.ReLU(), pointwise(squeezed, width, bias=True), nn.Sigmoid()
        )

    def forward(self, features: Tensor) -> Tensor:
        change = self.convolve(features)
        changed: Tensor = features + change * self.weigh(change.mean(dim=(2, 3), keepdim=True))
        return changed


def edge_conv3(inputs: int, outputs: int) -> nn.Conv2d:
    """3x3, where the edge pixel stands in for what lies outside."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, padding_mode="replicate")
