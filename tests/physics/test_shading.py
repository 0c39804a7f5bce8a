"""Registration by colour: gains per pixel, and PSF and shift where brightness disagrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hyperfuse.physics.estimate import KnownParts, estimate_from_samples
from hyperfuse.physics.observation import default_sigma, known_observation
from hyperfuse.physics.register import Block
from hyperfuse.physics.sampling import PairSamples
from hyperfuse.physics.shading import find_shades, register_by_colour

SCALE = (4.0, 4.0)
SHIFT = (1.3, -0.7)


def _scene(seed: int = 0, bands: int = 8, size: int = 96) -> torch.Tensor:
    """Smooth abundances of three materials."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, size, size, generator=random)
    kernel = torch.ones(1, 1, 5, 5) / 25
    smooth = torch.nn.functional.conv2d(noise[:, None], kernel, padding=2)[:, 0]
    abundance = torch.softmax(6 * smooth / smooth.std(), dim=0)
    spectra = 0.1 + torch.rand(bands, 3, generator=random)
    return torch.einsum("cp,pyx->cyx", spectra, abundance)


def _shaded_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """An hsi and an msi of which half lies in the shade of stripes."""
    fine = _scene()
    truth = known_observation(torch.eye(4, 8), scale=4.0, shift=SHIFT)
    hsi = truth.spatial_operator((96, 96), (24, 24)).apply(fine)
    shade = torch.where(torch.arange(96) // 12 % 2 == 0, 1.0, 0.4)
    return hsi, fine[[0, 2, 5, 7]] * shade


def test_gains_are_those_of_the_pixels() -> None:
    random = np.random.default_rng(0)
    predictors = np.concatenate([random.random((200, 3)), np.ones((200, 1))], axis=1)
    plain = (0.2 + random.random((4, 4))) @ predictors.T
    gain = np.where(random.random(200) < 0.4, 0.5, 1.0)
    found = find_shades(gain * plain, predictors, turns=40)
    ratio = found.gain / gain
    assert ratio.std() < 0.05 * ratio.mean()
    assert found.shares.max() < 1e-3


def test_outliers_lose_their_weight() -> None:
    random = np.random.default_rng(1)
    predictors = np.concatenate([random.random((200, 3)), np.ones((200, 1))], axis=1)
    images = (0.2 + random.random((4, 4))) @ predictors.T + 1e-3 * random.standard_normal((4, 200))
    images[:, :10] += random.random((4, 10))
    weights = find_shades(images, predictors).weights
    assert weights[:10].max() < 0.1 < 0.5 < np.median(weights[10:])


def test_shades_over_half_of_a_scene_do_not_hide_its_place() -> None:
    hsi, msi = _shaded_pair()
    samples = PairSamples.of(hsi, msi, SCALE, (0.0, 0.0))
    start = default_sigma(SCALE)
    found, shades = register_by_colour(
        samples.blocks(start), SCALE, start, [(0.0, 0.0)], sigma_known=False, shift_known=False
    )
    assert found.shift == pytest.approx(SHIFT, abs=0.05)
    assert found.sigma == pytest.approx(start, rel=0.03)
    assert np.ptp(shades.gain) > 0.3


def test_the_best_of_several_shifts_is_refined() -> None:
    hsi, msi = _shaded_pair()
    samples = PairSamples.of(hsi, msi, SCALE, (0.0, 0.0))
    start = default_sigma(SCALE)
    shifts = [(5.0, 5.0), (1.0, -1.0), (-4.0, 0.0)]
    found, _ = register_by_colour(samples.blocks(start), SCALE, start, shifts, sigma_known=True, shift_known=False)
    assert found.shift == pytest.approx(SHIFT, abs=0.05)
    assert found.sigma == pytest.approx(start)


def test_what_is_known_is_kept() -> None:
    hsi, msi = _shaded_pair()
    blocks: list[Block] = PairSamples.of(hsi, msi, SCALE, (0.0, 0.0)).blocks(default_sigma(SCALE))
    found, _ = register_by_colour(blocks, SCALE, (1.5, 1.5), [(0.0, 0.0)], sigma_known=False, shift_known=True)
    assert found.shift == (0.0, 0.0)


def test_estimates_of_shaded_pairs() -> None:
    hsi, msi = _shaded_pair()
    samples = PairSamples.of(hsi, msi, SCALE, (0.0, 0.0))
    found = estimate_from_samples(samples, known=KnownParts(hsi_noise=0.0))
    assert found.observation.misregistration == pytest.approx(SHIFT, abs=0.15)
    assert found.observation.sigma == pytest.approx(default_sigma(SCALE), rel=0.1)
