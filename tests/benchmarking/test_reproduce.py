"""`hyperfuse reproduce`: every experiment from end to end on scenes of a few pixels, interrupted and resumed."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.training.tiny_experiments import smooth_scene

from hyperfuse.benchmarking.division import choose_left_out, divide, trained_on
from hyperfuse.benchmarking.reproduce import PLANS, check, insert_page, prepare, reproduce
from hyperfuse.cli.app import run
from hyperfuse.config import EfficiencyConfig, ReproduceConfig
from hyperfuse.errors import OptionError, TrainingError
from hyperfuse.models.analysis import trained_channels
from hyperfuse.models.ssa import SSA

RECIPE = """
[network]
width = 4
spectral_blocks = 1
spatial_blocks = 1
decoder_hidden = [6]
feature_width = 4
msi_kernel = "own"
channels = { kind = "bands", max_channels = 24 }
standardise = "correlated"
initialisation = "he"
residual_factor = 0.1

[split]
patch_size = 16
stride = 8

[simulation]
scale = 4
srfs = "rgb"
msi_bands = 3

[optimiser]
learning_rate = 3e-3

[loop]
batch_size = 1
workers = 0
loss = "relative"
"""
SENSORS = {"CAVE (lab)": (9, 3), "ROSIS": (14, 1), "SAMSON (lake)": (12, 1)}
"""Bands and number of scenes."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    for sensor, (bands, count) in SENSORS.items():
        for number in range(count):
            name = f"{sensor.split()[0].lower()}_{number}.npz"
            size = 64 if sensor.startswith("CAVE") else 80
            np.savez(
                folder / name,
                cube=smooth_scene(bands, size, number),
                wavelength_nm=np.linspace(430, 900, bands),
                sensor=sensor,
            )
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def config(scenes: Path) -> ReproduceConfig:
    return ReproduceConfig(
        scenes=str(scenes / "*.npz"), left_out="samson", recipe=scenes / "recipe.toml", steps=4, iterations=2
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the experiments, as users share it."""
    return tmp_path_factory.mktemp("reproduced")


def test_scenes_are_divided_by_sensor_and_bands(scenes: Path, tmp_path: Path) -> None:
    cave, rosis, samson = divide([str(scenes / "*.npz")], [], tmp_path)
    assert (cave.sensor, cave.bands, samson.sensor) == ("CAVE", 9, "SAMSON")
    assert [Path(table["source"]).stem for table in cave.train] == ["cave_0", "cave_1"]
    assert cave.tests == {f"CAVE={scenes / 'cave_2.npz'}": (64, 64)}
    assert [table["source"] for table in rosis.train] == [str(tmp_path / "rosis_0_train.npz")]
    assert rosis.tests == {f"ROSIS={tmp_path / 'rosis_0_test.npz'}": (40, 80)}
    halves = [np.load(tmp_path / f"rosis_0_{part}.npz") for part in ("train", "test")]
    whole = np.load(scenes / "rosis_0.npz")["cube"]
    assert (np.concatenate([half["cube"] for half in halves], axis=0) == whole).all()
    assert choose_left_out([cave, rosis, samson], None) == ["ROSIS", "SAMSON"]  # CAVE has three scenes
    with pytest.raises(OptionError, match=r"no sensor 'moon' to leave out.*CAVE, ROSIS, SAMSON"):
        choose_left_out([cave, rosis, samson], ["moon"])
    own = divide([str(scenes / "cave_*.npz")], [f"CAVE={scenes / 'cave_0.npz'}"], tmp_path)
    assert len(own[0].train) == 3 and list(own[0].tests) == [f"CAVE={scenes / 'cave_0.npz'}"]


def test_records_tell_what_was_trained_on() -> None:
    tables = [
        {"source": "data/train/cave_*.npz", "use": "train", "exclude": ["cave_paints*"]},
        {"source": "data/test/*.npz", "use": "test", "exclude": []},
        {"source": "lake", "use": "split", "exclude": []},
    ]
    record = {"experiment": {"scenes": tables}}
    assert trained_on(record, Path("elsewhere/train/cave_hairs.npz")) and trained_on(record, Path("lake/any.tif"))
    for path in ("data/train/cave_paints.npz", "data/test/cave_face.npz", "data/train/samson.npz"):
        assert not trained_on(record, Path(path))
    assert not trained_on({}, Path("data/train/cave_hairs.npz"))


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_seen_trains_scores_and_resumes(folder: Path, config: ReproduceConfig) -> None:
    page, *others = reproduce("seen", folder, config=config)
    assert [path.name for path in (page, *others)] == ["seen.md", "seen.csv", "seen.tex"]
    text = page.read_text()
    assert "SSA, as printed" in text and "45.96" in text and "| joint | 4 | 0.00 | 0 |" in text
    assert "- SAMSON, 12 bands, left out of the joint training: 1 to train on" in text
    rows = rows_of(others[0])
    assert {row["model"] for row in rows} == {"bicubic", "gsa", "glp", "local_fuse", "SSA"}
    assert {row["dataset"] for row in rows} == {"CAVE", "ROSIS"}
    trained = [path.stat().st_mtime_ns for path in (folder / "runs" / "joint" / "weights").iterdir()]
    assert reproduce("seen", folder, config=config)[0] == page
    assert [path.stat().st_mtime_ns for path in (folder / "runs" / "joint" / "weights").iterdir()] == trained
    with pytest.raises(TrainingError, match=r"length\.steps differ"):
        reproduce("seen", folder, config=config.replace(steps=5))


def test_unseen_compares_fine_tuning_with_scratch(folder: Path, config: ReproduceConfig) -> None:
    rows = rows_of(reproduce("unseen", folder, config=config)[1])
    assert {row["dataset"] for row in rows} == {"SAMSON"}
    networks = {row["model"] for row in rows} - {"bicubic", "gsa", "glp", "local_fuse"}
    both = {f"{start} at {rate}" for start in ("fine-tuned", "from scratch") for rate in ("0.003", "0.0003")}
    assert networks == {"SSA zero-shot"} | both
    assert "Loukia" in (folder / "unseen.md").read_text()
    run = json.loads((folder / "runs" / "SAMSON_fine-tuned_0.003" / "experiment.json").read_text())
    assert run["finetuning"]["weights"].endswith("joint/weights") and run["length"]["steps"] == 2
    assert run["scenes"][0]["source"].endswith("samson_0_train.npz")


def test_scales_are_those_with_room(folder: Path, config: ReproduceConfig) -> None:
    *_, chart = reproduce("scales", folder, config=config)
    assert chart.name == "scales.png"
    rows = rows_of(folder / "scales.csv")
    assert {row["scale"] for row in rows} == {"4", "8", "16", "32"}
    assert {row["dataset"] for row in rows} == {"CAVE"}  # half of the other scene has no room for x32
    reproduce("fractional", folder, config=config)
    assert {row["scale"] for row in rows_of(folder / "fractional.csv")} == {"3.2", "5.7"}


def test_without_mk_has_a_network_per_sensor(folder: Path, config: ReproduceConfig) -> None:
    reproduce("without-mk", folder, config=config)
    text = (folder / "without-mk.md").read_text()
    assert "| plain_CAVE_9 | 2 |" in text and "| plain_ROSIS_14 | 2 |" in text and "fixed kernels, one data set" in text
    rows = rows_of(folder / "without-mk.csv")
    assert {(row["dataset"], row["model"]) for row in rows if row["model"] != "bicubic"} == {
        (sensor, network) for sensor in ("CAVE", "ROSIS") for network in ("SSA", "w/o MK")
    }


def test_baselines_have_a_network_per_sensor(folder: Path, config: ReproduceConfig) -> None:
    reproduce("baselines", folder, config=config)
    rows = rows_of(folder / "baselines.csv")
    assert {"SSA", "MIMO-SST", "DSPNet"} < {row["model"] for row in rows}
    run = json.loads((folder / "runs/mimo-sst-thin_CAVE_9/experiment.json").read_text())
    assert run["network"]["kind"] == "mimo-sst" and run["network"]["bands"] == 9 and run["length"]["steps"] == 2


def test_model_sizes(folder: Path, config: ReproduceConfig) -> None:
    reproduce("model-size", folder, config=config.replace(steps=1))
    widths = [json.loads((folder / f"runs/size_{n}/experiment.json").read_text())["network"]["width"] for n in (1, 6)]
    assert widths == [2, 4]
    assert "18.654" in (folder / "model-size.md").read_text()


def test_kernels_of_trained_channels_only(folder: Path, config: ReproduceConfig, tmp_path: Path) -> None:
    _, table, figure = reproduce("kernels", folder, config=config)
    assert [row["channels trained"] for row in rows_of(table)] == ["14"] * 3  # of 24
    network = SSA.from_pretrained(folder / "runs" / "joint" / "weights")
    assert trained_channels(network) == 14
    network.provenance = {}
    assert trained_channels(network) == 24
    document = tmp_path / "page.md"
    document.write_text("<!-- benchmark kernels -->\nold\n<!-- end of benchmark kernels -->\n")
    insert_page(document, folder, "kernels")
    assert "(images/reproduce_kernels.png)" in document.read_text() and "old" not in document.read_text()
    assert figure.name == "kernels.png" and (tmp_path / "images" / "reproduce_kernels.png").exists()


def test_given_weights_are_not_trained(folder: Path, config: ReproduceConfig, scenes: Path, tmp_path: Path) -> None:
    weights = str(folder / "runs" / "joint" / "weights")
    given = ReproduceConfig(scenes=config.scenes, weights=weights)
    assert reproduce("kernels", tmp_path / "new" / "folder", config=given)[0].exists()
    text = reproduce("seen", tmp_path / "out", config=given)[0].read_text()
    assert not (tmp_path / "out" / "runs").exists() and f"weights {weights}, 4 steps, seed 0" in text
    shown = ReproduceConfig(test_scenes=str(scenes / "cave_0.npz"), weights=weights)
    assert "Trained on, by its record: cave_0" in reproduce("seen", tmp_path / "seen", config=shown)[0].read_text()
    with pytest.raises(OptionError, match="trained on every sensor"):
        reproduce("unseen", tmp_path / "no", config=given.replace(scenes=str(scenes / "[cr]*.npz")))
    with pytest.raises(OptionError, match="trains all of its networks"):
        reproduce("without-mk", tmp_path / "no", config=given)


def test_minutes_become_steps(config: ReproduceConfig, tmp_path: Path) -> None:
    timed = ReproduceConfig(scenes=config.scenes, recipe=config.recipe, left_out="none", minutes=0.01)
    assert "|" in reproduce("seen", tmp_path, config=timed)[0].read_text()
    steps = json.loads((tmp_path / "runs/joint/experiment.json").read_text())["length"]["steps"]
    assert 1 <= steps < 500
    reproduce("seen", tmp_path, config=timed)  # keeps the number of steps


def test_other_work_does_not_shorten_a_training(
    config: ReproduceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [{"event": "train", "steps_per_second": rate} for rate in (16.0, 2.0, 8.0, 0.5)]
    monkeypatch.setattr("hyperfuse.benchmarking.reproduce.read_log", lambda folder: rates)
    setup = prepare("model-size", tmp_path, config, tmp_path / "scenes")
    assert setup.seconds_per_step(PLANS["model-size"](setup).trainings[0]) == 1 / 8


def test_check_writes_nothing(config: ReproduceConfig, tmp_path: Path) -> None:
    lines = list(check("unseen", tmp_path / "out", config))
    assert any(line.startswith("to train: SAMSON_from_scratch_0.003, 1 scenes, about 0.0 minutes") for line in lines)
    assert lines[-1].endswith("minutes of training in all") and not (tmp_path / "out").exists()


def test_efficiency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperfuse.benchmarking.reproduce.BASELINES", ("mimo-sst",))
    monkeypatch.setattr("hyperfuse.benchmarking.reproduce.METHODS", ("bicubic",))
    quick = partial(EfficiencyConfig, seconds=0.0)
    monkeypatch.setattr("hyperfuse.benchmarking.reproduce.EfficiencyConfig", quick)
    config = ReproduceConfig(left_out="samson", steps=1)  # without scenes and training
    page, table = reproduce("efficiency", tmp_path, config=config)
    assert "6.164 G" in page.read_text() and "mimo-sst" in table.read_text()
    assert reproduce("efficiency", tmp_path, config=config) == [page, table]


def test_the_command(scenes: Path, config: ReproduceConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--scenes", str(scenes / "*.npz"), "--recipe", str(config.recipe), "-o", str(tmp_path / "out")]
    assert run(["-q", "reproduce", "seen", *options, "--steps", "1", "--left-out", "samson,rosis"]) == 0
    assert "seen.md" in capsys.readouterr().out
    assert run(["-q", "reproduce", "seen", *options, "--check"]) == 0
    assert "to score: bicubic, gsa, glp, local_fuse, SSA on 3 scenes at x4" in capsys.readouterr().out
    assert run(["-q", "reproduce", "everything", *options]) == 2
    assert f"one of {', '.join(PLANS)}" in capsys.readouterr().err
    assert run(["-q", "reproduce", "seen", *options, "--recipe", str(tmp_path)]) == 2
    assert "fix --recipe" in capsys.readouterr().err
    assert run(["-q", "reproduce", "seen", *options, "--steps", "1", "--minutes", "2"]) == 2
    assert "leave out --minutes or --steps" in capsys.readouterr().err
