"""Containers of arrays (HDF5, NetCDF, Zarr, .mat, .npz): which array is the cube, which of its axes are which, and what
the small arrays and attributes beside it say about its bands, values and place. Implausible entries are left out.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.cube import (
    WindowReader,
    contiguous_parts,
    covering,
    delivered_dtype,
    fitting_nodata,
    lazy_variable,
    lengths_in_nanometres,
    make_cube,
)
from hyperfuse.io.grid import transform_from_axes, transform_from_text

WAVELENGTH_NAMES = ("wavelength_nm", "wavelength", "wavelengths", "wavelength_um")
MISSPELT = "misspelt wavelengths"
# Names that may as well mean something else: they count where their size fits.
VAGUE_WAVELENGTH_NAMES = ("wl", "wvl", "lambda", "lambdas", "centers", "band_centers", "center_wavelengths", MISSPELT)
FWHM_NAMES = ("fwhm_nm", "fwhm", "fwhms", "fwhm_um")
GOOD_NAMES = ("good", "good_bands", "good_wavelengths", "bbl")
X_NAMES = ("x", "lon", "longitude")
Y_NAMES = ("y", "lat", "latitude")
BAND_DIM = re.compile(r"(?:n_?)?(?:bands?|wavelengths?|wl|lambda|spectral.*|channels?|wvl)", re.IGNORECASE)
X_DIM = re.compile(r"x|lon|longitude|columns?|cols?|samples?|easting|crosstrack|cross_track", re.IGNORECASE)
Y_DIM = re.compile(r"y|lat|latitude|rows?|lines?|northing|downtrack|down_track", re.IGNORECASE)
# Longer side over shorter side up to which an image is usual enough to decide which axes are its own.
LARGEST_ELONGATION = 2.0
LARGEST_SIDE_BYTES = 32 * 2**20
# Attributes that describe the storage, or that have a place of their own in a cube.
STORAGE_ATTRIBUTES = {
    *("CLASS", "DIMENSION_LIST", "NAME", "REFERENCE_LIST", "_ARRAY_DIMENSIONS", "_FillValue", "_Netcdf4Coordinates"),
    *("_Netcdf4Dimid", "_nc3_strict", "add_offset", "coordinates", "grid_mapping", "missing_value", "scale_factor"),
}
# The attributes of ours that a container cannot hold under their own names, as one JSON text.
OTHER_ATTRIBUTES = "hyperfuse_other_attributes"


@dataclass(frozen=True, eq=False)
class FoundArray:
    """An array of a container, not yet read; `load((slice, slice, slice))` reads a part and must be picklable."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[tuple[Any, ...]], NDArray[Any]]
    dims: tuple[str, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    chunks: tuple[int, ...] | None = None
    """Shape of the blocks that it is stored in."""

    @property
    def group(self) -> str:
        return _dotted(self.name).rpartition(".")[0]

    @property
    def short_name(self) -> str:
        return _dotted(self.name).rpartition(".")[2].lower()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_number(self) -> bool:
        return self.dtype.kind in "iuf"

    @property
    def is_cube(self) -> bool:
        return len(self.shape) == 3 and self.is_image

    @property
    def is_plane(self) -> bool:
        """Whether it is a single band, such as a mask; lists and scalars of MATLAB are 2-D, too."""
        return len(self.shape) == 2 and min(self.shape) > 1 and self.is_image

    @property
    def is_image(self) -> bool:
        return min(self.shape) > 0 and self.dtype.kind in "iufb" and self.dtype.itemsize <= 8

    def as_cube(self) -> FoundArray:
        """Return a 3-D array as it is, a 2-D one as a single band."""
        if len(self.shape) == 3:
            return self
        dims = ("band", *(self.dims or ("y", "x")))
        chunks = (1, *self.chunks) if self.chunks else None
        return replace(self, shape=(1, *self.shape), load=partial(_load_plane, self.load), dims=dims, chunks=chunks)

    def values(self) -> NDArray[Any]:
        return np.asarray(self.load(tuple(slice(None) for _ in self.shape)))

    def __str__(self) -> str:
        return f"{self.name} ({'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype})"


def _load_plane(load: Callable[[tuple[Any, ...]], NDArray[Any]], key: tuple[Any, ...]) -> NDArray[Any]:
    return np.asarray(load(key[1:])[None][key[0]])


def read_part(stream: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...], key: tuple[slice, ...]) -> NDArray[Any]:
    """Read part of an array in C order that begins where the stream stands, one index of its first axis at a time.

    Not through a mapping: its pages count as memory of this process, and a window touches most of those of an array
    whose first axis holds the bands.
    """
    if len(shape) < 2:
        return np.fromfile(stream, dtype, math.prod(shape)).reshape(shape)[key]
    origin, rest = stream.tell(), math.prod(shape[2:])
    indices, (start, stop, step) = range(*key[0].indices(shape[0])), key[1].indices(shape[1])
    part = np.empty(
        (len(indices), *(len(range(*each.indices(n))) for each, n in zip(key[1:], shape[1:], strict=True))), dtype
    )
    for target, index in zip(part, indices, strict=True):
        stream.seek(origin + (index * shape[1] + start) * rest * dtype.itemsize)
        span = np.fromfile(stream, dtype, (stop - start) * rest).reshape(stop - start, *shape[2:])
        target[...] = span[::step, *key[2:]]
    return part


