"""The catalogue of data sets for a person and for a program, with what of it lies in a folder.

From files to scenes: bands without value dropped, values kept in the smallest type that holds them exactly.

Scenes by a short name: a data set of the catalogue, a file, a folder of cubes, a pattern of files, or `synthetic`.
"""

from __future__ import annotations

import difflib
import glob
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.data.scenes import (
    DATASETS,
    FOLDER_VARIABLE,
    ExpectedFile,
    FoundDataset,
    Scene,
    SceneDataset,
    dataset_named,
    files_below,
    find_dataset,
    require_found,
    scene_name,
    scene_unit,
    scenes_folder,
)
from hyperfuse.data.synthetic import SYNTHETIC, synthetic_scenes
from hyperfuse.errors import BandError, CubeFileError, OptionError, ValueRangeError
from hyperfuse.io.cube import iterate_windows, make_cube, missing_values, nodata_of, physical_values, wavelengths_nm
from hyperfuse.io.files import CONTAINERS, open_cube
from hyperfuse.progress import progress

# Up to here a file is read in one go, however its values are arranged.
READ_AT_ONCE_BYTES = 2**31
BANDS_AT_ONCE = 8


def read_scene(path: Path, variable: str | None = None) -> Scene:
    """A scene from any file that `open_cube` reads."""
    cube = open_cube(path, variable)
    sensor = str(cube.attrs.get("sensor") or "unknown sensor")
    return scene_from_cube(cube, path.stem, sensor, bands_together=_bands_together(path))


def read_dataset(found: FoundDataset) -> list[Scene]:
    """Every image of a data set of the catalogue."""
    scenes = []
    with progress(f"Reading {found.dataset.name}", len(found.paths)) as advance:
        for path in found.paths:
            scenes.append(_read_image(found, path))
            advance(1)
    return scenes


def scene_from_cube(
    cube: xr.DataArray,
    name: str,
    sensor: str,
    *,
    dataset: str = "",
    wavelength_nm: NDArray[np.float64] | None = None,
    bands_together: bool = False,
) -> Scene:
    """A scene in memory; `wavelength_nm` is for cubes that do not know their own. Bad bands and bands without value are
    dropped.
    """
    good = np.flatnonzero(cube["good"].values)
    if not good.size:
        raise BandError(f"{name}: all {cube.sizes['band']} bands are flagged bad", "at least one good band")
    own = wavelengths_nm(cube)
    centres = own if own is not None else wavelength_nm
    widths: NDArray[np.float64] = cube["fwhm"].values
    cube = cube.isel(band=good)
    nodata = nodata_of(cube)
    stored = _as_stored(cube, bands_together) if _one_unit(cube) else _physical(cube)
    filled = _bands_with_value(stored, nodata)
    if not filled.any():
        raise ValueRangeError(f"{name} has no band with a value other than 0", "an image", "check the file")
    kept = good[filled]
    stored = stored if filled.all() else stored[filled]
    return Scene(
        name=name,
        sensor=sensor,
        stored=stored,
        unit=scene_unit(stored, nodata),
        wavelength_nm=None if centres is None else centres[kept],
        fwhm_nm=None if np.isnan(widths[kept]).any() else widths[kept],
        nodata=nodata,
        dataset=dataset,
    )


def _read_image(found: FoundDataset, path: Path) -> Scene:
    dataset, kind = found.dataset, found.kind
    name = scene_name(dataset, kind, path)
    if kind.band_suffixes:
        cube = _cube_of_band_files(path, kind.band_suffixes)
    else:
        cube = open_cube(path, kind.variable)
    _require_bands(cube, dataset, path)
    cube = cube.isel(band=slice(0, dataset.bands))
    return scene_from_cube(
        cube,
        name,
        dataset.sensor,
        dataset=dataset.name,
        wavelength_nm=dataset.wavelength_nm,
        bands_together=_bands_together(path),
    )


def _require_bands(cube: xr.DataArray, dataset: SceneDataset, path: Path) -> None:
    """More bands than the data set has are channels of another kind, at the end; fewer are another file."""
    if cube.sizes["band"] < dataset.bands:
        raise BandError(
            f"{path} has {cube.sizes['band']} bands",
            f"the {dataset.bands} of {dataset.name}",
            f"get {dataset.fetch}, from {dataset.page}",
        )


def _cube_of_band_files(first: Path, suffixes: tuple[str, ...]) -> xr.DataArray:
    """A cube of single images, one per band; of images with several channels the first."""
    stem = first.name[: -len(suffixes[0])]
    paths = [first.with_name(stem + suffix) for suffix in suffixes]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise CubeFileError(
            f"{first.parent} lacks {', '.join(missing)}", f"{len(paths)} bands", "unpack the archive again"
        )
    bands = [open_cube(path).isel(band=0).values for path in paths]
    if len({band.shape for band in bands}) > 1:
        raise CubeFileError(f"the bands in {first.parent} have different sizes", "one size", "unpack the archive again")
    return make_cube(np.stack(bands))


def _bands_together(path: Path) -> bool:
    """MATLAB 7.3 stores a cube band by band, compressed in pieces: a window of all bands would unpack the whole file."""
    return path.suffix.lower() == ".mat"


def _one_unit(cube: xr.DataArray) -> bool:
    """Whether stored values are physical ones but for a positive factor, which the scene's unit takes care of."""
    scale = cube["scale"].values
    return bool((scale == scale[0]).all() and scale[0] > 0 and (cube["offset"].values == 0).all())


