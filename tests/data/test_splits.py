"""Splits: the paper's counts from sizes alone, and that no test pixel influences a training pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperfuse.data.datasets import DATASETS
from hyperfuse.data.scenes import Scene
from hyperfuse.data.splits import PAPER, SceneWindow, Split, guard_width, split_scenes
from hyperfuse.errors import OptionError
from hyperfuse.physics.observation import SpatialOperator, psf_radius, sigma_from_fwhm

PAPER_COUNTS = {
    "CAVE": 3718,
    "Harvard": 5360,
    "PaviaC": 2257,
    "PaviaU": 434,
    "Chikusei": 5175,
    "Botswana": 765,
    "WDC": 876,
}
PAPER_TESTS = {"CAVE": 10, "Harvard": 10, "PaviaC": 2, "PaviaU": 2, "Chikusei": 4, "Botswana": 5, "WDC": 5}


def empty_scene(rows, columns, bands=4, dataset="", sensor="sensor", name="scene"):
    """A scene of any size that takes no memory."""
    return Scene(name, sensor, np.broadcast_to(np.uint16(1), (bands, rows, columns)), 1.0, dataset=dataset)


def empty_dataset(name):
    known = DATASETS[name]
    return [empty_scene(*known.size, known.bands, name, known.sensor) for _ in range(known.images)]


def marked(split: Split, scenes, place):
    """Which pixels of a scene are trained on, and which are tested on."""
    train, test = (np.zeros(scenes[place].size, dtype=bool) for _ in range(2))
    for parts, mask in ((split.train, train), (split.test, test)):
        for part in parts:
            if part.scene == place:
                mask[part.rows, part.columns] = True
    return train, test


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_counts_follow_from_the_sizes(name):
    split = split_scenes(empty_dataset(name), "paper")
    assert len(split.train) == PAPER_COUNTS[name]
    assert len(split.test) == PAPER_TESTS[name]
    assert all(window.height == 128 for window in split.train)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_remote_sensing_is_labelled_as_overlapping(name):
    scenes = empty_dataset(name)
    split = split_scenes(scenes, "paper")
    shared = any((train & test).any() for train, test in (marked(split, scenes, place) for place in range(len(scenes))))
    assert split.overlapping == shared == (name not in ("CAVE", "Harvard"))
    assert ("overlapping" in split.label) == shared


def test_the_papers_test_blocks():
    blocks = {name: split_scenes(empty_dataset(name), "paper").test for name in PAPER}
    assert {block.scene for block in blocks["CAVE"]} == set(range(10))
    assert {(block.scene, block.top, block.left, block.height) for block in blocks["Harvard"]} == {
        (scene, 0, 0, 1024) for scene in range(67, 77)
    }
    assert {(block.top, block.left) for block in blocks["Chikusei"]} == {(0, 0), (0, 1024), (1024, 0), (1024, 1024)}
    assert [block.top for block in blocks["WDC"]] == [0, 256, 512, 768, 1024]
    sizes = {name: blocks[name][0].width for name in PAPER}
    assert sizes == {
        "CAVE": 512,
        "Harvard": 1024,
        "PaviaC": 512,
        "PaviaU": 256,
        "Chikusei": 1024,
        "Botswana": 256,
        "WDC": 256,
    }


def test_all_seven_together_keep_their_places():
    scenes = [scene for name in PAPER for scene in empty_dataset(name)]
    split = split_scenes(scenes, "paper")
    assert len(split.train) == sum(PAPER_COUNTS.values())
    counts = {name: sum(scenes[window.scene].dataset == name for window in split.train) for name in PAPER}
    assert counts == PAPER_COUNTS


@pytest.mark.parametrize(
    ("scenes", "said"),
    [
        ([empty_scene(64, 64)], "a data set that the paper divides"),
        ([empty_scene(249, 945, dataset="Loukia")], "a data set that the paper divides"),
        (empty_dataset("CAVE")[:31], "32 of 512x512"),
        ([empty_scene(1208, 307, 191, "WDC")], "1 of 1280x307"),
    ],
)
def test_what_the_paper_does_not_divide(scenes, said):
    with pytest.raises(OptionError, match=said):
        split_scenes(scenes, "paper")


@pytest.mark.parametrize("arguments", [{"kind": "random"}, {"patch_size": 4}, {"stride": 0}, {"guard": -1}])
def test_impossible_splits_are_refused(arguments):
    with pytest.raises(OptionError):
        split_scenes([empty_scene(64, 64)], **arguments)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    patch=st.integers(8, 128),
    stride=st.none() | st.integers(1, 64),
    scale=st.floats(1.5, 12),
)
def test_no_test_pixel_influences_a_training_pixel(rows, columns, patch, stride, scale):
    """Whatever a coarse pixel over the training area sees, with the truncated point spread, is no test pixel, and the
    reverse.
    """
    scenes = [empty_scene(rows, columns)]
    guard = guard_width(scale)
    split = split_scenes(scenes, "disjoint", patch, stride, guard)
    train, test = marked(split, scenes, 0)
    assert not split.overlapping
    assert train.any() or test.any()
    halo = psf_radius(sigma_from_fwhm(scale))
    for top, left in np.argwhere(test)[:: max(1, test.sum() // 50)]:
        near = train[max(0, top - halo) : top + halo + 1, max(0, left - halo) : left + halo + 1]
        assert not near.any()
    assert all(
        w.top >= 0 and w.top + w.height <= rows and w.left >= 0 and w.left + w.height <= columns for w in split.train
    )


def test_a_change_in_the_test_block_leaves_the_coarse_training_area_alone():
    """The same, with the operator that makes coarse images, over the whole scene at once."""
    scale, size = 4.0, (120, 96)
    split = split_scenes([empty_scene(*size)], "disjoint", 32)
    train, test = marked(split, [empty_scene(*size)], 0)
    sigma = sigma_from_fwhm(scale)
    operator = SpatialOperator.from_psf(size, (30, 24), (scale, scale), (sigma, sigma))
    influenced = operator.apply(torch.from_numpy(test.astype(np.float64))).numpy() > 0
    seen = operator.apply(torch.from_numpy(train.astype(np.float64))).numpy()
    # A coarse pixel whose centre lies in the training area sees no test pixel.
    centres = train[2::4, 2::4]
    assert centres.any() and influenced.any()
    assert not (influenced & centres).any()
    assert seen.max() == pytest.approx(1.0)


def test_a_scene_is_divided_across_its_longer_side():
    tall, wide = (
        split_scenes([empty_scene(300, 200)], patch_size=64),
        split_scenes([empty_scene(200, 300)], patch_size=64),
    )
    assert [(block.top, block.left, block.height, block.width) for block in tall.test] == [(244, 0, 56, 200)]
    assert [(block.top, block.left, block.height, block.width) for block in wide.test] == [(0, 244, 200, 56)]
    assert max(window.top + window.height for window in tall.train) == 244 - guard_width()
    assert max(window.left + window.height for window in wide.train) == 244 - guard_width()


def test_large_strips_become_several_blocks_without_gap():
    scenes = [empty_scene(2517, 2335)]
    split = split_scenes(scenes)
    _, test = marked(split, scenes, 0)
    assert max(max(block.height, block.width) for block in split.test) <= 512
    assert test.sum() == sum(block.height * block.width for block in split.test) == 496 * 2335


def test_patches_cover_the_training_area():
    scenes = [empty_scene(101, 67)]
    train, _ = marked(split_scenes(scenes, patch_size=24, stride=20), scenes, 0)
    assert train[: 101 - 16 - guard_width()].all()


@pytest.mark.parametrize(
    ("size", "patch", "expected_patch", "divided"),
    [
        ((50, 50), 48, 24, True),
        ((50, 50), 128, 48, False),
        ((50, 90), 48, 48, True),
        ((100, 100), 128, 72, True),
        ((145, 145), 128, 112, True),
        ((20, 20), 128, 16, False),
        ((64, 128), 48, 48, True),
    ],
)
def test_patches_shrink_or_the_scene_stays_whole(size, patch, expected_patch, divided):
    split = split_scenes([empty_scene(*size)], patch_size=patch)
    assert {window.height for window in split.train} == {expected_patch}
    assert bool(split.test) == divided
    assert ("trained on whole" in split.label) == (not divided)


def test_tiny_scenes_are_for_testing():
    split = split_scenes([empty_scene(7, 90), empty_scene(64, 64, bands=9)], patch_size=32)
    assert [(block.height, block.width) for block in split.test if block.scene == 0] == [(7, 90)]
    assert {window.scene for window in split.train} == {1}


def test_of_many_images_whole_ones_are_held_out():
    scenes = [empty_scene(64, 64, sensor="camera", name=f"image {n}") for n in range(17)]
    split = split_scenes(scenes, patch_size=48)
    tested = {block.scene for block in split.test}
    assert tested == {2, 7, 12}
    assert {window.scene for window in split.train} == set(range(17)) - tested
    assert all((block.height, block.width) == (64, 64) for block in split.test)
    assert {window.height for window in split.train} == {48}


def test_whole_cave_holds_out_the_papers_images():
    assert {block.scene for block in split_scenes(empty_dataset("CAVE")).test} == set(range(10))
    assert {block.scene for block in split_scenes(empty_dataset("CAVE")[:22]).test} == {2, 7, 12, 17}


def test_scenes_of_different_sensors_are_divided_one_by_one():
    scenes = [empty_scene(100, 100, bands) for bands in (31, 102, 102, 200)] + [empty_scene(50, 60, 186)]
    split = split_scenes(scenes, patch_size=48)
    assert {block.scene for block in split.test} == {0, 1, 2, 3, 4}
    assert {window.scene for window in split.train} == {0, 1, 2, 3, 4}


def test_patches_of_holes_are_left_out():
    stored = np.ones((2, 128, 64), dtype=np.float32)
    stored[1, :40] = np.nan
    scene = Scene("holes", "sensor", stored, 1.0)
    split = split_scenes([scene], patch_size=32, stride=8)
    assert split.train
    for window in split.train:
        assert np.isnan(stored[:, window.rows, window.columns]).any(axis=0).mean() <= 0.1
    assert SceneWindow(0, 40, 0, 32, 32) in split.train


def test_the_guard_is_the_reach_of_the_point_spread():
    assert guard_width() == psf_radius(sigma_from_fwhm(4.0)) == 7
    assert guard_width(8.0, shift=-1.5) == 14 + 2
