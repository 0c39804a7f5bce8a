"""Buckets: patches that fit into one batch, because they have the same bands and the same size; and the batches drawn
from them.

Every batch comes from one bucket, drawn uniformly, and its samples are drawn uniformly within it (section 3.4 of the
paper). It is a pure function of the seed, of its number (`draw`) and of the settings: whoever draws it, a worker, one
process of several, a resumed run, gets the same bits. What the samples share is drawn from the generator of (seed,
draw), what each has of its own from that of (seed, draw, slot), where the slot is the sample's place in the batch of
all processes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hyperfuse.data.observing import (
    BatchPlan,
    ObservedPatch,
    PairBatch,
    SimulationSettings,
    coarse_pixels,
    draw_plan,
    named_srf,
    observe_patch,
)
from hyperfuse.data.pair_settings import RANDOM_SRF, BandTable, FloatArray
from hyperfuse.data.scenes import Scene
from hyperfuse.data.splits import PatchWindow
from hyperfuse.errors import GridError, OptionError

MakePatch = Callable[[tuple[int, ...]], Tensor]
"""A key of whole numbers -> a patch (C, size, size), float32 in [0, 1]; the same for the same key."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """Patches of scenes, or made for the purpose. Give it `windows` into its `scenes`, or a function that makes
    patches.
    """

    name: str
    size: int
    """Rows and columns of a patch."""
    bands: BandTable
    scenes: tuple[Scene, ...] = ()
    windows: tuple[PatchWindow, ...] = ()
    make_patch: MakePatch | None = None

    def __post_init__(self) -> None:
        assert bool(self.windows) != bool(self.make_patch), "either windows or a function"

    def patch(self, key: tuple[int, ...], part: float) -> Tensor:
        """(C, size, size): the window at this part (0 to 1) of the list, or what is made from the key."""
        if self.make_patch is not None:
            return self.make_patch(key)
        window = self.windows[int(part * len(self.windows))]
        return self.scenes[window.scene].patch(window.rows, window.columns)


def make_buckets(scenes: Sequence[Scene], windows: Sequence[PatchWindow]) -> list[Bucket]:
    """One bucket for each data set or sensor, list of bands and patch size, in the order in which they occur."""
    if not windows:
        raise OptionError(
            "no patch to train on", "scenes with room for at least one", "take larger scenes or smaller patches"
        )
    groups: dict[tuple[object, ...], list[PatchWindow]] = {}
    for window in windows:
        scene = scenes[window.scene]
        _require_inside(window, scene)
        groups.setdefault((_origin(scene), scene.bands, window.size, *_columns_as_keys(scene)), []).append(window)
    names = _distinct_names([(scenes[group[0].scene], group[0].size) for group in groups.values()])
    return [_bucket(name, scenes, group) for name, group in zip(names, groups.values(), strict=True)]


def synthetic_bucket(
    name: str, make_patch: MakePatch, size: int, wavelength_nm: FloatArray, fwhm_nm: FloatArray | None = None
) -> Bucket:
    """A bucket without end: every sample calls `make_patch` with a key of its own. It has to be picklable for loader
    workers.
    """
    return Bucket(name, size, BandTable(len(wavelength_nm), wavelength_nm, fwhm_nm), make_patch=make_patch)


def draw_batch(
    buckets: Sequence[Bucket],
    settings: SimulationSettings,
    *,
    seed: int,
    draw: int,
    batch_size: int,
    slots: range | slice | None = None,
) -> PairBatch:
    """Batch number `draw`, or the part of it in these slots of 0 .. batch_size - 1."""
    chosen = range(batch_size)[slots] if isinstance(slots, slice) else range(batch_size) if slots is None else slots
    assert len(chosen) > 0 and all(0 <= slot < batch_size for slot in chosen), "slots of the batch"
    shared = _generator(seed, draw)
    bucket = buckets[int(shared.integers(len(buckets)))]
    plan = draw_plan(shared, settings, bucket.size, bucket.bands)
    reference = torch.empty(len(chosen), plan.bands.count, bucket.size, bucket.size)
    observed = []
    with _one_thread():
        for place, slot in enumerate(chosen):
            own = _generator(seed, draw, slot)
            patch = bucket.patch((seed, draw, slot), own.random())
            observed.append(observe_patch(own, settings, plan, patch, reference[place]))
    return _as_batch(bucket, plan, reference, observed)


def check_settings(buckets: Sequence[Bucket], settings: SimulationSettings) -> list[str]:
    """Refuse settings that some batch could not be drawn with, and say in words what will not be as a reader might
    expect.
    """
    for size in {bucket.size for bucket in buckets}:
        for part in np.linspace(0.0, 1.0, 65):
            coarse_pixels(settings, size, float(part))
    notes = []
    for name in dict.fromkeys(choice.name for choice in settings.srfs if choice.name != RANDOM_SRF):
        unfit = [bucket.name for bucket in buckets if named_srf(name, bucket.bands) is None]
        if unfit:
            notes.append(f"response {name} does not fit the bands of {', '.join(unfit)}: random responses instead")
    return notes


def _as_batch(bucket: Bucket, plan: BatchPlan, reference: Tensor, observed: Sequence[ObservedPatch]) -> PairBatch:
    wavelength_nm = plan.bands.wavelength_nm

    def column(values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return PairBatch(
        hsi=torch.stack([sample.hsi for sample in observed]),
        msi=torch.stack([sample.msi for sample in observed]),
        reference=reference,
        scale=plan.scale,
        sigma=column([sample.sigma for sample in observed]),
        shift=column([sample.shift for sample in observed]),
        srf=torch.from_numpy(np.stack([sample.srf for sample in observed])),
        hsi_noise=column([sample.hsi_noise for sample in observed]),
        msi_noise=column([sample.msi_noise for sample in observed]),
        believed=column([sample.believed for sample in observed]),
        wavelength_nm=None if wavelength_nm is None else torch.from_numpy(wavelength_nm.copy()),
        bucket=bucket.name,
    )


def _generator(seed: int, *place: int) -> np.random.Generator:
    """Independent for every place: a spawn key, unlike a list of numbers, tells (3,) from (3, 0)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))


