"""Pairs whose images disagree: what is wrong is found, corrected, reported, and costs little."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom
from tests.fusion.large_scenes import small_tiles

from hyperfuse import estimate, fuse, make_cube, open_cube, report, uncertainty, write_cube
from hyperfuse.config import ObservationConfig
from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.fusion.observe import estimate_pair
from hyperfuse.fusion.pair import align_pair
from hyperfuse.physics.corrections import Light, ToneCurves
from hyperfuse.physics.estimate import Estimate
from hyperfuse.physics.imperfections import ImperfectPair, add_imperfection
from hyperfuse.physics.simulate import Simulation, simulate

SCALE, SIDE = 4, 128
SIGMA = SCALE / 2.3548


@pytest.fixture(scope="module")
def simulated() -> Simulation:
    """Fields of six materials under texture."""
    random = np.random.default_rng(3)
    wavelength = np.linspace(420, 720, 20)
    spectra = np.stack([0.3 + 0.2 * np.sin(wavelength / period) for period in (40, 55, 75, 100, 140, 30)])
    fields = zoom(random.integers(0, 6, (SIDE // 8 + 1,) * 2), 8, order=0)[:SIDE, :SIDE]
    texture = 1 + 0.6 * gaussian_filter(random.standard_normal((SIDE, SIDE)), 1.2)
    shares = np.stack([gaussian_filter((fields == index) * texture, 0.7) for index in range(6)])
    values = np.tensordot(spectra.T, shares, 1).clip(0, 1)
    return simulate(make_cube(values.astype(np.float32), wavelength_nm=wavelength), SCALE, "rgb")


def imperfect(simulated: Simulation, kind: str) -> ImperfectPair:
    return add_imperfection(simulated, kind, 0, "fields")


def estimated(hsi: xr.DataArray, msi: xr.DataArray) -> Estimate:
    return estimate_pair(align_pair(hsi, msi), hsi, ObservationConfig())


def fused(hsi: xr.DataArray, msi: xr.DataArray, **options: object) -> NDArray[np.float32]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cube = fuse(hsi, msi, method="local_fuse", trust="hsi", **options)  # type: ignore[arg-type]
    assert isinstance(cube, xr.DataArray)
    return np.asarray(cube.values)


def psnr_db(values: NDArray[np.float32], simulated: Simulation) -> float:
    return float(-10 * np.log10(np.square(values - simulated.reference.values, dtype=np.float64).mean()))


@pytest.mark.parametrize("kind", ["change", "change10", "shadow", "objects", "light", "haze", "gamma8", "tone8"])
def test_psf_and_shift_survive(simulated: Simulation, kind: str) -> None:
    pair = imperfect(simulated, kind)
    observation = estimated(pair.hsi, pair.msi).observation
    np.testing.assert_allclose(observation.sigma, SIGMA, rtol=0.1)
    np.testing.assert_allclose(observation.misregistration, 0, atol=0.15)


@pytest.mark.parametrize("kind", ["light", "gamma8", "bend", "change"])
def test_pixels_of_the_hsi_that_average_over_their_area(simulated: Simulation, kind: str) -> None:
    """A Gaussian PSF explains them less well, and what else is wrong with the pair hardly at all."""
    averaged = imperfect(simulated, "boxpsf")
    pair = imperfect(replace(simulated, hsi=averaged.hsi), kind)
    observation = estimated(pair.hsi, pair.msi).observation
    assert observation.detector == (SCALE, SCALE)
    np.testing.assert_allclose(observation.sigma, averaged.sigma, rtol=0.1)
    np.testing.assert_allclose(observation.misregistration, pair.shift, atol=0.15)
    with_mean = psnr_db(fused(averaged.hsi, simulated.msi), simulated)
    assert with_mean > psnr_db(fused(averaged.hsi, simulated.msi, psf_fwhm=2.3548 * averaged.sigma), simulated)


def test_displaced_bands_are_brought_to_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    wavelength = np.linspace(420, 720, 12)
    textures = np.stack([gaussian_filter(random.standard_normal((96, 96)), width) for width in (1.5, 2.5, 4.0)])
    levels = 0.2 + 0.6 * (textures - textures.min((1, 2), keepdims=True)) / np.ptp(textures, (1, 2), keepdims=True)
    spectra = np.stack([np.exp(-(((wavelength - centre) / 150) ** 2)) for centre in (450, 550, 680)])
    values = np.tensordot(spectra.T, levels, 1) / 3
    simulated = simulate(make_cube(values.astype(np.float32), wavelength_nm=wavelength), SCALE, "rgb")
    pair = imperfect(simulated, "keystone")
    found = estimated(pair.hsi, pair.msi).displacement
    assert found is not None
    np.testing.assert_allclose(found.slope, (0, 0.25 * SCALE), atol=0.05 * SCALE)
    with pytest.warns(UserWarning, match="fine pixels apart"):
        corrected = np.asarray(fuse(pair.hsi, pair.msi, method="local_fuse", trust="hsi"))
    assert psnr_db(corrected, simulated) > psnr_db(fused(pair.hsi, pair.msi, harmonise="off"), simulated) + 3
    small_tiles(monkeypatch)
    np.testing.assert_allclose(fused(pair.hsi, pair.msi), corrected, atol=1e-3)


def test_a_pair_that_agrees_is_not_corrected(simulated: Simulation) -> None:
    found = estimated(simulated.hsi, simulated.msi)
    assert found.corrections == ()
    assert found.bend is None
    assert found.displacement is None
    assert found.agreement.is_perfect
    plain = fused(simulated.hsi, simulated.msi, harmonise="off")
    np.testing.assert_array_equal(fused(simulated.hsi, simulated.msi), plain)


@pytest.mark.parametrize("kind", ["noise", "shift"])
def test_noise_and_a_shift_are_not_corrected(simulated: Simulation, kind: str) -> None:
    pair = imperfect(simulated, kind)
    found = estimated(pair.hsi, pair.msi)
    assert found.corrections == ()
    assert found.bend is None
    np.testing.assert_allclose(found.observation.misregistration, pair.shift, atol=0.1)


def test_a_tone_curve_is_inverted(simulated: Simulation) -> None:
    pair = imperfect(simulated, "gamma8")
    (tone,) = estimated(pair.hsi, pair.msi).corrections
    assert isinstance(tone, ToneCurves)
    linear = tone.apply(pair.msi.values)
    for found, true in zip(linear, simulated.msi.values, strict=True):
        assert np.corrcoef(found.ravel(), true.ravel())[0, 1] > 0.9995
    assert all((np.diff(values) >= 0).all() for _, values in tone.curves)


def test_light_is_removed(simulated: Simulation) -> None:
    pair = imperfect(simulated, "light")
    (light,) = estimated(pair.hsi, pair.msi).corrections
    assert isinstance(light, Light)
    even = light.apply(pair.msi.values)
    for found, true in zip(even, simulated.msi.values, strict=True):
        assert np.corrcoef(found.ravel(), true.ravel())[0, 1] > 0.998
    part = light.apply(pair.msi.values[:, 32:64, 40:90], (32, 40))
    np.testing.assert_allclose(part, even[:, 32:64, 40:90], atol=1e-6)


def test_a_small_scene_shows_a_gain_that_all_bands_have_in_common(simulated: Simulation) -> None:
    """12 x 12 coarse pixels are too few for a gain per band that varies so quickly."""
    part = simulate(simulated.reference.isel(y=slice(0, 96), x=slice(0, 96)), 8, "rgb")
    pair = imperfect(part, "light")
    (light,) = estimated(pair.hsi, pair.msi).corrections
    assert isinstance(light, Light)
    assert light.gain.coefficients.shape[1] > 4
    np.testing.assert_array_equal(light.gain.coefficients[1:], light.gain.coefficients[:-1])


def test_bands_that_differ_have_gains_of_their_own(simulated: Simulation) -> None:
    places = np.linspace(-1, 1, SIDE)
    field = np.stack([0.3 * places[:, None] + 0 * places, 0 * places[:, None] - 0.3 * places, np.zeros((SIDE, SIDE))])
    msi = simulated.msi * (1 + field).astype(np.float32)
    (light,) = estimated(simulated.hsi, msi).corrections
    assert isinstance(light, Light)
    for found, true in zip(light.apply(msi.values), simulated.msi.values, strict=True):
        assert np.corrcoef(found.ravel(), true.ravel())[0, 1] > 0.998


def test_clipped_pixels_are_restored_from_the_hsi(simulated: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bright objects, of which the MSI shows hardly more than the outline."""
    random = np.random.default_rng(6)
    objects = np.zeros((SIDE, SIDE))
    objects[random.integers(0, SIDE, 40), random.integers(0, SIDE, 40)] = random.uniform(20, 40, 40)
    bright = 0.4 * simulated.reference + 0.6 * gaussian_filter(objects, 2.5).clip(0, 1).astype(np.float32)
    pair = simulate(bright, SCALE, "rgb")
    limit = np.quantile(pair.msi.values, 0.95, axis=(1, 2), keepdims=True).astype(np.float32)
    msi = pair.msi.copy(data=np.minimum(pair.msi.values, limit))
    hidden = (pair.msi.values > limit).all(axis=0)
    lost = np.sqrt(np.square((pair.msi.values - limit)[:, hidden]).mean())
    whole = fused(pair.hsi, msi)
    assert np.sqrt(np.square((whole - pair.reference.values)[:, hidden]).mean()) < 0.3 * lost
    small_tiles(monkeypatch)
    np.testing.assert_allclose(fused(pair.hsi, msi), whole, atol=1e-3)