def _dotted(name: str) -> str:
    """Fields of a MATLAB struct are `struct.field` in version 5 and `struct/field` in 7.3: one spelling for both."""
    return name.strip("/").replace("/", ".")


def transposed(found: FoundArray, axes: tuple[int, int, int]) -> WindowReader:
    """Return a reader of a 3-D array whose axes come in any order; `axes` says where band, y and x are."""
    bands, height, width = (found.shape[axis] for axis in axes)
    block = None
    if found.chunks is not None:
        block = found.chunks[axes[0]], found.chunks[axes[1]], found.chunks[axes[2]]
    return WindowReader((bands, height, width), found.dtype, partial(_read_transposed, found, axes), block)


def _read_transposed(
    found: FoundArray, axes: tuple[int, int, int], bands: NDArray[np.int64], rows: slice, columns: slice
) -> NDArray[Any]:
    parts = []
    for part in contiguous_parts(bands):
        band_range, inner = covering(part)
        window = dict(zip(axes, (band_range, rows, columns), strict=True))
        parts.append(found.load((window[0], window[1], window[2])).transpose(axes)[inner])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def cube_from_arrays(
    path: Path,
    arrays: Sequence[FoundArray],
    variable: str | None,
    band_axis: int | None,
    fitting: tuple[int, int] | None = None,
) -> xr.DataArray:
    """Make a cube of the one 3-D array (or the one named) of a container, described by the arrays beside it.

    `fitting` is the height and width of an image of the same place; see `unlabelled_band_axis`.
    """
    chosen = _choose(path, arrays, variable)
    # The small arrays by their short names; those of the cube's own group win over those further away.
    small = [array for array in arrays if array is not chosen and array.nbytes <= LARGEST_SIDE_BYTES]
    small.sort(key=lambda array: array.group == chosen.group)
    sides = {array.short_name: array for array in small}
    # "wavlength", "Wavelenghts": close enough where the size fits.
    unknown = (array for array in small if array.is_number and array.short_name not in WAVELENGTH_NAMES)
    for array in unknown:
        if get_close_matches(array.short_name, WAVELENGTH_NAMES, 1, 0.85):
            sides[MISSPELT] = array
    found = chosen.as_cube()
    axes = _axes(path, found, sides, band_axis, fitting)
    reader = transposed(found, axes)
    beside = _Beside(path, found, sides, reader.shape[0])
    wavelength, fwhm = beside.lengths()
    crs, transform = beside.place(axes)
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        good=beside.column(GOOD_NAMES),
        band_names=beside.band_names(),
        scale=beside.scaling("scale", "scale_factor"),
        offset=beside.scaling("offset", "add_offset"),
        nodata=fitting_nodata(beside.nodata(), delivered_dtype(found.dtype)),
        crs=crs,
        transform=transform,
        attributes=beside.attributes(),
    )


