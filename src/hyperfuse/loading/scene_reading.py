"""From files to scenes: bands without value dropped, values kept in the smallest type that holds them exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import iterate_windows, make_cube, missing_values, nodata_of, physical_values, wavelengths_nm
from hyperfuse.cubes.files import open_cube
from hyperfuse.errors import BandError, CubeFileError, ValueRangeError
from hyperfuse.loading.scene import Scene, scene_unit
from hyperfuse.loading.scene_catalogue import FoundDataset, SceneDataset, scene_name
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
    """A scene in memory; `wavelength_nm` is for cubes that do not know their own. Bad bands and bands without value are dropped."""
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
        raise CubeFileError(f"{first.parent} lacks {', '.join(missing)}", f"{len(paths)} bands", "unpack the archive again")
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
