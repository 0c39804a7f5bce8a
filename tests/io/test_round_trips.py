"""Nothing is lost from format to format: random cubes through every format and every pair of them; raw files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tests.io.random_cubes import FORMATS, Format, assert_nothing_lost, cubes

from hyperfuse.io.raster_writing import RawWriter

THOROUGH = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
PAIRED = settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
@given(cube=cubes())
@THOROUGH
def test_one_format_keeps_everything(through: Format, cube: xr.DataArray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_nothing_lost(through.round_trip(cube, Path(folder)), cube, through.name)


@pytest.mark.parametrize("first", FORMATS, ids=lambda each: each.name)
@given(cube=cubes())
@PAIRED
def test_every_pair_of_formats_keeps_everything(first: Format, cube: xr.DataArray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        between = first.round_trip(cube, Path(folder), "first")
        for second in FORMATS:
            assert_nothing_lost(
                second.round_trip(between, Path(folder), "second"), cube, f"{first.name} -> {second.name}"
            )


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
