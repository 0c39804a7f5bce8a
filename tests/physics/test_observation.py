"""Observations: stated ones, and windows of them."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.errors import BandError
from hyperfuse.physics.observation import known_observation


def test_a_window_sees_the_same_scene():
    observation = known_observation(torch.ones(1, 1), 3.2, 1.4, (0.3, -0.7))
    image = torch.rand(96, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = observation.spatial_operator((96, 96), (30, 30)).apply(image)
    window = observation.in_window((10, 8), (25, 20))
    part = window.spatial_operator((50, 60), (12, 15)).apply(image[25:75, 20:80])
    torch.testing.assert_close(part[1:-1, 1:-1], whole[11:21, 9:22])
    assert window.misregistration == pytest.approx(observation.misregistration)


def test_the_default_point_spread_is_one_coarse_pixel_wide_at_half_maximum():
    observation = known_observation(torch.ones(2, 5), (4.0, 8.0))
    assert observation.sigma == pytest.approx((4 / 2.3548, 8 / 2.3548), rel=1e-4)
    assert observation.hsi_noise.shape == (5,)
    assert observation.msi_noise.shape == (2,)


def test_a_response_must_be_a_matrix():
    with pytest.raises(BandError, match="one row per msi band"):
        known_observation(torch.ones(5), 4.0)
