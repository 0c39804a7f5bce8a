"""A trained network on a pair of arrays of any unit and size.

Shapes: C bands, M msi bands, h w coarse, H W fine. The arrays have no holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from hyperfuse.errors import BandError, GridError, HyperfuseError, OptionError, WeightsError
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.fuse_arrays import fuse_arrays, fuse_window_by
from hyperfuse.methods.over_scene import alone
from hyperfuse.methods.universal import fuse_guided
from hyperfuse.methods.window import Window
from hyperfuse.networks.network_config import BICUBIC
from hyperfuse.networks.network_errors import ChannelCountError, MissingExtraError, NetworkError, PairShapeError, WeightsFileError
from hyperfuse.networks.pair_channels import find_channels
from hyperfuse.networks.pixel_centres import AxisPlacement, Placement
from hyperfuse.networks.prior_network import PriorNetwork
from hyperfuse.networks.rivals.catalogue import AnyNetwork, load_any_network
from hyperfuse.networks.rivals.rival_network import RivalNetwork
from hyperfuse.networks.tiling import fuse_by_tiles

# Pixels above this share of all are highlights: they may leave the network's range of values.
RANGE_QUANTILE = 0.9995
LARGEST_SAMPLE = 1_000_000
# A response that explains less than this share of an msi band's brightness does not say its unit.
SMALLEST_GAIN = 0.2

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


def load_network(weights: str) -> AnyNetwork:
    """Ours or a rival."""
    with network_errors():
        return load_any_network(weights)


def require_fitting_bands(network: AnyNetwork, bands: int, msi_bands: int) -> None:
    """Said before the estimation, not after it."""
    with network_errors():
        network.check_bands(bands, msi_bands)


def fuse_with_network(
    network: AnyNetwork, hsi: Tensor, msi: Tensor, observation: Observation, wavelength_nm: Tensor | None = None
) -> Tensor:
    """hsi (C, h, w), msi (M, H, W) -> (C, H, W) in the hsi's unit. The closed form that the network adds to is run first."""
    if isinstance(network, PriorNetwork):
        return alone(fuse_window_by(partial(fuse_guided, network=network), Window(hsi, msi, observation)))
    hsi_unit = unit_of(hsi, network.config.value_range[1])
    msi_unit = msi_units(msi, observation, hsi_unit, network.config.value_range[1])
    placement = Placement(*(axis_placement(*axis) for axis in zip(observation.scale, observation.shift, strict=True)))
    base = None if network.config.base == BICUBIC else fuse_arrays(hsi, msi, observation, network.config.base)
    device = next(network.parameters()).device
    whole_hsi, whole_msi = (hsi / hsi_unit)[None].to(device), (msi / msi_unit)[None].to(device)
    if isinstance(network, RivalNetwork):
        with network_errors(), torch.inference_mode():
            whole: Tensor = network(whole_hsi, whole_msi, placement)
        return whole[0].cpu() * hsi_unit
    with network_errors():
        channels = find_channels(
            network.config, whole_hsi, whole_msi, wavelength_nm, msi_centres_nm(observation.response, wavelength_nm)
        )
        fused = fuse_by_tiles(
            network,
            whole_hsi,
            whole_msi,
            placement=placement,
            base=None if base is None else (base / hsi_unit)[None].to(device),
            channels=channels,
        )
    return fused[0].cpu() * hsi_unit


def msi_centres_nm(response: Tensor, wavelength_nm: Tensor | None) -> Tensor | None:
    """Where the bands of an msi with this response (..., M, C) lie; a band that sees nothing lies in the middle of all."""
    if wavelength_nm is None:
        return None
    weights = response.double().clamp(min=0) + 1e-9
    return (weights * wavelength_nm.double()).sum(dim=-1) / weights.sum(dim=-1)


def msi_units(msi: Tensor, observation: Observation, hsi_unit: float, high: float) -> Tensor:
    """(M, 1, 1): what to divide the msi's bands by, so that a grey pixel has the same value in both images, as in training.

    The response says it: its rows, which sum to 1 where both images are in one unit. A band that the response leaves dark is
    scaled by its own values.
    """
    gains = observation.response.sum(dim=1)
    own = torch.tensor([unit_of(band, high) for band in msi], dtype=torch.float64)
    units = torch.where(gains > SMALLEST_GAIN * own / hsi_unit, gains * hsi_unit, own)
    return units[:, None, None].to(msi.dtype)


def axis_placement(scale: float, shift: float) -> AxisPlacement:
    """Fine pixel i lies at coarse position (i + 0.5 - shift) / scale - 0.5."""
    return AxisPlacement((0.5 - shift) / scale - 0.5, 1 / scale)


def unit_of(image: Tensor, high: float) -> float:
    """What to divide an image by, so that its values but for highlights fill the network's range, as they did in training."""
    values = image.flatten()[:: max(1, image.numel() // LARGEST_SAMPLE)]
    brightest = float(torch.quantile(values.float(), RANGE_QUANTILE)) / high
    return brightest if brightest > 0 else max(1.0, float(image.max()) / high)
