"""Other numbers in the file, the same values: data types, scale factors, nodata, clipping."""

from __future__ import annotations

import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr
from affine import Affine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.io.random_cubes import sample_cube

from hyperfuse.config import DTYPES, OutputConfig
from hyperfuse.errors import OptionError
from hyperfuse.io.cube import make_cube, nodata_of, physical_values
from hyperfuse.io.output import Clipping, converted, output_template, to_stored


def image(values: Any, dtype: str = "float32", **known: Any) -> xr.DataArray:
    return make_cube(np.asarray(values, dtype=dtype).reshape(1, 1, -1), **known)


def through(cube: xr.DataArray, **options: Any) -> xr.DataArray:
    lazy, clipping = converted(cube, OutputConfig(**options))
    loaded = lazy.load()
    clipping.report(lazy)
    return loaded


def stored(cube: xr.DataArray, **options: Any) -> list[float]:
    return through(cube, **options).values.ravel().tolist()


def test_nothing_asked_nothing_done() -> None:
    cube = sample_cube()
    same, _ = converted(cube, OutputConfig())
    assert same.identical(cube)
    same, _ = converted(cube, OutputConfig(dtype="uint16", scale_factor=1e-4, nodata=0))
    assert same.identical(cube)


def test_reflectance_as_products_store_it() -> None:
    cube = image([0.0, 0.12344, 0.12346, -0.01, 1.5, np.nan])
    kept = through(cube, dtype="int16", scale_factor=1e-4)
    assert kept.values.ravel().tolist() == [0, 1234, 1235, -100, 15000, -32768]
    assert (kept["scale"].values[0], kept["offset"].values[0], nodata_of(kept)) == (1e-4, 0.0, -32768)
    np.testing.assert_allclose(physical_values(kept), physical_values(cube), atol=0.5e-4 + 1e-7)


def test_scale_factor_1_stores_physical_values() -> None:
    cube = make_cube(np.array([[[1000, 2000, 0]]], np.uint16), scale=1e-4, offset=-0.1, nodata=0)
    kept = through(cube, dtype="float32", scale_factor=1)
    np.testing.assert_allclose(kept.values.ravel()[:2], [0.0, 0.1], atol=1e-7)
    assert kept.values.ravel()[2] == 0 == nodata_of(kept)
    # The valid 0.0 stays apart from nodata.
    assert np.isnan(physical_values(kept)).ravel().tolist() == [False, False, True]


def test_a_data_type_alone_keeps_the_scale() -> None:
    cube = make_cube(np.array([[[1000, 2000, 0]]], np.uint16), scale=[1e-4], offset=0.5, nodata=0)
    kept = through(cube, dtype="float64")
    assert kept.values.ravel().tolist() == [1000, 2000, 0]
    assert (kept["scale"].values[0], kept["offset"].values[0]) == (1e-4, 0.5)


