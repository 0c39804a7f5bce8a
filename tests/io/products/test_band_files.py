"""Folders of single-band rasters, copies of Landsat metadata of all times, and the oldest Sentinel-2 L2A."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from tests.io.products.multispectral_writers import write_landsat, write_sentinel2
from tests.io.products.written import counts, write_tif

from hyperfuse.errors import CubeFileError
from hyperfuse.io.cube import physical_values
from hyperfuse.io.files import open_cube, open_explained
from hyperfuse.physics.srf_curves import named_curves

METRES = {"B02": 10, "B03": 10, "B04": 10, "B08": 10, "B05": 20, "B8A": 20, "B11": 20, "B01": 60}


def write_bands(folder: Path, name: str) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    images = {}
    for seed, (band, metres) in enumerate(METRES.items()):
        images[band] = counts(seed, (1, 120 // metres, 180 // metres), 1, 9000, np.uint16)
        write_tif(folder / name.format(band), images[band], Affine(metres, 0, 650010.0, 0, -metres, 5340000.0))
    return images


@pytest.mark.parametrize(
    ("name", "sensor", "blue_nm"),
    [
        ("S2A_MSIL2A_20170613T101031_0_45_{}.tif", "Sentinel-2A", 492.7),
        ("S2B_MSIL2A_20170613T101031_0_45_{}.tif", "Sentinel-2B", 492.3),
        ("{}.tif", "Sentinel-2A", 492.7),
        ("2025-03-01-00-00_2025-03-01-23-59_Sentinel-2_L2A_{}_(Raw).tiff", "Sentinel-2A", 492.7),
        ("S2C_patch_{}.tif", "Sentinel-2C", 489.0),
        ("HLS.S30.T32UPU.2022205T101601.v2.0.{}.tif", "Sentinel-2A", 492.7),
        ("openEO_2022-06-01Z_{}.tif", "Sentinel-2A", 492.7),
    ],
)
def test_bands_are_stacked_by_name(name: str, sensor: str, blue_nm: float, tmp_path: Path) -> None:
    images = write_bands(tmp_path / "patch", name)
    write_tif(tmp_path / "patch" / "cloud_mask.tif", counts(9, (1, 12, 18), 0, 2, np.uint8))
    cube, notes = open_explained(tmp_path / "patch")
    assert cube["band_name"].values.tolist() == ["B1", "B2", "B3", "B4", "B5", "B8", "B8A", "B11"]
    assert cube.shape == (8, 12, 18) and cube.attrs["sensor"] == sensor
    assert cube["wavelength"].values[1] == blue_nm
    np.testing.assert_array_equal(cube.values[1], images["B02"][0])
    np.testing.assert_array_equal(cube.values[0], images["B01"][0].repeat(6, axis=0).repeat(6, axis=1))
    assert "B1, B5, B8A, B11 are repeated" in notes["bands"]
    fine = open_cube(tmp_path / "patch", "B2,B3,B4,B8")
    assert fine["band_name"].values.tolist() == ["B2", "B3", "B4", "B8"]


def test_bands_of_unknown_sensors_have_no_wavelengths(tmp_path: Path) -> None:
    for band in (1, 2, 10):
        write_tif(tmp_path / f"scene_band_{band}.tif", counts(band, (1, 5, 6), 0, 99, np.uint8))
    cube = open_cube(tmp_path)
    assert cube["band_name"].values.tolist() == ["B1", "B2", "B10"]
    assert np.isnan(cube["wavelength"]).all() and cube["good"].all()


@pytest.mark.parametrize(
    ("name", "sensor"),
    [
        ("LC08_L2SP_193026_20220719_20220726_02_T1_{}_B{}.TIF", "Landsat-8"),
        ("LC81930262013200LGN00_{}_B{}.TIF", "Landsat-8"),
        ("LT05_L2SP_193026_19920719_20220726_02_T1_{}_B{}.TIF", "Landsat-5"),
        ("LE07_L2SP_193026_20020719_20220726_02_T1_{}_B{}.TIF", "Landsat-7"),
        ("HLS.L30.T32UPU.2022205T101601.v2.0_{}_B{}.tif", "Landsat-8"),
    ],
)
def test_landsat_without_its_metadata(name: str, sensor: str, tmp_path: Path) -> None:
    thermal = "6" if sensor == "Landsat-5" else "10"
    numbers = ["1", "2", "3"] if sensor == "Landsat-7" else ["1", "2", "3", thermal]
    for number in numbers:
        kind = "ST" if number == thermal else "SR"
        write_tif(tmp_path / name.format(kind, number), counts(0, (1, 5, 6), 1, 99, np.uint16))
    write_tif(tmp_path / name.format("SR", "QA_PIXEL").replace("_B", "_"), counts(0, (1, 5, 6), 1, 99, np.uint16))
    cube = open_cube(tmp_path)
    assert cube["band_name"].values.tolist() == [f"B{number}" for number in numbers]
    assert cube.attrs["sensor"] == sensor and np.isfinite(cube["wavelength"]).all()


def test_folders_of_resolutions_without_metadata(tmp_path: Path) -> None:
    """Of a band at several resolutions, the finest; scaling is that of the files."""
    for band, metres in (("B02", 10), ("B02", 20), ("B05", 20), ("B05", 60)):
        path = tmp_path / f"R{metres}m" / f"T32UPU_20220724T101601_{band}_{metres}m.tif"
        path.parent.mkdir(exist_ok=True)
        stored = counts(metres, (1, 120 // metres, 120 // metres), 1, 9000, np.uint16)
        write_tif(path, stored, Affine(metres, 0, 650010.0, 0, -metres, 5340000.0))
        with rasterio.open(path, "r+") as raster:
            raster.scales, raster.offsets = (1e-4,), (-0.1,)
    cube = open_cube(tmp_path)
    assert cube.shape == (2, 12, 12) and cube.attrs["sensor"] == "Sentinel-2A"
    assert cube["scale"].values.tolist() == [1e-4] * 2 and cube["offset"].values.tolist() == [-0.1] * 2


def test_two_scenes_are_not_stacked(tmp_path: Path) -> None:
    for name in ("a_B2", "a_B3", "b_B2", "b_B3"):
        write_tif(tmp_path / f"{name}.tif", counts(0, (1, 5, 6), 0, 99, np.uint8))
    with pytest.raises(CubeFileError, match="no product was recognised"):
        open_cube(tmp_path)


def test_landsat_metadata_without_its_last_line_and_under_another_name(tmp_path: Path) -> None:
    written = write_landsat(tmp_path)
    (mtl,) = written.path.glob("*MTL.txt")
    copy = mtl.rename(mtl.with_name("copy.txt"))
    copy.write_text(re.sub(r"\nEND\s*$", "\n", copy.read_text()))
    assert not copy.read_text().rstrip().endswith("\nEND")
    np.testing.assert_allclose(physical_values(open_cube(copy)), written.physical, rtol=1e-5)


@pytest.mark.parametrize("name", ["LC08_L1TP_193026_20220719_20220726_01_T1_MTL.txt", "LC81930262022200LGN00_MTL.txt"])
def test_landsat_before_collection_2(name: str, tmp_path: Path) -> None:
    written = write_landsat(tmp_path, "L1")
    (mtl,) = written.path.glob("*MTL.txt")
    text = mtl.read_text().replace("LANDSAT_METADATA_FILE", "L1_METADATA_FILE")
    moved = re.findall(r"\n *(?:SPACECRAFT_ID|DATE_ACQUIRED|SCENE_CENTER_TIME) = [^\n]*", text)
    for line in moved:
        text = text.replace(line, "")
    text = re.sub(r"(GROUP = PRODUCT_CONTENTS)(?=\n)", lambda match: match[0] + "".join(moved), text, count=1)
    text = text.replace("PRODUCT_CONTENTS", "PRODUCT_METADATA").replace("PROCESSING_LEVEL", "DATA_TYPE")
    mtl.rename(mtl.with_name(name)).write_text(text.replace("LEVEL1_RADIOMETRIC_RESCALING", "RADIOMETRIC_RESCALING"))
    mtl.unlink(missing_ok=True)
    (written.path / name).write_text(text.replace("LEVEL1_RADIOMETRIC_RESCALING", "RADIOMETRIC_RESCALING"))
    cube = open_cube(written.path)
    np.testing.assert_allclose(physical_values(cube), written.physical, rtol=1e-5)
    assert cube.attrs["sensor"] == "Landsat-8" and cube.attrs["acquired"].startswith("2022-07-19T10")


def test_the_oldest_sentinel2_l2a(tmp_path: Path) -> None:
    written = write_sentinel2(tmp_path)
    xml = written.path / "MTD_MSIL2A.xml"
    xml.write_text(xml.read_text().replace("BOA_QUANTIFICATION_VALUE", "L2A_BOA_QUANTIFICATION_VALUE"))
    np.testing.assert_allclose(physical_values(open_cube(written.path)), written.physical, rtol=1e-5)


def test_sentinel_2c_has_curves() -> None:
    centres = {curve.name: curve.centre_nm for curve in named_curves("S2C")}
    assert centres["B2"] == pytest.approx(489.0, abs=0.05) and centres["B12"] == pytest.approx(2191.3, abs=0.05)
