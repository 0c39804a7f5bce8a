"""Evaluation over windows: equal to the pure functions whatever the windows, bounded in memory, with clear errors."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
import xarray as xr
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError
from hyperfuse.io.cube import lazy_variable, make_cube
from hyperfuse.metrics import metrics
from hyperfuse.metrics.evaluation import Evaluation, evaluate
from hyperfuse.metrics.sums import default_peak

TRANSFORM = Affine(10, 0, 500_000, 0, -10, 4_200_000)


def make_values(
    seed: int, shape: tuple[int, int, int], holes: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    reference = rng.uniform(-0.1, 3, shape)
    fused = reference + 0.3 * rng.standard_normal(shape)
    fused[rng.uniform(size=shape) < holes] = np.nan
    reference[:, rng.uniform(size=shape[1:]) < holes] = np.nan
    return fused, reference


def placed(
    values: NDArray[np.float64], *, transform: Affine = TRANSFORM, crs: str = "EPSG:32632", **known: object
) -> xr.DataArray:
    wavelength_nm = np.linspace(400, 2400, len(values))
    return make_cube(values, wavelength_nm=wavelength_nm, crs=crs, transform=transform, **known)


def assert_same_as_whole_arrays(
    scores: Evaluation, fused: NDArray[np.float64], reference: NDArray[np.float64], good: NDArray[np.bool_]
) -> None:
    valid = good[:, None, None]
    peak = default_peak(reference, valid)
    close = {"rel": 1e-9, "nan_ok": True}

    def defined(value: float | None) -> float:
        return math.nan if value is None else value

    assert scores.peak == peak
    assert scores.psnr_db == pytest.approx(metrics.psnr_db(fused, reference, peak, valid), **close)
    assert scores.mean_band_psnr_db == pytest.approx(metrics.mean_band_psnr_db(fused, reference, peak, valid), **close)
    assert scores.spectral_angle_degrees == pytest.approx(metrics.sam_degrees(fused, reference, valid), **close)
    assert defined(scores.ergas) == pytest.approx(metrics.ergas(fused, reference, 3.2, valid), **close)
    assert defined(scores.ssim) == pytest.approx(metrics.ssim(fused, reference, peak, valid), **close)
    assert defined(scores.uqi) == pytest.approx(metrics.uiqi(fused, reference, valid), **close)
    assert defined(scores.q2n) == pytest.approx(metrics.q2n(fused, reference, valid), **close)
    assert scores.rmse == pytest.approx(metrics.rmse(fused, reference, valid), **close)
    np.testing.assert_allclose(scores.band_psnr_db, metrics.band_psnr_db(fused, reference, peak, valid), rtol=1e-9)
    np.testing.assert_allclose(scores.band_rmse, metrics.band_rmse(fused, reference, valid), rtol=1e-9)
    np.testing.assert_allclose(scores.band_ssim, metrics.band_ssim(fused, reference, peak, valid), rtol=1e-9)
    np.testing.assert_allclose(scores.band_uqi, metrics.band_uiqi(fused, reference, valid), rtol=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    bands=st.integers(1, 5),
    height=st.integers(1, 70),
    width=st.integers(1, 40),
    max_bytes=st.integers(1, 20_000),
    holes=st.sampled_from([0.0, 0.002, 0.3]),
    seed=st.integers(0, 2**16),
)
def test_windows_do_not_change_the_scores(
    bands: int, height: int, width: int, max_bytes: int, holes: float, seed: int
) -> None:
    fused, reference = make_values(seed, (bands, height, width), holes)
    fused[0, 0, 0] = reference[0, 0, 0] = 1.5
    good = np.arange(bands) != 1
    scores = evaluate(placed(fused, good=good), placed(reference), scale=3.2, q2n=True, max_bytes=max_bytes)
    assert_same_as_whole_arrays(scores, fused, reference, good)


@pytest.mark.parametrize("max_bytes", [1, 50_000, 400_000])
def test_columns_are_split_too(max_bytes: int) -> None:
    fused, reference = make_values(5, (2, 40, 530), 0.001)
    scores = evaluate(placed(fused), placed(reference), scale=3.2, q2n=True, max_bytes=max_bytes)
    assert_same_as_whole_arrays(scores, fused, reference, np.ones(2, bool))


class Waves:
    """A cube that exists only as a formula: every window is computed when it is read."""

    shape = (16, 900, 1000)
    dtype = np.dtype(np.float32)
    block = None

    def __init__(self, error: float) -> None:
        self.error = error

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        b = np.asarray(bands, np.float32)[:, None, None]
        y = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None]
        x = np.arange(columns.start, columns.stop, dtype=np.float32)
        return (0.5 + 0.4 * np.sin(y / 7 + b) * np.cos(x / 11) + self.error * ((y + x) % 2)).astype(np.float32)


def test_a_cube_larger_than_the_memory_it_may_use() -> None:
    fused, reference = (make_cube(lazy_variable(Waves(error))) for error in (0.01, 0.0))
    whole_bytes = 16 * 900 * 1000 * 4
    tracemalloc.start()
    scores = evaluate(fused, reference, scale=4, q2n=True, max_bytes=2**20)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 16 * 2**20 < 2 * whole_bytes / 6
    assert scores.psnr_db == pytest.approx(10 * math.log10(1 / (0.01**2 / 2)), abs=1e-3)
    assert scores.compared_fraction == 1


def test_nodata_scale_and_offset_are_understood() -> None:
    stored = np.arange(2 * 12 * 12, dtype=np.int16).reshape(2, 12, 12)
    fused = stored + 5
    stored[0, 0, 0] = fused[0, 0, 0] = fused[1, 3, 3] = -9999
    reference_cube = make_cube(stored, scale=1e-3, offset=0.25, nodata=-9999)
    fused_cube = make_cube(fused, scale=1e-3, offset=0.25, nodata=-9999)
    scores = evaluate(fused_cube, reference_cube)
    assert scores.rmse == pytest.approx(0.005, rel=1e-12)
    assert scores.peak == 1.0
    assert scores.compared_fraction == pytest.approx(1 - 2 / 288)
    assert any("no data at 1 values" in note for note in scores.notes)


def test_scale_is_remembered_by_the_fused_cube() -> None:
    fused, reference = make_values(0, (3, 12, 12))
    with_scale = placed(fused, attributes={"hyperfuse_scale": "4"})
    assert evaluate(with_scale, placed(reference)).ergas == pytest.approx(metrics.ergas(fused, reference, 4))
    assert evaluate(with_scale, placed(reference), scale=8).ergas == pytest.approx(metrics.ergas(fused, reference, 8))
    for known in ({}, {"hyperfuse_scale": "unknown"}, {"hyperfuse_scale": -1.0}):
        scores = evaluate(placed(fused, attributes=known), placed(reference))
        assert scores.ergas is None and scores.scale is None
        assert any("--scale" in note for note in scores.notes)


def test_the_dictionary_is_json_and_explains_null_scores() -> None:
    _, reference = make_values(0, (3, 12, 12))
    cube = placed(reference, good=[True, False, True])
    result = json.loads(json.dumps(evaluate(cube, cube, q2n=True).as_dict(), allow_nan=False))
    assert (
        result["psnr_db"] is None
        and result["mean_band_psnr_db"] is None
        and result["q2n"] is None
        and result["ergas"] is None
    )
    assert result["rmse"] == 0 and result["ssim"] == pytest.approx(1) and result["spectral_angle_degrees"] == 0
    assert result["bands"] == 3 and result["compared_bands"] == 2
    assert [band["wavelength_nm"] for band in result["per_band"]] == [400, 1400, 2400]
    assert [band["rmse"] for band in result["per_band"]] == [0, None, 0]
    assert [band["band"] for band in result["per_band"]] == [1, 2, 3]
    notes = " / ".join(result["notes"])
    for expected in ("PSNR is infinite", "1 of 3 bands are marked bad", "no Q2n", "no ERGAS"):
        assert expected in notes


def test_notes_name_every_exclusion() -> None:
    fused, reference = make_values(0, (4, 8, 8))
    fused[0] = reference[0]
    reference[1] = 0
    reference[2] = np.nan
    shifted_nm = np.linspace(400, 2400, 4) + 3
    scores = evaluate(placed(fused).assign_coords(wavelength=("band", shifted_nm)), placed(reference), scale=4)
    notes = " / ".join(scores.notes)
    for expected in (
        "1 bands have no error",
        "1 bands have a reference of mean zero",
        "1 bands have no value",
        "differ by up to 3.0 nm",
        "no SSIM",
    ):
        assert expected in notes
    assert scores.ssim is None and scores.uqi is None
    assert math.isfinite(scores.mean_band_psnr_db) and scores.ergas is not None


def test_one_pixel_and_plain_arrays() -> None:
    fused, reference = np.full((2, 1, 1), 0.5), np.full((2, 1, 1), 0.4)
    scores = evaluate(fused, reference, scale=2)  # type: ignore[arg-type]
    assert scores.psnr_db == pytest.approx(20) and scores.spectral_angle_degrees == pytest.approx(0, abs=1e-6)
    assert scores.ssim is None


def test_grids_must_match() -> None:
    fused, reference = make_values(0, (2, 12, 12))
    with pytest.raises(GridError, match="12x12 pixels, the reference 11x12"):
        evaluate(placed(fused), placed(reference[:, :, :11]))
    moved = Affine(10, 0, 500_000.1, 0, -10, 4_200_000)
    with pytest.raises(GridError, match=r"0\.01 pixels apart"):
        evaluate(placed(fused, transform=moved), placed(reference))
    stretched = Affine(10.1, 0, 500_000, 0, -10.1, 4_200_000)
    with pytest.raises(GridError, match="pixels apart"):
        evaluate(placed(fused, transform=stretched), placed(reference))
    with pytest.raises(GridError, match="coordinate reference systems"):
        evaluate(placed(fused, crs="EPSG:32633"), placed(reference))
    nearly = Affine(10, 0, 500_000.001, 0, -10, 4_199_999.999)
    assert evaluate(placed(fused, transform=nearly), placed(reference)).psnr_db > 0
    assert evaluate(make_cube(fused), placed(reference)).psnr_db > 0


def test_other_errors() -> None:
    fused, reference = make_values(0, (2, 12, 12))
    with pytest.raises(BandError, match="2 bands, the reference 1"):
        evaluate(placed(fused), placed(reference[:1]))
    with pytest.raises(BandError, match="no band is marked good"):
        evaluate(placed(fused, good=[True, False]), placed(reference, good=[False, True]))
    nothing = placed(np.full((2, 12, 12), np.nan))
    with pytest.raises(ValueRangeError, match="no value is valid"):
        evaluate(placed(fused), nothing)
    with pytest.raises(ValueRangeError, match="no value is valid"):
        evaluate(nothing, placed(reference))
    with pytest.raises(ValueRangeError, match="no value is valid"):
        evaluate(placed(fused), nothing, peak=1)
    with pytest.raises(OptionError, match="scale"):
        evaluate(placed(fused), placed(reference), scale=-4)
    with pytest.raises(OptionError, match="peak"):
        evaluate(placed(fused), placed(reference), peak=0)


@pytest.mark.parametrize("size", [1e150, 1e160, 1e300])
@pytest.mark.parametrize("larger", ["fused", "reference", "both"])
def test_values_whose_squares_are_not_finite_are_refused(size, larger):
    cube = np.random.default_rng(0).uniform(0.1, 1, (3, 32, 32))
    fused, reference = cube * (1 if larger == "reference" else size), cube[::-1] * (1 if larger == "fused" else size)
    with pytest.raises(ValueRangeError, match="finite"):
        evaluate(make_cube(fused), make_cube(reference))
