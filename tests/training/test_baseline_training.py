"""Baselines in the trainer: the same experiment file, loop, validation and weights as for our own network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.tiny_experiments import write_experiment

from hyperfuse import fuse, make_cube, open_cube, write_cube
from hyperfuse.data.observing import PairBatch
from hyperfuse.errors import BandError, OptionError
from hyperfuse.fusion import plan
from hyperfuse.fusion.fusers import load_network
from hyperfuse.models.baselines.mimo_sst import MIMOSST, MIMOSSTConfig, ScaleOutputs, loss_over_scales
from hyperfuse.models.catalogue import BASELINE_PRESETS, BASELINES
from hyperfuse.training.experiment import Experiment, LoopSettings, read_experiment
from hyperfuse.training.objective import NetworkOnBatch, fusion_loss, training_loss
from hyperfuse.training.train import describe, freeze_parts, train

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TINY = {
    "dspnet": '{kind="dspnet", bands=9, msi_bands=3, width=8, head_width=8}',
    "mimo-sst": '{kind="mimo-sst", bands=9, msi_bands=3, width=4}',
    "dcinn": '{kind="dcinn", bands=9, msi_bands=3, width=4, inner_blocks=1, exponential_terms=2}',
    "pstun": '{kind="pstun", bands=9, msi_bands=3, width=4}',
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_experiment(tmp_path)


def baseline_experiment(path: Path, kind: str, *changes: str) -> Experiment:
    text = path.read_text().replace('use = "train"', 'use = "train"\nexclude = ["train_b"]')
    path.write_text(text)
    return read_experiment(path, [f"network={TINY[kind]}", "length.steps=4", "validation.every=4", *changes])


@pytest.mark.parametrize("kind", TINY)
def test_every_baseline_is_trained_saved_and_fuses(path: Path, tmp_path: Path, kind: str) -> None:
    experiment = baseline_experiment(path, kind)
    outcome = train(experiment, tmp_path / "run")
    assert outcome.finished
    assert np.isfinite(outcome.best_psnr_db)
    network = load_network(str(tmp_path / "run/weights"))
    assert type(network) is BASELINES[kind]
    fresh = BASELINES[kind](experiment.network)
    assert any(not torch.equal(value, fresh.state_dict()[name]) for name, value in network.state_dict().items())
    with torch.no_grad():
        assert network(torch.rand(1, 9, 4, 5), torch.rand(1, 3, 14, 17)).shape == (1, 9, 14, 17)


def test_trained_weights_fuse_a_scene(path: Path, tmp_path: Path) -> None:
    train(baseline_experiment(path, "mimo-sst"), tmp_path / "run")
    random = np.random.default_rng(0)
    pair = random.random((9, 6, 6)).astype(np.float32), random.random((3, 24, 24)).astype(np.float32)
    fused = fuse(*pair, weights=tmp_path / "run/weights", estimate=False)
    assert fused.shape == (9, 24, 24)
    with pytest.raises(BandError, match="exactly 9 and 3"):
        fuse(pair[0][:8], pair[1], weights=tmp_path / "run/weights", estimate=False)


def test_a_scene_that_is_too_large_for_one_piece_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MIMOSST(MIMOSSTConfig(bands=9, msi_bands=3, width=4)).save_pretrained(tmp_path / "weights")
    random = np.random.default_rng(0)
    for name, shape in (("hsi", (9, 6, 6)), ("msi", (3, 24, 24))):
        write_cube(make_cube(random.random(shape).astype(np.float32)), tmp_path / f"{name}.nc")
    files = (tmp_path / "hsi.nc", tmp_path / "msi.nc", tmp_path / "fused.nc")
    monkeypatch.setattr(plan, "LARGEST_WHOLE_SIDE", 16)
    with pytest.raises(OptionError, match=r"24 x 24 pixels for MIMOSST.*cannot work in tiles.*--bounds"):
        fuse(*files, weights=tmp_path / "weights", estimate=False)
    assert not files[2].exists()
    monkeypatch.undo()
    fuse(*files, weights=tmp_path / "weights", estimate=False)
    assert open_cube(files[2]).shape == (9, 24, 24)


def test_mimo_sst_learns_by_its_own_loss_and_others_by_ours() -> None:
    torch.manual_seed(0)
    hsi, msi, reference = torch.rand(2, 5, 4, 4), torch.rand(2, 3, 16, 16), torch.rand(2, 5, 16, 16)
    network = MIMOSST(MIMOSSTConfig(bands=5, msi_bands=3, width=4))
    unused = dict.fromkeys(("sigma", "shift", "srf", "hsi_noise", "msi_noise", "assumed"), torch.zeros(2))
    batch = PairBatch(hsi, msi, reference, 4.0, **unused, wavelength_nm=None, bucket="random")
    outputs = NetworkOnBatch(network)(batch)
    assert isinstance(outputs, ScaleOutputs)
    assert training_loss(outputs, batch, LoopSettings()) == loss_over_scales(outputs, reference)
    assert training_loss(outputs.full, batch, LoopSettings()) == fusion_loss(outputs.full, reference, 0.1)


def test_presets_of_baselines_are_known_and_can_be_changed(path: Path) -> None:
    network = read_experiment(path, ['network={preset="mimo-sst", idle_layers=false, width=8}']).network
    assert network == BASELINE_PRESETS["mimo-sst"].model_copy(update={"idle_layers": False, "width": 8})
    for name in ("mimo_sst_small", "dspnet_thin"):
        ours, theirs = (
            read_experiment(EXPERIMENTS / "cave_small.toml"),
            read_experiment(EXPERIMENTS / "baselines" / f"{name}.toml"),
        )
        same = {"name": ours.name, "network": ours.network, "length": ours.length}
        assert theirs.model_copy(update=same) == ours, (
            "all but the network and the steps that fit into the same minutes"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('network={kind="telepathy", bands=3}', "kind to be one of .*dspnet, mimo-sst, dcinn, pstun"),
        (
            'network={kind="mimo-sst", bands=9, msi_bands=3, widht=4}',
            'unknown key "network.widht".*did you mean "width"',
        ),
        ('network={kind="dspnet", bands=9, msi_bands=3, width=9}', '"network.width".*multiple of 8'),
        ('network={preset="ssa-9"}', 'no network is called "ssa-9".*mimo-sst'),
    ],
)
def test_wrong_baselines_are_refused(path: Path, change: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_experiment(path, [change])


def test_scenes_of_other_bands_are_refused_before_anything_is_written(path: Path, tmp_path: Path) -> None:
    experiment = read_experiment(path, [f"network={TINY['pstun']}"])
    with pytest.raises(BandError, match=r"14 hsi bands.*exactly 9 and 3"):
        train(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    experiment = baseline_experiment(path, "pstun", "simulation.keep_bands={least=4}")
    with pytest.raises(OptionError, match=r"fixed channels and simulation\.keep_bands"):
        describe(experiment)


def test_describing_and_freezing(path: Path) -> None:
    assert "mimo-sst for 9 and 3 bands, base bicubic" in describe(baseline_experiment(path, "mimo-sst"))
    network = MIMOSST(MIMOSSTConfig(bands=5, msi_bands=3, width=4))
    freeze_parts(network, ())
    with pytest.raises(OptionError, match="whose parts have names"):
        freeze_parts(network, ["decoder"])
