"""Opening reads no pixels, a window reads the window, and a lazy cube may travel to another process."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from tests.io.random_cubes import FORMATS, Format, sample_cube

from hyperfuse.io import hdf5, numpy_files, raster
from hyperfuse.io import zarr as zarr_store
from hyperfuse.io.cube import lazy_variable, make_cube
from hyperfuse.io.files import open_cube, write_cube


class CountingReader:
    """An array in memory that remembers which windows were asked for."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.shape: Any = values.shape
        self.dtype = values.dtype
        self.block = None
        self.reads: list[tuple[list[int], slice, slice]] = []

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        self.reads.append((bands.tolist(), rows, columns))
        return self.values[bands][:, rows, columns]


def counting_cube(shape: tuple[int, int, int] = (5, 40, 30)) -> tuple[xr.DataArray, CountingReader]:
    reader = CountingReader(np.arange(np.prod(shape)).reshape(shape))
    return make_cube(lazy_variable(reader)), reader


def test_only_the_window_is_read() -> None:
    cube, reader = counting_cube()
    assert reader.reads == []
    part = cube.isel(band=[1, 3], y=slice(10, 14), x=slice(5, 6))
    assert reader.reads == []
    np.testing.assert_array_equal(part.values, reader.values[[1, 3], 10:14, 5:6])
    assert reader.reads == [([1, 3], slice(10, 14), slice(5, 6))]


def test_rows_far_apart_are_read_one_by_one() -> None:
    cube, reader = counting_cube()
    np.testing.assert_array_equal(cube.isel(y=[0, 39]).values, reader.values[:, [0, 39]])
    assert [rows for _, rows, _ in reader.reads] == [slice(0, 1), slice(39, 40)]


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [0, 0, 2], [3, 2, 1, 0], [1, 1], [39, 0, 20], [-1, 0]])
def test_rows_in_any_order_and_twice(order: list[int]) -> None:
    cube, reader = counting_cube()
    np.testing.assert_array_equal(cube.isel(y=order).values, reader.values[:, order])
    np.testing.assert_array_equal(
        cube.isel(x=[place % 30 for place in order]).values, reader.values[:, :, [p % 30 for p in order]]
    )
    np.testing.assert_array_equal(
        cube.isel(band=[place % 5 for place in order]).values, reader.values[[p % 5 for p in order]]
    )


def indexers(size: int) -> st.SearchStrategy[Any]:
    return (
        st.integers(-size, size - 1)
        | st.slices(size)
        | st.lists(st.integers(-size, size - 1), max_size=6).map(lambda places: np.array(places, dtype=np.int64))
    )


