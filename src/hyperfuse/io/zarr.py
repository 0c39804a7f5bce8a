"""Zarr stores: folders of chunks, written in format 2, which every reader knows.

Blosc trusts the header of a chunk, and a damaged one ends the whole process, so headers are checked first. A chunk
begins with four bytes (versions, flags, size of an item) and three numbers: bytes unpacked, of a block, packed.
"""

from __future__ import annotations

import base64
import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.arrays import FoundArray
from hyperfuse.io.atomic import WriteWindow
from hyperfuse.io.cube import nodata_of, reading
from hyperfuse.io.hdf5 import CHUNK, cf_variables, cube_attributes, file_attributes

BLOSC_HEADER = struct.Struct("<4B3I")
WHOLE = "a whole Zarr store"
# Our own attributes of the cube: the fill value is nodata (also where it is 0), and every chunk was written.
OWN_NODATA = "hyperfuse_fill_value_is_nodata"
OWN_WHOLE = "hyperfuse_every_chunk_is_written"
# A chunk takes a third of a millisecond to read, however small it is.
SMALLEST_CHUNK_BYTES, MANY_CHUNKS = 4096, 50_000
LARGE_CHUNK_BYTES = 2**24
# Not Blosc, Zarr's own choice: it does not survive a damaged chunk.
COMPRESSORS: Mapping[str, Mapping[str, Any] | None] = {
    "zstd": {"id": "zstd", "level": 3},
    "gzip": {"id": "gzip", "level": 5},
    "none": None,
}


def _load_from_zarr(path: Path, name: str, key: tuple[Any, ...]) -> NDArray[Any]:
    import zarr

    with reading(path, WHOLE):
        root: Any = zarr.open(str(path), mode="r")
        array = root[name] if name else root
        _check_blosc_chunks(array, path / name, key)
        # All chunks of a window would be unpacked at the same time.
        one_by_one = math.prod(array.chunks) * np.dtype(array.dtype).itemsize > LARGE_CHUNK_BYTES
        with zarr.config.set({"async.concurrency": 1}) if one_by_one else nullcontext():
            return np.asarray(array[key])


def arrays_in_zarr(path: Path) -> list[FoundArray]:
    """List the arrays of a store."""
    import zarr

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
    chunk_bytes = dtype.itemsize * math.prod(item.chunks)
    if chunk_bytes < SMALLEST_CHUNK_BYTES and item.nchunks > MANY_CHUNKS:
        got = f"{path}: {name or 'its array'} has {item.nchunks} chunks of {chunk_bytes} bytes, hours to read"
        raise CubeFileError(got, "chunks of about a megabyte", "rechunk it, for example with xarray")
    if attributes.pop(OWN_WHOLE, False) and item.nchunks_initialized < item.nchunks:
        missing = f"{item.nchunks - item.nchunks_initialized} of {item.nchunks}"
        got = f"{path} is incomplete: {missing} chunks of {name} are missing"
        raise CubeFileError(got, "every chunk", "fetch it again")
    own_nodata = bool(attributes.pop(OWN_NODATA, False))
    # Zarr fills with 0 by default: only another value, or our own attribute, means nodata.
    if dtype.kind in "iuf" and (own_nodata or item.fill_value):
        attributes.setdefault("_FillValue", item.fill_value)
    if dtype.kind == "f" and isinstance(attributes.get("_FillValue"), str):
        # xarray writes a float `_FillValue` into Zarr 3 as base64 of its eight bytes.
        code = base64.b64decode(attributes["_FillValue"])
        attributes["_FillValue"] = float(np.frombuffer(code, "<f8")[0]) if len(code) == 8 else None
    names = item.attrs.get("_ARRAY_DIMENSIONS") or getattr(item.metadata, "dimension_names", None)
    dims = tuple(str(each or "") for each in names) if names else None
    load = partial(_load_from_zarr, path, name)
    return FoundArray(name, tuple(item.shape), dtype, load, dims, attributes, tuple(item.shards or item.chunks))


def _check_blosc_chunks(array: Any, folder: Path, key: tuple[Any, ...]) -> None:
    """Raise ValueError where a chunk that this part of an array needs is damaged."""
    if array.metadata.zarr_format == 2:
        ends_with_blosc = getattr(array.metadata.compressor, "codec_id", "") == "blosc"
        has_other_steps = bool(array.metadata.filters)
    else:
        codecs = [type(codec).__name__ for codec in array.metadata.codecs]
        ends_with_blosc, has_other_steps = codecs[-1:] == ["BloscCodec"], len(codecs) > 2
    if not ends_with_blosc:
        return
    # Unknown where other steps change the length before Blosc.
    chunk_bytes = None if has_other_steps else math.prod(array.chunks) * np.dtype(array.dtype).itemsize
    ranges = [
        range(part.indices(size)[0] // chunk, -(-part.indices(size)[1] // chunk))
        for part, size, chunk in zip(key, array.shape, array.chunks, strict=True)
    ]
    for place in itertools.product(*ranges):
        file = folder / array.metadata.encode_chunk_key(place)
        if file.is_file():
            _check_blosc_header(file, chunk_bytes)


def _check_blosc_header(file: Path, chunk_bytes: int | None) -> None:
    with file.open("rb") as stream:
        header = stream.read(BLOSC_HEADER.size)
    if len(header) < BLOSC_HEADER.size:
        raise ValueError(f"chunk {file.name} is truncated")
    *_, item_bytes, unpacked, block, packed = BLOSC_HEADER.unpack(header)
    is_whole = packed == file.stat().st_size and item_bytes > 0 and 0 < block <= max(unpacked, 1)
    if not is_whole or (chunk_bytes is not None and unpacked != chunk_bytes):
        raise ValueError(f"chunk {file.name} is damaged")


@contextmanager
def created_zarr(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[WriteWindow]:
    """Create a store with the attributes of CF and consolidated metadata."""
    import zarr

    bands, height, width = template.shape
    chosen = options.get("COMPRESS", "zstd").lower()
    if chosen not in COMPRESSORS:
        raise OptionError(f"COMPRESS={options['COMPRESS']} for {path.name}", f"one of {', '.join(COMPRESSORS)}")
    root = zarr.open_group(str(path), mode="w", zarr_format=2, attributes=file_attributes(template))
    nodata = nodata_of(template)
    own = {"_ARRAY_DIMENSIONS": ["band", "y", "x"], OWN_WHOLE: True} | ({} if nodata is None else {OWN_NODATA: True})
    cube = root.create_array(
        "cube",
        shape=template.shape,
        dtype=template.dtype,
        chunks=(min(bands, 64), min(height, CHUNK), min(width, CHUNK)),
        fill_value=None if nodata is None else template.dtype.type(nodata),
        attributes=cube_attributes(template) | own,
        config={"write_empty_chunks": True},
        compressors=COMPRESSORS[chosen],
    )
    for name, variable in cf_variables(template).items():
        column = root.create_array(
            name,
            shape=variable.shape,
            dtype=variable.dtype,
            fill_value=None,
            attributes=variable.attrs | {"_ARRAY_DIMENSIONS": list(variable.dims)},
            compressors=COMPRESSORS["zstd"],
        )
        column[...] = variable.values

    def write(rows: slice, columns: slice, block: NDArray[Any]) -> None:
        cube[:, rows, columns] = block

    yield write
    zarr.consolidate_metadata(str(path), zarr_format=2)
