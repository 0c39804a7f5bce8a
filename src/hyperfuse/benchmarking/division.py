"""The user's scenes, divided for `hyperfuse reproduce` by sensor and number of bands into those to train and those
to test on.

- Of several scenes, one in five but at least one is tested: the smallest, and of equal ones the last by name.
- A single scene is cut in two along its longer side. Pairs are simulated from each half alone, so that no test pixel
  influences the training. A scene of less than 64 pixels is not cut: it is trained on.
- Sensors that have test scenes of their own are trained on all of the others.
- A data set of the catalogue is divided by its disjoint split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from hyperfuse.benchmarking.cases import ASSUMED_NM, covers, parse_source
from hyperfuse.data.datasets import cube_paths, dataset_named, scenes_folder
from hyperfuse.data.scenes import Scene, read_scene
from hyperfuse.data.splits import TEST_SHARE
from hyperfuse.data.synthetic import synthetic_scenes
from hyperfuse.errors import OptionError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube

SRF = "rgb"
SMALLEST_CUT_SIDE = 64
MOST_LEFT_OUT, MOST_SCENES_LEFT_OUT = 3, 2
SceneFile = tuple[Path, Scene]


@dataclass(frozen=True)
class Group:
    """The scenes of one sensor with one number of bands."""

    sensor: str
    bands: int
    train: tuple[dict[str, Any], ...]
    """Tables of an experiment file."""
    tests: dict[str, tuple[int, int]]
    """Sources for a benchmark, and their sizes."""
    test_files: tuple[Path, ...] = ()
    """Where the tests come from."""
    scenes: int = 1
    """To train on and to hold out from."""
    pixels: int = 0
    has_wavelengths: bool = True

    def files(self) -> list[Path]:
        """All that is trained or tested on; of a scene in halves, itself and the first half."""
        return [*self.test_files, *(Path(table["source"]) for table in self.train)]


def divide(scenes: Sequence[str], test_scenes: Sequence[str], folder: Path) -> list[Group]:
    """Read and divide scenes; halves, and synthetic scenes where none are given, are written into `folder`."""
    if not scenes and not test_scenes:
        scenes = [str(_write(folder / f"{each.name}.npz", each, each.stored)) for each in synthetic_scenes()]
    groups: list[Group] = []
    files: dict[tuple[str, int], tuple[list[SceneFile], list[SceneFile]]] = {}
    for place, sources in enumerate((scenes, test_scenes)):
        for text in sources:
            name, source, _ = parse_source(text)
            dataset = dataset_named(source)
            if dataset is not None:
                train = ({"source": source, "use": "split"},) if place == 0 else ()
                tests = {f"{dataset.name}={source}": dataset.size}
                groups.append(Group(dataset.name, dataset.bands, train, tests, pixels=int(np.prod(dataset.size))))
                continue
            for path in cube_paths(source, scenes_folder()):
                scene = read_scene(path)
                key = name or _sensor_name(scene), scene.bands
                files.setdefault(key, ([], []))[place].append((path, scene))
    return [*groups, *(_divide_group(*key, *both, folder) for key, both in sorted(files.items()))]


def _sensor_name(scene: Scene) -> str:
    """Without remarks in brackets: `ROSIS (Pavia Centre)` is ROSIS."""
    name = re.sub(r"[=@,]", " ", scene.sensor.partition("(")[0]).strip()
    return f"{scene.bands} bands" if name in ("", "unknown sensor") else name


def _divide_group(sensor: str, bands: int, own: list[SceneFile], given: list[SceneFile], folder: Path) -> Group:
    train, tests, origins = own, given, given
    if not given and len(own) > 1:
        ordered = sorted(own, key=lambda file: -file[1].stored.size)
        count = max(1, len(own) // TEST_SHARE)
        train, tests = ordered[:-count], ordered[-count:]
        origins = tests
    elif not given and max(own[0][1].size) >= SMALLEST_CUT_SIDE:
        (first, second), origins = _cut(*own[0], folder), own
        train, tests = [first], [second]
    return Group(
        sensor,
        bands,
        tuple({"source": str(path), "use": "train", "assumed_nm": ASSUMED_NM} for path, _ in train),
        {f"{sensor}={path}": scene.size for path, scene in tests if _has_srf(scene)},
        tuple(path for path, _ in origins),
        len(own),
        sum(scene.size[0] * scene.size[1] for _, scene in own),
        all(scene.wavelength_nm is not None for _, scene in own),
    )


def _has_srf(scene: Scene) -> bool:
    centres = np.linspace(*ASSUMED_NM, scene.bands) if scene.wavelength_nm is None else scene.wavelength_nm
    return covers(make_cube(scene.stored[:, :1, :1], wavelength_nm=centres, fwhm_nm=scene.fwhm_nm), SRF)


def _cut(path: Path, scene: Scene, folder: Path) -> list[SceneFile]:
    rows, columns = scene.size
    middle = max(rows, columns) // 2
    halves = []
    for name, half in (("train", slice(0, middle)), ("test", slice(middle, None))):
        part = scene.stored[:, half] if rows >= columns else scene.stored[:, :, half]
        target = _write(folder / f"{path.stem}_{name}.npz", scene, part)
        halves.append((target, read_scene(target)))
    return halves


def _write(path: Path, scene: Scene, stored: Any) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        bands: Any = {"wavelength_nm": scene.wavelength_nm, "fwhm_nm": scene.fwhm_nm}
        write_cube(make_cube(stored, **bands, nodata=scene.nodata, attributes={"sensor": scene.sensor}), path)
    return path


def choose_left_out(groups: Sequence[Group], patterns: Sequence[str] | None) -> list[str]:
    """Sensors by name, or by default up to three of few scenes: those with known wavelengths and the most pixels."""
    sensors = list(dict.fromkeys(group.sensor for group in groups))
    if patterns is not None:
        matches = {each: [name for name in sensors if fnmatch(name.casefold(), each.casefold())] for each in patterns}
        if missing := [each for each, found in matches.items() if not found]:
            got = f"no sensor {missing[0]!r} to leave out"
            raise OptionError(got, f"some of {', '.join(sensors)}", "fix --left-out, or give --left-out none")
        return [name for name in sensors if any(name in found for found in matches.values())]
    pixels: dict[str, int] = {}
    for name in sensors:
        own = [group for group in groups if group.sensor == name]
        few = sum(group.scenes for group in own) <= MOST_SCENES_LEFT_OUT
        if few and any(group.train and group.tests for group in own) and all(group.has_wavelengths for group in own):
            pixels[name] = sum(group.pixels for group in own)
    ranked = sorted(pixels, key=lambda name: -pixels[name])
    return ranked[: min(MOST_LEFT_OUT, len(sensors) - 1)]


def trained_on(record: Mapping[str, Any], path: Path) -> bool:
    """Whether the record of trained weights names this file among those trained on."""
    for table in record.get("experiment", {}).get("scenes", []):
        source = Path(table["source"])
        same_folder = path.parent.name in (source.parent.name, source.name)
        named = fnmatch(path.stem, source.stem) or path.parent.name == source.name
        excluded = any(fnmatch(path.stem, pattern) for pattern in table["exclude"])
        if table["use"] != "test" and same_folder and named and not excluded:
            return True
    return False
