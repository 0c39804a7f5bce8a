"""Pixel centres and bicubic interpolation, against loops over their definitions.

The ramp tests fail when the pixel-centre convention is broken, and one of them shows that.
"""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperfuse import compiled
from hyperfuse.errors import GridError
from hyperfuse.physics.observation import SpatialOperator
from hyperfuse.physics.resample import (
    AxisPlacement,
    Placement,
    bicubic_matrix,
    fine_positions,
    keys_cubic,
    neighbour_pair,
    shared_edges,
    upsample_bicubic,
)

CPU = torch.device("cpu")
scales = st.sampled_from([1.0, 2.0, 3.0, 3.2, 4.0, 5.7, 8.0, 16.0, 32.0])
coarse_sizes = st.integers(6, 12)


def ramp_over_the_ground(size: int, shift_in_coarse_pixels: float = 0.0, coarse_size: int = 1) -> torch.Tensor:
    """A ramp from 0 to 1 over the ground, as an image of `size` pixels samples it at its pixel centres."""
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

    def corner_aligned(fine: tuple[int, int], coarse: tuple[int, int]) -> Placement:
        rows, columns = (AxisPlacement(0.0, (coarse[i] - 1) / (fine[i] - 1)) for i in (0, 1))
        return Placement(rows, columns)

    monkeypatch.setattr(sys.modules[__name__], "shared_edges", corner_aligned)
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


def keys_slowly(distance: float) -> float:
    """Keys (1981), equation 15: the cubic convolution of third order."""
    d = abs(distance)
    if d < 1:
        return 1.5 * d**3 - 2.5 * d**2 + 1.0
    if d < 2:
        return -0.5 * d**3 + 2.5 * d**2 - 4.0 * d + 2.0
    return 0.0


def upsample_slowly(image: torch.Tensor, fine_size: tuple[int, int]) -> torch.Tensor:
    h, w = image.shape
    result = torch.zeros(fine_size, dtype=torch.float64)
    for i in range(fine_size[0]):
        for j in range(fine_size[1]):
            y, x = (i + 0.5) * h / fine_size[0] - 0.5, (j + 0.5) * w / fine_size[1] - 0.5
            for k in range(-4, h + 4):
                for n in range(-4, w + 4):
                    weight = keys_slowly(y - k) * keys_slowly(x - n)
                    if weight:
                        result[i, j] += weight * image[min(max(k, 0), h - 1), min(max(n, 0), w - 1)]
    return result


@pytest.mark.parametrize(
    ("coarse", "fine"), [((5, 4), (20, 16)), ((5, 4), (16, 23)), ((3, 1), (7, 4)), ((4, 4), (4, 4))]
)
def test_agrees_with_the_loop(coarse, fine):
    image = torch.rand(coarse, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fast = upsample_bicubic(image[None, None], fine, shared_edges(fine, coarse))[0, 0]
    torch.testing.assert_close(fast, upsample_slowly(image, fine), atol=1e-12, rtol=0.0)


def test_the_kernel_is_third_order_everywhere():
    distances = torch.linspace(-3, 3, 601, dtype=torch.float64)
    expected = torch.tensor([keys_slowly(float(d)) for d in distances], dtype=torch.float64)
    torch.testing.assert_close(keys_cubic(distances), expected, atol=1e-12, rtol=0.0)


def test_scale_one_changes_nothing():
    image = torch.rand(2, 3, 6, 5)
    torch.testing.assert_close(
        upsample_bicubic(image, (6, 5), shared_edges((6, 5), (6, 5))), image, atol=1e-6, rtol=0.0
    )


def test_far_outside_the_edge_pixel_is_repeated():
    matrix = bicubic_matrix(AxisPlacement(-20.0, 1.0), 50, 6)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(50, dtype=torch.float64))
    assert torch.equal(matrix[:18, 0], torch.ones(18, dtype=torch.float64))
    assert torch.equal(matrix[-20:, -1], torch.ones(20, dtype=torch.float64))


def test_the_base_stays_in_float32_under_autocast():
    image = torch.rand(1, 3, 6, 5)
    placement = Placement(AxisPlacement(0.1, 0.3), AxisPlacement(0.2, 0.4))
    expected = upsample_bicubic(image, (9, 8), placement)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = upsample_bicubic(image, (9, 8), placement)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)


@pytest.mark.parametrize(
    ("coarse", "fine", "scale", "shift"), [(5, 20, 4.0, 0.0), (5, 16, 3.2, 0.7), (7, 9, 9 / 7, -2.5), (1, 6, 6.0, 0.0)]
)
def test_bicubic_by_loops(coarse, fine, scale, shift):
    matrix = bicubic_matrix(AxisPlacement.from_scale(scale, shift), fine, coarse)
    for i in range(fine):
        position = (i + 0.5 - shift) / scale - 0.5
        expected = [0.0] * coarse
        for k in range(math.floor(position) - 1, math.floor(position) + 3):
            expected[min(max(k, 0), coarse - 1)] += keys_slowly(position - k)
        assert matrix[i].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler at installation")
@pytest.mark.parametrize(
    ("coarse", "fine"), [((5, 6), (20, 25)), ((40, 21), (77, 130)), ((17, 33), (17, 33)), ((1, 3), (40, 9))]
)
def test_compiled_products_are_those_of_torch(coarse, fine, monkeypatch):
    """Up and down, with numbers of rows and columns around those that are worked on together."""
    scale = (fine[0] / coarse[0], fine[1] / coarse[1])
    placement, sigma = Placement.from_scale(scale, (0.4, -0.7)), (0.4 * scale[0], 0.4 * scale[1])
    operator = SpatialOperator.from_psf(fine, coarse, scale, sigma)
    generator = torch.Generator().manual_seed(0)
    small = torch.randn(2, 3, *coarse, generator=generator)
    large = torch.randn(6, fine[0], 2 * fine[1], generator=generator)[:, :, : fine[1]]  # not contiguous
    found = [upsample_bicubic(small, fine, placement), operator.apply(large)]
    monkeypatch.setattr(compiled, "library", lambda: None)
    expected = [upsample_bicubic(small, fine, placement), operator.apply(large)]
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
