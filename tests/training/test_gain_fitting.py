"""Gains that are fitted at the end of a training: what a lesson says of the error, and that fitting lowers it."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.methods.over_scene import alone
from hyperfuse.networks.prior_network import PriorConfig, PriorNetwork
from hyperfuse.training.experiment import GainFitting
from hyperfuse.training.gain_fitting import GAINS, Lesson, error_of, fit_to_lessons, lesson_of
from methods.tiny_pairs import tiny_pair

LEARNED = {"trust", "usual", "spread"}


def make_network() -> PriorNetwork:
    torch.manual_seed(0)
    return PriorNetwork(PriorConfig(width=8, blocks=1, scene_features=2)).eval()


def make_lesson(network: PriorNetwork) -> Lesson:
    pair = tiny_pair(12, 3, (10, 10), 4.0)
    with torch.no_grad():
        lesson = alone(lesson_of(network, pair.hsi.float(), pair.msi.float(), pair.observation, pair.reference.float()))
    assert lesson is not None
    return lesson


def test_the_truth_itself_has_no_error():
    lesson = make_lesson(make_network())
    gains = torch.randn(1, len(lesson.products), GAINS)
    swapped = lesson.products.clone()
    swapped[:, :, 1], swapped[:, 1, :] = swapped[:, :, GAINS], swapped[:, GAINS, :]
    swapped[:, 1, 1] = swapped[:, 1, GAINS]
    as_it_is = torch.zeros_like(gains)
    as_it_is[..., 1] = 1
    assert float(error_of(as_it_is, swapped[None])) < 1e-12
    assert float(error_of(gains, lesson.products[None])) > 0


def test_fitting_lowers_the_error_and_leaves_the_rest_alone():
    network = make_network()
    lesson = make_lesson(network)
    rest = {name: tensor.clone() for name, tensor in network.state_dict().items() if name.split(".")[0] not in LEARNED}
    numbers, statistics = lesson.numbers[None], lesson.statistics[None]
    with torch.no_grad():
        before = float(error_of(network.gains(statistics, numbers), lesson.products[None]))
    fit_to_lessons(network, [lesson, lesson], GainFitting(draws=2, steps=60, batch_size=2))
    with torch.no_grad():
        after = float(error_of(network.gains(statistics, numbers), lesson.products[None]))
    assert after < 0.99 * before
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in rest.items())


def test_an_msi_that_says_nothing_is_no_lesson():
    pair = tiny_pair(12, 3, (10, 10), 4.0)
    flat = torch.ones_like(pair.msi).float()
    with torch.no_grad(), pytest.warns(match="constant"):
        assert alone(lesson_of(make_network(), pair.hsi.float(), flat, pair.observation, pair.reference.float())) is None


def test_one_lesson_of_one_component_leaves_numbers():
    network = make_network()
    lesson = make_lesson(network)
    one = Lesson(lesson.statistics[:1], lesson.numbers, lesson.products[:1])
    fit_to_lessons(network, [one], GainFitting(draws=1, steps=3, batch_size=2))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in network.state_dict().values())
