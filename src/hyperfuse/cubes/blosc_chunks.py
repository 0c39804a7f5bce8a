"""Are Blosc's chunks what their headers say? Blosc trusts them, and a damaged one ends the whole process.

A chunk begins with four bytes (versions, flags, size of an item) and three numbers: bytes unpacked, bytes of a block, bytes packed.
"""

from __future__ import annotations

import itertools
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

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
