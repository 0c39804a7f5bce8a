"""The scenes of an experiment: read, divided into training patches and test blocks, sorted into buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from hyperfuse.data.pair_settings import ScaleChoices
from hyperfuse.data.reading import load_scenes
from hyperfuse.data.sampler import Bucket, check_settings, make_buckets
from hyperfuse.data.scenes import Scene
from hyperfuse.data.splits import (
    PatchWindow,
    Split,
    TestBlock,
    guard_width,
    keep_for_testing,
    split_scenes,
    train_on_all,
)
from hyperfuse.data.synthetic import SYNTHETIC
from hyperfuse.errors import OptionError
from hyperfuse.training.experiment import Experiment, SceneSet
from hyperfuse.training.validation import ValidationCase, make_cases


@dataclass(frozen=True, eq=False)
class GatheredScenes:
    buckets: list[Bucket]
    cases: list[ValidationCase]
    names: list[str]
    label: str
    """How training and test scenes were divided; it stands beside every figure."""
    overlapping: bool
    """Whether test pixels are trained on."""
    patches: int
    notes: list[str]

    def summary(self) -> list[list[object]]:
        """What a run that is continued must find again: its buckets and the scenes in them."""
        return [
            [
                bucket.name,
                bucket.bands.count,
                bucket.size,
                len(bucket.windows),
                *((scene.name, *scene.size) for scene in bucket.scenes),
            ]
            for bucket in self.buckets
        ]


def gather_scenes(experiment: Experiment, folder: Path | None = None, *, with_cases: bool = True) -> GatheredScenes:
    """`folder` is where data sets and relative paths are looked for; only the process that validates needs the cases."""
    scenes: list[Scene] = []
    patches: list[PatchWindow] = []
    blocks: list[TestBlock] = []
    times: list[int] = []
    buckets: list[Bucket] = []
    labels: list[str] = []
    overlapping = False
    for scene_set in experiment.scenes:
        if scene_set.source == SYNTHETIC:
            buckets += _synthetic_buckets(experiment, scene_set) * scene_set.times
            labels.append("synthetic scenes for training only")
            continue
        found = _selected(load_scenes(scene_set.source, folder), scene_set)
        split = _divide(found, scene_set, experiment)
        start = len(scenes)
        times += [scene_set.times] * len(found)
        scenes += found
        patches += [replace(window, scene=window.scene + start) for window in split.train]
        blocks += [replace(block, scene=block.scene + start) for block in split.test]
        labels.append(split.label)
        overlapping |= split.overlapping
    buckets = (_repeated(make_buckets(scenes, patches), scenes, times) if patches else []) + buckets
    if not buckets:
        raise OptionError("no patch to train on", 'scenes with use = "split" or "train" that have room for a patch')
    notes = check_settings(buckets, experiment.simulation)
    checked = experiment.validation
    cases = (
        make_cases(scenes, blocks, checked.scales, checked.srf, checked.largest, experiment.network.base)
        if with_cases
        else []
    )
    if both := _trained_and_tested(scenes, patches, blocks):
        labels.append(f"overlapping: {', '.join(both)} both trained and tested on")
    return GatheredScenes(
        buckets=buckets,
        cases=cases,
        names=[scene.name for scene in scenes],
        label="; ".join(dict.fromkeys(labels)),
        overlapping=overlapping or bool(both),
        patches=max(1, len(patches)),
        notes=notes,
    )


def _repeated(buckets: Sequence[Bucket], scenes: Sequence[Scene], times: Sequence[int]) -> list[Bucket]:
    """Every bucket as often as its scenes ask for: each is drawn as often as any other."""
    wanted = {id(scene): count for scene, count in zip(scenes, times, strict=True)}
    return [bucket for bucket in buckets for _ in range(max(wanted.get(id(scene), 1) for scene in bucket.scenes))]


def _trained_and_tested(
    scenes: Sequence[Scene], patches: Sequence[PatchWindow], blocks: Sequence[TestBlock]
) -> list[str]:
    """Names of scenes that came in twice, once for each purpose."""
    trained, tested = ({each.scene for each in group} for group in (patches, blocks))
    pixels = {
        place: (scenes[place].stored.shape, scenes[place].stored[:, :4, :64].tobytes()) for place in trained | tested
    }
    return sorted(
        {
            scenes[one].name
            for one in tested - trained
            if any(pixels[one] == pixels[other] for other in trained - tested)
        }
    )


def _selected(scenes: Sequence[Scene], scene_set: SceneSet) -> list[Scene]:
    kept = [scene for scene in scenes if not any(fnmatch(scene.name, pattern) for pattern in scene_set.exclude)]
    if not kept:
        raise OptionError(
            f"scenes {scene_set.source!r} without {', '.join(scene_set.exclude)}", "at least one that remains"
        )
    return [_with_assumed_wavelengths(scene, scene_set.assumed_nm) for scene in kept]


def _with_assumed_wavelengths(scene: Scene, assumed_nm: tuple[float, float] | None) -> Scene:
    if assumed_nm is None or scene.wavelength_nm is not None:
        return scene
    return replace(scene, wavelength_nm=np.linspace(*assumed_nm, scene.bands))


def _divide(scenes: Sequence[Scene], scene_set: SceneSet, experiment: Experiment) -> Split:
    settings = experiment.split
    patch_size = scene_set.patch_size or settings.patch_size
    if scene_set.use == "split":
        widest = largest_scale(experiment) * max(1.0, experiment.simulation.psf_fwhm[1])
        guard = guard_width(widest, experiment.simulation.shift)
        return split_scenes(scenes, settings.kind, patch_size, settings.stride, guard)
    return train_on_all(scenes, patch_size, settings.stride) if scene_set.use == "train" else keep_for_testing(scenes)


def largest_scale(experiment: Experiment) -> float:
    """Of all that the training and its validation simulate: it decides how far a test pixel can look."""
    scale = experiment.simulation.scale
    trained = max(scale.choices) if isinstance(scale, ScaleChoices) else scale[1]
    return max(trained, *experiment.validation.scales)


def _synthetic_buckets(experiment: Experiment, scene_set: SceneSet) -> list[Bucket]:
    from hyperfuse.data.synthetic import synthetic_buckets

    return synthetic_buckets(scene_set.bands, scene_set.patch_size or experiment.split.patch_size)
