"""The point spread along one axis against a loop over its equation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.physics.degradation_oracles import axis_weights

from hyperfuse.physics.operators import psf_matrix, sigma_from_fwhm

SIZES = [(16, 8, 2), (32, 10, 3.2), (24, 6, 4), (57, 10, 5.7), (64, 2, 32), (7, 7, 1)]


@pytest.mark.parametrize(("fine", "coarse", "scale"), SIZES)
@pytest.mark.parametrize("shift", [0.0, 0.3, -2.5, 11.0])
def test_matrix_is_the_equation(fine: int, coarse: int, scale: float, shift: float) -> None:
    matrix = psf_matrix(fine, coarse, scale, sigma_from_fwhm(scale), shift).numpy()
    np.testing.assert_allclose(matrix, axis_weights(fine, coarse, scale, scale, shift), atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    coarse=st.integers(1, 12),
    p=st.integers(1, 40),
    q=st.integers(1, 10),
    fwhm=st.floats(0.01, 60),
    shift=st.floats(-50, 50),
)
def test_rows_sum_to_one_and_mirror_images_agree(coarse: int, p: int, q: int, fwhm: float, shift: float) -> None:
    p, fine, coarse = max(p, q), max(p, q) * coarse, q * coarse
    arguments = (fine, coarse, p / q, sigma_from_fwhm(fwhm))
    matrix = psf_matrix(*arguments, shift).numpy()
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
    mirror = psf_matrix(*arguments, -shift).numpy()[::-1, ::-1]
    # Where a tap lies exactly at the cut, rounding decides whether it is in; four sigmas out it weighs exp(-8).
    np.testing.assert_allclose(matrix, mirror, atol=4e-4)


@pytest.mark.parametrize("scale", [2, 3.2, 4, 5.7, 32])
def test_without_shift_mirror_images_agree_exactly(scale: float) -> None:
    coarse = 10
    matrix = psf_matrix(round(scale * coarse), coarse, scale, sigma_from_fwhm(scale)).numpy()
    np.testing.assert_allclose(matrix, matrix[::-1, ::-1], atol=1e-14)


def test_a_ramp_is_seen_at_the_coarse_centres() -> None:
    # Centre alignment: away from the border the mean fine position under a coarse pixel is its own centre.
    fine, coarse, scale = 64, 20, 3.2
    seen = psf_matrix(fine, coarse, scale, sigma_from_fwhm(scale)).numpy() @ np.arange(fine)
    centres = (np.arange(coarse) + 0.5) * scale - 0.5
    np.testing.assert_allclose(seen[3:-3], centres[3:-3], atol=2e-3)
