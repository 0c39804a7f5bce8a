"""Maps of the kernels and their smoothness; multiply-adds against the paper's tables and against a sum by hand."""

from __future__ import annotations

import itertools
import sys
import types

import numpy as np
import pytest
import torch
from tests.models.network_fixtures import TINY, tiny_network

from hyperfuse.errors import OptionError
from hyperfuse.models import analysis as kernel_analysis
from hyperfuse.models.analysis import count_multiply_adds, kernel_vectors, map_kernels, principal_plane, smoothness
from hyperfuse.models.ssa import preset
from hyperfuse.reporting.figures import draw_kernel_maps


def smoothness_slowly(vectors: list[list[float]]) -> float:
    def squared_distance(a, b):
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))

    neighbours = [squared_distance(a, b) for a, b in itertools.pairwise(vectors)]
    pairs = [squared_distance(a, b) for a, b in itertools.combinations(vectors, 2)]
    return 1.0 - (sum(neighbours) / len(neighbours)) / (sum(pairs) / len(pairs))


def test_smoothness_agrees_with_the_loop():
    vectors = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert smoothness(vectors) == pytest.approx(smoothness_slowly(vectors.tolist()), abs=1e-12)


def test_smoothness_tells_a_curve_from_noise():
    angle = torch.linspace(0, 3, 60, dtype=torch.float64)
    curve = torch.stack([angle.cos(), angle.sin()], dim=1)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    assert smoothness(curve) > 0.98
    assert abs(smoothness(curve[order])) < 0.4
    assert smoothness(torch.ones(5, 3, dtype=torch.float64)) == 1.0


def test_principal_plane_keeps_the_distances_of_a_plane():
    plane = torch.randn(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = plane @ torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0][:2]
    torch.testing.assert_close(torch.cdist(principal_plane(turned), principal_plane(turned)), torch.cdist(plane, plane))
    torch.testing.assert_close(principal_plane(turned), principal_plane(-turned))


def test_every_channel_of_every_kernel_is_mapped():
    network = tiny_network()
    vectors = kernel_vectors(network)
    assert torch.equal(vectors["input kernel (hsi)"][3], network.hsi_kernel.weight[:, 3].flatten().double())
    assert torch.equal(vectors["output kernel"][3], network.output_kernel.weight[3].flatten().double())
    maps = map_kernels(network, umap=False)
    assert [tuple(each.points.shape) for each in maps] == [(16, 2)] * 3
    assert [len(each.points) for each in map_kernels(network, channels=5, umap=False)] == [5] * 3
    with pytest.raises(OptionError, match="17 channels to draw; expected at least 4 and at most the 16 of the network"):
        map_kernels(network, channels=17)
    with pytest.raises(OptionError, match="1 channels to draw; expected at least 4"):
        map_kernels(tiny_network(config=TINY.with_fixed_bands(1, 1)))


def test_umap_is_used_where_it_is_installed(monkeypatch):
    class StandInUMAP:
        def __init__(self, n_neighbors, random_state):
            assert n_neighbors == 15 and random_state == 0

        def fit_transform(self, vectors):
            return np.full((len(vectors), 2), 7.0, dtype=np.float32)

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=StandInUMAP))
    monkeypatch.setattr(kernel_analysis, "umap_is_installed", lambda: True)
    assert all((each.points == 7.0).all() for each in map_kernels(tiny_network()))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_appears_whole(tmp_path, suffix):
    draw_kernel_maps(map_kernels(tiny_network(), umap=False), tmp_path / f"kernels.{suffix}", "PCA")
    assert [each.name for each in tmp_path.iterdir()] == [f"kernels.{suffix}"]
    assert (tmp_path / f"kernels.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize("name", ["kernels.nonsense", "kernels", "scene.tif"])
def test_a_figure_of_an_unknown_kind_leaves_nothing_behind(tmp_path, name):
    with pytest.raises(OptionError, match=rf"{name}; expected a name that ends in \.png"):
        draw_kernel_maps(map_kernels(tiny_network(), umap=False), tmp_path / name, "PCA")
    assert not list(tmp_path.iterdir())


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
