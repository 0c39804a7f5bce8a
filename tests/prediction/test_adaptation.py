"""`fuse --adapt SECONDS`: how many sides fit into the time, whether they are worth it, and what is said of it."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hyperfuse import fuse, fuse_files, open_cube, write_cube
from hyperfuse.cli.app import run
from hyperfuse.cubes.cube import make_cube
from hyperfuse.errors import Cancelled, Notice
from hyperfuse.prediction import adaptation, prepared_scene
from hyperfuse.prediction.batch import read_batch
from hyperfuse.prediction.fusion_request import FusionRequest
from hyperfuse.prediction.scene_plan import plan_scene
from hyperfuse.progress import listening
from hyperfuse.reporting.quality_report import write_quality_report
from methods.tiny_pairs import tiny_pair
from prediction.large_scenes import small_tiles

FOUR_SIDES = 9.0  # seconds in which the faked clock lets a pair be looked at from four sides


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes between any two looks at it, so that every look at the pair takes one, and finding that out takes five."""
    ticks = count()
    monkeypatch.setattr(adaptation, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


@pytest.fixture
def gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "scores_of", lambda window, names: dict(zip(names, (30.0, 30.03), strict=True)))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    pair = tiny_pair(5, 3, (9, 10), 4.0, snr_db=40)
    write_cube(make_cube(pair.hsi.numpy()), tmp_path / "hsi.tif")
    write_cube(make_cube(pair.msi.numpy()), tmp_path / "msi.tif")
    return tmp_path


def fused_by(folder: Path, seconds: float) -> str:
    return str(fuse(folder / "hsi.tif", folder / "msi.tif", estimate=False, adapt=seconds).attrs["hyperfuse_method"])


@pytest.mark.parametrize(("seconds", "method"), [(7.0, "universal_2"), (FOUR_SIDES, "universal_4"), (13.0, "universal_8")])
def test_as_many_sides_as_fit_into_the_time(files: Path, gain: None, seconds: float, method: str) -> None:
    with pytest.warns(Notice, match=rf"^adapted: seen from {method[-1]} sides, \+0.03 dB on the pair degraded once more$"):
        assert fused_by(files, seconds) == method


def test_too_little_time(files: Path) -> None:
    with pytest.warns(Notice, match="^not adapted: 6 s are too short, one more look takes about 6.2 s$"):
        assert fused_by(files, 6.0) == "universal"


