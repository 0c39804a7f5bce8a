"""Files that would hang, crash or exhaust the process that opens them end in one sentence."""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.lib.format
import pytest
import scipy.io
import zarr
from tests.io.products.hyperspectral_writers import write_enmap
from tests.io.random_cubes import sample_cube
from tests.processes import Program, all_end

from hyperfuse.cli.app import run
from hyperfuse.errors import CubeFileError
from hyperfuse.io import isolation, spool
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.isolation import isolated

# Opens a file, says which process did, and waits.
OPEN_AND_WAIT = """
import os, sys, time
from pathlib import Path
from hyperfuse.io.isolation import isolated
print(isolated(Path(sys.argv[1]), os.getppid), flush=True)
time.sleep(60)
"""

# Is interrupted while it forks the server.
INTERRUPTED = """
import os, signal
from hyperfuse.io.isolation import start_server
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
try:
    start_server()
except KeyboardInterrupt:
    print("interrupted")
"""


def write_endless(path: Path) -> Path:
    """A heap of variable-length strings whose free space is longer than the heap: libhdf5 walks it for ever."""
    content = bytearray(write_cube(sample_cube(), path).read_bytes())
    heap = content.find(b"GCOL")
    content[heap + 24 : heap + 32] = (2**64 - 16).to_bytes(8, "little")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", [".nc", ".h5"])
