"""Damaged files: whole ones of every format, ways to damage them, and a process that reads them without taking the
tests along.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import scipy.io
import zarr
from hypothesis import strategies as st
from tests.io.random_cubes import FORMATS, sample_cube

from hyperfuse.io.files import write_cube

SECONDS_PER_FILE = 8.0
Files = dict[str, bytes]


@dataclass(frozen=True)
class Seed:
    """A whole cube as files by name; `opened` is the one that a person would name."""

    opened: str
    files: Mapping[str, bytes]


def make_seeds(folder: Path) -> dict[str, Seed]:
    """Small whole files of every format, and the uncompressed cousins in which damage reaches further."""
    cube = sample_cube(shape=(3, 5, 4))
    written = {each.name: each.write(cube, folder, "s") for each in FORMATS}
    plain = {"COMPRESS": "NONE", "INTERLEAVE": "PIXEL"}
    written["tiff_plain"] = write_cube(cube, folder / "plain.tif", creation_options=plain)
    written["h5_plain"] = write_cube(cube, folder / "plain.h5", creation_options={"COMPRESS": "NONE"})
    values = cube.values.transpose(1, 2, 0)
    written["mat5_plain"] = folder / "plain.mat"
    contents = {
        "cube": values,
        "wavelength_nm": cube["wavelength"].values,
        "about": {"sensor": "x", "inner": {"deep": values[0]}},
    }
    scipy.io.savemat(written["mat5_plain"], contents)
    written["npz_plain"] = folder / "plain.npz"
    np.savez(written["npz_plain"], cube=values, wavelength_nm=cube["wavelength"].values)
    written["netcdf3"] = folder / "classic.nc"
    with scipy.io.netcdf_file(written["netcdf3"], "w") as classic:
        for name, size in zip(("band", "y", "x"), cube.shape, strict=True):
            classic.createDimension(name, size)
        classic.createVariable("cube", np.dtype("f4"), ("band", "y", "x"))[:] = cube.values
        classic.createVariable("wavelength", np.dtype("f8"), ("band",))[:] = cube["wavelength"].values
    written["zarr3"] = folder / "three.zarr"
    group = zarr.open_group(str(written["zarr3"]), mode="w", zarr_format=3)
    group.create_array("cube", data=cube.values, dimension_names=["band", "y", "x"])
    written["zarr_blosc"] = folder / "blosc.zarr"
    group = zarr.open_group(str(written["zarr_blosc"]), mode="w", zarr_format=2)
    group.create_array("cube", data=cube.values, chunks=(3, 5, 2), compressors={"id": "blosc", "cname": "lz4"})
    # Many blocks: most are not read when the file is opened.
    blocks = np.random.default_rng(1).integers(0, 99, (3, 48, 40)).astype(np.uint8)
    for name, version in (("h5_chunks", "earliest"), ("h5_chunks_latest", "latest")):
        written[name] = folder / f"{name}.h5"
        with h5py.File(written[name], "w", libver=version) as file:
            file.create_dataset("cube", data=blocks, chunks=(1, 8, 8), compression="gzip", shuffle=True)
            file["wavelength"] = [450.0, 550.0, 650.0]
    for compression in ("LZW", "ZSTD", "JPEG"):
        options = {"COMPRESS": compression, "TILED": "YES", "BLOCKXSIZE": "16", "BLOCKYSIZE": "16"}
        written[f"tiff_{compression}"] = folder / f"blocks_{compression}.tif"
        write_cube(blocks, written[f"tiff_{compression}"], creation_options=options)
    return {name: _seed_of(path) for name, path in written.items()}


def _seed_of(path: Path) -> Seed:
    if path.is_dir():
        parts = [part for part in sorted(path.rglob("*")) if part.is_file()]
    else:
        parts = [
            part for part in (path, path.with_suffix(".img"), path.with_name(path.name + ".json")) if part.is_file()
        ]
    return Seed(path.name, {str(part.relative_to(path.parent)): part.read_bytes() for part in parts})


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


INTERESTING = st.sampled_from(
    [
        b"\x00" * 4,
        b"\xff" * 4,
        b"\xff" * 8,
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\x80\x00\x00\x00",
        b"\x01\x00\x00\x00",
    ]
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """One to four wounds: bytes changed, cut out, doubled, put in, or the end torn off. Headers are hit more often than
    pixels.
    """
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        place = draw(st.integers(0, len(data) - 1) | st.integers(0, min(len(data), 512) - 1))
        length = draw(st.integers(1, 16))
        wound = draw(st.sampled_from(["byte", "bit", "number", "cut", "double", "insert", "truncate"]))
        if wound == "byte":
            data[place] = draw(st.integers(0, 255))
        elif wound == "bit":
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif wound == "number":
            number = draw(INTERESTING)
            data[place : place + len(number)] = number
        elif wound == "cut":
            del data[place : place + length]
        elif wound == "double":
            data[place:place] = data[place : place + length]
        elif wound == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=length))
        else:
            del data[place:]
    return bytes(data)


@st.composite
def damaged_files(draw: st.DrawFn, seed: Seed) -> Files:
    name = draw(st.sampled_from(sorted(seed.files)))
    return dict(seed.files) | {name: draw(damaged(seed.files[name]))}


NUMBERS = st.sampled_from(
    ["0", "1", "-1", "3", "4", "999999999999", "2147483648", "1e9", "nan", "0x10", "", "12345678901234567890", "{"]
)
UNITS = st.sampled_from(["Nanometers", "Micrometers", "furlongs", "{nm}", "Index", "", "é", "Wavenumber"])
ENVI_KEYS = ("samples", "lines", "bands", "data type", "header offset", "byte order")


@st.composite
def damaged_headers(draw: st.DrawFn, header: str) -> bytes:
    """An ENVI header as a careless person or program leaves it: numbers that lie, keys missing or twice, braces left
    open.
    """
    lines = header.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        change = draw(
            st.sampled_from(["number", "drop", "twice", "unit", "open", "list", "junk", "move", "map", "own"])
        )
        if change == "number":
            lines.insert(
                len(lines) if draw(st.booleans()) else 1, f"{draw(st.sampled_from(ENVI_KEYS))} = {draw(NUMBERS)}"
            )
        elif change == "drop" and len(lines) > 1:
            del lines[place]
        elif change == "twice":
            lines.append(lines[place])
        elif change == "unit":
            lines.append(f"wavelength units = {draw(UNITS)}")
        elif change == "open":
            lines[place] = lines[place].replace("}", "") if "}" in lines[place] else lines[place] + " = {"
        elif change == "list":
            key = draw(
                st.sampled_from(["wavelength", "fwhm", "bbl", "data gain values", "band names", "data offset values"])
            )
            lines.append(f"{key} = {{{', '.join(draw(st.lists(NUMBERS, max_size=5)))}}}")
        elif change == "junk":
            lines[place] = draw(st.text(max_size=30))
        elif change == "move":
            lines.insert(0, lines.pop(place))
        elif change == "map":
            fields = draw(
                st.lists(NUMBERS | st.sampled_from(["UTM", "Arbitrary", "rotation=45", "units=Degrees"]), max_size=12)
            )
            lines.append(f"map info = {{{', '.join(fields)}}}")
        else:
            lines.append(f"hyperfuse = {{{draw(st.text(max_size=20))}}}")
    return "\n".join(lines).encode("utf-8", "replace")


class FuzzReader:
    """Reads files in a process of its own, which is started again when a file ends or freezes it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def read(self, path: Path) -> tuple[str, str]:
        """What became of a file: (outcome of the worker, or "frozen", "crashed", "printed"; detail)."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(str(path)) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], SECONDS_PER_FILE)
        if not ready:
            self.close()
            return "frozen", f"more than {SECONDS_PER_FILE} s"
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return "crashed", f"exit code {code}"
        if not line.startswith("{"):
            return "printed", line
        answer = json.loads(line)
        return answer["outcome"], answer["detail"]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self._process = None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            worker = Path(__file__).with_name("fuzz_worker.py")
            self._process = subprocess.Popen(
                [sys.executable, str(worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            # Imports on a busy machine take longer than any file.
            assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        return self._process
