"""Zarr stores: folders of chunks, written in format 2, which every reader knows.

Are Blosc's chunks what their headers say? Blosc trusts them, and a damaged one ends the whole process.

A chunk begins with four bytes (versions, flags, size of an item) and three numbers: bytes unpacked, bytes of a block,
bytes packed.
"""

from __future__ import annotations

import base64
import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.arrays import FoundArray
from hyperfuse.io.cube import nodata_of
from hyperfuse.io.grid import grid_of
from hyperfuse.io.lazy import reading
from hyperfuse.io.netcdf import file_attributes, labelled_attributes, labelled_sides, place_attributes

HEADER = struct.Struct("<4B3I")


def check_blosc_chunks(array: Any, folder: Path, key: tuple[Any, ...]) -> None:
    """Raises ValueError where a chunk that this part of a Zarr array needs is damaged."""
    packed_by_blosc, other_steps = _blosc_and_others(array)
    if not packed_by_blosc:
        return
    chunk_bytes = math.prod(array.chunks) * np.dtype(array.dtype).itemsize
    ranges = [
        range(part.indices(size)[0] // chunk, -(-part.indices(size)[1] // chunk))
        for part, size, chunk in zip(key, array.shape, array.chunks, strict=True)
    ]
    for place in itertools.product(*ranges):
        file = folder / array.metadata.encode_chunk_key(place)
        if file.is_file():
            _check_header(file, None if other_steps else chunk_bytes)


def _blosc_and_others(array: Any) -> tuple[bool, bool]:
    """Is Blosc the last step when a chunk is written, and are there others that change its length before?"""
    if array.metadata.zarr_format == 2:
        return getattr(array.metadata.compressor, "codec_id", "") == "blosc", bool(array.metadata.filters)
    names = [type(codec).__name__ for codec in array.metadata.codecs]
    return names[-1:] == ["BloscCodec"], len(names) > 2


def _check_header(file: Path, chunk_bytes: int | None) -> None:
    with file.open("rb") as stream:
        header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        raise ValueError(f"chunk {file.name} is truncated")
    *_, item_bytes, unpacked, block, packed = HEADER.unpack(header)
    whole = packed == file.stat().st_size and item_bytes > 0 and 0 < block <= max(unpacked, 1)
    if not whole or (chunk_bytes is not None and unpacked != chunk_bytes):
        raise ValueError(f"chunk {file.name} is damaged")


CHUNK = 128
WHOLE = "a whole Zarr store"
# Our own words in the cube's attributes: the fill value is nodata (also where it is 0), and every chunk was written.
OWN_NODATA = "hyperfuse_fill_value_is_nodata"
OWN_WHOLE = "hyperfuse_every_chunk_is_written"
# Beyond what any compression of ours or others allows for one chunk.
LARGEST_CHUNK_BYTES = 2**31


# Not Blosc, Zarr's own choice: it does not survive a damaged chunk.
COMPRESSORS: Mapping[str, Mapping[str, Any] | None] = {
    "zstd": {"id": "zstd", "level": 3},
    "gzip": {"id": "gzip", "level": 5},
    "none": None,
}


@dataclass(frozen=True)
class LoadFromZarr:
    path: str
    name: str

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with reading(Path(self.path), WHOLE):
            root: Any = zarr.open(self.path, mode="r")
            array = root[self.name] if self.name else root
            check_blosc_chunks(array, Path(self.path) / self.name, key)
            return np.asarray(array[key])


def arrays_in_zarr(path: Path) -> list[FoundArray]:
    if not path.is_dir():
        raise CubeFileError(f"{path} is a file", "a .zarr folder", "unpack it first if it is an archive")
    with reading(path, WHOLE):
        root = zarr.open(str(path), mode="r")
        members = [("", root)] if isinstance(root, zarr.Array) else sorted(root.members(max_depth=None))
        return [
            _found(path, name, item)
            for name, item in members
            if isinstance(item, zarr.Array) and np.dtype(item.dtype).kind in "iufbSUOT"
        ]


def _found(path: Path, name: str, item: Any) -> FoundArray:
    attributes, dtype = dict(item.attrs), np.dtype(item.dtype)
    if dtype.itemsize * math.prod(item.chunks) > LARGEST_CHUNK_BYTES:
        raise CubeFileError(
            f"{path}: {name} has chunks of {item.chunks}", f"at most {LARGEST_CHUNK_BYTES >> 20} MB each"
        )
    if attributes.pop(OWN_WHOLE, False) and item.nchunks_initialized < item.nchunks:
        raise CubeFileError(
            f"{path} is incomplete: {item.nchunks - item.nchunks_initialized} of {item.nchunks} chunks of {name} are missing",
            "every chunk",
            "fetch it again",
        )
    own_nodata = bool(attributes.pop(OWN_NODATA, False))
    # Zarr fills with 0 unless told otherwise: only another value, or our own word, means nodata.
    if dtype.kind in "iuf" and (own_nodata or item.fill_value):
        attributes.setdefault("_FillValue", item.fill_value)
    if dtype.kind == "f" and isinstance(attributes.get("_FillValue"), str):
        attributes["_FillValue"] = _number_of_xarray(attributes["_FillValue"])
    return FoundArray(name, tuple(item.shape), dtype, LoadFromZarr(str(path), name), _dims(item), attributes)


def _number_of_xarray(text: str) -> float | None:
    """xarray writes a float `_FillValue` into Zarr 3 as base64 of its eight bytes."""
    code = base64.b64decode(text)
    return float(np.frombuffer(code, "<f8")[0]) if len(code) == 8 else None


@contextmanager
def created_zarr(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[ZarrWriter]:
    bands, height, width = template.shape
    chosen = options.get("COMPRESS", "zstd").lower()
    if chosen not in COMPRESSORS:
        raise OptionError(f"COMPRESS={options['COMPRESS']} for {path.name}", f"one of {', '.join(COMPRESSORS)}")
    root = zarr.open_group(str(path), mode="w", zarr_format=2, attributes=file_attributes(template))
    nodata = nodata_of(template)
    cube = root.create_array(
        "cube",
        shape=template.shape,
        dtype=template.dtype,
        chunks=(min(bands, 64), min(height, CHUNK), min(width, CHUNK)),
        fill_value=None if nodata is None else template.dtype.type(nodata),
        attributes=labelled_attributes(template)
        | {"_ARRAY_DIMENSIONS": ["band", "y", "x"], OWN_WHOLE: True}
        | ({} if nodata is None else {OWN_NODATA: True}),
        config={"write_empty_chunks": True},
        compressors=COMPRESSORS[chosen],
    )
    for name, (dims, values, attributes) in labelled_sides(template).items():
        side = root.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            fill_value=None,
            attributes=attributes | {"_ARRAY_DIMENSIONS": list(dims)},
            compressors=COMPRESSORS["zstd"],
        )
        side[...] = values
    attributes = place_attributes(grid_of(template)) | {"_ARRAY_DIMENSIONS": []}
    root.create_array("spatial_ref", shape=(), dtype="int64", attributes=attributes)
    yield ZarrWriter(cube)
    zarr.consolidate_metadata(str(path), zarr_format=2)


class ZarrWriter:
    def __init__(self, target: Any) -> None:
        self._target = target

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self._target[:, rows, columns] = block


def _dims(item: Any) -> tuple[str, ...] | None:
    names = item.attrs.get("_ARRAY_DIMENSIONS") or getattr(item.metadata, "dimension_names", None)
    return tuple(str(name or "") for name in names) if names else None
