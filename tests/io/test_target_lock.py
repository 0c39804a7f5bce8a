"""One run per target, and what a killed one left beside it goes when the next one comes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.io.random_cubes import assert_nothing_lost, sample_cube
from tests.processes import Program

from hyperfuse.errors import CubeWriteError
from hyperfuse.io import atomic
from hyperfuse.io.atomic import lock_file, make_work_folder, target_lock
from hyperfuse.io.files import created_cube, open_cube, write_cube

# Writes half of a cube to the target, says so, and waits.
HALF_A_RUN = """
import sys, time
from tests.io.random_cubes import sample_cube
from hyperfuse.config import OutputConfig
from hyperfuse.io.files import created_cube
cube = sample_cube()
with created_cube(sys.argv[1], cube, OutputConfig(overwrite=True)) as writer:
    writer.write(slice(0, 3), slice(0, 5), cube.values[:, :3])
    print("half", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def half_a_run(tmp_path: Path) -> Program:
    process = Program(HALF_A_RUN, tmp_path / "s.tif")
    while process.written() != "half\n":
        assert process.returncode is None, process.communicate()
        time.sleep(0.02)
    return process


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_run_is_refused_and_a_killed_one_is_cleared_away(half_a_run: Program, tmp_path: Path) -> None:
    target = tmp_path / "s.tif"
    during = names_in(tmp_path)
    with pytest.raises(CubeWriteError, match=r"s\.tif is being written by another run; wait for it or choose"):
        write_cube(sample_cube(), target)
    write_cube(sample_cube(), tmp_path / "other.tif")
    assert set(names_in(tmp_path)) == {*during, "other.tif"}
    half_a_run.send_signal(signal.SIGKILL)
    half_a_run.communicate()
    assert set(names_in(tmp_path)) == {*during, "other.tif"}
    write_cube(sample_cube(), target)
    assert names_in(tmp_path) == ["other.tif", "s.tif"]
    assert_nothing_lost(open_cube(target), sample_cube())


def test_only_folders_of_this_target_that_hold_nobodys_files(tmp_path: Path) -> None:
    dead, kept = (
        ".s.tif.abcdefgh.partial",
        [
            ".s.tif.b.abcdefgh.partial",
            ".other.tif.abcdefgh.partial",
            ".s.tif.mine.partial",
            "s.tif.abcdefgh.partial",
        ],
    )
    for name in (dead, *kept):
        (tmp_path / name / "made").mkdir(parents=True)
        (tmp_path / name / "made" / "s.tif").write_text("half")
    write_cube(sample_cube(), tmp_path / "s.tif")
    assert names_in(tmp_path) == sorted([*kept, "s.tif"])


def test_a_step_of_the_same_run_may_hold_it_again_but_no_other_thread(tmp_path: Path) -> None:
    target, refusals = tmp_path / "s.tif", []

    def elsewhere() -> None:
        try:
            write_cube(sample_cube(), target)
        except CubeWriteError as error:
            refusals.append(str(error))

    with target_lock(target), target_lock(target):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        write_cube(sample_cube(), target)
        assert names_in(tmp_path) == [".s.tif.lock", "s.tif"]
    assert len(refusals) == 1 and "is being written by another run" in refusals[0]
    assert names_in(tmp_path) == ["s.tif"]
    with created_cube(tmp_path / "t.tif", sample_cube()) as writer:
        writer.write(slice(0, 6), slice(0, 5), sample_cube().values)
        assert ".t.tif.lock" in names_in(tmp_path)
    assert names_in(tmp_path) == ["s.tif", "t.tif"]


def test_a_path_from_here_is_the_same_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with target_lock(tmp_path / "s.tif"):
        write_cube(sample_cube(), "s.tif")
    assert names_in(tmp_path) == ["s.tif"]


def test_writing_on_a_system_without_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where every file is flushed by itself."""
    monkeypatch.setattr(atomic, "MOST_FLUSHED", 0)
    monkeypatch.delattr(os, "sync")
    write_cube(sample_cube(), tmp_path / "s.zarr")
    assert_nothing_lost(open_cube(tmp_path / "s.zarr"), sample_cube())


def test_long_names_that_begin_alike(tmp_path: Path) -> None:
    first, second = (tmp_path / f"{'long ' * 40}{end}.tif" for end in "ab")
    assert lock_file(first) != lock_file(second) and len(lock_file(first).name) < 100
    dead = make_work_folder(first)
    write_cube(sample_cube(), second)
    assert dead.exists()
    write_cube(sample_cube(), first)
    assert names_in(tmp_path) == sorted([first.name, second.name])


@pytest.mark.filterwarnings("ignore:when s")
@pytest.mark.parametrize("name", ["s.tif", "s.hdr", "s.npy", "s.zarr"])
def test_killed_at_any_rename_the_target_is_the_old_or_the_new_one(name: str, tmp_path: Path) -> None:
    number, script = 0, Path(__file__).with_name("killed_publishing.py")
    ended = False
    while not ended:
        number += 1
        for moment in ("before", "after"):
            folder = tmp_path / f"{number} {moment}"
            folder.mkdir()
            target = write_cube(sample_cube(), folder / name, stac=True)
            if name == "s.tif":
                # Statistics of the old file, which would be wrong for the new one.
                (folder / "s.tif.aux.xml").write_text("<PAMDataset></PAMDataset>")
            process = Program(script, target, number, moment)
            process.communicate()
            ended = process.returncode == 0
            assert ended or process.returncode == -signal.SIGKILL
            is_old = np.array_equal(open_cube(target).values, sample_cube().values)
            assert_nothing_lost(open_cube(target), sample_cube() if is_old else sample_cube(seed=1))
            write_cube(sample_cube(seed=2), target, stac=True, overwrite=True)
            assert_nothing_lost(open_cube(target), sample_cube(seed=2))
            assert not [each for each in names_in(folder) if each.startswith(".") or each.endswith(".xml")]
    # A Zarr store and its STAC item are two renames; other formats have more files.
    assert number > 2
