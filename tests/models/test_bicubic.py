"""Keys' cubic convolution against a loop over its definition."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.models.pixel_centres import (
    AxisPlacement,
    Placement,
    cubic_matrix,
    fine_positions,
    keys_cubic,
    shared_edges,
    upsample_bicubic,
)


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
    matrix = cubic_matrix(fine_positions(AxisPlacement(-20.0, 1.0), 50), 6)
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
