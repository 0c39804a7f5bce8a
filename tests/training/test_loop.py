"""The loop: it learns, loses nothing when it is killed, and computes the same in several processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.processes import Program
from tests.training.tiny_experiments import smooth_scene, write_experiment

import hyperfuse
from hyperfuse.data.observing import PairBatch
from hyperfuse.errors import BandError, CubeWriteError, HyperfuseError, OptionError, TrainingError, WeightsError
from hyperfuse.models.ssa import SSA
from hyperfuse.progress import ProgressReport, listening
from hyperfuse.training import run_folder
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.run_folder import CHECKPOINT, Checkpoint, read_log
from hyperfuse.training.train import describe, train

MAIN = Path(hyperfuse.__file__).with_name("__main__.py")
EVERY_LOSS = ["loop.ema=0", "loop.log_every=1", "loop.accelerator=cpu"]
QUIET = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_experiment(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same experiment that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    train(read_experiment(write_experiment(folder)), folder / "run")
    return folder / "run"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """Results of one number of threads are compared with each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / CHECKPOINT)


def assert_same_state(found: Path, expected: Path) -> None:
    first, second = tensors(found), tensors(expected)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_and_writes_everything_down(path: Path, tmp_path: Path) -> None:
    outcome = train(read_experiment(path, ["length.steps=60"]), tmp_path / "run")
    assert outcome.finished
    log = read_log(tmp_path / "run")
    losses = [line["loss"] for line in log if line["event"] == "train"]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    scores = [line for line in log if line["event"] == "validation"]
    assert len(scores) == 10
    assert outcome.best_psnr_db == max(line["mean_psnr_db"] for line in scores)
    assert (tmp_path / "run/samples/step-0000060.png").exists()
    assert list((tmp_path / "run/tensorboard").iterdir())
    for name in ("weights", "best"):
        assert SSA.from_pretrained(tmp_path / "run" / name).config.width == 6
    provenance = json.loads((tmp_path / "run/weights/config.json").read_text())["provenance"]
    assert provenance["steps"] == 60
    assert provenance["scenes"] == ["train_a", "train_b", "test_a"]
    assert provenance["experiment"]["seed"] == 3


def test_progress_tells_the_loss_and_the_gain_over_the_base(path: Path, tmp_path: Path) -> None:
    heard: list[ProgressReport] = []
    with listening(heard.append):
        train(read_experiment(path), tmp_path / "run")
        train(read_experiment(path), tmp_path / "run", resume=True)  # nothing left to do
    notes = [report.note for report in heard if report.description == "Training" and report.note]
    assert len(notes) == 12
    losses = [line["loss"] for line in read_log(tmp_path / "run") if line["event"] == "train"]
    assert all(0 < float(note.split()[1]) < 2 * max(losses) for note in notes)
    gain = next(line["mean_gain_db"] for line in read_log(tmp_path / "run") if line["event"] == "validation")
    assert all(note.count(" ") == 1 for note in notes[:6]), "before the first validation only the loss"
    assert all(note.endswith(f" {gain:+.2f} dB over bicubic") for note in notes[6:])


def test_a_run_is_determined_by_its_seed(path: Path, whole: Path, tmp_path: Path) -> None:
    train(read_experiment(path), tmp_path / "again")
    train(read_experiment(path, ["seed=4"]), tmp_path / "other")
    assert_same_state(tmp_path / "again", whole)
    one, other = tensors(whole), tensors(tmp_path / "other")
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_workers_change_nothing(path: Path, whole: Path, tmp_path: Path) -> None:
    train(read_experiment(path, ["loop.workers=1"]), tmp_path / "run")
    assert_same_state(tmp_path / "run", whole)


