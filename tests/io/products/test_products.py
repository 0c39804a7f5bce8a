"""Each product opens with the bands, values and grid of its specification, in windows, and survives conversion."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tests.io.products import container_writers, hyperspectral_writers, multispectral_writers
from tests.io.products.written import GRID, UTM_32, Written, counts, write_tif

from hyperfuse.cli.app import run
from hyperfuse.io import isolation
from hyperfuse.io.cube import physical_values
from hyperfuse.io.files import open_cube, open_explained, write_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.io.products import catalogue
from hyperfuse.io.products.product import Band, MtlMetadata, Product, ProductFile, ProductFiles, identity, make_product
from hyperfuse.io.products.rasters import open_layer, read_info, select_bands, stack

WRITERS = hyperspectral_writers.WRITERS | container_writers.WRITERS | multispectral_writers.WRITERS


@pytest.fixture(scope="module", params=list(WRITERS))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return WRITERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def opened(written: Written) -> xr.DataArray:
    return open_cube(written.path)


@pytest.fixture
def cube(opened: xr.DataArray) -> xr.DataArray:
    return unread(opened)


def unread(cube: xr.DataArray) -> xr.DataArray:
    """A cube keeps the values that were read of it: one that travelled has none yet."""
    travelled: xr.DataArray = pickle.loads(pickle.dumps(cube))
    return travelled


def test_opening_reads_no_pixels(opened: xr.DataArray) -> None:
    assert not opened.variable._in_memory


def test_bands_are_those_of_the_specification(written: Written, cube: xr.DataArray) -> None:
    np.testing.assert_allclose(cube["wavelength"], written.wavelength_nm, rtol=1e-7)
    np.testing.assert_allclose(cube["fwhm"], written.fwhm_nm, rtol=1e-5)
    np.testing.assert_array_equal(cube["good"], written.good)
    assert cube.attrs["product"] == written.product
    assert cube.attrs["sensor"] == written.sensor


def test_physical_values(written: Written, cube: xr.DataArray) -> None:
    np.testing.assert_allclose(physical_values(cube, dtype=np.float64), written.physical, rtol=1e-6, atol=1e-7)


def test_grid(written: Written, cube: xr.DataArray) -> None:
    grid = grid_of(cube)
    assert grid.crs is not None and grid.crs.to_epsg() == written.crs
    assert grid.transform is not None and written.transform is not None
    np.testing.assert_allclose(grid.transform[:6], written.transform[:6], rtol=0, atol=1e-9)


def test_windows_equal_the_whole(opened: xr.DataArray, cube: xr.DataArray) -> None:
    whole = cube.values
    rng = np.random.default_rng(0)
    bands, height, width = cube.shape
    for _ in range(6):
        top, bottom = np.sort(rng.choice(height + 1, 2, replace=False))
        left, right = np.sort(rng.choice(width + 1, 2, replace=False))
        chosen = rng.integers(0, bands, 3)
        window = unread(opened).isel(band=chosen, y=slice(top, bottom), x=slice(left, right))
        np.testing.assert_array_equal(window.values, whole[chosen, top:bottom, left:right])
    stepped = unread(opened).isel(band=slice(1, 4), y=slice(None, None, -3), x=slice(1, None, 2))
    np.testing.assert_array_equal(stepped.values, whole[1:4, ::-3, 1::2])


def test_travels(opened: xr.DataArray, cube: xr.DataArray) -> None:
    assert not cube.variable._in_memory
    xr.testing.assert_identical(cube.isel(band=[0, -1]).load(), opened.isel(band=[0, -1]).load())


def test_info_explains(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(written.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (*written.shown, written.sensor):
        assert text in shown, f"{text!r} in {shown}"


def test_notes_have_one_line_each(written: Written) -> None:
    _, notes = open_explained(written.path)
    assert {"product", "scaling", "flags", "also available"} <= set(notes)
    assert all(note and note.isprintable() for note in notes.values())


@pytest.mark.parametrize("name", ["scene.tif", "scene.hdr"])
def test_conversion_keeps_everything(written: Written, cube: xr.DataArray, tmp_path: Path, name: str) -> None:
    converted = open_cube(write_cube(cube, tmp_path / name))
    for column in ("wavelength", "fwhm", "good", "band_name", "scale", "offset"):
        np.testing.assert_array_equal(converted[column], cube[column], err_msg=column)
    np.testing.assert_array_equal(converted.values, cube.values)
    assert grid_of(converted) == grid_of(cube)
    assert converted.attrs == cube.attrs


ALI_BANDS = {"B1": (482.5, 65.0), "B2": (565.0, 80.0), "B3": (660.0, 60.0)}


def open_ali(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    """The example in the docstring of `catalogue`."""
    mtl = MtlMetadata(key)
    images = {name: mtl.text("PRODUCT_METADATA", f"BAND{name[1:]}_FILE_NAME") for name in ALI_BANDS}
    chosen = list(ALI_BANDS) if variable is None else select_bands(variable, {}, list(ALI_BANDS), images, files.path)
    if chosen is None:
        return Product(open_layer(files, variable or "", list(ALI_BANDS)))
    reader, finest = stack([read_info(files.require(images[name], key.base_name)) for name in chosen])
    bands = [Band(name, *ALI_BANDS[name], scale=mtl.number("RADIANCE_SCALING", f"{name}_SCALING")) for name in chosen]
    attributes = identity("ALI L1", "ALI", mtl.get("PRODUCT_METADATA", "ACQUISITION_DATE"), "radiance")
    return make_product(reader, bands, attributes, key.stem, nodata=0, grid=finest.grid, others=ALI_BANDS)


def test_a_mission_is_added_by_one_function_and_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mission = catalogue.Mission("ALI", re.compile(r"EO1A\w+_MTL_L1\w+\.TXT"), open_ali)
    monkeypatch.setattr(catalogue, "MISSIONS", (*catalogue.MISSIONS, mission))
    # In this process, which knows the mission.
    monkeypatch.setattr(isolation, "_is_child", True)
    stored = counts(1, (3, 4, 5), 1, 100, np.int16)
    for band, values in enumerate(stored, start=1):
        write_tif(tmp_path / f"EO1A_B{band}.TIF", values[None])
    names = "".join(f'BAND{band}_FILE_NAME = "EO1A_B{band}.TIF"\n' for band in (1, 2, 3))
    scales = "".join(f"B{band}_SCALING = 0.{band}\n" for band in (1, 2, 3))
    (tmp_path / "EO1A1_MTL_L1T.TXT").write_text(
        f"GROUP = PRODUCT_METADATA\nACQUISITION_DATE = 2004-05-02\n{names}END_GROUP = PRODUCT_METADATA\n"
        f"GROUP = RADIANCE_SCALING\n{scales}END_GROUP = RADIANCE_SCALING\nEND\n"
    )
    for path in (tmp_path, tmp_path / "EO1A1_MTL_L1T.TXT"):
        cube, notes = open_explained(path)
        expected = stored * np.array([0.1, 0.2, 0.3])[:, None, None]
        np.testing.assert_allclose(physical_values(cube, dtype=np.float64), expected)
        assert grid_of(cube).transform == GRID and grid_of(cube).crs.to_epsg() == UTM_32
        assert notes["product"] == "ALI L1, EO1A1_MTL_L1T"
    np.testing.assert_array_equal(open_cube(tmp_path, "b3,b1").values, stored[[2, 0]])
