"""The public data sets that experiments can name, the scene of the demo, and scenes by name: a data set, a file, a
folder, a pattern of files.

The catalogue is `datasets.toml`.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from hyperfuse.config import InputConfig, with_current_names
from hyperfuse.data.scenes import AS_STORED, Scene, read_scene, scene_from_cube
from hyperfuse.data.synthetic import SYNTHETIC, synthetic_scenes
from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import FORMATS, open_cube
from hyperfuse.io.products import hyperion
from hyperfuse.progress import progress

FOLDER_VARIABLE = "HYPERFUSE_DATA"
# The scene that comes with the extra `demo`.
DEMO = "demo"
NAME_THE_FOLDER = f"check the path, or name the folder of scenes (--folder, {FOLDER_VARIABLE})"
CUBE_SUFFIXES = set(FORMATS)


@dataclass(frozen=True)
class ExpectedFile:
    """File name of a data set, perhaps with folder and wildcards, case-insensitive."""

    pattern: str
    variable: str | None = None
    """The array in a file that holds several."""
    band_suffix: str = ""
    """Where every band is a file of its own: how its name ends, with a place for its number; `pattern` is the first."""


@dataclass(frozen=True)
class SceneDataset:
    """What is known of a public data set."""

    name: str
    sensor: str
    size: tuple[int, int]  # rows, columns
    pixel_metres: float
    wavelength_nm: NDArray[np.float64]
    wavelength_source: str
    files: tuple[ExpectedFile, ...]  # the first that is found is read
    page: str
    fetch: str
    licence: str
    note: str = ""
    images: int = 1

    @property
    def bands(self) -> int:
        return len(self.wavelength_nm)


def _read_catalogue() -> dict[str, SceneDataset]:
    entries = tomllib.loads(files(__package__).joinpath("datasets.toml").read_text(encoding="utf-8"))
    for entry in entries.values():
        entry["wavelength_nm"] = _take_centres(entry)
        entry["size"] = tuple(entry["size"])
        entry["files"] = tuple(ExpectedFile(**kind) for kind in entry["files"])
    return {name: SceneDataset(name, **entry) for name, entry in entries.items()}


def _take_centres(entry: dict[str, Any]) -> NDArray[np.float64]:
    """Take the description of the band centres out of an entry and follow it."""
    if "range_nm" in entry:
        return np.linspace(*entry.pop("range_nm"))
    is_hyperion = "hyperion_bands" in entry
    ranges = entry.pop("hyperion_bands" if is_hyperion else "kept_bands")
    bands = np.concatenate([np.arange(first, last + 1) for first, last in ranges])
    if is_hyperion:
        return np.asarray(hyperion.WAVELENGTH_NM[bands - 1])
    numbers, centres = np.array(entry.pop("knots_nm")).T
    return np.asarray(CubicSpline(numbers, centres)(bands), dtype=np.float64)


DATASETS = _read_catalogue()


@dataclass(frozen=True)
class FoundDataset:
    """Where a data set lies: one path per image, in alphabetical order, and how to read them."""

    dataset: SceneDataset
    paths: tuple[Path, ...]
    kind: ExpectedFile

    @property
    def found(self) -> str:
        if len(self.paths) in (0, self.dataset.images):
            return "yes" if self.paths else "no"
        return f"{len(self.paths)} of {self.dataset.images}"

    def as_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        entry = asdict(self.dataset)
        rows, columns = entry.pop("size")
        entry |= {"rows": rows, "columns": columns, "bands": self.dataset.bands}
        entry["wavelength_nm"] = self.dataset.wavelength_nm.round(2).tolist()
        entry["files"] = [{"pattern": kind.pattern, "variable": kind.variable} for kind in self.dataset.files]
        return entry | {"found": len(self.paths), "paths": [str(path) for path in self.paths]}


def dataset_named(name: str) -> SceneDataset | None:
    """Return a data set by its name, case-insensitive."""
    return next((dataset for known, dataset in DATASETS.items() if known.casefold() == name.casefold()), None)


def require_dataset(name: str) -> SceneDataset:
    dataset = dataset_named(name)
    if dataset is None:
        raise OptionError(f"data set {name!r}", f"one of {', '.join(DATASETS)}", "see `hyperfuse scenes`")
    return dataset


def scenes_folder(folder: Path | None = None) -> Path:
    """Return where data sets and relative paths are searched: the given folder, else HYPERFUSE_DATA, else ./scenes."""
    return folder or Path(with_current_names(os.environ, {FOLDER_VARIABLE}).get(FOLDER_VARIABLE) or "scenes")


def find_file(name: str, folder: Path | None = None) -> Path:
    """Find a file by its path, relative to the working directory or to the folder of scenes."""
    path, folder = Path(name).expanduser(), scenes_folder(folder)
    found = next((start / path for start in (Path(), folder) if (start / path).exists()), None)
    if found is None:
        raise CubeFileError(f"no file {name}", f"one here or in {folder}", NAME_THE_FOLDER)
    return found


def list_datasets(datasets: Iterable[SceneDataset], folder: Path) -> list[FoundDataset]:
    """Search a folder and those below it for data sets; those without files have no paths."""
    files = sorted(
        (Path(parent, name) for parent, _, names in os.walk(folder) for name in names),
        key=lambda path: (len(path.parts), str(path)),  # the shallow ones first
    )
    names = {path: f"/{folder.absolute().name}/{path.relative_to(folder).as_posix()}".casefold() for path in files}
    return [_find_dataset(dataset, names) for dataset in datasets]


def _find_dataset(dataset: SceneDataset, names: dict[Path, str]) -> FoundDataset:
    for kind in dataset.files:
        paths: dict[str, Path] = {}
        for path, name in names.items():
            if fnmatch.fnmatchcase(name, f"*/{kind.pattern}".casefold()):
                paths.setdefault(_scene_name(dataset, kind, path), path)
        if paths:
            return FoundDataset(dataset, tuple(paths[name] for name in sorted(paths)), kind)
    return FoundDataset(dataset, (), dataset.files[0])


def _scene_name(dataset: SceneDataset, kind: ExpectedFile, path: Path) -> str:
    """`cave_balloons`, `harvard_imga1`, `wdc`."""
    if dataset.images == 1:
        return dataset.name.lower()
    ending = kind.band_suffix.format(1) or path.suffix
    return f"{dataset.name.lower()}_{path.name[: -len(ending)].lower()}"


def load_scenes(
    source: str, folder: Path | None = None, variable: str | None = None, inputs: InputConfig = AS_STORED
) -> list[Scene]:
    """Read the scenes of one source into memory, in alphabetical order.

    A `source` is `CAVE` or another name of `hyperfuse scenes`, `my/folder`, `my/folder/*.tif`, `scene.mat`,
    `synthetic`, or `demo`, see `indian_pines`; `folder` is where data sets and relative paths are searched, see
    `scenes_folder`; `variable` is the array in files that hold several, `inputs` supply
    what files lack.
    """
    folder = scenes_folder(folder)
    if source == SYNTHETIC:
        return synthetic_scenes()
    if source == DEMO:
        return [scene_from_cube(indian_pines(), "indian_pines", "AVIRIS")]
    dataset = dataset_named(source)
    found = None if dataset is None else _require_found(dataset, folder)
    paths = cube_paths(source, folder) if found is None else found.paths
    scenes = []
    with progress(f"Reading {dataset.name if dataset else 'scenes'}", len(paths)) as advance:
        for path in paths:
            scenes.append(read_scene(path, variable, inputs) if found is None else _read_image(found, path))
            advance(1)
    return scenes


def _require_found(dataset: SceneDataset, folder: Path) -> FoundDataset:
    (found,) = list_datasets([dataset], folder)
    if not found.paths:
        raise CubeFileError(
            f"no file of {dataset.name} in {folder}" if folder.is_dir() else f"no folder {folder} with {dataset.name}",
            f"{' or '.join(kind.pattern for kind in dataset.files)}, there or in a folder below",
            f"get {dataset.fetch}, from {dataset.page}, or name another folder (--folder, {FOLDER_VARIABLE})",
        )
    return found


def _read_image(found: FoundDataset, path: Path) -> Scene:
    dataset, kind = found.dataset, found.kind
    suffixes = [kind.band_suffix.format(band + 1) for band in range(dataset.bands)]
    cube = _stack_bands(path, suffixes) if kind.band_suffix else open_cube(path, kind.variable)
    # More bands than the data set has are channels of another kind, at the end; fewer mean another file.
    if cube.sizes["band"] < dataset.bands:
        got, expected = f"{path} has {cube.sizes['band']} bands", f"the {dataset.bands} of {dataset.name}"
        raise BandError(got, expected, f"get {dataset.fetch}, from {dataset.page}")
    return scene_from_cube(
        cube.isel(band=slice(0, dataset.bands)),
        _scene_name(dataset, kind, path),
        dataset.sensor,
        dataset=dataset.name,
        wavelength_nm=dataset.wavelength_nm,
        path=path,
    )


def _stack_bands(first: Path, suffixes: Sequence[str]) -> xr.DataArray:
    """A cube of single images, one per band; of images with several channels the first."""
    stem = first.name[: -len(suffixes[0])]
    paths = [first.with_name(stem + suffix) for suffix in suffixes]
    missing = [path.name for path in paths if not path.is_file()]
    remedy = "unpack the archive again"
    if missing:
        raise CubeFileError(f"{first.parent} lacks {', '.join(missing)}", f"{len(paths)} bands", remedy)
    bands = [open_cube(path).isel(band=0).values for path in paths]
    if len({band.shape for band in bands}) > 1:
        raise CubeFileError(f"the bands in {first.parent} have different sizes", "one size", remedy)
    return make_cube(np.stack(bands))


def cube_paths(source: str, folder: Path) -> list[Path]:
    """The files that a path or pattern means, relative to the working directory or to the folder of scenes."""
    for path in (start / Path(source).expanduser() for start in (Path(), folder)):
        if path.is_dir() and path.suffix.lower() != ".zarr":
            names = sorted(each for each in path.iterdir() if not each.name.startswith("."))
            if paths := [each for each in names if each.suffix.lower() in CUBE_SUFFIXES]:
                return paths
            expected = f"files of {', '.join(sorted(CUBE_SUFFIXES))}"
            raise CubeFileError(f"no cubes in {path}", expected, "name the folder that holds them")
        if path.exists():
            return [path]
        if glob.has_magic(source) and (paths := sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))):
            return paths
    known = {name.casefold(): name for name in (*DATASETS, SYNTHETIC, DEMO)}
    near = difflib.get_close_matches(source.casefold(), known, n=1)
    expected = (
        f"a file, folder or pattern of files, here or in {folder}; {SYNTHETIC}; {DEMO}; or one of {', '.join(DATASETS)}"
    )
    raise OptionError(f"scenes {source!r}", expected, f"did you mean {known[near[0]]}?" if near else NAME_THE_FOLDER)


# Of Indian Pines: the bands, from 1, that the corrected scene leaves out: water vapour absorption, and the last one.
_BANDS_RECORDED, _BANDS_REMOVED = 220, {*range(104, 109), *range(150, 164), 220}


def indian_pines() -> xr.DataArray:
    """Load Indian Pines, an AVIRIS scene that is part of tensorly's wheel (extra `demo`).

    145 x 145 pixels of 20 m, 200 bands of sensor counts. The file has neither wavelengths nor a place: even spacing
    over the sensor's range puts the removed bands onto the water bands, and the CRS and the corner put the scene west
    of West Lafayette, Indiana, where it was recorded, to within a few kilometres.
    """
    try:
        from tensorly.datasets import load_indian_pines
    except ImportError as error:
        remedy = "pip install 'hyperfuse[demo]'"
        raise CubeFileError("the demo scene is not installed", "tensorly, whose wheel carries it", remedy) from error
    counts = np.asarray(load_indian_pines()["tensor"]).transpose(2, 0, 1)
    centres = np.linspace(400.0, 2500.0, _BANDS_RECORDED)
    kept = [band - 1 for band in range(1, _BANDS_RECORDED + 1) if band not in _BANDS_REMOVED]
    return make_cube(
        counts.astype(np.uint16),
        wavelength_nm=centres[kept],
        fwhm_nm=10.0,
        crs=32616,
        transform=Affine(20.0, 0, 497_000, 0, -20.0, 4_480_000),
        attributes={"sensor": "AVIRIS", "scene": "Indian Pines"},
    )


def overview(listed: Sequence[FoundDataset]) -> str:
    """Format a line of numbers for each data set, and below it the file, where to get it, and its licence."""
    lines = [f"{'name':<10}{'found':<10}{'images':>6}  {'size':<11}{'bands':>5}  {'nm':<11}{'sensor'}"]
    for entry in listed:
        dataset, nm = entry.dataset, entry.dataset.wavelength_nm
        size = f"{dataset.size[0]}x{dataset.size[1]}"
        approximate = "~" if dataset.wavelength_source.startswith("approximate") else ""
        nm_range = f"{approximate}{nm.min():.0f}-{nm.max():.0f}"
        lines.append(
            f"{dataset.name:<10}{entry.found:<10}{dataset.images:>6}  {size:<11}{dataset.bands:>5}  {nm_range:<11}"
            f"{dataset.sensor}"
        )
        lines += [f"{'':<10}{key:<10}{value}" for key, value in _origin(dataset).items()]
    return "\n".join(lines)


def details(entry: FoundDataset) -> str:
    """Format everything about one data set."""
    dataset = entry.dataset
    shown = ", ".join(f"{nm:.1f}".removesuffix(".0") for nm in dataset.wavelength_nm)
    rows = {
        "name": dataset.name,
        "found": entry.found,
        "sensor": dataset.sensor,
        "images": f"{dataset.images} of {dataset.size[0]}x{dataset.size[1]} pixels",
        "pixels": f"{dataset.pixel_metres:g} m, {dataset.bands} bands",
        **_origin(dataset),
        "get": dataset.fetch,
        "bands nm": f"{shown} ({dataset.wavelength_source})",
        "note": dataset.note,
    }
    lines = [f"{key:<10}{value}" for key, value in rows.items() if value]
    return "\n".join([*lines, *(f"{'':<10}{path}" for path in entry.paths)])


def _origin(dataset: SceneDataset) -> dict[str, str]:
    files = []
    for kind in dataset.files:
        last_band = f" to {kind.band_suffix.format(dataset.bands)}" if kind.band_suffix else ""
        files.append(f"{kind.pattern}{last_band}" + (f" ({kind.variable})" if kind.variable else ""))
    return {"file": " or ".join(files), "from": dataset.page, "licence": dataset.licence}
