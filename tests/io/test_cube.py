"""Cubes in memory: the band table, nodata, physical values, windows, and what a slice does to the transform."""

from __future__ import annotations

import doctest
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import rioxarray  # noqa: F401  (registers the .rio accessor)
import xarray as xr
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.io.random_cubes import NORTH_UP, ROTATED, sample_cube

from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io import cube as cube_module
from hyperfuse.io import files, summary
from hyperfuse.io.cube import as_cube, iterate_windows, make_cube, missing_values, nodata_of, physical_values, window_of
from hyperfuse.io.grid import grid_of

UTM = Affine(30.0, 0.0, 399960.0, 0.0, -30.0, 5700000.0)
TURNED = Affine.translation(4e5, 5.7e6) @ Affine.rotation(30) @ Affine.scale(30, -30)


@pytest.mark.parametrize("module", [cube_module, files, summary])
def test_examples_in_docstrings(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0 and results.failed == 0


class TestBandTable:
    def test_defaults(self) -> None:
        cube = make_cube(np.zeros((2, 3, 4)))
        assert np.isnan(cube["wavelength"]).all() and cube["good"].all() and (cube["scale"] == 1).all()
        assert nodata_of(cube) is None and grid_of(cube).transform is None and grid_of(cube).crs is None

    def test_what_no_band_can_have(self) -> None:
        cube = make_cube(np.zeros((2, 1, 1)), wavelength_nm=[np.inf, 5], band_names=["a\0b", "\ud800"])
        assert np.isnan(cube["wavelength"].values[0])
        assert cube["band_name"].values.tolist() == ["ab", "?"]
        with pytest.raises(BandError, match="scale nan of a band"):
            make_cube(np.zeros((2, 1, 1)), scale=[1, np.nan])
        with pytest.raises(BandError, match="wavelength list of 3 entries for 2 bands"):
            make_cube(np.zeros((2, 1, 1)), wavelength_nm=[1, 2, 3])

    @pytest.mark.parametrize("shape", [(3, 4), (0, 3, 4), (2, 0, 4), (1, 2, 3, 4), ()])
    def test_shapes_that_are_no_cube(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(CubeFileError, match="three dimensions"):
            make_cube(np.zeros(shape))

    def test_dataarrays_of_others(self) -> None:
        values = np.arange(24, dtype=np.int16).reshape(3, 4, 2)
        theirs = xr.DataArray(
            values, dims=("y", "x", "band"), attrs={"scale_factor": 0.5, "add_offset": 2.0, "long_name": ("a", "b")}
        )
        cube = as_cube(theirs)
        assert cube.dims == ("band", "y", "x")
        np.testing.assert_allclose(physical_values(cube), values.transpose(2, 0, 1) * 0.5 + 2)
        assert cube["band_name"].values.tolist() == ["a", "b"]
        assert "scale_factor" not in cube.attrs
        assert "scale_factor" in theirs.attrs
        assert as_cube(cube) is not None and as_cube(cube)["scale"].values.tolist() == [0.5, 0.5]
        with pytest.raises(CubeFileError, match="dims"):
            as_cube(xr.DataArray(values, dims=("a", "b", "c")))
        with pytest.raises(BandError, match="wavelength"):
            as_cube(cube.drop_vars("wavelength").assign_coords(wavelength=("x", [401.0, 402.0, 403.0, 404.0])))


class TestNodata:
    @pytest.mark.parametrize(
        ("dtype", "nodata", "meant"),
        [
            ("uint8", 255.0, 255),
            ("uint8", -9999, None),
            ("uint8", 1.5, None),
            ("uint8", float("nan"), None),
            ("uint64", 2**64 - 1, 2**64 - 1),
            ("int64", -(2**63), -(2**63)),
            ("float32", 0.1, float(np.float32(0.1))),
            ("float32", 1e20, float(np.float32(1e20))),
            ("float32", 1e300, None),
            ("float32", float("inf"), float("inf")),
            ("int16", "text", None),
            ("int16", [1, 2], None),
        ],
    )
    def test_of_another_type(self, dtype: str, nodata: Any, meant: float | None) -> None:
        cube = xr.DataArray(np.zeros((1, 2, 2), dtype), dims=("band", "y", "x"), attrs={"_FillValue": nodata})
        assert nodata_of(cube) == meant
        if not isinstance(nodata, list | str):
            assert missing_values(cube.values, nodata).any() == (meant == 0)

    def test_make_cube_refuses_what_the_type_cannot_hold(self) -> None:
        with pytest.raises(OptionError, match="nodata -9999 for uint8 values"):
            make_cube(np.zeros((1, 2, 2), np.uint8), nodata=-9999)
        assert nodata_of(make_cube(np.zeros((1, 2, 2), np.float32), nodata=0.1)) == np.float32(0.1)


class TestPhysicalValues:
    def test_against_a_loop(self) -> None:
        rng = np.random.default_rng(0)
        stored = rng.integers(0, 5, (3, 4, 5)).astype(np.uint16)
        scale, offset = [0.5, 1.0, 2.0], [0.0, -1.0, 3.0]
        got = physical_values(make_cube(stored, scale=scale, offset=offset, nodata=2), dtype=np.float64)
        for (band, y, x), value in np.ndenumerate(stored):
            expected = np.nan if value == 2 else float(value) * scale[band] + offset[band]
            np.testing.assert_equal(got[band, y, x], expected)

    def test_what_is_not_finite_is_missing(self) -> None:
        cube = make_cube(np.array([np.nan, np.inf, -np.inf, 1e300, 2.0]).reshape(1, 1, 5))
        np.testing.assert_array_equal(physical_values(cube)[0, 0], [np.nan, np.nan, np.nan, np.nan, 2])
        np.testing.assert_array_equal(physical_values(cube, dtype=np.float64)[0, 0], [np.nan, np.nan, np.nan, 1e300, 2])

    def test_windows_and_bands(self) -> None:
        cube = sample_cube()
        whole = physical_values(cube)
        part = physical_values(cube, slice(1, 3), slice(2, 5), [3, 0])
        np.testing.assert_array_equal(part, whole[[3, 0], 1:3, 2:5])


class TestWindows:
    @given(
        bands=st.integers(1, 2000),
        height=st.integers(1, 3000),
        width=st.integers(1, 3000),
        max_bytes=st.sampled_from([1, 10_000, 2**20, 64 * 2**20]),
        block=st.sampled_from([16, 256]),
    )
    @settings(max_examples=80, deadline=None, derandomize=True)
    def test_they_cover_every_pixel_once_in_order_within_their_bytes(
        self, bands: int, height: int, width: int, max_bytes: int, block: int
    ) -> None:
        cube = xr.DataArray(np.broadcast_to(np.float32(0), (bands, height, width)), dims=("band", "y", "x"))
        windows = []
        for window in iterate_windows(cube, max_bytes, block):
            windows.append(window)
            if len(windows) > 3000:
                return
        assert (
            sum((rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in windows)
            == height * width
        )
        assert windows == sorted(windows, key=lambda window: (window[0].start, window[1].start))
        for rows, columns in windows:
            pixels = (rows.stop - rows.start) * (columns.stop - columns.start)
            assert pixels * bands * 4 <= max_bytes or pixels <= block
            assert rows.start % block == 0 or block % (rows.start % block & -(rows.start % block)) == 0
            assert columns.start % block == 0

    def test_blocks_are_not_cut_unevenly(self) -> None:
        """285 bands of a wide scene: one block of all bands is a little too much, so half of one, never 229 of its 256
        rows.
        """
        cube = xr.DataArray(np.broadcast_to(np.float32(0), (285, 1280, 1242)), dims=("band", "y", "x"))
        heights = {rows.stop - rows.start for rows, _ in iterate_windows(cube)}
        assert heights == {128}


class TestTransforms:
    @pytest.mark.parametrize("transform", [UTM, TURNED], ids=["north up", "turned"])
    @pytest.mark.parametrize(
        ("rows", "columns"),
        [
            (slice(2, 5), slice(3, None)),
            (slice(1, None, 2), slice(0, None, 3)),
            (slice(None, None, -1), slice(4, 5)),
            (slice(-2, None), slice(None, -1)),
        ],
    )
    def test_a_slice_moves_it(self, transform: Affine, rows: slice, columns: slice) -> None:
        cube = make_cube(np.zeros((1, 8, 7)), crs="EPSG:32633", transform=transform)
        centres_y, centres_x = np.arange(8)[rows] + 0.5, np.arange(7)[columns] + 0.5
        for part in (cube.isel(y=rows, x=columns), window_of(cube, rows, columns)):
            grid = grid_of(part)
            assert grid.transform is not None
            first = grid.transform @ (0.5, 0.5)
            np.testing.assert_allclose(first, transform @ (centres_x[0], centres_y[0]), rtol=1e-13)
            last = grid.transform @ (grid.width - 0.5, grid.height - 0.5)
            if len(centres_x) > 1 and len(centres_y) > 1:
                np.testing.assert_allclose(last, transform @ (centres_x[-1], centres_y[-1]), rtol=1e-13)

    @given(transform=NORTH_UP | ROTATED, y0=st.integers(0, 6), x0=st.integers(0, 5))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_window_of_is_exact_for_any_transform(self, transform: Affine, y0: int, x0: int) -> None:
        cube = make_cube(np.zeros((1, 8, 7)), transform=transform)
        assert grid_of(cube).transform == transform
        moved = grid_of(window_of(cube, slice(y0, 8), slice(x0, 7))).transform
        assert moved == transform @ Affine.translation(x0, y0)

    def test_a_window_of_a_hand_sliced_cube(self) -> None:
        cube = make_cube(np.zeros((1, 8, 7)), transform=UTM).isel(y=slice(2, None), x=slice(1, None))
        assert grid_of(window_of(cube, slice(1, 3), slice(1, 3))).transform == UTM @ Affine.translation(2, 3)

    def test_one_pixel(self) -> None:
        cube = make_cube(np.zeros((1, 1, 1)), crs="EPSG:32633", transform=UTM)
        assert grid_of(cube).transform == UTM
        assert grid_of(
            make_cube(np.zeros((1, 8, 7)), transform=UTM).isel(y=[3], x=[2])
        ).transform == UTM @ Affine.translation(2, 3)

    def test_scattered_pixels_have_none(self) -> None:
        assert grid_of(make_cube(np.zeros((1, 8, 7)), transform=UTM).isel(y=[0, 1, 5])).transform is None

    @pytest.mark.parametrize(
        "transform", [Affine(0, 0, 5, 0, 0, 5), Affine(np.nan, 0, 0, 0, 1, 0), Affine(1, 1, 0, 1, 1, 0)]
    )
    def test_a_transform_without_area_is_none(self, transform: Affine) -> None:
        assert grid_of(make_cube(np.zeros((1, 2, 2)), transform=transform)).transform is None

    def test_coordinates_of_others(self) -> None:
        values = np.zeros((1, 3, 4))
        axes = {"y": 5700000.0 - 30 * np.arange(3), "x": 400000.0 + 30 * np.arange(4)}
        assert grid_of(xr.DataArray(values, axes | {"band": [1]}, ("band", "y", "x"))).transform == Affine(
            30, 0, 399985, 0, -30, 5700015
        )
        counted = xr.DataArray(values, {"y": np.arange(3), "x": np.arange(4)}, ("band", "y", "x"))
        assert grid_of(counted).transform is None
        uneven = xr.DataArray(values, axes | {"x": [0.0, 1.0, 5.0, 6.0]}, ("band", "y", "x"))
        assert grid_of(uneven).transform is None
        words = xr.DataArray(values, axes | {"x": list("abcd")}, ("band", "y", "x"))
        assert grid_of(words).transform is None
        half = xr.DataArray(values, {"x": axes["x"]}, ("band", "y", "x"))
        assert grid_of(half).transform is None
        assert grid_of(xr.DataArray(values, dims=("band", "y", "x"))).transform is None

    def test_a_geotransform_that_is_none(self) -> None:
        cube = make_cube(np.zeros((1, 3, 4)), crs="EPSG:32633")
        cube["spatial_ref"].attrs["GeoTransform"] = "1 2 x"
        assert grid_of(cube).transform is None

    def test_another_name_for_the_grid_mapping(self) -> None:
        cube = xr.DataArray(np.zeros((1, 3, 4)), dims=("band", "y", "x"))
        cube = cube.rio.write_crs("EPSG:32633", grid_mapping_name="utm").rio.write_transform(
            UTM, grid_mapping_name="utm"
        )
        assert grid_of(cube).transform == UTM
        assert grid_of(cube).crs == "EPSG:32633"