@pytest.mark.parametrize("killed_at", [5, 8])
def test_killed_and_resumed_it_ends_with_the_same_bits(path: Path, whole: Path, tmp_path: Path, killed_at: int) -> None:
    """A process that ends itself with SIGKILL in the middle of a step, with checkpoints every fourth step."""
    script = (
        "import os, signal, sys\n"
        "from hyperfuse.training import loop\n"
        "from hyperfuse.training.experiment import read_experiment\n"
        "from hyperfuse.training.train import train\n"
        "import torch; torch.set_num_threads(1)\n"
        "whole = loop.Trainer._average\n"
        "def dying(self):\n"
        f"    if self.progress.step == {killed_at}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    whole(self)\n"
        "loop.Trainer._average = dying\n"
        "train(read_experiment(sys.argv[1]), sys.argv[2])\n"
    )
    killed = Program(script, path, tmp_path / "killed")
    _, said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    assert Checkpoint.read(tmp_path / "killed" / CHECKPOINT).progress["step"] == killed_at // 4 * 4
    assert train(read_experiment(path), tmp_path / "killed", resume=True).finished
    assert_same_state(tmp_path / "killed", whole)
    logged, expected = (
        [(line["step"], line["loss"]) for line in read_log(folder) if line["event"] == "train"]
        for folder in (tmp_path / "killed", whole)
    )
    assert logged == expected


def test_ctrl_c_saves_and_resume_continues(path: Path, tmp_path: Path) -> None:
    changes = ["length.steps=200", "validation.every=200"]
    options = [each for change in changes for each in ("--set", change)]
    running = Program("from hyperfuse.cli.app import main; main()", "train", path, "-o", tmp_path / "run", *options)
    _wait_for(tmp_path / "run" / CHECKPOINT)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    step = Checkpoint.read(tmp_path / "run" / CHECKPOINT).progress["step"]
    assert 4 <= step < 200
    assert train(read_experiment(path, changes), tmp_path / "run", resume=True).finished


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    train(read_experiment(write_experiment(folder), EVERY_LOSS), folder / "run")
    return folder / "run"


