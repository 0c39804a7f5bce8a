"""The scenes of an experiment: buckets of training patches, and validation cases with the score of the base alone.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.data.datasets import NAME_THE_FOLDER, load_scenes
from hyperfuse.data.observing import BandTable, named_srf
from hyperfuse.data.sampler import Bucket, check_settings, make_buckets, synthetic_buckets
from hyperfuse.data.scenes import Scene
from hyperfuse.data.settings import ScaleChoices
from hyperfuse.data.splits import SceneWindow, Split, guard_width, keep_for_testing, split_scenes, train_on_all
from hyperfuse.data.synthetic import SYNTHETIC
from hyperfuse.errors import OptionError
from hyperfuse.fusion.fusers import fuse_with_network
from hyperfuse.io.cube import make_cube
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.metrics.metrics import psnr_db, sam_degrees
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.physics.simulate import simulate
from hyperfuse.training.experiment import Experiment, SceneSet


@dataclass(frozen=True)
class Score:
    """Quality of a fused image."""

    psnr_db: float
    spectral_angle_degrees: float


@dataclass(frozen=True, eq=False)
class ValidationCase:
    """A test scene, simulated once."""

    name: str
    hsi: Tensor  # (C, h, w)
    msi: Tensor  # (M, H, W)
    reference: Tensor  # (C, H, W) in [0, 1]
    observation: Observation
    wavelength_nm: Tensor | None
    base: Score  # of the network's base alone


@dataclass(frozen=True, eq=False)
class GatheredScenes:
    """All that an experiment trains and validates on."""

    buckets: list[Bucket]
    cases: list[ValidationCase]
    names: list[str]
    label: str  # how training and test scenes were divided; shown next to every score
    overlapping: bool  # test pixels are trained on
    patches: int
    notes: list[str]

    def summary(self) -> list[list[object]]:
        """Return the buckets and the scenes in them, which must be the same in a resumed run."""
        summary: list[list[object]] = []
        for bucket in self.buckets:
            scenes = [(scene.name, *scene.size) for scene in bucket.scenes]
            summary.append([bucket.name, bucket.bands.count, bucket.size, len(bucket.windows), *scenes])
        return summary


def gather_scenes(experiment: Experiment, folder: Path | None = None, *, with_cases: bool = True) -> GatheredScenes:
    """Read and divide the scenes of an experiment, from a folder as in `scenes_folder`.

    Only the process that validates needs the cases.
    """
    scenes: list[Scene] = []
    patches: list[SceneWindow] = []
    blocks: list[SceneWindow] = []
    times: dict[int, int] = {}
    endless: list[Bucket] = []
    labels: list[str] = []
    overlapping = False
    for scene_set in experiment.scenes:
        if scene_set.source == SYNTHETIC:
            size = scene_set.patch_size or experiment.split.patch_size
            endless += synthetic_buckets(scene_set.bands, size) * scene_set.times
            labels.append("synthetic scenes for training only")
            continue
        found = _load_set(scene_set, folder)
        split = _divide(found, scene_set, experiment)
        start = len(scenes)
        scenes += found
        times |= {id(scene): scene_set.times for scene in found}
        patches += [replace(window, scene=window.scene + start) for window in split.train]
        blocks += [replace(block, scene=block.scene + start) for block in split.test]
        labels.append(split.label)
        overlapping |= split.overlapping
    # All buckets are drawn equally often, so one that is drawn more often is repeated.
    buckets = [
        bucket
        for bucket in (make_buckets(scenes, patches) if patches else [])
        for _ in range(max(times[id(scene)] for scene in bucket.scenes))
    ] + endless
    if not buckets:
        raise OptionError("no patch to train on", 'scenes with use = "split" or "train" that have room for a patch')
    experiment = experiment.with_srf_files(folder)
    notes = check_settings(buckets, experiment.simulation)
    if both := _trained_and_tested(scenes, patches, blocks):
        labels.append(f"overlapping: {', '.join(both)} both trained and tested on")
    return GatheredScenes(
        buckets=buckets,
        cases=make_cases(experiment, scenes, blocks) if with_cases else [],
        names=[scene.name for scene in scenes],
        label="; ".join(dict.fromkeys(labels)),
        overlapping=overlapping or bool(both),
        patches=max(1, len(patches)),
        notes=notes,
    )


def _load_set(scene_set: SceneSet, folder: Path | None) -> list[Scene]:
    try:
        scenes = load_scenes(scene_set.source, folder, inputs=scene_set.inputs)
    except OptionError as error:
        remedy = f"{error.remedy}, or take others (--scenes)" if error.remedy == NAME_THE_FOLDER else error.remedy
        raise OptionError(error.got, error.expected, remedy) from error
    kept = [scene for scene in scenes if not any(fnmatch(scene.name, pattern) for pattern in scene_set.exclude)]
    if not kept:
        raise OptionError(f"scenes {scene_set.source!r} without {', '.join(scene_set.exclude)}", "at least one scene")
    for index, scene in enumerate(kept):
        if scene_set.assumed_nm and scene.wavelength_nm is None:
            kept[index] = replace(scene, wavelength_nm=np.linspace(*scene_set.assumed_nm, scene.bands))
    return kept


def _divide(scenes: Sequence[Scene], scene_set: SceneSet, experiment: Experiment) -> Split:
    settings, simulation = experiment.split, experiment.simulation
    patch_size = scene_set.patch_size or settings.patch_size
    if scene_set.use == "train":
        return train_on_all(scenes, patch_size, settings.stride)
    if scene_set.use == "test":
        return keep_for_testing(scenes)
    # The widest PSF that the training or its validation simulates decides the guard between them.
    scales = simulation.scale.choices if isinstance(simulation.scale, ScaleChoices) else simulation.scale
    widest = max(*scales, *experiment.validation.scales) * max(1.0, simulation.psf_fwhm[1])
    return split_scenes(scenes, settings.kind, patch_size, settings.stride, guard_width(widest, simulation.shift))


def _trained_and_tested(
    scenes: Sequence[Scene], patches: Sequence[SceneWindow], blocks: Sequence[SceneWindow]
) -> list[str]:
    """Names of scenes that occur twice, once for each purpose."""
    trained, tested = ({each.scene for each in group} for group in (patches, blocks))
    pixels = {
        index: (scenes[index].stored.shape, scenes[index].stored[:, :4, :64].tobytes()) for index in trained | tested
    }
    only_trained = {pixels[index] for index in trained - tested}
    return sorted({scenes[index].name for index in tested - trained if pixels[index] in only_trained})


def make_cases(experiment: Experiment, scenes: Sequence[Scene], blocks: Sequence[SceneWindow]) -> list[ValidationCase]:
    """Simulate one case for each block and scale; an SRF that does not fit the scene is replaced by three boxes."""
    settings = experiment.validation
    names = [scenes[block.scene].name for block in blocks]
    seen: Counter[str] = Counter()
    cases = []
    for block, name in zip(blocks, names, strict=True):
        seen[name] += 1
        scene = scenes[block.scene]
        reference = scene.patch(*(_middle(part, settings.largest) for part in (block.rows, block.columns)))
        weights = named_srf(settings.srf, BandTable(scene.bands, scene.wavelength_nm, scene.fwhm_nm))
        if weights is None:
            weights = _box_srf(scene.bands)
        unique = name if names.count(name) == 1 else f"{name} block {seen[name]}"
        for scale in settings.scales:
            case_name = f"{unique} x{scale:g}"
            cases.append(_make_case(case_name, scene, reference, weights, scale, experiment.network.base))
    return cases


def _make_case(
    name: str, scene: Scene, reference: Tensor, weights: NDArray[np.float64], scale: float, base: str
) -> ValidationCase:
    # It warns that scenes are cropped to whole coarse pixels.
    with warnings.catch_warnings(action="ignore"):
        simulation = simulate(make_cube(reference.numpy()), scale, weights)
    hsi, msi, used = (
        torch.from_numpy(np.ascontiguousarray(cube.values))
        for cube in (simulation.hsi, simulation.msi, simulation.reference)
    )
    observation = known_observation(torch.from_numpy(weights), float(scale))
    score = _score(fuse_arrays(hsi, msi, observation, base), used)
    centres = None if scene.wavelength_nm is None else torch.from_numpy(scene.wavelength_nm)
    return ValidationCase(name, hsi, msi, used, observation, centres, score)


def _box_srf(bands: int) -> NDArray[np.float64]:
    """(M, C) three boxes that divide the bands evenly, for scenes of unknown wavelengths."""
    count = min(3, bands)
    boxes: NDArray[np.float64] = (np.arange(bands) * count // bands == np.arange(count)[:, None]).astype(np.float64)
    boxes /= boxes.sum(axis=1, keepdims=True)
    return boxes


def _middle(span: slice, largest: int) -> slice:
    cut = max(0, span.stop - span.start - largest)
    return slice(span.start + cut // 2, span.stop - (cut - cut // 2))


def validate(network: AnyNetwork, case: ValidationCase) -> tuple[Score, Tensor]:
    """Fuse a case; return the score and the fused image (C, H, W) in [0, 1]."""
    fused = fuse_with_network(network, case.hsi, case.msi, case.observation, case.wavelength_nm).clamp(0, 1)
    return _score(fused, case.reference), fused


def _score(fused: Tensor, reference: Tensor) -> Score:
    images = fused.clamp(0, 1).numpy(), reference.numpy()
    return Score(psnr_db(*images, 1.0), sam_degrees(*images))
