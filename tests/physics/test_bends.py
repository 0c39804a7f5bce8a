"""Splines and fields by which images are bent, and noise that is recognised before anything is corrected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from tests.methods.tiny_pairs import tiny_pair

from hyperfuse import compiled
from hyperfuse.physics import locate, sampling
from hyperfuse.physics.corrections import SmoothField, spline_at, spline_of
from hyperfuse.physics.estimate import estimate_from_samples
from hyperfuse.physics.sampling import PairSamples


def places(size: tuple[int, int], count: int = 200) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.uniform(-2, length + 1, count) for length in size]


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 7), (3, 2), (20, 31)])
def test_compiled_splines_are_those_of_scipy(size, monkeypatch):
    planes = np.random.default_rng(0).random((2, *size)).astype(np.float32)
    spline, (rows, columns) = spline_of(planes), places(size)
    found = spline_at(spline, rows, columns)
    clipped = [axis.clip(0, length - 1) for axis, length in zip((rows, columns), size, strict=True)]
    expected = [map_coordinates(plane.astype(np.float64), clipped, order=3, mode="mirror") for plane in planes]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    monkeypatch.setattr(compiled, "library", lambda: None)
    np.testing.assert_allclose(spline_at(spline, rows, columns), expected, atol=1e-12)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_slopes_of_splines(is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(compiled, "library", lambda: None)
    y, x = np.mgrid[:30, :40]
    spline = spline_of(np.stack([np.sin(y / 5) + x / 7, np.cos(x / 6)]).astype(np.float32))
    rows, columns = (axis[(axis > 8) & (axis < 20)][:50] for axis in places((30, 40), 400))
    count = min(len(rows), len(columns))
    _, down, right = spline_at(spline, rows[:count], columns[:count], slopes=True)
    np.testing.assert_allclose(down, [np.cos(rows[:count] / 5) / 5, np.zeros(count)], atol=2e-3)
    np.testing.assert_allclose(right, [np.full(count, 1 / 7), -np.sin(columns[:count] / 6) / 6], atol=2e-3)


@pytest.mark.filterwarnings("ignore:shift and PSF not estimated")
def test_blocks_without_usable_pixels(monkeypatch):
    """As in the corners of scenes that are turned against their grid."""
    spline, nothing = spline_of(np.ones((2, 8, 9), np.float32)), np.zeros(0)
    assert spline_at(spline, nothing, nothing).shape == (2, 0)
    assert spline_at(spline, nothing, nothing, slopes=True).shape == (3, 2, 0)
    monkeypatch.setattr(sampling, "SPREAD_WHOLE_FINE_PIXELS", 60)
    monkeypatch.setattr(sampling, "SPREAD_COARSE_PIXELS", 6)
    pair = tiny_pair(12, 3, (30, 32), 4)
    hsi, rows, columns = pair.hsi.clone(), torch.arange(30)[:, None], torch.arange(32)
    hsi[:, rows + columns < 20] = torch.nan
    samples = PairSamples.of(hsi, pair.msi.flip(1), (4.0, 4.0), (0.0, 0.0))  # nothing agrees, so that all is tried
    assert not all(bool(block.usable.any()) for block in samples.blocks((2.0, 2.0), spread=True))
    estimate_from_samples(samples)


def test_steepness_is_the_largest_change_between_pixels():
    coefficients = np.zeros((2, 3, 3))
    coefficients[1, 0, 2] = 1.5  # cosines along the columns
    columns = (np.arange(100) + 0.5) / 100
    values = SmoothField(coefficients).at(np.array([0.5]), columns)[1, 0]
    assert SmoothField(coefficients).steepness((50, 100)) == pytest.approx(np.abs(np.diff(values)).max(), rel=0.02)


def test_noise_is_not_taken_for_disagreement(monkeypatch):
    asked = []
    monkeypatch.setattr(locate, "_find_by_colour", lambda *given: asked.append(given))
    pair, noise = tiny_pair(12, 3, (30, 32), 4), torch.Generator().manual_seed(0)
    noisy = pair.msi + 0.03 * pair.msi.std() * torch.randn(pair.msi.shape, generator=noise)
    found = estimate_from_samples(PairSamples.of(pair.hsi, noisy, (4.0, 4.0), (0.0, 0.0)))
    assert not asked and not found.corrections and found.bend is None
    np.testing.assert_allclose(found.observation.shift, pair.observation.shift, atol=0.1)
    noisy[:, 20:60, 20:60] = pair.msi[:, 40:80, 60:100]  # something else than the hsi shows
    estimate_from_samples(PairSamples.of(pair.hsi, noisy, (4.0, 4.0), (0.0, 0.0)))
    assert asked
