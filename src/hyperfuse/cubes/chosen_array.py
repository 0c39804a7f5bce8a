"""From the arrays in a container to one cube: which array, and which of its axes are which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from hyperfuse.cubes import side_arrays as tell
from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.found_arrays import FoundArray, Sides, TransposedReader
from hyperfuse.cubes.lazy import delivered_dtype, lazy_variable
from hyperfuse.cubes.nodata import fitting_nodata
from hyperfuse.cubes.side_arrays import LARGEST_SIDE_BYTES, VAGUE_WAVELENGTH_NAMES, WAVELENGTH_NAMES
from hyperfuse.errors import CubeFileError, OptionError

BAND_DIM = re.compile(r"(?:n_?)?(?:bands?|wavelengths?|wl|lambda|spectral.*|channels?|wvl)", re.IGNORECASE)
X_DIM = re.compile(r"x|lon|longitude|columns?|cols?|samples?|easting|crosstrack|cross_track", re.IGNORECASE)
Y_DIM = re.compile(r"y|lat|latitude|rows?|lines?|northing|downtrack|down_track", re.IGNORECASE)
# Where nothing labels the axes: MATLAB and numpy people store (rows, columns, bands).
LAST = -1


def cube_from_arrays(
    path: Path, arrays: Sequence[FoundArray], variable: str | None, band_axis: int | None, default_band_axis: int | None = None
) -> xr.DataArray:
    """The one 3-D array (or the one named), turned to (band, y, x), with what its neighbours tell about its bands and place."""
    found = _choose(path, arrays, variable)
    sides = _sides(found, arrays)
    reader = TransposedReader(found, _axes(found, sides, band_axis, default_band_axis))
    bands = reader.shape[0]
    wavelength, fwhm = tell.lengths(path, sides, bands)
    scale, offset = tell.scale_and_offset(path, found, sides, bands)
    crs, transform = tell.place(found, sides, reader.axes)
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        good=tell.good_bands(path, sides, bands),
        band_names=tell.names(sides, bands),
        scale=scale,
        offset=offset,
        nodata=fitting_nodata(tell.nodata(found, sides), delivered_dtype(found.dtype)),
        crs=crs,
        transform=transform,
        attributes=tell.attributes(found, sides),
    )


def _choose(path: Path, arrays: Sequence[FoundArray], variable: str | None) -> FoundArray:
    cubes = [array for array in arrays if len(array.shape) == 3 and _holds_numbers(array.dtype) and min(array.shape) > 0]
    if variable is not None:
        named = [array for array in arrays if _plain(array.name) == _plain(variable)]
        if not named:
            raise OptionError(f"no variable {variable!r} in {path}", f"one of {_listed(arrays)}")
        if named[0] not in cubes:
            raise CubeFileError(
                f"{variable} in {path} is {_described(named[0])}", "a 3-D array of numbers", f"there are {_listed(cubes)}"
            )
        return named[0]
    if not cubes:
        raise CubeFileError(
            f"no 3-D array of numbers in {path}; it holds {_listed(arrays)}", "one 3-D array", "export the cube itself"
        )
    if len(cubes) > 1:
        raise CubeFileError(
            f"{len(cubes)} 3-D arrays in {path}", "one", f"name it as --help says, such as with --variable: {_listed(cubes)}"
        )
    return cubes[0]


def _holds_numbers(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.itemsize <= 8


def _plain(name: str) -> str:
    """The fields of a MATLAB struct are `struct.field` in version 5 and `struct/field` in 7.3: one spelling for both."""
    return name.strip("/").replace("/", ".")


def _sides(found: FoundArray, arrays: Sequence[FoundArray]) -> Sides:
    """Small arrays by their short names; those of the cube's own group win over those further away."""
    small = [array for array in arrays if array is not found and array.nbytes <= LARGEST_SIDE_BYTES]
    group = _plain(found.name).rpartition(".")[0]
    small.sort(key=lambda array: _plain(array.name).rpartition(".")[0] == group)
    return {array.short_name: array for array in small}


def _axes(found: FoundArray, sides: Sides, band_axis: int | None, default: int | None) -> tuple[int, int, int]:
    if band_axis is not None:
        if not -3 <= band_axis < 3:
            raise OptionError(f"band axis {band_axis}", "0, 1 or 2")
        band = band_axis % 3
    else:
        band = _band_axis(found, sides, default)
    y, x = (axis for axis in range(3) if axis != band)
    if found.dims and (X_DIM.fullmatch(found.dims[y]) or Y_DIM.fullmatch(found.dims[x])):
        y, x = x, y
    return band, y, x


def _band_axis(found: FoundArray, sides: Sides, default: int | None) -> int:
    dims = found.dims or ("", "", "")
    labelled = [axis for axis, dim in enumerate(dims) if BAND_DIM.fullmatch(dim)]
    in_place = [axis for axis, dim in enumerate(dims) if X_DIM.fullmatch(dim) or Y_DIM.fullmatch(dim)]
    if labelled:
        return labelled[0]
    if len(in_place) == 2:
        return 3 - sum(in_place)
    for name in (*WAVELENGTH_NAMES, *VAGUE_WAVELENGTH_NAMES):
        count = sides[name].size if name in sides else 0
        matching = [axis for axis in range(3) if found.shape[axis] == count]
        if count and len(matching) == 1:
            return matching[0]
    if default is not None:
        return default % 3
    # Unlabelled: a first axis shorter than both others is the bands of a band-sequential array.
    return 0 if found.shape[0] < min(found.shape[1:]) else 2


def _described(array: FoundArray) -> str:
    return f"{array.name} ({'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype})"


def _listed(arrays: Sequence[FoundArray]) -> str:
    shown = [_described(array) for array in arrays[:8]]
    return ", ".join(shown) + (f" and {len(arrays) - 8} more" if len(arrays) > 8 else "") if shown else "nothing"
