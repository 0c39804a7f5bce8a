"""Stitched tiles are the whole image, at any tile size, any scale, borders included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.models.network_fixtures import TINY, loud_network, random_pair, tiny_network

from hyperfuse.errors import OptionError
from hyperfuse.models.ssa import ReceptiveField
from hyperfuse.models.tiling import Window, fuse_by_tiles, plan_tiles, run_by_tiles
from hyperfuse.physics.resample import AxisPlacement, Placement, shared_edges


@given(
    coarse=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    scale=st.tuples(st.floats(1.0, 6.0), st.floats(1.0, 6.0)),
    tile_size=st.integers(5, 40),
)
@example(coarse=(13, 11), scale=(3.2, 5.7), tile_size=7)
@example(coarse=(13, 11), scale=(3.0, 5.0), tile_size=11)
@example(coarse=(40, 37), scale=(1.0, 1.0), tile_size=9)
@example(coarse=(35, 37), scale=(1.1, 1.3), tile_size=9)
@example(coarse=(2, 3), scale=(3.2, 5.7), tile_size=1)
@settings(max_examples=8, deadline=None)
def test_stitched_tiles_equal_the_whole(coarse, scale, tile_size):
    network = loud_network()
    fine = (round(coarse[0] * scale[0]), round(coarse[1] * scale[1]))
    hsi, msi = (image.double() for image in random_pair(3, 2, coarse, fine))
    with torch.no_grad():
        whole = network(hsi, msi)
    torch.testing.assert_close(fuse_by_tiles(network, hsi, msi, tile_size), whole, atol=1e-5, rtol=0.0)


@given(shift=st.tuples(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0)), scale=st.floats(1.0, 5.0))
@settings(max_examples=5, deadline=None)
def test_tiles_of_a_shifted_pair_equal_the_whole(shift, scale):
    network = loud_network()
    hsi, msi = (image.double() for image in random_pair(3, 2, (9, 8), (37, 29)))
    placement = Placement(AxisPlacement(shift[0], 1 / scale), AxisPlacement(shift[1], 1 / scale))
    with torch.no_grad():
        whole = network(hsi, msi, placement)
    torch.testing.assert_close(fuse_by_tiles(network, hsi, msi, 13, placement), whole, atol=1e-5, rtol=0.0)


def test_a_smaller_margin_shows_seams():
    network = loud_network()
    hsi, msi = (image.double() for image in random_pair(3, 2, (14, 14), (45, 45)))
    with torch.no_grad():
        whole = network(hsi, msi)
        for too_small in (
            ReceptiveField(network.receptive_field.fine - 1, network.receptive_field.coarse),
            ReceptiveField(network.receptive_field.fine, network.receptive_field.coarse - 1),
        ):
            worst = 0.0
            for tile in plan_tiles((45, 45), (14, 14), too_small, 15):
                piece = tile.core_of(network(tile.coarse.of(hsi), tile.fine.of(msi), tile.placement))
                worst = max(worst, float((piece - tile.core.of(whole)).abs().max()))
            assert worst > 1e-3


def test_cores_cover_the_image_once_and_windows_stay_inside():
    count = torch.zeros(50, 33)
    for tile in plan_tiles((50, 33), (10, 11), ReceptiveField(8, 5), 12):
        tile.core.of(count).add_(1)
        for window, size in ((tile.fine, (50, 33)), (tile.coarse, (10, 11))):
            assert 0 <= window.top < window.bottom <= size[0]
            assert 0 <= window.left < window.right <= size[1]
    assert (count == 1).all()


def test_only_windows_are_read():
    network = tiny_network()
    hsi, msi = random_pair(3, 2, (40, 40), (120, 120))
    largest = 0

    def read_msi(window: Window) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, window.bottom - window.top, window.right - window.left)
        return window.of(msi)

    for window, pixels in run_by_tiles(network, lambda w: w.of(hsi), read_msi, (120, 120), (40, 40), 20):
        assert pixels.shape == (1, 3, window.bottom - window.top, window.right - window.left)
    assert largest == 20 + 2 * network.receptive_field.fine


def test_a_tile_of_nothing_is_refused():
    with pytest.raises(OptionError, match="tile size 0; expected at least 1"):
        list(plan_tiles((8, 8), (2, 2), tiny_network(config=TINY).receptive_field, 0, shared_edges((8, 8), (2, 2))))
