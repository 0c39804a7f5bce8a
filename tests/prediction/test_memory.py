"""The knob holds: peak resident memory of a process, whatever the scene; and what the plan says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hyperfuse import fuse, open_cube
from hyperfuse.cli.app import run
from prediction.large_scenes import written_pair

GIGABYTE = 1e9
RAM = 0.75


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """In one piece it would take a gigabyte."""
    return written_pair(tmp_path_factory.mktemp("pair"), (180, 180), bands=80)


def peak_bytes(command: list[str]) -> int:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_peak_memory_stays_below_the_limit(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "fused.hdr"
    command = [sys.executable, "-m", "hyperfuse", "fuse", *map(str, pair), "-o", str(target), "--no-estimate"]
    assert peak_bytes([*command, "--ram", str(RAM), "--method", "local_fuse"]) < RAM * GIGABYTE
    whole = fuse(*pair, method="local_fuse", estimate=False)
    differences = np.abs(open_cube(target).values.astype(int) - whole.values)
    assert differences.max() <= 1e-3 * np.ptp(whole.values) + 1


def test_the_plan_of_a_dry_run(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fuse", *map(str, pair), "-o", str(tmp_path / "fused.tif"), "--no-estimate", "--method", "glp", "--dry-run"]
    assert run([*command, "--ram", str(RAM)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.replace("fused by", "method").splitlines())
    assert lines["HSI"].startswith("180 x 180 pixels")
    assert lines["MSI"].startswith("720 x 720 pixels")
    assert lines["scale"] == "4"
    assert lines["method"] == "glp"
    assert " pixels, which look 5 HSI pixels around them; " in lines["tiles"]
    assert f" of {RAM} GB at the peak" in lines["memory"]
    assert "MPix/s" in lines["time"]
    assert lines["output"].startswith("720 x 720 pixels, 80 bands of int16: 82.9 MB before compression, and as much for tiles")
    assert lines["disk"].endswith(" free")
    assert run([*command, "--ram", "20"]) == 0
    assert "1, the whole scene" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ram", "words"), [("0", "a number above 0"), ("nan", "a number above 0"), ("0.4", "the program itself needs")]
)
def test_too_little_memory(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], ram: str, words: str
) -> None:
    assert run(["fuse", *map(str, pair), "-o", str(tmp_path / "fused.tif"), "--ram", ram]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
