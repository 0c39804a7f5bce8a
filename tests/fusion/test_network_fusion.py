"""Units and errors between a network and a pair of arrays."""

from __future__ import annotations

import pytest
import torch
from tests.models.network_fixtures import TINY, random_pair, tiny_network

from hyperfuse.errors import BandError
from hyperfuse.fusion.fusers import RANGE_QUANTILE, fuse_with_network
from hyperfuse.models.matryoshka import Channels, Components, MatryoshkaBands, WavelengthBands
from hyperfuse.models.ssa import SSAConfig
from hyperfuse.physics.observation import known_observation


def fuse(
    hsi: torch.Tensor, msi: torch.Tensor, config: SSAConfig = TINY, known_nm: bool = True, gain: float = 1.0
) -> torch.Tensor:
    """`gain` is how much larger the numbers of the msi are for the same light; the response knows it."""
    srf = gain * torch.ones(msi.shape[0], hsi.shape[0]) / hsi.shape[0]
    wavelength_nm = torch.linspace(450, 900, hsi.shape[0], dtype=torch.float64) if known_nm else None
    return fuse_with_network(tiny_network(config=config), hsi, msi, known_observation(srf, 3.0), wavelength_nm)


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    hsi, msi = random_pair(5, 3, (6, 7), (18, 21))
    return hsi[0], msi[0]


def test_a_scene_that_fills_the_range_passes_as_it_is(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    hsi, msi = (image / torch.quantile(image, RANGE_QUANTILE) for image in pair)
    with torch.no_grad():
        expected = tiny_network()(hsi[None], msi[None])[0]
    torch.testing.assert_close(fuse(hsi, msi), expected, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("channels", [MatryoshkaBands(max_channels=16), WavelengthBands(), Components(count=4)])
@pytest.mark.parametrize("base", ["bicubic", "gsa"])
def test_channels_and_bases_of_every_kind(
    pair: tuple[torch.Tensor, torch.Tensor], channels: Channels, base: str
) -> None:
    """An untrained network changes its base only a little, in any unit, and dark scenes as much as bright ones."""
    config = TINY.model_copy(update={"channels": channels, "msi_kernel": "own", "base": base})
    fused = fuse(*pair, config)
    assert fused.shape == (5, 18, 21)
    torch.testing.assert_close(fuse(1e-3 * pair[0], 50 * pair[1], config, gain=5e4), 1e-3 * fused, rtol=1e-3, atol=1e-6)


def test_wavelength_channels_without_wavelengths_are_refused(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    config = TINY.model_copy(update={"channels": WavelengthBands(), "msi_kernel": "own"})
    with pytest.raises(BandError, match="no wavelengths of the hsi's bands"):
        fuse(*pair, config, known_nm=False)


def test_the_unit_of_either_image_does_not_matter(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Digital numbers and radiances above the network's range are scaled into it, and the result comes back in the
    hsi's unit.
    """
    hsi, msi = pair
    first, second = fuse(1e4 * hsi, 255 * msi, gain=255 / 1e4), fuse(1e3 * hsi, 1e5 * msi, gain=100.0)
    torch.testing.assert_close(first, 10 * second, rtol=1e-4, atol=0.1)


def test_a_highlight_does_not_change_the_unit_of_the_rest() -> None:
    hsi, msi = (image[0] for image in random_pair(5, 3, (40, 40), (120, 120)))
    bright = msi.clone()
    bright[:, 0, 0] = 3.0
    torch.testing.assert_close(fuse(hsi, bright)[:, 60:, 60:], fuse(hsi, msi)[:, 60:, 60:], atol=1e-5, rtol=0.0)


def test_a_dark_scene_with_one_light_stays_finite() -> None:
    hsi, msi = torch.zeros(5, 40, 40), torch.zeros(3, 120, 120)
    hsi[:, 20, 20], msi[:, 60, 60] = 5.0, 9.0
    assert bool(torch.isfinite(fuse(hsi, msi)).all())


def test_too_many_bands_are_refused_with_a_way_out(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    with pytest.raises(
        BandError, match=r"15 hsi bands and 3 msi bands; expected at most 16 together; .*needs no weights"
    ):
        fuse(torch.cat([pair[0]] * 3), pair[1])
