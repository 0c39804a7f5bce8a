"""Each product opens as delivered: the bands, values and grid that its specification says, by windows, and nothing is
lost.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tests.io.products import container_writers, hyperspectral_writers, multispectral_writers
from tests.io.products.written import Written

from hyperfuse.cli.app import run
from hyperfuse.io.cube import physical_values
from hyperfuse.io.files import open_cube, open_explained, write_cube
from hyperfuse.io.grid import grid_of

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
    for words in (*written.shown, written.sensor):
        assert words in shown, f"{words!r} in {shown}"


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
