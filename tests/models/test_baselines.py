"""The baselines: parameters and multiply-adds as printed, any size and scale, weights, their parts against oracles."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError
from tests.models.network_fixtures import random_pair, tiny_network

from hyperfuse.errors import BandError, GridError, OptionError, WeightsError
from hyperfuse.models.analysis import count_parameters, performed_multiply_adds
from hyperfuse.models.baselines import pstun as linear_resampling
from hyperfuse.models.baselines.base import apply_map, attention_map, pad_to_multiple
from hyperfuse.models.baselines.dcinn import (
    DCINN,
    ActivationNorm,
    ConvolutionExponential,
    DCINNConfig,
    HaarTransform,
    lift_msi,
)
from hyperfuse.models.baselines.dspnet import DSPNet, DSPNetConfig
from hyperfuse.models.baselines.mimo_sst import MIMOSST, MIMOSSTConfig, ScaleOutputs, loss_over_scales
from hyperfuse.models.baselines.pstun import PSTUN, PSTUNConfig
from hyperfuse.models.catalogue import (
    BASELINE_PRESETS,
    BASELINES,
    AnyBaselineConfig,
    any_preset,
    build_network,
    load_model,
)
from hyperfuse.models.ssa import SSA
from hyperfuse.physics.resample import AxisPlacement, Placement, shared_edges, upsample_bicubic

TINY = {
    "dspnet": DSPNetConfig(bands=5, msi_bands=3, width=8, head_width=4),
    "mimo-sst": MIMOSSTConfig(bands=5, msi_bands=3, width=4),
    "dcinn": DCINNConfig(bands=5, msi_bands=3, width=4, inner_blocks=1),
    "pstun": PSTUNConfig(bands=5, msi_bands=3, width=4, stages=2),
}
# Exact counts; the paper prints them as millions with three decimals. Its multiply-adds are of a 128x128 msi and a
# 32x32 hsi.
PRINTED = {
    "dspnet": (6_055_868, "6.056", 27.279e9),
    "mimo-sst": (4_983_042, "4.983", 6.164e9),
    "dcinn": (2_417_152, "2.417", 51.531e9),
    "pstun": (29_948_174, "29.948", 102.400e9 / 1.024),  # printed as 0.100 T times 1024, like the paper's own 0.202 T
}
THIN = {"dspnet-thin": 392_571, "mimo-sst-thin": 433_456, "dcinn-thin": 553_099, "pstun-thin": 502_030}

every_baseline = pytest.mark.parametrize("kind", TINY)


def loud_baseline(kind, seed=0, config=None):
    """Without the layers that start at zero, which hide what lies before them."""
    torch.manual_seed(seed)
    network = build_network(config or TINY[kind]).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
    return network


def training_loss(network, pair, reference):
    if isinstance(network, MIMOSST):
        return loss_over_scales(network.forward_scales(*pair), reference)
    return (network(*pair) - reference).abs().mean()


@pytest.mark.parametrize("name", PRINTED)
def test_parameters_are_those_the_paper_prints(name):
    parameters, printed, _ = PRINTED[name]
    with torch.device("meta"):
        assert count_parameters(build_network(BASELINE_PRESETS[name])) == parameters
    assert f"{parameters / 1e6:.3f}" == printed


@pytest.mark.parametrize("name", PRINTED)
def test_multiply_adds_are_those_the_paper_prints_within_a_hundredth(name):
    config = BASELINE_PRESETS[name]
    counted = performed_multiply_adds(config, config.bands, config.msi_bands, (128, 128), (32, 32))
    assert counted == pytest.approx(PRINTED[name][2], rel=0.01)


def test_two_thirds_of_the_printed_mimo_sst_are_idle():
    published = MIMOSST(TINY["mimo-sst"].model_copy(update={"idle_layers": True}))
    running = MIMOSST(TINY["mimo-sst"])
    running.load_state_dict(
        {name: each for name, each in published.state_dict().items() if not name.startswith("idle_layers")}
    )
    pair = random_pair(5, 3, (2, 2), (8, 8))
    with torch.no_grad():
        assert torch.equal(published(*pair), running(*pair))
    assert not any(parameter.requires_grad for parameter in published.idle_layers.parameters())
    with torch.device("meta"):
        assert count_parameters(MIMOSST(MIMOSSTConfig(bands=31, msi_bands=3))) == 1_621_984


@pytest.mark.parametrize(("name", "parameters"), THIN.items())
def test_thin_ones_are_small(name, parameters):
    with torch.device("meta"):
        assert count_parameters(build_network(BASELINE_PRESETS[name])) == parameters < 600_000
    assert BASELINE_PRESETS.keys() == PRINTED.keys() | THIN.keys()


@every_baseline
@pytest.mark.parametrize(
    "fine", [(16, 16), (32, 32), (13, 18), (17, 13), (23, 4)]
)  # of 4x4: scales 4, 8, 3.2, 5.7 and 1
def test_any_scale_and_odd_sizes(kind, fine):
    with torch.no_grad():
        fused = loud_baseline(kind)(*random_pair(5, 3, (4, 4), fine))
    assert fused.shape == (1, 5, *fine)
    assert bool(torch.isfinite(fused).all())


@every_baseline
@pytest.mark.parametrize(("coarse", "fine"), [((1, 1), (1, 1)), ((1, 2), (3, 2)), ((3, 1), (5, 7))])
def test_hardly_any_pixels(kind, coarse, fine):
    with torch.no_grad():
        assert loud_baseline(kind)(*random_pair(5, 3, coarse, fine)).shape == (1, 5, *fine)


@every_baseline
def test_pairs_of_a_batch_do_not_see_each_other(kind):
    network, (hsi, msi) = loud_baseline(kind), random_pair(5, 3, (3, 4), (9, 16), batch=3)
    with torch.no_grad():
        together, alone = network(hsi, msi), network(hsi[1:2], msi[1:2])
    torch.testing.assert_close(together[1:2], alone)


@every_baseline
def test_every_parameter_learns(kind):
    """From one start or another: a squeezed layer of a tiny network has a single ReLU, which may begin dark."""
    pair, learning = random_pair(5, 3, (4, 4), (16, 16), batch=2), set()
    for seed in range(4):
        network = loud_baseline(kind, seed).train()
        training_loss(network, pair, torch.rand(2, 5, 16, 16)).backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters() if parameter.requires_grad}
        assert all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients.values())
        learning |= {name for name, gradient in gradients.items() if bool(gradient.abs().max() > 0)}
    assert learning == gradients.keys()


@every_baseline
def test_a_few_steps_lower_the_loss(kind):
    torch.manual_seed(0)
    network, (hsi, msi) = build_network(TINY[kind]).train(), random_pair(5, 3, (4, 4), (16, 16), batch=2)
    reference = msi.mean(dim=1, keepdim=True) * torch.linspace(0.2, 1.0, 5)[None, :, None, None]
    hsi = F.avg_pool2d(reference, 4)
    optimiser = torch.optim.Adam((each for each in network.parameters() if each.requires_grad), lr=5e-3)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = training_loss(network, (hsi, msi), reference)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


@every_baseline
def test_it_runs_in_half_precision(kind):
    network, pair = loud_baseline(kind).train(), random_pair(5, 3, (4, 4), (16, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = training_loss(network, pair, torch.rand(1, 5, 16, 16))
    loss.backward()
    assert bool(torch.isfinite(loss))


@every_baseline
def test_the_placement_of_shared_edges_is_the_default(kind):
    network, (hsi, msi) = loud_baseline(kind), random_pair(5, 3, (4, 4), (13, 16))
    with torch.no_grad():
        assert torch.equal(network(hsi, msi), network(hsi, msi, shared_edges((13, 16), (4, 4))))
        shifted = network(hsi, msi, Placement(AxisPlacement(0.5, 0.25), AxisPlacement(-0.5, 0.2)))
    assert shifted.shape == (1, 5, 13, 16)
    assert not torch.equal(shifted, network(hsi, msi))


@pytest.mark.parametrize(("kind", "last"), [("dspnet", "output.2"), ("mimo-sst", "output")])
def test_what_is_added_to_is_the_bicubic_image(kind, last):
    network, (hsi, msi) = loud_baseline(kind), random_pair(5, 3, (4, 4), (13, 16))
    placement = Placement(AxisPlacement(-0.2, 0.25), AxisPlacement(-0.5, 0.2))
    for parameter in network.get_submodule(last).parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        torch.testing.assert_close(
            network(hsi, msi, placement), upsample_bicubic(hsi, (13, 16), placement).clamp(min=0)
        )


@every_baseline
def test_what_is_no_pair_for_it_is_refused(kind):
    network, (hsi, msi) = loud_baseline(kind), random_pair(5, 3, (4, 4), (8, 8))
    with pytest.raises(BandError, match=r"4 hsi bands and 3 msi bands; expected exactly 5 and 3"):
        network(hsi[:, :4], msi)
    with pytest.raises(GridError, match=r"same batch"):
        network(hsi[0], msi)
    with pytest.raises(GridError, match=r"scale below 1"):
        network(random_pair(5, 3, (9, 9), (8, 8))[0], msi)
    with pytest.raises(OptionError, match=r"torch.float64"):
        network(hsi.double(), msi)


@every_baseline
def test_saved_and_loaded_baselines_agree_bit_for_bit(kind, tmp_path):
    network, pair = loud_baseline(kind), random_pair(5, 3, (4, 4), (13, 10))
    network.save_pretrained(tmp_path, provenance={"steps": 3})
    loaded = load_model(tmp_path)
    with torch.no_grad():
        assert torch.equal(network(*pair), loaded(*pair))
    assert type(loaded) is BASELINES[kind]
    assert loaded.config == TINY[kind]
    assert not loaded.training
    trained = {name for name, each in network.named_parameters() if each.requires_grad}
    assert {name for name, each in loaded.named_parameters() if each.requires_grad} == trained
    described = json.loads((tmp_path / "config.json").read_text())
    assert (described["network"]["kind"], described["margin"], described["provenance"]) == (kind, None, {"steps": 3})
    assert loaded.weights_digest == described["weights"]["sha256"]


def test_weights_of_ours_are_told_from_a_baseline_s(tmp_path):
    tiny_network().save_pretrained(tmp_path / "ours")
    assert isinstance(load_model(tmp_path / "ours"), SSA)
    loud_baseline("pstun").save_pretrained(tmp_path / "pstun")
    with pytest.raises(WeightsError, match=r'"kind": Input should be \'dspnet\''):
        DSPNet.from_pretrained(tmp_path / "pstun")
    with pytest.raises(WeightsError):
        SSA.from_pretrained(tmp_path / "pstun")
    path = tmp_path / "pstun" / "config.json"
    path.write_text(path.read_text().replace('"pstun"', '"telepathy"'))
    with pytest.raises(
        WeightsError, match=r'kind "telepathy"; expected one of ssa, prior, dspnet, mimo-sst, dcinn, pstun; update'
    ):
        load_model(tmp_path / "pstun")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "dspnet", "width": 20}, "multiple of 8"),
        ({"kind": "dspnet", "width": 16}, "got head_width 64, expected a divisor of the width 16"),
        ({"kind": "mimo-sst", "width": 7}, "multiple of 2"),
        ({"kind": "dcinn", "bands": 1}, "greater than or equal to 2"),
        ({"kind": "pstun", "stages": 0}, "greater than or equal to 1"),
        ({"kind": "pstun", "value_range": (1.0, 2.0)}, "scaled, not shifted"),
        ({"kind": "pstun", "heads": 2}, "expected one of kind, bands"),
        ({"kind": "other"}, "does not match any of the expected tags"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(AnyBaselineConfig).validate_python({"bands": 5, "msi_bands": 3} | changes)


def test_presets_are_found_by_name():
    assert any_preset("pstun").with_bands(48, 4) == PSTUNConfig(bands=48, msi_bands=4)
    with pytest.raises(OptionError, match=r'no network is called "lrtn"; expected one of ssa-1-1, .*dspnet, '):
        any_preset("lrtn")


def test_attention_against_a_loop():
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 2, 6, 3, 4).double()
    temperature = torch.tensor([1.5, 0.5]).double().reshape(2, 1, 1)
    answer = apply_map(attention_map(queries, keys, temperature), values)
    for item in range(2):
        for row in range(6):
            head = row // 3
            own = range(3 * head, 3 * head + 3)
            cosines = [
                F.cosine_similarity(queries[item, row].flatten(), keys[item, each].flatten(), dim=0) for each in own
            ]
            weights = torch.softmax(torch.stack(cosines) * temperature[head, 0, 0], dim=0)
            expected = sum(weight * values[item, each] for weight, each in zip(weights, own, strict=True))
            torch.testing.assert_close(answer[item, row], expected)


@pytest.mark.parametrize(("coarse", "fine"), [((4, 4), (16, 16)), ((3, 5), (10, 16)), ((2, 2), (2, 2))])
def test_linear_resampling_is_torch_s_where_edges_are_shared(coarse, fine):
    image, placement = torch.rand(2, 3, *coarse), shared_edges(fine, coarse)
    raised = linear_resampling.to_fine(image, fine, placement)
    torch.testing.assert_close(raised, F.interpolate(image, size=fine, mode="bilinear", align_corners=False))
    lowered = linear_resampling.to_coarse(raised, coarse, placement)
    torch.testing.assert_close(lowered, F.interpolate(raised, size=coarse, mode="bilinear", align_corners=False))


@pytest.mark.parametrize("scale", [4, 3.2])
def test_an_hsi_that_the_msi_determines_is_lifted_to_the_truth(scale):
    torch.manual_seed(0)
    fine, coarse = (32, 16), (round(32 / scale), round(16 / scale))
    srf, offset = torch.randn(2, 6, 3), torch.rand(2, 6, 1, 1)
    weights = torch.rand(2, 3, 1, 1) * torch.tensor([1.0, 100.0]).reshape(
        2, 1, 1, 1
    )  # each of the batch in its own unit
    msi = torch.rand(2, 3, *fine) * weights
    truth = torch.einsum("bcm,bmij->bcij", srf, msi) + offset
    placement = shared_edges(fine, coarse)
    owner = [torch.round((torch.arange(n) + 0.5) * m / n - 0.5).long() for n, m in zip(fine, coarse, strict=True)]
    hsi = torch.stack(
        [
            torch.stack([truth[:, :, owner[0] == i][..., owner[1] == j].mean(dim=(2, 3)) for j in range(coarse[1])])
            for i in range(coarse[0])
        ]
    ).permute(2, 3, 0, 1)
    lifted = lift_msi(hsi, msi, placement)
    error = (lifted - truth).square().mean(dim=(1, 2, 3)) / truth.var(dim=(1, 2, 3))
    assert bool((error < 1e-5).all())


def test_an_msi_without_contrast_lifts_to_the_mean():
    hsi, msi = random_pair(4, 3, (2, 2), (8, 8))
    lifted = lift_msi(hsi, torch.full_like(msi, 0.3), shared_edges((8, 8), (2, 2)))
    torch.testing.assert_close(lifted, hsi.mean(dim=(2, 3), keepdim=True).expand(-1, -1, 8, 8))


def test_coarse_pixels_beyond_the_msi_have_no_say():
    hsi, msi = random_pair(4, 3, (4, 4), (8, 8))
    placement = Placement(
        AxisPlacement(-0.375, 0.25), AxisPlacement(-0.375, 0.25)
    )  # the msi covers the first two rows and columns
    alone = lift_msi(hsi[..., :2, :2], msi, placement)
    torch.testing.assert_close(lift_msi(hsi, msi, placement), alone)


def test_convolution_exponential_is_the_exponential_of_its_matrix():
    torch.manual_seed(0)
    mixing = ConvolutionExponential(2, terms=20).double()
    with torch.no_grad():
        mixing.kernel.copy_(0.1 * torch.randn_like(mixing.kernel))
        unit_images = torch.eye(2 * 3 * 4).double().reshape(-1, 2, 3, 4)
        matrix = F.conv2d(unit_images, mixing.kernel, padding=2).flatten(1).transpose(0, 1)
        image = torch.randn(1, 2, 3, 4).double()
        expected = (torch.linalg.matrix_exp(matrix) @ image.flatten()).reshape(image.shape)
        torch.testing.assert_close(mixing(image), expected)
        torch.testing.assert_close(mixing.inverse(mixing(image)), image)


def test_haar_keeps_the_means_first_and_comes_back():
    image, haar = torch.rand(2, 3, 4, 6), HaarTransform(3)
    pieces = haar(image)
    assert pieces.shape == (2, 12, 2, 3)
    torch.testing.assert_close(pieces[:, :3], F.avg_pool2d(image, 2))
    torch.testing.assert_close(pieces[:, 3:6], (image[..., 0::2] - image[..., 1::2]).unfold(2, 2, 2).mean(dim=-1) / 2)
    torch.testing.assert_close(haar.inverse(pieces), image)


def test_dcinn_comes_back_to_what_it_started_from():
    network, (hsi, msi) = loud_baseline("dcinn").double(), random_pair(5, 3, (4, 4), (12, 16), batch=2)
    hsi, msi = hsi.double(), msi.double()
    with torch.no_grad():
        fused = network(hsi, msi)
        lifted = lift_msi(hsi, msi, shared_edges((12, 16), (4, 4)))
        assert float((fused - lifted).abs().mean()) > 0.1
        torch.testing.assert_close(network.inverse(fused, hsi, msi), lifted, rtol=1e-6, atol=1e-6)
    with pytest.raises(GridError, match=r"11 x 16 pixels; expected even sizes"):
        network.inverse(fused[:, :, :11], hsi, msi[:, :, :11])


def test_activation_norm_takes_its_first_training_batch_and_no_other():
    torch.manual_seed(0)
    image = 3 * torch.rand(2, 4, 5, 6) + 7
    norm = ActivationNorm(4).eval()
    assert torch.equal(norm(image), image)
    normed = norm.train()(image)
    torch.testing.assert_close(normed.mean(dim=(0, 2, 3)), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(normed.std(dim=(0, 2, 3), correction=0), torch.ones(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(norm.inverse(normed), image)
    before = norm.scale.clone()
    norm(10 * image)
    assert torch.equal(norm.scale, before)
    constant = ActivationNorm(1)(torch.full((1, 1, 2, 2), 5.0))
    assert bool(torch.isfinite(constant).all())


def test_activation_norm_of_several_processes_sees_all_of_their_batches(monkeypatch):
    torch.manual_seed(0)
    here, elsewhere = torch.rand(2, 4, 5, 6), 2 * torch.rand(2, 4, 5, 6)
    together = ActivationNorm(4)
    together(torch.cat([here, elsewhere]))
    mean = -together.shift
    of_the_other = iter(
        [elsewhere.mean(dim=(0, 2, 3), keepdim=True), (elsewhere - mean).square().mean(dim=(0, 2, 3), keepdim=True)]
    )
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values: values.add_(next(of_the_other)))
    shared = ActivationNorm(4)
    shared(here)
    torch.testing.assert_close(shared.shift, together.shift)
    torch.testing.assert_close(shared.scale, together.scale)


def test_the_first_batch_of_dcinn_is_kept_with_the_weights(tmp_path):
    pair = random_pair(5, 3, (4, 4), (16, 16), batch=2)
    networks = []
    for _ in range(2):
        torch.manual_seed(3)
        networks.append(DCINN(TINY["dcinn"]).train())
        networks[-1](*pair)
    first, second = (network.state_dict() for network in networks)
    assert all(torch.equal(first[name], second[name]) for name in first)
    networks[0].save_pretrained(tmp_path)
    again = DCINN.from_pretrained(tmp_path).train()
    scale = again.entry.norm.scale.clone()
    again(*(5 * image for image in pair))
    assert torch.equal(again.entry.norm.scale, scale)
    assert not torch.equal(scale, torch.ones_like(scale))


def test_dcinn_answers_in_the_unit_of_its_details():
    """Not with variance 1, which its normalisations would leave and a training would have to unlearn."""
    torch.manual_seed(0)
    msi = torch.rand(2, 3, 16, 16)
    reference = 0.01 * torch.einsum("cm,bmij->bcij", torch.rand(5, 3), msi)
    hsi = F.avg_pool2d(reference, 4)
    with torch.no_grad():
        change = DCINN(TINY["dcinn"]).train()(hsi, msi) - upsample_bicubic(
            hsi, (16, 16), shared_edges((16, 16), (4, 4))
        )
        details = reference - upsample_bicubic(hsi, (16, 16), shared_edges((16, 16), (4, 4)))
    assert 0.5 < float(change.std() / details.std()) < 2


def test_mimo_sst_loss_against_a_loop():
    torch.manual_seed(0)
    reference = torch.rand(1, 2, 4, 4)
    outputs = ScaleOutputs(torch.rand(1, 2, 4, 4), torch.rand(1, 2, 2, 2), torch.rand(1, 2, 1, 1))
    expected = 0.0
    for output, shrink in zip(outputs, (1, 2, 4), strict=True):
        error = (output - F.avg_pool2d(reference, shrink)).double()
        size = error.shape[2]
        turns = torch.outer(torch.arange(size), torch.arange(size)).double() / size
        wave = torch.polar(torch.ones_like(turns), -2 * torch.pi * turns)
        expected += float(error.abs().mean() + 0.01 * (wave @ error.to(wave.dtype) @ wave).abs().mean())
    assert float(loss_over_scales(outputs, reference)) == pytest.approx(expected, rel=1e-5)


def test_mimo_sst_scales_of_an_odd_size_fit_the_loss():
    network, (hsi, msi) = loud_baseline("mimo-sst"), random_pair(5, 3, (3, 3), (10, 13))
    outputs = network.forward_scales(hsi, msi)
    assert [tuple(each.shape[2:]) for each in outputs] == [(10, 13), (6, 8), (3, 4)]
    with torch.no_grad():
        torch.testing.assert_close(outputs.full, network(hsi, msi))
    padded = pad_to_multiple(torch.rand(1, 5, 10, 13), 4)
    perfect = ScaleOutputs(padded[..., :10, :13], F.avg_pool2d(padded, 2), F.avg_pool2d(padded, 4))
    assert float(loss_over_scales(perfect, padded[..., :10, :13])) == pytest.approx(0, abs=1e-6)


def test_dspnet_fills_up_its_groups_of_bands():
    with torch.device("meta"):
        widths = {bands: DSPNet(DSPNetConfig(bands=bands, msi_bands=3)).spectral_pyramid[0] for bands in (31, 32, 33)}
    assert [level.streams[2][0].in_channels for level in widths.values()] == [32, 32, 40]


def test_pstun_degrades_by_one_pair_of_operators_for_all_stages():
    with torch.device("meta"):
        few, many = (
            count_parameters(PSTUN(PSTUNConfig(bands=5, msi_bands=3, width=4, stages=stages))) for stages in (1, 2)
        )
        stage = count_parameters(PSTUN(PSTUNConfig(bands=5, msi_bands=3, width=4, stages=1)).stages)
    assert many - few == stage
