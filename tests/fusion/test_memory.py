"""The knob holds: peak resident memory of a process, whatever the scene; and what the plan says of it."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
import scipy.io
import torch
import xarray as xr
import zarr
from affine import Affine
from tests.fusion.large_scenes import written_pair
from tests.peak_memory import STATUS, own_peak_bytes, peak_bytes

from hyperfuse import fuse, make_cube, open_cube, write_cube
from hyperfuse.cli.app import run
from hyperfuse.fusion import plan
from hyperfuse.fusion.engine import MOST_THREADS, bounded_pools
from hyperfuse.fusion.plan import MemoryPlan, unpacking_bytes
from hyperfuse.io.files import WRITABLE
from hyperfuse.methods.catalogue import DEFAULT

GIGABYTE = 1e9
RAM = 0.75
UNUSUAL = ["fortran.npy", "version5.mat", "version73.mat", "classic.nc"]

measurable = pytest.mark.skipif(not STATUS.exists(), reason="the system does not say how much memory a process had")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """In one piece it would not fit, says the plan."""
    return written_pair(tmp_path_factory.mktemp("pair"), (96, 96), bands=80)


@measurable
@pytest.mark.parametrize(("method", "coarse", "bands"), [("gsa", (128, 128), 120), (DEFAULT, (64, 96), 80)])
def test_peak_memory_stays_below_the_limit(tmp_path: Path, method: str, coarse: tuple[int, int], bands: int) -> None:
    """On a machine that seems to have many cores: more tiles at once, more threads. In one piece gsa takes 1.2 GB."""
    pair, target = written_pair(tmp_path, coarse, bands), tmp_path / "fused.hdr"
    command = ["fuse", *map(str, pair), "-o", str(target), "--no-estimate", "--method", method, "--ram", str(RAM)]
    assert peak_bytes(tmp_path / "peak.txt", *command, cores=32) < RAM * GIGABYTE
    whole = fuse(*pair, method=method, estimate=False)
    differences = np.abs(open_cube(target).values.astype(int) - whole.values)
    assert differences.max() <= 1e-3 * np.ptp(whole.values) + 1


def _write(path: Path, cube: xr.DataArray) -> None:
    kind, bands_last = path.stem, cube.values.transpose(1, 2, 0)
    if kind == "fortran":
        np.save(path, np.asfortranarray(bands_last))
    elif kind == "version5":
        scipy.io.savemat(path, {"cube": bands_last})
    elif kind == "classic":
        cube.to_dataset(name="cube").drop_vars("band_name").to_netcdf(path, engine="scipy")
    else:
        write_cube(cube, path, creation_options={"VERSION": "7.3"} if kind == "version73" else {})


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be set back")
@pytest.mark.parametrize("name", [f"cube{suffix}" for suffix in WRITABLE] + UNUSUAL)
def test_a_window_takes_little_memory_in_every_format(name: str, tmp_path: Path) -> None:
    """The plan counts windows, so no reader may hold more of a file than it returns; rows cross bands stored last."""
    side, bands = 1500, 8
    values = np.broadcast_to(np.arange(side, dtype=np.float32), (bands, side, side))
    cube = make_cube(values, crs="EPSG:32633", transform=Affine(10, 0, 0, 0, -10, 0))
    _write(tmp_path / name, cube)
    opened = open_cube(tmp_path / name)
    # What is imported and unpacked for the first window is not the window's.
    _ = opened[:, 0, 0].values
    Path("/proc/self/clear_refs").write_text("5")
    before = own_peak_bytes()
    # The plan counts GDAL's cache by itself.
    with rasterio.Env(GDAL_CACHEMAX=4_000_000):
        for place in np.s_[:, 700:764], np.s_[:, :, 700:764]:
            np.testing.assert_array_equal(opened[place].values, values[place])
    assert own_peak_bytes() - before < values.nbytes / 3


def _write_in_one_block(path: Path, values: np.ndarray) -> None:
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("cube", data=values, chunks=values.shape, compression="gzip", compression_opts=1)
    elif path.suffix == ".zarr":
        zarr.open_group(str(path), mode="w").create_array("cube", data=values, chunks=values.shape)
    else:
        block = {"INTERLEAVE": "PIXEL", "TILED": "NO", "BLOCKYSIZE": str(values.shape[1]), "ZLEVEL": "1"}
        write_cube(values, path, creation_options=block)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be set back")
@pytest.mark.parametrize("suffix", [".h5", ".zarr", ".tif"])
def test_a_large_compressed_block_is_counted(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.broadcast_to(np.arange(1800, dtype=np.float32), (4, 1800, 1800)).copy()
    msi = tmp_path / f"msi{suffix}"
    _write_in_one_block(msi, values)
    opened = open_cube(msi)
    _ = opened[:, 0, 0].values
    Path("/proc/self/clear_refs").write_text("5")
    before = own_peak_bytes()
    with rasterio.Env(GDAL_CACHEMAX=4_000_000):
        np.testing.assert_array_equal(opened[:, 5:15].values, values[:, 5:15])
    counted = unpacking_bytes(opened)
    assert own_peak_bytes() - before < counted == plan.BLOCK_COPIES * values.nbytes
    write_cube(np.ones((9, 450, 450), np.float32), tmp_path / "hsi.tif")
    command = ["fuse", str(tmp_path / "hsi.tif"), str(msi), "-o", str(tmp_path / "fused.tif"), "--dry-run"]
    assert run([*command, "--ram", "0.5"]) == 2
    assert "for images stored in blocks of 52 MB" in capsys.readouterr().err


def test_what_libraries_take_does_not_grow_with_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    with bounded_pools():
        assert asked == [MOST_THREADS]
    assert asked == [MOST_THREADS, 64]
    monkeypatch.undo()
    assert torch.get_num_threads() == threads


def test_as_many_tiles_at_once_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryPlan((64, 64), tile_bytes=100, budget=350)
    for cores, at_once in ((1, 1), (2, 2), (32, 3)):
        monkeypatch.setattr(plan, "_processors", lambda cores=cores: cores)
        assert memory.tiles_at_once == at_once


def test_the_plan_of_a_dry_run(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "fuse",
        *map(str, pair),
        "-o",
        str(tmp_path / "fused.tif"),
        "--no-estimate",
        "--method",
        "glp",
        "--dry-run",
    ]
    assert run([*command, "--ram", "0.6"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.replace("fused by", "method").splitlines())
    assert lines["HSI"].startswith("96 x 96 pixels")
    assert lines["MSI"].startswith("384 x 384 pixels")
    assert lines["scale"] == "4"
    assert lines["method"] == "glp"
    assert " pixels with a halo of 5 HSI pixels; " in lines["tiles"]
    assert " of 0.6 GB at the peak" in lines["memory"]
    assert "MPix/s" in lines["time"]
    assert lines["output"].startswith(
        "384 x 384 pixels, 80 bands of int16: 23.6 MB before compression, and as much for tiles"
    )
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
