"""The receptive field is sufficient and no larger than needed: windows with that halo give the whole image."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.models.network_fixtures import TINY, loud_network, random_pair, tiny_network

from hyperfuse.models.matryoshka import Components, PairChannels, WavelengthBands
from hyperfuse.models.ssa import SSA
from hyperfuse.models.weights import ReceptiveField
from hyperfuse.physics.resample import CENTRE_SLACK, AxisPlacement, Placement, shared_edges


def axis_windows(
    core: tuple[int, int], fine_size: int, coarse_size: int, field: ReceptiveField, axis: AxisPlacement
) -> tuple[slice, slice]:
    """The fine and the coarse pixels that a network with this receptive field needs for fine pixels `core`."""

    def below(fine_index: int) -> int:
        return math.floor(axis.position(fine_index) + CENTRE_SLACK)

    def inside(coarse_index: int) -> int:
        return min(max(coarse_index, 0), coarse_size - 1)

    fine = max(0, core[0] - field.fine), min(fine_size, core[1] + field.fine)
    # Of the core and the ring around it, the neighbours; of the whole window, the four taps of bicubic interpolation.
    ring = max(0, core[0] - 1), min(fine_size, core[1] + 1) - 1
    first = min(inside(below(ring[0])) - field.coarse, inside(below(fine[0]) - 1))
    last = max(inside(below(ring[1]) + 1) + field.coarse, inside(below(fine[1] - 1) + 2))
    return slice(*fine), slice(inside(first), inside(last) + 1)


def fuse_in_windows(
    network: SSA,
    hsi: torch.Tensor,
    msi: torch.Tensor,
    size: int,
    placement: Placement | None = None,
    field: ReceptiveField | None = None,
    channels: PairChannels | None = None,
) -> torch.Tensor:
    """The network run on windows with a halo, their cores of `size` pixels stitched together."""
    fine_size, coarse_size = msi.shape[2:], hsi.shape[2:]
    placement = placement or shared_edges(tuple(fine_size), tuple(coarse_size))
    field = field or network.receptive_field
    fused = msi.new_full((*hsi.shape[:2], *fine_size), math.nan)
    for top in range(0, fine_size[0], size):
        for left in range(0, fine_size[1], size):
            rows, columns = (top, min(top + size, fine_size[0])), (left, min(left + size, fine_size[1]))
            fine_rows, coarse_rows = axis_windows(rows, fine_size[0], coarse_size[0], field, placement.rows)
            fine_columns, coarse_columns = axis_windows(columns, fine_size[1], coarse_size[1], field, placement.columns)
            window = network(
                hsi[..., coarse_rows, coarse_columns],
                msi[..., fine_rows, fine_columns],
                Placement(
                    placement.rows.seen_from(fine_rows.start, coarse_rows.start),
                    placement.columns.seen_from(fine_columns.start, coarse_columns.start),
                ),
                channels=channels,
            )
            fused[..., slice(*rows), slice(*columns)] = window[
                ...,
                rows[0] - fine_rows.start : rows[1] - fine_rows.start,
                columns[0] - fine_columns.start : columns[1] - fine_columns.start,
            ]
    return fused


@given(
    coarse=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    scale=st.tuples(st.floats(1.0, 6.0), st.floats(1.0, 6.0)),
    size=st.integers(5, 40),
)
@example(coarse=(13, 11), scale=(3.2, 5.7), size=7)
@example(coarse=(13, 11), scale=(3.0, 5.0), size=11)
@example(coarse=(40, 37), scale=(1.0, 1.0), size=9)
@example(coarse=(35, 37), scale=(1.1, 1.3), size=9)
@example(coarse=(2, 3), scale=(3.2, 5.7), size=1)
@settings(max_examples=8, deadline=None)
@torch.no_grad()
def test_windows_with_that_halo_equal_the_whole(coarse, scale, size):
    network = loud_network()
    fine = (round(coarse[0] * scale[0]), round(coarse[1] * scale[1]))
    hsi, msi = (image.double() for image in random_pair(3, 2, coarse, fine))
    torch.testing.assert_close(fuse_in_windows(network, hsi, msi, size), network(hsi, msi), atol=1e-5, rtol=0.0)


@given(shift=st.tuples(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0)), scale=st.floats(1.0, 5.0))
@settings(max_examples=5, deadline=None)
@torch.no_grad()
def test_windows_of_a_shifted_pair_equal_the_whole(shift, scale):
    network = loud_network()
    hsi, msi = (image.double() for image in random_pair(3, 2, (9, 8), (37, 29)))
    placement = Placement(AxisPlacement(shift[0], 1 / scale), AxisPlacement(shift[1], 1 / scale))
    whole = network(hsi, msi, placement)
    torch.testing.assert_close(fuse_in_windows(network, hsi, msi, 13, placement), whole, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("channels", [WavelengthBands(knots=12), Components(count=6)], ids=lambda each: each.kind)
@torch.no_grad()
def test_windows_with_the_channels_of_the_scene_equal_the_whole(channels):
    network = tiny_network(config=TINY.model_copy(update={"channels": channels, "msi_kernel": "own"}))
    hsi, msi = random_pair(9, 3, (7, 6), (23, 18), batch=2)
    found = network.find_channels(hsi, msi, torch.linspace(430, 2300, 9), torch.linspace(480, 900, 3))
    whole = network(hsi, msi, channels=found)
    torch.testing.assert_close(fuse_in_windows(network, hsi, msi, 8, channels=found), whole, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("less", [ReceptiveField(1, 0), ReceptiveField(0, 1)])
@torch.no_grad()
def test_a_smaller_halo_shows_seams(less):
    network = loud_network()
    hsi, msi = (image.double() for image in random_pair(3, 2, (14, 14), (45, 45)))
    fine, coarse = network.receptive_field
    stitched = fuse_in_windows(network, hsi, msi, 15, field=ReceptiveField(fine - less.fine, coarse - less.coarse))
    assert float((stitched - network(hsi, msi)).abs().max()) > 1e-3
