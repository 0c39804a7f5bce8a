"""Operators against slow oracles: dense Kronecker matrices, written independently of the fast path."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.physics.operators import SpatialOperator, mix_bands, psf_matrix

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
