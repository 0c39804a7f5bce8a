"""Windows of any shape and order into a plain file, against numpy's own layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hyperfuse.io.raster_writing import RawWriter

AXES = {"bsq": (0, 1, 2), "bil": (1, 0, 2), "bip": (1, 2, 0)}


@pytest.mark.parametrize("interleave", AXES)
@pytest.mark.parametrize("window", [(7, 9), (2, 9), (3, 4), (1, 1)])
def test_windows_fall_into_place(tmp_path: Path, interleave: str, window: tuple[int, int]) -> None:
    cube = np.arange(3 * 7 * 9, dtype=np.int16).reshape(3, 7, 9)
    path = tmp_path / "cube.img"
    path.write_bytes(bytes(cube.nbytes))
    with path.open("r+b", buffering=0) as file:
        writer = RawWriter(file, cube.shape, cube.dtype, interleave)
        for top in reversed(range(0, 7, window[0])):
            for left in range(0, 9, window[1]):
                rows, columns = slice(top, min(7, top + window[0])), slice(left, min(9, left + window[1]))
                writer.write(rows, columns, cube[:, rows, columns])
    np.testing.assert_array_equal(np.fromfile(path, np.int16), cube.transpose(AXES[interleave]).ravel())
