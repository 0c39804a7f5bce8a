"""ENVI's text header, checked before GDAL reads it, and its data: plain numbers in one of three orders.

GDAL trusts a header: it would allocate as much memory as the header promises.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError
from hyperfuse.io.atomic import WriteWindow
from hyperfuse.io.cube import Lengths, lengths_in_nanometres, numbers

DATA_SUFFIXES = (".img", "", ".dat", ".bsq", ".bil", ".bip", ".raw", ".bin", ".fla")
BYTES_OF_DATA_TYPE = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 9: 16, 12: 2, 13: 4, 14: 8, 15: 8}
# Axes of a (band, y, x) block in the order of the file.
FILE_AXES = {"bsq": (0, 1, 2), "bil": (1, 0, 2), "bip": (1, 2, 0)}
HEADER_LINE = re.compile(
    r"^[ \t]*(samples|lines|bands|data[ _]type|header[ _]offset|interleave|file compression)[ \t]*=([^\r\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
SPECTRAL_LIBRARY = re.compile(r"^[ \t]*file[ _]type[ \t]*=[ \t]*ENVI Spectral Library", re.IGNORECASE | re.MULTILINE)
ESRI_WAVELENGTHS = re.compile(r"^WAVELENGTHS\s([^A-Z]*)^WAVELENGTHS_END", re.MULTILINE)
LONGEST_LINE = 2000


def find_header(data: Path) -> Path | None:
    """Find the ENVI header beside a data file: `scene.hdr` or `scene.img.hdr`, in small or capital letters."""
    for name in (data.name, data.stem):
        for header in (data.with_name(name + suffix) for suffix in (".hdr", ".HDR")):
            if header.is_file() and header != data and _is_envi_header(header):
                return header
    return None


def esri_wavelengths(data: Path, bands: int) -> dict[str, Any]:
    """Wavelengths in nm from an ESRI header beside the data, where some cameras list them; empty without any."""
    header = data.with_suffix(".hdr")
    if not header.is_file():
        return {}
    listed = ESRI_WAVELENGTHS.search(header.read_text(encoding="utf-8", errors="replace"))
    values = numbers(listed[1].split()) if listed else None
    if values is None or values.size != bands:
        return {}
    centres, _ = lengths_in_nanometres(values, None, None, None, str(header))
    return {} if centres is None else {"wavelength": centres}


def find_data(header: Path) -> Path:
    """Find the data file beside an ENVI header; among several, the one of the size that the header promises.

    A file with another suffix than the usual ones (.fla, .hyspex, ...) has exactly that size.
    """
    stem = header.with_suffix("")
    names = [stem.name + suffix for suffix in dict.fromkeys((*DATA_SUFFIXES, *map(str.upper, DATA_SUFFIXES)))]
    usual = [path for path in map(stem.with_name, names) if path.is_file()]
    if len(usual) == 1:
        return usual[0]
    promised = _promised_bytes(header)
    unusual = [
        path for path in sorted(header.parent.glob(glob.escape(stem.name) + ".*")) if path not in (*usual, header)
    ]
    fitting = [path for path in (*usual, *unusual) if path.is_file() and path.stat().st_size == promised]
    if not usual and not fitting:
        shown = ", ".join(f"{stem.name}{suffix}" for suffix in DATA_SUFFIXES)
        expected = f"{shown} or another {stem.name}.* of {promised} bytes"
        raise CubeFileError(f"{header} has no data file beside it", expected, "put both files into one folder")
    return (fitting or usual)[0]


def check_header(header: Path, data: Path) -> None:
    """Refuse an ENVI header that promises more pixels than the data file holds, before memory is allocated for them."""
    promised, held = _promised_bytes(header), data.stat().st_size
    if held < promised:
        got = f"{data} holds {held} bytes, but its header promises {promised}"
        remedy = "fetch the data again or fix samples, lines, bands, data type in the header"
        raise CubeFileError(got, "a whole file and a header that fits", remedy)


def _promised_bytes(header: Path) -> int:
    """Size that the data file of this header must have; 0 where it is compressed, so that nothing is known."""
    if not _is_envi_header(header):
        got = f"{header} is not an ENVI header"
        raise CubeFileError(got, "a text file that begins with ENVI", "of a header of ESRI, name the data file instead")
    text = header.read_text(encoding="utf-8", errors="replace")
    if SPECTRAL_LIBRARY.search(text):
        raise CubeFileError(f"{header} describes a spectral library", "an image", "spectra without pixels are not read")
    if text.rfind("{") > text.rfind("}"):
        # GDAL leaves out a list without an end.
        raise CubeFileError(f"{header} ends in the middle of a {{list}}", "a whole header", "fetch it again")
    entries: dict[str, set[str]] = {}
    for key, value in HEADER_LINE.findall(text):
        entries.setdefault(key.lower().replace("_", " "), set()).add(value.strip())
    for value in entries.get("interleave", ()):
        # GDAL takes an unknown interleave for bsq.
        if value.lower() not in FILE_AXES:
            _refuse_header(header, f"interleave = {value[:40]}", f"one of {', '.join(FILE_AXES)}")
    sizes = [_integer(entries, key, header) for key in ("samples", "lines", "bands")]
    data_type, offset = _integer(entries, "data type", header), _integer(entries, "header offset", header, default=0)
    if data_type not in BYTES_OF_DATA_TYPE:
        _refuse_header(header, f"data type = {data_type}", f"one of {', '.join(map(str, BYTES_OF_DATA_TYPE))}")
    if min(sizes) < 1 or offset < 0:
        got = ", ".join(map(str, (*sizes, offset)))
        _refuse_header(header, f"samples, lines, bands, header offset = {got}", "at least 1, 1, 1, 0")
    if any(value.startswith("1") for value in entries.get("file compression", ())):
        return 0
    return offset + math.prod(sizes) * BYTES_OF_DATA_TYPE[data_type]


def _is_envi_header(header: Path) -> bool:
    with header.open("rb") as file:
        return file.read(16).lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"ENVI")


def _integer(entries: Mapping[str, set[str]], key: str, header: Path, default: int | None = None) -> int:
    values = sorted(entries.get(key, ()))
    if len(values) > 1:
        _refuse_header(header, f"`{key}` given more than once: {', '.join(values)[:60]}", "one value")
    if not values and default is not None:
        return default
    if not values or not re.fullmatch(r"[-+]?\d{1,18}", values[0]):
        got = f"`{key} = {values[0][:40]}`" if values else f"no `{key}`"
        _refuse_header(header, got, f"`{key} = ` and a whole number")
    return int(values[0])


def _refuse_header(header: Path, got: str, expected: str) -> NoReturn:
    raise CubeFileError(f"{header}: {got}", expected, "fix the header")


def parse_braced_list(text: str) -> list[str]:
    """Parse the entries of an ENVI list such as "{ 400.1, 500.2 }"."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    return [entry.strip() for entry in inner.split(",")] if inner else []


