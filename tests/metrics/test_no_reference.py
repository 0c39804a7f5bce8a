"""Indices without a reference, consistency and reduced-resolution scores: against slow loops, and on known cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.tiny_pairs import TinyPair, tiny_pair

from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.metrics.no_reference import (
    assess_at_reduced_resolution,
    band_pair_quality,
    band_quality,
    consistency,
    d_k,
    d_lambda,
    d_s,
    degrade_to_hsi,
    no_reference_scores,
)
from hyperfuse.physics.resample import upsample_bicubic


def slow_index(first: np.ndarray, second: np.ndarray) -> float:
    """Wang and Bovik's Q of two lists of pixels, word for word."""
    x, y = first.ravel(), second.ravel()
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    var_x = sum((a - mean_x) ** 2 for a in x) / len(x)
    var_y = sum((b - mean_y) ** 2 for b in y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / len(x)
    return 4 * covariance * mean_x * mean_y / ((var_x + var_y) * (mean_x**2 + mean_y**2))


def slow_mean_index(first: np.ndarray, second: np.ndarray, side: int) -> float:
    found = []
    for y in range(0, first.shape[0] - side + 1, side):
        for x in range(0, first.shape[1] - side + 1, side):
            block = (slice(y, y + side), slice(x, x + side))
            if np.isfinite(first[block]).all() and np.isfinite(second[block]).all():
                found.append(slow_index(first[block], second[block]))
    return float(np.mean(found))


@pytest.fixture(scope="module")
def pair() -> TinyPair:
    return tiny_pair(bands=6, coarse=(20, 24), scale=4.0)


def test_all_pairs_of_bands_against_a_loop() -> None:
    image = np.random.default_rng(0).random((3, 18, 19)) + 0.2
    found = band_pair_quality(image, 8)
    assert found is not None
    for i in range(3):
        for j in range(3):
            assert found[i, j] == pytest.approx(slow_mean_index(image[i], image[j], 8), rel=1e-10)


def test_partners_against_a_loop_and_holes_do_not_count() -> None:
    random = np.random.default_rng(1)
    first, second = random.random((2, 16, 24)) + 0.1, random.random((2, 16, 24)) + 0.1
    first[0, 3, 3] = np.nan  # takes its whole block out, for all bands
    found = band_quality(first, second, 8)
    assert found is not None
    first[:, :8, :8] = np.nan
    for band in range(2):
        assert found[band] == pytest.approx(slow_mean_index(first[band], second[band], 8), rel=1e-10)


def test_d_lambda_and_d_s_against_their_equations() -> None:
    random = np.random.default_rng(2)
    fused, hsi = random.random((3, 32, 32)) + 0.1, random.random((3, 8, 8)) + 0.1
    msi, coarse_msi = random.random((1, 32, 32)) + 0.1, random.random((1, 8, 8)) + 0.1
    differences = [
        abs(slow_mean_index(fused[i], fused[j], 16) - slow_mean_index(hsi[i], hsi[j], 8))
        for i in range(3)
        for j in range(3)
        if i != j
    ]
    assert d_lambda(fused, hsi, 16, 8) == pytest.approx(np.mean(differences), rel=1e-10)
    differences = []
    for band in range(3):
        gain = hsi[band].std() / coarse_msi[0].std()
        offset = hsi[band].mean() - gain * coarse_msi[0].mean()
        fine, coarse = msi[0] * gain + offset, coarse_msi[0] * gain + offset
        differences.append(abs(slow_mean_index(fused[band], fine, 16) - slow_mean_index(hsi[band], coarse, 8)))
    assert d_s(fused, hsi, msi, coarse_msi, 16, 8) == pytest.approx(np.mean(differences), rel=1e-10)


def test_indices_do_not_depend_on_the_msi_s_unit_nor_on_one_for_both() -> None:
    random = np.random.default_rng(3)
    fused, hsi = random.random((3, 32, 32)) + 0.1, random.random((3, 8, 8)) + 0.1
    msi, coarse_msi = random.random((2, 32, 32)) + 0.1, random.random((2, 8, 8)) + 0.1
    plain = no_reference_scores(fused, hsi, msi, hsi, coarse_msi, 4.0)
    other = no_reference_scores(1e4 * fused, 1e4 * hsi, 7 * msi + 3, 1e4 * hsi, 7 * coarse_msi + 3, 4.0)
    assert other.qnr == pytest.approx(plain.qnr, rel=1e-9)
    assert plain.khan_distortion == pytest.approx(0, abs=1e-12)
    assert plain.hqnr == pytest.approx(1 - plain.spatial_distortion, rel=1e-12)
    assert plain.qnr == pytest.approx((1 - plain.spectral_distortion) * (1 - plain.spatial_distortion))


def test_constant_black_small_and_empty_images() -> None:
    flat, black = np.full((2, 16, 16), 0.5), np.zeros((2, 16, 16))
    assert band_pair_quality(flat, 8) == pytest.approx(1)
    assert band_pair_quality(black, 8) == pytest.approx(1)
    assert d_lambda(flat[:1], flat[:1], 8, 8) == 0
    nothing = np.full((2, 16, 16), np.nan)
    assert d_lambda(nothing, flat, 8, 8) is None
    assert d_s(flat, nothing, flat, flat, 8, 8) is None
    assert d_k(flat[:, :4], flat[:, :4], 8) is None
    scores = no_reference_scores(
        flat[:, :1, :1], flat[:, :1, :1], flat[:, :1, :1], flat[:, :1, :1], flat[:, :1, :1], 1.0
    )
    assert scores.qnr is None and scores.hqnr is None


def test_the_truth_is_consistent_and_a_blurred_image_is_not_with_the_msi(pair: TinyPair) -> None:
    truth = consistency(pair.reference, pair.hsi, pair.msi, pair.observation)
    assert truth.with_hsi.relative == pytest.approx(0, abs=1e-6)
    assert truth.with_msi.relative == pytest.approx(0, abs=1e-6)
    assert truth.with_hsi.spectral_angle_degrees == pytest.approx(0, abs=1e-3)
    blurred = consistency(
        upsample_bicubic(pair.hsi, (80, 96), pair.observation.placement), pair.hsi, pair.msi, pair.observation
    )
    assert blurred.with_msi.relative > 0.03
    assert blurred.with_hsi.relative < blurred.with_msi.relative
    assert blurred.with_msi.error_map.shape == (80, 96)
    assert np.nanmax(blurred.with_hsi.band_relative) < 0.2


def test_pixels_beyond_the_edge_and_under_holes_are_not_compared(pair: TinyPair) -> None:
    fused = pair.reference.clone()
    fused[:, 40:44, 40:44] = torch.nan
    seen = degrade_to_hsi(fused, (20, 24), pair.observation)
    assert np.isnan(seen[:, 10, 10]).all()
    assert np.isnan(seen[:, 0]).all() and np.isnan(seen[:, :, -1]).all()
    assert np.isfinite(seen[:, 3:7, 3:7]).all()
    nothing = consistency(torch.full_like(fused, torch.nan), pair.hsi, pair.msi, pair.observation)
    assert nothing.with_hsi.rmse is None and nothing.with_msi.relative is None


def test_the_better_method_is_found_one_scale_coarser(pair: TinyPair) -> None:
    def by(method: str):
        return lambda hsi, msi, observation: fuse_arrays(hsi, msi, observation, method)

    sharp, blurred = (
        assess_at_reduced_resolution(pair.hsi, pair.msi, pair.observation, by(name)) for name in ("fuse", "bicubic")
    )
    assert sharp is not None and blurred is not None
    assert sharp.psnr_db > blurred.psnr_db + 1
    assert blurred.psnr_db == pytest.approx(blurred.bicubic_psnr_db, abs=1e-3)
    assert sharp.coarser_size == (5, 6)
    holed = pair.hsi.clone()
    holed[:, 10, 10] = torch.nan
    again = assess_at_reduced_resolution(holed, pair.msi, pair.observation, by("bicubic"))
    assert again is not None and np.isfinite(again.psnr_db)
    assert assess_at_reduced_resolution(pair.hsi[:, :6], pair.msi[:, :24], pair.observation, by("bicubic")) is None
