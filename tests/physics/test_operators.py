"""PSF and operators against slow oracles: loops over the equations and dense Kronecker matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.physics.degradation_oracles import axis_weights

from hyperfuse.physics.observation import SpatialOperator, mix_bands, psf_matrix, sigma_from_fwhm

CASES = [  # fine, coarse, scale, sigma, shift, each (y, x)
    ((12, 16), (3, 4), (4.0, 4.0), (1.7, 1.7), (0.0, 0.0)),
    ((16, 23), (5, 4), (3.2, 5.7), (1.3, 2.6), (0.4, -1.1)),
    ((9, 7), (9, 7), (1.0, 1.0), (0.6, 0.3), (-0.3, 0.2)),
    ((33, 32), (1, 1), (33.0, 32.0), (14.0, 13.0), (5.0, 0.0)),
]


def operator_and_dense(case):
    operator = SpatialOperator.from_psf(*case)
    dense = torch.kron(operator.rows, operator.columns)
    return operator, dense


@pytest.mark.parametrize("case", CASES)
def test_apply_is_the_kronecker_product(case):
    operator, dense = operator_and_dense(case)
    image = torch.rand(2, 3, *case[0], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = (image.flatten(-2) @ dense.T).unflatten(-1, case[1])
    torch.testing.assert_close(operator.apply(image), expected)


@pytest.mark.parametrize("case", CASES)
def test_apply_by_loops_straight_from_the_definition(case):
    (fine_y, fine_x), (coarse_y, coarse_x), scale, sigma, shift = case
    operator = SpatialOperator.from_psf(*case)
    image = torch.rand(fine_y, fine_x, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    rows = psf_matrix(fine_y, coarse_y, scale[0], sigma[0], shift[0])
    columns = psf_matrix(fine_x, coarse_x, scale[1], sigma[1], shift[1])
    coarse = operator.apply(image)
    for k in range(coarse_y):
        for m in range(coarse_x):
            seen = sum(float(rows[k, i] * columns[m, j] * image[i, j]) for i in range(fine_y) for j in range(fine_x))
            assert seen == pytest.approx(float(coarse[k, m]), abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_adjoint(case):
    operator = SpatialOperator.from_psf(*case)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(5, *case[0], dtype=torch.float64, generator=generator)
    y = torch.rand(5, *case[1], dtype=torch.float64, generator=generator)
    torch.testing.assert_close((operator.apply(x) * y).sum(), (x * operator.adjoint(y)).sum())


@pytest.mark.parametrize("case", CASES)
def test_pseudo_inverse_is_the_dense_one_and_consistent(case):
    operator, dense = operator_and_dense(case)
    y = torch.rand(2, *case[1], dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    expected = (y.flatten(-2) @ torch.linalg.pinv(dense).T).unflatten(-1, case[0])
    torch.testing.assert_close(operator.pseudo_inverse(y), expected, atol=1e-8, rtol=1e-8)
    assert (operator.apply(operator.pseudo_inverse(y)) - y).abs().max() < 1e-6


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weight", [1e-3, 0.7, torch.tensor([0.25, 3.0])])
def test_damped_and_regularised_inverse(case, weight):
    operator, dense = operator_and_dense(case)
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(2, *case[0], dtype=torch.float64, generator=generator)
    y = torch.rand(2, *case[1], dtype=torch.float64, generator=generator)
    weights = weight.double().expand(2) if torch.is_tensor(weight) else torch.full((2,), weight, dtype=torch.float64)
    for band in range(2):
        fine_eye, coarse_eye = torch.eye(dense.shape[1]).double(), torch.eye(dense.shape[0]).double()
        expected = torch.linalg.solve(weights[band] * fine_eye + dense.T @ dense, x[band].flatten()).reshape(case[0])
        torch.testing.assert_close(operator.regularised_inverse(x, weight)[band], expected, atol=1e-7, rtol=1e-6)
        expected = (
            dense.T @ torch.linalg.solve(dense @ dense.T + weights[band] * coarse_eye, y[band].flatten())
        ).reshape(case[0])
        torch.testing.assert_close(operator.damped_inverse(y, weight)[band], expected, atol=1e-7, rtol=1e-6)


def test_single_precision_stays_single_and_consistent():
    operator = SpatialOperator.from_psf((64, 64), (20, 20), (3.2, 3.2), (1.36, 1.36), (0.3, 0.0))
    y = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(6))
    fine = operator.pseudo_inverse(y)
    assert fine.dtype == torch.float32
    assert (operator.apply(fine) - y).abs().max() < 5e-6


def test_mean_noise_gain_by_simulation():
    operator = SpatialOperator.from_psf((64, 64), (16, 16), (4.0, 4.0), (1.7, 1.7))
    noise = torch.randn(200, 64, 64, generator=torch.Generator().manual_seed(7))
    assert float(operator.apply(noise).var()) == pytest.approx(operator.mean_noise_gain(), rel=0.05)


def test_gradients_flow_through_every_inverse():
    operator = SpatialOperator.from_psf((8, 9), (2, 3), (4.0, 3.0), (1.7, 1.3))
    y = torch.rand(2, 2, 3, dtype=torch.float64, requires_grad=True)
    x = torch.rand(2, 8, 9, dtype=torch.float64, requires_grad=True)
    for function, argument in [
        (operator.apply, x),
        (operator.adjoint, y),
        (operator.pseudo_inverse, y),
        (lambda t: operator.damped_inverse(t, 0.1), y),
        (lambda t: operator.regularised_inverse(t, 0.1), x),
    ]:
        assert torch.autograd.gradcheck(function, (argument,))


def test_bands_are_mixed_by_the_srf():
    generator = torch.Generator().manual_seed(8)
    srf = torch.rand(3, 7, dtype=torch.float64, generator=generator)
    cube = torch.rand(2, 7, 4, 5, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(mix_bands(srf, cube), torch.einsum("mc,bchw->bmhw", srf, cube))


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


@pytest.mark.parametrize(("scale", "sigma", "shift"), [(4.0, 1.5, 0.0), (3.2, 1.1, 0.4), (8.0, 3.4, -1.3)])
def test_a_detector_averages_the_gaussian_over_its_pixel(scale: float, sigma: float, shift: float) -> None:
    """Against sums over a grid 50 times as fine as the fine pixels."""
    matrix = psf_matrix(64, round(64 / scale), scale, sigma, shift, detector=scale)
    places = (np.arange(64 * 50) + 0.5) / 50 - 0.5
    optics = np.sqrt(sigma**2 - scale**2 / 12)
    for coarse in (3, 4):
        centre = (coarse + 0.5) * scale - 0.5 + shift
        inside = centre + (np.arange(400) + 0.5) / 400 * scale - scale / 2
        profile = np.exp(-0.5 * ((places[:, None] - inside) / optics) ** 2).sum(1)
        expected = profile.reshape(64, 50).sum(1) / profile.sum()
        assert matrix[coarse].numpy() == pytest.approx(expected, abs=2e-4)


def test_a_detector_without_optics_takes_the_mean() -> None:
    matrix = psf_matrix(12, 3, 4.0, 4 / np.sqrt(12), detector=4.0)
    assert matrix.numpy() == pytest.approx(np.kron(np.eye(3), np.full(4, 0.25)), abs=0.01)
