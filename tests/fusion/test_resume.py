"""Runs that end early: killed, interrupted, cancelled, out of disk; and runs that find another one at work."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.fusion.large_scenes import KNOWN, small_tiles, written_pair
from tests.processes import Program

from hyperfuse import fuse, open_cube, write_cube
from hyperfuse.errors import Cancelled, CubeWriteError, OptionError
from hyperfuse.fusion import engine, kept
from hyperfuse.fusion.kept import WorkFolder
from hyperfuse.io.atomic import lock_file
from hyperfuse.progress import ProgressReport, listening

OLD = b"an older result"
OPTIONS = ("--no-estimate", "--method", "glp", "--overwrite")


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of the same request then write the same bytes."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written_pair(tmp_path_factory.mktemp("pair"), (36, 36), bands=4)


def started(pair: tuple[Path, Path], target: Path, *options: str, seconds: float = 1.0, limit: int = 0) -> Program:
    script = Path(__file__).with_name("slow_tiles.py")
    return Program(script, seconds, limit, "fuse", *pair, "-o", target, *OPTIONS, *options)


def wait_for_tiles(target: Path, count: int, process: Program) -> None:
    folder, end = WorkFolder(target), time.monotonic() + 300
    while len(folder.finished()) < count:
        assert process.returncode is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def expected(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str = ".tif") -> Path:
    small_tiles(monkeypatch)
    return fuse(*pair, tmp_path / f"expected{suffix}", method="glp", **KNOWN)


def stop_after(stop: threading.Event, tiles: int) -> Callable[[ProgressReport], None]:
    return lambda report: stop.set() if report.unit == "tiles" and report.done == tiles else None


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_killed_run_leaves_the_old_file_and_is_continued_to_the_same_bytes(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "fused.tif"
    target.write_bytes(OLD)
    first = started(pair, target)
    wait_for_tiles(target, 2, first)
    first.send_signal(signal.SIGSTOP)
    with pytest.raises(CubeWriteError, match="is being written by another run"):
        fuse(*pair, target, method="glp", overwrite=True, **KNOWN)
    first.kill()
    first.communicate()
    assert target.read_bytes() == OLD
    tiles = {path.name: path.stat().st_mtime_ns for path in WorkFolder(target).path.glob("*.tile")}
    assert 2 <= len(tiles) < 9

    last = min(tiles)
    damaged = WorkFolder(target).path / last
    damaged.write_bytes(damaged.read_bytes()[:-5])
    resumed = started(pair, target, "--resume", seconds=0.0)
    out, err = resumed.communicate()
    assert resumed.returncode == 0, err
    assert out.strip() == str(target)
    assert target.read_bytes() == expected(pair, tmp_path, monkeypatch).read_bytes()
    assert hidden(tmp_path) == []


def test_the_bytes_do_not_depend_on_what_else_gdal_caches(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = expected(pair, tmp_path, monkeypatch)
    # A block that a tile leaves half full would be written now and again when the next tile comes.
    monkeypatch.setattr(engine, "CACHE_BYTES", 10_000)
    assert fuse(*pair, tmp_path / "fused.tif", method="glp", **KNOWN).read_bytes() == whole.read_bytes()


def test_ctrl_c_says_what_is_left_and_how_to_go_on(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "fused.zarr"
    process = started(pair, target)
    wait_for_tiles(target, 1, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "tiles are kept in" in err
    assert "--resume continues" in err
    assert "Traceback" not in err
    assert not target.exists()
    assert hidden(tmp_path) == [".fused.zarr.tiles"]

    finished = len(WorkFolder(target).finished())
    small_tiles(monkeypatch)
    heard: list[ProgressReport] = []
    with listening(heard.append):
        fuse(*pair, target, method="glp", resume=True, **KNOWN)
    assert next(report.done for report in heard if report.unit == "tiles") == finished
    np.testing.assert_array_equal(open_cube(target).values, open_cube(expected(pair, tmp_path, monkeypatch)).values)


def test_a_listener_stops_between_tiles(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch)
    target, stop = tmp_path / "fused.tif", threading.Event()
    with pytest.raises(Cancelled, match="3 of 9 tiles are kept"), listening(stop_after(stop, 3), cancel=stop):
        fuse(*pair, target, method="glp", **KNOWN)
    assert not target.exists()
    with pytest.warns(UserWarning, match="3 finished tiles of an interrupted run .* --resume would keep them"):
        fuse(*pair, target, method="glp", **KNOWN)
    assert target.exists()
    assert hidden(tmp_path) == []


def test_stopped_before_the_first_tile_nothing_is_left(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch)
    stop = threading.Event()
    with pytest.raises(Cancelled), listening(stop_after(stop, 0), cancel=stop):
        fuse(*pair, tmp_path / "fused.tif", method="glp", **KNOWN)
    assert list(tmp_path.iterdir()) == []


def test_only_the_same_run_is_continued(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch)
    target, stop = tmp_path / "fused.tif", threading.Event()
    with pytest.raises(Cancelled), listening(stop_after(stop, 2), cancel=stop):
        fuse(*pair, target, method="glp", **KNOWN)
    with pytest.raises(OptionError, match="--resume with another method"):
        fuse(*pair, target, method="gsa", resume=True, **KNOWN)
    with pytest.raises(OptionError, match="--resume with another dtype"):
        fuse(*pair, target, method="glp", resume=True, dtype="int32", **KNOWN)
    with pytest.raises(OptionError, match="--resume with another msi"):
        fuse(pair[0], write_cube(open_cube(pair[1]), tmp_path / "msi.tif"), target, method="glp", resume=True, **KNOWN)
    with pytest.raises(OptionError, match="raise --ram"):
        fuse(*pair, target, method="glp", resume=True, ram_gb=0.5, **KNOWN)
    fuse(*pair, target, method="glp", resume=True, **KNOWN)
    with pytest.warns(UserWarning, match="no interrupted run"):
        fuse(*pair, target, method="glp", resume=True, overwrite=True, **KNOWN)


def test_a_change_mask_is_there_when_the_run_has_ended(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch)
    target, mask, stop = tmp_path / "fused.tif", tmp_path / "mask.tif", threading.Event()
    mask.write_bytes(OLD)
    with pytest.raises(CubeWriteError, match="exists already"):
        fuse(*pair, target, method="glp", change_mask=mask, resume=True, **KNOWN)
    assert mask.read_bytes() == OLD
    mask.unlink()
    with pytest.raises(Cancelled), listening(stop_after(stop, 2), cancel=stop):
        fuse(*pair, target, method="glp", change_mask=mask, **KNOWN)
    assert not mask.exists()
    fuse(*pair, target, method="glp", change_mask=mask, resume=True, **KNOWN)
    assert open_cube(mask).shape[0] == 1 and target.exists()


@pytest.mark.parametrize(("suffix", "limit"), [(".tif", 60_000), (".nc", 60_000), (".tif", 2_000)])
def test_a_full_disk_is_one_clear_line(pair: tuple[Path, Path], tmp_path: Path, suffix: str, limit: int) -> None:
    target = tmp_path / f"fused{suffix}"
    target.write_bytes(OLD)
    process = started(pair, target, seconds=0.0, limit=limit)
    _, err = process.communicate()
    assert process.returncode == 2, err
    # On a busy machine the bar of the preparation is shown, too.
    (line,) = (line for line in err.splitlines() if not line.startswith("Preparing"))
    assert "no space left" in line
    assert target.read_bytes() == OLD
    assert hidden(tmp_path) in ([], [f".fused{suffix}.tiles"])
    assert not list(tmp_path.glob(".*/*.partial"))


def test_the_lock_file_of_a_killed_run_is_no_lock(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Also where the run comes back under another host name, as containers do."""
    target = tmp_path / "fused.tif"
    lock_file(target).write_text("1\nelsewhere\n")
    fuse(*pair, target, method="glp", **KNOWN)
    assert hidden(tmp_path) == []


