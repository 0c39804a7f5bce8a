"""Scenes by a short name: a data set of the catalogue, a file, a folder of cubes, a pattern of files, or `synthetic`."""

from __future__ import annotations

import difflib
import glob
from pathlib import Path

from hyperfuse.cubes.files import CONTAINERS
from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.loading.scene import Scene
from hyperfuse.loading.scene_catalogue import DATASETS, FOLDER_VARIABLE, dataset_named, require_found, scenes_folder
from hyperfuse.loading.scene_reading import read_dataset, read_scene
from hyperfuse.loading.synthetic_source import SYNTHETIC, synthetic_scenes
from hyperfuse.progress import progress

CUBE_SUFFIXES = {*CONTAINERS, ".tif", ".tiff", ".hdr"}


def load_scenes(source: str, folder: Path | None = None, variable: str | None = None) -> list[Scene]:
    """The scenes of one source, in memory, in alphabetical order.

    source      `CAVE` or another name of `hyperfuse scenes`, `my/folder`, `my/folder/*.tif`, `scene.mat`, `synthetic`
    folder      where data sets and relative paths are looked for, see `scenes_folder`
    variable    the array in files that hold several
    """
    folder = scenes_folder(folder)
    if source == SYNTHETIC:
        return synthetic_scenes()
    dataset = dataset_named(source)
    if dataset is not None:
        return read_dataset(require_found(dataset, folder))
    paths = cube_paths(source, folder)
    scenes = []
    with progress("Reading scenes", len(paths)) as advance:
        for path in paths:
            scenes.append(read_scene(path, variable))
            advance(1)
    return scenes


def cube_paths(source: str, folder: Path) -> list[Path]:
    """The files that a path or pattern means, looked for from here and from the folder of scenes."""
    for start in (Path(), folder):
        path = start / Path(source).expanduser()
        if path.is_dir() and path.suffix.lower() != ".zarr":
            return _cubes_in(path)
        if path.exists():
            return [path]
        matches = _matches(path)
        if matches:
            return matches
    raise _unknown_source(source, folder)


def _matches(pattern: Path) -> list[Path]:
    anchor = Path(pattern.anchor)
    return sorted(anchor.glob(str(pattern.relative_to(anchor)))) if glob.has_magic(str(pattern)) else []


def _cubes_in(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in CUBE_SUFFIXES and not path.name.startswith("."))
    if not paths:
        raise CubeFileError(
            f"no cubes in {folder}", f"files of {', '.join(sorted(CUBE_SUFFIXES))}", "name the folder that holds them"
        )
    return paths


def _unknown_source(source: str, folder: Path) -> OptionError:
    near = difflib.get_close_matches(source.casefold(), [name.casefold() for name in (*DATASETS, SYNTHETIC)], n=1)
    known = next((name for name in (*DATASETS, SYNTHETIC) if near and name.casefold() == near[0]), None)
    return OptionError(
        f"scenes {source!r}",
        f"a file, folder or pattern of files, here or in {folder}; {SYNTHETIC}; or one of {', '.join(DATASETS)}",
        f"did you mean {known}?" if known else f"check the path, or name the folder of scenes (--folder, {FOLDER_VARIABLE})",
    )
