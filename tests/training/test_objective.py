"""The loss against the metrics that are tested on their own."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.metrics.metrics import ssim
from hyperfuse.training.objective import fusion_loss, structural_similarity


@pytest.mark.parametrize("size", [(11, 11), (20, 33)])
def test_ssim_is_the_metric(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    fused, reference = (torch.rand(1, 4, *size, generator=generator) for _ in range(2))
    expected = ssim(fused[0].numpy(), reference[0].numpy(), peak=1.0)
    assert float(structural_similarity(fused, reference)) == pytest.approx(expected, abs=1e-5)


def test_the_loss_is_the_paper_s() -> None:
    generator = torch.Generator().manual_seed(1)
    fused, reference = (torch.rand(2, 3, 16, 16, generator=generator) for _ in range(2))
    expected = (fused - reference).abs().mean() + 0.1 * (1 - structural_similarity(fused, reference))
    assert torch.equal(fusion_loss(fused, reference, 0.1), expected)
    assert torch.equal(fusion_loss(fused, reference, 0.0), (fused - reference).abs().mean())
    assert float(fusion_loss(reference, reference, 0.1)) == pytest.approx(0.0, abs=1e-6)


def test_small_patches_and_gradients() -> None:
    fused = torch.rand(1, 2, 7, 30, requires_grad=True)
    fusion_loss(fused, torch.rand(1, 2, 7, 30), 0.1).backward()
    assert fused.grad is not None
    assert bool(torch.isfinite(fused.grad).all())
