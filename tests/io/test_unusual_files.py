"""Files of unusual names, kinds and fill values, and what viewers find in ours."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
import scipy.io
import xarray as xr
from affine import Affine
from spectral.io import envi

from hyperfuse.cli.app import run
from hyperfuse.errors import CubeFileError
from hyperfuse.io.cube import make_cube, nodata_of, physical_values
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.hdf5 import NETCDF_FILL
from hyperfuse.io.summary import summarise

PLACE = {"crs": 32633, "transform": Affine(10, 0, 5e5, 0, -10, 5e6)}
PDS_LABEL = """PDS_VERSION_ID = PDS3
RECORD_TYPE = FIXED_LENGTH
RECORD_BYTES = 24
FILE_RECORDS = 15
^IMAGE = ("FRT_07_IF163L.IMG", 1)
OBJECT = IMAGE
  LINES = 5
  LINE_SAMPLES = 6
  SAMPLE_TYPE = PC_REAL
  SAMPLE_BITS = 32
  BANDS = 3
  BAND_STORAGE_TYPE = LINE_INTERLEAVED
END_OBJECT = IMAGE
END
"""


def values() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 999, (5, 6, 3), dtype=np.int16)


@pytest.mark.parametrize("suffix", [".fla", ".hyspex", ".rfl"])
def test_envi_data_with_any_suffix(suffix: str, tmp_path: Path) -> None:
    envi.save_image(str(tmp_path / "scene.hdr"), values(), ext="img", interleave="bsq")
    (tmp_path / "scene.img").rename(tmp_path / f"scene{suffix}")
    (tmp_path / "scene.txt").write_text("notes")
    for name in ("scene.hdr", f"scene{suffix}"):
        np.testing.assert_array_equal(open_cube(tmp_path / name).values, values().transpose(2, 0, 1))


def test_names_in_capital_letters(tmp_path: Path) -> None:
    """M3 of Chandrayaan-1 is delivered so."""
    envi.save_image(str(tmp_path / "m3.hdr"), values(), ext="img", metadata={"wavelength": [460.99, 500.92, 540.84]})
    for suffix in ("hdr", "img"):
        (tmp_path / f"m3.{suffix}").rename(tmp_path / f"M3G20090204T113444_V01_RFL.{suffix.upper()}")
    for suffix in ("HDR", "IMG"):
        with pytest.warns(UserWarning, match="taken as nanometres"):
            cube = open_cube(tmp_path / f"M3G20090204T113444_V01_RFL.{suffix}")
        assert cube["wavelength"].values[0] == 460.99
        np.testing.assert_array_equal(cube.values, values().transpose(2, 0, 1))


def test_an_image_with_a_label(tmp_path: Path) -> None:
    """CRISM of the Mars Reconnaissance Orbiter is delivered so."""
    stored = values().astype(np.float32).transpose(0, 2, 1)
    (tmp_path / "FRT_07_IF163L.IMG").write_bytes(stored.tobytes())
    (tmp_path / "FRT_07_IF163L.LBL").write_text(PDS_LABEL.replace("\n", "\r\n"))
    for suffix in (".IMG", ".LBL"):
        cube = open_cube(tmp_path / f"FRT_07_IF163L{suffix}")
        np.testing.assert_array_equal(cube.values, values().transpose(2, 0, 1))
    label = PDS_LABEL.replace("RECORD_TYPE", "INSTRUMENT_ID = CRISM\nRECORD_TYPE", 1)
    (tmp_path / "FRT_07_IF163L.LBL").write_text(label)
    assert nodata_of(open_cube(tmp_path / "FRT_07_IF163L.IMG")) == 65535


def test_wavelengths_in_a_header_of_esri(tmp_path: Path) -> None:
    (tmp_path / "scene.bil").write_bytes(values().transpose(0, 2, 1).tobytes())
    (tmp_path / "scene.hdr").write_text(
        "BYTEORDER I\nLAYOUT BIL\nNROWS 5\nNCOLS 6\nNBANDS 3\nNBITS 16\nPIXELTYPE SIGNEDINT\n"
        "WAVELENGTHS\n899.59\n900.84\n902.09\nWAVELENGTHS_END\n"
    )
    with pytest.warns(UserWarning, match="taken as nanometres"):
        cube = open_cube(tmp_path / "scene.bil")
    assert cube["wavelength"].values.tolist() == [899.59, 900.84, 902.09]
    np.testing.assert_array_equal(cube.values, values().transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("table.tab", b"1 2 3\n", "--wavelengths FILE"),
        ("scene.raw", bytes(100), "need an ENVI header"),
        ("scene.xyz", bytes(100), "convert it"),
    ],
)
def test_what_is_not_understood_is_not_called_damaged(name: str, content: bytes, remedy: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CubeFileError, match="is not understood") as caught:
        open_cube(tmp_path / name)
    assert remedy in str(caught.value) and "fetch" not in str(caught.value)


def test_a_spectral_library_is_no_image(tmp_path: Path) -> None:
    envi.save_image(str(tmp_path / "s.hdr"), values()[:, :, :1], ext="img")
    header = (tmp_path / "s.hdr").read_text()
    (tmp_path / "s.hdr").write_text(
        header.replace("ENVI Standard", "ENVI Spectral Library") + "file type = ENVI Spectral Library\n"
    )
    with pytest.raises(CubeFileError, match="spectral library"):
        open_cube(tmp_path / "s.hdr")


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u2", "i4"])
def test_default_fill_of_netcdf(dtype: str, tmp_path: Path) -> None:
    fill = NETCDF_FILL[dtype]
    stored = np.ones((2, 3, 4), dtype)
    stored[:, 1, 2] = fill
    with h5py.File(tmp_path / "s.nc", "w") as file:
        file.create_dataset("cube", data=stored, fillvalue=fill)
        file.create_dataset("plain", data=stored[0, 0])
    cube = open_cube(tmp_path / "s.nc", "cube", 0)
    assert nodata_of(cube) == fill
    assert np.isnan(physical_values(cube)).sum() == 2
    if dtype[0] != "u":
        with scipy.io.netcdf_file(tmp_path / "old.nc", "w") as old:
            for name, size in zip(("band", "y", "x"), (2, 3, 4), strict=True):
                old.createDimension(name, size)
            old.createVariable("cube", np.dtype(dtype), ("band", "y", "x"))[:] = stored
        if dtype != "i8":
            assert np.isnan(physical_values(open_cube(tmp_path / "old.nc"))).sum() == 2


def test_missing_pixels_at_the_edges_count() -> None:
    """A scene of a satellite is tilted within its image."""
    rows, columns = np.mgrid[:400, :400]
    inside = np.abs(rows - 200) + np.abs(columns - 200) < 200
    cube = make_cube(np.where(inside, 1000, 0).astype(np.uint16)[None].repeat(40, axis=0), nodata=0)
    assert summarise(cube).sampled_missing_share == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("options", [{}, {"cog": True}])
def test_viewers_find_red_green_and_blue(options: dict[str, bool], tmp_path: Path) -> None:
    cube = make_cube(np.ones((5, 20, 30), np.uint16), wavelength_nm=[2200, 471, 549, 652, 820], **PLACE)
    with rasterio.open(write_cube(cube, tmp_path / "s.tif", **options)) as written:
        assert [mark.name for mark in written.colorinterp] == ["undefined", "blue", "green", "red", "undefined"]
    header = write_cube(cube, tmp_path / "s.hdr").read_text()
    assert "default bands = {4, 3, 2}" in header
    assert "B002 471.0 nm" in header
    assert open_cube(tmp_path / "s.hdr")["band_name"].values.tolist() == [""] * 5


def test_no_colours_are_invented(tmp_path: Path) -> None:
    infrared = make_cube(np.ones((3, 20, 30), np.uint16), wavelength_nm=[900, 1600, 2200], **PLACE)
    with rasterio.open(write_cube(infrared, tmp_path / "s.tif")) as written:
        assert "red" not in [mark.name for mark in written.colorinterp]
    assert "default bands" not in write_cube(infrared, tmp_path / "s.hdr").read_text()


def test_an_output_without_crs_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cube(make_cube(np.ones((3, 4, 5), np.uint8)), tmp_path / "s.npz")
    assert run(["convert", str(tmp_path / "s.npz"), str(tmp_path / "s.tif")]) == 0
    assert capsys.readouterr().err.count("has no CRS") == 1
    assert open_cube(tmp_path / "s.tif").rio.crs is None
    placed = make_cube(np.ones((3, 4, 5), np.uint8), **PLACE)
    write_cube(placed, tmp_path / "p.npz")
    assert run(["convert", str(tmp_path / "p.npz"), str(tmp_path / "p.tif")]) == 0
    assert "CRS" not in capsys.readouterr().err
    assert isinstance(open_cube(tmp_path / "p.tif"), xr.DataArray)