def _as_stored(cube: xr.DataArray, bands_together: bool) -> NDArray[Any]:
    if cube.dtype.itemsize <= 2 and cube.dtype.kind in "iu":
        return _read(cube, cube.dtype, bands_together)
    if cube.dtype == np.float32 or cube.nbytes > READ_AT_ONCE_BYTES:
        return _smallest(_read(cube, np.dtype(np.float32), bands_together))
    return _smallest(_read(cube, cube.dtype, bands_together))


def _read(cube: xr.DataArray, dtype: np.dtype[Any], bands_together: bool) -> NDArray[Any]:
    if cube.nbytes <= READ_AT_ONCE_BYTES:
        return np.ascontiguousarray(cube.values, dtype=dtype)
    values = np.empty(cube.shape, dtype)
    if bands_together:
        for start in range(0, cube.sizes["band"], BANDS_AT_ONCE):
            part = slice(start, start + BANDS_AT_ONCE)
            values[part] = cube.isel(band=part).values
    else:
        for rows, columns in iterate_windows(cube):
            values[:, rows, columns] = cube.isel(y=rows, x=columns).values
    return values


def _physical(cube: xr.DataArray) -> NDArray[Any]:
    values = np.empty(cube.shape, np.float32)
    for rows, columns in iterate_windows(cube):
        values[:, rows, columns] = physical_values(cube, rows, columns)
    return values


def _smallest(values: NDArray[Any]) -> NDArray[Any]:
    """Counts that were saved as numbers with a fraction, or as long integers, need two bytes each and no more."""
    low, high = values.min(), values.max()
    for small in (np.uint16, np.int16):
        limits = np.iinfo(small)
        if limits.min <= low and high <= limits.max and all((band == np.rint(band)).all() for band in values):
            return values.astype(small)
    return values.astype(np.float32, copy=False)


def _bands_with_value(stored: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    return np.array([bool((band[~missing_values(band, nodata)] != 0).any()) for band in stored])


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
    paths = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in CUBE_SUFFIXES and not path.name.startswith(".")
    )
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
        f"did you mean {known}?"
        if known
        else f"check the path, or name the folder of scenes (--folder, {FOLDER_VARIABLE})",
    )


@dataclass(frozen=True)
class ListedDataset:
    dataset: SceneDataset
    paths: tuple[Path, ...]

    @property
    def found(self) -> str:
        if len(self.paths) in (0, self.dataset.images):
            return "yes" if self.paths else "no"
        return f"{len(self.paths)} of {self.dataset.images}"

    def as_dict(self) -> dict[str, Any]:
        """Only what JSON can hold."""
        entry = asdict(self.dataset)
        entry["wavelength_nm"] = self.dataset.wavelength_nm.round(2).tolist()
        entry["files"] = [{"pattern": kind.pattern, "variable": kind.variable} for kind in self.dataset.files]
        return entry | {"found": len(self.paths), "paths": [str(path) for path in self.paths]}


def list_datasets(datasets: Iterable[SceneDataset], folder: Path) -> list[ListedDataset]:
    files = files_below(folder)
    listed = []
    for dataset in datasets:
        found = find_dataset(dataset, folder, files)
        listed.append(ListedDataset(dataset, found.paths if found else ()))
    return listed


def overview(listed: Sequence[ListedDataset]) -> str:
    """A line of figures for each data set, and below it the file, where to get it, and under which terms."""
    lines = [f"{'name':<10}{'found':<10}{'images':>6}  {'size':<11}{'bands':>5}  {'nm':<11}{'sensor'}"]
    for entry in listed:
        dataset = entry.dataset
        lines.append(
            f"{dataset.name:<10}{entry.found:<10}{dataset.images:>6}  {f'{dataset.rows}x{dataset.columns}':<11}{dataset.bands:>5}  "
            f"{_range_nm(dataset):<11}{dataset.sensor}"
        )
        lines += [f"{'':<10}{key:<10}{value}" for key, value in _origin(dataset).items()]
    return "\n".join(lines)


def details(entry: ListedDataset) -> str:
    """Everything about one data set."""
    dataset = entry.dataset
    shown = ", ".join(f"{nm:.1f}".removesuffix(".0") for nm in dataset.wavelength_nm)
    rows = {
        "name": dataset.name,
        "found": entry.found,
        "sensor": dataset.sensor,
        "images": f"{dataset.images} of {dataset.rows}x{dataset.columns} pixels",
        "pixels": f"{dataset.pixel_metres:g} m, {dataset.bands} bands",
        **_origin(dataset),
        "get": dataset.fetch,
        "bands nm": f"{shown} ({dataset.wavelength_source})",
    }
    if dataset.note:
        rows["note"] = dataset.note
    lines = [f"{key:<10}{value}" for key, value in rows.items()]
    return "\n".join([*lines, *(f"{'':<10}{path}" for path in entry.paths)])


def _origin(dataset: SceneDataset) -> dict[str, str]:
    return {"file": " or ".join(map(_file, dataset.files)), "from": dataset.page, "licence": dataset.licence}


def _file(kind: ExpectedFile) -> str:
    if kind.band_suffixes:
        return f"{kind.pattern} to {kind.band_suffixes[-1]}"
    return f"{kind.pattern} ({kind.variable})" if kind.variable else kind.pattern


def _range_nm(dataset: SceneDataset) -> str:
    known = "~" if dataset.wavelength_source.startswith("approximate") else ""
    return f"{known}{dataset.wavelength_nm.min():.0f}-{dataset.wavelength_nm.max():.0f}"
