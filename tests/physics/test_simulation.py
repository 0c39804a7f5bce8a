"""Simulated pairs against the slow oracles, and what must hold for every scale."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
import xarray as xr
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.physics.degradation_oracles import blurred, mixed
from tests.physics.scenes import TRANSFORM, small_reference

from hyperfuse.errors import OptionError, ValueRangeError
from hyperfuse.io.cube import make_cube, physical_values
from hyperfuse.io.grid import grid_of, place
from hyperfuse.physics import simulate as streaming
from hyperfuse.physics.observation import SpatialOperator
from hyperfuse.physics.simulate import SimulationRecord, simulate

# Scale, and the smallest size of image in which it has a few coarse pixels.
SCALES = [(2, 16, 20), (3.2, 32, 48), (4, 24, 32), (5.7, 57, 114), (32, 64, 96)]
MEAN_OF_TWO = np.array([[0.5, 0.5, 0, 0], [0, 0.25, 0.25, 0.5]])


@pytest.mark.parametrize(("scale", "height", "width"), SCALES)
@pytest.mark.parametrize("shift", [(0.0, 0.0), (0.4, -1.3)])
def test_pair_is_the_equation(scale: float, height: int, width: int, shift: tuple[float, float]) -> None:
    reference = small_reference(4, height, width)
    pair = simulate(reference, scale, MEAN_OF_TWO, shift=shift)
    size = pair.hsi.shape[1:]
    assert size == (round(height / scale), round(width / scale))
    expected = np.stack([blurred(band, size, scale, scale, shift) for band in reference.values])
    np.testing.assert_allclose(pair.hsi.values, expected, rtol=2e-7)
    np.testing.assert_allclose(pair.msi.values, mixed(reference.values, MEAN_OF_TWO), rtol=2e-7)


def test_psf_width_is_used_as_given() -> None:
    reference = small_reference(2, 24, 24)
    pair = simulate(reference, 4, np.eye(2), psf_fwhm=6.5)
    expected = blurred(reference.values[1], (6, 6), 4, 6.5, (0, 0))
    np.testing.assert_allclose(pair.hsi.values[1], expected, rtol=2e-7)


@pytest.mark.parametrize(("scale", "height", "width"), [*SCALES, (1, 9, 7), ("10/3", 20, 30)])
def test_constant_stays_constant(scale: float | str, height: int, width: int) -> None:
    reference = make_cube(np.full((3, height, width), 0.7), wavelength_nm=[480, 560, 665])
    pair = simulate(reference, scale, "rgb", psf_fwhm=2.0, shift=(0.2, 3.0))
    np.testing.assert_allclose(pair.hsi.values, 0.7, rtol=1e-7)
    np.testing.assert_allclose(pair.msi.values, 0.7, rtol=1e-7)


@pytest.mark.parametrize(("scale", "height", "width"), SCALES)
def test_energy_is_preserved(scale: float, height: int, width: int) -> None:
    """Light in the middle of the image arrives: the sum over coarse pixels times the area of one is the sum over fine
    pixels.
    """
    fine = np.zeros((1, height * 2, width * 2))
    fine[0, height // 2 : -height // 2, width // 2 : -width // 2] = np.random.default_rng(0).uniform(
        0, 1, (1, height, width)
    )[0]
    pair = simulate(fine, scale, np.ones((1, 1)))
    assert float(pair.hsi.sum()) * scale**2 == pytest.approx(float(fine.sum()), rel=5e-3)


@pytest.mark.parametrize(("scale", "height", "width"), SCALES)
def test_grids_are_exact(scale: float, height: int, width: int) -> None:
    pair = simulate(small_reference(4, height, width), scale, MEAN_OF_TWO)
    hsi, msi = grid_of(pair.hsi), grid_of(pair.msi)
    assert msi.transform == TRANSFORM
    assert hsi.transform is not None
    assert (hsi.transform.c, hsi.transform.f) == (TRANSFORM.c, TRANSFORM.f)
    assert hsi.transform.a == 30 * Fraction(str(scale))
    assert hsi.transform.e == -30 * Fraction(str(scale))
    assert hsi.transform.a * hsi.width == TRANSFORM.a * msi.width
    assert pair.hsi.rio.crs == pair.msi.rio.crs == pair.reference.rio.crs == "EPSG:32633"
    assert place(hsi, msi).scale == pytest.approx((scale, scale), rel=1e-12)


def test_rotated_grid_keeps_its_corner() -> None:
    turned = Affine(20, 5, 1000, 5, -20, 2000)
    reference = make_cube(np.ones((1, 8, 8)), crs=32633, transform=turned)
    pair = simulate(reference, 4, np.ones((1, 1)))
    assert grid_of(pair.hsi).transform == Affine(80, 20, 1000, 20, -80, 2000)


def test_bands_keep_their_metadata() -> None:
    reference = small_reference(9).assign_coords(good=("band", np.arange(9) != 4))
    pair = simulate(reference, 4, "rgb+nir")
    for name in ("wavelength", "fwhm", "good", "band_name"):
        np.testing.assert_array_equal(pair.hsi[name].values, reference[name].values)
        np.testing.assert_array_equal(pair.reference[name].values, reference[name].values)
    assert list(pair.msi["band_name"].values) == ["red", "green", "blue", "nir"]
    np.testing.assert_allclose(pair.msi["wavelength"].values, [665, 560, 480, 835], atol=1)
    np.testing.assert_allclose(pair.msi["fwhm"].values, [60, 70, 65, 100], atol=1)
    assert pair.hsi.dtype == pair.msi.dtype == np.float32


def test_stored_integers_become_physical_and_the_reference_stays_stored() -> None:
    stored = np.random.default_rng(1).integers(0, 10_000, (2, 10, 8)).astype(np.uint16)
    reference = make_cube(stored, scale=[1e-4, 2e-4], offset=[0.0, -0.1], nodata=65535)
    with pytest.warns(UserWarning, match="cropped from 10x8 to 8x8"):
        pair = simulate(reference, 4, np.eye(2))
    np.testing.assert_allclose(pair.msi.values[1], stored[1, :8] * 2e-4 - 0.1, rtol=1e-6)
    assert pair.reference.dtype == np.uint16
    np.testing.assert_array_equal(pair.reference.values, stored[:, :8])
    np.testing.assert_array_equal(pair.reference["scale"].values, [1e-4, 2e-4])
    assert pair.reference.rio.nodata == 65535
    assert (pair.hsi["scale"].values == 1).all()


def test_crop_keeps_the_upper_left_and_is_recorded() -> None:
    reference = small_reference(4, 37, 51)
    with pytest.warns(UserWarning, match="upper left") as warned:
        pair = simulate(reference, 3.2, MEAN_OF_TWO)
    assert len(warned) == 1
    assert pair.record.fine_size == (32, 48)
    assert pair.record.coarse_size == (10, 15)
    assert pair.record.reference_size == (37, 51)
    np.testing.assert_array_equal(pair.reference.values, reference.values[:, :32, :48])
    assert grid_of(pair.reference).transform == TRANSFORM


def test_missing_pixels() -> None:
    reference = small_reference(3, 24, 32)
    reference.values[0, 2:4, 5] = np.nan
    reference.values[2, 10:, 20:] = np.nan
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    pair = simulate(reference, 4, weights)
    expected = np.stack([blurred(band, (6, 8), 4, 4, (0, 0)) for band in reference.values])
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_allclose(pair.hsi.values, expected, rtol=2e-7)
    assert not np.isnan(pair.hsi.values[1]).any()
    np.testing.assert_allclose(pair.msi.values, mixed(reference.values, weights), rtol=2e-7)


def test_little_missing_weight_is_made_up_for() -> None:
    # One pixel of a 32 x 32 block weighs far less than 1 %: a constant image stays constant.
    values = np.full((1, 64, 64), 3.0)
    values[0, 10, 12] = np.nan
    pair = simulate(make_cube(values), 32, np.ones((1, 1)))
    np.testing.assert_allclose(pair.hsi.values, 3.0, rtol=1e-6)
    assert np.isnan(pair.msi.values).sum() == 1


@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_all_missing_is_refused(fill: float) -> None:
    with pytest.raises(ValueRangeError, match="nodata"):
        simulate(np.full((2, 8, 8), fill), 4, np.eye(2))


def test_small_windows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = small_reference(5, 96, 80)
    reference.values[1, 40:44, 30] = np.nan
    whole = simulate(reference, 3.2, np.eye(5), shift=(-7.3, 20.0))
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 4 * 5 * 7 * 80)
    monkeypatch.setattr(streaming, "BLOCK", 11)
    parts = simulate(reference, 3.2, np.eye(5), shift=(-7.3, 20.0))
    np.testing.assert_allclose(parts.hsi.values, whole.hsi.values, rtol=2e-7)
    np.testing.assert_array_equal(parts.msi.values, whole.msi.values)


def test_windows_split_along_both_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = small_reference(3, 24, 64)
    whole = simulate(reference, 4, np.eye(3))
    windows = [(slice(y, y + 5), slice(x, x + 17)) for y in range(0, 24, 5) for x in range(0, 64, 17)]
    cut = [(slice(r.start, min(r.stop, 24)), slice(c.start, min(c.stop, 64))) for r, c in windows]
    monkeypatch.setattr(streaming, "iterate_windows", lambda cube, size: iter(cut))
    parts = simulate(reference, 4, np.eye(3))
    np.testing.assert_allclose(parts.hsi.values, whole.hsi.values, rtol=2e-7)
    np.testing.assert_array_equal(parts.msi.values, whole.msi.values)


@pytest.mark.parametrize("snr_db", [20.0, 35.0])
def test_noise_has_the_requested_level(snr_db: float) -> None:
    reference = small_reference(3, 240, 240)
    clean = simulate(reference, 4, np.eye(3))
    noisy = simulate(reference, 4, np.eye(3), snr_hsi_db=snr_db, snr_msi_db=snr_db + 5)
    for name, level in (("hsi", snr_db), ("msi", snr_db + 5)):
        signal, seen = getattr(clean, name).values.astype(np.float64), getattr(noisy, name).values
        for band in range(3):
            measured = 10 * np.log10((signal[band] ** 2).mean() / ((seen[band] - signal[band]) ** 2).mean())
            assert measured == pytest.approx(level, abs=0.3)
    assert noisy.record.noise_sigma_hsi is not None
    expected = np.sqrt((clean.hsi.values[1].astype(np.float64) ** 2).mean() / 10 ** (snr_db / 10))
    assert noisy.record.noise_sigma_hsi[1] == pytest.approx(expected, rel=1e-9)


def test_noise_is_reproducible_and_independent() -> None:
    reference = small_reference(3, 40, 40)

    def run(seed: int, **snr: float) -> tuple[np.ndarray, np.ndarray]:
        pair = simulate(reference, 2, np.eye(3), seed=seed, **snr)
        return pair.hsi.values, pair.msi.values

    both, again, other = (run(seed, snr_hsi_db=20.0, snr_msi_db=20.0) for seed in (5, 5, 6))
    np.testing.assert_array_equal(both[0], again[0])
    np.testing.assert_array_equal(both[1], again[1])
    assert not np.array_equal(both[0], other[0])
    np.testing.assert_array_equal(run(5, snr_hsi_db=20.0)[0], both[0])
    np.testing.assert_array_equal(run(5, snr_msi_db=20.0)[1], both[1])
    clean = run(5)
    noise_hsi, noise_msi = (both[0] - clean[0]).ravel(), (both[1] - clean[1]).ravel()[: clean[0].size]
    assert abs(np.corrcoef(noise_hsi, noise_msi)[0, 1]) < 0.1


def test_noise_leaves_missing_pixels_missing() -> None:
    reference = small_reference(2, 16, 16)
    reference.values[:, :8, :8] = np.nan
    pair = simulate(reference, 4, np.eye(2), snr_hsi_db=30, snr_msi_db=30)
    assert np.isnan(pair.msi.values[:, :8, :8]).all()
    assert np.isnan(pair.hsi.values[:, 0, 0]).all()


def test_observation_rebuilds_the_operators_and_the_pair() -> None:
    reference = small_reference(9, 32, 48)
    pair = simulate(reference, 3.2, "rgb", psf_fwhm=3.0, shift=(0.25, -0.5), snr_hsi_db=30, seed=9)
    record = SimulationRecord.model_validate(json.loads(pair.record.model_dump_json()))
    assert record == pair.record
    again = simulate(reference, **record.simulation_arguments())
    np.testing.assert_array_equal(again.hsi.values, pair.hsi.values)
    np.testing.assert_array_equal(again.msi.values, pair.msi.values)
    sizes, scale, sigma = (record.fine_size, record.coarse_size), (record.scale,) * 2, (record.psf_sigma,) * 2
    operator = SpatialOperator.from_psf(*sizes, scale, sigma, record.shift)
    clean = simulate(reference, 3.2, "rgb", psf_fwhm=3.0, shift=(0.25, -0.5))
    np.testing.assert_allclose(operator.apply(torch.from_numpy(reference.values)), clean.hsi.values, rtol=2e-7)


def test_lazy_reference_is_read_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = small_reference(4, 64, 64)
    largest = 0

    def watched(cube: xr.DataArray, rows: slice, columns: slice, dtype: type) -> np.ndarray:
        nonlocal largest
        values = physical_values(cube, rows, columns, dtype=dtype)
        largest = max(largest, values.shape[1] * values.shape[2])
        return values

    monkeypatch.setattr(streaming, "physical_values", watched)
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 4 * 4 * 8 * 64)
    simulate(reference, 4, np.eye(4))
    assert 0 < largest <= 8 * 64


def test_one_coarse_pixel() -> None:
    pair = simulate(small_reference(2, 4, 4), 4, np.eye(2))
    assert pair.hsi.shape == (2, 1, 1)


@settings(deadline=None, max_examples=25)
@given(
    p=st.integers(1, 12),
    q=st.integers(1, 5),
    extra=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    part=st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5)),
)
@pytest.mark.filterwarnings("ignore:reference cropped")
def test_any_scale_keeps_range_and_extent(p: int, q: int, extra: tuple[int, int], part: tuple[float, float]) -> None:
    scale = Fraction(max(p, q), q)
    reference = small_reference(2, scale.numerator * 2 + extra[0], scale.numerator * 3 + extra[1])
    shift = (part[0] * scale.numerator * 2, part[1] * scale.numerator * 3)
    pair = simulate(reference, scale, np.eye(2), shift=shift)
    hsi, msi = grid_of(pair.hsi), grid_of(pair.msi)
    assert hsi.height * scale == msi.height and hsi.width * scale == msi.width
    assert reference.sizes["y"] - msi.height < scale.numerator
    assert pair.hsi.values.min() >= reference.values.min() - 1e-6
    assert pair.hsi.values.max() <= reference.values.max() + 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0.5}, "scale 0.5"),
        ({"scale": float("nan")}, "scale nan"),
        ({"scale": "four"}, "scale four"),
        ({"scale": 3.14159265358}, "nearby scales that fit: 22/7, "),
        ({"scale": 3.00001}, "nearest: 3"),
        ({"scale": 5.7}, "nearby scales that fit: "),
        ({"scale": 100}, "choose a smaller scale"),
        ({"psf_fwhm": 0.0}, "FWHM 0;"),
        ({"psf_fwhm": 32.5}, "FWHM 32.5; expected a width in fine pixels from 0.01 to the scene's 32"),
        ({"psf_fwhm": float("inf")}, "FWHM inf"),
        ({"shift": (0.0, float("nan"))}, "shift 0 nan"),
        ({"shift": (-12.5, 0.0)}, "at most half of the scene: 12 down or up, 16 right or left"),
        ({"snr_hsi_db": -21.0}, "HSI -21 dB; expected -20 to 300 dB"),
        ({"snr_hsi_db": float("nan")}, "HSI nan dB"),
        ({"snr_msi_db": 1e9}, "MSI"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_impossible_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError) as error:
        simulate(small_reference(4, 24, 32), **({"scale": 4, "srf": MEAN_OF_TWO} | options))  # type: ignore[arg-type]
    assert words in str(error.value)


def test_nearby_scales_that_are_named_do_fit() -> None:
    reference = small_reference(4, 24, 32)
    with pytest.raises(OptionError) as error:
        simulate(reference, 5.7, MEAN_OF_TWO)
    for near in str(error.value).rsplit(": ", 1)[1].split(", "):
        with pytest.warns(UserWarning, match="cropped"):
            pair = simulate(reference, near, MEAN_OF_TWO)
        assert pair.record.scale == pytest.approx(5.7, abs=0.3)
