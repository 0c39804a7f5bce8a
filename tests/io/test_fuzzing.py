"""Damaged files of every format are read or refused in one line: no other error, crash, freeze or huge allocation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.io.fuzz import fuzz
from tests.io.fuzzing import Files, FuzzReader, Seed, damaged_files, damaged_headers, make_seeds, write_files

SEED_NAMES = (
    *("geotiff", "cog", "tiff_plain", "bsq", "bip", "netcdf", "netcdf3", "h5_plain", "zarr", "zarr3", "zarr_blosc"),
    *("mat5", "mat5_plain", "mat73", "npz", "npz_plain", "npy"),
)
FUZZED = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seed]:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.fixture(scope="module")
def reader() -> Iterator[FuzzReader]:
    reader = FuzzReader()
    yield reader
    reader.close()


def assert_read_or_refused(reader: FuzzReader, files: Files, opened: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_files(files, Path(folder))
        outcome, detail = reader.read(Path(folder) / opened)
    assert outcome in ("read", "refused"), f"{outcome}: {detail}"


@pytest.mark.parametrize("name", SEED_NAMES)
def test_whole_files_are_read(name: str, seeds: dict[str, Seed], reader: FuzzReader, tmp_path: Path) -> None:
    seed = seeds[name]
    write_files(seed.files, tmp_path)
    assert reader.read(tmp_path / seed.opened) == ("read", "")


@pytest.mark.parametrize("name", SEED_NAMES)
@given(data=st.data())
@FUZZED
def test_damaged_files(name: str, seeds: dict[str, Seed], reader: FuzzReader, data: st.DataObject) -> None:
    seed = seeds[name]
    assert_read_or_refused(reader, data.draw(damaged_files(seed)), seed.opened)


def test_a_short_run_of_the_fuzzer(tmp_path: Path) -> None:
    outcomes, failures = fuzz(60, 0, tmp_path)
    assert not failures, failures[0]
    assert outcomes["read"] and outcomes["refused"]


@pytest.mark.parametrize("name", ["bsq", "bil", "bip"])
@given(data=st.data())
@FUZZED
def test_damaged_envi_headers(name: str, seeds: dict[str, Seed], reader: FuzzReader, data: st.DataObject) -> None:
    seed = seeds[name]
    header = data.draw(damaged_headers(seed.files[seed.opened].decode()))
    assert_read_or_refused(reader, dict(seed.files) | {seed.opened: header}, seed.opened)
