"""A damaged or incomplete product is a one-line error and exit code 2; a file of no product is opened as usual."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.io.products.container_writers import write_emit, write_prisma
from tests.io.products.hyperspectral_writers import (
    AVIRIS_ID,
    HYPERION_ID,
    write_aviris,
    write_desis,
    write_enmap,
    write_hyperion,
)
from tests.io.products.multispectral_writers import write_landsat, write_sentinel2
from tests.io.products.written import UTM_32, Written, write_tif

from hyperfuse.cli.app import run
from hyperfuse.errors import CubeFileError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import open_cube, open_explained, write_cube

LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]><level_X>&c;</level_X>'
)
OUTSIDE = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/passwd">]><level_X><base>&x;</base></level_X>'
)


def _file(folder: Path, pattern: str) -> Path:
    return next(folder.rglob(pattern))


def _replace(old: str, new: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return damage


def _overwrite(text: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.write_text(text)

    return damage


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


def _remove_attribute(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file.attrs[name]

    return damage


def _remove_item(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name]

    return damage


def _set_attribute(name: str, value: object) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file.attrs[name] = value

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], Written], str, Callable[[Path], None], str]] = {
    "enmap-image-missing": (
        write_enmap,
        "*SPECTRAL_IMAGE.TIF",
        Path.unlink,
        "is incomplete: .*-SPECTRAL_IMAGE is missing",
    ),
    "enmap-image-cut": (write_enmap, "*SPECTRAL_IMAGE.TIF", _cut, "truncated|cannot be read"),
    "enmap-image-other": (
        write_enmap,
        "*SPECTRAL_IMAGE.TIF",
        lambda file: write_tif(file, np.ones((3, 4, 5), np.int16)),
        "has 3 bands, .* describes 224",
    ),
    "enmap-xml-cut": (write_enmap, "*METADATA.XML", _cut, "is not well-formed XML"),
    "enmap-xml-empty-list": (
        write_enmap,
        "*METADATA.XML",
        _replace("bandCharacterisation", "bands"),
        "no specific/bandCharacterisation",
    ),
    "enmap-xml-no-number": (
        write_enmap,
        "*METADATA.XML",
        _replace("418.416", "blue"),
        "wavelengthCenterOfBand is 'blue'",
    ),
    "enmap-xml-laughs": (write_enmap, "*METADATA.XML", _overwrite(LAUGHS), "document type or entities"),
    "enmap-xml-outside": (write_enmap, "*METADATA.XML", _overwrite(OUTSIDE), "document type or entities"),
    "enmap-xml-binary": (write_enmap, "*METADATA.XML", _overwrite("\0\1\2"), "is not well-formed XML"),
    "desis-gain-missing": (write_desis, "*METADATA.xml", _replace("gainOfBand", "gain"), "band/gainOfBand is ''"),
    "sentinel2-band-missing": (
        write_sentinel2,
        "*_B04_10m.jp2",
        Path.unlink,
        "is incomplete: .*_B04_10m.jp2, which MTD_MSIL2A.xml",
    ),
    "sentinel2-band-cut": (write_sentinel2, "*_B04_10m.jp2", _cut, "_B04_10m.jp2 is truncated"),
    "sentinel2-band-no-image": (write_sentinel2, "*_B04_10m.jp2", _overwrite("gone"), "is not a JPEG 2000 file"),
    "sentinel2-no-bands": (write_sentinel2, "MTD_MSIL2A.xml", _replace("IMAGE_FILE", "IMAGE"), "lists no IMAGE_FILE"),
    "sentinel2-two-tiles": (
        write_sentinel2,
        "MTD_MSIL2A.xml",
        _replace("</Granule>", "<IMAGE_FILE>GRANULE/other/IMG_DATA/R10m/x_B02_10m</IMAGE_FILE></Granule>"),
        "lists several tiles",
    ),
    "sentinel2-quantification": (
        write_sentinel2,
        "MTD_MSIL2A.xml",
        _replace(">10000<", ">0<"),
        "QUANTIFICATION_VALUE is 0",
    ),
    "sentinel2-leads-outside": (
        write_sentinel2,
        "MTD_MSIL2A.xml",
        _replace("T32UPU_20220724T101601_B02_10m", "../../../../../../etc/passwd_B02_10m"),
        "passwd_B02_10m.jp2, which MTD_MSIL2A.xml names, is missing",
    ),
    "landsat-band-missing": (write_landsat, "*SR_B3.TIF", Path.unlink, "is incomplete: LC09_.*SR_B3.TIF"),
    "landsat-metadata-cut": (write_landsat, "*MTL.txt", _cut, "is not a complete list of GROUP"),
    "landsat-scaling-missing": (
        write_landsat,
        "*MTL.txt",
        _replace("REFLECTANCE_ADD_BAND_4", "X"),
        "no REFLECTANCE_ADD_BAND_4",
    ),
    "landsat-other": (write_landsat, "*MTL.txt", _replace("LANDSAT_9", "LANDSAT_3"), "is of Landsat-3"),
    "landsat-grids": (
        write_landsat,
        "*SR_B3.TIF",
        lambda file: write_tif(file, np.ones((1, 7, 10), np.uint16)),
        "does not lie on the grid",
    ),
    "hyperion-band-missing": (write_hyperion, "*_B101_L1T.TIF", Path.unlink, f"is incomplete: B101 of {HYPERION_ID}"),
    "aviris-image-missing": (write_aviris, AVIRIS_ID, Path.unlink, "has no data file beside it"),
    "aviris-image-cut": (write_aviris, AVIRIS_ID, _cut, "its header promises"),
    "prisma-cut": (write_prisma, "*.he5", _cut, "cannot be read|truncated"),
    "prisma-attribute": (write_prisma, "*.he5", _remove_attribute("L2ScaleVnirMax"), "no attribute L2ScaleVnirMax"),
    "prisma-cube": (
        write_prisma,
        "*.he5",
        _remove_item("HDFEOS/SWATHS/PRS_L2D_HCO/Data Fields/SWIR_Cube"),
        "has no .*SWIR_Cube",
    ),
    "prisma-list": (write_prisma, "*.he5", _set_attribute("List_Cw_Swir", np.ones(5)), "173 bands, 5 wavelengths"),
    "prisma-crs": (write_prisma, "*.he5", _set_attribute("Epsg_Code", 1), "Epsg_Code is 1"),
    "prisma-corners": (
        write_prisma,
        "*.he5",
        _set_attribute("Product_LRcorner_easting", 0.0),
        "corners are .* m apart",
    ),
    "emit-bands": (
        write_emit,
        "*.nc",
        _remove_item("sensor_band_parameters/fwhm"),
        "has no sensor_band_parameters/fwhm",
    ),
    "emit-transform": (write_emit, "*.nc", _remove_attribute("geotransform"), "no attribute geotransform"),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Written once each, copied for every damage."""
    folder = tmp_path_factory.mktemp("originals")
    for writer in {entry[0] for entry in DAMAGES.values()}:
        writer(folder / writer.__name__)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("case", list(DAMAGES))