def of_torchrun(rank: int, port: int) -> dict[str, str]:
    """What torchrun would set for one of two processes."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    sizes = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "ROLE_WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 1}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    elastic = {"RUN_ID": "test", "USE_AGENT_STORE": False, "RESTART_COUNT": 0, "MAX_RESTARTS": 0}
    elastic = {f"TORCHELASTIC_{name}": value for name, value in elastic.items()}
    return {name: str(value) for name, value in (ranks | sizes | master | elastic).items()}


@pytest.mark.parametrize("started_by", ["loop.devices", "fabric run", "torchrun"])
def test_two_processes_reach_the_loss_of_one(path: Path, one_process: Path, tmp_path: Path, started_by: str) -> None:
    command = ["train", str(path), "-o", str(tmp_path / "run"), "--set", "loop.devices=2"]
    command += [each for change in EVERY_LOSS for each in ("--set", change)]
    if started_by == "torchrun":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        processes = [Program(MAIN, *command, env=QUIET | of_torchrun(rank, port)) for rank in range(2)]
    elif started_by == "fabric run":
        options = ["--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"]
        processes = [Program(Path(sys.executable).with_name("fabric"), "run", *options, MAIN, *command, env=QUIET)]
    else:
        processes = [Program(MAIN, *command, env=QUIET)]
    for process in processes:
        _, said = process.communicate(timeout=180)
        assert process.returncode == 0, said
    one, two = (
        [line["loss"] for line in read_log(folder) if line["event"] == "train"]
        for folder in (one_process, tmp_path / "run")
    )
    assert len(one) == 12
    assert one == pytest.approx(two, rel=1e-4)


def test_a_nan_loss_stops_and_keeps_the_last_checkpoint(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hyperfuse.training import loop

    def poisoned(fused: torch.Tensor, batch: PairBatch, settings: object) -> torch.Tensor:
        calls.append(1)
        return (fused - batch.reference).abs().mean() * (float("nan") if len(calls) == 7 else 1.0)

    calls: list[int] = []
    monkeypatch.setattr(loop, "training_loss", poisoned)
    with pytest.raises(
        TrainingError, match=r"became nan at step 7; expected a finite loss; .*the last good checkpoint is kept"
    ):
        train(read_experiment(path), tmp_path / "run")
    kept = Checkpoint.read(tmp_path / "run" / CHECKPOINT)
    assert kept.progress["step"] == 4
    assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.network.values())


def test_a_full_disk_stops_and_keeps_the_last_checkpoint(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = run_folder.save, []

    def full(*arguments: Any, **options: Any) -> bytes:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return whole(*arguments, **options)

    monkeypatch.setattr(run_folder, "save", full)
    with pytest.raises(CubeWriteError, match=r"no space left .*the last checkpoint is kept"):
        train(read_experiment(path), tmp_path / "run")
    assert Checkpoint.read(tmp_path / "run" / CHECKPOINT).progress["step"] == 4
    assert not list((tmp_path / "run").glob(".checkpoint*"))


def test_a_folder_holds_one_experiment(path: Path, tmp_path: Path) -> None:
    experiment = read_experiment(path, ["length.steps=2"])
    train(experiment, tmp_path / "run")
    with pytest.raises(CubeWriteError, match=r"holds a run already; .*--resume"):
        train(experiment, tmp_path / "run")
    with pytest.raises(TrainingError, match=r"another experiment: optimiser\.learning_rate differ"):
        train(read_experiment(path, ["length.steps=2", "optimiser.learning_rate=0.1"]), tmp_path / "run", resume=True)
    assert train(read_experiment(path, ["length.steps=2", "loop.log_every=1"]), tmp_path / "run", resume=True).finished
    (tmp_path / "run" / CHECKPOINT).write_bytes(b"torn")
    with pytest.raises(WeightsError, match="cannot be read as a checkpoint"):
        train(experiment, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "changes",
    [
        ["network.base=gsa"],
        ['network.channels={kind="bands", max_channels=20}', "network.msi_kernel=joined"],
        ['network.channels={kind="wavelength", knots=10}'],
        ["loop.accumulate=3"],
        ["loop.precision=bfloat16"],
        [
            "simulation.scale=[2.0, 5.0]",
            "simulation.shift=1.0",
            "simulation.snr_hsi_db=[20, 40]",
            "simulation.msi_bands=[1, 6]",
        ],
    ],
    ids=lambda changes: changes[0].partition("=")[0] + changes[0][-8:],
)
def test_every_choice_trains(path: Path, tmp_path: Path, changes: list[str]) -> None:
    short = ["length.steps=3", "validation.every=3", "validation.scales=[4, 3.2]"]
    assert train(read_experiment(path, changes + short), tmp_path / "run").finished
    assert {line["event"] for line in read_log(tmp_path / "run")} == {"train", "validation"}


def test_several_blocks_of_a_scene_count_each(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperfuse.data import splits

    monkeypatch.setattr(splits, "LARGEST_TEST_SIDE", 16)
    split = path.read_text().replace('use = "train"', 'use = "split"').replace("patch_size = 16", "patch_size = 8")
    path.write_text(split)
    train(read_experiment(path, ["length.steps=2", "simulation.scale=2", "validation.scales=[2]"]), tmp_path / "run")
    scores = next(line for line in read_log(tmp_path / "run") if line["event"] == "validation")
    names = list(scores["psnr_db"])
    assert {"train_a block 1 x2", "train_a block 2 x2", "test_a x2"} <= set(names)
    assert scores["mean_psnr_db"] == pytest.approx(sum(scores["psnr_db"].values()) / len(names))
    assert not scores["overlapping"]


def test_a_nan_gradient_does_not_reach_the_weights(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperfuse.training import loop

    def poisoned(fused: torch.Tensor, batch: PairBatch, settings: object) -> torch.Tensor:
        calls.append(1)
        loss = (fused - batch.reference).abs().mean()
        return loss + (0.0 * fused.sum()).sqrt() if len(calls) == 8 else loss

    calls: list[int] = []
    monkeypatch.setattr(loop, "training_loss", poisoned)
    path.write_text(path.read_text().replace("clip_norm = 1.0", ""))
    with pytest.raises(TrainingError, match=r"the gradient became nan at step 8; .*the last good checkpoint is kept"):
        train(read_experiment(path), tmp_path / "run")
    assert Checkpoint.read(tmp_path / "run" / CHECKPOINT).progress["step"] == 4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["loop.accelerator=cuda"], "no CUDA device"),
        (["loop.batch_size=3", "loop.devices=2"], "batches of 3 for 2 processes"),
        (['network.channels={kind="bands", max_channels=10}', "network.msi_kernel=joined"], "at most 10 together"),
        (['network.channels={kind="fixed", bands=9, msi_bands=3}', "network.msi_kernel=joined"], "exactly 9 and 3"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    path: Path, tmp_path: Path, changes: list[str], complaint: str
) -> None:
    experiment = read_experiment(path, changes)
    for attempt in (lambda: train(experiment, tmp_path / "run"), lambda: describe(experiment)):
        with pytest.raises(HyperfuseError, match=complaint):
            attempt()
    assert not (tmp_path / "run").exists()


def test_wavelength_channels_need_known_wavelengths(path: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "scenes/train_c.npz", cube=smooth_scene(11, 32, 5))
    changes = ['network.channels={kind="wavelength"}', "length.steps=2"]
    with pytest.raises(BandError, match=r"of unknown wavelengths; .*set assumed_nm"):
        train(read_experiment(path, changes), tmp_path / "run")
    path.write_text(path.read_text().replace('use = "train"', 'use = "train"\nassumed_nm = [400, 900]'))
    assert train(read_experiment(path, changes), tmp_path / "run").finished


def test_other_scenes_are_noticed(path: Path, tmp_path: Path) -> None:
    train(read_experiment(path), tmp_path / "run")
    np.savez(tmp_path / "scenes/train_c.npz", cube=smooth_scene(9, 32, 5), wavelength_nm=np.linspace(430, 900, 9))
    with pytest.raises(TrainingError, match="with other scenes"):
        train(read_experiment(path), tmp_path / "run", resume=True)


def test_a_scene_that_is_trained_and_tested_on_is_called_overlapping(path: Path, tmp_path: Path) -> None:
    path.write_text(path.read_text().replace("test_*.npz", "train_a.npz"))
    outcome = train(read_experiment(path, ["length.steps=2"]), tmp_path / "run")
    assert "overlapping: train_a both trained and tested on" in outcome.split
    assert json.loads((tmp_path / "run/weights/config.json").read_text())["provenance"]["overlapping"]


def test_a_torn_log_and_a_left_over_file_do_no_harm(path: Path, whole: Path, tmp_path: Path) -> None:
    experiment = read_experiment(path)
    train(experiment, tmp_path / "run")
    (tmp_path / f"run/.{CHECKPOINT}.partial").write_bytes(b"half")
    with (tmp_path / "run/log.jsonl").open("a") as log:
        log.write('{"event": "tr')
    assert train(experiment, tmp_path / "run", resume=True).finished
    assert_same_state(tmp_path / "run", whole)


def test_the_rate_falls_as_a_cosine_after_the_warm_up(path: Path) -> None:
    optimiser = read_experiment(path, ["optimiser.warmup_steps=10", "optimiser.final_learning_rate=1e-3"]).optimiser
    rates = [optimiser.rate_at(step, 110) for step in range(111)]
    assert rates[0] == pytest.approx(3e-4)
    assert rates[10] == pytest.approx(3e-3)
    assert rates[60] == pytest.approx(2e-3)
    assert rates[110] == pytest.approx(1e-3)


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    from hyperfuse.data.sampler import process_slots

    with pytest.raises(OptionError, match="batches of 3 for 2 processes"):
        process_slots(3, 0, 2)


def test_a_description_says_what_would_be_done(path: Path) -> None:
    said = describe(read_experiment(path))
    assert "12 steps of 2 patches" in said
    assert "sensor of 14 bands: 14 bands, 9 patches of 16x16" in said
    assert "validation  test_a x4" in said


def _wait_for(path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)
