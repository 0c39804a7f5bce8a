"""DCINN (Wang et al., IJCV 2024): an invertible network that turns the details of one image into those of the other, told by an
ordinary network what both images look like.

B batch, C bands, M msi bands, H W fine.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from hyperfuse.networks.bicubic import upsample_bicubic
from hyperfuse.networks.network_config import LARGEST_SIZE, Positive
from hyperfuse.networks.network_errors import PairShapeError
from hyperfuse.networks.pixel_centres import Placement
from hyperfuse.networks.rivals.building_blocks import crop_to, halved, pad_to_multiple
from hyperfuse.networks.rivals.invertible_blocks import HaarTransform, InvertibleBlock, SqueezeExciteBlock, edge_conv3
from hyperfuse.networks.rivals.msi_lifting import lift_msi
from hyperfuse.networks.rivals.rival_config import EvenWidth, RivalConfig
from hyperfuse.networks.rivals.rival_network import RivalNetwork


class DcinnConfig(RivalConfig):
    """width             filters of the condition network and of the inner couplings; conditions and outer couplings have half
    inner_blocks      invertible blocks at half scale
    condition_blocks  residual blocks of the condition network
    exponential_terms of the series of each convolution exponential, where most of the time goes
    """

    kind: Literal["dcinn"] = "dcinn"
    bands: Annotated[int, Field(ge=2, le=LARGEST_SIZE)]  # the couplings need two parts
    width: EvenWidth = 64
    inner_blocks: Positive = 2
    condition_blocks: Positive = 2
    exponential_terms: Positive = 10


class Conditions(NamedTuple):
    full: Tensor
    half: Tensor


class Dcinn(RivalNetwork):
    config: DcinnConfig
    config_class = DcinnConfig

    def __init__(self, config: DcinnConfig) -> None:
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
        details = pad_to_multiple(lift_msi(hsi, msi, placement) - base, 2)
        return base + crop_to(self._missing_details(details, self._told(base, msi)), size)

    def inverse(self, fused: Tensor, hsi: Tensor, msi: Tensor, placement: Placement | None = None) -> Tensor:
        """From what `forward` answered back to the lifted msi that its invertible part started from. For even sizes alone."""
        placement = self.checked_placement(hsi, msi, placement)
        if fused.shape[2] % 2 or fused.shape[3] % 2:
            raise PairShapeError(
                f"a fused image of {fused.shape[2]} x {fused.shape[3]} pixels",
                "even sizes",
                "an odd size is padded on the way, and what was cut off again cannot be undone",
            )
        base = upsample_bicubic(hsi, (msi.shape[2], msi.shape[3]), placement)
        return base + self._given_details(fused - base, self._told(base, msi))

    def _told(self, base: Tensor, msi: Tensor) -> Conditions:
        conditions: Conditions = self.conditions(pad_to_multiple(torch.cat([base, msi], dim=1), 2))
        return conditions

    def _missing_details(self, details: Tensor, told: Conditions) -> Tensor:
        pieces = self.haar_down(self.entry(details, told.full))
        for block in self.inner:
            pieces = block(pieces, told.half)
        # Every block leaves its channels with variance 1: the details get their own unit back.
        missing: Tensor = self.entry.norm.inverse(self.exit(self.haar_up.inverse(pieces), told.full))
        return missing

    def _given_details(self, details: Tensor, told: Conditions) -> Tensor:
        pieces = self.haar_up(self.exit.inverse(self.entry.norm.normalised(details), told.full))
        for block in reversed(self.inner):
            assert isinstance(block, InvertibleBlock)
            pieces = block.inverse(pieces, told.half)
        return self.entry.inverse(self.haar_down.inverse(pieces), told.full)


class ConditionNetwork(nn.Module):
    """What the couplings are told, at full and at half scale."""

    def __init__(self, inputs: int, width: int, blocks: int) -> None:
        super().__init__()
        self.body = nn.Sequential(edge_conv3(inputs, width), *(SqueezeExciteBlock(width) for _ in range(blocks)))
        self.for_full_scale = edge_conv3(width, width // 2)
        self.for_half_scale = edge_conv3(width, width // 2)

    def forward(self, pair: Tensor) -> Conditions:
        features = self.body(pair)
        return Conditions(self.for_full_scale(features), halved(self.for_half_scale(features)))