def braced_numbers(text: str) -> Lengths | None:
    """Parse an ENVI list of numbers, or return None; many writers leave a comma after the last entry."""
    entries = parse_braced_list(text)
    return numbers(entries[:-1] if len(entries) > 1 and not entries[-1] else entries)


def fold_line(line: str) -> str:
    """Fold a long list over several lines: GDAL does not read lines of more than ten thousand characters."""
    lines = [""]
    for entry in line.split(","):
        if len(lines[-1]) > LONGEST_LINE:
            lines.append(entry.lstrip())
        else:
            lines[-1] += f",{entry}"
    return ",\n".join(lines).removeprefix(",")


def raw_writer(file: FileIO, shape: tuple[int, ...], interleave: str, offset: int = 0) -> WriteWindow:
    """Write windows into a file of plain numbers, in the order bsq, bil or bip, after `offset` bytes of header."""
    axes = FILE_AXES[interleave]
    _, middle_size, inner_size = (shape[axis] for axis in axes)

    def write(rows: slice, columns: slice, block: NDArray[Any]) -> None:
        window = (slice(0, shape[0]), rows, columns)
        outer, middle, inner = (window[axis] for axis in axes)
        is_joined = inner.stop - inner.start == inner_size
        for place, plane in enumerate(np.ascontiguousarray(block.transpose(axes)), start=outer.start):
            start = (place * middle_size + middle.start) * inner_size + inner.start
            for line, piece in enumerate([plane] if is_joined else plane):
                left = piece.data.cast("B")
                file.seek(offset + (start + line * inner_size) * piece.itemsize)
                while left:
                    left = left[file.write(left) :]

    return write
