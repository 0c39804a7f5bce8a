"""Draw training batches from buckets: patches of the same bands and size, which fit into one batch.

Every batch comes from one bucket, drawn uniformly, and its samples are drawn uniformly within it (section 3.4 of the
paper). A batch is a pure function of the seed, of its number (`draw`) and of the settings: a worker, one process of
several and a resumed run get the same bits. What the samples share is drawn from the generator of (seed, draw), the
rest from that of (seed, draw, slot), where the slot is the sample's index in the batch of all processes together.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import BaseContext

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hyperfuse.data.observing import (
    BandTable,
    FloatArray,
    PairBatch,
    coarse_pixels,
    draw_plan,
    named_srf,
    observe_patch,
)
from hyperfuse.data.scenes import Scene
from hyperfuse.data.settings import RANDOM_SRF, SimulationSettings
from hyperfuse.data.splits import SceneWindow
from hyperfuse.data.synthetic import SYNTHETIC, synthetic_scene, usual_wavelengths
from hyperfuse.errors import GridError, OptionError

MakePatch = Callable[[tuple[int, ...]], Tensor]
"""A key of integers -> a patch (C, size, size), float32 in [0, 1]; the same for the same key."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """Patches of the same bands and size: `windows` into `scenes`, or made by `make_patch`, without end.

    `make_patch` must be picklable for the workers of a loader.
    """

    name: str
    size: int  # rows and columns of a patch
    bands: BandTable
    scenes: tuple[Scene, ...] = ()
    windows: tuple[SceneWindow, ...] = ()
    make_patch: MakePatch | None = None

    def __post_init__(self) -> None:
        if bool(self.windows) == bool(self.make_patch):
            raise OptionError(f"bucket {self.name!r} with both or neither source", "either windows or make_patch")

    def patch(self, key: tuple[int, ...], quantile: float) -> Tensor:
        """(C, size, size): the window at this quantile (0 to 1) of the list, or the patch made from the key."""
        if self.make_patch is not None:
            return self.make_patch(key)
        window = self.windows[int(quantile * len(self.windows))]
        return self.scenes[window.scene].patch(window.rows, window.columns)


def make_buckets(scenes: Sequence[Scene], windows: Sequence[SceneWindow]) -> list[Bucket]:
    """Sort patches of scenes into buckets, one for each data set or sensor, list of bands and patch size."""
    if not windows:
        remedy = "take larger scenes or smaller patches"
        raise OptionError("no patch to train on", "scenes with room for at least one", remedy)
    groups: dict[tuple[object, ...], list[SceneWindow]] = {}
    for window in windows:
        scene = scenes[window.scene]
        height, width = scene.size
        inside = 0 <= window.top <= height - window.height and 0 <= window.left <= width - window.width
        if not inside or window.height != window.width:
            raise GridError(
                f"a {window.height}x{window.width} patch at row {window.top}, column {window.left} of {scene.name}",
                f"a square patch inside its {height}x{width} pixels",
            )
        # Files of one sensor round differently.
        columns = (None if each is None else each.round(1).tobytes() for each in (_wavelengths(scene), scene.fwhm_nm))
        groups.setdefault((_origin(scene), scene.bands, window.height, *columns), []).append(window)
    names = _distinct_names([(scenes[group[0].scene], group[0].height) for group in groups.values()])
    return [_make_bucket(name, scenes, group) for name, group in zip(names, groups.values(), strict=True)]


def synthetic_buckets(bands: Sequence[int], size: int) -> list[Bucket]:
    """Make an endless bucket for each number of bands; every patch is drawn anew."""
    buckets = []
    for count in bands:
        nm = usual_wavelengths(count)
        make_patch = partial(synthetic_scene, wavelength_nm=nm, rows=size, columns=size)
        buckets.append(Bucket(f"{SYNTHETIC}, {count} bands", size, BandTable(count, nm), make_patch=make_patch))
    return buckets


def draw_batch(
    buckets: Sequence[Bucket],
    settings: SimulationSettings,
    *,
    seed: int,
    draw: int,
    batch_size: int,
    slots: range | None = None,
) -> PairBatch:
    """Draw one batch: bucket, patches and observations. `seed` and `draw`, the number of the batch, determine it.

    Of the `batch_size` samples of all processes together, those in `slots` are drawn, all by default.

    Examples
    --------
    >>> from hyperfuse.data.settings import SimulationSettings
    >>> batch = draw_batch(synthetic_buckets([31], 16), SimulationSettings(), seed=0, draw=3, batch_size=2)
    >>> batch.hsi.shape, batch.reference.shape
    (torch.Size([2, 31, 4, 4]), torch.Size([2, 31, 16, 16]))
    """
    chosen = range(batch_size) if slots is None else slots
    shared = _generator(seed, draw)
    bucket = buckets[int(shared.integers(len(buckets)))]
    plan = draw_plan(shared, settings, bucket.size, bucket.bands)
    reference = torch.empty(len(chosen), plan.bands.count, bucket.size, bucket.size)
    samples = []
    with _one_thread():
        for index, slot in enumerate(chosen):
            own = _generator(seed, draw, slot)
            patch = bucket.patch((seed, draw, slot), own.random())
            samples.append(observe_patch(own, settings, plan, patch, reference[index]))
    wavelength_nm = plan.bands.wavelength_nm
    return PairBatch(
        **{name: torch.stack([sample[name] for sample in samples]) for name in samples[0]},
        reference=reference,
        scale=plan.scale,
        wavelength_nm=None if wavelength_nm is None else torch.from_numpy(wavelength_nm.copy()),
        bucket=bucket.name,
    )


def check_settings(buckets: Sequence[Bucket], settings: SimulationSettings) -> list[str]:
    """Refuse settings that some batch could not be drawn with; return notes on SRFs that do not fit a bucket."""
    for size in {bucket.size for bucket in buckets}:
        for quantile in np.linspace(0.0, 1.0, 65):
            coarse_pixels(settings, size, float(quantile))
    notes = []
    for name in dict.fromkeys(choice.name for choice in settings.srfs if choice.name != RANDOM_SRF):
        unfit = [bucket.name for bucket in buckets if named_srf(name, bucket.bands) is None]
        if unfit:
            notes.append(f"SRF {name} does not fit the bands of {', '.join(unfit)}: random SRFs instead")
    return notes


def _generator(seed: int, *key: int) -> np.random.Generator:
    """A spawn key, unlike a list of integers, distinguishes (3,) from (3, 0)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


