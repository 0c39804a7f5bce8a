"""`fuse --uncertainty`: standard deviations on the fused grid, in the HSI's physical unit, larger where the error is
larger.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tests.fusion.large_scenes import small_tiles
from tests.methods.tiny_pairs import tiny_pair

from hyperfuse import open_cube, write_cube
from hyperfuse.cli.app import run
from hyperfuse.io.cube import make_cube
from hyperfuse.methods.catalogue import fuse_arrays


@pytest.fixture
def files(tmp_path):
    pair = tiny_pair(8, 3, (14, 15), 4.0, snr_db=40)
    hsi = make_cube(pair.hsi.numpy().astype(np.float32), good=np.arange(8) != 5)
    write_cube(hsi, tmp_path / "hsi.tif")
    write_cube(make_cube(pair.msi.numpy().astype(np.float32)), tmp_path / "msi.tif")
    return tmp_path


def test_expected_errors_follow_true_ones():
    pair = tiny_pair(20, 3, (24, 24), 4.0)
    fused = fuse_arrays(pair.hsi, pair.msi, pair.observation, "universal")
    expected = fuse_arrays(pair.hsi, pair.msi, pair.observation, uncertainty=True)
    true = (fused - pair.reference).square().mean(0).sqrt().flatten()
    assert bool((expected > 0).all())
    assert spearmanr(true, expected.square().mean(0).sqrt().flatten()).statistic > 0.3
    assert 0.2 < float(true.square().mean().sqrt() / expected.square().mean().sqrt()) < 5


def test_a_handful_of_pixels():
    pair = tiny_pair(6, 3, (4, 4), 4)
    expected = fuse_arrays(pair.hsi, pair.msi, pair.observation, uncertainty=True)
    assert expected.shape == pair.reference.shape and bool(torch.isfinite(expected).all())


def test_without_an_msi_it_is_what_interpolation_loses():
    pair = tiny_pair(6, 3, (8, 9), 4)
    with pytest.warns(UserWarning, match="constant"):
        expected = fuse_arrays(pair.hsi, torch.ones_like(pair.msi), pair.observation, uncertainty=True)
    with pytest.warns(UserWarning, match="constant"):
        fused = fuse_arrays(pair.hsi, torch.ones_like(pair.msi), pair.observation)
    true = (fused - pair.reference).square().mean().sqrt()
    assert expected.shape == fused.shape
    assert 0.1 < float(true / expected.square().mean().sqrt()) < 10


def test_command(files):
    command = ["fuse", str(files / "hsi.tif"), str(files / "msi.tif"), "-o", str(files / "fused.tif")]
    assert run([*command, "--uncertainty", str(files / "errors.tif")]) == 0
    fused, errors = open_cube(files / "fused.tif"), open_cube(files / "errors.tif")
    assert errors.shape == fused.shape
    assert errors.attrs["hyperfuse_method"] == "uncertainty"
    assert np.isnan(errors.values[5]).all()  # only interpolated: nothing is known
    assert (np.delete(errors.values, 5, axis=0) > 0).all()


def test_tiles_agree_with_the_whole(files, monkeypatch):
    command = ["fuse", str(files / "hsi.tif"), str(files / "msi.tif"), "--no-estimate", "-o"]
    assert run([*command, str(files / "fused.tif"), "--uncertainty", str(files / "errors.tif")]) == 0
    small_tiles(monkeypatch, (32, 32))
    assert run([*command, str(files / "tiled.tif"), "--uncertainty", str(files / "tiled_errors.tif")]) == 0
    whole, tiled = open_cube(files / "errors.tif").values, open_cube(files / "tiled_errors.tif").values
    assert np.array_equal(np.isnan(whole), np.isnan(tiled))
    assert np.nanmax(np.abs(whole - tiled)) < 1e-3 * np.nanmax(whole)


@pytest.mark.parametrize("wrong", [["--method", "fuse"], ["--consistency"], ["--uncertainty", "fused.tif"]])
def test_what_is_refused_writes_nothing(files, capsys, monkeypatch, wrong):
    monkeypatch.chdir(files)
    before = sorted(path.name for path in files.iterdir())
    command = ["fuse", "hsi.tif", "msi.tif", "-o", "fused.tif", "--uncertainty", "errors.tif", *wrong]
    assert run(command) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in files.iterdir()) == before


def test_an_existing_file_is_seen_before_the_fusion(files, capsys):
    (files / "errors.tif").write_bytes(b"")
    command = ["fuse", str(files / "hsi.tif"), str(files / "msi.tif"), "-o", str(files / "fused.tif")]
    assert run([*command, "--uncertainty", str(files / "errors.tif")]) == 2
    assert not (files / "fused.tif").exists()
