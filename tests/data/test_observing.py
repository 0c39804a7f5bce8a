"""Pairs simulated on the fly against the slow oracles and against `simulate_pair`, and every range of the settings."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.tiny_buckets import EVERYTHING, settings_of, tiny_buckets, tiny_scene
from tests.physics.degradation_oracles import blurred, mixed

from hyperfuse.data.observing import BandTable, PairBatch, coarse_pixels, named_srf, vary_light, vary_spectra
from hyperfuse.data.sampler import draw_batch, make_buckets
from hyperfuse.data.scenes import Scene
from hyperfuse.data.splits import SceneWindow
from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.physics.observation import FWHM_PER_SIGMA, SpatialOperator
from hyperfuse.physics.simulate import simulate
from hyperfuse.physics.srf import find_srf

CLEAN = {name: value for name, value in EVERYTHING.items() if not name.startswith("snr")}


def batches(count: int, size: int = 16, batch_size: int = 2, **values: Any) -> list[PairBatch]:
    buckets, settings = tiny_buckets(size), settings_of(**values)
    return [draw_batch(buckets, settings, seed=5, draw=draw, batch_size=batch_size) for draw in range(count)]


@pytest.mark.parametrize("scale", [2.0, 3.2, 4.0, 5.7, [2.0, 6.0]])
def test_pair_is_the_equation(scale: Any) -> None:
    for batch in batches(6, **CLEAN | {"scale": scale}):
        for i, reference in enumerate(batch.reference.double().numpy()):
            fwhm = float(batch.sigma[i]) * FWHM_PER_SIGMA
            shift = (float(batch.shift[i, 0]), float(batch.shift[i, 1]))
            size = (batch.hsi.shape[2], batch.hsi.shape[3])
            expected = np.stack([blurred(band, size, batch.scale, fwhm, shift) for band in reference])
            np.testing.assert_allclose(batch.hsi[i].numpy(), expected, atol=5e-7)
            np.testing.assert_allclose(batch.msi[i].numpy(), mixed(reference, batch.srf[i].numpy()), atol=5e-7)


def test_pair_is_that_of_the_simulation_of_files() -> None:
    for batch in batches(20, size=24, batch_size=1, **CLEAN | {"scale": [2.0, 7.0]}):
        operator = SpatialOperator.from_psf(
            (24, 24),
            tuple(batch.hsi.shape[2:]),
            (batch.scale,) * 2,
            (float(batch.sigma[0]),) * 2,
            tuple(batch.shift[0].tolist()),
        )
        torch.testing.assert_close(
            batch.hsi[0].double(), operator.apply(batch.reference[0].double()), atol=5e-7, rtol=0
        )
        pair = simulate(
            batch.reference[0].numpy(),
            Fraction(24, batch.hsi.shape[2]),
            batch.srf[0].numpy(),
            psf_fwhm=float(batch.sigma[0]) * FWHM_PER_SIGMA,
            shift=tuple(batch.shift[0].tolist()),
        )
        np.testing.assert_allclose(batch.hsi[0].numpy(), pair.hsi.values, atol=5e-7)
        np.testing.assert_allclose(batch.msi[0].numpy(), pair.msi.values, atol=5e-7)


def test_types_shapes_and_finite_values() -> None:
    for batch in batches(60, **EVERYTHING):
        count, bands, fine = batch.reference.shape[:3]
        msi_bands, coarse = batch.msi.shape[1], batch.hsi.shape[2]
        assert batch.hsi.shape == (count, bands, coarse, coarse) and batch.msi.shape == (count, msi_bands, fine, fine)
        assert batch.srf.shape == (count, msi_bands, bands) and batch.shift.shape == (count, 2)
        assert batch.sigma.shape == batch.hsi_noise.shape == batch.msi_noise.shape == (count,)
        assert batch.scale == pytest.approx(fine / coarse)
        for image in (batch.hsi, batch.msi, batch.reference):
            assert image.dtype == torch.float32 and image.isfinite().all() and image.is_contiguous()
        assert batch.reference.min() >= 0 and batch.reference.max() <= 1
        np.testing.assert_allclose(batch.srf.sum(2).numpy(), 1.0, rtol=1e-9)
        assert batch.srf.dtype == batch.sigma.dtype == batch.shift.dtype == batch.hsi_noise.dtype == torch.float64
        assert (batch.wavelength_nm is None) == (batch.bucket == "unknown")
        if batch.wavelength_nm is not None:
            assert batch.wavelength_nm.shape == (bands,) and batch.wavelength_nm.dtype == torch.float64


def test_ranges_are_kept_and_used() -> None:
    drawn = batches(150, **EVERYTHING | {"noise_free": 0.0})
    scales = np.array([batch.scale for batch in drawn])
    widths = np.concatenate([batch.sigma.numpy() * FWHM_PER_SIGMA / batch.scale for batch in drawn])
    shifts = np.concatenate([batch.shift.numpy() for batch in drawn])
    assert set(scales) == {16 / 4, 16 / 5, 16 / 6, 16 / 7, 16 / 8}
    for values, low, high in ((widths, 0.6, 1.4), (shifts[:, 0], -1.5, 1.5), (shifts[:, 1], -1.5, 1.5)):
        assert low <= values.min() < low + 0.1 * (high - low) and high - 0.1 * (high - low) < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.1 * (high - low)
    # Two samples of one batch are observed in two ways.
    assert all(batch.sigma[0] != batch.sigma[1] and (batch.shift[0] != batch.shift[1]).all() for batch in drawn)


def test_fixed_settings_give_fixed_observations() -> None:
    for batch in batches(10, scale=4, srfs="rgb"):
        assert batch.scale == 4.0 and not batch.shift.any() and not batch.hsi_noise.any() and not batch.msi_noise.any()
        np.testing.assert_allclose(batch.sigma.numpy() * FWHM_PER_SIGMA, 4.0)


def test_choices_of_scales_are_equally_likely() -> None:
    settings = settings_of(scale={"choices": [2, 4, 5]})
    counts = Counter(coarse_pixels(settings, 40, part) for part in (np.arange(300) + 0.5) / 300)
    assert counts == {20: 100, 10: 100, 8: 100}


@pytest.mark.parametrize("size", [16, 47, 48, 50, 128])
def test_scales_stay_in_their_range(size: int) -> None:
    settings = settings_of(scale=[2.3, 6.1])
    scales = [size / coarse_pixels(settings, size, part) for part in np.linspace(0, 1, 200)]
    assert min(scales) >= 2.3 and max(scales) <= 6.1
    assert coarse_pixels(settings_of(scale=5.7), 48, 0.5) == 8


def test_scale_that_leaves_no_detail_is_refused() -> None:
    with pytest.raises(OptionError, match=r"scale 16 in patches of 16x16 pixels; expected at least 2 coarse pixels"):
        batches(1, scale=16)


def test_random_responses_have_1_to_12_bands_equally_often() -> None:
    scene = tiny_scene("wide", 14, np.linspace(400.0, 2400.0, 14), size=8)
    buckets = make_buckets([scene], [SceneWindow(0, 0, 0, 8, 8)])
    drawn = [draw_batch(buckets, settings_of(), seed=0, draw=draw, batch_size=2) for draw in range(600)]
    counts = Counter(batch.msi.shape[1] for batch in drawn)
    assert set(counts) == set(range(1, 13))
    assert (
        sum((count - 50) ** 2 / 50 for count in counts.values()) < 31.3
    )  # 0.1 % of chi-square with 11 degrees of freedom
    assert all((batch.srf[0] != batch.srf[1]).any() for batch in drawn)


def test_msi_never_has_more_bands_than_the_hsi() -> None:
    buckets = make_buckets([tiny_scene("few", 3, size=8)], [SceneWindow(0, 0, 0, 8, 8)])
    drawn = {draw_batch(buckets, settings_of(), seed=0, draw=draw, batch_size=1).msi.shape[1] for draw in range(40)}
    assert drawn == {1, 2, 3}


def test_responses_come_as_often_as_their_weights_say() -> None:
    srfs = ["random", {"name": "rgb+nir", "weight": 2.0}, {"name": "Sentinel-2A", "weight": 3.0}]
    scene = tiny_scene("wide", 40, np.linspace(400.0, 2400.0, 40), size=8)
    buckets, settings = make_buckets([scene], [SceneWindow(0, 0, 0, 8, 8)]), settings_of(srfs=srfs, msi_bands=1)
    drawn = [draw_batch(buckets, settings, seed=1, draw=draw, batch_size=1).srf[0].numpy() for draw in range(600)]
    sentinel = find_srf("Sentinel-2A", scene.wavelength_nm, skip_uncovered=True).weights
    counts = Counter(len(srf) for srf in drawn)
    expected = {1: 100, 4: 200, len(sentinel): 300}
    assert set(counts) == set(expected)
    assert sum((counts[key] - count) ** 2 / count for key, count in expected.items()) < 13.8
    np.testing.assert_array_equal(next(srf for srf in drawn if len(srf) == len(sentinel)), sentinel)


def test_named_responses_drop_what_the_scene_does_not_cover() -> None:
    visible = BandTable(31, np.linspace(400.0, 700.0, 31))
    found = named_srf("rgb+nir+swir", visible)
    assert found is not None and found.shape == (3, 31)
    assert named_srf("rgb", BandTable(50, np.linspace(1000.0, 2400.0, 50))) is None
    assert named_srf("rgb", BandTable(31)) is None


def test_response_files(tmp_path: Any) -> None:
    wavelength_nm = np.arange(380.0, 1001.0, 10.0)
    curves = np.exp(-0.5 * ((wavelength_nm[:, None] - [460, 550, 620]) / 40) ** 2) + 0.2 * (
        wavelength_nm[:, None] > 800
    )
    rows = [",".join(map(str, row)) for row in np.column_stack([wavelength_nm, curves])]
    camera, matrix = tmp_path / "camera.csv", tmp_path / "matrix.npy"
    camera.write_text("\n".join(["wavelength_nm,blue,green,red", *rows]))
    np.save(matrix, np.full((2, 31), 1 / 31))
    visible = BandTable(31, np.linspace(400.0, 700.0, 31))
    found = named_srf(str(camera), visible)
    assert found is not None and found.shape == (3, 31)
    for bands in (visible, BandTable(31)):
        np.testing.assert_allclose(named_srf(str(matrix), bands), 1 / 31)
    assert named_srf(str(matrix), BandTable(30)) is None
    with pytest.raises(CubeFileError):
        named_srf(str(tmp_path / "absent.csv"), visible)
    with pytest.raises(OptionError, match="Sentinel-9"):
        named_srf("Sentinel-9", visible)


def test_random_responses_take_over_where_no_named_one_fits() -> None:
    drawn = [batch for batch in batches(60, srfs="rgb", msi_bands=5) if batch.bucket == "unknown"]
    assert len(drawn) > 5 and {batch.msi.shape[1] for batch in drawn} == {5}


def test_noise_is_as_strong_as_said() -> None:
    noisy, clean = batches(30, snr_hsi_db=30, snr_msi_db=[20, 40]), batches(30)
    ratios = []
    for one, other in zip(noisy, clean, strict=True):
        for image, same, level in ((one.hsi, other.hsi, one.hsi_noise), (one.msi, other.msi, one.msi_noise)):
            added = (image - same).double()
            signal = same.double().square().mean(dim=(1, 2, 3)).sqrt()
            np.testing.assert_allclose(added.square().mean(dim=(1, 2, 3)).sqrt(), level, rtol=0.25)
            ratios.append((20 * torch.log10(signal / level)).numpy())
    hsi_db, msi_db = np.concatenate(ratios[::2]), np.concatenate(ratios[1::2])
    np.testing.assert_allclose(hsi_db, 30.0, atol=1e-4)
    assert 20 <= msi_db.min() < 23 and 37 < msi_db.max() <= 40


def test_noise_free_images() -> None:
    drawn = batches(150, snr_hsi_db=30, snr_msi_db=30, noise_free=0.4)
    for levels in ([batch.hsi_noise for batch in drawn], [batch.msi_noise for batch in drawn]):
        assert abs(float((torch.cat(levels) == 0).double().mean()) - 0.4) < 0.1


def test_a_variation_leaves_the_others_as_they_were() -> None:
    """Patches, flips, point spreads and shifts stay when noise, responses or flips are switched."""
    plain = batches(12, psf_fwhm=[0.6, 1.4], shift=1.0)
    varied = batches(12, psf_fwhm=[0.6, 1.4], shift=1.0, srfs="rgb", snr_hsi_db=[20, 40], scale={"choices": [4.0]})
    for one, other in zip(plain, varied, strict=True):
        assert one.bucket == other.bucket and torch.equal(one.reference, other.reference)
        assert torch.equal(one.sigma, other.sigma) and torch.equal(one.shift, other.shift)


def symmetries(patch: np.ndarray) -> list[np.ndarray]:
    turned = [np.rot90(patch, turns, (1, 2)) for turns in range(4)]
    return [*turned, *(image[:, :, ::-1] for image in turned)]


def test_flips_and_turns_are_the_eight_symmetries_equally_often() -> None:
    scene = tiny_scene("visible", 3, size=8)
    buckets = make_buckets([scene], [SceneWindow(0, 0, 0, 8, 8)])
    expected = symmetries(scene.patch(slice(0, 8), slice(0, 8)).numpy())
    found: Counter[int] = Counter()
    for draw in range(200):
        batch = draw_batch(buckets, settings_of(), seed=0, draw=draw, batch_size=2)
        for reference in batch.reference.numpy():
            (place,) = (i for i, image in enumerate(expected) if np.array_equal(image, reference))
            found[place] += 1
    assert set(found) == set(range(8))
    assert sum((count - 50) ** 2 / 50 for count in found.values()) < 24.3  # 0.1 %, 7 degrees of freedom


def test_without_flips_patches_are_as_they_lie() -> None:
    scene = tiny_scene("visible", 3, size=8)
    buckets = make_buckets([scene], [SceneWindow(0, 0, 0, 8, 8)])
    batch = draw_batch(buckets, settings_of(flips=False), seed=0, draw=0, batch_size=5)
    assert all(torch.equal(reference, scene.patch(slice(0, 8), slice(0, 8))) for reference in batch.reference)


def test_wavelengths_stay_with_their_bands() -> None:
    """Every band of this scene holds its own wavelength."""
    wavelength_nm = np.linspace(400.0, 2400.0, 40)
    scene = Scene(
        "ramp",
        "ramp",
        np.broadcast_to(wavelength_nm.astype(np.float32)[:, None, None], (40, 8, 8)),
        2500.0,
        wavelength_nm,
    )
    buckets, settings = make_buckets([scene], [SceneWindow(0, 0, 0, 8, 8)]), settings_of(**CLEAN)
    counts = set()
    for draw in range(80):
        batch = draw_batch(buckets, settings, seed=0, draw=draw, batch_size=1)
        assert batch.wavelength_nm is not None
        for image in (batch.reference, batch.hsi):
            spread = itertools.product(range(image.shape[2]), range(image.shape[3]))
            for y, x in list(spread)[:4]:
                np.testing.assert_allclose(2500 * image[0, :, y, x].numpy(), batch.wavelength_nm.numpy(), rtol=1e-5)
        centres = (batch.srf[0] @ batch.wavelength_nm).numpy()
        np.testing.assert_allclose(2500 * batch.msi[0, :, 0, 0].numpy(), centres, rtol=1e-5)
        counts.add(batch.reference.shape[1])
    assert min(counts) < 12 and 40 in counts and len(counts) > 15


def test_batches_move_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = batches(1)
    moved = batch.to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) >= 8 and all(tensor.is_meta for tensor in tensors)
    assert moved.scale == batch.scale and moved.bucket == batch.bucket
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    torch.testing.assert_close(batch.pin_memory().hsi, batch.hsi + 1)


def varied_light(seed: int) -> torch.Tensor:
    patch = torch.rand(12, 16, 16, generator=torch.Generator().manual_seed(1))
    vary_light(np.random.default_rng(seed), patch)
    return patch


def test_varied_light_stays_between_0_and_1() -> None:
    for seed in range(20):
        patch = varied_light(seed)
        assert bool(torch.isfinite(patch).all()) and float(patch.min()) >= 0 and float(patch.max()) <= 1


def test_varied_light_depends_on_the_draw_alone() -> None:
    assert torch.equal(varied_light(3), varied_light(3))
    assert len({float(varied_light(seed).mean()) for seed in range(20)}) > 15


def test_varied_spectra_stay_between_0_and_1_and_change_the_patch() -> None:
    patch = torch.rand(12, 16, 16, generator=torch.Generator().manual_seed(1))
    for seed in range(20):
        varied = patch.clone()
        vary_spectra(np.random.default_rng(seed), varied)
        assert float(varied.min()) >= 0 and float(varied.max()) <= 1 and not torch.allclose(varied, patch, atol=0.01)


def test_imperfect_pairs_depart_a_little_from_perfect_ones() -> None:
    perfect, imperfect = (batches(20, **CLEAN | {"imperfect": share}) for share in (0.0, 1.0))
    changes = [
        float((one.msi - other.msi).abs().max() + (one.hsi - other.hsi).abs().max())
        for one, other in zip(perfect, imperfect, strict=True)
    ]
    assert max(changes) < 1 and sum(change > 1e-3 for change in changes) > len(changes) / 2
