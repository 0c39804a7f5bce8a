"""The scenes of an experiment: read, divided into training patches and test blocks, sorted into buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from hyperfuse.errors import OptionError
from hyperfuse.loading.buckets import Bucket, check_settings, make_buckets
from hyperfuse.loading.scene import Scene
from hyperfuse.loading.scene_sources import load_scenes
from hyperfuse.loading.simulation_settings import ScaleChoices
from hyperfuse.loading.splits import PatchWindow, Split, TestBlock, guard_width, keep_for_testing, split_scenes, train_on_all
from hyperfuse.loading.synthetic_source import SYNTHETIC
from hyperfuse.training.experiment import Experiment, SceneSet
from hyperfuse.training.validation import ValidationCase, make_cases


@dataclass(frozen=True, eq=False)
class GatheredScenes:
    buckets: list[Bucket]
    cases: list[ValidationCase]
    names: list[str]
    label: str
    """How training and test scenes were divided; it stands beside every figure."""
    patches: int
    notes: list[str]


def gather_scenes(experiment: Experiment, folder: Path | None = None) -> GatheredScenes:
    """`folder` is where data sets and relative paths are looked for."""
    scenes: list[Scene] = []
    patches: list[PatchWindow] = []
    blocks: list[TestBlock] = []
    buckets: list[Bucket] = []
    labels: list[str] = []
    for scene_set in experiment.scenes:
        if scene_set.source == SYNTHETIC:
            buckets += _synthetic_buckets(experiment, scene_set)
            labels.append("synthetic scenes for training only")
            continue
        found = _selected(load_scenes(scene_set.source, folder), scene_set)
        split = _divide(found, scene_set, experiment)
        start = len(scenes)
        scenes += found
        patches += [replace(window, scene=window.scene + start) for window in split.train]
        blocks += [replace(block, scene=block.scene + start) for block in split.test]
        labels.append(split.label)
    buckets = (make_buckets(scenes, patches) if patches else []) + buckets
    if not buckets:
        raise OptionError("no scene to train on", 'a scene set with use = "split" or "train"')
    notes = check_settings(buckets, experiment.simulation)
    checked = experiment.validation
    cases = make_cases(scenes, blocks, checked.scales, checked.response, checked.largest, experiment.network.base)
    label = "; ".join(dict.fromkeys(labels))
    return GatheredScenes(buckets, cases, [scene.name for scene in scenes], label, max(1, len(patches)), notes)


def _selected(scenes: Sequence[Scene], scene_set: SceneSet) -> list[Scene]:
    kept = [scene for scene in scenes if not any(fnmatch(scene.name, pattern) for pattern in scene_set.exclude)]
    if not kept:
        raise OptionError(f"scenes {scene_set.source!r} without {', '.join(scene_set.exclude)}", "at least one that remains")
    return [_with_assumed_wavelengths(scene, scene_set.assumed_nm) for scene in kept]


def _with_assumed_wavelengths(scene: Scene, assumed_nm: tuple[float, float] | None) -> Scene:
    if assumed_nm is None or scene.wavelength_nm is not None:
        return scene
    return replace(scene, wavelength_nm=np.linspace(*assumed_nm, scene.bands))


def _divide(scenes: Sequence[Scene], scene_set: SceneSet, experiment: Experiment) -> Split:
    settings = experiment.split
    if scene_set.use == "split":
        guard = guard_width(largest_scale(experiment), experiment.simulation.shift)
        return split_scenes(scenes, settings.kind, settings.patch_size, settings.stride, guard)
    return train_on_all(scenes, settings.patch_size, settings.stride) if scene_set.use == "train" else keep_for_testing(scenes)


def largest_scale(experiment: Experiment) -> float:
    """Of all that the training and its validation simulate: it decides how far a test pixel can look."""
    scale = experiment.simulation.scale
    trained = max(scale.choices) if isinstance(scale, ScaleChoices) else scale[1]
    return max(trained, *experiment.validation.scales)


def _synthetic_buckets(experiment: Experiment, scene_set: SceneSet) -> list[Bucket]:
    from hyperfuse.loading.synthetic_source import synthetic_buckets

    return synthetic_buckets(scene_set.bands, experiment.split.patch_size)