def _choose(path: Path, arrays: Sequence[FoundArray], variable: str | None) -> FoundArray:
    cubes = [array for array in arrays if array.is_cube] or [array for array in arrays if array.is_plane]
    if variable is not None:
        named = [array for array in arrays if _dotted(array.name) == _dotted(variable)]
        if not named:
            raise OptionError(f"no variable {variable!r} in {path}", f"one of {_listed(arrays)}")
        if not (named[0].is_cube or named[0].is_plane):
            got = f"{variable} in {path} is {named[0]}"
            raise CubeFileError(got, "a 3-D or 2-D array of numbers", f"there are {_listed(cubes)}")
        return named[0]
    if not cubes:
        got = f"no 3-D array of numbers in {path}; it holds {_listed(arrays)}"
        raise CubeFileError(got, "one 3-D array, or a 2-D one for a single band", "export the cube itself")
    if len(cubes) > 1:
        remedy = f"name it as --help says, such as with --variable: {_listed(cubes)}"
        raise CubeFileError(f"{len(cubes)} {len(cubes[0].shape)}-D arrays in {path}", "one", remedy)
    return cubes[0]


def _listed(arrays: Sequence[FoundArray]) -> str:
    more = f" and {len(arrays) - 8} more" if len(arrays) > 8 else ""
    return ", ".join(map(str, arrays[:8])) + more if arrays else "nothing"


def _axes(
    path: Path,
    found: FoundArray,
    sides: Mapping[str, FoundArray],
    band_axis: int | None,
    fitting: tuple[int, int] | None,
) -> tuple[int, int, int]:
    if band_axis is not None and not -3 <= band_axis < 3:
        raise OptionError(f"band axis {band_axis}", "0, 1 or 2")
    band = (_band_axis(path, found, sides, fitting) if band_axis is None else band_axis) % 3
    y, x = (axis for axis in range(3) if axis != band)
    if found.dims and (X_DIM.fullmatch(found.dims[y]) or Y_DIM.fullmatch(found.dims[x])):
        y, x = x, y
    return band, y, x


def _band_axis(path: Path, found: FoundArray, sides: Mapping[str, FoundArray], fitting: tuple[int, int] | None) -> int:
    dims = found.dims or ("", "", "")
    labelled = [axis for axis, dim in enumerate(dims) if BAND_DIM.fullmatch(dim)]
    spatial = [axis for axis, dim in enumerate(dims) if X_DIM.fullmatch(dim) or Y_DIM.fullmatch(dim)]
    if labelled:
        return labelled[0]
    if len(spatial) == 2:
        return 3 - sum(spatial)
    for name in (*WAVELENGTH_NAMES, *VAGUE_WAVELENGTH_NAMES):
        count = sides[name].size if name in sides else 0
        if count in found.shape:
            return next(axis for axis in (2, 0, 1) if found.shape[axis] == count)
    return unlabelled_band_axis(found.shape, fitting, str(path))


