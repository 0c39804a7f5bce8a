"""Synthetic scenes: the same from the same seed, in range at any bands and size, and with statistics of real scenes."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
import torch

from hyperfuse.data.datasets import load_scenes
from hyperfuse.data.sampler import draw_batch, synthetic_buckets
from hyperfuse.data.settings import SimulationSettings
from hyperfuse.data.synthetic import (
    random_layout,
    random_light,
    random_materials,
    random_style,
    synthetic_scene,
    synthetic_scenes,
    usual_wavelengths,
)
from hyperfuse.errors import BandError, OptionError

SEEDS = range(12)
WHOLE_RANGE = usual_wavelengths(160)[::2]


@pytest.fixture(scope="module")
def scenes():
    return [synthetic_scene((3, seed), WHOLE_RANGE, 96, 96).double().numpy() for seed in SEEDS]


def test_the_same_seed_gives_the_same_bits_and_others_do_not():
    first, again, other, later = (
        synthetic_scene(seed, WHOLE_RANGE, 40, 56) for seed in ((7, 1, 2), (7, 1, 2), (7, 1, 3), (7, 2, 2))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("rows", [1, 2, 17, 130])
@pytest.mark.parametrize("columns", [1, 48])
@pytest.mark.parametrize("bands", [1, 3, 300])
def test_any_size_and_any_bands(rows, columns, bands):
    scene = synthetic_scene(rows, np.linspace(350, 2550, bands), rows, columns)
    assert scene.shape == (bands, rows, columns) and scene.dtype == torch.float32
    assert scene.isfinite().all() and scene.min() >= 0 and scene.max() <= 1


def test_wavelengths_may_come_in_any_order():
    nm = np.array([900.0, 450.0, 2200.0, 460.0])
    there, back = synthetic_scene(4, nm, 24, 24), synthetic_scene(4, nm[::-1], 24, 24)
    torch.testing.assert_close(there / there.max(), back.flip(0) / back.max(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("wavelength_nm", [[], [300.0], [500.0, 3000.0], [np.nan]])
def test_wavelengths_beyond_what_is_known_are_refused(wavelength_nm):
    with pytest.raises(BandError, match="350 to 2550"):
        synthetic_scene(0, wavelength_nm, 8, 8)


def test_a_scene_without_pixels_is_refused():
    with pytest.raises(OptionError):
        synthetic_scene(0, [500.0], 0, 8)


def test_one_place_seen_by_two_sensors():
    """At the wavelengths that both have, the images differ by the exposure alone."""
    coarse = synthetic_scene(11, np.linspace(400, 2400, 11), 32, 32)
    fine = synthetic_scene(11, np.linspace(400, 2400, 101), 32, 32)[::10]
    assert np.corrcoef(coarse.flatten(), fine.flatten())[0, 1] > 0.99


def test_few_components_explain_a_scene_but_more_than_a_camera_sees(scenes):
    """The variance beyond 3 and 8 principal components: real scenes have about 0.5 % and 0.1 %, noise included."""
    shares = []
    for scene in scenes:
        values = np.linalg.eigvalsh(np.cov(scene.reshape(len(scene), -1)))[::-1]
        shares.append((values[3:].sum() / values.sum(), values[8:].sum() / values.sum()))
    beyond_3, beyond_8 = np.median(shares, axis=0)
    assert 0.001 < beyond_3 < 0.05
    assert beyond_8 < 0.005


def test_neighbouring_bands_are_alike_and_distant_ones_less(scenes):
    near, far = [], []
    for scene in scenes:
        correlation = np.corrcoef(scene.reshape(len(scene), -1))
        near.append(np.median(np.diag(correlation, 1)))
        far.append(np.median(np.diag(correlation, len(scene) // 2)))
    assert np.median(near) > 0.99
    assert 0.3 < np.median(far) < 0.97


def test_gradients_have_heavy_tails(scenes):
    """Kurtosis 3 would be noise; real scenes have 8 to 60 in the middle."""
    kurtoses = []
    for scene in scenes:
        steps = np.diff(scene.mean(axis=0), axis=1).ravel()
        kurtoses.append(np.mean((steps - steps.mean()) ** 4) / steps.var() ** 2)
    assert 7 < np.median(kurtoses) < 80


def test_power_falls_with_frequency_as_in_images(scenes):
    slopes = []
    for scene in scenes:
        image = scene.mean(axis=0)
        taper = np.hanning(96)
        power = np.abs(np.fft.fft2((image - image.mean()) * taper[:, None] * taper)) ** 2
        radius = np.hypot(np.fft.fftfreq(96)[:, None], np.fft.fftfreq(96)[None])
        rings = [(low, low + 0.05) for low in np.arange(0.03, 0.4, 0.05)]
        means = [power[(radius >= low) & (radius < high)].mean() for low, high in rings]
        slopes.append(np.polyfit(np.log([low + 0.025 for low, _ in rings]), np.log(means), 1)[0])
    assert -4.5 < np.median(slopes) < -2.0


def test_materials_are_reflectances_and_smooth():
    generator = np.random.default_rng(0)
    nm = np.arange(400.0, 2400.0, 5.0)
    spectra = random_materials(generator, nm, 200)
    assert spectra.shape == (200, len(nm)) and spectra.min() > 0 and spectra.max() <= 1
    assert np.median(np.abs(np.diff(spectra, axis=1)).mean(axis=1)) < 0.01
    light, sky = random_light(generator, nm)
    assert light.shape == sky.shape == nm.shape and light.min() > 0 and light.max() <= 1 and sky[0] > sky[-1]


def test_some_materials_are_green_leaves():
    spectra = random_materials(np.random.default_rng(1), np.array([670.0, 800.0]), 300)
    assert 0.05 < np.mean(spectra[:, 1] > 4 * spectra[:, 0]) < 0.6


def test_leaves_cover_the_image_at_all_sizes():
    generator = np.random.default_rng(2)
    for _ in range(8):
        layout = random_layout(generator, random_style(generator), 64, 96, 2)
        assert layout.labels.shape == (128, 192)
        assert layout.labels.min() >= 0 and layout.labels.max() < len(layout.radius) == len(layout.centre)
        areas = np.bincount(layout.labels.ravel())
        seen = areas[areas > 0]
        assert len(seen) > 5 and seen.max() > 50 * seen.min()
        assert areas[0] < 0.6 * areas.sum(), "the ground is mostly hidden"


@pytest.mark.parametrize("bands", [1, 2, 31, 40, 41, 102, 141, 191, 224])
def test_usual_wavelengths(bands):
    nm = usual_wavelengths(bands)
    assert len(nm) == bands and (np.diff(nm) > 0).all() and nm.min() >= 400 and nm.max() <= 2450
    if bands > 140:
        assert not ((nm > 1345) & (nm < 1435)).any(), "no band in water vapour"


def test_buckets_without_end():
    buckets = synthetic_buckets((31, 64), 32)
    assert [(bucket.bands.count, bucket.size) for bucket in buckets] == [(31, 32), (64, 32)]
    settings = SimulationSettings()
    batches = [draw_batch(buckets, settings, seed=1, draw=draw, batch_size=2) for draw in (0, 0, 1)]
    assert torch.equal(batches[0].reference, batches[1].reference)
    assert not torch.equal(batches[0].reference[0], batches[0].reference[1])
    assert batches[0].reference.shape != batches[2].reference.shape or not torch.equal(
        batches[0].reference, batches[2].reference
    )


def test_patches_travel_to_another_process():
    (bucket,) = synthetic_buckets([31], 24)
    assert torch.equal(pickle.loads(pickle.dumps(bucket)).patch((1, 2, 3), 0.0), bucket.patch((1, 2, 3), 0.0))


def test_fixed_scenes_to_try_things_with():
    scenes = synthetic_scenes(bands=(31, 150), scenes_per_sensor=1, side=40)
    assert [(scene.bands, scene.size) for scene in scenes] == [(31, (40, 40)), (150, (40, 40))]
    expected = synthetic_scene((0, 31, 0), usual_wavelengths(31), 40, 40)
    torch.testing.assert_close(scenes[0].patch(slice(None), slice(None)), expected, atol=1e-5, rtol=0)
    assert len({scene.name for scene in load_scenes("synthetic")}) == 10


def test_a_patch_takes_milliseconds():
    """Measured in processor time, so that other work on the machine does not count; a patch takes about 25 ms."""
    nm = usual_wavelengths(200)
    synthetic_scene(0, nm, 128, 128)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        start = time.process_time()
        for seed in range(10):
            synthetic_scene(seed, nm, 128, 128)
        assert (time.process_time() - start) / 10 < 0.1
    finally:
        torch.set_num_threads(threads)
