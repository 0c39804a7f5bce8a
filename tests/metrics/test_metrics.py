"""Each metric against an independent loop, against torchmetrics where that is defined, and at its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.metrics import metric_oracles as oracle

from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError
from hyperfuse.metrics import metrics
from hyperfuse.metrics.sums import default_peak

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def make_pair(seed: int = 0, shape: tuple[int, int, int] = (5, 19, 23), noise: float = 0.05) -> Pair:
    rng = np.random.default_rng(seed)
    reference = rng.uniform(0.05, 0.95, shape)
    return reference + noise * rng.standard_normal(shape), reference


def make_valid(shape: tuple[int, int, int], seed: int = 1) -> NDArray[np.bool_]:
    """Scattered invalid pixels that still leave whole 11 x 11 windows, and one bad band."""
    valid = np.ones(shape, bool)
    valid[:, :3, :3] = False
    valid[1] = False
    valid[2, -1, np.random.default_rng(seed).integers(0, shape[2], 3)] = False
    return valid


@pytest.mark.parametrize("masked", [False, True])
def test_every_metric_agrees_with_its_oracle(masked: bool) -> None:
    fused, reference = make_pair()
    valid = make_valid(fused.shape) if masked else None
    if masked:
        fused[0, 4, 5], reference[3, 10, 2] = np.nan, np.inf
    close = pytest.approx
    assert metrics.psnr_db(fused, reference, 1.0, valid) == close(
        oracle.psnr_db(fused, reference, 1.0, valid), rel=1e-12
    )
    assert metrics.mean_band_psnr_db(fused, reference, 2.0, valid) == close(
        oracle.mean_band_psnr_db(fused, reference, 2.0, valid), rel=1e-12
    )
    assert metrics.ergas(fused, reference, 3.2, valid) == close(oracle.ergas(fused, reference, 3.2, valid), rel=1e-12)
    assert metrics.sam_degrees(fused, reference, valid) == close(
        oracle.spectral_angle_degrees(fused, reference, valid), rel=1e-10
    )
    np.testing.assert_allclose(
        metrics.band_rmse(fused, reference, valid), oracle.band_rmse(fused, reference, valid), rtol=1e-12
    )
    ssim = oracle.band_local_index(fused, reference, (0.01 * 1.3) ** 2, (0.03 * 1.3) ** 2, valid)
    np.testing.assert_allclose(metrics.band_ssim(fused, reference, 1.3, valid), ssim, rtol=1e-10)
    assert metrics.ssim(fused, reference, 1.3, valid) == close(np.nanmean(ssim), rel=1e-10)
    uqi = oracle.band_local_index(fused, reference, 0.0, 0.0, valid)
    np.testing.assert_allclose(metrics.band_uiqi(fused, reference, valid), uqi, rtol=1e-9)
    assert metrics.uiqi(fused, reference, valid) == close(np.nanmean(uqi), rel=1e-9)


def test_torchmetrics_agrees_where_it_is_defined() -> None:
    torch = pytest.importorskip("torch")
    from torchmetrics.functional.image import (
        error_relative_global_dimensionless_synthesis,
        peak_signal_noise_ratio,
        spectral_angle_mapper,
        structural_similarity_index_measure,
        universal_image_quality_index,
    )

    fused, reference = make_pair(seed=3, shape=(6, 32, 40))
    f, r = torch.from_numpy(fused)[None], torch.from_numpy(reference)[None]
    # torchmetrics keeps its logarithms in float32, hence 1e-6.
    assert metrics.psnr_db(fused, reference, 1.0) == pytest.approx(
        float(peak_signal_noise_ratio(f, r, data_range=1.0)), rel=1e-6
    )
    bands = [float(peak_signal_noise_ratio(f[:, b], r[:, b], data_range=1.0)) for b in range(6)]
    np.testing.assert_allclose(metrics.band_psnr_db(fused, reference, 1.0), bands, rtol=1e-6)
    assert metrics.sam_degrees(fused, reference) == pytest.approx(
        math.degrees(float(spectral_angle_mapper(f, r))), rel=1e-9
    )
    expected = float(error_relative_global_dimensionless_synthesis(f, r, ratio=4))
    assert metrics.ergas(fused, reference, 4) == pytest.approx(expected, rel=1e-12)
    one_band = [
        float(
            structural_similarity_index_measure(
                f[:, b : b + 1], r[:, b : b + 1], sigma=1.5, kernel_size=11, data_range=1.0
            )
        )
        for b in range(6)
    ]
    # torchmetrics averages over the image reflected at its edges, ours over whole windows: crop to what both see.
    _, full = structural_similarity_index_measure(
        f, r, sigma=1.5, kernel_size=11, data_range=1.0, return_full_image=True
    )
    inner = full[0, :, 5:-5, 5:-5].mean(dim=(1, 2)).numpy()
    np.testing.assert_allclose(metrics.band_ssim(fused, reference, 1.0), inner, rtol=1e-10)
    np.testing.assert_allclose(metrics.band_ssim(fused, reference, 1.0), one_band, atol=0.02)
    expected = float(universal_image_quality_index(f, r, kernel_size=(11, 11), sigma=(1.5, 1.5)))
    assert metrics.uiqi(fused, reference) == pytest.approx(expected, rel=1e-10)


def test_a_black_pixel_has_an_angle() -> None:
    reference = np.ones((4, 1, 3))
    fused = np.ones((4, 1, 3))
    fused[:, 0, 0] = 0
    assert metrics.sam_degrees(fused, reference) == pytest.approx(90 / 3)
    reference[:, 0, 0] = 0
    assert metrics.sam_degrees(fused, reference) == 0
    fused[:, 0, 0] = 1
    assert metrics.sam_degrees(fused, reference) == pytest.approx(90 / 3)


def test_small_angles_are_exact_and_opposite_spectra_are_180_degrees() -> None:
    reference = np.array([1.0, 0.0]).reshape(2, 1, 1)
    fused = np.array([1.0, 1e-10]).reshape(2, 1, 1)
    assert metrics.sam_degrees(fused, reference) == pytest.approx(math.degrees(1e-10), rel=1e-12)
    assert metrics.sam_degrees(-reference, reference) == pytest.approx(180)
    assert metrics.sam_degrees(3 * reference, reference) == 0


def test_a_zero_mean_band_is_left_out_of_ergas() -> None:
    fused, reference = make_pair(shape=(3, 8, 8))
    reference[1] -= reference[1].mean()
    expected = metrics.ergas(fused[[0, 2]], reference[[0, 2]], 4)
    assert metrics.ergas(fused, reference, 4) == pytest.approx(expected, rel=1e-12)
    assert math.isnan(metrics.ergas(fused[1:2], reference[1:2] * 0, 4))


def test_equal_images_are_perfect() -> None:
    _, reference = make_pair(shape=(4, 33, 33))
    assert metrics.psnr_db(reference, reference) == math.inf
    assert metrics.mean_band_psnr_db(reference, reference) == math.inf
    assert metrics.rmse(reference, reference) == 0
    assert metrics.sam_degrees(reference, reference) == 0
    assert metrics.ergas(reference, reference, 2) == 0
    for index in (metrics.ssim, metrics.uiqi, metrics.q2n):
        assert index(reference, reference) == pytest.approx(1, abs=1e-12)


def test_a_band_without_error_does_not_count_in_the_mean_of_bands() -> None:
    fused, reference = make_pair(shape=(3, 6, 6))
    fused[1] = reference[1]
    bands = metrics.band_psnr_db(fused, reference, 1.0)
    assert bands[1] == math.inf
    assert metrics.mean_band_psnr_db(fused, reference, 1.0) == pytest.approx((bands[0] + bands[2]) / 2, rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 7e3])
def test_constant_images(value: float) -> None:
    image = np.full((3, 40, 40), value)
    for index in (metrics.ssim, metrics.uiqi, metrics.q2n):
        assert index(image, image) == pytest.approx(1, abs=1e-9)
    brighter = image + 0.1
    luminance = 2 * value * (value + 0.1) / (value**2 + (value + 0.1) ** 2)
    assert metrics.uiqi(brighter, image) == pytest.approx(luminance, abs=1e-9)
    assert 0 <= metrics.q2n(brighter, image) <= 1 + 1e-12
    assert metrics.ssim(brighter, image) <= 1


def test_one_pixel() -> None:
    fused, reference = np.array([0.5, 0.2]).reshape(2, 1, 1), np.array([0.4, 0.2]).reshape(2, 1, 1)
    assert metrics.psnr_db(fused, reference) == pytest.approx(10 * math.log10(2 / 0.1**2))
    assert metrics.sam_degrees(fused, reference) == pytest.approx(oracle.spectral_angle_degrees(fused, reference))
    assert math.isnan(metrics.ssim(fused, reference))
    assert math.isnan(metrics.uiqi(fused, reference))
    assert math.isnan(metrics.q2n(fused, reference))


def test_windows_that_do_not_fit_do_not_count() -> None:
    fused, reference = make_pair(shape=(2, 10, 40))
    assert math.isnan(metrics.ssim(fused, reference))
    fused, reference = make_pair(shape=(2, 11, 11))
    assert math.isfinite(metrics.ssim(fused, reference))
    fused[0, 5, 5] = np.nan
    assert np.isnan(metrics.band_ssim(fused, reference)).tolist() == [True, False]


def test_what_is_excluded_has_no_influence() -> None:
    fused, reference = make_pair(shape=(4, 40, 70))
    valid = make_valid(fused.shape)
    reference.flat[0] = 0.0
    wild = np.where(valid, fused, 1e9)
    blank = np.where(valid, fused, np.nan)
    for metric in (metrics.psnr_db, metrics.mean_band_psnr_db, metrics.ssim):
        assert metric(wild, reference, None, valid) == metric(blank, reference)
    for metric in (metrics.rmse, metrics.sam_degrees, metrics.uiqi, metrics.q2n):
        assert metric(wild, reference, valid) == metric(blank, reference)
    assert metrics.ergas(wild, reference, 4, valid) == metrics.ergas(blank, reference, 4)


def test_integers_are_compared_as_numbers_not_modulo() -> None:
    reference = np.full((1, 2, 2), 250, np.uint8)
    fused = np.full((1, 2, 2), 5, np.uint8)
    assert metrics.rmse(fused, reference) == 245


@pytest.mark.parametrize(
    ("lowest", "highest", "peak"),
    [(0.0, 1.0, 1.0), (0.2, 0.4, 1.0), (-0.01, 0.5, 0.5), (0.0, 4095.0, 4095.0), (0.0, 1.25, 1.25)],
)
def test_the_default_peak(lowest: float, highest: float, peak: float) -> None:
    reference = np.linspace(lowest, highest, 8).reshape(2, 2, 2)
    assert default_peak(reference) == peak
    fused = reference + 0.1
    assert metrics.psnr_db(fused, reference) == metrics.psnr_db(fused, reference, peak)


def test_the_default_peak_ignores_what_is_excluded() -> None:
    reference = np.array([0.1, 0.2, 5000.0, np.nan]).reshape(1, 2, 2)
    assert default_peak(reference, np.array([[True, True], [False, True]])) == 1.0


def test_errors() -> None:
    image = np.ones((2, 3, 3))
    with pytest.raises(BandError, match="2 bands, the reference 3"):
        metrics.rmse(image, np.ones((3, 3, 3)))
    with pytest.raises(GridError, match="same size"):
        metrics.rmse(image, np.ones((2, 3, 4)))
    with pytest.raises(GridError, match="dimensions"):
        metrics.rmse(image[0], image[0])
    with pytest.raises(ValueRangeError, match="no value is valid"):
        metrics.rmse(image, np.full((2, 3, 3), np.nan))
    with pytest.raises(ValueRangeError, match="--peak"):
        metrics.psnr_db(image, -image)
    with pytest.raises(OptionError, match="scale"):
        metrics.ergas(image, image, 0)
    with pytest.raises(OptionError, match="peak"):
        metrics.psnr_db(image, image, math.nan)