def unlabelled_band_axis(shape: tuple[int, ...], fitting: tuple[int, int] | None = None, name: str = "") -> int:
    """Return the axis of the bands of a 3-D array, the first or the last, judged by its shape alone.

    `fitting` is the height and width of an image of the same place, whose proportions the array should have. Without
    one, bands are last, as MATLAB and NumPy users store them, unless the first axis is shorter and leaves an image that
    is closer to a square. A longer first axis that does so is doubtful and warned about: 512 x 217 x 204 is Salinas,
    but 224 x 60 x 80 may have 224 bands. Ambiguous axes raise `CubeFileError`, which asks for them.
    """
    first, last = (shape[1], shape[2]), (shape[0], shape[1])
    if fitting is not None:
        fits = [same_proportions(size, fitting) for size in (first, last)]
        if fits[0] != fits[1]:
            return 0 if fits[0] else 2
    if first[0] == first[1] != shape[0]:
        return 0
    elongated_first, elongated_last = (max(size) / min(size) for size in (first, last))
    array = f"{name or 'an array'} of shape {' x '.join(map(str, shape))} whose axes have no names"
    readings = [f"{bands} bands of {size[0]} x {size[1]}" for bands, size in ((shape[0], first), (shape[2], last))]
    if shape[0] != shape[2] or shape[0] == 1:
        if elongated_last == 1:
            return 2
        if shape[0] >= min(first):
            if elongated_first < elongated_last > LARGEST_ELONGATION:
                warnings.warn(
                    f"{array} is taken as {readings[1]}; if bands come first, say --band-axis 0", stacklevel=2
                )
            return 2
        if elongated_first < elongated_last:
            return 0
        if elongated_last < LARGEST_ELONGATION:
            return 2
    remedy = "say so with --band-axis 0 or --band-axis 2 (in fuse --hsi-band-axis, --msi-band-axis)"
    raise CubeFileError(array, f"bands first ({readings[0]}) or last ({readings[1]})", remedy)


