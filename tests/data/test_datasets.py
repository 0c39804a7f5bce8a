"""The catalogue: files named like the official ones are found and read exactly; missing ones are explained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.scene_files import random_cube, write_cave, write_envi, write_mat, write_mat73, write_raster

from hyperfuse.cli.app import run
from hyperfuse.data.datasets import DATASETS, dataset_named, find_file, list_datasets, load_scenes, scenes_folder
from hyperfuse.errors import BandError, CubeFileError, OptionError

OWN_WAVELENGTHS = np.linspace(362.5, 1018.25, 128).round(2)


def write_paviac(folder, cube):
    write_mat(folder / "Pavia.mat", pavia=cube)


def write_paviau(folder, cube):
    write_mat(folder / "downloads" / "PaviaU.mat", paviaU=cube)
    write_mat(folder / "downloads" / "PaviaU_gt.mat", paviaU_gt=np.zeros((12, 10)))


def write_chikusei_mat(folder, cube):
    write_mat73(folder / "Chikusei_MATLAB" / "HyperspecVNIR_Chikusei_20140729.mat", "chikusei", cube.astype(np.float64))


def write_chikusei_envi(folder, cube):
    write_envi(folder / "HyperspecVNIR_Chikusei_20140729.hdr", cube, ".bsq", OWN_WAVELENGTHS)
    write_envi(folder / "HyperspecVNIR_Chikusei_20140729_Ground_Truth.hdr", cube[:1], ".bsq")


def write_botswana(folder, cube):
    write_mat(folder / "Botswana.mat", Botswana=cube)


def write_washington(folder, cube):
    write_raster(folder / "Hyperspectral_Project" / "dc.tif", cube.astype(np.int16), "GTiff")


def write_houston(folder, cube):
    more = np.concatenate([cube, np.full((2, *cube.shape[1:]), 9999, cube.dtype)])
    write_envi(folder / "2018IEEE_Contest" / "FullHSIDataset" / "20170218_UH_CASI_S4_NAD83.hdr", more, ".pix")


def write_loukia(folder, cube):
    write_raster(folder / "HyRANK_satellite" / "TrainingSet" / "Loukia.tif", cube.astype(np.int16), "GTiff")
    write_raster(folder / "HyRANK_satellite" / "TrainingSet" / "Loukia_GT.tif", cube[:1].astype(np.int16), "GTiff")


SINGLE = [
    ("PaviaC", write_paviac),
    ("PaviaU", write_paviau),
    ("Chikusei", write_chikusei_mat),
    ("Chikusei", write_chikusei_envi),
    ("Botswana", write_botswana),
    ("WDC", write_washington),
    ("Houston", write_houston),
    ("Loukia", write_loukia),
]


@pytest.mark.parametrize(
    ("name", "write"), SINGLE, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_official_files_are_read_exactly(tmp_path, name, write):
    cube = random_cube(name)
    write(tmp_path, cube)
    (scene,) = load_scenes(name, tmp_path)
    np.testing.assert_array_equal(scene.stored, cube)
    assert scene.stored.dtype.itemsize == 2
    assert (scene.name, scene.dataset, scene.sensor) == (name.lower(), name, DATASETS[name].sensor)
    expected = OWN_WAVELENGTHS if write is write_chikusei_envi else DATASETS[name].wavelength_nm
    np.testing.assert_allclose(scene.wavelength_nm, expected)
    assert 0 <= scene.patch(slice(None), slice(None)).min() <= scene.patch(slice(None), slice(None)).max() == 1


def test_cave_is_read_from_its_pngs_exactly(tmp_path):
    cubes = write_cave(tmp_path, ["flowers", "balloons", "watercolors", "lemons", "lemon_slices"])
    scenes = load_scenes("cave", tmp_path)
    assert [scene.name for scene in scenes] == [
        "cave_balloons",
        "cave_flowers",
        "cave_lemon_slices",
        "cave_lemons",
        "cave_watercolors",
    ]
    for scene in scenes:
        np.testing.assert_array_equal(scene.stored, cubes[scene.name])
        np.testing.assert_array_equal(scene.wavelength_nm, np.arange(400, 701, 10))


def test_cave_with_a_band_missing(tmp_path):
    write_cave(tmp_path, ["balloons"])
    next(tmp_path.rglob("balloons_ms_17.png")).unlink()
    with pytest.raises(CubeFileError, match=r"lacks balloons_ms_17\.png"):
        load_scenes("CAVE", tmp_path)


def test_harvard_is_one_list_over_both_folders(tmp_path):
    cube = random_cube("Harvard", dtype=np.float64) / 4096
    for place, image in (("CZ_hsdb", "imgb2"), ("CZ_hsdb", "img1"), ("CZ_hsdbi", "imga3")):
        write_mat(tmp_path / place / f"{image}.mat", ref=cube, lbl=np.ones((12, 10)))
    scenes = load_scenes("Harvard", tmp_path)
    assert [scene.name for scene in scenes] == ["harvard_img1", "harvard_imga3", "harvard_imgb2"]
    np.testing.assert_array_equal(scenes[0].stored, cube.astype(np.float32))
    assert [scene.name for scene in load_scenes("Harvard", tmp_path / "CZ_hsdbi")] == ["harvard_imga3"]


@pytest.mark.parametrize("name", DATASETS)
def test_a_missing_data_set_says_file_folder_and_where_to_get_it(tmp_path, name):
    with pytest.raises(CubeFileError) as caught:
        load_scenes(name, tmp_path)
    dataset, said = DATASETS[name], str(caught.value)
    assert all(text in said for text in (dataset.files[0].pattern, str(tmp_path), dataset.page, "HYPERFUSE_DATA"))
    with pytest.raises(CubeFileError, match="no folder"):
        load_scenes(name, tmp_path / "absent")


def test_a_file_of_fewer_bands_is_another_file(tmp_path):
    write_washington(tmp_path, random_cube("WDC", bands=150))
    with pytest.raises(BandError, match="150 bands; expected the 191 of WDC"):
        load_scenes("WDC", tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_entries_are_complete(name):
    dataset = DATASETS[name]
    assert dataset_named(name.upper()) is dataset
    assert len(dataset.wavelength_nm) == dataset.bands
    assert 350 < dataset.wavelength_nm.min() < dataset.wavelength_nm.max() < 2550
    assert dataset.page.startswith("http") and dataset.licence and dataset.wavelength_source and dataset.fetch


def test_names_are_compared_without_case_and_shallow_files_come_first(tmp_path):
    write_mat(tmp_path / "deep" / "PAVIAU.MAT", paviaU=random_cube("PaviaU"))
    write_mat(tmp_path / "paviau.mat", paviaU=random_cube("PaviaU"))
    (found,) = list_datasets([DATASETS["PaviaU"]], tmp_path)
    assert found.paths == (tmp_path / "paviau.mat",)


def test_scenes_command(tmp_path, capsys, monkeypatch):
    write_washington(tmp_path, random_cube("WDC"))
    write_cave(tmp_path, ["balloons", "beads"])
    assert run(["scenes", "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0]: line for line in lines if line[:1].isalpha()}
    assert shown["WDC"].split()[1] == "yes" and "HYDICE" in shown["WDC"] and "191" in shown["WDC"]
    assert "2 of 32" in shown["CAVE"] and shown["Loukia"].split()[1] == "no"
    assert all(any(dataset.page in line for line in lines) for dataset in DATASETS.values())
    monkeypatch.setenv("HYPERFUSE_DATA", str(tmp_path))
    assert run(["scenes", "wdc"]) == 0
    text = capsys.readouterr().out
    assert "dc.tif" in text and "2473.2" in text and "1280" in text


def test_scenes_command_for_machines(tmp_path, capsys):
    write_washington(tmp_path, random_cube("WDC"))
    assert run(["scenes", "--json", "--folder", str(tmp_path)]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(entries) == list(DATASETS)
    assert entries["WDC"]["found"] == 1 and entries["WDC"]["paths"][0].endswith("dc.tif")
    assert entries["Botswana"]["found"] == 0 and len(entries["Botswana"]["wavelength_nm"]) == 145


def test_scenes_command_typed_wrongly(capsys, tmp_path):
    assert run(["scenes", "Pavia"]) == 2
    assert "one of CAVE, Harvard, PaviaC" in capsys.readouterr().err
    assert run(["scenes", "--folder", str(tmp_path / "absent")]) == 0
    assert "is not a folder" in capsys.readouterr().out


def test_one_variable_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("HYPERFUSE_DATA", raising=False)
    assert scenes_folder() == Path("scenes")
    monkeypatch.setenv("HYPERFUSE_SCENES", "former")
    with pytest.warns(FutureWarning, match="'HYPERFUSE_SCENES' is now called 'HYPERFUSE_DATA'"):
        assert scenes_folder() == Path("former")
    assert scenes_folder(tmp_path) == tmp_path
    monkeypatch.setenv("HYPERFUSE_DATA", "current")
    with pytest.raises(OptionError, match="'HYPERFUSE_DATA' only"):
        scenes_folder()
    monkeypatch.delenv("HYPERFUSE_SCENES")
    assert scenes_folder() == Path("current")


def test_a_file_is_found_here_first_then_in_the_folder(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "camera.csv").touch()
    monkeypatch.chdir(tmp_path)
    assert find_file("camera.csv", Path("data")) == Path("data/camera.csv")
    (tmp_path / "camera.csv").touch()
    assert find_file("camera.csv", Path("data")) == Path("camera.csv")
    with pytest.raises(CubeFileError, match=r"no file lens.csv; expected one here or in data; .*HYPERFUSE_DATA"):
        find_file("lens.csv", Path("data"))


def test_the_scene_of_the_demo():
    pytest.importorskip("tensorly")
    (scene,) = load_scenes("demo")
    assert (scene.name, scene.sensor, scene.bands, scene.size) == ("indian_pines", "AVIRIS", 200, (145, 145))


def test_without_the_extra_the_demo_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorly.datasets", None)
    with pytest.raises(CubeFileError, match=r"not installed; expected tensorly.*pip install 'hyperfuse\[demo\]'"):
        load_scenes("demo")
