"""The loader: the same batches with and without workers, from any start, and scenes that are not copied for each
worker.
"""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.tiny_buckets import EVERYTHING, require_same, settings_of, tiny_buckets, tiny_scene
from tests.processes import Program, all_end

from hyperfuse.data.sampler import PairBatches, batch_loader, draw_batch, make_buckets, process_slots
from hyperfuse.data.scenes import Scene
from hyperfuse.data.splits import SceneWindow
from hyperfuse.errors import OptionError

SETTINGS = settings_of(**EVERYTHING)


def test_workers_draw_the_same_batches_in_the_same_order() -> None:
    buckets = tiny_buckets()
    batches = PairBatches(buckets, SETTINGS, seed=7, batch_size=3, finish=partial(replace, bucket="done"))
    loader = batch_loader(batches, 5, 14, workers=2)
    state = torch.get_rng_state()
    # Two passes: workers stay alive between them.
    for _ in range(2):
        drawn = list(loader)
        assert len(drawn) == len(loader) == 9
        for draw, batch in enumerate(drawn, start=5):
            expected = draw_batch(buckets, SETTINGS, seed=7, draw=draw, batch_size=3)
            require_same(batch, replace(expected, bucket="done"))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_workers_outlive_an_interrupt_and_end_with_a_killed_training() -> None:
    script = Path(__file__).with_name("killed_loader.py")
    process = Program(script, new_session=True)
    out, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    interrupts, *workers = map(int, out.split())
    assert interrupts == 1 and len(workers) == 1
    assert all_end(workers, seconds=20)


def test_a_resumed_run_goes_on_where_it_was() -> None:
    buckets = tiny_buckets()
    batches = PairBatches(buckets, SETTINGS, seed=1, batch_size=2)
    whole, resumed = list(batch_loader(batches, 0, 7)), list(batch_loader(batches, 4, 7))
    assert len(whole) == 7 and len(resumed) == 3
    for one, other in zip(whole[4:], resumed, strict=True):
        require_same(one, other)


def test_loader_leaves_torch_its_random_numbers() -> None:
    state = torch.get_rng_state()
    list(batch_loader(PairBatches(tiny_buckets(), SETTINGS, seed=1, batch_size=2), 0, 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_processes_share_a_batch() -> None:
    buckets = tiny_buckets()
    parts = [
        list(
            batch_loader(PairBatches(buckets, SETTINGS, seed=1, batch_size=4, slots=process_slots(4, process, 2)), 0, 3)
        )
        for process in range(2)
    ]
    for draw, (one, other) in enumerate(zip(*parts, strict=True)):
        whole = draw_batch(buckets, SETTINGS, seed=1, draw=draw, batch_size=4)
        assert torch.equal(torch.cat([one.hsi, other.hsi]), whole.hsi)
        assert torch.equal(torch.cat([one.msi, other.msi]), whole.msi)


def test_slots_of_processes() -> None:
    assert [process_slots(6, process, 3) for process in range(3)] == [range(2), range(2, 4), range(4, 6)]
    with pytest.raises(OptionError, match="batches of 4 for 3 processes"):
        process_slots(4, 0, 3)


def test_scenes_are_not_copied_for_workers() -> None:
    scene = tiny_scene("large", 20, size=160)
    buckets = make_buckets([scene], [SceneWindow(0, 0, 0, 16, 16), SceneWindow(0, 3, 4, 8, 8)])
    sent = bytes(ForkingPickler.dumps(PairBatches(buckets, SETTINGS, seed=0, batch_size=1)))
    assert len(sent) < 10_000 < scene.stored.nbytes
    received = ForkingPickler.loads(sent)
    stored = [bucket.scenes[0].stored for bucket in received.buckets]
    assert np.shares_memory(*stored)
    again = ForkingPickler.loads(bytes(ForkingPickler.dumps(buckets)))[0].scenes[0].stored
    again[0, 0, 0] += 1
    assert stored[0][0, 0, 0] == again[0, 0, 0], "both map the same memory"


@pytest.mark.parametrize("dtype", ["uint16", ">i2", "float32", "uint8"])
def test_shared_scenes_of_all_data_types(dtype: str) -> None:
    stored = np.random.default_rng(0).integers(0, 100, (3, 9, 9)).astype(dtype)
    (bucket,) = make_buckets([Scene("a", "a", stored, 100.0)], [SceneWindow(0, 0, 0, 8, 8)])
    found = pickle.loads(pickle.dumps(bucket))
    assert torch.equal(found.patch((), 0.0), bucket.patch((), 0.0))