@contextmanager
def _one_thread() -> Iterator[None]:
    """The last digits of a matrix product depend on the number of threads, and a worker has one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _make_bucket(name: str, scenes: Sequence[Scene], windows: Sequence[SceneWindow]) -> Bucket:
    """With only the scenes that its windows lie in."""
    index = {scene: place for place, scene in enumerate(dict.fromkeys(window.scene for window in windows))}
    first = scenes[windows[0].scene]
    wavelength_nm = _wavelengths(first)
    return Bucket(
        name=name,
        size=windows[0].height,
        bands=BandTable(first.bands, wavelength_nm, None if wavelength_nm is None else first.fwhm_nm),
        scenes=tuple(scenes[scene] for scene in index),
        windows=tuple(replace(window, scene=index[window.scene]) for window in windows),
    )


def _wavelengths(scene: Scene) -> FloatArray | None:
    """Wavelengths count as known if every band has one."""
    nm = scene.wavelength_nm
    return None if nm is None or not (np.isfinite(nm) & (nm > 0)).all() else nm.astype(np.float64)


def _origin(scene: Scene) -> str:
    return scene.dataset or scene.sensor or scene.name


def _distinct_names(firsts: Sequence[tuple[Scene, int]]) -> list[str]:
    """The name of the data set or sensor, with as many details as make it unique."""
    details = [(_origin(scene), f"{scene.bands} bands", f"{size}x{size}", scene.name) for scene, size in firsts]
    candidates = [[", ".join(parts[:length]) for parts in details] for length in range(1, 5)]
    candidates.append([f"{name} ({number})" for number, name in enumerate(candidates[-1], start=1)])
    return [next(names[i] for names in candidates if names.count(names[i]) == 1) for i in range(len(firsts))]


@dataclass(frozen=True)
class PairBatches(Dataset[PairBatch]):
    """All batches of a seed as a map-style data set: item `draw` is batch number `draw`, for any number of 0 or more.

    `finish` is applied to each batch where it is drawn, in a worker if there are any.
    """

    buckets: Sequence[Bucket]
    settings: SimulationSettings
    seed: int
    batch_size: int
    slots: range | None = None
    finish: Callable[[PairBatch], PairBatch] | None = None

    def __getitem__(self, draw: int) -> PairBatch:
        batch = draw_batch(
            self.buckets, self.settings, seed=self.seed, draw=draw, batch_size=self.batch_size, slots=self.slots
        )
        return batch if self.finish is None else self.finish(batch)


def batch_loader(
    batches: PairBatches, start: int, end: int, *, workers: int = 0, pin_memory: bool = False
) -> DataLoader[PairBatch]:
    """Load batches `start` .. `end` - 1 in this order; worker processes do not change a bit.

    Workers are not forks of this process: a fork of a process with computing threads may hang. So `finish` and the
    functions of synthetic buckets must be picklable, and a script that calls this needs `if __name__ == "__main__"`.
    Scenes are in shared memory, once for all workers. There is at most one worker per core; 0: this process draws.
    """
    workers = min(workers, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return DataLoader(
        batches,
        batch_size=None,
        sampler=range(start, end),
        num_workers=workers,
        multiprocessing_context=_start_method() if workers else None,
        persistent_workers=workers > 0,
        worker_init_fn=_start_worker,
        pin_memory=pin_memory,
        # The loader draws a seed for its workers, which must not come from torch's global generator.
        generator=torch.Generator(),
    )


def _start_method() -> BaseContext:
    """Workers fork from a server that has imported the libraries and computed nothing; without fork they are spawned.

    Spawned workers abort when they exit while a batch is being sent; those of a server do not.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _start_worker(worker: int) -> None:
    # Ctrl-C reaches every process of the terminal; only the training itself handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """A training that was killed cannot stop its workers, and the fork server outlives it with them."""
    training = multiprocessing.parent_process()
    if training is not None:
        training.join()
        os._exit(1)


def process_slots(batch_size: int, process: int, processes: int) -> range:
    """Return the slots of every batch that one of several processes draws."""
    if batch_size % processes:
        got, expected = f"batches of {batch_size} for {processes} processes", "the same number of samples for each"
        raise OptionError(got, expected, f"take a multiple of {processes}")
    share = batch_size // processes
    return range(process * share, (process + 1) * share)
