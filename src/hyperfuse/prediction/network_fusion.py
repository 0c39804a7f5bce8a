"""A trained network on a pair of arrays of any unit and size.

Shapes: C bands, M msi bands, h w coarse, H W fine. The arrays have no holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hyperfuse.errors import BandError, GridError, HyperfuseError, OptionError, WeightsError
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.networks.network_errors import ChannelCountError, MissingExtraError, NetworkError, PairShapeError, WeightsFileError
from hyperfuse.networks.pixel_centres import AxisPlacement, Placement
from hyperfuse.networks.tiling import fuse_by_tiles

# Pixels above this share of all are highlights: they may leave the network's range of values.
RANGE_QUANTILE = 0.9995
LARGEST_SAMPLE = 1_000_000

OUR_ERRORS: dict[type[NetworkError], type[HyperfuseError]] = {
    ChannelCountError: BandError,
    PairShapeError: GridError,
    WeightsFileError: WeightsError,
    MissingExtraError: OptionError,
}


@contextmanager
def network_errors() -> Iterator[None]:
    """`networks/` knows nothing of our errors; here its own become ours."""
    try:
        yield
    except NetworkError as error:
        raise OUR_ERRORS.get(type(error), OptionError)(error.got, error.expected, error.remedy) from error


def load_network(weights: str) -> FusionNetwork:
    with network_errors():
        return FusionNetwork.from_pretrained(weights)


def require_fitting_bands(network: FusionNetwork, bands: int, msi_bands: int) -> None:
    """Said before the estimation, not after it."""
    with network_errors():
        network.check_bands(bands, msi_bands)


def fuse_with_network(
    network: FusionNetwork, hsi: Tensor, msi: Tensor, scale: tuple[float, float], shift: tuple[float, float]
) -> Tensor:
    """hsi (C, h, w), msi (M, H, W) -> (C, H, W) in the hsi's unit; `shift` is counted as in `degradation/point_spread.py`."""
    hsi_unit, msi_unit = (_unit_of(image, network.config.value_range[1]) for image in (hsi, msi))
    placement = Placement(*(axis_placement(*axis) for axis in zip(scale, shift, strict=True)))
    with network_errors():
        fused = fuse_by_tiles(network, (hsi / hsi_unit)[None], (msi / msi_unit)[None], placement=placement)
    return fused[0] * hsi_unit


def axis_placement(scale: float, shift: float) -> AxisPlacement:
    """Fine pixel i lies at coarse position (i + 0.5 - shift) / scale - 0.5."""
    return AxisPlacement((0.5 - shift) / scale - 0.5, 1 / scale)


def _unit_of(image: Tensor, high: float) -> float:
    """What to divide an image by: 1 where its values but for highlights fit the network's range already, as reflectances do."""
    values = image.flatten()[:: max(1, image.numel() // LARGEST_SAMPLE)]
    return max(1.0, float(torch.quantile(values.float(), RANGE_QUANTILE)) / high)
