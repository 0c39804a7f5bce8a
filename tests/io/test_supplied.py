"""Wavelengths and fill values that the user supplies for files without them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import hyperfuse
from hyperfuse.benchmarking.cases import choose_scenes, read_pairs
from hyperfuse.cli.app import run
from hyperfuse.config import BenchmarkConfig, InputConfig, PairInputConfig
from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.cube import make_cube, nodata_of
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.wavelengths import supplied, supplied_to
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.scene_sets import gather_scenes
from hyperfuse.viewer.images import open_images

TABLES = {
    "one_column.txt": "450\n550\n650\n",
    "numbered.csv": "band,wavelength,fwhm\n1,450,10\n2,550,11\n3,650,12\n",
    "micrometres.csv": "0.45,0.010\n0.55,0.011\n0.65,0.012\n",
    "usgs.tab": "# Downloaded 2014-04-25\nBand\tAverage Wavelength (nm)\tFWHM (nm)\tResolution (m)\tFlag\n"
    "B1\t450\t10\t30\tX\nB2\t550\t11\t30\t\nB3\t650\t12\t30\t\n",
    "header.hdr": "ENVI\nbands = 3\nfwhm = {10, 11, 12}\nwavelength = {450,\n 550, 650}\nwavelength units = nm\n",
}


def cube(bands: int = 3) -> xr.DataArray:
    return make_cube(np.random.default_rng(0).random((bands, 12, 16), dtype=np.float32))


@pytest.mark.parametrize("name", TABLES)
def test_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TABLES[name])
    result = supplied(cube(), tmp_path / name)
    np.testing.assert_allclose(result["wavelength"], [450, 550, 650])
    if name != "one_column.txt":
        np.testing.assert_allclose(result["fwhm"], [10, 11, 12])


def test_other_cubes_and_lists(tmp_path: Path) -> None:
    np.save(tmp_path / "list.npy", [0.45, 0.55, 0.65])
    other = write_cube(make_cube(np.ones((3, 2, 2)), wavelength_nm=[450, 550, 650]), tmp_path / "other.npz")
    for given in (tmp_path / "list.npy", other, [450, 550, 650], "450:650", "0.45:0.65"):
        np.testing.assert_allclose(supplied(cube(), given)["wavelength"], [450, 550, 650])


@pytest.mark.parametrize(
    ("sensor", "bands", "first"),
    [
        ("Sentinel-2A", 13, 442.7),
        ("sentinel 2b", 12, 442.3),
        ("Sentinel-2C", 4, 489.0),
        ("Sentinel-2A:B8A,B2", 2, 864.7),
        ("Landsat-8", 7, 442.96),
        ("Hyperion", 242, 355.59),
        ("Hyperion", 198, 426.82),
    ],
)
def test_sensors(sensor: str, bands: int, first: float) -> None:
    assert supplied(cube(bands), sensor)["wavelength"].values[0] == first


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("nothing\n")
    for given, error, message in (
        ([450, 550], BandError, "2 wavelengths for the 3 bands of the cube"),
        ("Sentinel-2A", OptionError, "for 3 bands"),
        ("no_such_sensor", OptionError, "which is not a file"),
        (tmp_path / "empty.txt", CubeFileError, "no column of wavelengths"),
    ):
        with pytest.raises(error, match=message):
            supplied(cube(), given)


def test_a_declared_fill_value_stays() -> None:
    assert nodata_of(supplied(make_cube(np.ones((1, 2, 2), np.int16)), nodata=-99)) == -99
    assert nodata_of(supplied(make_cube(np.ones((1, 2, 2), np.int16), nodata=0), nodata=-99)) == 0


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "hsi.npy", np.random.default_rng(0).integers(1, 99, (16, 14, 12)).astype(np.int16))
    options = ["--wavelengths", "400:950", "--nodata-in", "7"]
    assert run(["info", str(tmp_path / "hsi.npy"), "--json", *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["wavelength_nm"][-1] == 950 and shown["nodata"] == 7
    assert run(["convert", str(tmp_path / "hsi.npy"), str(tmp_path / "hsi.tif"), *options]) == 0
    assert open_cube(tmp_path / "hsi.tif")["wavelength"].values[0] == 400
    assert (
        run(["simulate", str(tmp_path / "hsi.npy"), str(tmp_path / "pair"), "--scale", "2", "--srf", "rgb", *options])
        == 0
    )
    assert open_cube(tmp_path / "pair" / "hsi.tif")["wavelength"].values[-1] == 950


def test_fusing() -> None:
    scene = cube(6)
    pair = hyperfuse.simulate(scene, 2, np.eye(2, 6))
    options = {"method": "bicubic", "estimate": False}
    fused = hyperfuse.fuse(pair.hsi, pair.msi, wavelengths="450:700", msi_wavelengths=[500, 600], **options)
    assert fused["wavelength"].values.tolist() == [450, 500, 550, 600, 650, 700]


def test_everything_that_opens_files_takes_them(tmp_path: Path) -> None:
    path = write_cube(make_cube(np.random.default_rng(0).integers(1, 99, (6, 32, 32))), tmp_path / "scene.npy")
    opened = open_cube(path, wavelengths="400:900", nodata_in=7)
    assert opened["wavelength"].values[-1] == 900 and nodata_of(opened) == 7
    with pytest.raises(BandError, match=r"2 wavelengths for the 6 bands of .*scene\.npy"):
        open_cube(path, wavelengths=[400, 900])
    config = PairInputConfig(wavelengths="400:900", msi_wavelengths="500:600", nodata_in=7)
    shown = open_images({"fused": path, "msi": path}, config).images
    assert [shown[role].cube["wavelength"].values[0] for role in ("fused", "msi")] == [400, 500]
    benchmark = BenchmarkConfig(**config.given())
    (scored,) = choose_scenes([str(path)], ["rgb"], inputs=benchmark)
    assert scored.scene.nodata == 7 and scored.reference()["wavelength"].values[-1] == 900
    (pair,) = read_pairs([f"{path},{path}"], benchmark)
    assert pair.reference["wavelength"].values[0] == 400 and pair.msi["wavelength"].values[0] == 500
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        f'name = "a"\nnetwork = {{preset = "ssa-small"}}\nlength = {{steps = 1}}\nsplit = {{patch_size = 16}}\n'
        f'[[scenes]]\nsource = "{path}"\nuse = "train"\n'
    )
    wanted = InputConfig(wavelengths="400:900", nodata_in=7)
    gathered = gather_scenes(read_experiment(experiment, inputs=wanted), with_cases=False)
    assert gathered.buckets[0].scenes[0].wavelength_nm[-1] == 900


def test_what_was_fused_keeps_its_own_wavelengths() -> None:
    known = make_cube(np.ones((2, 4, 4)), wavelength_nm=[450, 550])
    cubes = supplied_to({"hsi": cube(), "fused": known, "reference": cube()}, PairInputConfig(wavelengths="500:700"))
    assert [each["wavelength"].values[0] for each in cubes.values()] == [500, 450, 500]
