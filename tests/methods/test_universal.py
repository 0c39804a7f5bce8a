"""The method that ships with weights: any bands, any scale, and what its network may change."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from tests.methods.tiny_pairs import tiny_pair

import hyperfuse
from hyperfuse import compiled
from hyperfuse.fusion.fusers import fuse_with_network
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.methods.local_regression import LocalRegression
from hyperfuse.methods.pair_model import solve_lower
from hyperfuse.methods.universal import (
    ComponentStatistics,
    Predictions,
    fuse_guided,
    guided_predictions,
    shipped_network,
)
from hyperfuse.methods.window import EVERYWHERE, Window, run_on_scene
from hyperfuse.metrics.metrics import psnr_db
from hyperfuse.models.prior import COMPONENT_STATISTICS, Prediction, PriorConfig, PriorNetwork
from hyperfuse.training.objective import decibel_loss

WEIGHTS = Path(hyperfuse.__file__).parent / "weights" / "universal"


@pytest.mark.parametrize("bands", [4, 31, 600])
@pytest.mark.parametrize("msi_bands", [1, 4, 16])
def test_any_number_of_bands(bands, msi_bands):
    pair = tiny_pair(bands, msi_bands, (8, 9), 4.0)
    fused = fuse_arrays(pair.hsi, pair.msi, pair.observation, "universal")
    assert fused.shape == pair.reference.shape and bool(torch.isfinite(fused).all())
    bicubic = fuse_arrays(pair.hsi, pair.msi, pair.observation, "bicubic")
    assert psnr_db(fused.numpy(), pair.reference.float().numpy()) > psnr_db(
        bicubic.numpy(), pair.reference.float().numpy()
    )


@pytest.mark.parametrize(("coarse", "scale"), [((20, 22), 1.5), ((9, 10), 5.7), ((6, 5), 32.0)])
def test_any_real_scale(coarse, scale):
    pair = tiny_pair(12, 3, coarse, scale)
    fused = fuse_arrays(pair.hsi, pair.msi, pair.observation, "universal")
    assert fused.shape == pair.reference.shape and bool(torch.isfinite(fused).all())


def test_is_the_default():
    pair = tiny_pair()
    assert torch.equal(
        fuse_arrays(pair.hsi, pair.msi, pair.observation),
        fuse_arrays(pair.hsi, pair.msi, pair.observation, "universal"),
    )


def test_untrained_it_is_nearly_local_fuse():
    torch.manual_seed(0)
    network = PriorNetwork(PriorConfig(scene_features=4)).requires_grad_(False).eval()
    pair = tiny_pair(20, 3, (16, 16), 4.0)
    guided = fuse_with_network(network, pair.hsi, pair.msi, pair.observation)
    closed_form = fuse_arrays(pair.hsi, pair.msi, pair.observation, "local_fuse")
    reference = pair.reference.float().numpy()
    assert psnr_db(guided.numpy(), reference) == pytest.approx(psnr_db(closed_form.numpy(), reference), abs=1.0)


def test_every_part_of_the_network_can_learn():
    torch.manual_seed(0)
    network = PriorNetwork(PriorConfig(width=8, blocks=1, scene_features=2)).train()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    pair = tiny_pair(12, 3, (8, 8), 4.0, snr_db=30)
    observation = replace(pair.observation, msi_noise=torch.full((3,), 0.01, dtype=torch.float64))
    fused = fuse_with_network(network, pair.hsi, pair.msi, observation)
    decibel_loss(fused[None], pair.reference.float()[None], 2.0).backward()
    for name, parameter in network.named_parameters():
        if name.startswith("trust_of_unfamiliar"):
            assert parameter.grad is None, "fitted later"
            continue
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_the_same_image_gets_the_same_signs_in_training():
    network = PriorNetwork(PriorConfig(width=8, blocks=1)).train()
    msi, numbers = torch.randn(16, 12, 12), torch.zeros(5)
    first, again = network.guide(msi, numbers), network.guide(msi, numbers)
    assert torch.equal(first.embedding, again.embedding)


def test_left_out_pixels_do_not_know_themselves():
    torch.manual_seed(0)
    height, width = 7, 8
    keys, inputs, outputs = torch.randn(2, height, width), torch.randn(3, height, width), torch.randn(4, height, width)
    regression = LocalRegression(
        keys, torch.zeros(1, height, width), inputs, outputs, 0.1 * torch.eye(3), inputs_of=(3, 2)
    )
    before = regression.predict_left_out(range(height), range(width))
    changed = outputs.clone()
    changed[:, 3, 4] += 100
    after = replace(regression, outputs=changed).predict_left_out(range(height), range(width))
    assert torch.allclose(before[:, 3, 4], after[:, 3, 4])
    assert not torch.allclose(before[:, 3, 3], after[:, 3, 3])
    some = regression.predict_left_out(range(1, height, 2), range(0, width, 3))
    assert torch.allclose(some, before[:, 1::2, ::3], atol=1e-5)


def test_slopes_on_the_msi_alone_know_no_features():
    torch.manual_seed(0)
    size = (6, 7)
    keys, inputs, targets = torch.randn(2, *size), torch.randn(3, *size), torch.randn(4, *size)
    both = LocalRegression(
        keys, torch.zeros(1, *size), inputs, torch.cat([targets, targets]), 0.1 * torch.eye(3), inputs_of=(3, 2)
    )
    of_msi = replace(both, inputs=inputs[:2], ridge=0.1 * torch.eye(2), inputs_of=(2, 2))
    everywhere = range(size[0]), range(size[1])
    with_feature, plain = both.predict_left_out(*everywhere).chunk(2)
    msi_only_with_feature, msi_only_plain = of_msi.predict_left_out(*everywhere).chunk(2)
    assert torch.allclose(msi_only_with_feature, msi_only_plain)
    assert torch.allclose(
        plain, msi_only_plain, atol=0.01
    )  # the neighbourhood's own ridge knows of the feature, faintly
    assert not torch.allclose(with_feature, plain, atol=0.1)


def test_small_systems():
    torch.manual_seed(0)
    for size in (1, 2, 4, 5):
        factors = torch.randn(5, 6, size, size, dtype=torch.float64)
        systems, right = factors @ factors.mT + torch.eye(size), torch.randn(5, 6, size, dtype=torch.float64)
        expected = torch.linalg.solve(systems, right)
        lower = [[systems[..., i, j] for j in range(i + 1)] for i in range(size)]
        assert torch.allclose(torch.stack(solve_lower(lower, list(right.unbind(-1))), dim=-1), expected)


def test_statistics_and_predictions_are_in_the_order_of_the_weights():
    names = [each.name for each in fields(ComponentStatistics)]
    assert len(names) == COMPONENT_STATISTICS
    assert names[0] == "scene_explains" and names[7] == "noise" and names[12:15] == ["rank", "is_first", "is_second"]
    predictions = [each.name for each in fields(Predictions)][: len(Prediction)]
    assert predictions == [each.name.lower() for each in Prediction]


@pytest.mark.parametrize("threads", [0, 1, 3])  # 0: by torch
def test_the_weighted_sum_is_that_of_its_images(threads, monkeypatch):
    if not threads:
        monkeypatch.setattr(compiled, "library", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: max(1, threads))
    pair = tiny_pair(12, 3, (8, 9), 4.0)
    network = shipped_network()
    window = Window(pair.hsi.float(), pair.msi.float(), pair.observation)
    _, _, predictions = run_on_scene(guided_predictions(window, network))
    gains = network.gains(predictions.statistics, predictions.numbers)
    images = torch.stack(predictions.as_images())
    expected = (torch.cat(gains, dim=1).T[:, :, None, None] * images).sum(0)
    torch.testing.assert_close(predictions.weighted(gains), expected, atol=1e-5, rtol=1e-4)


def test_very_few_pixels_are_fused_without_the_network():
    pair = tiny_pair(6, 3, (4, 4), 4)
    by_network = run_on_scene(
        fuse_guided(Window(pair.hsi.float(), pair.msi.float(), pair.observation), shipped_network())
    )
    assert bool(torch.isfinite(by_network(EVERYWHERE)).all())


def test_a_level_that_the_observation_does_not_know_changes_little():
    pair = tiny_pair(12, 3, (10, 11), 4.0)
    fused, moved = (fuse_arrays(pair.hsi, msi, pair.observation, "universal") for msi in (pair.msi, pair.msi + 50))
    assert psnr_db(moved.numpy(), fused.numpy()) > 40


@pytest.mark.parametrize("value", [3, 20, 1000])
def test_one_odd_pixel_of_the_msi_does_not_spoil_the_scene(value):
    pair = tiny_pair(12, 3, (16, 16), 4.0)
    msi = pair.msi.clone()
    msi[:, 30, 31] = value
    assert psnr_db(fuse_arrays(pair.hsi, msi, pair.observation, "universal").numpy(), pair.reference.numpy()) > 33


@pytest.mark.parametrize(("method", "uncertainty"), [("universal", False), ("universal", True), ("fuse", False)])
@pytest.mark.parametrize("spike", [-9999, 1e6])
def test_an_outlier_leaves_finite_values_everywhere(method, uncertainty, spike):
    pair = tiny_pair(12, 3, (10, 11), 4.0)
    for place in (0, 1):
        images = [pair.hsi.clone(), pair.msi.clone()]
        images[place][:, 3, 3] = spike
        assert bool(torch.isfinite(fuse_arrays(*images, pair.observation, method, uncertainty=uncertainty)).all())


def test_shipped_weights_say_how_they_were_made():
    described = json.loads((WEIGHTS / "config.json").read_text(encoding="utf-8"))
    provenance = described["provenance"]
    assert provenance["experiment"]["name"] == "universal"
    assert provenance["steps"] > 0 and not provenance["overlapping"]
    assert shipped_network().weights_digest == described["weights"]["sha256"]
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 20_000_000
    assert not any("test" in name for name in provenance["scenes"])
