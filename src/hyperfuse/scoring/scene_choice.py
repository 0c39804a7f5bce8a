"""Which scenes are asked for: `[NAME=]SOURCE[@RESPONSE,RESPONSE]`, each with the part of it that is scored.

A source is a file, a folder, a pattern of files, or a data set of the catalogue. Of files all pixels are scored; of a data set the
blocks that its split keeps for testing. NAME stands over the tables; without it a data set is called by its own name, files by
their folder's.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperfuse.degradation.response_curves import named_curves
from hyperfuse.errors import OptionError
from hyperfuse.loading.scene import Scene
from hyperfuse.loading.scene_catalogue import dataset_named
from hyperfuse.loading.scene_sources import load_scenes
from hyperfuse.loading.splits import Split, SplitKind, keep_for_testing, split_scenes

SOURCE_FORM = "[NAME=]SOURCE[@RESPONSE,RESPONSE], such as CAVE@nikon_d700.csv or valley=scenes/*.tif"


@dataclass(frozen=True, eq=False)
class ScoredScene:
    """A scene, or a block of one, that the benchmark degrades and wants back."""

    dataset: str
    name: str
    scene: Scene
    rows: slice
    columns: slice
    responses: tuple[str, ...]
    overlapping: bool = False
    """Whether networks trained by the same split have seen these pixels."""

    @property
    def values(self) -> NDArray[np.float32]:
        """(C, H, W) in 0 to 1: clipped at 0, divided by the 99.95th percentile of the scene, clipped at 1."""
        return self.scene.patch(self.rows, self.columns).numpy()

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        missing = self.scene.missing_pixels
        return None if missing is None else ~missing[self.rows, self.columns]

    @property
    def digest(self) -> str:
        """Tells whether a run that is continued still has the pixels that it began with."""
        block = np.ascontiguousarray(self.scene.stored[:, self.rows, self.columns])
        return f"{zlib.crc32(block.tobytes()):08x}"


def choose_scenes(
    wanted: Sequence[str], responses: Sequence[str], split: SplitKind = "disjoint", folder: Path | None = None
) -> list[ScoredScene]:
    """Every scene of every source, in the order asked for; `responses` are for sources that name none of their own."""
    chosen: list[ScoredScene] = []
    for text in wanted:
        name, source, own = _parts(text)
        scenes = load_scenes(source, folder)
        parts = split_scenes(scenes, split) if dataset_named(source) else keep_for_testing(scenes)
        wanted_responses = tuple(dict.fromkeys(own or responses))
        _require_different_names(wanted_responses)
        chosen += _scored(scenes, parts, name or _name_of(source), wanted_responses)
    _require_different(chosen)
    return chosen


def _scored(scenes: Sequence[Scene], parts: Split, dataset: str, responses: tuple[str, ...]) -> list[ScoredScene]:
    if not responses:
        raise OptionError(f"no response for the scenes of {dataset}", "--responses, or @RESPONSE behind the source")
    blocks = [block.scene for block in parts.test]
    scored = []
    for block in parts.test:
        scene = scenes[block.scene]
        alone = blocks.count(block.scene) == 1
        name = scene.name if alone else f"{scene.name}[{block.top},{block.left}]"
        scored.append(ScoredScene(dataset, name, scene, block.rows, block.columns, responses, parts.overlapping))
    return scored


def _parts(text: str) -> tuple[str, str, list[str]]:
    source, _, listed = text.partition("@")
    name, equals, rest = source.partition("=")
    if equals and not Path(source).exists():
        source = rest
    else:
        name = ""
    if not source.strip():
        raise OptionError(f"scenes {text!r}", SOURCE_FORM)
    return name.strip(), source.strip(), listed_responses(listed)


def _name_of(source: str) -> str:
    dataset = dataset_named(source)
    if dataset is not None:
        return dataset.name
    path = Path(source)
    return path.name if path.is_dir() else path.absolute().parent.name


def listed_responses(text: str) -> list[str]:
    """Parted at commas, but not within a choice of bands: `Sentinel-2A:B2,B3,rgb` are two responses."""
    found: list[str] = []
    for part in (each.strip() for each in text.split(",") if each.strip()):
        if found and ":" in found[-1] and not _is_response(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _is_response(text: str) -> bool:
    if ":" in text or Path(text).suffix or Path(text).is_file():
        return True
    try:
        named_curves(text)
    except OptionError:
        return False
    return True


def response_name(response: str) -> str:
    """What a response is called in results: files without folder and ending."""
    return Path(response).stem


def _require_different_names(responses: Sequence[str]) -> None:
    names = [response_name(response) for response in responses]
    if doubles := [name for name in names if names.count(name) > 1]:
        raise OptionError(f"two responses called {doubles[0]}", "files whose names differ", "rename one of the two")


def _require_different(chosen: Sequence[ScoredScene]) -> None:
    seen: set[tuple[str, str]] = set()
    for scene in chosen:
        if (scene.dataset, scene.name) in seen:
            raise OptionError(
                f"scene {scene.name} of {scene.dataset} twice", "every scene once", "leave out one of the two --scenes"
            )
        seen.add((scene.dataset, scene.name))
