"""Random responses: what must hold for every one, and that they are as various as sensors are."""

from __future__ import annotations

import numpy as np
import pytest

from hyperfuse.data.observing import random_srf

WITH_HOLES = np.concatenate([np.linspace(400, 1340, 60), np.linspace(1460, 1790, 24), np.linspace(1970, 2450, 36)])
LISTS = {
    "visible": np.linspace(400.0, 700.0, 31),
    "holes": WITH_HOLES,
    "two detectors": np.concatenate([np.linspace(420, 1000, 50), np.linspace(900, 2450, 60)]),
    "one wavelength": np.full(6, 550.0),
    "one band": np.array([550.0]),
    "unknown": None,
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("msi_bands", [1, 2, 5, 12])
def test_rows_are_weighted_means(name: str, msi_bands: int) -> None:
    wavelength_nm = LISTS[name]
    bands = 20 if wavelength_nm is None else wavelength_nm.size
    for seed in range(30):
        srf = random_srf(np.random.default_rng(seed), msi_bands, bands, wavelength_nm)
        assert srf.shape == (msi_bands, bands) and srf.dtype == np.float64
        assert np.isfinite(srf).all() and srf.min() >= 0
        np.testing.assert_allclose(srf.sum(axis=1), 1.0, rtol=1e-12)


def drawn(msi_bands: int, count: int = 200, bands: int = 120) -> list[np.ndarray]:
    wavelength_nm = np.linspace(400.0, 2400.0, bands)
    return [random_srf(np.random.default_rng([7, seed]), msi_bands, bands, wavelength_nm) for seed in range(count)]


def widths(srfs: list[np.ndarray]) -> np.ndarray:
    """The share of the spectrum in which each response is at least half its maximum."""
    stacked = np.stack(srfs)
    return (stacked >= stacked.max(axis=2, keepdims=True) / 2).mean(axis=2)


def test_widths_go_from_narrow_to_panchromatic() -> None:
    one, many = widths(drawn(1)), widths(drawn(8))
    assert one.max() > 0.8 and one.min() < 0.15
    assert many.min() < 0.03 and np.median(many) < 0.2
    wide = many.max(axis=1) > 3 * np.median(many, axis=1)
    assert 0.05 < wide.mean() < 0.5


def test_coverage_and_overlap_vary() -> None:
    seen, overlaps = [], []
    for srf in drawn(4):
        curves = srf / srf.max(axis=1, keepdims=True)
        seen.append((curves.max(axis=0) > 0.1).mean())
        overlaps.append(np.minimum(curves[:-1], curves[1:]).max())
    assert min(seen) < 0.3 and max(seen) > 0.95
    assert min(overlaps) < 0.1 and max(overlaps) > 0.9


def test_peaks_are_in_order_unless_curves_nearly_coincide() -> None:
    for srf in drawn(3):
        peaks = srf.argmax(axis=1)
        tolerance = 0.5 * widths([srf])[0].max() * srf.shape[1] + 2
        assert (np.diff(peaks) >= -tolerance).all()


def test_neighbouring_bands_weigh_alike() -> None:
    """Smooth also beside a hole: no weight jumps where both sides of it belong to one wide response."""
    for seed in range(100):
        srf = random_srf(np.random.default_rng(seed), 1, WITH_HOLES.size, WITH_HOLES)[0]
        if (srf >= srf.max() / 2).mean() > 0.3:
            inside = np.diff(WITH_HOLES) < 20
            assert np.abs(np.diff(srf))[inside].max() < 0.4 * srf.max()
