"""Landsat 4, 5 and 7 of all times, renamed and empty copies of metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.io.products.written import GRID, counts, write_tif

from hyperfuse.errors import CubeFileError
from hyperfuse.io.cube import physical_values
from hyperfuse.io.files import open_cube, open_explained

SHAPE = (1, 8, 9)


def write_bands(folder: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    images = {}
    for seed, (band, name) in enumerate(names.items()):
        images[band] = counts(seed, SHAPE, 1, 250, np.uint8)
        images[band][0, 0, 0] = 0
        write_tif(folder / name, images[band], GRID)
    return images


def odl(groups: dict[str, dict[str, str]]) -> str:
    lines = ["GROUP = L1_METADATA_FILE"]
    for group, entries in groups.items():
        lines += [f"  GROUP = {group}", *(f"    {key} = {value}" for key, value in entries.items())]
        lines += [f"  END_GROUP = {group}"]
    return "\n".join([*lines, "END_GROUP = L1_METADATA_FILE", "END", ""])


def collection_2(folder: Path, spacecraft: str, sensor: str, thermal: tuple[str, ...]) -> dict[str, np.ndarray]:
    numbers = ("1", "2", "3", "4", "5", "7")
    files = {f"B{number}": f"scene_B{number}.TIF" for number in (*numbers, *thermal)}
    scaling = {f"REFLECTANCE_MULT_BAND_{number}": "1.0E-03" for number in numbers}
    scaling |= {f"REFLECTANCE_ADD_BAND_{number}": "-0.01" for number in numbers}
    scaling |= {f"RADIANCE_{term}_BAND_{number}": "0.05" for number in thermal for term in ("MULT", "ADD")}
    groups = {
        "PRODUCT_CONTENTS": {"PROCESSING_LEVEL": '"L1TP"'}
        | {f"FILE_NAME_BAND_{band[1:]}": f'"{name}"' for band, name in files.items()},
        "IMAGE_ATTRIBUTES": {"SPACECRAFT_ID": f'"{spacecraft}"', "SENSOR_ID": f'"{sensor}"', "SUN_ELEVATION": "30.0"},
        "LEVEL1_RADIOMETRIC_RESCALING": scaling,
    }
    (folder / "scene_MTL.txt").write_text(odl(groups))
    return write_bands(folder, files)


@pytest.mark.parametrize(
    ("spacecraft", "sensor", "thermal", "blue_nm"),
    [
        ("LANDSAT_4", "TM", ("6",), 486.1),
        ("LANDSAT_5", "TM", ("6",), 486.3),
        ("LANDSAT_7", "ETM", ("6_VCID_1", "6_VCID_2"), 478.7),
    ],
)
def test_level_1(spacecraft: str, sensor: str, thermal: tuple[str, ...], blue_nm: float, tmp_path: Path) -> None:
    images = collection_2(tmp_path, spacecraft, sensor, thermal)
    cube = open_cube(tmp_path)
    assert cube["band_name"].values.tolist() == ["B1", "B2", "B3", "B4", "B5", "B7"]
    assert cube["wavelength"].values[0] == blue_nm and cube.attrs["sensor"] == spacecraft.title().replace("_", "-")
    values = physical_values(cube)
    assert np.isnan(values[:, 0, 0]).all()
    np.testing.assert_allclose(values[5, 1], (images["B7"][0, 1] * 1e-3 - 0.01) / 0.5, rtol=1e-5)
    hot = open_cube(tmp_path, "thermal")
    assert hot["band_name"].values.tolist() == [f"B{number}" for number in thermal]
    assert hot.attrs["quantity"].startswith("radiance")


def test_metadata_before_2012(tmp_path: Path) -> None:
    """Without factors: radiance between LMIN and LMAX."""
    names = {f"B{number}": f"L71014032_03220020720_B{number}0.TIF" for number in (1, 2, 3, 4, 5, 7)}
    limits = {f"LMAX_BAND{band[1:]}": "191.6" for band in names} | {f"LMIN_BAND{band[1:]}": "-6.2" for band in names}
    counted = {f"QCALMAX_BAND{band[1:]}": "255.0" for band in names}
    counted |= {f"QCALMIN_BAND{band[1:]}": "1.0" for band in names}
    groups = {
        "PRODUCT_METADATA": {
            "PRODUCT_TYPE": '"L1T"',
            "SPACECRAFT_ID": '"Landsat7"',
            "SENSOR_ID": '"ETM+"',
            "ACQUISITION_DATE": "2002-07-20",
        }
        | {f"BAND{band[1:]}_FILE_NAME": f'"{name}"' for band, name in names.items()},
        "MIN_MAX_RADIANCE": limits,
        "MIN_MAX_PIXEL_VALUE": counted,
        "PRODUCT_PARAMETERS": {"SUN_ELEVATION": "61.4"},
    }
    (tmp_path / "L71014032_03220020720_MTL.txt").write_text(odl(groups))
    images = write_bands(tmp_path, names)
    cube = open_cube(tmp_path)
    scale = (191.6 + 6.2) / 254
    np.testing.assert_allclose(physical_values(cube)[0, 1], images["B1"][0, 1] * scale - 6.2 - scale, rtol=1e-5)
    assert cube.attrs["quantity"].startswith("radiance") and cube.attrs["acquired"] == "2002-07-20"


def test_copies_of_the_metadata(tmp_path: Path) -> None:
    """A renamed copy in a folder is found by its beginning; an empty one is no second product."""
    collection_2(tmp_path, "LANDSAT_5", "TM", ("6",))
    (tmp_path / "scene_MTL.txt").rename(tmp_path / "renamed.txt")
    (tmp_path / "notes.txt").write_text("cloudy")
    assert open_explained(tmp_path)[1]["product"].startswith("Landsat L1TP")
    (tmp_path / "renamed.txt").rename(tmp_path / "scene_MTL.txt")
    (tmp_path / "scene_duplicate_MTL.txt").touch()
    assert open_cube(tmp_path).sizes["band"] == 6


def test_other_instruments_are_named(tmp_path: Path) -> None:
    collection_2(tmp_path, "LANDSAT_5", "MSS", ())
    with pytest.raises(CubeFileError, match=r"is of Landsat-5 MSS; expected TM, ETM\+ or OLI"):
        open_cube(tmp_path)