def test_what_lies_beside_an_input_is_none_but_its_content_counts(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch)
    own = [write_cube(open_cube(path), tmp_path / path.name, compress="none") for path in pair]
    target, stop = tmp_path / "fused.tif", threading.Event()
    with pytest.raises(Cancelled), listening(stop_after(stop, 2), cancel=stop):
        fuse(*own, target, method="glp", **KNOWN)
    own[0].with_suffix(".log").write_text("a log of this run")
    before = own[1].stat()
    content = bytearray(own[1].read_bytes())
    content[-9] ^= 1
    own[1].write_bytes(content)
    os.utime(own[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(OptionError, match="--resume with another msi"):
        fuse(*own, target, method="glp", resume=True, **KNOWN)
    content[-9] ^= 1
    own[1].write_bytes(content)
    os.utime(own[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    fuse(*own, target, method="glp", resume=True, **KNOWN)


def test_an_input_that_is_a_folder_of_any_size_is_compared_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PIECES", 4)
    monkeypatch.setattr(kept, "PIECE_BYTES", 64)
    product, target = tmp_path / "product", tmp_path / "product" / "fused.tif"
    product.mkdir()
    for index in range(10):
        (product / f"{index}.dat").write_bytes(bytes(1000))
    found = kept._digest(product, target)
    WorkFolder(target).path.mkdir()
    (WorkFolder(target).path / "00000.tile").write_bytes(b"a tile")
    (product / "run.log").write_bytes(b"a log")
    lock_file(target).touch()
    assert kept._digest(product, target) == found
    changed, before = product / "3.dat", (product / "3.dat").stat()
    changed.write_bytes(bytes(32) + b"\1" + bytes(967))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept._digest(product, target) != found
    moved = product.rename(tmp_path / "elsewhere")
    changed = moved / changed.name
    changed.write_bytes(bytes(1000))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    (moved / "4.dat").write_bytes(bytes(999))
    assert kept._digest(moved, target) != found
