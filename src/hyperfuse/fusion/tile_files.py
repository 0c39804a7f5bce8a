"""Files of single tiles: kept for a later run, and the way from local worker processes to the one that writes."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperfuse.io.atomic import atomic_write

TILE_SUFFIX = ".tile"
CHECKSUM_BYTES = 8  # before the values, which are then aligned


def tile_file(folder: Path, index: int) -> Path:
    return folder / f"{index:05d}{TILE_SUFFIX}"


def store_tile(path: Path, block: NDArray[Any]) -> None:
    """Write values and a checksum. They are not compressed: that would take longer than all else, for a few minutes."""
    values = np.ascontiguousarray(block).data
    with atomic_write(path, sync=False) as temporary, temporary.open("wb", buffering=0) as file:
        file.write(zlib.crc32(values).to_bytes(CHECKSUM_BYTES, "big"))
        left = values.cast("B")
        while left:
            left = left[file.write(left) :]


def load_tile(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The values, which stay in the file until they are used; None where it is missing or damaged."""
    try:
        content = np.asarray(np.memmap(path, np.uint8, "r"))
    except (OSError, ValueError):
        return None
    checksum, values = content[:CHECKSUM_BYTES].tobytes(), content[CHECKSUM_BYTES:]
    if len(values) != math.prod(shape) * dtype.itemsize:
        return None
    if zlib.crc32(values.data).to_bytes(CHECKSUM_BYTES, "big") != checksum:
        return None
    return values.view(dtype).reshape(shape)
