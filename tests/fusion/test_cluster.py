"""The same tiles on several processes; one of them dies; nobody answers."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from tests.fusion.large_scenes import KNOWN, small_tiles, written_pair
from tests.processes import Program, all_end

from hyperfuse import fuse, open_cube
from hyperfuse.cli.app import run
from hyperfuse.errors import OptionError
from hyperfuse.fusion import engine
from hyperfuse.fusion.engine import FusedTile, Tile
from hyperfuse.fusion.kept import WorkFolder

pytest.importorskip("distributed")

# A scheduler and a worker that can be killed.
CLUSTER = """
import time
from distributed import LocalCluster
cluster = LocalCluster(
    n_workers=1, threads_per_worker=1, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address=":0"
)
print(cluster.scheduler_address, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written_pair(tmp_path_factory.mktemp("pair"), (48, 48), bands=6)


def test_two_workers_write_what_one_process_does_though_one_is_killed(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    small_tiles(monkeypatch)
    alone = fuse(*pair, tmp_path / "alone.tif", **KNOWN)
    target, killed = tmp_path / "fused.tif", []

    def kill_one_half_way() -> None:
        while not WorkFolder(target).finished():
            time.sleep(0.02)
        killed.append(multiprocessing.active_children()[0])
        killed[0].kill()

    killer = threading.Thread(target=kill_one_half_way, daemon=True)
    killer.start()
    # Workers that fork are there at once; those of the next test start the usual way.
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        fuse(*pair, target, workers=2, **KNOWN)
    killer.join(timeout=60)
    assert killed
    assert target.read_bytes() == alone.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.tif", "fused.tif"]


def test_a_tile_that_is_damaged_on_its_way_is_computed_again(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    small_tiles(monkeypatch)
    alone = fuse(*pair, tmp_path / "alone.tif", **KNOWN)
    fetched, load = [], engine.load_tile

    def damaged(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        if not fetched:
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        fetched.append(load(path, shape, dtype))
        return fetched[-1]

    monkeypatch.setattr(engine, "load_tile", damaged)
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        there = fuse(*pair, tmp_path / "fused.tif", workers=1, **KNOWN)
    assert [each is None for each in fetched] == [True, *[False] * 8]
    assert there.read_bytes() == alone.read_bytes()


def test_a_tile_that_a_worker_cannot_store_takes_the_other_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "keep_freed_memory", lambda: None)

    class Job:
        def run(self, tile: Tile) -> FusedTile:
            return FusedTile(np.full((2, *tile.shape), tile.index), values=7)

    tile = Tile(3, slice(0, 2), slice(0, 5))
    there, none = (engine._run_in_worker(Job(), tile, folder) for folder in (tmp_path, tmp_path / "gone"))  # type: ignore[arg-type]
    assert there.in_file and there.block.size == 0 and there.values == none.values == 7
    found = engine.load_tile(tmp_path / "00003.tile", none.block.shape, none.block.dtype)
    np.testing.assert_array_equal(found, none.block)


def test_a_killed_run_is_continued_to_the_same_bytes_and_its_workers_end(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    target, script = tmp_path / "fused.tif", Path(__file__).with_name("slow_tiles.py")
    options = ["-o", target, "--no-estimate", "--method", "glp", "--workers", "2"]
    first = Program(script, 60, 0, "fuse", *pair, *options)
    end = time.monotonic() + 300
    while not WorkFolder(target).finished():
        assert first.returncode is None
        assert time.monotonic() < end
        time.sleep(0.02)
    helpers = [each.pid for each in psutil.Process(first.pid).children(recursive=True)]
    first.kill()
    first.communicate()
    assert not target.exists()
    assert 0 < len(WorkFolder(target).finished()) < 9
    small_tiles(monkeypatch)
    alone = fuse(*pair, tmp_path / "alone.tif", method="glp", **KNOWN)
    fuse(*pair, target, method="glp", resume=True, **KNOWN)
    assert target.read_bytes() == alone.read_bytes()
    assert helpers and all_end(helpers)


def test_a_running_cluster(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    small_tiles(monkeypatch, (64, 128))
    alone = open_cube(fuse(*pair, tmp_path / "alone.zarr", method="glp", **KNOWN))
    # Workers in threads of this process: what travels to them is still packed and unpacked.
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        command = ["fuse", *map(str, pair), "-o", str(tmp_path / "fused.zarr"), "--no-estimate", "--method", "glp"]
        assert run([*command, "--cluster", cluster.scheduler_address]) == 0
    np.testing.assert_array_equal(open_cube(tmp_path / "fused.zarr").values, alone.values)


def test_a_scheduler_that_dies(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, script = tmp_path / "fused.tif", Path(__file__).with_name("slow_tiles.py")
    cluster = Program(CLUSTER)
    while not (address := cluster.written().strip()):
        assert cluster.returncode is None, cluster.communicate()
        time.sleep(0.02)
    options = ["-o", target, "--no-estimate", "--method", "glp", "-q"]
    program = Program(script, 3, 0, "fuse", *pair, *options, "--cluster", address)
    while not WorkFolder(target).finished():
        assert program.returncode is None, program.communicate()
        time.sleep(0.02)
    cluster.kill()
    cluster.communicate()
    _, messages = program.communicate()
    assert program.returncode == 2
    (line,) = messages.splitlines()
    assert "stopped answering" in line and "of 9 tiles are kept" in line and "--resume continues" in line
    small_tiles(monkeypatch)
    fuse(*pair, target, method="glp", resume=True, **KNOWN)
    assert target.exists()


def test_no_cluster_there(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hyperfuse.fusion import engine as cluster

    small_tiles(monkeypatch)
    monkeypatch.setattr(cluster, "SECONDS_TO_CONNECT", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense"):
        with pytest.raises(OptionError, match=f"no Dask scheduler at {address}"):
            fuse(*pair, tmp_path / "fused.tif", method="glp", cluster=address, **KNOWN)
    assert list(tmp_path.iterdir()) == []
    for options, words in (
        (["--workers", "0"], "at least 1"),
        (["--workers", "2", "--cluster", "tcp://a:1"], "one of the two"),
    ):
        assert run(["fuse", *map(str, pair), "-o", str(tmp_path / "fused.tif"), *options]) == 2
        assert words in capsys.readouterr().err
