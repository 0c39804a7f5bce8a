"""Nothing is lost from format to format: random cubes through every format and every pair of them; raw files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tests.io.random_cubes import FORMATS, Format, assert_nothing_lost, cubes, sample_cube

from hyperfuse.io.arrays import FoundArray
from hyperfuse.io.atomic import WriteWindow
from hyperfuse.io.envi import raw_writer
from hyperfuse.io.files import FORMATS as FORMAT_TABLE
from hyperfuse.io.files import Format as FormatEntry
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.numpy_files import ArrayWriter, flat_columns

THOROUGH = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
@given(cube=cubes())
@THOROUGH
def test_one_format_keeps_everything(through: Format, cube: xr.DataArray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_nothing_lost(through.round_trip(cube, Path(folder)), cube, through.name)


@pytest.mark.parametrize("first", FORMATS, ids=lambda each: each.name)
def test_every_pair_of_formats_keeps_everything(first: Format, tmp_path: Path) -> None:
    cube = sample_cube()
    between = first.round_trip(cube, tmp_path, "first")
    for second in FORMATS:
        assert_nothing_lost(second.round_trip(between, tmp_path, "second"), cube, f"{first.name} -> {second.name}")


AXES = {"bsq": (0, 1, 2), "bil": (1, 0, 2), "bip": (1, 2, 0)}


@pytest.mark.parametrize("interleave", AXES)
@pytest.mark.parametrize("window", [(7, 9), (2, 9), (3, 4), (1, 1)])
def test_windows_fall_into_place(tmp_path: Path, interleave: str, window: tuple[int, int]) -> None:
    cube = np.arange(3 * 7 * 9, dtype=np.int16).reshape(3, 7, 9)
    path = tmp_path / "cube.img"
    path.write_bytes(bytes(cube.nbytes))
    with path.open("r+b", buffering=0) as file:
        write = raw_writer(file, cube.shape, interleave)
        for top in reversed(range(0, 7, window[0])):
            for left in range(0, 9, window[1]):
                rows, columns = slice(top, min(7, top + window[0])), slice(left, min(9, left + window[1]))
                write(rows, columns, cube[:, rows, columns])
    np.testing.assert_array_equal(np.fromfile(path, np.int16), cube.transpose(AXES[interleave]).ravel())


@contextmanager
def created_arrays(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[WriteWindow]:
    writer = ArrayWriter(template)
    yield writer.write
    path.mkdir()
    for name, values in {"cube": writer.values, **flat_columns(template)}.items():
        np.save(path / f"{name}.npy", values)


def arrays_in_folder(path: Path) -> list[FoundArray]:
    arrays = {file.stem: np.load(file) for file in path.iterdir()}
    return [FoundArray(name, values.shape, values.dtype, values.__getitem__) for name, values in arrays.items()]


def test_a_new_format_is_two_functions_and_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMAT_TABLE, ".arrays", FormatEntry(arrays_in_folder, created_arrays))
    assert_nothing_lost(open_cube(write_cube(sample_cube(), tmp_path / "cube.arrays")), sample_cube())
