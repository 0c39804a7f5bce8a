"""Imperfect pairs: what is stated as their truth is true of them, and everything follows from seed, scene and kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates, shift

from hyperfuse.errors import OptionError
from hyperfuse.io.cube import make_cube
from hyperfuse.physics.imperfections import IMPERFECTIONS, ImperfectPair, add_imperfection
from hyperfuse.physics.simulate import Simulation, simulate

SCALE = 4


@pytest.fixture(scope="module")
def simulated() -> Simulation:
    """Smooth enough that interpolation is exact to a thousandth."""
    noise = np.random.default_rng(0).standard_normal((6, 64, 80))
    smooth = np.stack([gaussian_filter(band, 3.0) for band in noise])
    values = 0.2 + 0.6 * (smooth - smooth.min()) / np.ptp(smooth)
    return simulate(make_cube(values, wavelength_nm=np.linspace(420, 720, 6)), SCALE, "rgb")


def imperfect(simulated: Simulation, kind: str, seed: int = 0, scene: str = "a") -> ImperfectPair:
    return add_imperfection(simulated, kind, seed, scene)


@pytest.mark.parametrize("kind", IMPERFECTIONS)
def test_every_kind_changes_one_image_only_and_is_reproducible(simulated: Simulation, kind: str) -> None:
    pair, again = imperfect(simulated, kind), imperfect(simulated, kind)
    changed = [
        not np.array_equal(made.values, before.values)
        for made, before in ((pair.hsi, simulated.hsi), (pair.msi, simulated.msi))
    ]
    assert changed == ([True, False] if kind in ("keystone", "boxpsf") else [False, True])
    assert pair.hsi.dtype == pair.msi.dtype == np.float32
    for made, before in ((pair.hsi, simulated.hsi), (pair.msi, simulated.msi)):
        np.testing.assert_array_equal(made["wavelength"].values, before["wavelength"].values)
    np.testing.assert_array_equal(pair.msi.values, again.msi.values)
    np.testing.assert_array_equal(pair.hsi.values, again.hsi.values)


@pytest.mark.parametrize("kind", ["bend", "light", "change", "shadow", "objects", "noise"])
def test_seed_and_scene_decide_what_is_random(simulated: Simulation, kind: str) -> None:
    first = imperfect(simulated, kind).msi.values
    assert not np.array_equal(first, imperfect(simulated, kind, seed=1).msi.values)
    assert not np.array_equal(first, imperfect(simulated, kind, scene="b").msi.values)


@pytest.mark.parametrize("kind", IMPERFECTIONS)
def test_missing_pixels_stay_missing(simulated: Simulation, kind: str) -> None:
    values = simulated.reference.values.copy()
    values[:, 20:30, 40:55] = np.nan
    holed = simulate(make_cube(values, wavelength_nm=np.linspace(420, 720, 6)), SCALE, "rgb")
    pair = imperfect(holed, kind)
    for made, before in ((pair.hsi, holed.hsi), (pair.msi, holed.msi)):
        np.testing.assert_array_equal(np.isnan(made.values), np.isnan(before.values))


@pytest.mark.parametrize("kind", ["gamma8", "tone8"])
def test_8_bit_kinds_have_256_values_and_keep_the_order(simulated: Simulation, kind: str) -> None:
    for band, before in zip(imperfect(simulated, kind).msi.values, simulated.msi.values, strict=True):
        np.testing.assert_allclose(255 * band, np.round(255 * band), atol=1e-4)
        assert (np.diff(band.ravel()[np.argsort(before.ravel(), kind="stable")]) >= 0).all()


def test_shift_and_bend_are_undone_by_the_stated_displacement(simulated: Simulation) -> None:
    inside = slice(4, -4)
    for kind in ("shift", "bend"):
        pair = imperfect(simulated, kind)
        places = np.indices(pair.msi.shape[1:]) + pair.displacement
        back = np.stack([map_coordinates(band, places, order=3) for band in pair.msi.values])
        np.testing.assert_allclose(back[:, inside, inside], simulated.msi.values[:, inside, inside], atol=2e-3)
        np.testing.assert_array_equal(pair.hsi.values, simulated.hsi.values)
    assert np.hypot(*imperfect(simulated, "bend").displacement).max() == pytest.approx(1.5, abs=0.02)


def test_the_shift_is_one_of_the_whole_msi(simulated: Simulation) -> None:
    pair = imperfect(simulated, "shift")
    assert pair.shift == pytest.approx((1.7, -1.2))
    expected = shift(simulated.msi.values[0].astype(float), (1.7, -1.2), order=3, mode="nearest")
    np.testing.assert_allclose(pair.msi.values[0], expected, atol=1e-6)


def test_light_is_a_smooth_gain_with_an_offset(simulated: Simulation) -> None:
    gain = (imperfect(simulated, "light").msi.values - 0.03) / simulated.msi.values
    np.testing.assert_allclose(gain[0], gain[1], atol=1e-5)
    assert np.abs(gain - 1).max() == pytest.approx(0.35, abs=1e-4)
    assert np.abs(np.diff(gain[0], axis=0)).max() < 0.05


def test_haze_is_strongest_in_blue(simulated: Simulation) -> None:
    added = (imperfect(simulated, "haze").msi.values - simulated.msi.values).mean(axis=(1, 2))
    red, green, blue = added  # the order of `rgb`
    assert blue > green > red > 0


@pytest.mark.parametrize(("kind", "share"), [("change", 0.03), ("change10", 0.1), ("shadow", 0.15), ("objects", 0.01)])
def test_disagreeing_pixels_have_their_share(simulated: Simulation, kind: str, share: float) -> None:
    pair = imperfect(simulated, kind)
    assert pair.disagreeing.mean() == pytest.approx(share, abs=0.005)
    changed = (pair.msi.values != simulated.msi.values).any(axis=0)
    assert changed[pair.disagreeing].mean() > 0.99
    if kind != "shadow":  # whose edges are soft
        assert not changed[~pair.disagreeing].any()


def test_shadow_leaves_two_fifths_of_the_light(simulated: Simulation) -> None:
    factor = imperfect(simulated, "shadow").msi.values / simulated.msi.values
    assert factor.min() == pytest.approx(0.4, abs=0.03)
    assert factor.max() == pytest.approx(1.0, abs=1e-6)


def test_noise_has_30_db(simulated: Simulation) -> None:
    noise = imperfect(simulated, "noise").msi.values - simulated.msi.values
    ratio = 10 * np.log10((simulated.msi.values**2).mean(axis=(1, 2)) / noise.var(axis=(1, 2)))
    np.testing.assert_allclose(ratio, 30, atol=0.3)


def test_keystone_moves_bands_sideways(simulated: Simulation) -> None:
    """The first band sees a quarter of a coarse pixel to the left, the last one as far to the right."""
    pair = imperfect(simulated, "keystone")
    for band, side in ((0, -1), (-1, 1)):
        expected = simulate(simulated.reference, SCALE, "rgb", shift=(0.0, side * 0.25 * SCALE)).hsi.values[band]
        np.testing.assert_allclose(pair.hsi.values[band], expected, atol=1e-6)


def test_box_psf_is_the_mean_of_a_coarse_pixel(simulated: Simulation) -> None:
    pair = imperfect(simulated, "boxpsf")
    blocks = simulated.reference.values.reshape(6, 16, SCALE, 20, SCALE)
    np.testing.assert_allclose(pair.hsi.values, blocks.mean(axis=(2, 4)), atol=1e-6)
    assert pair.sigma == pytest.approx(SCALE / np.sqrt(12))


def test_box_psf_of_a_fractional_scale_keeps_constants() -> None:
    made = simulate(make_cube(np.full((3, 32, 48), 0.7), wavelength_nm=[480, 560, 665]), 3.2, "rgb")
    np.testing.assert_allclose(imperfect(made, "boxpsf").hsi.values, 0.7, rtol=1e-6)


def test_several_at_once_are_those_one_after_the_other(simulated: Simulation) -> None:
    light, both = imperfect(simulated, "light"), imperfect(simulated, "light+gamma8")
    np.testing.assert_allclose(both.msi, imperfect(replace(simulated, msi=light.msi), "gamma8").msi, atol=1e-6)
    shifted = imperfect(simulated, "boxpsf+shift+change")
    assert shifted.shift == pytest.approx(imperfect(simulated, "shift").shift)
    assert shifted.sigma == imperfect(simulated, "boxpsf").sigma
    np.testing.assert_array_equal(shifted.hsi, imperfect(simulated, "boxpsf").hsi)


@pytest.mark.parametrize("kind", ["shift+bend", "keystone+light+boxpsf"])
def test_two_that_exclude_each_other(simulated: Simulation, kind: str) -> None:
    with pytest.raises(OptionError, match="at once"):
        imperfect(simulated, kind)


def test_unknown_kind_is_named(simulated: Simulation) -> None:
    with pytest.raises(OptionError, match="imperfection 'fog'"):
        imperfect(simulated, "fog")
