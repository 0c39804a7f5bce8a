"""Scenes: what is kept of a file, and patches of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.data.scene_files import random_cube, write_mat, write_mat73

from hyperfuse.data import scenes as scene_module
from hyperfuse.data.datasets import load_scenes
from hyperfuse.data.scenes import Scene, read_scene, scene_from_cube, scene_unit
from hyperfuse.errors import BandError, CubeFileError, OptionError, ValueRangeError
from hyperfuse.io.cube import make_cube

HOLES = [(np.nan, np.float32, None), (np.inf, np.float32, None), (-99, np.int16, -99.0)]
UNKNOWN = [("CAV", "did you mean CAVE"), ("no/such/*.tif", "check the path"), ("nowhere", "Loukia")]


@pytest.fixture
def generator():
    return np.random.default_rng(5)


def test_a_patch_is_what_was_stored_over_the_unit_clipped(generator):
    stored = generator.integers(-50, 1200, (5, 20, 30)).astype(np.int16)
    scene = Scene("s", "sensor", stored, 1000.0)
    patch = scene.patch(slice(3, 11), slice(20, 30))
    assert patch.shape == (5, 8, 10) and patch.dtype == torch.float32
    np.testing.assert_allclose(patch, np.clip(stored[:, 3:11, 20:30] / 1000.0, 0, 1), rtol=1e-6)
    patch.zero_()
    assert stored[:, 3:11, 20:30].any()
    assert (scene.bands, scene.size) == (5, (20, 30))


@pytest.mark.parametrize(("hole", "dtype", "nodata"), HOLES)
def test_what_is_missing_becomes_the_mean_of_its_band(generator, hole, dtype, nodata):
    stored = generator.integers(1, 100, (3, 8, 8)).astype(dtype)
    stored[1, 2, 3] = hole
    stored[2, :4] = hole
    scene = Scene("s", "sensor", stored, 100.0, nodata=nodata)
    assert scene.missing_pixels is not None and scene.missing_pixels.sum() == 4 * 8
    patch = scene.patch(slice(0, 4), slice(0, 8))
    assert patch.isfinite().all()
    present = np.delete(stored[1, :4].ravel(), 2 * 8 + 3)
    assert patch[1, 2, 3] == pytest.approx(present.astype(float).mean() / 100, rel=1e-6)
    assert (patch[2] == 0).all(), "nothing known of this band here"
    np.testing.assert_allclose(patch[0], stored[0, :4] / 100, rtol=1e-6)


def test_nothing_missing_costs_nothing():
    assert Scene("s", "sensor", np.ones((1, 4, 4), np.float32), 1.0).missing_pixels is None
    assert Scene("s", "sensor", np.ones((1, 4, 4), np.uint16), 1.0).missing_pixels is None


def test_the_unit_ignores_highlights_and_holes(generator):
    stored = generator.uniform(0, 0.5, (4, 100, 100)).astype(np.float32)
    expected = np.quantile(stored, 0.9995)
    stored[0, 0, 0], stored[0, 0, 1] = 1e6, np.nan
    assert scene_unit(stored) == pytest.approx(expected, rel=1e-3)
    assert scene_unit(np.array([[[5, 7, -9]]], np.int16), nodata=7.0) == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize("values", [0, -1, np.nan])
def test_a_scene_without_light_is_refused(values):
    with pytest.raises(ValueRangeError):
        scene_unit(np.full((1, 3, 3), values, np.float32))


def test_bad_bands_and_bands_without_value_are_dropped(generator):
    values = generator.uniform(0.1, 1, (5, 6, 6)).astype(np.float32)
    values[3] = np.nan
    values[4] = 0
    good = [True, False, True, True, True]
    cube = make_cube(values, wavelength_nm=[400, 500, 600, 700, 800], fwhm_nm=[1, 2, 3, 4, 5], good=good)
    scene = scene_from_cube(cube, "s", "sensor")
    np.testing.assert_array_equal(scene.stored, values[[0, 2]])
    np.testing.assert_array_equal(scene.wavelength_nm, [400, 600])
    np.testing.assert_array_equal(scene.fwhm_nm, [1, 3])


def test_a_scene_of_nothing_is_refused():
    with pytest.raises(BandError, match="flagged bad"):
        scene_from_cube(make_cube(np.ones((2, 3, 3)), good=[False, False]), "s", "sensor")
    with pytest.raises(ValueRangeError, match="no band with a value"):
        scene_from_cube(make_cube(np.zeros((2, 3, 3))), "s", "sensor")


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (np.array([1.0, 65535.0]), np.uint16),
        (np.array([-3.0, 32767.0]), np.int16),
        (np.array([0.5, 3.0]), np.float32),
        (np.array([-3.0, 40000.0]), np.float32),
        (np.array([1, 2], np.int64), np.uint16),
        (np.array([1, 70000], np.int32), np.float32),
        (np.array([1, 200], np.uint8), np.uint8),
    ],
)
def test_values_take_the_smallest_type_that_holds_them(values, kept):
    scene = scene_from_cube(make_cube(np.broadcast_to(values, (2, 3, 2))), "s", "sensor")
    assert scene.stored.dtype == kept
    np.testing.assert_array_equal(scene.stored, np.broadcast_to(values, (2, 3, 2)))


def test_bands_of_different_scaling_become_physical(generator):
    stored = generator.integers(1, 100, (2, 5, 5)).astype(np.int16)
    scene = scene_from_cube(make_cube(stored, scale=[1.0, 0.1], offset=[0.0, 2.0]), "s", "sensor")
    np.testing.assert_allclose(scene.stored, np.stack([stored[0], stored[1] * 0.1 + 2]), rtol=1e-6)
    same = scene_from_cube(make_cube(stored, scale=0.0001), "s", "sensor")
    assert same.stored.dtype == np.int16


@pytest.mark.parametrize("writer", ["npy", "mat", "mat73"])
def test_large_files_are_read_in_parts(tmp_path, monkeypatch, writer):
    cube = random_cube("CAVE", bands=19, dtype=np.float64)
    if writer == "npy":
        path = tmp_path / "s.npy"
        np.save(path, cube.transpose(1, 2, 0))
    else:
        path = tmp_path / "s.mat"
        write_mat(path, cube=cube) if writer == "mat" else write_mat73(path, "cube", cube)
    monkeypatch.setattr(scene_module, "READ_AT_ONCE_BYTES", 100)
    np.testing.assert_array_equal(read_scene(path).stored, cube)


@pytest.fixture
def folder(tmp_path):
    for name, bands in (("b", 4), ("a", 7)):
        cube = random_cube("CAVE", bands=bands)
        np.savez(
            tmp_path / f"{name}.npz",
            cube=cube.transpose(1, 2, 0),
            wavelength_nm=np.arange(bands) + 400.0,
            sensor="camera",
        )
    write_mat(tmp_path / "two.mat", first=random_cube("CAVE", bands=5), second=random_cube("CAVE", bands=6))
    (tmp_path / "notes.txt").write_text("nothing")
    return tmp_path


def test_a_pattern_a_file_and_a_variable(folder):
    scenes = load_scenes(str(folder / "*.npz"))
    assert [(scene.name, scene.bands, scene.sensor, scene.dataset) for scene in scenes] == [
        ("a", 7, "camera", ""),
        ("b", 4, "camera", ""),
    ]
    np.testing.assert_array_equal(scenes[1].wavelength_nm, [400, 401, 402, 403])
    assert [scene.name for scene in load_scenes(str(folder / "b.npz"))] == ["b"]
    assert load_scenes(str(folder / "two.mat"), variable="second")[0].bands == 6


def test_a_folder_is_read_whole_or_says_what_is_wrong_with_it(folder):
    with pytest.raises(CubeFileError, match=r"two\.mat"):
        load_scenes(str(folder))
    (folder / "two.mat").unlink()
    assert [scene.name for scene in load_scenes(str(folder))] == ["a", "b"]


def test_relative_paths_are_looked_for_in_the_folder_of_scenes(folder, monkeypatch):
    monkeypatch.setenv("HYPERFUSE_DATA", str(folder))
    assert [scene.name for scene in load_scenes("a.npz")] == ["a"]
    assert [scene.name for scene in load_scenes("[ab].npz")] == ["a", "b"]
    assert len(load_scenes("*.npz", folder)) == 2


@pytest.mark.parametrize(("source", "said"), UNKNOWN)
def test_unknown_sources(source, said, tmp_path):
    with pytest.raises(OptionError, match=said):
        load_scenes(source, tmp_path)


def test_a_folder_without_cubes(tmp_path):
    with pytest.raises(CubeFileError, match="no cubes in"):
        load_scenes(str(tmp_path))