def test_a_file_that_hangs_its_library(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(isolation, "SECONDS", 1)
    path = write_endless(tmp_path / f"s{suffix}")
    start = time.monotonic()
    assert run(["info", str(path)]) == 2
    # A second of processor time, which on a busy machine takes longer, and no more than the limit of waiting.
    assert time.monotonic() - start < 2 * isolation.PATIENCE
    assert "takes more than 1 s to open" in capsys.readouterr().err


@pytest.mark.parametrize("odd", [np.int64(5), np.array([1.5, 2.5]), np.bytes_(b"ch\xff"), np.void(b"abc")])
def test_an_odd_class_in_a_matlab_file(odd: object, tmp_path: Path) -> None:
    path = write_cube(sample_cube(), tmp_path / "s.mat", creation_options={"VERSION": "7.3"})
    with h5py.File(path, "r+") as file:
        file["cube"].attrs["MATLAB_class"] = odd
    assert run(["info", str(path)]) == 0


def test_a_zarr_store_of_an_impossible_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = zarr.open_group(str(tmp_path / "s.zarr"), mode="w", zarr_format=3)
    group.create_array("cube", data=sample_cube().values)
    metadata = tmp_path / "s.zarr" / "cube" / "zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"shape": [2**70, 6, 5]}))
    assert run(["info", str(tmp_path / "s.zarr")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def sparse(path: Path, beginning: bytes) -> Path:
    """A file of three gigabytes that takes no space."""
    path.write_bytes(beginning)
    os.truncate(path, 3 * 2**30)
    return path


def test_what_asks_for_more_memory_than_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cube = str(write_cube(sample_cube(), tmp_path / "s.hdr"))
    product = write_enmap(tmp_path / "enmap").path
    sparse(next(product.glob("*METADATA.XML")), b"<")
    sparse(tmp_path / "large.hdr", b"ENVI\n")
    (tmp_path / "large.img").write_bytes(bytes(10))
    with (tmp_path / "s.npy").open("wb") as stream:
        numpy.lib.format.write_array_header_1_0(
            stream, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6, 9)}
        )
    table = str(sparse(tmp_path / "table.txt", b"400"))
    for arguments in ([product], [tmp_path / "large.hdr"], [tmp_path / "s.npy"], [cube, "--wavelengths", table]):
        assert run(["info", *map(str, arguments)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_array_that_inflates_to_more_than_it_says(tmp_path: Path) -> None:
    """It is unpacked in the process itself, which stops at the size that the array has."""
    path = tmp_path / "s.mat"
    scipy.io.savemat(path, {"cube": np.ones((6, 5, 4))})
    header, element = path.read_bytes()[:128], path.read_bytes()[128:]
    packed = zlib.compress(element + bytes(50_000_000))
    path.write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
    before = set(spool.private_folder().glob("*/*"))
    with pytest.raises(CubeFileError, match="cube is damaged"):
        open_cube(path).load()
    assert set(spool.private_folder().glob("*/*")) == before


def test_a_zarr_store_of_single_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = zarr.open_group(str(tmp_path / "s.zarr"), mode="w", zarr_format=2)
    group.create_array("cube", shape=(10, 100, 100), dtype="f4", chunks=(1, 1, 1))
    assert run(["info", str(tmp_path / "s.zarr")]) == 2
    assert "100000 chunks of 4 bytes, hours to read" in capsys.readouterr().err


def test_names_cannot_rewrite_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_cube(sample_cube(), tmp_path / "a\x1b[2J\nb.tif")
    assert run(["info", str(path)]) == 0
    assert run(["info", f"{path}.missing"]) == 2
    printed = capsys.readouterr()
    assert "\x1b[2J" not in printed.out + printed.err


def allocate(size: int) -> int:
    return len(bytearray(size))


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def warn(text: str) -> str:
    warnings.warn(text, stacklevel=1)
    return text


@pytest.mark.parametrize(
    ("function", "argument", "error"),
    [(crash, (), CubeFileError), (allocate, (2 * isolation.LARGEST_BYTES,), MemoryError), (int, ("x",), ValueError)],
)
def test_what_ends_the_child_does_not_end_the_caller(
    function: Callable[..., object], argument: tuple[object, ...], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        isolated(tmp_path, function, *argument)
    assert isolated(tmp_path, allocate, 10) == 10


def test_one_worker_where_processes_cannot_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "FORKS", False)
    with monkeypatch.context() as short:
        short.setattr(isolation, "PATIENCE", 1)
        short.setattr(isolation, "SECONDS", 2)
        with pytest.raises(CubeFileError, match="takes more than 2 s to open"):
            open_cube(write_endless(tmp_path / "s.nc"))
    path = write_cube(sample_cube(), tmp_path / "s.tif")
    np.testing.assert_array_equal(open_cube(path).values, sample_cube().values)
    process = isolated(path, os.getpid)
    assert process == isolated(path, os.getpid) != os.getpid()
    with pytest.raises(CubeFileError, match="crashes the library"):
        isolated(path, crash)
    assert isolated(path, os.getpid) != process
    assert isolation._worker is not None
    isolation._worker.kill()
    isolation._worker.communicate()


def test_warnings_and_threads(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="odd"):
        assert isolated(tmp_path, warn, "odd") == "odd"
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(isolated(tmp_path, allocate, 5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [5] * 8


def test_a_server_that_was_killed_or_must_be_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_cube(sample_cube(), tmp_path / "s.tif")
    os.kill(isolated(path, os.getppid), signal.SIGKILL)
    np.testing.assert_array_equal(open_cube(path).values, sample_cube().values)
    # Another thread could hold a lock when this process forks.
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    monkeypatch.setattr(isolation, "_server", None)
    server = isolated(path, os.getppid)
    np.testing.assert_array_equal(open_cube(path).values, sample_cube().values)
    ended.set()
    other.join()
    assert isolated(path, os.getppid) == server
    isolation._server.connection.close()  # type: ignore[union-attr]
    assert all_end([server])


def test_the_server_ends_with_its_process(tmp_path: Path) -> None:
    process = Program(OPEN_AND_WAIT, tmp_path)
    while not process.written():
        assert process.returncode is None, process.communicate()
        time.sleep(0.02)
    server = int(process.written())
    process.kill()
    process.communicate()
    assert all_end([server])


def test_an_interrupt_during_the_fork_is_not_lost() -> None:
    assert Program(INTERRUPTED).communicate() == ("interrupted\n", "")
