"""The network of `universal` in the trainer: the same loop and weights, perturbed observations, loss in decibels."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_experiments import write_experiment

from hyperfuse import fuse
from hyperfuse.data.observing import PairBatch
from hyperfuse.data.sampler import draw_batch
from hyperfuse.data.settings import PerturbationSettings
from hyperfuse.errors import OptionError, TrainingError
from hyperfuse.fusion.fusers import load_network
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.training import gain_fitting
from hyperfuse.training.experiment import Experiment, read_experiment
from hyperfuse.training.loop import Trainer
from hyperfuse.training.objective import decibel_loss
from hyperfuse.training.scene_sets import gather_scenes
from hyperfuse.training.train import describe, train

PRIOR = '{kind="prior", width=6, blocks=1, embedding=2, features=2, scene_features=2}'
CHANGES = [
    f"network={PRIOR}",
    "split.patch_size=32",
    "loop.loss=decibels",
    "length.steps=4",
    "loop.checkpoint_every=2",
    "validation.every=4",
    "simulation.snr_hsi_db=30",
    "simulation.snr_msi_db=35",
    "simulation.perturbation={sigma=0.02, shift=0.05, noise=0.1, floor=0.002}",
    "simulation.vary_light=0.5",
    "gains={draws=3, steps=5, batch_size=2}",
]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return read_experiment(write_experiment(tmp_path), CHANGES)


def test_trained_saved_and_fuses(experiment: Experiment, tmp_path: Path) -> None:
    assert "guides local_fuse" in describe(experiment)
    outcome = train(experiment, tmp_path / "run")
    assert outcome.finished
    assert np.isfinite(outcome.best_psnr_db)
    network = load_network(str(tmp_path / "run/weights"))
    assert isinstance(network, PriorNetwork)
    assert network.weights_digest
    random = np.random.default_rng(0)
    pair = random.random((7, 8, 8)).astype(np.float32), random.random((2, 32, 32)).astype(np.float32)
    assert fuse(*pair, weights=tmp_path / "run/weights", estimate=False).shape == (7, 32, 32)


def test_interrupted_and_resumed_it_ends_with_the_same_bits(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(experiment, tmp_path / "whole")
    average = Trainer._average

    def dying(trainer: Trainer) -> None:
        if trainer.progress.step == 3:
            raise KeyboardInterrupt
        average(trainer)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "_average", dying)
        train(experiment, tmp_path / "halves")
    assert train(experiment, tmp_path / "halves", resume=True).finished
    states = [PriorNetwork.from_pretrained(tmp_path / name / "weights").state_dict() for name in ("whole", "halves")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_perturbation_changes_nothing_but_the_assumed_parameters(experiment: Experiment) -> None:
    buckets = gather_scenes(experiment, with_cases=False).buckets
    settings = experiment.simulation
    exact = settings.model_copy(update={"perturbation": None})
    perturbed, truth = (draw_batch(buckets, each, seed=1, draw=2, batch_size=2) for each in (settings, exact))
    for name in ("hsi", "msi", "reference", "sigma", "shift", "hsi_noise", "msi_noise"):
        assert torch.equal(getattr(perturbed, name), getattr(truth, name)), name
    assert torch.equal(truth.assumed[:, 0], truth.sigma)
    assert torch.equal(truth.assumed[:, 1:3], truth.shift)
    assert not torch.equal(perturbed.assumed, truth.assumed)
    assert torch.allclose(perturbed.assumed, truth.assumed, rtol=0.4, atol=0.2)


def test_noise_is_assumed_where_there_is_none(experiment: Experiment) -> None:
    buckets = gather_scenes(experiment, with_cases=False).buckets
    changes = {"snr_hsi_db": None, "snr_msi_db": None, "perturbation": PerturbationSettings(floor=0.01)}
    batch = draw_batch(buckets, experiment.simulation.model_copy(update=changes), seed=0, draw=0, batch_size=4)
    assert bool((batch.hsi_noise == 0).all())
    assert bool((batch.assumed[:, 3:] > 0).all())
    assert bool((batch.assumed[:, 3:] < 0.01).all())


def test_loss_counts_decibels() -> None:
    reference = torch.rand(2, 5, 6, 6) + 0.1
    better, worse = reference + 0.01, reference + 0.1
    assert float(decibel_loss(better, reference, 0.0)) == pytest.approx(-40, abs=0.01)
    assert float(decibel_loss(worse, reference, 0.0)) == pytest.approx(-20, abs=0.01)
    assert float(decibel_loss(worse, reference, 2.0)) > float(decibel_loss(better, reference, 2.0))


def test_a_set_of_scenes_is_drawn_more_often_and_in_patches_of_its_own(tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    path.write_text(path.read_text().replace('use = "train"', 'use = "train"\ntimes = 3\npatch_size = 24'))
    buckets = gather_scenes(read_experiment(path), with_cases=False).buckets
    assert len(buckets) == 6
    assert len({id(bucket) for bucket in buckets}) == 2
    assert {bucket.size for bucket in buckets} == {24}


def test_gains_need_pairs_and_a_network_that_has_them(experiment: Experiment, tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    with pytest.raises(OptionError, match="gains"):
        read_experiment(path, ["gains={draws=3}"])
    with pytest.raises(TrainingError, match="larger patches"):
        train(read_experiment(path, [*CHANGES, "split.patch_size=16"]), tmp_path / "small")


def test_a_finished_run_is_not_fitted_again(experiment: Experiment, tmp_path: Path) -> None:
    train(experiment, tmp_path / "run")
    before = (tmp_path / "run/log.jsonl").read_text()
    assert train(experiment, tmp_path / "run", resume=True).finished
    assert (tmp_path / "run/log.jsonl").read_text() == before


def test_stopped_during_the_fit_it_goes_on_to_the_same_bits(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(experiment, tmp_path / "whole")

    def interrupt_and_draw(*given: Any, **options: Any) -> PairBatch:
        signal.raise_signal(signal.SIGINT)
        return draw_batch(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(gain_fitting, "draw_batch", interrupt_and_draw)
        assert not train(experiment, tmp_path / "halves").finished
    assert not (tmp_path / "halves/weights").exists()
    assert train(experiment, tmp_path / "halves", resume=True).finished
    states = [PriorNetwork.from_pretrained(tmp_path / name / "weights").state_dict() for name in ("whole", "halves")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
