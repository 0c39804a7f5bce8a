"""DCINN: an invertible network that turns the details of the msi into those of the fused image.

Wang et al., "A general paradigm with detail-preserving conditional invertible network for image fusion", IJCV 2024. A
second, ordinary network computes conditions from both images for the invertible couplings.

Shapes: B batch, C bands or channels, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hyperfuse.errors import GridError
from hyperfuse.models.baselines.base import (
    BaselineConfig,
    BaselineNetwork,
    ChannelNorm,
    EvenWidth,
    crop_to,
    halved,
    pad_to_multiple,
    pointwise,
)
from hyperfuse.models.weights import LARGEST_SIZE, Positive, full_precision
from hyperfuse.physics.resample import AxisPlacement, Placement, fine_positions, upsample_bicubic

# Of the msi's own variance: bands that are nearly alike would otherwise get huge weights of opposite signs.
_RIDGE = 1e-4
_SMALLEST_VARIANCE = 1e-8


class DCINNConfig(BaselineConfig):
    """width              filters of the condition network and of the inner couplings; half of them in the outer ones
    inner_blocks       invertible blocks at half scale
    condition_blocks   residual blocks of the condition network
    exponential_terms  of the series of each convolution exponential, which takes most of the time
    """

    kind: Literal["dcinn"] = "dcinn"
    bands: Annotated[int, Field(ge=2, le=LARGEST_SIZE)]  # the couplings need two parts
    width: EvenWidth = 64
    inner_blocks: Positive = 2
    condition_blocks: Positive = 2
    exponential_terms: Positive = 10


class DCINN(BaselineNetwork):
    config: DCINNConfig
    config_class = DCINNConfig

    def __init__(self, config: DCINNConfig) -> None:
        super().__init__(config)
        bands, width, half, terms = config.bands, config.width, config.width // 2, config.exponential_terms
        self.conditions = ConditionNetwork(bands + config.msi_bands, width, config.condition_blocks)
        self.entry = InvertibleBlock(bands, bands // 2, conditions=half, width=half, terms=terms)
        self.haar_down = HaarTransform(bands)
        self.inner = nn.ModuleList(
            InvertibleBlock(4 * bands, 4 * (bands // 2), conditions=half, width=width, terms=terms)
            for _ in range(config.inner_blocks)
        )
        self.haar_up = HaarTransform(bands)
        self.exit = InvertibleBlock(bands, bands // 2, conditions=half, width=half, terms=terms)

    def fuse(self, hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
        size = (msi.shape[2], msi.shape[3])
        base = upsample_bicubic(hsi, size, placement)
        with full_precision(hsi.device.type):  # for a system of equations, whatever the network runs in
            lifted = lift_msi(hsi, msi, placement)
        details = pad_to_multiple(lifted - base, 2)
        full, half = self._conditions(base, msi)
        pieces = self.haar_down(self.entry(details, full))
        for block in self.inner:
            pieces = block(pieces, half)
        # Every block leaves its channels with variance 1: the details get their own unit back.
        details = self.entry.norm.inverse(self.exit(self.haar_up.inverse(pieces), full))
        return base + crop_to(details, size)

    def inverse(self, fused: Tensor, hsi: Tensor, msi: Tensor, placement: Placement | None = None) -> Tensor:
        """Invert `forward`: from the fused image back to the lifted msi. For even sizes only."""
        placement = self.checked_placement(hsi, msi, placement)
        if fused.shape[2] % 2 or fused.shape[3] % 2:
            remedy = "an odd size is padded by the network and cropped again, which cannot be inverted"
            raise GridError(f"a fused image of {fused.shape[2]} x {fused.shape[3]} pixels", "even sizes", remedy)
        base = upsample_bicubic(hsi, (msi.shape[2], msi.shape[3]), placement)
        full, half = self._conditions(base, msi)
        pieces = self.haar_up(self.exit.inverse(self.entry.norm.normalise(fused - base), full))
        for block in reversed(self.inner):
            assert isinstance(block, InvertibleBlock)
            pieces = block.inverse(pieces, half)
        return base + self.entry.inverse(self.haar_down.inverse(pieces), full)

    def _conditions(self, base: Tensor, msi: Tensor) -> tuple[Tensor, Tensor]:
        full, half = self.conditions(pad_to_multiple(torch.cat([base, msi], dim=1), 2))
        return full, half


def lift_msi(hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
    """Predict the fine hsi (B, C, H, W) from the msi, by least squares between hsi and coarse msi of every pair."""
    rows = _averaging_matrix(placement.rows, msi.shape[2], hsi.shape[2]).to(msi)
    columns = _averaging_matrix(placement.columns, msi.shape[3], hsi.shape[3]).to(msi)
    # 0 for coarse pixels outside of the msi, which must not count.
    covered = rows.sum(dim=1)[:, None] * columns.sum(dim=1)[None, :]
    shares = (covered / covered.sum().clamp(min=1)).flatten()
    inputs, outputs = (rows @ msi @ columns.transpose(0, 1)).flatten(2), hsi.flatten(2)
    input_mean, output_mean = ((image * shares).sum(dim=2, keepdim=True) for image in (inputs, outputs))
    weights = _ridge_weights(inputs - input_mean, outputs - output_mean, shares)
    lifted = weights @ (msi.flatten(2) - input_mean) + output_mean
    return lifted.reshape(hsi.shape[:2] + msi.shape[2:])


def _ridge_weights(inputs: Tensor, outputs: Tensor, shares: Tensor) -> Tensor:
    """Centred values (B, M, n) and (B, C, n), weights of the pixels (n,) -> slopes (B, C, M)."""
    weighted = (inputs * shares).transpose(1, 2)
    variance, covariance = inputs @ weighted, outputs @ weighted
    ridge = _RIDGE * variance.diagonal(dim1=1, dim2=2).mean(dim=1) + _SMALLEST_VARIANCE
    identity = torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    # Both matrices transposed: the variance is its own transpose.
    solved: Tensor = torch.linalg.solve(variance + ridge[:, None, None] * identity, covariance.transpose(1, 2))
    return solved.transpose(1, 2)


def _averaging_matrix(axis: AxisPlacement, fine_size: int, coarse_size: int) -> Tensor:
    """(coarse size, fine size): means of the fine pixels with centres in each coarse pixel; zeros where none are."""
    nearest = torch.floor(fine_positions(axis, fine_size) + 0.5)
    inside = (nearest[None, :] == torch.arange(coarse_size, dtype=torch.float64)[:, None]).double()
    return inside / inside.sum(dim=1, keepdim=True).clamp(min=1)


class ConditionNetwork(nn.Module):
    """Features of the pair for the couplings, at full and at half scale."""

    def __init__(self, inputs: int, width: int, blocks: int) -> None:
        super().__init__()
        self.body = nn.Sequential(edge_conv3(inputs, width), *(SqueezeExciteBlock(width) for _ in range(blocks)))
        self.for_full_scale = edge_conv3(width, width // 2)
        self.for_half_scale = edge_conv3(width, width // 2)

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(pair)
        return self.for_full_scale(features), halved(self.for_half_scale(features))


class InvertibleBlock(nn.Module):
    """Normalise, mix by a convolution exponential, and couple: each part of the channels transforms the other."""

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
        inputs = torch.cat([first, conditions], dim=1)
        second = second * torch.exp(self._log_scale(inputs)) + self.second_shift(inputs)
        return torch.cat([first, second], dim=1)

    def inverse(self, image: Tensor, conditions: Tensor) -> Tensor:
        first, second = torch.split(image, self.parts, dim=1)
        inputs = torch.cat([first, conditions], dim=1)
        second = (second - self.second_shift(inputs)) * torch.exp(-self._log_scale(inputs))
        first = first - self.first_shift(torch.cat([second, conditions], dim=1))
        return self.norm.inverse(self.mixing.inverse(torch.cat([first, second], dim=1)))

    def _log_scale(self, inputs: Tensor) -> Tensor:
        """Bounded, so that its exponential cannot overflow."""
        return self.log_scale_bound * (2 * torch.sigmoid(self.second_log_scale(inputs)) - 1)


class ActivationNorm(nn.Module):
    """A scale and a shift for each channel, such that the first training batch has mean 0 and variance 1.

    In distributed training the statistics are those of all processes. `fitted` is above 0 once there was a batch; it is
    a float because weights are averaged and stored as floats.
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
        return self.normalise(image)

    def normalise(self, image: Tensor) -> Tensor:
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
    """exp(K) of a 5x5 convolution K, by the first terms of its power series; exp(-K) is its approximate inverse."""

    def __init__(self, channels: int, terms: int) -> None:
        super().__init__()
        self.terms = terms
        self.kernel = nn.Parameter(torch.zeros(channels, channels, 5, 5))  # the identity before training

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
    """Every 2x2 pixels to their mean and three differences as channels: (B, C, H, W) -> (B, 4C, H/2, W/2).

    The first C channels are the image at half scale. The kernels are parameters that are never trained, since the
    published count of parameters includes them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        signs = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
        self.kernels = nn.Parameter(signs.reshape(4, 1, 2, 2).repeat(channels, 1, 1, 1), requires_grad=False)
        self.channels = channels

    def forward(self, image: Tensor) -> Tensor:
        pieces = F.conv2d(image, self.kernels, stride=2, groups=self.channels) / 4
        return _transpose_channels(pieces, self.channels, 4)

    def inverse(self, pieces: Tensor) -> Tensor:
        by_channel = _transpose_channels(pieces, 4, self.channels)
        return F.conv_transpose2d(by_channel, self.kernels, stride=2, groups=self.channels)


def _transpose_channels(image: Tensor, groups: int, members: int) -> Tensor:
    """Channels in the order (group, member) to the order (member, group)."""
    return torch.unflatten(image, 1, (groups, members)).transpose(1, 2).flatten(1, 2)


class GatedSubnet(nn.Sequential):
    """A shift or scale of a coupling. The last layer starts at zero, so a block starts as normalisation only."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        last = edge_conv3(width, outputs)
        nn.init.zeros_(last.weight)
        assert last.bias is not None
        nn.init.zeros_(last.bias)
        super().__init__(edge_conv3(inputs, width), Gate(width), SqueezeExciteBlock(width), last)


class Gate(nn.Module):
    """Gated feed-forward: one projection of every pixel multiplies another."""

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
    """Residual block (conv - LeakyReLU - conv) with squeeze-and-excitation."""

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
    """3x3 convolution that repeats the edge pixel outside of the image."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, padding_mode="replicate")
