"""The output options on the command line, as a stranger types them, rightly and wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
import xarray as xr
from affine import Affine
from tests.fusion.large_scenes import small_tiles, written_pair
from tests.processes import Program

from hyperfuse.cli.app import run
from hyperfuse.config import OutputConfig
from hyperfuse.fusion.run import fuse
from hyperfuse.io.cube import make_cube, nodata_of, physical_values
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.physics.simulate import simulate

FULL_DISK = Path(__file__).parents[1] / "cli" / "full_disk.py"
FUSE = ["--method", "gsa", "--no-estimate"]


def reference() -> xr.DataArray:
    """Smooth, 12 bands, the fifth bad; a few highlights beyond 1."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:32, 0:32] / 32
    shapes = np.stack([np.ones_like(rows), rows, columns, np.sin(7 * rows) * np.cos(5 * columns)])
    values = np.einsum("cs,syx->cyx", rng.uniform(0.02, 0.2, (12, 4)), shapes) + 0.1
    values[:, 5:7, 5:7] += 1
    return make_cube(
        values.astype(np.float32),
        wavelength_nm=np.linspace(450, 1000, 12),
        fwhm_nm=10.0,
        good=np.arange(12) != 4,
        crs="EPSG:32633",
        transform=Affine(10.0, 0, 399960.0, 0, -10.0, 5700000.0),
    )


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """reference.tif, hsi.tif, msi.tif, and the last two as plain arrays with the bands first."""
    folder = tmp_path_factory.mktemp("scenes")
    write_cube(reference(), folder / "reference.tif")
    pair = simulate(reference(), 4, "rgb+nir")
    for name, cube in (("hsi", pair.hsi), ("msi", pair.msi)):
        write_cube(cube, folder / f"{name}.tif")
        np.save(folder / f"{name}.npy", cube.values)
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.filterwarnings("always:when .* was acquired is unknown")
def test_convert_with_everything(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--bands 0.4-0.7um,1000nm,good --dtype int16 --scale-factor 1e-4 --nodata -1 --compress zstd"
    options += " --cog --overviews --stac"
    assert run(["convert", str(scenes / "reference.tif"), str(tmp_path / "small.tif"), *options.split()]) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'small.tif'}\n"
    assert (
        output.err
        == "hyperfuse: warning: when small.tif was acquired is unknown: its STAC item says when it was written\n"
    )
    assert names_in(tmp_path) == ["small.json", "small.tif"]
    read, expected = open_cube(tmp_path / "small.tif"), physical_values(reference(), bands=[0, 1, 2, 3, 5, 11])
    np.testing.assert_allclose(physical_values(read), expected, rtol=0, atol=0.51e-4)
    assert (read.dtype, nodata_of(read)) == (np.int16, -1)
    with rasterio.open(tmp_path / "small.tif") as source:
        assert source.compression.name == "zstd" and source.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
    item = json.loads((tmp_path / "small.json").read_text())
    assert item["links"][0]["href"].endswith("reference.tif") and len(item["assets"]["cube"]["bands"]) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--bands 1-50",
            "bands 1-50 of a cube of 12; expected 1 to 12, the smaller number first; numbers count from 1",
        ),
        ("--bands 2.0-2.5um", "no band between 2000 and 2500 nm in a cube of 12 bands from 450 to 1000 nm"),
        ("--bands red", "bands 'red': 'red' is not a selection; expected numbers from 1"),
        ("--dtype int12", "dtype 'int12'; expected uint8, int8"),
        ("--dtype int16", "no difference would remain; expected smaller steps; add --scale-factor 0.0001"),
        ("--dtype uint8 --scale-factor 1e-6", "of them do not fit; expected most within uint8"),
        ("--scale-factor 0", "scale factor 0; expected a number above 0"),
        (
            "--dtype uint8 --scale-factor 0.01 --nodata -1",
            "nodata -1 for uint8 values; expected a whole number from 0 to 255",
        ),
        ("--compress rar", "'rar'; expected deflate, zstd, lzw or none"),
        ("--compress lzw --co COMPRESS=ZSTD", "--compress and --co COMPRESS; expected one of the two"),
    ],
)
@pytest.mark.parametrize("command", ["convert", "fuse"])
def test_wishes_that_cannot_be_met(
    command: str, options: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before the work, in one line; nothing is written."""
    images = {"convert": ["reference.tif"], "fuse": ["hsi.tif", "msi.tif"]}[command]
    inputs, target = [str(scenes / image) for image in images], str(tmp_path / "out.tif")
    assert run([command, *inputs, *(["-o"] if command == "fuse" else []), target, *options.split()]) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1 and message in output.err
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("out.nc", "--overviews", "overviews in .nc; expected --cog or --overviews with .tif"),
        ("out.hdr", "--dtype int8 --scale-factor 0.01", "ENVI cannot hold int8; expected one of float32"),
        ("out.hdr", "--compress deflate", "--compress deflate for out.hdr; expected none with .hdr"),
        ("out.tif", "--stac", "out.json exists already; choose another name or add --overwrite"),
    ],
)
def test_targets_that_cannot_be_written(
    target: str, options: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.json").write_text("{}")
    assert (
        run(["fuse", str(scenes / "hsi.tif"), str(scenes / "msi.tif"), "-o", str(tmp_path / target), *options.split()])
        == 2
    )
    assert message in capsys.readouterr().err
    assert names_in(tmp_path) == ["out.json"]


@pytest.mark.filterwarnings("ignore:when .* was acquired is unknown")
class TestFuse:
    def test_bands_and_numbers_are_those_of_all_bands_fused(self, scenes: Path, tmp_path: Path) -> None:
        pair = [str(scenes / "hsi.tif"), str(scenes / "msi.tif")]
        assert run(["fuse", *pair, "-o", str(tmp_path / "all.tif"), *FUSE]) == 0
        options = "--bands 500-800nm,good --dtype int16 --scale-factor 0.0001 --overviews --stac"
        assert (
            run(["fuse", *pair, "-o", str(tmp_path / "some.zarr"), *FUSE, *options.replace("--overviews", "").split()])
            == 0
        )
        everything, some = open_cube(tmp_path / "all.tif"), open_cube(tmp_path / "some.zarr")
        chosen = [index for index in range(12) if 500 <= reference()["wavelength"].values[index] <= 800 and index != 4]
        assert some["wavelength"].values.tolist() == everything["wavelength"].values[chosen].tolist()
        expected = physical_values(everything, bands=chosen)
        np.testing.assert_allclose(physical_values(some), expected, rtol=0, atol=0.51e-4)
        recorded = "estimate=False bands=500-800nm,good dtype=int16 scale_factor=0.0001 stac=True"
        assert set(some.attrs["hyperfuse_options"].split()) == set(recorded.split())
        assert {key: some.attrs[f"hyperfuse_{key}"] for key in ("hsi", "msi", "method")} == {
            "hsi": "hsi.tif",
            "msi": "msi.tif",
            "method": "gsa",
        }
        item = json.loads((tmp_path / "some.json").read_text())
        assert [Path(link["href"]).name for link in item["links"]] == ["hsi.tif", "msi.tif"]
        assert item["properties"]["hyperfuse:method"] == "gsa"

    def test_clipping_is_counted(self, scenes: Path, tmp_path: Path) -> None:
        stored = {"dtype": "uint8", "scale_factor": 0.004}
        with pytest.warns(
            UserWarning, match=r"of 12288 values .* lay outside uint8 with a scale factor of 0\.004 \(0 to 1\.02\)"
        ):
            fuse(scenes / "hsi.tif", scenes / "msi.tif", tmp_path / "s.tif", method="gsa", estimate=False, **stored)
        assert open_cube(tmp_path / "s.tif").values.max() == 254

    def test_in_tiles_as_in_one_piece(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hsi, msi = written_pair(tmp_path, (20, 20), bands=6)
        stored = {"bands": "5,1-2", "dtype": "uint16", "scale_factor": 2e-5, "nodata": 7}
        known = stored | {"method": "glp", "estimate": False, "compress": "zstd", "overviews": True, "stac": True}
        whole = open_cube(fuse(hsi, msi, tmp_path / "whole.tif", **known))
        small_tiles(monkeypatch)
        tiles = open_cube(fuse(hsi, msi, tmp_path / "tiles.tif", **known))
        np.testing.assert_allclose(physical_values(tiles), physical_values(whole), rtol=0, atol=2e-4)
        for each in (whole, tiles):
            assert (each.dtype, each["scale"].values[0], nodata_of(each)) == (np.uint16, 2e-5, 7)
        items = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "tiles")]
        for item in items:
            item["properties"] = {
                key: value for key, value in item["properties"].items() if "date" not in key and key != "created"
            }
            item["id"] = item["assets"]["cube"]["href"] = ""
        assert items[0] == items[1]

    def test_more_precise_than_the_hsi(self, scenes: Path, tmp_path: Path) -> None:
        """Whole numbers in, floats out: what was computed is not rounded on its way."""
        coarse = OutputConfig(dtype="uint8", scale_factor=0.01)
        write_cube(open_cube(scenes / "hsi.tif"), tmp_path / "hsi.tif", config=coarse)
        stored = {"dtype": "float32", "scale_factor": 1}
        fuse(tmp_path / "hsi.tif", scenes / "msi.tif", tmp_path / "s.tif", method="gsa", estimate=False, **stored)
        values = open_cube(tmp_path / "s.tif").values
        assert np.abs(values * 100 - np.round(values * 100)).max() > 0.1


def test_arrays_with_the_bands_first(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = ["--hsi-band-axis", "0", "--msi-band-axis", "0"]
    assert (
        run(["fuse", str(scenes / "hsi.npy"), str(scenes / "msi.npy"), "-o", str(tmp_path / "f.npy"), *axes, *FUSE])
        == 0
    )
    assert open_cube(tmp_path / "f.npy").shape == (12, 32, 32)
    np.save(tmp_path / "r.npy", reference().values)
    capsys.readouterr()
    assert (
        run(
            [
                "evaluate",
                str(tmp_path / "f.npy"),
                str(tmp_path / "r.npy"),
                "--reference-band-axis",
                "0",
                "--scale",
                "4",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["psnr_db"] > 20
    np.save(tmp_path / "f0.npy", open_cube(tmp_path / "f.npy").values)
    both = ["--fused-band-axis", "0", "--reference-band-axis", "0"]
    assert run(["evaluate", str(tmp_path / "f0.npy"), str(tmp_path / "r.npy"), *both, "--scale", "4"]) == 0
    matrix = tmp_path / "response.npy"
    np.save(matrix, np.eye(12)[[1, 5, 9]])
    simulate = ["simulate", str(tmp_path / "r.npy"), str(tmp_path / "pair"), "--scale", "4", "--srf", str(matrix)]
    assert run([*simulate, "--band-axis", "0"]) == 0
    assert open_cube(tmp_path / "pair" / "hsi.tif").shape == (12, 8, 8)
    assert (
        run(
            [
                "fuse",
                str(scenes / "hsi.npy"),
                str(scenes / "msi.npy"),
                "-o",
                str(tmp_path / "g.npy"),
                "--hsi-band-axis",
                "3",
            ]
        )
        == 2
    )
    assert "band axis 3; expected 0, 1 or 2" in capsys.readouterr().err


def test_a_full_disk_while_overviews_or_the_item_are_written(tmp_path: Path) -> None:
    """The image fits, its overviews do not; or a table of thousands of bands does not fit into the item."""
    rng = np.random.default_rng(0)
    write_cube(make_cube(rng.integers(0, 255, (1, 257, 140), dtype=np.uint8)), tmp_path / "image.npz")
    write_cube(make_cube(np.zeros((600, 1, 1), np.uint8)), tmp_path / "bands.npz")
    (tmp_path / "out").mkdir()
    old = write_cube(reference().isel(band=[0]), tmp_path / "out" / "s.tif", config=OutputConfig(dtype="float64"))
    before = old.read_bytes()
    commands = [
        ["--quiet", "convert", str(tmp_path / "image.npz"), str(old), "--overwrite", "--overviews"],
        ["--quiet", "convert", str(tmp_path / "bands.npz"), str(old), "--overwrite", "--stac"],
        ["--quiet", "convert", str(tmp_path / "image.npz"), str(tmp_path / "out" / "t.tif")],
    ]
    process = Program(FULL_DISK, json.dumps(commands))
    out, err = process.communicate()
    assert process.returncode == 0, err
    full = f"hyperfuse: no space left while writing {old}; nothing was left behind; free space or choose another disk\n"
    assert json.loads(out.splitlines()[-1]) == [[2, full], [2, full], [0, ""]]
    assert names_in(tmp_path / "out") == ["s.tif", "t.tif"] and old.read_bytes() == before
