"""PSTUN: an unfolded optimisation of the fused image's features.

Wang et al., "Perceptive spectral transformer unfolding network with multiscale mixed training for arbitrary-scale
hyperspectral and multispectral image fusion", Information Fusion 2025. Every step moves towards the output of a small
U-shaped transformer and against the gradient of learned spectral and spatial degradations.

Shapes: B batch, C bands, M msi bands, D features, h w coarse, H W fine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.models.baselines.base import (
    BaselineConfig,
    BaselineNetwork,
    FeedForward,
    PositionCode,
    apply_map,
    attention_map,
    conv3,
    crop_to,
    pad_to_multiple,
    pointwise,
)
from hyperfuse.models.weights import Positive
from hyperfuse.physics.resample import AxisPlacement, Placement, fine_positions

_LEVELS = 2
_SMALLEST_PIECE = 2**_LEVELS


class PSTUNConfig(BaselineConfig):
    """width   features of the fused image and of one attention head; the levels below have twice and four times as many
    stages  steps of the unfolded optimisation
    """

    kind: Literal["pstun"] = "pstun"
    width: Positive = 128
    stages: Positive = 3


class PSTUN(BaselineNetwork):
    config: PSTUNConfig
    config_class = PSTUNConfig

    def __init__(self, config: PSTUNConfig) -> None:
        super().__init__(config)
        bands, msi_bands, width = config.bands, config.msi_bands, config.width
        self.embed_msi = conv3(msi_bands, width, bias=False)
        self.embed_hsi = conv3(bands, width, bias=False)
        self.spectral_degradation = SpectralDegradation(width, msi_bands)
        self.spatial_degradation = SpatialDegradation(width)
        self.stages = nn.ModuleList(Stage(width, msi_bands) for _ in range(config.stages))
        self.output = conv3(width, bands, bias=False)

    def fuse(self, hsi: Tensor, msi: Tensor, placement: Placement) -> Tensor:
        padded_msi = pad_to_multiple(msi, _SMALLEST_PIECE)
        hsi_code, code = self.embed_hsi(hsi), self.embed_msi(padded_msi)
        for stage in self.stages:
            spectral_error = self.spectral_degradation(code, padded_msi) - padded_msi
            spatial_error = self.spatial_degradation(code, hsi_code, placement) - hsi_code
            code = stage(code, hsi_code, spectral_error, to_fine(spatial_error, code.shape[2:], placement))
        return crop_to(self.output(code), (msi.shape[2], msi.shape[3]))


class Stage(nn.Module):
    """One step: towards the transformer's image, and against both errors."""

    def __init__(self, width: int, msi_bands: int) -> None:
        super().__init__()
        self.transformer = PairTransformer(width)
        self.trust = nn.Parameter(torch.full((1,), 0.5))  # in the transformer's image, against the image before it
        self.from_spectral_error = nn.Sequential(conv3(msi_bands, width), pointwise(width, width, bias=True), nn.ReLU())
        self.from_spatial_error = nn.Sequential(conv3(width, width), pointwise(width, width, bias=True), nn.ReLU())

    def forward(self, code: Tensor, hsi_code: Tensor, spectral_error: Tensor, spatial_error: Tensor) -> Tensor:
        moved = 2 * (self.trust * self.transformer(code, hsi_code) + (1 - self.trust) * code)
        stepped: Tensor = moved - self.from_spectral_error(spectral_error) - self.from_spatial_error(spatial_error)
        return stepped


class SpectralDegradation(nn.Module):
    """(B, D, H, W) -> (B, M, H, W): the msi of these features, adapted to the brightness of the true one."""

    def __init__(self, width: int, msi_bands: int) -> None:
        super().__init__()
        self.look = nn.Sequential(conv3(msi_bands, msi_bands), nn.ReLU())
        self.weigh_bands = nn.Sequential(nn.Linear(msi_bands, msi_bands), nn.Sigmoid())
        self.weigh_features = nn.Linear(msi_bands, width)
        self.respond = nn.Sequential(
            pointwise(width, msi_bands, bias=True), nn.ReLU(), conv3(msi_bands, msi_bands), nn.ReLU()
        )
        self.direct = pointwise(width, msi_bands, bias=True)

    def forward(self, code: Tensor, msi: Tensor) -> Tensor:
        band_weights = self.weigh_bands(self.look(msi).mean(dim=(2, 3)))
        feature_weights = self.weigh_features(band_weights)
        adapted = self.respond(code * feature_weights[..., None, None]) * band_weights[..., None, None]
        seen: Tensor = self.direct(code) + adapted
        return seen