def test_a_bend_is_followed_without_being_asked_for(simulated: Simulation) -> None:
    pair = imperfect(simulated, "bend")
    found = estimated(pair.hsi, pair.msi)
    assert found.bend is not None
    shares = (np.arange(SIDE) + 0.5) / SIDE
    offsets = found.bend.at(shares, shares) + np.array(found.observation.misregistration)[:, None, None]
    assert np.sqrt(np.square(offsets - pair.displacement).sum(axis=0).mean()) < 0.15


def test_what_disagrees_costs_little(simulated: Simulation) -> None:
    clean = psnr_db(fused(simulated.hsi, simulated.msi), simulated)
    for kind, loss in (("gamma8", 1.0), ("tone8", 3.0), ("light", 0.3), ("haze", 0.3), ("bend", 3.0), ("change", 6.0)):
        pair = imperfect(simulated, kind)
        assert psnr_db(fused(pair.hsi, pair.msi), simulated) > clean - loss, kind
        assert psnr_db(fused(pair.hsi, pair.msi), simulated) >= psnr_db(
            fused(pair.hsi, pair.msi, harmonise="off"), simulated
        )


def test_the_change_mask_shows_where(simulated: Simulation, tmp_path: Path) -> None:
    pair, path = imperfect(simulated, "change"), tmp_path / "mask.tif"
    with pytest.warns(UserWarning, match=r"of the scene that shows something else"):
        fuse(pair.hsi, pair.msi, tmp_path / "fused.tif", method="gsa", change_mask=path)
    page = tmp_path / "page.html"
    reported = report(tmp_path / "fused.tif", page, hsi=pair.hsi, msi=pair.msi).part.msi_weights
    weight = open_cube(path).values[0]
    assert reported is not None and "map: Change mask" in page.read_text()
    np.testing.assert_allclose(reported, weight, atol=1e-5)
    assert weight.shape == pair.disagreeing.shape
    assert weight[pair.disagreeing].mean() < 0.5
    assert weight[~pair.disagreeing].mean() > 0.95


