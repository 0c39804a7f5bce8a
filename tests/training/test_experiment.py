"""Experiment files: strict, with suggestions for unknown keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.tiny_experiments import write_experiment, write_scenes

from hyperfuse.cli.app import run
from hyperfuse.data.synthetic import SYNTHETIC
from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.models.matryoshka import FixedBands, MatryoshkaBands
from hyperfuse.models.ssa import preset
from hyperfuse.training.experiment import read_experiment

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_experiment(tmp_path)


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.rglob("*.toml")), ids=lambda file: file.stem)
def test_every_shipped_experiment_is_valid(file: Path) -> None:
    assert read_experiment(file).name == file.stem


def test_the_paper_s_run_is_the_paper_s() -> None:
    paper = read_experiment(EXPERIMENTS / "paper_joint.toml")
    assert paper.network == preset("ssa-6-6")
    assert paper.network.channels == MatryoshkaBands(max_channels=194)
    assert [each.source for each in paper.scenes] == [
        "CAVE",
        "Harvard",
        "PaviaC",
        "PaviaU",
        "Chikusei",
        "Botswana",
        "WDC",
    ]
    assert (paper.optimiser.learning_rate, paper.optimiser.final_learning_rate, paper.optimiser.weight_decay) == (
        2e-4,
        1e-5,
        0.0,
    )
    assert (paper.loop.batch_size, paper.length.epochs, paper.loop.ssim_weight) == (4, 2000, 0.1)
    assert (paper.loop.loss, paper.loop.precision, paper.loop.accumulate, paper.loop.ema) == ("paper", "float32", 1, 0)
    assert (paper.optimiser.warmup_steps, paper.optimiser.clip_norm, paper.simulation.flips) == (0, None, False)
    assert (paper.split.kind, paper.split.patch_size, paper.simulation.scale) == ("paper", 128, (4.0, 4.0))
    assert isinstance(read_experiment(EXPERIMENTS / "without_mk.toml").network.channels, FixedBands)
    for depth in (1, 2, 4, 6):
        scaled = read_experiment(EXPERIMENTS / f"scaling_{depth}.toml")
        assert scaled == paper.model_copy(
            update={"name": f"scaling_{depth}", "network": preset(f"ssa-{depth}-{depth}")}
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loop.batchsize=4", r'unknown key "loop.batchsize"; .*did you mean "batch_size"'),
        ("optimizer={}", 'unknown key "optimizer".*did you mean "optimiser"'),
        ("network.widht=4", 'unknown key "network.widht".*did you mean "width"'),
        ('network.channels={kind="components", counts=3}', 'channels.components.counts".*did you mean "count"'),
        ("simulation.psf=1", 'unknown key "simulation.psf".*did you mean "psf_fwhm"'),
        ("network.base=magic", 'got base "magic", expected one of bicubic'),
        ("network.preset=ssa-9", 'no network is called "ssa-9"'),
        ("length.epochs=3", "expected one of steps and epochs"),
        ("loop.batch_size=0", '"loop.batch_size".*greater than or equal to 1'),
        ("loop.precision=float64", '"loop.precision".*float32'),
        ("scenes=[]", '"scenes"'),
        ("loop", "--set loop"),
        ("loop.batch_size.x=3", "batch_size to be a table"),
    ],
)
def test_wrong_values_are_refused(path: Path, change: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_experiment(path, [change])


def test_an_unknown_key_in_a_list_of_tables_is_found(path: Path) -> None:
    path.write_text(path.read_text().replace('use = "test"', 'sue = "test"'))
    with pytest.raises(OptionError, match=r'unknown key "scenes.1.sue".*did you mean "use"'):
        read_experiment(path)


def test_values_are_set_as_toml_or_as_bare_words(path: Path) -> None:
    changes = [
        "loop.batch_size=8",
        "name=other",
        "validation.scales=[4, 5.7]",
        'network.channels={kind="bands", max_channels=20}',
    ]
    experiment = read_experiment(path, changes)
    assert (experiment.loop.batch_size, experiment.name, experiment.validation.scales) == (8, "other", (4.0, 5.7))
    assert experiment.network.channels == MatryoshkaBands(max_channels=20)


def test_a_preset_can_be_changed_in_part(path: Path) -> None:
    network = read_experiment(path, ['network={preset="ssa-small", width=32}']).network
    assert network == preset("ssa-small").model_copy(update={"width": 32})


@pytest.mark.parametrize("contents", [None, "name = ", b"\xff\xfe"])
def test_files_that_are_none(tmp_path: Path, contents: str | bytes | None) -> None:
    path = tmp_path / "experiment.toml"
    if contents is not None:
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    with pytest.raises(OptionError, match="expected"):
        read_experiment(path)


def test_former_keys_are_accepted_with_one_warning_each(path: Path) -> None:
    text = (
        path.read_text().replace("srfs =", "responses =").replace("[validation]", '[validation]\nresponse = "rgb+nir"')
    )
    expected = read_experiment(path, ['validation.srf="rgb+nir"'])
    path.write_text(text)
    with pytest.warns(FutureWarning) as caught:
        found = read_experiment(path)
    assert found == expected
    assert sorted(str(each.message).rpartition(" ")[2] for each in caught) == ["'srf'", "'srfs'"]


def test_other_scenes_replace_those_of_the_experiment(path: Path) -> None:
    experiment = read_experiment(path, scenes=["my/folder", "CAVE"])
    assert [(each.source, each.use) for each in experiment.scenes] == [("my/folder", "split"), ("CAVE", "split")]
    assert experiment.network == read_experiment(path).network


def test_srf_files_are_looked_up_like_scenes(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYPERFUSE_DATA", raising=False)
    (tmp_path / "camera.csv").touch()
    experiment = read_experiment(path, ['simulation.srfs=["rgb", "camera.csv", "random"]', "validation.srf=camera.csv"])
    found = experiment.with_srf_files(tmp_path)
    assert [each.name for each in found.simulation.srfs] == ["rgb", str(tmp_path / "camera.csv"), "random"]
    assert found.validation.srf == str(tmp_path / "camera.csv")
    assert found.with_srf_files(tmp_path) == found
    with pytest.raises(CubeFileError, match=r"no SRF file camera\.csv; expected one here or in scenes; .*srfs=rgb"):
        experiment.with_srf_files()


def test_the_first_experiment_needs_no_files() -> None:
    assert [each.source for each in read_experiment(EXPERIMENTS / "small_cpu.toml").scenes] == [SYNTHETIC, "demo"]


def test_shipped_experiments_say_where_their_files_may_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYPERFUSE_DATA", raising=False)
    for name in ("joint_small", "universal", "baselines/mimo_sst"):
        assert run(["train", str(EXPERIMENTS / f"{name}.toml"), "--check"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert all(text in said for text in ("hyperfuse: scenes 'train/", "--folder, HYPERFUSE_DATA", "--scenes"))


def test_train_on_scenes_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scenes(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    options = ["--check", "--set", "split.patch_size=16"]
    for scenes in ("mine", "mine/t*.npz"):
        assert run(["train", str(EXPERIMENTS / "small_cpu.toml"), "--scenes", scenes, *options]) == 0
        said = capsys.readouterr().out
        assert "disjoint (3 in blocks" in said
        assert "sensor of 14 bands" in said and "validation  test_a" in said and SYNTHETIC not in said
