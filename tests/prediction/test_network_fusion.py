"""Units and errors between a network and a pair of arrays."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.errors import BandError
from hyperfuse.prediction.network_fusion import fuse_with_network
from networks.network_fixtures import random_pair, tiny_network


def fuse(hsi: torch.Tensor, msi: torch.Tensor) -> torch.Tensor:
    return fuse_with_network(tiny_network(), hsi, msi, (3.0, 3.0), (0.0, 0.0))


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    hsi, msi = random_pair(5, 3, (6, 7), (18, 21))
    return hsi[0], msi[0]


def test_reflectances_pass_as_they_are(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    with torch.no_grad():
        expected = tiny_network()(pair[0][None], pair[1][None])[0]
    torch.testing.assert_close(fuse(*pair), expected, atol=1e-5, rtol=0.0)


def test_the_unit_of_either_image_does_not_matter(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Digital numbers and radiances above the network's range are scaled into it, and the result comes back in the hsi's unit."""
    hsi, msi = pair
    torch.testing.assert_close(fuse(1e4 * hsi, 255 * msi), 10 * fuse(1e3 * hsi, 1e5 * msi), rtol=1e-4, atol=0.1)


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
    with pytest.raises(BandError, match=r"15 hsi bands and 3 msi bands; expected at most 16 together; .*needs no weights"):
        fuse(torch.cat([pair[0]] * 3), pair[1])
