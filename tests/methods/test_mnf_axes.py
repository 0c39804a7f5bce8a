"""MNF axes of a noisy hsi: nearer to the truth than principal axes, the same without noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hyperfuse.methods.pair_model import mnf_axes, principal_axes
from hyperfuse.methods.window import run_on_scene

BANDS, PIXELS, RANK = 120, 16, 3


def smooth_scene(*, rough: bool = False) -> tuple[Tensor, Tensor]:
    """An hsi (C, h, w) of three smooth spectra, or of the same with their bands shuffled, and an orthonormal basis of
    them.
    """
    generator = torch.Generator().manual_seed(3)
    position = torch.linspace(0, 1, BANDS, dtype=torch.float64)
    spectra = torch.stack([torch.exp(-0.5 * ((position - centre) / 0.15) ** 2) for centre in (0.2, 0.5, 0.8)], dim=1)
    if rough:
        spectra = spectra[torch.randperm(BANDS, generator=generator)]
    weights = torch.randn(RANK, PIXELS * PIXELS, generator=generator, dtype=torch.float64) * torch.tensor(
        [[1.0], [0.5], [0.2]]
    )
    return (spectra @ weights).reshape(BANDS, PIXELS, PIXELS), torch.linalg.qr(spectra)[0]


def noisy(hsi: Tensor) -> tuple[Tensor, Tensor]:
    """Twice as noisy at the end of the spectrum as at its beginning."""
    deviation = torch.linspace(0.05, 0.1, BANDS, dtype=torch.float64)
    noise = torch.randn(hsi.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return hsi + deviation[:, None, None] * noise, deviation


def missed(basis: Tensor, axes: Tensor) -> float:
    """The share of the true subspace that lies outside of the axes."""
    return float((basis - axes @ (axes.T @ basis)).square().sum() / RANK)


def test_nearer_to_the_truth_than_principal_axes():
    hsi, basis = smooth_scene()
    observed, deviation = noisy(hsi)
    _, plain = run_on_scene(principal_axes(observed, RANK))
    _, mnf = run_on_scene(mnf_axes(observed, RANK, deviation))
    assert missed(basis, mnf) < 0.3 * missed(basis, plain)


def test_rough_spectra_are_not_smoothed_away():
    hsi, basis = smooth_scene(rough=True)
    observed, deviation = noisy(hsi)
    _, plain = run_on_scene(principal_axes(observed, RANK))
    _, mnf = run_on_scene(mnf_axes(observed, RANK, deviation))
    assert missed(basis, mnf) < 1.05 * missed(basis, plain)


def test_without_noise_the_same_subspace():
    hsi, basis = smooth_scene()
    mean, axes = run_on_scene(mnf_axes(hsi, RANK, torch.zeros(BANDS)))
    assert missed(basis, axes) < 1e-6
    torch.testing.assert_close(mean, hsi.mean((1, 2)))


@pytest.mark.parametrize("bands", [1, 4, 9, 600])
def test_orthonormal_and_by_descending_variance(bands):
    hsi = torch.rand(bands, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, axes = run_on_scene(mnf_axes(hsi, 16, torch.full((bands,), 0.01)))
    torch.testing.assert_close(axes.T @ axes, torch.eye(axes.shape[1], dtype=torch.float64), atol=1e-9, rtol=0)
    components = axes.T @ (hsi - hsi.mean((1, 2), keepdim=True)).flatten(1)
    variances = components.square().mean(1)
    assert axes.shape[1] <= min(16, bands) and bool((variances.diff() <= 1e-12).all())


def test_an_image_of_one_value():
    mean, axes = run_on_scene(mnf_axes(torch.zeros(12, 4, 4), 16, torch.zeros(12)))
    assert axes.shape == (12, 1) and bool(torch.isfinite(axes).all()) and float(mean.abs().max()) == 0
