"""Scenes in memory: values as stored in the file, so that large data sets fit, and patches of them in [0, 1].

Shapes: C bands, H W rows and columns of the scene, r c of a patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.config import InputConfig
from hyperfuse.errors import BandError, ValueRangeError
from hyperfuse.io.cube import iterate_windows, missing_values, nodata_of, physical_values, wavelengths_nm
from hyperfuse.io.files import open_cube

AS_STORED = InputConfig()
# Values above this quantile are highlights: one glint must not make the rest of a scene dark.
UNIT_QUANTILE = 0.9995
LARGEST_SAMPLE = 4_000_000
# Smaller files are read at once, regardless of their layout.
READ_AT_ONCE_BYTES = 2**31
BANDS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class Scene:
    """A cube in memory; sent to another process, its values are shared instead of copied."""

    name: str
    sensor: str
    stored: NDArray[Any]
    """(C, H, W) as stored: uint16, int16, float32 ..."""
    unit: float
    """What values are divided by; the result is clipped to [0, 1]."""
    wavelength_nm: NDArray[np.float64] | None = None
    fwhm_nm: NDArray[np.float64] | None = None
    nodata: float | None = None
    dataset: str = ""
    """The data set of the catalogue that it belongs to, if any."""

    @property
    def bands(self) -> int:
        return int(self.stored.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.stored.shape[1]), int(self.stored.shape[2])

    def patch(self, rows: slice, columns: slice) -> Tensor:
        """Return (C, r, c) float32 in [0, 1]; missing values become the mean of their band in the patch, or 0."""
        window = np.asarray(self.stored[:, rows, columns])
        values = window.astype(np.float32)
        values /= np.float32(self.unit)
        if self.missing_pixels is not None and self.missing_pixels[rows, columns].any():
            missing = missing_values(window, self.nodata)
            values[missing] = 0.0
            means = values.sum(axis=(1, 2), dtype=np.float64) / np.maximum(1, (~missing).sum(axis=(1, 2)))
            np.copyto(values, means.astype(np.float32)[:, None, None], where=missing)
        return torch.from_numpy(np.clip(values, 0.0, 1.0, out=values))

    @cached_property
    def missing_pixels(self) -> NDArray[np.bool_] | None:
        """(H, W), true where some band has no value; None where nothing is missing."""
        if self.nodata is None and self.stored.dtype.kind != "f":
            return None
        missing = np.zeros(self.size, dtype=bool)
        for band in self.stored:
            missing |= missing_values(np.asarray(band), self.nodata)
        return missing if missing.any() else None

    @cached_property
    def _shared(self) -> Tensor:
        """The bytes of the values in shared memory, which torch passes to other processes as a handle."""
        native = np.array(self.stored, dtype=self.stored.dtype.newbyteorder("="), order="C")
        shared = torch.from_numpy(native.reshape(-1).view(np.uint8))
        shared.share_memory_()  # type: ignore[no-untyped-call]
        return shared

    def __getstate__(self) -> dict[str, Any]:
        header = (self.stored.dtype.newbyteorder("="), self.stored.shape)
        return {**vars(self), "_shared": self._shared, "stored": header}

    def __setstate__(self, state: dict[str, Any]) -> None:
        dtype, shape = state["stored"]
        vars(self).update(state, stored=state["_shared"].numpy().view(dtype).reshape(shape))


def scene_unit(stored: NDArray[Any], nodata: float | None = None) -> float:
    """Return the quantile of the values that becomes 1, of a regular sample where there are many."""
    step = max(1, int(np.ceil(np.sqrt(stored.size / LARGEST_SAMPLE))))
    sample = np.asarray(stored[:, ::step, ::step])
    present = sample[~missing_values(sample, nodata)]
    unit = float(np.quantile(present.astype(np.float32), UNIT_QUANTILE)) if present.size else 0.0
    if not unit > 0:
        raise ValueRangeError("a scene without positive values", "reflectance, radiance or counts", "check the file")
    return unit


def read_scene(path: Path, variable: str | None = None, inputs: InputConfig = AS_STORED) -> Scene:
    """Read a scene from any file that `open_cube` reads; `inputs` supply what it lacks."""
    cube = open_cube(path, variable, wavelengths=inputs.wavelengths, nodata_in=inputs.nodata_in)
    return scene_from_cube(cube, path.stem, str(cube.attrs.get("sensor") or "unknown sensor"), path=path)


def scene_from_cube(
    cube: xr.DataArray,
    name: str,
    sensor: str,
    *,
    dataset: str = "",
    wavelength_nm: NDArray[np.float64] | None = None,
    path: Path | None = None,
) -> Scene:
    """Read a cube into memory; bad bands and bands without values are dropped.

    `wavelength_nm` is used if the cube does not know its own; the type of the file at `path` decides in which order it
    is read.
    """
    good = np.flatnonzero(cube["good"].values)
    if not good.size:
        raise BandError(f"{name}: all {cube.sizes['band']} bands are flagged bad", "at least one good band")
    own = wavelengths_nm(cube)
    centres = own if own is not None else wavelength_nm
    widths: NDArray[np.float64] = cube["fwhm"].values
    cube = cube.isel(band=good)
    nodata = nodata_of(cube)
    stored = _read_values(cube, path)
    filled = np.array([bool((band[~missing_values(band, nodata)] != 0).any()) for band in stored])
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


def _read_values(cube: xr.DataArray, path: Path | None) -> NDArray[Any]:
    """Stored values in the smallest type that holds them, or physical ones where the bands' scaling differs."""
    scale = cube["scale"].values
    if not ((scale == scale[0]).all() and scale[0] > 0 and (cube["offset"].values == 0).all()):
        physical = np.empty(cube.shape, np.float32)
        for rows, columns in iterate_windows(cube):
            physical[:, rows, columns] = physical_values(cube, rows, columns)
        return physical
    small = cube.dtype.itemsize <= 2 and cube.dtype.kind in "iu"
    if cube.nbytes <= READ_AT_ONCE_BYTES:
        values = np.ascontiguousarray(cube.values)
    else:
        values = np.empty(cube.shape, cube.dtype if small else np.float32)
        # MATLAB 7.3 stores a cube band by band, compressed: a window of all bands would unpack the whole file.
        if path is not None and path.suffix.lower() == ".mat":
            for start in range(0, len(values), BANDS_AT_ONCE):
                values[start : start + BANDS_AT_ONCE] = cube[start : start + BANDS_AT_ONCE].values
        else:
            for rows, columns in iterate_windows(cube):
                values[:, rows, columns] = cube.isel(y=rows, x=columns).values
    return values if small else _compact(values)


def _compact(values: NDArray[Any]) -> NDArray[Any]:
    """Counts that were stored as floats or long integers need two bytes each."""
    low, high = values.min(), values.max()
    for small in (np.uint16, np.int16):
        limits = np.iinfo(small)
        if limits.min <= low and high <= limits.max and all((band == np.rint(band)).all() for band in values):
            return values.astype(small)
    return values.astype(np.float32, copy=False)
