"""Buckets: what goes together, that draws are uniform, and that a batch depends on its number alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from tests.data.tiny_buckets import EVERYTHING, require_same, settings_of, tiny_buckets, tiny_scene, tiny_scenes

from hyperfuse.data.observing import BandTable
from hyperfuse.data.sampler import Bucket, check_settings, draw_batch, make_buckets
from hyperfuse.data.scenes import Scene
from hyperfuse.data.splits import SceneWindow
from hyperfuse.errors import GridError, OptionError


def numbered_bucket(name: str, windows: int, first: int) -> tuple[Scene, list[tuple[int, int]]]:
    """A scene of constant 4x4 patches, each with a number of its own."""
    numbers = np.arange(first, first + windows, dtype=np.uint16).repeat(4)
    stored = np.broadcast_to(numbers[None, None, :], (2, 4, 4 * windows))
    return Scene(name, name, stored, 1000.0), [(0, 4 * i) for i in range(windows)]


def test_buckets_and_samples_are_drawn_uniformly() -> None:
    """A bucket of 2 windows comes as often as one of 11: within a bucket every window is equally likely, not over all
    of them.
    """
    sizes = {"small": 2, "middle": 5, "large": 11}
    scenes, windows = [], []
    for place, (name, count) in enumerate(sizes.items()):
        scene, corners = numbered_bucket(name, count, first=100 * (place + 1))
        scenes.append(scene)
        windows += [SceneWindow(place, top, left, 4, 4) for top, left in corners]
    buckets, settings = make_buckets(scenes, windows), settings_of(scale=2, msi_bands=1)
    names: Counter[str] = Counter()
    numbers: Counter[int] = Counter()
    for draw in range(900):
        batch = draw_batch(buckets, settings, seed=3, draw=draw, batch_size=2)
        drawn = [round(1000 * float(value)) for value in batch.reference.mean(dim=(1, 2, 3))]
        assert {number // 100 for number in drawn} == {list(sizes).index(batch.bucket) + 1}
        names[batch.bucket] += 1
        numbers.update(drawn)
    # Each bound is exceeded by one seed in a thousand.
    assert sum((names[name] - 300) ** 2 / 300 for name in sizes) < 13.8
    for (name, count), bound in zip(sizes.items(), (10.8, 18.5, 29.6), strict=True):
        start = 100 * (list(sizes).index(name) + 1)
        expected = 2 * names[name] / count
        assert sum((numbers[start + i] - expected) ** 2 / expected for i in range(count)) < bound


def test_scenes_of_one_sensor_and_size_share_a_bucket() -> None:
    buckets = tiny_buckets()
    assert [(bucket.name, bucket.bands.count, len(bucket.scenes), len(bucket.windows)) for bucket in buckets] == [
        ("visible", 12, 2, 6),
        ("wide", 40, 1, 3),
        ("unknown", 9, 1, 3),
    ]
    assert [scene.name for scene in buckets[0].scenes] == ["visible 1", "visible 2"]


def test_what_differs_lies_in_buckets_of_its_own() -> None:
    scenes = [
        tiny_scene("a", 10, np.linspace(400.0, 700.0, 10)),
        tiny_scene("a", 10, np.linspace(420.0, 720.0, 10), name="shifted"),
        tiny_scene("a", 11, np.linspace(400.0, 700.0, 11)),
        tiny_scene("a", 10, np.linspace(400.01, 700.01, 10), name="rounded"),
        tiny_scene("b", 10, np.linspace(400.0, 700.0, 10)),
        tiny_scene("", 10, np.linspace(400.0, 700.0, 10), name="nameless"),
    ]
    windows = [SceneWindow(scene, 0, 0, 8, 8) for scene in range(6)] + [SceneWindow(0, 0, 0, 16, 16)]
    buckets = make_buckets(scenes, windows)
    assert [len(bucket.windows) for bucket in buckets] == [2, 1, 1, 1, 1, 1]
    assert len({bucket.name for bucket in buckets}) == 6
    assert [bucket.name for bucket in buckets][2:5] == ["a, 11 bands", "b", "nameless"]
    assert all(window.height == bucket.size for bucket in buckets for window in bucket.windows)


def test_windows_are_those_of_their_scene() -> None:
    """The same windows as in the list, whichever place the scene has in its bucket."""
    scenes = tiny_scenes()
    for bucket in tiny_buckets():
        expected = [scene.patch(slice(5, 21), slice(9, 25)) for scene in scenes if scene.sensor == bucket.name]
        found = [bucket.patch((), (3 * i + 1.5) / len(bucket.windows)) for i in range(len(bucket.scenes))]
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_wavelengths_with_gaps_count_as_unknown() -> None:
    wavelength_nm = np.linspace(400.0, 700.0, 10)
    wavelength_nm[3] = np.nan
    (bucket,) = make_buckets([tiny_scene("a", 10, wavelength_nm)], [SceneWindow(0, 0, 0, 8, 8)])
    assert bucket.bands.wavelength_nm is None
    assert draw_batch([bucket], settings_of(srfs="rgb"), seed=0, draw=0, batch_size=1).wavelength_nm is None


def test_impossible_lists_are_refused() -> None:
    with pytest.raises(OptionError, match="no patch to train on"):
        make_buckets(tiny_scenes(), [])
    for top, left in ((30, 0), (0, 30), (-1, 0)):
        with pytest.raises(GridError, match="inside its 40x40 pixels"):
            make_buckets(tiny_scenes(), [SceneWindow(0, top, left, 16, 16)])


def test_a_batch_depends_on_seed_and_number_alone() -> None:
    buckets, settings = tiny_buckets(), settings_of(**EVERYTHING)
    first = [draw_batch(buckets, settings, seed=11, draw=draw, batch_size=3) for draw in range(8)]
    torch.manual_seed(99)
    np.random.default_rng().random()
    for draw in reversed(range(8)):
        require_same(
            draw_batch(tiny_buckets(), settings_of(**EVERYTHING), seed=11, draw=draw, batch_size=3), first[draw]
        )
    others = [draw_batch(buckets, settings, seed=12, draw=draw, batch_size=3) for draw in range(8)]
    pairs = zip(first, [*others, *first[1:]], strict=False)
    assert all(one.sigma[0] != other.sigma[0] for one, other in pairs)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_draw_parts_of_the_same_batch(processes: int) -> None:
    buckets, settings = tiny_buckets(), settings_of(**EVERYTHING)
    for draw in range(6):
        whole = draw_batch(buckets, settings, seed=2, draw=draw, batch_size=4)
        share = 4 // processes
        for process in range(processes):
            slots = range(process * share, (process + 1) * share)
            part = draw_batch(buckets, settings, seed=2, draw=draw, batch_size=4, slots=slots)
            assert part.bucket == whole.bucket and part.scale == whole.scale
            for name in ("hsi", "msi", "reference", "sigma", "shift", "srf", "hsi_noise", "msi_noise"):
                assert torch.equal(getattr(part, name), getattr(whole, name)[slots.start : slots.stop]), name


def test_threads_do_not_change_a_bit_and_stay_as_they_were() -> None:
    scene = tiny_scene("wide", 60, np.linspace(400.0, 2400.0, 60), size=96)
    buckets, settings = make_buckets([scene], [SceneWindow(0, 0, 0, 96, 96)]), settings_of(msi_bands=7)
    threads = torch.get_num_threads()
    try:
        drawn = []
        for count in (1, 3):
            torch.set_num_threads(count)
            drawn.append(draw_batch(buckets, settings, seed=0, draw=0, batch_size=2))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    require_same(*drawn)


def make_flat_patch(key: tuple[int, ...]) -> torch.Tensor:
    return torch.full((5, 8, 8), float(np.random.default_rng(key).random()))


def test_synthetic_buckets_have_a_patch_for_every_place() -> None:
    bucket = Bucket("flat", 8, BandTable(5, np.linspace(450.0, 650.0, 5)), make_patch=make_flat_patch)
    drawn = [draw_batch([bucket], settings_of(), seed=1, draw=draw, batch_size=3) for draw in range(10)]
    values = [float(reference[0, 0, 0]) for batch in drawn for reference in batch.reference]
    assert len(set(values)) == 30
    assert values[4] == pytest.approx(float(make_flat_patch((1, 1, 1))[0, 0, 0]))
    assert drawn[0].wavelength_nm is not None and drawn[0].bucket == "flat"


def test_a_bucket_has_one_source() -> None:
    bands = tiny_buckets()[0].bands
    with pytest.raises(OptionError, match="either windows or make_patch"):
        Bucket("neither", 8, bands)


def test_settings_are_checked_before_the_first_batch() -> None:
    buckets = tiny_buckets()
    assert check_settings(buckets, settings_of(**EVERYTHING | {"srfs": "random"})) == []
    notes = check_settings(buckets, settings_of(srfs=["rgb", "Landsat-8:B5"]))
    assert [("rgb" in note, "visible" in note, "unknown" in note) for note in notes] == [
        (True, False, True),
        (False, True, True),
    ]
    with pytest.raises(OptionError, match="Sentinel-9"):
        check_settings(buckets, settings_of(srfs=["random", "Sentinel-9"]))
    with pytest.raises(OptionError, match="coarse pixels across a patch"):
        check_settings(buckets, settings_of(scale=[2, 40]))
