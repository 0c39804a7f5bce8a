"""Light of another colour, another contrast, highlights cut off: still values from 0 to 1, and the same for the same
draw.
"""

from __future__ import annotations

import numpy as np
import torch

from hyperfuse.data.observing import vary_light


def varied(seed: int) -> torch.Tensor:
    patch = torch.rand(12, 16, 16, generator=torch.Generator().manual_seed(1))
    vary_light(np.random.default_rng(seed), patch)
    return patch


def test_values_stay_between_0_and_1():
    for seed in range(20):
        patch = varied(seed)
        assert bool(torch.isfinite(patch).all()) and float(patch.min()) >= 0 and float(patch.max()) <= 1


def test_the_same_draw_gives_the_same_scene_and_others_give_others():
    assert torch.equal(varied(3), varied(3))
    assert len({float(varied(seed).mean()) for seed in range(20)}) > 15