class SpatialDegradation(nn.Module):
    """(B, D, H, W) -> (B, D, h, w): the coarse features of these, by one blur for all, weighted by the hsi."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(conv3(width, 1), nn.ReLU(), conv3(1, 1), nn.Sigmoid())
        self.blur = conv3(1, 1)

    def forward(self, code: Tensor, hsi_code: Tensor, placement: Placement) -> Tensor:
        coarse_size = hsi_code.shape[2:]
        weights = self.weigh(hsi_code)
        weighted = code * to_fine(weights, code.shape[2:], placement)
        blurred = self.blur(weighted.flatten(0, 1)[:, None]).reshape(code.shape)
        smooth = F.avg_pool2d(F.relu(to_coarse(blurred, coarse_size, placement)), kernel_size=3, stride=1, padding=1)
        degraded: Tensor = smooth * weights + to_coarse(code, coarse_size, placement)
        return degraded


class PairTransformer(nn.Module):
    """A U-Net of two levels over the fine features, guided by the hsi's features at the same levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(_LEVELS + 1)]
        steps = list(pairwise(widths))
        self.entry = conv3(width, width, bias=False)
        self.encoder = nn.ModuleList(PairBlock(each, each // width) for each in widths[:-1])
        self.down = nn.ModuleList(
            nn.Conv2d(fine, coarse, kernel_size=4, stride=2, padding=1, bias=False) for fine, coarse in steps
        )
        self.bottom = PairBlock(widths[-1], widths[-1] // width)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, kernel_size=2, stride=2) for fine, coarse in reversed(steps)
        )
        self.join = nn.ModuleList(pointwise(coarse, fine) for fine, coarse in reversed(steps))
        self.decoder = nn.ModuleList(PairBlock(fine, fine // width) for fine, _ in reversed(steps))
        self.exit = conv3(width, width, bias=False)

    def forward(self, code: Tensor, hsi_code: Tensor) -> Tensor:
        code, guide = self.entry(code), pad_to_multiple(hsi_code, _SMALLEST_PIECE)
        skipped: list[Tensor] = []
        for block, down in zip(self.encoder, self.down, strict=True):
            skipped.append(block(code, guide))
            code, guide = down(skipped[-1]), down(guide)
        code = self.bottom(code, guide)
        for up, join, block in zip(self.up, self.join, self.decoder, strict=True):
            guide = up(guide)
            code = block(join(torch.cat([up(code), skipped.pop()], dim=1)), guide)
        output: Tensor = self.exit(code)
        return output


class PairBlock(nn.Module):
    """Attention over features by the product of the hsi's map and that of the fine features; then a feed-forward."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.project = nn.ModuleList(pointwise(features, features) for _ in range(3))  # queries, keys, values
        self.project_guide = nn.ModuleList(pointwise(features, features) for _ in range(2))  # queries, keys
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.guide_temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.projection = pointwise(features, features, bias=True)
        self.position_code = PositionCode(features)
        self.feed_forward = FeedForward(features)

    def forward(self, code: Tensor, guide: Tensor) -> Tensor:
        queries, keys, values = (project(code) for project in self.project)
        guide_queries, guide_keys = (project(guide) for project in self.project_guide)
        weights = attention_map(guide_queries, guide_keys, self.guide_temperature) @ attention_map(
            queries, keys, self.temperature
        )
        code = code + self.projection(apply_map(weights, values)) + self.position_code(values)
        output: Tensor = code + self.feed_forward(code)
        return output


def to_coarse(image: Tensor, coarse_size: tuple[int, ...], placement: Placement) -> Tensor:
    """(B, D, H, W) -> (B, D, h, w): bilinear at the centres of coarse pixels, without averaging over them."""
    # Coarse pixel k lies at fine position (k - origin) / step.
    axes = (AxisPlacement(-axis.origin / axis.step, 1 / axis.step) for axis in (placement.rows, placement.columns))
    return to_fine(image, coarse_size, Placement(*axes))


def to_fine(image: Tensor, size: tuple[int, ...], placement: Placement) -> Tensor:
    """(B, D, h, w) -> (B, D, H, W), bilinear."""
    rows = _linear_matrix(fine_positions(placement.rows, size[0]), image.shape[2])
    columns = _linear_matrix(fine_positions(placement.columns, size[1]), image.shape[3])
    return rows.to(image) @ (image @ columns.to(image).transpose(0, 1))


def _linear_matrix(positions: Tensor, size: int) -> Tensor:
    """(positions, size): linear interpolation; the edge pixel is repeated outside of the image."""
    inside = positions.clamp(min=0.0).clamp(max=size - 1)
    pixels = torch.arange(size, dtype=torch.float64)
    return (1 - (inside[:, None] - pixels[None, :]).abs()).clamp(min=0)