def test_damage_is_one_line(
    originals: dict[str, Path],
    case: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, pattern, damage, message = DAMAGES[case]
    root = shutil.copytree(originals[writer.__name__], tmp_path / "product")
    damage(_file(root, pattern))
    with pytest.raises(CubeFileError, match=message):
        open_cube(root)
    monkeypatch.setenv("COLUMNS", "4000")
    target = tmp_path / "out.tif"
    for command in (["info", str(root)], ["convert", str(root), str(target)]):
        assert run(command) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1 and captured.err.startswith("hyperfuse: ")
    assert not target.exists()


def test_damage_that_shows_only_in_the_pixels(tmp_path: Path) -> None:
    """A JPEG 2000 file of the right length with a broken inside."""
    image = _file(write_sentinel2(tmp_path).path, "*_B08_10m.jp2")
    content = bytearray(image.read_bytes())
    start = content.index(b"\xff\x93") + 40
    content[start:-2] = bytes(len(content) - 2 - start)
    image.write_bytes(content)
    cube = open_cube(tmp_path)
    try:
        cube.values  # noqa: B018
    except CubeFileError as error:
        assert "B08_10m.jp2" in str(error)


def test_folders_without_a_product(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert run(["info", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "no product was recognised" in error and "name the file in it" in " ".join(error.split())


def test_folders_of_several_products_want_a_name(tmp_path: Path) -> None:
    first = write_enmap(tmp_path)
    write_desis(tmp_path)
    with pytest.raises(CubeFileError, match=r"has 2 products.*name one of them: ENMAP01.*DESIS-HSI"):
        open_cube(tmp_path)
    assert open_cube(first.path).sizes["band"] == 224


def test_hdf4_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / f"{HYPERION_ID}.L1R"
    path.write_bytes(b"\x0e\x03\x13\x01")
    with pytest.raises(CubeFileError, match=r"HDF4.*gdal_translate"):
        open_cube(path)


def test_a_manifest_stands_for_its_folder(tmp_path: Path) -> None:
    safe = write_sentinel2(tmp_path).path
    assert open_cube(safe / "manifest.safe").sizes["band"] == 4
    assert open_cube(safe / "MTD_MSIL2A.xml").sizes["band"] == 4


def test_other_files_of_the_same_kind_are_no_products(tmp_path: Path) -> None:
    """HDF5 and NetCDF files that no agency made are read as ever, whatever they are called."""
    cube = make_cube(np.ones((3, 4, 5), np.float32), wavelength_nm=[401, 402, 403], crs=UTM_32)
    for name in ("EMIT_L2A_RFL_mine.nc", "PRS_L2D_mine.h5", "f110512t01p00r11_fused.tif"):
        path = write_cube(cube, tmp_path / name)
        opened, notes = open_explained(path)
        np.testing.assert_array_equal(opened.values, cube.values)
        np.testing.assert_array_equal(opened["wavelength"], cube["wavelength"])
        assert bool(notes) == name.startswith("f1105")


def test_relative_paths_outlive_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_landsat(tmp_path)
    monkeypatch.chdir(tmp_path)
    cube = open_cube(written.path.name)
    monkeypatch.chdir("/")
    assert cube.values.shape == written.physical.shape