@given(band=indexers(4), y=indexers(6), x=indexers(5), again=st.slices(3))
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_index_gives_what_numpy_gives(band: Any, y: Any, x: Any, again: slice) -> None:
    values = np.arange(120).reshape(4, 6, 5)
    lazy = make_cube(lazy_variable(CountingReader(values)))
    whole = make_cube(values)
    np.testing.assert_array_equal(lazy.isel(band=band, y=y, x=x).values, whole.isel(band=band, y=y, x=x).values)
    twice = lazy.isel(y=again).isel(y=slice(None, None, -1), x=x)
    np.testing.assert_array_equal(twice.values, whole.isel(y=again).isel(y=slice(None, None, -1), x=x).values)


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_opening_reads_no_pixels(through: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cube = sample_cube(shape=(4, 1500, 1000))
    path = through.write(cube, tmp_path)
    # The process of the first look, which does read one, is started before reading is forbidden here.
    open_cube(path)

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("pixels were read")

    def refusing_the_cube(load: Any) -> Any:
        def checked(source: Any, *arguments: Any) -> Any:
            assert "cube" not in (getattr(source, "name", ""), arguments[0]), "pixels were read"
            return load(source, *arguments)

        return checked

    monkeypatch.setattr(raster, "_read_window", refuse)
    monkeypatch.setattr(numpy_files, "_load_from_npy", refuse)
    loaders = ((hdf5.LoadDataset, "__call__"), (hdf5, "_load_from_netcdf3"), (zarr_store, "_load_from_zarr"))
    for owner, name in loaders:
        monkeypatch.setattr(owner, name, refusing_the_cube(getattr(owner, name)))
    peaks = []
    for _ in range(3):  # what is imported on the way, or done by threads of other tests, is not memory of the cube
        tracemalloc.start()
        opened = open_cube(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert opened.shape == cube.shape
    assert min(peaks) < cube.nbytes / 2


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_a_window_takes_the_memory_of_a_window(through: Format, tmp_path: Path) -> None:
    cube = sample_cube(shape=(4, 900, 700))
    opened = through.round_trip(cube, tmp_path)
    tracemalloc.start()
    window = opened.isel(y=slice(500, 520), x=slice(100, 130)).values
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(window, cube.values[:, 500:520, 100:130])
    assert peak < cube.nbytes / 3


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_lazy_cubes_pickle_small_and_read_elsewhere(through: Format, tmp_path: Path) -> None:
    cube = sample_cube(shape=(4, 300, 200))
    opened = through.round_trip(cube, tmp_path)
    opened.isel(y=0).load()
    carried = pickle.dumps(opened)
    assert len(carried) < cube.nbytes / 8
    np.testing.assert_array_equal(pickle.loads(carried).values, cube.values)


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_a_lazy_cube_survives_a_change_of_folder(
    through: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cube = sample_cube()
    path = through.write(cube, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = open_cube(path.name)
    monkeypatch.chdir(tmp_path / "elsewhere")
    np.testing.assert_array_equal(opened.values, cube.values)


def test_a_sparse_geotiff_of_many_gigabytes_opens_at_once(tmp_path: Path) -> None:
    profile = {"driver": "GTiff", "count": 50, "height": 20000, "width": 20000, "dtype": "float32", "crs": "EPSG:32633"}
    place = {"transform": rasterio.Affine(10, 0, 0, 0, -10, 0), "tiled": True, "sparse_ok": True, "bigtiff": "yes"}
    with rasterio.open(tmp_path / "huge.tif", "w", **profile, **place):
        pass
    assert_opens_at_once(tmp_path / "huge.tif", (50, 20000, 20000))


def test_a_sparse_npy_of_many_gigabytes_opens_at_once(tmp_path: Path) -> None:
    path = tmp_path / "huge.npy"
    with path.open("wb") as stream:
        npy_format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (20000, 20000, 50)})
        stream.truncate(stream.tell() + 4 * 20000 * 20000 * 50)
    assert_opens_at_once(path, (50, 20000, 20000))


def assert_opens_at_once(path: Path, shape: tuple[int, int, int]) -> None:
    started = time.monotonic()
    tracemalloc.start()
    cube = open_cube(path)
    values = cube.isel(y=slice(9000, 9010), x=slice(11000, 11010)).values
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cube.shape == shape
    assert values.shape == (50, 10, 10) and (values == 0).all()
    assert peak < 50e6
    assert time.monotonic() - started < 10


def test_hand_made_netcdf_3_is_read_by_window(tmp_path: Path) -> None:
    values = np.arange(3 * 400 * 500, dtype=np.int32).reshape(3, 400, 500)
    xr.Dataset({"cube": (("band", "y", "x"), values)}).to_netcdf(
        tmp_path / "s.nc", format="NETCDF3_64BIT", engine="scipy"
    )
    tracemalloc.start()
    window = open_cube(tmp_path / "s.nc").isel(y=slice(5, 7), x=slice(3, 9)).values
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(window, values[:, 5:7, 3:9])
    assert peak < values.nbytes / 2


def test_few_bands_of_many_are_read_alone(tmp_path: Path) -> None:
    cube = make_cube(np.random.default_rng(0).integers(0, 9, (120, 100, 100), dtype=np.uint16))
    opened = open_cube(write_cube(cube, tmp_path / "s.h5"))
    tracemalloc.start()
    values = opened.isel(band=[100, 50, 3]).values
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(values, cube.values[[100, 50, 3]])
    assert peak < cube.nbytes / 8
