"""The coarse search finds offsets of many coarse pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from hyperfuse.physics.register import search_coarse_offsets
from hyperfuse.physics.sampling import MARGIN_OF_BLOCK, SPREAD_COARSE_PIXELS, SPREAD_WHOLE_FINE_PIXELS, PairSamples


def images(offset: tuple[int, int], size: int = 48, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """An hsi of six bands that looks `offset` further down and right than the msi of two, which mixes them."""
    random = np.random.default_rng(seed)
    materials = gaussian_filter(random.standard_normal((3, size + 60, size + 60)), (0, 1, 1))
    slow = 5 * gaussian_filter(random.standard_normal((3, size + 60, size + 60)), (0, 20, 20))
    bands = np.tensordot(random.random((6, 3)), materials + slow, 1).astype(np.float32)
    window = bands[:, 30 + offset[0] : 30 + offset[0] + size, 30 + offset[1] : 30 + offset[1] + size]
    msi = np.tensordot(random.random((2, 6)).astype(np.float32), bands[:, 30 : 30 + size, 30 : 30 + size], 1)
    return window + 0.02 * random.standard_normal(window.shape).astype(np.float32), msi


@pytest.mark.parametrize("offset", [(0, 0), (3, -2), (17, 9), (-20, 4), (2, -25)])
def test_any_offset_that_leaves_enough_overlap_is_found(offset: tuple[int, int]) -> None:
    best = search_coarse_offsets(*images(offset))[0]
    assert best.offset == pytest.approx(offset, abs=0.3)
    assert best.explained > 0.8
    assert best.overlap == (48 - abs(offset[0])) * (48 - abs(offset[1]))


def test_holes_do_not_count() -> None:
    hsi, msi = images((5, -7))
    hsi[:, 10:20, 30:40] = np.nan
    msi[:, :, :6] = np.nan
    assert search_coarse_offsets(hsi, msi)[0].offset == pytest.approx((5, -7), abs=0.3)


def test_images_of_different_places_explain_little_of_each_other() -> None:
    hsi, _ = images((0, 0), 96, seed=1)
    _, msi = images((0, 0), 96, seed=2)
    assert max(each.explained for each in search_coarse_offsets(hsi, msi)) < 0.3


def test_no_offset_without_texture_size_or_data() -> None:
    hsi, msi = images((0, 0))
    assert search_coarse_offsets(np.ones_like(hsi), msi) == []
    assert search_coarse_offsets(hsi, np.full_like(msi, 0.25)) == []
    assert search_coarse_offsets(hsi[:, :10], msi[:, :10]) == []
    assert search_coarse_offsets(np.full_like(hsi, np.nan), msi) == []


@pytest.mark.parametrize("shift", [(300.0, -300.0), (-300.0, 300.0)])
def test_blocks_that_a_trial_moves_out_of_the_fine_image(shift: tuple[float, float]) -> None:
    size = 2 * SPREAD_WHOLE_FINE_PIXELS // 4
    samples = PairSamples.of(torch.rand(2, size, size), torch.rand(1, 4 * size, 4 * size), (4.0, 4.0), shift)
    blocks = samples.blocks((2.0, 2.0), spread=True)
    outside = [block for block in blocks if not block.usable.any()]
    assert 0 < len(outside) < len(blocks)
    for block in outside:
        assert max(block.msi.shape[1:]) <= 4 * (SPREAD_COARSE_PIXELS + 2 * MARGIN_OF_BLOCK)
        assert block.operator((4.0, 4.0), (2.0, 2.0)).apply(block.msi).isfinite().all()
