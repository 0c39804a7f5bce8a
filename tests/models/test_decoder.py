"""The fast decoder against loops straight from the equations, against the plain form, and its continuity."""

from __future__ import annotations

import pytest
import torch
from tests.models.decoder_oracle import decode_candidates, decode_plainly, decode_slowly

from hyperfuse.models.decoder import ImplicitDecoder
from hyperfuse.physics.resample import AxisPlacement, Placement, shared_edges

SIZES = [
    ((4, 5), (16, 20)),
    ((4, 5), (13, 16)),
    ((3, 4), (9, 23)),
    ((1, 2), (6, 7)),
    ((5, 3), (5, 3)),
    ((2, 2), (11, 13)),
]


def random_decoder(seed: int = 0, code_width: int = 6) -> ImplicitDecoder:
    torch.manual_seed(seed)
    decoder = ImplicitDecoder(code_width, hidden_widths=(11, 9, 7), feature_width=5)
    # Default biases and weights are small; larger ones make the four softmax weights differ.
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(2.0)
    return decoder


def random_codes(coarse, fine, batch=2, code_width=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, code_width, *coarse, generator=generator),
        torch.randn(batch, code_width, *fine, generator=generator),
    )


@pytest.mark.parametrize(("coarse", "fine"), SIZES)
def test_agrees_with_the_loops(coarse, fine):
    decoder = random_decoder()
    spectral_code, spatial_code = random_codes(coarse, fine)
    expected = torch.from_numpy(decode_slowly(decoder, spectral_code, spatial_code)).float()
    placement = shared_edges(fine, coarse)
    with torch.no_grad():
        torch.testing.assert_close(decoder(spectral_code, spatial_code, placement), expected, atol=1e-5, rtol=0.0)
        torch.testing.assert_close(
            decode_plainly(decoder, spectral_code, spatial_code, placement), expected, atol=1e-5, rtol=0.0
        )


@pytest.mark.parametrize(("coarse", "fine"), SIZES)
@pytest.mark.parametrize("queries_per_chunk", [1, 50, None])
def test_fast_and_plain_agree_in_value_and_gradient(coarse, fine, queries_per_chunk):
    decoder = random_decoder()
    decoder.queries_per_chunk = queries_per_chunk
    placement = shared_edges(fine, coarse)
    outcomes = []
    for decode in (decoder, lambda *given: decode_plainly(decoder, *given)):
        codes = [code.requires_grad_() for code in random_codes(coarse, fine)]
        decoder.zero_grad()
        features = decode(*codes, placement)
        features.square().mean().backward()
        outcomes.append([features, *(code.grad for code in codes), *(p.grad.clone() for p in decoder.parameters())])
    for fast, plain in zip(*outcomes, strict=True):
        torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-4)


def test_the_backward_pass_scatters_no_single_elements():
    decoder = random_decoder()
    codes = [code.requires_grad_() for code in random_codes((4, 5), (16, 20))]
    seen, waiting = set(), [decoder(*codes, shared_edges((16, 20), (4, 5))).grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    names = {type(node).__name__ for node in seen}
    assert any(name.startswith("IndexSelectBackward") for name in names)
    scattering = ("IndexBackward", "GatherBackward", "GridSampler", "IndexPut", "Scatter", "TakeBackward")
    assert not [name for name in names if name.startswith(scattering)]


def decode_at(
    decoder, spectral_code, positions: tuple[float, float], steps: tuple[float, float], count: int
) -> torch.Tensor:
    """Features along a row of `count` queries that all have the same spatial code and the same cell."""
    spatial_code = torch.ones(1, 6, 1, count, dtype=torch.float64)
    placement = Placement(AxisPlacement(positions[0], steps[0]), AxisPlacement(positions[1], steps[1]))
    with torch.no_grad():
        return decoder(spectral_code, spatial_code, placement)[0, :, 0]


def largest_step(features: torch.Tensor) -> float:
    return float((features[:, 1:] - features[:, :-1]).abs().max())


def test_continuous_across_the_borders_of_coarse_pixels():
    decoder = random_decoder().double()
    spectral_code = random_codes((5, 6), (1, 1), batch=1)[0].double()
    for border in (0.5, 1.5, 2.5, 3.5):
        steps = [
            largest_step(decode_at(decoder, spectral_code, (1.3, border - half), (0.25, 2 * half), 2))
            for half in (1e-2, 1e-3, 1e-4)
        ]
        assert steps[2] < 1e-2 * steps[0] * 1.5
        assert steps[2] < 1e-3

    # Without the ensemble, each query answered by its nearest coarse pixel alone, the same borders tear.
    placement = Placement(AxisPlacement(1.3, 0.25), AxisPlacement(2.5 - 1e-4, 2e-4))
    with torch.no_grad():
        candidates, _ = decode_candidates(
            decoder, spectral_code, torch.ones(1, 6, 1, 2, dtype=torch.float64), placement
        )
    left_of_border, right_of_border = candidates[0][0, :, 0, 0], candidates[1][0, :, 0, 1]
    assert float((left_of_border - right_of_border).abs().max()) > 1e-2


def test_the_candidates_change_at_coarse_centres():
    """The limit of predicted softmax weights (docs/paper_notes.md): the neighbour that leaves has not faded out."""
    decoder = random_decoder().double()
    spectral_code = random_codes((5, 6), (1, 1), batch=1)[0].double()
    at_centre = largest_step(decode_at(decoder, spectral_code, (1.3, 2.0 - 1e-4), (0.25, 2e-4), 2))
    at_border = largest_step(decode_at(decoder, spectral_code, (1.3, 2.5 - 1e-4), (0.25, 2e-4), 2))
    assert at_centre > 10 * at_border


def test_a_chunk_is_bounded_whatever_the_size():
    decoder = random_decoder()
    decoder.queries_per_chunk = 64
    rows = decoder._rows_per_chunk(torch.zeros(2, 100, 16, 6))
    assert rows == 2
    assert decoder._rows_per_chunk(torch.zeros(2, 100, 500, 6)) == 1
