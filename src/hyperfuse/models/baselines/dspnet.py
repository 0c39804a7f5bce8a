"""DSPNet: a U-Net over both images with a spectral and a spatial pyramid beside it.

Sun et al., "Dual spatial-spectral pyramid network with transformer for hyperspectral image fusion", TGRS 2023. Every
level of the U-Net also receives the hsi in groups of bands (spectral pyramid) and the msi at several scales (spatial
pyramid).

Shapes: B batch, C bands, M msi bands, D features, H W fine.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor, nn

from hyperfuse.models.baselines.base import (
    BaselineConfig,
    BaselineNetwork,
    FeedForward,
    PositionCode,
    WidthOfEights,
    apply_map,
    attention_map,
    conv3,
    pointwise,
)
from hyperfuse.models.weights import Positive
from hyperfuse.physics.resample import Placement, upsample_bicubic

BAND_GROUPS = (2, 4, 8)
_SLOPE = 0.2


class DSPNetConfig(BaselineConfig):
    """width       features of the finest level; the two below have twice and four times as many
    head_width  features of one attention head
    """

    kind: Literal["dspnet"] = "dspnet"
    width: WidthOfEights = 64
    head_width: Positive = 64

    @model_validator(mode="after")
    def _whole_heads(self) -> DSPNetConfig:
        if self.width % self.head_width:
            raise ValueError(f"got head_width {self.head_width}, expected a divisor of the width {self.width}")
        return self


class DSPNet(BaselineNetwork):
    config: DSPNetConfig
    config_class = DSPNetConfig

    def __init__(self, config: DSPNetConfig) -> None:
        super().__init__(config)
        width, heads = config.width, config.width // config.head_width
        half, twice, four = width // 2, width * 2, width * 4
        self.spectral_pyramid = nn.ModuleList(
            SpectralLevel(*widths) for widths in ((_padded_bands(config.bands), width), (width, twice), (twice, four))
        )
        self.spatial_pyramid = nn.ModuleList(
            SpatialLevel(*widths) for widths in ((config.msi_bands, half), (half, width), (width, twice))
        )
        self.encoder = nn.ModuleList(
            DoubleConv(*widths)
            for widths in ((config.bands + config.msi_bands, width), (width + half, twice), (twice + width, four))
        )
        self.fusers = nn.ModuleList(StreamFuser(width * 2**level, heads * 2**level) for level in range(3))
        self.middle_decoder = DoubleConv(four + twice, twice, between=(four + twice) // 2)
        self.fine_decoder = DoubleConv(twice + twice + width, width, between=(twice + twice + width) // 2)
        joined = width + width + half
        self.output = nn.Sequential(
            conv3(joined, joined), nn.LeakyReLU(_SLOPE), pointwise(joined, config.bands, bias=True)
        )

    def fuse(self, hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
        base = upsample_bicubic(hsi, (msi.shape[2], msi.shape[3]), placement)
        spatial = self._spatial_features(msi)
        codes: list[Tensor] = []
        entering, streams = torch.cat([base, msi], dim=1), [self._pad_bands(base)] * len(BAND_GROUPS)
        for level, (spectral_level, encode, fuser) in enumerate(
            zip(self.spectral_pyramid, self.encoder, self.fusers, strict=True)
        ):
            streams = spectral_level(streams)
            codes.append(fuser(encode(entering), streams))
            entering = _resize(torch.cat([codes[-1], spatial[level]], dim=1), _half_size(entering))
            streams = [_resize(stream, _half_size(stream)) for stream in streams]
        fine, middle, coarse = codes
        decoded = self.middle_decoder(_resize(torch.cat([coarse, spatial[2]], dim=1), middle.shape[2:]))
        decoded = self.fine_decoder(_resize(torch.cat([decoded, middle, spatial[1]], dim=1), fine.shape[2:]))
        change: Tensor = self.output(torch.cat([decoded, fine, spatial[0]], dim=1))
        return base + change

    def _spatial_features(self, msi: Tensor) -> list[Tensor]:
        first, second, third = self.spatial_pyramid
        features = [first(msi)]
        for level in (second, third):
            features.append(level(_resize(features[-1], _half_size(features[-1]))))
        return features

    def _pad_bands(self, image: Tensor) -> Tensor:
        """Repeat the last band until all groups have the same number of bands."""
        missing = _padded_bands(image.shape[1]) - image.shape[1]
        return torch.cat([image, image[:, -1:].expand(-1, missing, -1, -1)], dim=1) if missing else image


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, between: int | None = None, groups: int = 1) -> None:
        between = between or outputs
        super().__init__(
            conv3(inputs, between, groups=groups),
            nn.LeakyReLU(_SLOPE),
            conv3(between, outputs, groups=groups),
            nn.LeakyReLU(_SLOPE),
        )


class SpectralLevel(nn.Module):
    """Three streams of the hsi, each convolved within its own groups of bands."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.streams = nn.ModuleList(DoubleConv(inputs, outputs, groups=groups) for groups in BAND_GROUPS)

    def forward(self, streams: list[Tensor]) -> list[Tensor]:
        return [convolve(stream) for convolve, stream in zip(self.streams, streams, strict=True)]


