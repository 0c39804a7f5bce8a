"""MIMO-SST: a U-Net with inputs and outputs at full, half and quarter scale.

Fang et al., "MIMO-SST: multi-input multi-output spatial-spectral transformer for hyperspectral and multispectral image
fusion", TGRS 2024. One block of cross attention, shared by the three scales, joins hsi and msi; every output is a
residual on the upsampled hsi.

Shapes: B batch, C bands, M msi bands, D features, H W fine.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.models.baselines.base import (
    BaselineConfig,
    BaselineNetwork,
    ChannelNorm,
    EvenWidth,
    apply_map,
    attention_map,
    conv3,
    crop_to,
    depthwise,
    halved,
    pad_to_multiple,
    pointwise,
)
from hyperfuse.physics.resample import Placement, upsample_bicubic

FREQUENCY_WEIGHT = 0.01
_SCALES = 3
_SMALLEST_PIECE = 2 ** (_SCALES - 1)


class MIMOSSTConfig(BaselineConfig):
    """width        features at full scale; half and quarter scale have twice and four times as many
    idle_layers  whether to hold the layers that the published count of parameters includes but nothing uses
    """

    kind: Literal["mimo-sst"] = "mimo-sst"
    width: EvenWidth = 48
    idle_layers: bool = False


class ScaleOutputs(NamedTuple):
    """The fused image at three scales; `half` and `quarter` of the msi padded to a multiple of four pixels."""

    full: Tensor
    half: Tensor
    quarter: Tensor


def loss_over_scales(outputs: ScaleOutputs, reference: Tensor) -> Tensor:
    """Mean absolute error of the pixels, and of their Fourier coefficients, summed over the three scales."""
    references = [reference, *_halvings(pad_to_multiple(reference, _SMALLEST_PIECE))[1:]]
    losses = []
    for output, target in zip(outputs, references, strict=True):
        # Half precision has no Fourier transform, and the error of a frequency is a sum over all pixels.
        error = output.float() - target.float()
        losses.append(error.abs().mean() + FREQUENCY_WEIGHT * torch.fft.fft2(error).abs().mean())
    return torch.stack(losses).sum()


class MIMOSST(BaselineNetwork):
    config: MIMOSSTConfig
    config_class = MIMOSSTConfig

    def __init__(self, config: MIMOSSTConfig) -> None:
        super().__init__(config)
        width, bands, msi_bands = config.width, config.bands, config.msi_bands
        self.embed_msi = conv3(msi_bands, width)
        self.embed_hsi = conv3(bands, width)
        self.cross_block = CrossBlock(width)
        self.join_inputs = conv3(2 * width + bands + msi_bands, width, bias=False)
        self.to_half = conv3(width, width // 2, bias=False)  # before a pixel unshuffle: one feature becomes four
        self.join_half = conv3(3 * width, 2 * width)
        self.to_quarter = conv3(2 * width, width, bias=False)
        self.join_quarter = conv3(5 * width, 4 * width)
        self.from_quarter = conv3(4 * width, 8 * width, bias=False)  # before a pixel shuffle: four features become one
        self.reduce_half = pointwise(4 * width, 2 * width)
        self.from_half = conv3(2 * width, 4 * width, bias=False)
        self.quarter_output = conv3(4 * width, bands)
        self.output = conv3(2 * width, bands)  # at half and at full scale
        if config.idle_layers:
            self.idle_layers = _idle_layers(width)

    def fuse(self, hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
        bases, codes = self._decode(hsi, msi, placement)
        return crop_to(F.relu(bases[0] + self.output(codes[0])), (msi.shape[2], msi.shape[3]))

    def forward_scales(self, hsi: Tensor, msi: Tensor, placement: Placement | None = None) -> ScaleOutputs:
        """Fuse at all three scales, for `loss_over_scales`."""
        bases, codes = self._decode(hsi, msi, self.checked_placement(hsi, msi, placement))
        full = crop_to(F.relu(bases[0] + self.output(codes[0])), (msi.shape[2], msi.shape[3]))
        return ScaleOutputs(full, bases[1] + self.output(codes[1]), bases[2] + self.quarter_output(codes[2]))

    def _decode(self, hsi: Tensor, msi: Tensor, placement: Placement) -> tuple[list[Tensor], list[Tensor]]:
        """The upsampled hsi and the decoded features, each at full, half and quarter scale."""
        base = upsample_bicubic(hsi, (msi.shape[2], msi.shape[3]), placement)
        bases, msis = (_halvings(pad_to_multiple(image, _SMALLEST_PIECE)) for image in (base, msi))
        joined = [self._join_inputs(*images) for images in zip(bases, msis, strict=True)]
        half = self.join_half(torch.cat([F.pixel_unshuffle(self.to_half(joined[0]), 2), joined[1]], dim=1))
        quarter = self.join_quarter(torch.cat([F.pixel_unshuffle(self.to_quarter(half), 2), joined[2]], dim=1))
        half = self.reduce_half(torch.cat([F.pixel_shuffle(self.from_quarter(quarter), 2), half], dim=1))
        full = torch.cat([F.pixel_shuffle(self.from_half(half), 2), joined[0]], dim=1)
        return bases, [full, half, quarter]

    def _join_inputs(self, base: Tensor, msi: Tensor) -> Tensor:
        msi_code, hsi_code = self.cross_block(self.embed_msi(msi), self.embed_hsi(base))
        joined: Tensor = self.join_inputs(torch.cat([msi_code, hsi_code, msi, base], dim=1))
        return joined


class CrossBlock(nn.Module):
    """Cross attention: the msi queries the hsi over channels, the hsi queries the msi over feature maps."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm_before_attention = ChannelNorm(features)
        self.norm_before_feed_forward = ChannelNorm(features)
        self.project = nn.Sequential(pointwise(features, 3 * features), depthwise(3 * features))
        self.channel_temperature = nn.Parameter(torch.ones(1, 1, 1))
        self.map_temperature = nn.Parameter(torch.ones(1, 1, 1))
        self.channel_projection = pointwise(features, features)
        self.feed_forward = nn.Sequential(conv3(features, features), nn.GELU())

    def forward(self, msi_code: Tensor, hsi_code: Tensor) -> tuple[Tensor, Tensor]:
        msi_queries, msi_keys, msi_values = self._project(msi_code)
        hsi_queries, hsi_keys, hsi_values = self._project(hsi_code)
        over_channels = attention_map(msi_queries, hsi_keys, self.channel_temperature)
        over_maps = attention_map(hsi_queries, msi_keys, 1 / self.map_temperature)
        msi_code = msi_code + self.channel_projection(apply_map(over_channels, hsi_values))
        hsi_code = hsi_code + apply_map(over_maps, msi_values)
        return self._feed_forward(msi_code), self._feed_forward(hsi_code)

    def _project(self, code: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.project(self.norm_before_attention(code)).chunk(3, dim=1))

    def _feed_forward(self, code: Tensor) -> Tensor:
        changed: Tensor = code + self.feed_forward(self.norm_before_feed_forward(code))
        return changed


def _halvings(image: Tensor) -> list[Tensor]:
    """The image at full, half and quarter scale."""
    images = [image]
    for _ in range(_SCALES - 1):
        images.append(halved(images[-1]))
    return images


def _idle_layers(width: int) -> nn.ModuleList:
    """Unused layers of the published count: a fourth level, and three more attentions in the cross block.

    Without gradients, so that neither the optimiser nor distributed training waits for them.
    """
    fourth_level = [
        conv3(4 * width, 2 * width, bias=False),
        conv3(8 * width, 16 * width, bias=False),
        pointwise(8 * width, 4 * width),
        conv3(5 * width, 4 * width),
    ]
    projections = [
        layer
        for _ in range(3)
        for layer in (pointwise(width, 3 * width), depthwise(3 * width), pointwise(width, width))
    ]
    temperatures = [nn.ParameterList(torch.ones(1, 1, 1) for _ in range(2))]
    layers = nn.ModuleList([*fourth_level, *projections, conv3(width, width), *temperatures])
    return layers.requires_grad_(False)