def same_proportions(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether images of two sizes may show one place; sides are rounded to whole pixels."""
    (height, width), (other_height, other_width) = size, other
    return abs(height * other_width - width * other_height) <= max(sum(size), sum(other)) / 2


@dataclass(frozen=True)
class _Beside:
    """What the attributes of a cube's array and the small arrays beside it (`sides`, by short name) say about it."""

    path: Path
    found: FoundArray
    sides: Mapping[str, FoundArray]
    bands: int

    def lengths(self) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """Wavelengths and widths in nm."""
        centres = self._vector(WAVELENGTH_NAMES) or self._fitting(VAGUE_WAVELENGTH_NAMES)
        widths = self._vector(FWHM_NAMES) or self._fitting(("bandwidth",))
        (wavelength, unit), (fwhm, fwhm_unit) = _with_unit(centres), _with_unit(widths)
        return lengths_in_nanometres(wavelength, fwhm, unit, fwhm_unit, str(self.path))

    def scaling(self, name: str, attribute: str) -> Any:
        """Per band where there is such an array, else CF's one number for all."""
        column = self.column((f"band_{name}", name))
        if column is not None:
            return column
        number = np.asarray(self.found.attributes.get(attribute, "")).ravel()
        is_usable = number.size == 1 and number.dtype.kind in "iuf" and math.isfinite(number[0])
        return float(number[0]) if is_usable else None

    def column(self, names: Sequence[str]) -> NDArray[Any] | None:
        """One number per band, or one for all."""
        for side in self._named(names):
            if side.dtype.kind in "iufb" and side.size in (1, self.bands):
                return np.broadcast_to(side.values().ravel(), self.bands)
            if side.size:
                warnings.warn(
                    f"{self.path}: {side.name} has {side.size} entries for {self.bands} bands and is left out",
                    stacklevel=4,
                )
        return None

    def band_names(self) -> list[str] | None:
        for side in self._named(("band_name", "band_names")):
            names = [text(value) or "" for value in np.atleast_1d(side.values()).ravel()]
            listed = _json(names[0]) if len(names) == 1 and names[0].startswith("[") else None
            names = [str(entry) for entry in listed] if isinstance(listed, list) else names
            if len(names) == self.bands:
                return names
        return None

    def nodata(self) -> Any:
        own = [self.found.attributes[key] for key in ("_FillValue", "missing_value") if key in self.found.attributes]
        return own[0] if own else self._scalar("nodata")

    def place(self, axes: tuple[int, int, int]) -> tuple[CRS | None, Affine | None]:
        mapping = (text(self.found.attributes.get("grid_mapping")) or "spatial_ref").lower()
        reference = self.sides[mapping].attributes if mapping in self.sides else {}
        wkt = text(reference.get("crs_wkt")) or text(reference.get("spatial_ref")) or text(self._scalar("crs_wkt"))
        crs = _crs(wkt, reference)
        transform = transform_from_text(
            text(reference.get("GeoTransform")) or text(self._scalar("geo_transform")) or ""
        )
        if transform is not None:
            return crs, transform
        x, y = self._axis(axes[2], X_NAMES), self._axis(axes[1], Y_NAMES)
        if x is None or y is None:
            return crs, None
        if crs is None and all((text(side.attributes.get("units")) or "").startswith("degrees_") for side in (x, y)):
            crs = CRS.from_epsg(4326)
        return crs, transform_from_axes(x.values().ravel(), y.values().ravel(), crs is not None)

    def attributes(self) -> dict[str, Any]:
        """Attributes that describe the scene, without those that describe the storage."""
        own = {
            key: _plain(value)
            for key, value in self.found.attributes.items()
            if key not in STORAGE_ATTRIBUTES | {OTHER_ATTRIBUTES} and not key.startswith("MATLAB")
        }
        named = {key: named for key in ("sensor", "wavelength_source") if (named := text(self._scalar(key)))}
        tables = (_json(text(self.found.attributes.get(OTHER_ATTRIBUTES))), _json(text(self._scalar("attributes"))))
        for table in tables:
            named |= table if isinstance(table, dict) else {}
        return own | named

    def _named(self, names: Sequence[str]) -> Iterable[FoundArray]:
        return (self.sides[name] for name in names if name in self.sides)

    def _vector(self, names: Sequence[str]) -> FoundArray | None:
        """The list under one of these names; one of the wrong length is an error, a table or nothing at all is not."""
        for side in self._named(names):
            if side.is_number and side.size and side.size == max(side.shape, default=1):
                if side.size != self.bands == 1:
                    # Of the cube beside a mask or another plane.
                    continue
                if side.size != self.bands:
                    got = f"{self.path}: {side.name} list of {side.size} entries for {self.bands} bands"
                    raise BandError(got, f"{self.bands} entries", "fix or remove it")
                return side
        return None

    def _fitting(self, names: Sequence[str]) -> FoundArray | None:
        return next((side for side in self._named(names) if side.is_number and side.size == self.bands), None)

    def _axis(self, axis: int, names: Sequence[str]) -> FoundArray | None:
        """The coordinates along an axis: those that carry its dimension's name, else those with a usual name."""
        labelled = (self.found.dims[axis].lower(),) if self.found.dims else ()
        shape = (self.found.shape[axis],)
        return next((s for s in self._named((*labelled, *names)) if s.is_number and s.shape == shape), None)

    def _scalar(self, name: str) -> Any:
        is_scalar = name in self.sides and self.sides[name].size == 1
        return next(iter(self.sides[name].values().ravel()), None) if is_scalar else None


def text(value: Any) -> str | None:
    """Return a text attribute or array of one text as clean text, None for anything else."""
    if isinstance(value, np.ndarray):
        value = value.ravel()[0] if value.size == 1 else None
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value).encode("utf-8", "replace").decode("utf-8", "replace") if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    decoded = text(value)
    if decoded is not None:
        return decoded
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _json(written: str | None) -> Any:
    try:
        return json.loads(written) if written else None
    except (ValueError, RecursionError):
        return None


def _with_unit(side: FoundArray | None) -> tuple[NDArray[np.float64] | None, str | None]:
    if side is None:
        return None, None
    suffix = next((unit for unit in ("nm", "um") if side.short_name.endswith(f"_{unit}")), None)
    unit = suffix or text(side.attributes.get("units")) or text(side.attributes.get("unit"))
    return side.values().astype(np.float64).ravel(), unit


def _crs(wkt: str | None, reference: Mapping[str, Any]) -> CRS | None:
    """A CRS from WKT, else from the parameters of CF's grid mapping."""
    import pyproj
    from pyproj.exceptions import CRSError as ProjectionError

    try:
        if wkt:
            return CRS.from_wkt(wkt)
        if "grid_mapping_name" in reference:
            return CRS.from_wkt(pyproj.CRS.from_cf(dict(reference)).to_wkt())
    except (ProjectionError, CRSError, KeyError, ValueError, TypeError):
        pass
    return None