@pytest.mark.parametrize(
    ("dtype", "values", "target", "expected"),
    [
        ("int64", [2**53 + 1, -(2**63), 2**63 - 1], "uint64", [2**53 + 1, 0, 2**63 - 1]),
        ("uint64", [2**53 + 1, 2**64 - 1, 0], "int64", [2**53 + 1, 2**63 - 1, 0]),
        ("float64", [0.5, 1.5, 2.5], "int32", [0, 2, 2]),
        ("float64", [1e300, -1e300, 5.0, 6.0], "uint32", [2**32 - 2, 0, 5, 6]),
        ("float64", [1e300, -1e300, 5.0], "float32", [np.finfo("f4").max, np.finfo("f4").min, 5.0]),
        ("float32", [3e38, 1.0, 2.0], "float64", [float(np.float32(3e38)), 1.0, 2.0]),
        ("int16", [-5, 255, 100], "uint8", [0, 255, 100]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*were clipped")
def test_what_does_not_fit_is_clipped(dtype: str, values: list[float], target: str, expected: list[float]) -> None:
    assert stored(image(values, dtype), dtype=target) == expected


def test_clipping_is_reported_once_with_its_share() -> None:
    cube = image([-5, 300, 256, 100, 1, 2, 3, 4], "int16")
    with pytest.warns(UserWarning) as said:
        stored(cube, dtype="uint8")
    assert [str(each.message) for each in said] == [
        "3 of 8 values (38 %) lay outside uint8 with a scale factor of 1 (0 to 255) and were clipped"
    ]


def test_missing_pixels_are_not_counted() -> None:
    clipping = Clipping()
    target = make_cube(np.zeros((1, 1, 4), np.uint8), scale=0.5, nodata=255)
    values = to_stored(np.array([[[1.0, np.nan, 1e6, -1.0]]], np.float32), target, clipping)
    assert values.ravel().tolist() == [2, 255, 254, 0]
    assert (clipping.values, clipping.clipped) == (3, 2)


class TestNodata:
    def test_another_value_is_mapped_and_measurements_stay_measurements(self) -> None:
        cube = image([7, -9999, 0, 5], "int16", nodata=-9999)
        assert stored(cube, nodata=0) == [7, 0, 1, 5]
        assert stored(image([7, np.nan, 0, 5], nodata=-9999), nodata=0)[1:] == [
            0,
            np.nextafter(np.float32(0), np.float32(1)),
            5,
        ]
        assert stored(image([7, -9999, 32767], "int16", nodata=-9999), nodata=32767) == [7, 32767, 32766]

    def test_a_cube_without_nodata_learns_it(self) -> None:
        kept = through(image([0, 5, 6], "uint8"), nodata=0)
        assert kept.values.ravel().tolist() == [0, 5, 6]
        assert np.isnan(physical_values(kept)).ravel().tolist() == [True, False, False]
        assert stored(image([-9999, 0.25, np.nan]), nodata=-9999) == [-9999, 0.25, -9999]

    def test_learned_and_converted_at_once(self) -> None:
        assert stored(image([-999, 0.25, np.nan]), nodata=-999, dtype="int16", scale_factor=0.01) == [-999, 25, -999]

    def test_one_that_does_not_fit_becomes_a_usual_one(self) -> None:
        with pytest.warns(UserWarning, match="nodata -9999 does not fit into uint8: it becomes 255"):
            assert stored(image([7, -9999], "int16", nodata=-9999), dtype="uint8") == [7, 255]

    def test_one_that_fits_stays(self) -> None:
        assert stored(image([7, 0], "int16", nodata=0), dtype="float32") == [7, 0]
        assert nodata_of(through(image([7, 0], "int16", nodata=0), dtype="float32")) == 0

    @pytest.mark.parametrize(
        ("dtype", "nodata"), [("uint8", 255), ("uint16", 65535), ("int16", -32768), ("int32", -(2**31))]
    )
    def test_nan_needs_a_number_among_integers(self, dtype: str, nodata: int) -> None:
        kept = through(image([7, np.nan]), dtype=dtype)
        assert nodata_of(kept) == nodata and kept.values.ravel().tolist() == [7, nodata]

    def test_integers_without_nodata_need_none(self) -> None:
        assert nodata_of(through(image([7, 8], "uint8"), dtype="int32")) is None
        assert nodata_of(through(image([7, np.nan]), dtype="float64")) is None

    @pytest.mark.parametrize(
        ("dtype", "nodata"), [("uint8", -1), ("uint8", 0.5), ("int16", float("nan")), ("float32", 1e300)]
    )
    def test_impossible(self, dtype: str, nodata: float) -> None:
        with pytest.raises(
            OptionError,
            match=rf"nodata {re.escape(f'{nodata:g}')} for {dtype} values; expected a .*number from .*--nodata",
        ):
            converted(image([1.0]), OutputConfig(dtype=dtype, nodata=nodata))


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "int12"}, "dtype 'int12'; expected uint8, int8, uint16"),
            ({"scale_factor": 0.0}, "scale factor 0; expected a number above 0"),
            ({"scale_factor": float("nan")}, "scale factor nan"),
            ({"compress": "rar"}, "'rar'; expected deflate, zstd, lzw or none"),
        ],
    )
    def test_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            OutputConfig(**options)

    def test_reflectance_in_whole_numbers(self) -> None:
        cube = image([0.1, 0.2, 0.6])
        message = (
            r"values from 0\.1 to 0\.6 as int16 in steps of 1: no difference would remain.*add --scale-factor 0\.0001"
        )
        with pytest.raises(OptionError, match=message):
            converted(cube, OutputConfig(dtype="int16"))
        with pytest.raises(OptionError, match=r"add --scale-factor 0\.01"):
            converted(cube, OutputConfig(dtype="uint8"))

    def test_a_map_of_classes_may_be_whole_numbers(self) -> None:
        assert stored(image([0, 1, 1, 0]), dtype="uint8") == [0, 1, 1, 0]

    def test_a_factor_far_too_small(self) -> None:
        with pytest.raises(
            OptionError, match=r"as int16: 67% of them do not fit; expected most within int16 .* \(-0\.032768 to 0\.0"
        ):
            converted(image([0.01, 0.2, 0.6]), OutputConfig(dtype="int16", scale_factor=1e-6))

    def test_nothing_to_judge_by(self) -> None:
        assert stored(image([np.nan, np.nan]), dtype="uint8") == [255, 255]


