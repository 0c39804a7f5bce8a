"""Adaptation of weights to another sensor."""

from __future__ import annotations

import json
import warnings
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.models.network_fixtures import TINY, tiny_network
from tests.training.tiny_experiments import write_experiment

from hyperfuse.cli.app import run
from hyperfuse.errors import BandError, OptionError, TrainingError
from hyperfuse.models.ssa import SSA
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.run_folder import draw_curves
from hyperfuse.training.train import PARTS, finetune, freeze_parts, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetune")
    train(read_experiment(write_experiment(folder), ["length.steps=4"]), folder / "run")
    return folder


def test_what_is_frozen_stays(trained: Path, tmp_path: Path) -> None:
    outcome = finetune(
        trained / "run/weights",
        [str(trained / "scenes/train_b.npz")],
        tmp_path / "adapted",
        test_scenes=[str(trained / "scenes/test_a.npz")],
        iterations=3,
        freeze=["kernels", "decoder"],
        patch_size=16,
        workers=0,
    )
    before = SSA.from_pretrained(trained / "run/weights").state_dict()
    after = SSA.from_pretrained(tmp_path / "adapted/weights").state_dict()
    for name, tensor in before.items():
        frozen = name.partition(".")[0] in (*PARTS["kernels"], *PARTS["decoder"])
        assert torch.equal(tensor, after[name]) == frozen, name
    assert [each.case for each in outcome.comparisons] == ["test_a x4"]
    assert outcome.comparisons[0].after_psnr_db != outcome.comparisons[0].before_psnr_db


def test_the_command_shows_before_and_after(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["finetune", str(trained / "run/weights"), "--scenes", str(trained / "scenes/train_b.npz")]
    arguments += ["--test-scenes", str(trained / "scenes/test_a.npz"), "--iterations", "2", "--patch-size", "16"]
    assert run([*arguments, "-o", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "test_a x4" in shown
    assert run([*arguments, "-o", str(tmp_path / "run"), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["before_psnr_db"] > 5
    assert "before" in shown
    assert "gain dB" in shown


def test_what_cannot_be_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no part is called 'head'; expected one of kernels"):
        freeze_parts(tiny_network(), ["head"])
    with pytest.raises(OptionError, match="every part is frozen"):
        freeze_parts(tiny_network(), list(PARTS))
    tiny_network(config=TINY.with_max_channels(8)).save_pretrained(tmp_path / "narrow")
    with pytest.raises(BandError, match="expected at most 8 together"):
        finetune(
            tmp_path / "narrow",
            [str(trained / "scenes/train_b.npz")],
            tmp_path / "adapted",
            test_scenes=[str(trained / "scenes/test_a.npz")],
            patch_size=16,
        )
    assert not (tmp_path / "adapted").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere.toml"], "cannot be read"),
        (["train", "{toml}", "--set", "loop.batch=3"], "did you mean"),
        (["train", "{toml}", "--set", 'scenes=[{source="nowhere/*.npz"}]'], "nowhere"),
        (["finetune", "nowhere", "--scenes", "x.npz", "-o", "out"], "does not exist"),
    ],
)
def test_mistakes_are_one_line(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([each.replace("{toml}", str(trained / "tiny.toml")) for each in arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_curves_are_drawn(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curves", str(trained / "run"), "-o", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 5000
    assert run(["curves", str(tmp_path), "-o", str(tmp_path / "other.png")]) == 2
    assert "expected the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "other.png").exists()


def test_a_loss_in_decibels_is_drawn_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    lines = [{"event": "train", "step": step, "loss": -40.0 - step} for step in (1, 2, 3)]
    (tmp_path / "run" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_curves([tmp_path / "run"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_a_continued_adaptation_is_the_same_one(trained: Path, tmp_path: Path) -> None:
    def adapt(weights: Path, freeze: list[str]) -> None:
        finetune(
            weights,
            [str(trained / "scenes/train_b.npz")],
            tmp_path / "adapted",
            test_scenes=[str(trained / "scenes/test_a.npz")],
            iterations=2,
            freeze=freeze,
            patch_size=16,
            workers=0,
            resume=True,
        )

    adapt(trained / "run/weights", ["decoder"])
    record = json.loads((tmp_path / "adapted/weights/config.json").read_text())["provenance"]["experiment"][
        "finetuning"
    ]
    assert record["freeze"] == ["decoder"]
    assert record["digest"] == SSA.from_pretrained(trained / "run/weights").weights_digest
    with pytest.raises(TrainingError, match=r"finetuning\.freeze differ"):
        adapt(trained / "run/weights", ["kernels"])
    with pytest.raises(OptionError, match="no part of the scenes"):
        finetune(trained / "run/weights", ["synthetic"], tmp_path / "other", patch_size=16)


def test_universal_can_be_adapted(trained: Path, tmp_path: Path) -> None:
    shipped = resources.files("hyperfuse") / "weights" / "universal"
    outcome = finetune(
        str(shipped),
        [str(trained / "scenes/train_b.npz")],
        tmp_path / "adapted",
        test_scenes=[str(trained / "scenes/test_a.npz")],
        iterations=1,
        patch_size=16,
        scale=2.0,
        batch_size=1,
    )
    before, after = (
        load_file(next(folder.glob("*.safetensors"))) for folder in (Path(str(shipped)), outcome.folder / "weights")
    )
    changed = {name.split(".")[0] for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert {"embed", "head", "trust"} <= changed
    assert "trust_of_unfamiliar" not in changed
