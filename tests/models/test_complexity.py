"""Multiply-adds against the paper's tables and against a sum by hand."""

from __future__ import annotations

import itertools

import pytest
from tests.models.network_fixtures import TINY

from hyperfuse.models.analysis import count_multiply_adds
from hyperfuse.models.ssa import preset

# Table "model scaling" (58.873G, 0.120T, 0.161T, 0.202T); the efficiency table prints the last one as 206.848G = 0.202
# x 1024.
PAPER_GIGA = {"ssa-1-1": 58.873, "ssa-2-2": 120.0, "ssa-4-4": 161.0, "ssa-6-6": 202.0}


@pytest.mark.parametrize(("name", "giga"), PAPER_GIGA.items())
def test_counts_are_those_of_the_paper(name, giga):
    counts = count_multiply_adds(preset(name), bands=31, msi_bands=3, fine_size=(128, 128), coarse_size=(32, 32))
    assert counts.per_candidate / 1e9 == pytest.approx(giga, rel=0.005)
    assert counts.performed < counts.equation < counts.per_candidate


def test_count_by_hand():
    bands, msi_bands, (height, width), (h, w) = 5, 3, (13, 16), (4, 5)
    fine, coarse, d = height * width, h * w, TINY.width

    def convolution(a, b):
        return 9 * a * b + b

    bicubic = bands * (h * w * width + height * h * width)
    encoders = sum(
        (2 + 2 * blocks) * convolution(d, d) * pixels
        for blocks, pixels in ((TINY.spectral_blocks, coarse), (TINY.spatial_blocks, fine))
    )
    kernels = convolution(bands, d) * coarse + convolution(bands + msi_bands, d) * fine
    output = convolution(TINY.feature_width, bands) * fine
    widths = [2 * d + 4, *TINY.decoder_hidden, TINY.feature_width + 1]
    decoder = 4 * fine * sum((a + 1) * b for a, b in itertools.pairwise(widths))

    counts = count_multiply_adds(TINY, bands, msi_bands, (height, width), (h, w))
    assert counts.equation == bicubic + encoders + kernels + decoder + output
    assert counts.per_candidate == counts.equation + 3 * output