def test_lazy_and_by_band() -> None:
    cube = sample_cube(shape=(6, 40, 30), dtype="uint16")
    lazy, clipping = converted(cube, OutputConfig(bands="5,2", dtype="float32", scale_factor=1))
    window = lazy.isel(band=[1], y=slice(3, 5), x=slice(7, 9))
    expected = physical_values(cube, bands=[1], rows=slice(3, 5), columns=slice(7, 9))
    np.testing.assert_allclose(window.values, np.nan_to_num(expected), rtol=1e-6)
    assert clipping.values == np.isfinite(expected).sum() < expected.size
    assert lazy["band_name"].values.tolist() == ["channel 4", "channel 1"]
    carried = pickle.loads(pickle.dumps(lazy))
    np.testing.assert_array_equal(carried.values, lazy.values)


def test_templates_take_no_memory() -> None:
    place = {"crs": "EPSG:32633", "transform": Affine(10, 0, 0, 0, -10, 0), "nodata": -1}
    source = make_cube(np.broadcast_to(np.float32(0), (200, 5000, 5000)), **place)
    template = output_template(source, OutputConfig(dtype="float64", nodata=-2, scale_factor=0.5))
    assert template.dtype == np.float64 and template.shape == (200, 5000, 5000)
    assert source.values.strides == template.values.strides == (0, 0, 0)
    assert (nodata_of(source), nodata_of(template)) == (-1, -2)
    assert (source["scale"].values[0], template["scale"].values[0]) == (1, 0.5)


@st.composite
def conversions(draw: st.DrawFn) -> tuple[xr.DataArray, OutputConfig]:
    dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    integers = np.dtype(dtype).kind != "f"
    values = rng.uniform(0, 100, (3, 4, 5)).astype(dtype)
    nodata = draw(st.sampled_from([None, 0, 17, 100] + ([] if integers else [float("nan"), -9999.0])))
    if not integers:
        values[rng.random(values.shape) < 0.2] = np.nan
    scale = draw(st.sampled_from([1.0, 0.5, 1e-4, [1e-4, 1.0, 3.0]]))
    cube = make_cube(values, scale=scale, offset=draw(st.sampled_from([0.0, 1.0, -0.25])), nodata=nodata)
    output = OutputConfig(
        bands=draw(st.sampled_from([None, "2", "3,1", "good"])),
        dtype=draw(st.none() | st.sampled_from(DTYPES)),
        scale_factor=draw(st.sampled_from([None, 1.0, 0.01, 1e-5, 0.3])),
        nodata=draw(st.sampled_from([None, None, 0, 1, 120])),
    )
    return cube, output


@given(case=conversions())
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_values_come_back_to_the_promised_precision(case: tuple[xr.DataArray, OutputConfig]) -> None:
    """Half a step where there are steps, the type's own precision where not; what is missing stays missing, and only
    that.
    """
    cube, output = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            lazy, clipping = converted(cube, output)
        except OptionError:
            return
        kept = lazy.load()
    declared = (
        make_cube(cube.values, nodata=output.nodata) if nodata_of(cube) is None and output.nodata is not None else None
    )
    source = cube if declared is None else cube.rio.write_nodata(output.nodata)
    positions = {None: [0, 1, 2], "2": [1], "3,1": [2, 0], "good": [0, 1, 2]}[output.bands]
    before, after = (physical_values(each, dtype=np.float64) for each in (source.isel(band=positions), kept))
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    column = (-1, 1, 1)
    scale, offset = kept["scale"].values.reshape(column), kept["offset"].values.reshape(column)
    whole = kept.dtype.kind != "f"
    limits: Any = np.iinfo(kept.dtype) if whole else np.finfo(kept.dtype)
    with np.errstate(over="ignore"):
        expected = np.clip(before, float(limits.min) * scale + offset, float(limits.max) * scale + offset)
    # A measurement that would look like nodata moves one step aside.
    beside = np.isclose(kept.values.astype(np.float64), nodata_of(kept) or 0, atol=1)
    precision = np.finfo(np.float64 if whole else kept.dtype).eps * (np.abs(before) + np.abs(offset))
    allowed = (np.where(beside, 1.5, 0.5) * scale if whole else 0) + precision + 1e-12
    valid = ~np.isnan(before)
    assert (np.abs(after - expected)[valid] <= np.broadcast_to(allowed, before.shape)[valid]).all()
    assert (clipping.clipped == 0) or (np.abs(expected - before)[valid] > 0).any()


def test_values_that_become_zero_are_reported() -> None:
    cube = make_cube(np.full((1, 2, 2), 1e-300))
    with pytest.warns(UserWarning, match="too small for float32 and become 0"):
        physical_values(cube)
    with pytest.warns(UserWarning, match="too small for float32 and become 0"):
        _ = converted(cube, OutputConfig(dtype="float32"))[0].values
