"""Observations: known ones, their windows, and those estimated on seeded scenes, or refused with a reason."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.tiny_pairs import tiny_pair

from hyperfuse.errors import BandError, GridError, ValueRangeError
from hyperfuse.physics.estimate import (
    KnownParts,
    _CoarseSpectra,
    _probability,
    estimate_observation,
    fit_srf,
    roughness_matrix,
)
from hyperfuse.physics.observation import known_observation
from hyperfuse.physics.register import Registration
from hyperfuse.physics.sampling import estimate_noise

PARTS = [  # scale, sigma, shift
    (4.0, 1.7, (0.0, 0.0)),
    (4.0, (1.2, 2.2), (3.9, -2.3)),
    (3.2, 1.5, (-0.4, 1.1)),
    (8.0, (3.0, 4.0), (-6.0, 0.5)),
]


@pytest.mark.parametrize(("scale", "sigma", "shift"), PARTS)
@pytest.mark.parametrize("snr_db", [None, 35.0])
def test_psf_and_shift_are_found(scale, sigma, shift, snr_db):
    pair = tiny_pair(16, 3, (30, 32), scale, sigma, shift, snr_db)
    found = estimate_observation(pair.hsi, pair.msi)
    slack = 1 if snr_db is None else 2
    for axis in (0, 1):
        assert found.sigma[axis] == pytest.approx(pair.observation.sigma[axis], rel=0.02 * slack)
        assert found.misregistration[axis] == pytest.approx(shift[axis], abs=0.05 * slack)
    assert found.confidence > 0.9
    assert found.notes == ()


@pytest.mark.parametrize(("detector", "sigma"), [((4.0, 4.0), 4 / 12**0.5), ((4.0, 4.0), 1.4), ((0.0, 0.0), 1.4)])
def test_the_shape_of_the_psf_is_found(detector, sigma):
    pair = tiny_pair(12, 3, (30, 32), 4)
    truth = replace(pair.observation, sigma=(sigma, sigma), detector=detector)
    hsi = truth.spatial_operator((120, 128), (30, 32)).apply(pair.reference)
    for image in (hsi, hsi + 0.002 * torch.randn(hsi.shape, generator=torch.Generator().manual_seed(0))):
        found = estimate_observation(image, pair.msi)
        assert found.detector == detector
        assert found.sigma == pytest.approx((sigma, sigma), rel=0.03)
        assert found.confidence > 0.9


def test_shift_is_counted_from_the_georeference():
    pair = tiny_pair(12, 3, (24, 24), 4, shift=(2.0, -1.5))
    found = estimate_observation(pair.hsi, pair.msi, grid_shift=(1.5, -1.0))
    assert found.grid_shift == (1.5, -1.0)
    assert found.shift == pytest.approx((2.0, -1.5), abs=0.05)
    assert found.misregistration == pytest.approx((0.5, -0.5), abs=0.05)


def test_large_images_are_sampled_in_blocks():
    pair = tiny_pair(6, 3, (100, 110), 4, (1.5, 1.9), (0.7, -2.4))
    found = estimate_observation(pair.hsi, pair.msi)
    assert found.sigma == pytest.approx((1.5, 1.9), rel=0.02)
    assert found.shift == pytest.approx((0.7, -2.4), abs=0.05)


def test_nodata_is_left_out():
    pair = tiny_pair(12, 3, (30, 30), 4, 1.5, (1.0, -0.7))
    hsi, msi = pair.hsi.clone(), pair.msi.clone()
    hsi[:, 3:6, 8:20] = torch.nan
    msi[:, 70:95, 10:60] = torch.nan
    found = estimate_observation(hsi, msi)
    assert found.sigma == pytest.approx((1.5, 1.5), rel=0.02)
    assert found.shift == pytest.approx((1.0, -0.7), abs=0.05)
    assert torch.isfinite(found.srf).all()
    assert torch.isfinite(found.hsi_noise).all()


def test_srf_is_smooth_non_negative_and_reproduces_the_msi():
    pair = tiny_pair(24, 3, (24, 24), 4)
    found = estimate_observation(pair.hsi, pair.msi, wavelength_nm=np.linspace(400, 900, 24))
    assert (found.srf >= 0).all()
    seen = pair.observation.spatial_operator((96, 96), (24, 24)).apply(pair.msi.double())
    imitated = torch.einsum("mc,cyx->myx", found.srf, pair.hsi.double())
    assert (imitated - seen).abs().max() < 5e-3
    assert found.offset.abs().max() == 0
    jumps = found.srf.diff(dim=1).abs().max(1).values
    assert (jumps < found.srf.max(1).values).all()


def test_an_offset_between_the_sensors_is_found():
    pair = tiny_pair(12, 3, (24, 24), 4)
    found = estimate_observation(pair.hsi, pair.msi - 0.6)
    assert found.offset == pytest.approx([-0.6] * 3, abs=0.05)


@pytest.mark.parametrize("level", [0.003, 0.02])
def test_noise_levels(level):
    pair = tiny_pair(16, 4, (40, 40), 4)
    generator = torch.Generator().manual_seed(3)
    hsi = pair.hsi + level * torch.randn(pair.hsi.shape, generator=generator)
    msi = pair.msi + level * torch.randn(pair.msi.shape, generator=generator)
    found = estimate_observation(hsi, msi)
    assert float(found.hsi_noise.mean()) == pytest.approx(level, rel=0.3)
    assert float(found.msi_noise.mean()) == pytest.approx(level, rel=0.3)


def test_a_known_srf_is_scaled_to_the_unit_of_the_msi():
    pair = tiny_pair()
    known = KnownParts(srf=pair.observation.srf)
    same, other = (estimate_observation(pair.hsi, msi, known=known) for msi in (pair.msi, 1e4 * pair.msi))
    assert torch.equal(same.srf, pair.observation.srf)
    assert torch.allclose(other.srf, 1e4 * same.srf, rtol=0.02)
    assert float(other.msi_noise.max()) < 1e4 * 0.02


def test_noise_of_pure_noise_and_of_nothing():
    generator = torch.Generator().manual_seed(4)
    assert estimate_noise(torch.randn(5, 120, 130, generator=generator)) == pytest.approx([1.0] * 5, rel=0.1)
    assert estimate_noise(torch.ones(3, 30, 30)).max() < 1e-9
    assert estimate_noise(torch.rand(3, 2, 9)).tolist() == [0.0] * 3


def test_known_parts_are_kept():
    pair = tiny_pair(10, 3, (24, 24), 4, 1.5, (1.0, 0.0))
    known = KnownParts(
        sigma=(1.6, 1.7), misregistration=(0.2, 0.1), srf=pair.observation.srf, hsi_noise=0.1, msi_noise=0.2
    )
    found = estimate_observation(pair.hsi, pair.msi, known=known)
    assert found.sigma == (1.6, 1.7)
    assert found.misregistration == pytest.approx((0.2, 0.1))
    assert torch.equal(found.srf, pair.observation.srf)
    assert found.hsi_noise.tolist() == [0.1] * 10
    assert found.msi_noise.tolist() == [0.2] * 3
    only_sigma = estimate_observation(pair.hsi, pair.msi, known=KnownParts(sigma=(1.5, 1.5)))
    assert only_sigma.sigma == (1.5, 1.5)
    assert only_sigma.shift == pytest.approx((1.0, 0.0), abs=0.05)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda pair: replace(pair, msi=torch.full_like(pair.msi, 0.3)), "constant"),
        (
            lambda pair: replace(pair, msi=torch.rand(pair.msi.shape, generator=torch.Generator().manual_seed(1))),
            "explains",
        ),
        (lambda pair: tiny_pair(10, 3, (5, 5), 4), "usable coarse pixels"),
    ],
)
def test_weak_evidence_keeps_the_default_and_warns(spoil, word):
    pair = spoil(tiny_pair(10, 3, (24, 24), 4))
    with pytest.warns(UserWarning, match=word):
        found = estimate_observation(pair.hsi, pair.msi)
    assert found.misregistration == (0.0, 0.0)
    assert found.sigma == pytest.approx((1.6986, 1.6986), rel=1e-3)
    assert len(found.notes) == 1
    assert torch.isfinite(found.srf).all()


def test_impossible_pairs_are_refused():
    pair = tiny_pair(6, 3, (8, 8), 2)
    with pytest.raises(GridError, match="coarse hsi first"):
        estimate_observation(pair.msi, pair.hsi)
    with pytest.raises(BandError, match=r"\(3, 6\)"):
        known = KnownParts(sigma=(1.0, 1.0), misregistration=(0.0, 0.0), srf=torch.ones(2, 6))
        estimate_observation(pair.hsi, pair.msi, known=known)
    with pytest.raises(ValueRangeError, match="no valid pixel"):
        estimate_observation(pair.hsi * torch.nan, pair.msi)


def test_the_summary_is_plain():
    pair = tiny_pair(6, 3, (24, 24), 2)
    summary = estimate_observation(pair.hsi, pair.msi).summary()
    assert len(summary["srf"]) == 3
    assert summary["scale"] == [2.0, 2.0]


def test_srf_fit_against_an_unconstrained_oracle():
    """Where plain least squares is already non-negative, the fit must agree with it."""
    generator = np.random.default_rng(0)
    hsi = generator.random((4, 400))
    truth = np.array([[0.2, 0.5, 0.3, 0.1]])
    fit = fit_srf(torch.from_numpy(hsi), torch.from_numpy(truth @ hsi))
    assert fit.srf.numpy() == pytest.approx(truth, abs=1e-3)


def test_roughness_follows_wavelength_order_not_band_order():
    matrix = roughness_matrix(3, np.array([700.0, 500.0, 600.0]))
    assert matrix[0, 1] == 0
    assert matrix[0, 2] == matrix[1, 2] == -1


def test_eight_by_eight_pixels_are_enough():
    pair = tiny_pair(12, 3, (8, 8), 4, shift=(2.0, -1.5))
    found = estimate_observation(pair.hsi, pair.msi)
    assert found.shift == pytest.approx((2.0, -1.5), abs=0.25)
    assert found.notes == ()


@pytest.mark.parametrize("size", [8, 12])
def test_images_of_two_places_are_not_aligned(size):
    pair, elsewhere = (tiny_pair(12, 3, (size, size), 4, seed=seed) for seed in (0, 7))
    with pytest.warns(UserWarning, match="not estimated"):
        found = estimate_observation(pair.hsi, elsewhere.msi)
    assert found.misregistration == (0.0, 0.0)


def test_a_window_sees_the_same_scene():
    observation = known_observation(torch.ones(1, 1), 3.2, 1.4, (0.3, -0.7))
    image = torch.rand(96, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = observation.spatial_operator((96, 96), (30, 30)).apply(image)
    window = observation.in_window((10, 8), (25, 20))
    part = window.spatial_operator((50, 60), (12, 15)).apply(image[25:75, 20:80])
    torch.testing.assert_close(part[1:-1, 1:-1], whole[11:21, 9:22])
    assert window.misregistration == pytest.approx(observation.misregistration)


def test_the_default_psf_has_a_fwhm_of_one_coarse_pixel():
    observation = known_observation(torch.ones(2, 5), (4.0, 8.0))
    assert observation.sigma == pytest.approx((4 / 2.3548, 8 / 2.3548), rel=1e-4)
    assert observation.hsi_noise.shape == (5,)
    assert observation.msi_noise.shape == (2,)


def test_an_srf_must_be_a_matrix():
    with pytest.raises(BandError, match="one row per msi band"):
        known_observation(torch.ones(5), 4.0)


def test_confidence_is_the_probability_of_small_errors() -> None:
    sure = Registration((1.7, 1.7), (0.0, 0.0), (0.005, 0.005), 1.0, 1.0, 0.0, (0.005, 0.005))
    unsure = replace(sure, shift_error=(0.1, 0.1))
    assert _probability(sure, sure, is_robust=True) > 0.99
    assert 0.05 < _probability(unsure, unsure, is_robust=True) < _probability(unsure, unsure, is_robust=False) < 0.5
    # What is used lies where the best estimate says it cannot.
    assert _probability(sure, replace(sure, shift=(0.3, 0.0)), is_robust=True) < 0.01


def test_srf_of_more_bands_than_any_sensor_has() -> None:
    """128 bands within 600: fitting every weight by itself would take minutes."""
    rng = np.random.default_rng(4)
    spectra = torch.from_numpy(np.cumsum(rng.normal(size=(600, 300)), axis=0) / 20 + 5)
    centres, places = np.linspace(20, 580, 128), np.arange(600)
    srf = np.exp(-(((places - centres[:, None]) / 12) ** 2))
    srf = torch.from_numpy(srf / srf.sum(1, keepdims=True))
    start = time.process_time()
    fitted = fit_srf(spectra, srf @ spectra)
    assert time.process_time() - start < 60
    assert fitted.srf.shape == (128, 600) and bool((fitted.srf >= 0).all())
    assert float((fitted.srf @ spectra - srf @ spectra).abs().max()) < 0.02 * float(spectra.std())


def test_clipped_pixels_do_not_shrink_the_srf() -> None:
    generator = torch.Generator().manual_seed(0)
    hsi = torch.rand(4, 500, generator=generator, dtype=torch.float64)
    truth = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 0.2, 0.3, 0.5]], dtype=torch.float64)
    msi = truth @ hsi
    ends = msi.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64), dim=1).T[..., None]
    seen = msi.clamp(ends[:, 0], ends[:, 1])
    clipped = torch.stack([msi <= ends[:, 0], msi >= ends[:, 1]])
    pixels = _CoarseSpectra(hsi, seen, 0.1, torch.ones(500, dtype=torch.bool), clipped)
    fitted = [pixels.fit_srf(None, only_clipped=each) for each in (False, True)]
    to_ends, beyond = (float((fit.srf - truth).abs().max()) for fit in fitted)
    assert to_ends > 0.05
    assert beyond < 0.3 * to_ends
    # Where other pixels disagree as well, clipping is not all that is wrong.
    disagreeing = replace(pixels, agreeing=torch.rand(500, generator=generator) < 0.8)
    torch.testing.assert_close(
        disagreeing.fit_srf(None, only_clipped=True).srf, disagreeing.fit_srf(None, only_clipped=False).srf
    )
