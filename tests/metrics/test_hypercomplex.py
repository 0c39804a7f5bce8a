"""Q2n against quaternions written out, and the algebra behind it against what is known of it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.metrics import metric_oracles as oracle

from hyperfuse.metrics import metrics
from hyperfuse.metrics.sums import hypercomplex_product_sum, sign_table


def multiply(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The product by the doubling formula itself, recursively: (a, b)(c, d) = (ac - d* b, da + b c*)."""
    if len(p) == 1:
        return p * q
    half = len(p) // 2
    a, b, c, d = p[:half], p[half:], q[:half], q[half:]
    return np.concatenate([multiply(a, c) - multiply(conjugate(d), b), multiply(d, a) + multiply(b, conjugate(c))])


def conjugate(p: np.ndarray) -> np.ndarray:
    return np.concatenate([p[:1], -p[1:]])


def test_quaternions_are_hamiltons() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.standard_normal((2, 4))
    np.testing.assert_allclose(
        hypercomplex_product_sum(p[:, None], conjugate(q)[:, None]), oracle.hamilton(p, q), rtol=1e-12
    )


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_the_sign_table_is_the_doubling_formula(size: int) -> None:
    rng = np.random.default_rng(size)
    p, q = rng.standard_normal((2, size, 3))
    expected = sum(multiply(p[:, k], conjugate(q[:, k])) for k in range(3))
    np.testing.assert_allclose(hypercomplex_product_sum(p, q), expected, rtol=1e-10, atol=1e-12)


def test_octonions_multiply_lengths_and_sedenions_do_not() -> None:
    rng = np.random.default_rng(5)
    for size, holds in ((2, True), (4, True), (8, True), (16, False)):
        p, q = rng.standard_normal((2, size, 1))
        product = np.linalg.norm(hypercomplex_product_sum(p, q))
        assert bool(np.isclose(product, np.linalg.norm(p) * np.linalg.norm(q))) is holds


def test_units_square_to_minus_one() -> None:
    signs = sign_table(256)
    assert (np.diagonal(signs)[1:] == -1).all()
    assert (signs[0] == 1).all() and (signs[:, 0] == 1).all()


def test_q4_agrees_with_quaternions_block_by_block() -> None:
    rng = np.random.default_rng(7)
    reference = rng.uniform(0, 1, (4, 64, 40)) * np.array([1, 10, 100, 0.1]).reshape(4, 1, 1)
    fused = reference * (1 + 0.3 * rng.standard_normal((4, 64, 40)))
    blocks = [oracle.q4_block(fused[:, y : y + 32, :32], reference[:, y : y + 32, :32]) for y in (0, 32)]
    assert metrics.q2n(fused, reference) == pytest.approx(np.mean(blocks), rel=1e-10)


def test_three_bands_are_a_quaternion_without_its_last_component() -> None:
    rng = np.random.default_rng(8)
    reference = rng.uniform(0, 1, (3, 32, 32))
    fused = reference + 0.2 * rng.standard_normal((3, 32, 32))
    product = hypercomplex_product_sum(reference.reshape(3, -1), fused.reshape(3, -1))
    padded = [np.concatenate([image, np.zeros((1, 32, 32))]).reshape(4, -1) for image in (reference, fused)]
    np.testing.assert_allclose(product, hypercomplex_product_sum(*padded), rtol=1e-12)
    assert 0 < metrics.q2n(fused, reference) < 1


def test_one_band_is_the_plain_index() -> None:
    rng = np.random.default_rng(9)
    z = rng.uniform(0, 1, (1, 32, 32))
    w = 0.8 * z + 0.1 * rng.standard_normal((1, 32, 32))
    mean, deviation = z.mean(), z.std(ddof=1)
    a, b = (z - mean) / deviation + 1, (w - mean) / deviation + 1
    covariance = ((a - a.mean()) * (b - b.mean())).mean()
    expected = 4 * abs(covariance) * a.mean() * b.mean() / ((a.var() + b.var()) * (a.mean() ** 2 + b.mean() ** 2))
    assert metrics.q2n(w, z) == pytest.approx(expected, rel=1e-10)


def test_a_block_with_a_hole_does_not_count_and_a_dead_band_does_not_matter() -> None:
    rng = np.random.default_rng(10)
    reference = rng.uniform(0, 1, (3, 32, 64))
    fused = reference + 0.2 * rng.standard_normal((3, 32, 64))
    right_only = metrics.q2n(fused[:, :, 32:], reference[:, :, 32:])
    fused[1, 3, 4] = np.nan
    assert metrics.q2n(fused, reference) == pytest.approx(right_only, rel=1e-12)
    dead = np.full((1, 32, 64), np.nan)
    assert metrics.q2n(np.concatenate([fused, dead]), np.concatenate([reference, dead])) == pytest.approx(
        right_only, rel=1e-12
    )
