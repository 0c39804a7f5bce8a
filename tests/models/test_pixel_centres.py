"""The convention that ties the coarse grid to the fine one. The ramp tests fail when it is broken, and one of them
shows that.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperfuse.errors import GridError
from hyperfuse.models import pixel_centres
from hyperfuse.models.pixel_centres import (
    AxisPlacement,
    Placement,
    fine_positions,
    neighbour_pair,
    shared_edges,
    upsample_bicubic,
)

CPU = torch.device("cpu")
scales = st.sampled_from([1.0, 2.0, 3.0, 3.2, 4.0, 5.7, 8.0, 16.0, 32.0])
coarse_sizes = st.integers(6, 12)


def ramp_over_the_ground(size: int, shift_in_coarse_pixels: float = 0.0, coarse_size: int = 1) -> torch.Tensor:
    """What an image of `size` pixels sees of a ramp from 0 to 1 over the ground: the ramp's value at each pixel centre."""
    return (torch.arange(size, dtype=torch.float64) + 0.5) / size + shift_in_coarse_pixels / coarse_size


def check_bicubic_on_a_ramp(coarse_size: int, fine_size: int, shift: float = 0.0) -> None:
    axis = shared_edges((fine_size, fine_size), (coarse_size, coarse_size)).rows
    axis = AxisPlacement(axis.origin + shift, axis.step)
    coarse = ramp_over_the_ground(coarse_size)[:, None].expand(coarse_size, 3)
    fine = upsample_bicubic(coarse[None, None], (fine_size, 3), Placement(axis, AxisPlacement(0.0, 1.0)))[0, 0, :, 1]
    position = fine_positions(axis, fine_size)
    interior = (position >= 1.0) & (position <= coarse_size - 2.0)
    assert interior.any()
    expected = ramp_over_the_ground(fine_size, shift, coarse_size)
    torch.testing.assert_close(fine[interior], expected[interior], atol=1e-12, rtol=0.0)


def check_neighbours_on_a_ramp(coarse_size: int, fine_size: int, shift: float = 0.0) -> None:
    axis = shared_edges((fine_size, fine_size), (coarse_size, coarse_size)).rows
    axis = AxisPlacement(axis.origin + shift, axis.step)
    pair = neighbour_pair(fine_positions(axis, fine_size), coarse_size, CPU)
    reached = ramp_over_the_ground(coarse_size)[pair.indices] + pair.offsets.double() / coarse_size
    expected = ramp_over_the_ground(fine_size, shift, coarse_size)
    torch.testing.assert_close(reached, expected.expand(2, -1), atol=1e-6, rtol=0.0)


@given(coarse_size=coarse_sizes, scale=scales, shift=st.floats(-0.5, 0.5))
@settings(max_examples=60, deadline=None)
def test_upsampling_reproduces_a_shifted_ramp(coarse_size, scale, shift):
    check_bicubic_on_a_ramp(coarse_size, round(coarse_size * scale), shift)


@given(coarse_size=coarse_sizes, scale=scales, shift=st.floats(-0.5, 0.5))
@settings(max_examples=60, deadline=None)
def test_neighbour_plus_offset_reproduces_a_shifted_ramp(coarse_size, scale, shift):
    check_neighbours_on_a_ramp(coarse_size, round(coarse_size * scale), shift)


@pytest.mark.parametrize("check", [check_bicubic_on_a_ramp, check_neighbours_on_a_ramp])
@pytest.mark.parametrize("fine_size", [16, 26, 32])
def test_the_paper_s_corner_aligned_formula_fails_the_ramp(monkeypatch, check, fine_size):
    check(8, fine_size)

    def corner_aligned(fine: int, coarse: int) -> AxisPlacement:
        return AxisPlacement(origin=0.0, step=(coarse - 1) / (fine - 1))

    monkeypatch.setattr(pixel_centres, "_shared_edges_along_axis", corner_aligned)
    with pytest.raises(AssertionError):
        check(8, fine_size)


@given(coarse_size=st.integers(1, 40), scale=st.floats(1.0, 32.0))
@settings(max_examples=100, deadline=None)
def test_neighbours_lie_on_both_sides(coarse_size, scale):
    fine_size = round(coarse_size * scale)
    axis = shared_edges((fine_size, fine_size), (coarse_size, coarse_size)).columns
    pair = neighbour_pair(fine_positions(axis, fine_size), coarse_size, CPU)
    assert pair.indices.min() >= 0 and pair.indices.max() <= coarse_size - 1
    assert (pair.offsets.abs() <= 1.0 + 1e-6).all()
    apart = pair.indices[0] != pair.indices[1]
    assert (pair.indices[1] - pair.indices[0])[apart].eq(1).all()
    assert (pair.offsets[0][apart] >= -1e-5).all() and (pair.offsets[1][apart] <= 0.0).all()


@given(scale=st.sampled_from([3, 5, 7, 9]), fine_start=st.integers(0, 60), coarse_start=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_a_window_chooses_the_same_neighbours_on_coarse_centres(scale, fine_start, coarse_start):
    axis = shared_edges((30 * scale,) * 2, (30, 30)).rows
    whole = neighbour_pair(fine_positions(axis, 30 * scale), 10**6, CPU)
    seen = axis.seen_from(fine_start, coarse_start)
    positions = fine_positions(seen, 30 * scale - fine_start) + coarse_start
    window = neighbour_pair(positions, 10**6, CPU)
    assert torch.equal(window.indices, whole.indices[:, fine_start:])
    torch.testing.assert_close(window.offsets, whole.offsets[:, fine_start:], atol=1e-6, rtol=0.0)


def test_a_scale_below_one_is_refused():
    with pytest.raises(GridError, match="a scale below 1; expected an msi with at least as many rows"):
        shared_edges((8, 16), (9, 16))
