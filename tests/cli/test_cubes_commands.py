"""`hyperfuse info` and `hyperfuse convert`: what they print; bad input gets one clear line, exit code 2 and leaves
nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
import zarr
from tests.io.random_cubes import FORMAT_BY_NAME, FORMATS, Format, assert_nothing_lost, sample_cube
from tests.processes import Program

from hyperfuse.cli.app import run
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import open_cube, write_cube

COMMAND = [sys.executable, "-m", "hyperfuse"]
HEADER = "ENVI\nsamples = 5\nlines = 6\nbands = 4\ndata type = 12\ninterleave = bsq\nbyte order = 0\n"
SUFFIXES = (".tif", ".hdr", ".img", ".nc", ".h5", ".zarr", ".mat", ".npz", ".npy", ".xyz")


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a failing command prints."""
    assert run([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 1, output.err
    assert lines[0].startswith("hyperfuse: ")
    assert "Traceback" not in lines[0]
    return lines[0]


class TestInfo:
    @pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
    def test_json_is_strict_and_whole(
        self, through: Format, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cube = sample_cube(dtype="float32")
        path = through.write(cube, tmp_path)
        assert run(["info", str(path), "--json"]) == 0

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is no JSON")

        output = capsys.readouterr()
        assert output.err == ""
        shown = json.loads(output.out, parse_constant=refuse)
        assert (shown["bands"], shown["height"], shown["width"], shown["dtype"]) == (4, 6, 5, "float32")
        assert shown["file"] == str(path)
        np.testing.assert_allclose(shown["wavelength_nm"], cube["wavelength"])
        assert shown["good"] == [True, False, True, True]
        assert shown["crs"] == "EPSG:32633"
        assert shown["transform"] == [30.0, 0.0, 399960.0, 0.0, -30.0, 5700000.0]
        assert shown["bounds"] == [399960.0, 5699820.0, 400110.0, 5700000.0]
        assert shown["nodata"] == 0
        assert shown["scale"] == [1e-4] * 4
        assert shown["attributes"]["sensor"] == "test sensor"

    def test_json_of_what_json_has_no_words_for(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        values = np.full((2, 3, 3), np.nan)
        path = write_cube(make_cube(values, wavelength_nm=[np.nan, 500], nodata=np.nan), tmp_path / "s.nc")
        assert run(["info", str(path), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert shown["wavelength_nm"] == [None, 500]
        assert shown["nodata"] == "nan"
        assert shown["sampled_minimum"] is None and shown["sampled_missing_share"] == 1

    def test_text(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cube = sample_cube()
        cube.attrs["odd"] = "[/bold] [red]not markup[/red]"
        assert run(["info", str(write_cube(cube, tmp_path / "scene.nc"))]) == 0
        text = capsys.readouterr().out
        for expected in (
            "4 bands x 6 rows x 5 columns, uint16",
            "412.346 to 2398.77 nm",
            "5.25 to 11.5 nm",
            "EPSG:32633",
            "1: 2",
            "channel 0, channel 1",
            "0.0001, 0",
            "[/bold] [red]not markup[/red]",
        ):
            assert expected in text

    def test_text_of_an_empty_handed_cube(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        np.save(tmp_path / "s.npy", np.zeros((1, 1, 1), np.uint8))
        assert run(["info", str(tmp_path / "s.npy")]) == 0
        text = capsys.readouterr().out
        assert "unknown" in text and "no georeference" in text and "0 to 0 (sampled)" in text

    def test_band_axis_and_variable(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        scipy.io.savemat(tmp_path / "s.mat", {"a": np.zeros((2, 3, 4)), "b": np.zeros((5, 6, 7))})
        assert run(["info", str(tmp_path / "s.mat"), "--variable", "b", "--band-axis", "0", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["bands"], shown["height"], shown["width"]) == (5, 6, 7)
        assert "--variable: a (2x3x4 float64), b (5x6x7 float64)" in complaint(capsys, "info", tmp_path / "s.mat")

    def test_a_missing_unit_is_said_once(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "s.h5", "w") as file:
            file["cube"], file["wavelength"], file["fwhm"] = np.zeros((4, 7, 8)), [0.4, 0.5, 0.6, 0.7], [0.01] * 4
        program = "from hyperfuse.cli.app import main; main()"
        plain, quiet = (Program(program, *options, "info", tmp_path / "s.h5") for options in ((), ("--quiet",)))
        said, nothing = (process.communicate()[1] for process in (plain, quiet))
        assert (plain.returncode, quiet.returncode) == (0, 0)
        assert len(said.splitlines()) == 1
        assert "hyperfuse: warning:" in said and "taken as micrometres" in said
        assert nothing == ""


class TestConvert:
    @pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
    def test_to_every_format(self, through: Format, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cube = sample_cube()
        source = write_cube(cube, tmp_path / "in.npz")
        target = tmp_path / f"out{through.suffix}"
        options = [part for name, value in through.options.items() for part in ("--co", f"{name}={value}")]
        assert run(["convert", str(source), str(target), *options, *(["--cog"] if through.cog else [])]) == 0
        output = capsys.readouterr()
        assert output.out == f"{target}\n" and output.err == ""
        assert_nothing_lost(open_cube(target), cube)

    def test_onto_itself(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_cube(sample_cube(), tmp_path / "s.tif")
        assert "exists already" in complaint(capsys, "convert", path, path)
        assert run(["convert", str(path), str(path), "--overwrite"]) == 0
        assert_nothing_lost(open_cube(path), sample_cube())

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["missing.tif", "out.nc"], "missing.tif does not exist"),
            (["s.tif", "out.xyz"], "unknown suffix '.xyz'"),
            (
                ["s.tif", "missing/out.tif"],
                "missing is not a folder; expected an existing folder for the output; mkdir -p",
            ),
            (["s.tif", "out.tif", "--co", "COMPRESS"], "--co COMPRESS; expected --co NAME=VALUE"),
            (["s.tif", "out.nc", "--co", "FOO=1"], "option FOO"),
            (["s.tif", "out.tif", "--variable", "x"], "a variable or band axis for s.tif"),
            (["s.npy", "out.tif", "--band-axis", "7"], "band axis 7; expected 0, 1 or 2"),
            (["s.npy", "out.nc", "--cog"], "cloud-optimised .nc"),
        ],
    )
    def test_impossible_wishes(
        self,
        arguments: list[str],
        expected: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_cube(sample_cube(), tmp_path / "s.tif")
        write_cube(sample_cube(), tmp_path / "s.npy")
        before = names_in(tmp_path)
        assert expected in complaint(capsys, "convert", *arguments)
        assert names_in(tmp_path) == before


def repr_of_length(content: bytes) -> str:
    return f"{len(content)} bytes"


def truncated(folder: Path, name: str) -> Path:
    """A cube of that format that lost its last third (a store: one of its chunks)."""
    cube = make_cube(np.random.default_rng(0).integers(0, 60000, (4, 150, 140), dtype=np.uint16))
    path = FORMAT_BY_NAME[name].write(cube, folder)
    cut = path.with_suffix(".img") if path.suffix == ".hdr" else path
    if path.is_dir():
        (path / "cube" / "0.1.1").unlink()
    else:
        os.truncate(cut, cut.stat().st_size * 2 // 3)
    return path


class TestBadInput:
    @pytest.mark.parametrize("name", [each.name for each in FORMATS])
    @pytest.mark.parametrize("command", ["info", "convert"])
    def test_truncated(self, name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = truncated(tmp_path, name)
        before = names_in(tmp_path)
        line = complaint(capsys, command, path, *([tmp_path / "out.nc"] if command == "convert" else []))
        assert "; expected " in line and line.count("; ") >= 2
        assert names_in(tmp_path) == before

    @pytest.mark.parametrize("suffix", SUFFIXES)
    @pytest.mark.parametrize(
        "content", [b"", b"\x00", b"garbage " * 100, bytes(range(256)) * 20], ids=["empty", "nul", "text", "bytes"]
    )
    def test_garbage(self, suffix: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / f"garbage{suffix}"
        path.write_bytes(content)
        assert path.name in complaint(capsys, "info", path)
        complaint(capsys, "convert", path, tmp_path / "out.tif")
        assert names_in(tmp_path) == {path.name}

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_folders(self, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = tmp_path / f"folder{suffix}"
        folder.mkdir()
        assert folder.name in complaint(capsys, "info", folder)
        (folder / "file.txt").write_text("x")
        complaint(capsys, "info", folder)

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        os.mkfifo(tmp_path / "pipe.tif")
        assert "is not a regular file" in complaint(capsys, "info", tmp_path / "pipe.tif")

    def test_names_that_are_awkward(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "does not exist" in complaint(capsys, "info", tmp_path / "two\nlines.tif")
        assert complaint(capsys, "info", "x" * 5000 + ".tif")

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (("samples = 5", "samples = 500"), "holds 240 bytes, but its header promises 24000"),
            (("lines = 6", "lines = 999999999999"), "but its header promises"),
            (("bands = 4", "bands = 0"), "samples, lines, bands, header offset = 5, 6, 0, 0; expected at least 1"),
            (("bands = 4", "bands = -4"), "expected at least 1"),
            (("bands = 4\n", ""), "no `bands`"),
            (("bands = 4", "bands = four"), "`bands = four`"),
            (("bands = 4", "bands = 4\nbands = 5"), "`bands` given more than once: 4, 5"),
            (("data type = 12", "data type = 77"), "data type = 77; expected one of 1, 2, 3"),
            (("data type = 12", "data type = 6\nx = "), "but its header promises 960"),
            (("ENVI", "INVE"), "is not an ENVI header"),
            (("byte order = 0", "wavelength = {1, 2, 3}"), "wavelength list of 3 entries for 4 bands"),
            (("interleave = bsq", "interleave = bqs"), "interleave = bqs; expected one of bsq, bil, bip"),
            (("byte order = 0", "wavelength = {400, 500,"), "ends in the middle of a {list}; expected a whole header"),
            (("byte order = 0", "header offset = 9"), "but its header promises 249"),
        ],
    )
    def test_headers_that_lie(
        self, change: tuple[str, str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "s.hdr").write_text(HEADER.replace(*change))
        (tmp_path / "s.img").write_bytes(bytes(240))
        assert expected in complaint(capsys, "info", tmp_path / "s.hdr")
        assert expected in complaint(capsys, "convert", tmp_path / "s.img", tmp_path / "o.tif") or change[0] == "ENVI"
        assert names_in(tmp_path) == {"s.hdr", "s.img"}

    def test_a_header_without_data(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "s.hdr").write_text(HEADER)
        assert "has no data file beside it; expected s.img, s, s.dat" in complaint(capsys, "info", tmp_path / "s.hdr")

    def test_complex_data(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        values = np.zeros((3, 4, 5), np.complex64)
        (tmp_path / "s.hdr").write_text(HEADER.replace("type = 12", "type = 6"))
        (tmp_path / "s.img").write_bytes(bytes(960))
        assert "holds values of type complex64" in complaint(capsys, "info", tmp_path / "s.hdr")
        np.save(tmp_path / "s.npy", values)
        assert "no 3-D array of numbers" in complaint(capsys, "info", tmp_path / "s.npy")
        scipy.io.savemat(tmp_path / "s.mat", {"cube": values})
        assert "it holds cube (3x4x5 complex64)" in complaint(capsys, "info", tmp_path / "s.mat")
        with h5py.File(tmp_path / "s.h5", "w") as file:
            file["cube"] = values
        assert "no 3-D array of numbers" in complaint(capsys, "info", tmp_path / "s.h5")

    def test_no_cube_in_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        scipy.io.savemat(tmp_path / "s.mat", {"flat": np.zeros((1, 4)), "name": "x"})
        line = complaint(capsys, "info", tmp_path / "s.mat")
        assert (
            "no 3-D array of numbers in" in line
            and "it holds flat (1x4 float64)" in line
            and "expected one 3-D array" in line
        )
        np.savez(tmp_path / "s.npz", flat=np.zeros(4))
        assert "flat (4 float64)" in complaint(capsys, "info", tmp_path / "s.npz")
        np.save(tmp_path / "s.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        assert "no 3-D array of numbers" in complaint(capsys, "info", tmp_path / "s.npy")
        zarr.open_group(str(tmp_path / "s.zarr"), mode="w")
        assert "it holds nothing" in complaint(capsys, "info", tmp_path / "s.zarr")

    def test_zero_bands(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        np.save(tmp_path / "s.npy", np.zeros((3, 4, 0)))
        assert "no 3-D array of numbers" in complaint(capsys, "info", tmp_path / "s.npy")
        with h5py.File(tmp_path / "s.h5", "w") as file:
            file["cube"] = np.zeros((0, 4, 5))
        assert "cube (0x4x5 float64)" in complaint(capsys, "info", tmp_path / "s.h5")

    def test_pickles_are_never_loaded(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        class Bomb:
            def __reduce__(self) -> Any:
                return (os.mkdir, (str(tmp_path / "exploded"),))

        np.savez(tmp_path / "s.npz", cube=np.zeros((2, 3, 4)), band_name=np.array([Bomb()], dtype=object))
        assert run(["info", str(tmp_path / "s.npz")]) == 0
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_folder_without_permission(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source = write_cube(sample_cube(), tmp_path / "s.npy")
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        assert "no permission to write into" in complaint(capsys, "convert", source, locked / "out.tif")


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, Path, dict[str, bytes]]]:
    """Converting to every format, over an old target, where files cannot grow: exit code, stderr, target, what was
    there before.
    """
    folder = tmp_path_factory.mktemp("full")
    source = folder / "in.npy"
    np.save(source, np.random.default_rng(0).integers(0, 65535, (130, 128, 6), dtype=np.uint16))
    commands, before = [], {}
    for through in FORMATS:
        (folder / through.name).mkdir()
        target = through.write(sample_cube(), folder / through.name, "old")
        before[through.name] = (target, contents_of(target.parent))
        options = [part for name, value in through.options.items() for part in ("--co", f"{name}={value}")]
        commands.append(
            ["convert", str(source), str(target), "--overwrite", *options, *(["--cog"] if through.cog else [])]
        )
    process = Program(Path(__file__).with_name("full_disk.py"), json.dumps(commands))
    out, err = process.communicate()
    assert process.returncode == 0, err
    outcomes = json.loads(out)
    return {each.name: (*outcome, *before[each.name]) for each, outcome in zip(FORMATS, outcomes, strict=True)}


def contents_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names_in(folder) if (folder / name).is_file()}


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_full_disk(name: str, full_disk: dict[str, tuple[int, str, Path, dict[str, bytes]]]) -> None:
    """One line, code 2, and the old target is what it was."""
    code, complaints, target, before = full_disk[name]
    assert code == 2 and len(complaints.splitlines()) == 1
    assert complaints.startswith(
        f"hyperfuse: no space left while writing {target}; nothing was left behind; free space"
    )
    assert contents_of(target.parent) == before


# Converts in small windows with pauses, so that a signal arrives in the middle.
SLOW_COMMAND = """
import time
from hyperfuse.io import atomic, files
from hyperfuse.io.cube import iterate_windows
files.iterate_windows = lambda cube, max_bytes: iterate_windows(cube, 2**20)
write = atomic.CubeWriter.write
def slow_write(self, rows, columns, block):
    write(self, rows, columns, block)
    time.sleep(0.2)
atomic.CubeWriter.write = slow_write
from hyperfuse.cli.app import main
main()
"""


@pytest.mark.parametrize(
    ("suffix", "number"),
    [
        (".tif", signal.SIGTERM),
        (".tif", signal.SIGINT),
        (".nc", signal.SIGTERM),
        (".zarr", signal.SIGTERM),
        (".npy", signal.SIGHUP),
    ],
)
def test_ended_in_the_middle(suffix: str, number: signal.Signals, tmp_path: Path) -> None:
    source = tmp_path / "in.npy"
    np.save(source, np.random.default_rng(0).integers(0, 65535, (1500, 1500, 4), dtype=np.uint16))
    out = tmp_path / "out"
    out.mkdir()
    process = Program(SLOW_COMMAND, "convert", source, out / f"out{suffix}")
    started = time.monotonic()
    while not names_in(out) and time.monotonic() - started < 30:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Traceback" not in complaints
    assert names_in(out) == set()


def test_killed_outright_leaves_the_old_target(tmp_path: Path) -> None:
    """Nobody can tidy up after SIGKILL, but what is at the target is whole."""
    target = write_cube(sample_cube(), tmp_path / "out.tif")
    before = target.read_bytes()
    program = (
        "import os, signal, sys; from hyperfuse.config import OutputConfig\n"
        "from hyperfuse.io.files import created_cube, open_cube\n"
        "cube = open_cube(sys.argv[1])\n"
        "with created_cube(sys.argv[1], cube, OutputConfig(overwrite=True)) as writer:\n"
        "    writer.write(slice(0, 6), slice(0, 5), cube.values); os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = Program(program, target)
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert target.read_bytes() == before
    assert all(name.startswith(".out.tif.") or name == "out.tif" for name in names_in(tmp_path))


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    path = write_cube(sample_cube(shape=(200, 2, 2)), tmp_path / "s.npz")
    command = " ".join(["'" + part + "'" for part in [*COMMAND, "info", str(path), "--json"]]) + " | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "{\n" and done.stderr == ""


def test_a_large_cube_is_converted_in_bounded_memory(tmp_path: Path) -> None:
    source = tmp_path / "large.npy"
    values = np.lib.format.open_memmap(source, mode="w+", dtype=np.uint16, shape=(1500, 1250, 80))
    for row in range(0, 1500, 100):
        values[row : row + 100] = np.arange(80, dtype=np.uint16) + np.uint16(row)
    del values
    assert source.stat().st_size > 290e6
    program = (
        "import sys; from tests.peak_memory import own_peak_bytes\n"
        "from hyperfuse.io.files import open_cube, write_cube\n"
        "from hyperfuse.cli.app import run\n"
        "write_cube(open_cube(sys.argv[3]), sys.argv[4])\n"
        "before = own_peak_bytes()\n"
        "code = run(['convert', sys.argv[1], sys.argv[2]])\n"
        "print(own_peak_bytes() - before); sys.exit(code)"
    )
    small = write_cube(sample_cube(), tmp_path / "small.npy")
    target = tmp_path / "out.tif"
    environment = os.environ | {"GDAL_CACHEMAX": "64"}
    process = Program(program, source, target, small, tmp_path / "small.tif", env=environment)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert int(out.split()[-1]) < 250 * 2**20
    corner = open_cube(target).isel(y=slice(1490, 1500), x=slice(0, 3)).values
    np.testing.assert_array_equal(corner, np.broadcast_to((np.arange(80) + 1400)[:, None, None], (80, 10, 3)))
    source.unlink()