class SpatialLevel(nn.Module):
    """The msi's features at full, half and quarter scale, joined with channel attention."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        joined = 3 * inputs
        self.scales = nn.ModuleList(conv3(inputs, inputs) for _ in range(3))
        self.weigh = nn.Sequential(
            pointwise(joined, max(1, joined // 4)), nn.ReLU(), pointwise(max(1, joined // 4), joined)
        )
        self.join = nn.Sequential(conv3(joined, outputs), nn.LeakyReLU(_SLOPE))

    def forward(self, features: Tensor) -> Tensor:
        size = features.shape[2:]
        at_scales = []
        for convolve, shrink in zip(self.scales, (1, 2, 4), strict=True):
            small = _resize(features, (max(1, size[0] // shrink), max(1, size[1] // shrink)))
            at_scales.append(_resize(convolve(small), size))
        joined = torch.cat(at_scales, dim=1)
        weights = torch.sigmoid(
            self.weigh(joined.mean(dim=(2, 3), keepdim=True)) + self.weigh(joined.amax(dim=(2, 3), keepdim=True))
        )
        output: Tensor = self.join(joined * weights)
        return output


class StreamFuser(nn.Module):
    """Attention over features: queries from the main path, keys and values from it and the three spectral streams."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        sources = 1 + len(BAND_GROUPS)
        self.queries = pointwise(features, features)
        self.keys = nn.ModuleList(pointwise(features, features) for _ in range(sources))
        self.values = nn.ModuleList(pointwise(features, features) for _ in range(sources))
        self.temperatures = nn.Parameter(torch.ones(sources, heads, 1, 1))
        self.projection = pointwise(features, features, bias=True)
        self.position_code = PositionCode(features)
        self.feed_forward = FeedForward(features)

    def forward(self, main: Tensor, streams: list[Tensor]) -> Tensor:
        queries, sources = self.queries(main), [main, *streams]
        values = [value(source) for value, source in zip(self.values, sources, strict=True)]
        attended = [
            apply_map(attention_map(queries, key(source), temperature), value)
            for key, source, temperature, value in zip(self.keys, sources, self.temperatures, values, strict=True)
        ]
        main = main + self.projection(torch.stack(attended).sum(dim=0)) + self.position_code(values[0])
        fused: Tensor = main + self.feed_forward(main)
        return fused


def _padded_bands(bands: int) -> int:
    return bands + -bands % max(BAND_GROUPS)


def _half_size(image: Tensor) -> tuple[int, int]:
    return (image.shape[2] + 1) // 2, (image.shape[3] + 1) // 2


def _resize(image: Tensor, size: tuple[int, ...]) -> Tensor:
    """Bilinear with shared outer edges; from an even size to its half, the means of 2x2 pixels."""
    return image if image.shape[2:] == size else F.interpolate(image, size=size, mode="bilinear", align_corners=False)
