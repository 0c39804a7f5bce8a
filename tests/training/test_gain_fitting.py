"""Gains that are fitted at the end of a training: what a sample says of the error, and that fitting lowers it."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_pairs import tiny_pair

from hyperfuse.methods.window import run_on_scene
from hyperfuse.models.prior import COMPONENT_STATISTICS, PriorConfig, PriorNetwork
from hyperfuse.training.experiment import GainFitting
from hyperfuse.training.gain_fitting import (
    AS_LOCAL_FUSE,
    GAINS,
    GainSample,
    decibels_of,
    error_of,
    fit_to_samples,
    gain_sample,
)

LEARNED = {"trust", "trust_of_unfamiliar", "usual", "spread", "whitening"}


def make_network() -> PriorNetwork:
    torch.manual_seed(0)
    return PriorNetwork(PriorConfig(width=8, blocks=1, scene_features=2)).eval()


def make_sample(network: PriorNetwork) -> GainSample:
    pair = tiny_pair(12, 3, (10, 10), 4.0)
    with torch.no_grad():
        sample = run_on_scene(
            gain_sample(network, pair.hsi.float(), pair.msi.float(), pair.observation, pair.reference.float())
        )
    assert sample is not None
    return sample


def test_the_truth_itself_has_no_error():
    sample = make_sample(make_network())
    gains = torch.randn(1, len(sample.products), GAINS)
    swapped = sample.products.clone()
    swapped[:, :, 1], swapped[:, 1, :] = swapped[:, :, GAINS], swapped[:, GAINS, :]
    swapped[:, 1, 1] = swapped[:, 1, GAINS]
    as_it_is = torch.zeros_like(gains)
    as_it_is[..., 1] = 1
    assert float(error_of(as_it_is, swapped[None])) < 1e-12
    assert float(error_of(gains, sample.products[None])) > 0


def test_fitting_lowers_the_error_and_leaves_the_rest_alone():
    network = make_network()
    sample = make_sample(network)
    rest = {name: tensor.clone() for name, tensor in network.state_dict().items() if name.split(".")[0] not in LEARNED}
    numbers, statistics = sample.numbers[None], sample.statistics[None]
    with torch.no_grad():
        before = float(error_of(torch.cat(network.gains(statistics, numbers), dim=-1), sample.products[None]))
    fit_to_samples(network, [sample, sample], GainFitting(draws=2, steps=60, batch_size=2))
    with torch.no_grad():
        after = float(error_of(torch.cat(network.gains(statistics, numbers), dim=-1), sample.products[None]))
    assert after < 0.99 * before
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in rest.items())


def test_an_msi_that_says_nothing_is_no_sample():
    pair = tiny_pair(12, 3, (10, 10), 4.0)
    flat = torch.ones_like(pair.msi).float()
    with torch.no_grad(), pytest.warns(match="constant"):
        assert (
            run_on_scene(gain_sample(make_network(), pair.hsi.float(), flat, pair.observation, pair.reference.float()))
            is None
        )


def test_one_gain_sample_one_component_leaves_numbers():
    network = make_network()
    sample = make_sample(network)
    one = GainSample(sample.statistics[:1], sample.numbers, sample.products[:1])
    fit_to_samples(network, [one], GainFitting(draws=1, steps=3, batch_size=2))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in network.state_dict().values())


def test_caution_keeps_a_pair_from_falling_below_local_fuse():
    """Two pairs of equal statistics: the features' prediction is the truth in one and pure error in the other."""
    helps, harms = torch.zeros(GAINS + 1, 3), torch.zeros(GAINS + 1, 3)
    helps[-1], harms[-1] = torch.tensor([1.0, 0.1, 0.0]), torch.tensor([1.0, 0.1, 0.0])
    helps[1, 0], harms[1, 2], harms[0, 0] = 1.0, 1.0, 0.9
    samples = [
        GainSample(torch.zeros(1, COMPONENT_STATISTICS), torch.zeros(5), (each @ each.T)[None].double())
        for each in (helps, harms)
    ]
    below = []
    for caution in (0.0, 20.0):
        network = make_network()
        fit_to_samples(network, samples, GainFitting(draws=2, steps=300, batch_size=8, caution=caution))
        with torch.no_grad():
            gains = torch.cat(network.gains(samples[1].statistics, samples[1].numbers), dim=-1)
            fitted = decibels_of(gains[None], samples[1].products[None])
        below.append(float(fitted - decibels_of(torch.tensor(AS_LOCAL_FUSE)[None, None], samples[1].products[None])))
    assert below[1] < below[0] - 0.5