@contextmanager
def _one_thread() -> Iterator[None]:
    """The last digits of a matrix product depend on the number of threads, and a loader's worker has one."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _bucket(name: str, scenes: Sequence[Scene], windows: Sequence[PatchWindow]) -> Bucket:
    """Only the scenes that its windows lie in, so that a bucket can travel by itself."""
    places = {scene: place for place, scene in enumerate(dict.fromkeys(window.scene for window in windows))}
    first = scenes[windows[0].scene]
    wavelength_nm = _known(first.wavelength_nm)
    return Bucket(
        name=name,
        size=windows[0].size,
        bands=BandTable(first.bands, wavelength_nm, None if wavelength_nm is None else first.fwhm_nm),
        scenes=tuple(scenes[scene] for scene in places),
        windows=tuple(replace(window, scene=places[window.scene]) for window in windows),
    )


def _known(wavelength_nm: FloatArray | None) -> FloatArray | None:
    """Wavelengths count as known where every band has one."""
    if wavelength_nm is None or not (np.isfinite(wavelength_nm).all() and (wavelength_nm > 0).all()):
        return None
    return wavelength_nm.astype(np.float64)


def _origin(scene: Scene) -> str:
    return scene.dataset or scene.sensor or scene.name


def _columns_as_keys(scene: Scene) -> tuple[bytes | None, ...]:
    """To a tenth of a nanometre: files of one sensor round differently."""
    columns = (_known(scene.wavelength_nm), scene.fwhm_nm)
    return tuple(None if column is None else column.round(1).tobytes() for column in columns)


def _distinct_names(firsts: Sequence[tuple[Scene, int]]) -> list[str]:
    """The name of the data set or sensor, with as much beside it as tells its buckets apart."""
    candidates = [
        [_origin(scene) for scene, _ in firsts],
        [f"{_origin(scene)}, {scene.bands} bands" for scene, _ in firsts],
        [f"{_origin(scene)}, {scene.bands} bands, {size}x{size}" for scene, size in firsts],
        [f"{_origin(scene)}, {scene.bands} bands, {size}x{size}, {scene.name}" for scene, size in firsts],
    ]
    return [
        next((names[i] for names in candidates if names.count(names[i]) == 1), f"{candidates[-1][i]} ({i + 1})")
        for i in range(len(firsts))
    ]


def _require_inside(window: PatchWindow, scene: Scene) -> None:
    height, width = scene.size
    if min(window.top, window.left) < 0 or window.top + window.size > height or window.left + window.size > width:
        raise GridError(
            f"patch of {window.size}x{window.size} pixels at row {window.top}, column {window.left} of {scene.name}",
            f"a patch inside its {height}x{width} pixels",
        )