def test_tiles_take_longer(files: Path, gain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their margins and the statistics before them count."""
    request = FusionRequest(files / "hsi.tif", files / "msi.tif", files / "fused.tif", estimate=False, adapt=FOUR_SIDES)
    with pytest.warns(Notice, match="4 sides"):
        assert plan_scene(request).scene.method == "universal_4"
    small_tiles(monkeypatch, (32, 32))
    with pytest.warns(Notice, match="9 s are too short"):
        assert plan_scene(request).scene.method == "universal"


def test_sides_that_do_not_help(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "scores_of", lambda window, names: dict(zip(names, (30.0, 29.0), strict=True)))
    with pytest.warns(Notice, match=r"^not adapted: seen from 4 sides .* worse \(-1.00 dB\)$"):
        assert fused_by(files, FOUR_SIDES) == "universal"


@pytest.mark.parametrize(
    ("score", "method", "words"),
    [
        (29.9, "universal_4", r"^adapted: seen from 4 sides, though .* no better \(-0.10 dB\)$"),
        (float("nan"), "universal", "^not adapted: the pair is too small, or its MSI too flat"),
    ],
)
def test_judgements_that_say_little(files: Path, monkeypatch: pytest.MonkeyPatch, score: float, method: str, words: str) -> None:
    monkeypatch.setattr(adaptation, "scores_of", lambda window, names: dict(zip(names, (30.0, score), strict=True)))
    with pytest.warns(Notice, match=words):
        assert fused_by(files, FOUR_SIDES) == method


def test_pairs_that_cannot_be_judged(tmp_path: Path) -> None:
    pair = tiny_pair(5, 3, (6, 6), 4.0)
    with pytest.warns(Notice, match="^not adapted: the pair is too small"):
        small = fuse(pair.hsi.numpy(), pair.msi.numpy(), estimate=False, adapt=1e3)
    assert small.attrs["hyperfuse_method"] == "universal"


def test_the_pair_itself_is_asked(files: Path) -> None:
    """Whatever it answers, it is a figure, and the method goes with it."""
    with pytest.warns(Notice, match=r"seen from 2 sides.*[+-]\d\.\d\d dB") as said:
        method = fused_by(files, 7.0)
    assert method == ("universal_2" if str(said[0].message).startswith("adapted") else "universal")


@pytest.mark.filterwarnings("always::hyperfuse.errors.Notice")
def test_command_says_what_it_did(files: Path, gain: None, capsys: pytest.CaptureFixture[str]) -> None:
    out, errors = files / "fused.tif", files / "errors.tif"
    command = ["fuse", str(files / "hsi.tif"), str(files / "msi.tif"), "-o", str(out), "--no-estimate", "--adapt", str(FOUR_SIDES)]
    assert run([*command, "--uncertainty", str(errors)]) == 0
    said = capsys.readouterr()
    assert said.err == "hyperfuse: adapted: seen from 4 sides, +0.03 dB on the pair degraded once more\n"
    assert said.out.split() == [str(out), str(errors)]
    record = open_cube(out).attrs
    assert record["hyperfuse_method"] == "universal_4" and "adapt=9.0" in record["hyperfuse_options"]
    assert open_cube(errors).attrs["hyperfuse_method"] == "uncertainty"
    judged = write_quality_report(out, files / "page.html", hsi=files / "hsi.tif", msi=files / "msi.tif").once_more
    assert judged.fused_by == "universal_4" and judged.scores is not None


@pytest.mark.parametrize(
    "wrong",
    [["0"], ["-3"], ["nan"], ["inf"], ["soon"], ["5", "--method", "fuse"], ["5", "--method", "auto"], ["5", "--weights", "folder"]],
)
def test_what_is_refused_writes_nothing(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wrong: list[str]
) -> None:
    monkeypatch.chdir(files)
    before = sorted(files.iterdir())
    assert run(["fuse", "hsi.tif", "msi.tif", "-o", "fused.tif", "--adapt", *wrong]) == 2
    assert "adapt" in capsys.readouterr().err
    assert sorted(files.iterdir()) == before


def test_a_continued_run_keeps_its_sides(files: Path, gain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "FROM_SIDES", {2: "universal_2"})
    pair, options = (files / "hsi.tif", files / "msi.tif"), {"estimate": False, "adapt": 1e3}
    expected, other = (fuse(*pair, estimate=False, method=name).values for name in ("universal_2", "universal"))
    small_tiles(monkeypatch, (32, 64))
    stop = threading.Event()
    with (
        pytest.warns(Notice, match="2 sides"),
        listening(lambda report: stop.set() if report.unit == "tiles" and report.done == 1 else None, cancel=stop),
        pytest.raises(Cancelled),
    ):
        fuse_files(*pair, files / "fused.tif", **options)

    def decide(*_: object) -> str:
        raise AssertionError("it was decided before")

    monkeypatch.setattr(prepared_scene, "adapted_method", decide)
    continued = open_cube(fuse_files(*pair, files / "fused.tif", resume=True, **options))
    assert continued.attrs["hyperfuse_method"] == "universal_2"
    assert np.abs(continued.values - expected).max() < 0.2 * np.abs(other - expected).max()


def test_lists_of_pairs_know_the_option(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("hsi,msi,output,adapt\na.tif,b.tif,c.tif,30\n", encoding="utf-8")
    (request,) = read_batch(tmp_path / "list.csv")
    assert request == FusionRequest(tmp_path / "a.tif", tmp_path / "b.tif", tmp_path / "c.tif", adapt=30.0, resume=True)
