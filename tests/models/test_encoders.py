"""The trunk written out as a formula, and its in-place additions against numerical derivatives."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.models.ssa import Encoder


def convolve(image: torch.Tensor, convolution: torch.nn.Conv2d) -> torch.Tensor:
    """(D, H, W), zeros beyond the border: each tap of the kernel shifts the image and mixes its features."""
    height, width = image.shape[1:]
    padded = torch.zeros(image.shape[0], height + 2, width + 2, dtype=image.dtype)
    padded[:, 1:-1, 1:-1] = image
    result = convolution.bias[:, None, None].expand(-1, height, width)
    for m in range(3):
        for n in range(3):
            shifted = padded[:, m : m + height, n : n + width]
            result = result + torch.einsum("dc,chw->dhw", convolution.weight[:, :, m, n], shifted)
    return result


@pytest.mark.parametrize("blocks", [1, 3])
def test_is_head_blocks_tail_and_long_skip(blocks):
    torch.manual_seed(0)
    encoder = Encoder(4, blocks).double()
    embedded = torch.randn(4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        start = convolve(embedded, encoder.head)
        code = start
        for block in encoder.blocks:
            code = code + convolve(convolve(code, block.first).clamp(min=0.0), block.second)
        expected = start + convolve(code, encoder.tail)
        torch.testing.assert_close(encoder(embedded[None])[0], expected, atol=1e-12, rtol=0.0)
    assert len(encoder.blocks) == blocks


def test_derivatives_survive_the_additions_in_place():
    torch.manual_seed(0)
    encoder = Encoder(2, 2).double()
    assert torch.autograd.gradcheck(encoder, torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True))