@pytest.mark.filterwarnings("ignore:the MSI disagrees")
def test_the_uncertainty_is_larger_where_the_msi_is_not_used(
    simulated: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = imperfect(simulated, "change")
    errors = uncertainty(pair.hsi, pair.msi).values
    energy = np.square(errors).mean(axis=0)
    inside, outside = (np.sqrt(energy[part].mean()) for part in (pair.disagreeing, ~pair.disagreeing))
    assert inside > 2 * outside
    fuse(pair.hsi, pair.msi, tmp_path / "fused.tif")
    shown = report(tmp_path / "fused.tif", tmp_path / "page.html", hsi=pair.hsi, msi=pair.msi).expected_error
    assert shown is not None
    np.testing.assert_allclose(shown, errors, rtol=0.02)
    small_tiles(monkeypatch)
    np.testing.assert_allclose(uncertainty(pair.hsi, pair.msi).values, errors, rtol=0.02, atol=2e-3 * errors.max())


@pytest.mark.parametrize("kind", ["change", "light", "gamma8", "bend"])
def test_tiles_see_the_same_msi(
    simulated: Simulation, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = imperfect(simulated, kind)
    hsi, msi = pair.hsi.values.copy(), pair.msi.values.copy()
    hsi[:, 5:7, 20:23] = np.nan
    msi[:, 90:97, 30:41] = np.nan
    cubes = make_cube(hsi, wavelength_nm=pair.hsi["wavelength"].values), make_cube(msi)
    whole = fused(*cubes)
    small_tiles(monkeypatch)
    tiles = fused(*cubes)
    np.testing.assert_array_equal(np.isnan(tiles), np.isnan(whole))
    np.testing.assert_allclose(tiles, whole, atol=2e-3 * float(np.nanmax(whole)))


def test_an_undeclared_fill_value_stays_where_it_is(simulated: Simulation) -> None:
    values = simulated.hsi.values.copy()
    values[:, 16, 16] = -9999
    holed = make_cube(values, wavelength_nm=simulated.hsi["wavelength"].values)
    with pytest.warns(UserWarning, match="20 values of the HSI are far outside"):
        found = fuse(holed, simulated.msi, method="local_fuse")
    assert isinstance(found, xr.DataArray)
    missing = np.isnan(found.values).any(axis=0)
    assert missing[64:68, 64:68].all()
    assert missing.sum() == SCALE**2
    plain = fused(simulated.hsi, simulated.msi)
    difference = np.abs(found.values - plain)
    far = np.hypot(*(np.indices(missing.shape) - 65.5)) > 30
    assert difference[:, far].max() < 0.02 * plain.max()


def test_bright_and_dark_things_are_no_fill_values(simulated: Simulation) -> None:
    values = simulated.hsi.values.copy()
    values[:, 3, 4] *= 50
    values[:, 20, 9] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair = align_pair(make_cube(values), simulated.msi)
    assert np.isfinite(pair.hsi).all()


def test_one_band_equal_to_nodata_does_not_delete_a_pixel(simulated: Simulation) -> None:
    stored = np.round(255 * simulated.msi.values.clip(0, 1)).astype(np.uint8).clip(1)
    stored[0, 50:53, 60:70] = 0
    stored[:, 100, 100] = 0
    msi = make_cube(stored, nodata=0)
    found = fused(simulated.hsi, msi)
    missing = np.isnan(found).any(axis=0)
    assert missing[100, 100]
    assert missing.sum() == 1


def test_values_stay_positive_where_the_hsi_is(simulated: Simulation) -> None:
    dark = simulated.hsi.values - simulated.hsi.values.min(axis=(1, 2), keepdims=True)
    cube = make_cube(dark, wavelength_nm=simulated.hsi["wavelength"].values)
    free, kept = (fused(cube, simulated.msi, non_negative=choice) for choice in ("off", "auto"))
    assert free.min() < -0.01
    noise = estimated(cube, simulated.msi).observation.hsi_noise.numpy()
    assert (kept >= -noise[:, None, None] - 1e-6).all()
    np.testing.assert_array_equal(kept[free > 0], free[free > 0])


def test_what_is_written_beside_is_no_input(simulated: Simulation, tmp_path: Path) -> None:
    hsi, msi = tmp_path / "hsi.tif", tmp_path / "msi.tif"
    write_cube(simulated.hsi, hsi)
    write_cube(simulated.msi, msi)
    stored = hsi.read_bytes()
    for option in ("uncertainty", "change_mask"):
        with pytest.raises(OptionError, match="which is the hsi itself"):
            fuse(hsi, msi, tmp_path / "fused.tif", overwrite=True, **{option: hsi})
        with pytest.raises(HyperfuseError, match="existing folder"):
            fuse(hsi, msi, tmp_path / "fused.tif", **{option: tmp_path / "none" / "x.tif"})
    with pytest.raises(OptionError, match="for the uncertainty and the change mask"):
        fuse(hsi, msi, tmp_path / "fused.tif", uncertainty=tmp_path / "x.tif", change_mask=tmp_path / "x.tif")
    assert hsi.read_bytes() == stored and {each.name for each in tmp_path.iterdir()} == {"hsi.tif", "msi.tif"}


def test_warnings_are_not_repeated_for_the_uncertainty(simulated: Simulation, tmp_path: Path) -> None:
    pair = add_imperfection(simulated, "change")
    paths = {"change_mask": tmp_path / "mask.tif", "uncertainty": tmp_path / "error.tif"}
    with pytest.warns(UserWarning) as caught:
        fuse(pair.hsi, pair.msi, tmp_path / "fused.tif", **paths)
    said = [str(each.message) for each in caught]
    assert len(said) == len(set(said)) and all(path.exists() for path in paths.values())


def test_an_estimate_says_what_differs(simulated: Simulation) -> None:
    pair = add_imperfection(simulated, "bend")
    with pytest.warns(UserWarning, match="differ by a shift that varies by .* which `fuse` corrects"):
        estimate(pair.hsi, pair.msi)
