"""The implicit decoder: directly from the equations against the exact saving; and how neighbours are taken.

pytest benchmarks/network/test_decoder.py --benchmark-enable
"""

from __future__ import annotations

import pytest
import torch
from tests.models.decoder_oracle import decode_plainly

from hyperfuse.models.catalogue import build_network
from hyperfuse.physics.resample import AxisPlacement, Placement, shared_edges

FINE, COARSE, PLAIN_ROWS = 128, 32, 8
PLACEMENT = shared_edges((FINE, FINE), (COARSE, COARSE))


@pytest.fixture(scope="module")
def decoder():
    return build_network("ssa-6-6").implicit_decoder


@pytest.fixture(scope="module")
def codes():
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(1, 256, size, size, generator=generator).contiguous(memory_format=torch.channels_last)
        for size in (COARSE, FINE)
    )


def decode_plainly_in_chunks(decoder, spectral_code, spatial_code):
    """The plain form in chunks like the fast one, so that the comparison is of arithmetic alone."""
    pieces = []
    for start in range(0, FINE, PLAIN_ROWS):
        rows = AxisPlacement(PLACEMENT.rows.position(start), PLACEMENT.rows.step)
        piece = spatial_code[:, :, start : start + PLAIN_ROWS]
        pieces.append(decode_plainly(decoder, spectral_code, piece, Placement(rows, PLACEMENT.columns)))
    return torch.cat(pieces, dim=2)


def test_forward(decoder, codes, race, note_figure, benchmark):
    with torch.inference_mode():
        torch.testing.assert_close(
            decoder(*codes, PLACEMENT), decode_plainly(decoder, *codes, PLACEMENT), atol=1e-5, rtol=0.0
        )
        seconds = race(
            {
                "plain": lambda: decode_plainly(decoder, *codes, PLACEMENT),
                "plain in chunks": lambda: decode_plainly_in_chunks(decoder, *codes),
                "fast": lambda: decoder(*codes, PLACEMENT),
            }
        )
        benchmark.pedantic(lambda: decoder(*codes, PLACEMENT), rounds=3)
    note_figure(
        f"decoder of ssa-6-6, {FINE}x{FINE} queries, forward: plain {seconds['plain']:.3f} s, plain in chunks "
        f"{seconds['plain in chunks']:.3f} s, fast {seconds['fast']:.3f} s: "
        f"{seconds['plain'] / seconds['fast']:.2f}x and {seconds['plain in chunks'] / seconds['fast']:.2f}x"
    )
    assert seconds["plain"] / seconds["fast"] >= 1.5


def test_forward_and_backward(decoder, codes, race, note_figure, benchmark):
    def step(decode):
        inputs = [code.detach().requires_grad_() for code in codes]
        decoder.zero_grad()
        decode(*inputs, PLACEMENT).sum().backward()

    seconds = race(
        {"plain": lambda: step(lambda *given: decode_plainly(decoder, *given)), "fast": lambda: step(decoder)}
    )
    benchmark.pedantic(lambda: step(decoder), rounds=2)
    note_figure(
        f"decoder of ssa-6-6, {FINE}x{FINE} queries, forward and backward: plain {seconds['plain']:.3f} s, fast "
        f"{seconds['fast']:.3f} s: {seconds['plain'] / seconds['fast']:.2f}x"
    )
    assert seconds["plain"] / seconds["fast"] >= 1.3


def test_neighbours_by_rows_then_columns(race, note_figure, benchmark):
    """Taking the neighbours of a training batch, and the backward pass of that, in three ways."""
    rows = torch.arange(FINE) * COARSE // FINE
    points = (rows[:, None] * COARSE + rows[None, :]).flatten()
    flat_gradient = torch.randn(4, 512, FINE * FINE)
    gradient = flat_gradient.view(4, 512, FINE, FINE).permute(0, 2, 3, 1).contiguous()
    channels_first = torch.randn(4, 512, COARSE, COARSE, requires_grad=True)
    channels_last = channels_first.detach().permute(0, 2, 3, 1).contiguous().requires_grad_()

    def gather_points():
        index = points.expand(4, 512, -1)
        channels_first.flatten(2).gather(2, index).backward(flat_gradient)

    def index_points():
        channels_first[:, :, rows[:, None], rows[None, :]].backward(flat_gradient.view(4, 512, FINE, FINE))

    def select_rows_then_columns():
        channels_last.index_select(1, rows).index_select(2, rows).backward(gradient)

    runs = {"gather": gather_points, "indexing": index_points, "rows, columns": select_rows_then_columns}
    seconds = race(runs)
    benchmark.pedantic(select_rows_then_columns, rounds=3)
    note_figure(
        "one neighbour of 4 patches of 128x128 with 512 features, forward and backward: "
        + ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items())
    )
    assert seconds["rows, columns"] < seconds["indexing"]
