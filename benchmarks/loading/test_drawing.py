"""How long a batch of four pairs takes to draw and simulate, on one thread; a training step must not wait for it.

    pytest benchmarks/loading/test_drawing.py --benchmark-enable

"plain" is the paper's protocol (x4, no noise), "varied" has everything: scales, point spreads, shifts, named and random
responses, noise, and other bands in half of the batches. Processor time is counted, which other work on the machine
hardly changes.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from hyperfuse.data.sampler import draw_batch, make_buckets
from hyperfuse.data.scenes import Scene
from hyperfuse.data.settings import SimulationSettings
from hyperfuse.data.splits import SceneWindow

BATCH_SIZE, SCENE_SIZE, DRAWS = 4, 256, 40
VARIED = {
    "scale": [2, 8],
    "psf_fwhm": [0.6, 1.4],
    "shift": 1.0,
    "srfs": ["random", "rgb+nir", "Sentinel-2A"],
    "snr_hsi_db": [25, 45],
    "snr_msi_db": [30, 50],
    "keep_bands": {"probability": 0.5, "least": 8},
}
SETTINGS = {"plain": SimulationSettings(), "varied": SimulationSettings.model_validate(VARIED)}


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bucket_of(bands, size):
    longest = 700.0 if bands <= 31 else 2450.0
    stored = np.random.default_rng(0).integers(0, 4000, (bands, SCENE_SIZE, SCENE_SIZE)).astype(np.uint16)
    scene = Scene("random", "random", stored, 4000.0, np.linspace(400.0, longest, bands))
    return make_buckets([scene], [SceneWindow(0, place, place, size, size) for place in range(0, SCENE_SIZE - size, 8)])


@pytest.mark.parametrize(("size", "bands", "most"), [(48, 31, 15), (128, 31, 60), (48, 200, 60), (128, 200, 120)])
def test_drawing(size, bands, most, one_thread, note_figure, benchmark):
    buckets = bucket_of(bands, size)
    medians = {}
    for name, settings in SETTINGS.items():
        seconds = []
        for draw in range(DRAWS + 3):
            start = time.process_time()
            draw_batch(buckets, settings, seed=0, draw=draw, batch_size=BATCH_SIZE)
            seconds.append(time.process_time() - start)
        medians[name] = 1000 * float(np.median(seconds[3:]))
    benchmark.pedantic(lambda: draw_batch(buckets, SETTINGS["plain"], seed=0, draw=0, batch_size=BATCH_SIZE), rounds=3)
    note_figure(
        f"batch of {BATCH_SIZE} pairs, {size}x{size}x{bands}, one thread: plain {medians['plain']:.1f} ms, "
        f"varied {medians['varied']:.1f} ms"
    )
    assert max(medians.values()) < most
