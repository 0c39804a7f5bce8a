"""ENVI's two files: which header belongs to which data, and whether the header tells the truth about the data's size."""

from __future__ import annotations

import re
from pathlib import Path

from hyperfuse.errors import CubeFileError

DATA_SUFFIXES = (".img", "", ".dat", ".bsq", ".bil", ".bip", ".raw", ".bin", ".sli")
BYTES_OF_DATA_TYPE = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 9: 16, 12: 2, 13: 4, 14: 8, 15: 8}
INTERLEAVES = ("bsq", "bil", "bip")
LARGEST_HEADER = 16 * 2**20


def find_header(data: Path) -> Path | None:
    """The .hdr beside a data file: `scene.hdr` or `scene.img.hdr`."""
    for header in (data.with_name(data.name + ".hdr"), data.with_suffix(".hdr")):
        if header.is_file() and header != data and _is_envi_header(header):
            return header
    return None


def find_data(header: Path) -> Path:
    """The data file beside a header; where several could be it, the one of the size that the header promises."""
    candidates = [path for path in data_candidates(header) if path.is_file()]
    if not candidates:
        tried = ", ".join(sorted({path.name for path in data_candidates(header)}))
        raise CubeFileError(f"{header} has no data file beside it", f"one of {tried}", "put both files into one folder")
    if len(candidates) == 1:
        return candidates[0]
    promised = promised_bytes(header)
    fitting = [path for path in candidates if path.stat().st_size == promised]
    return (fitting or candidates)[0]


def data_candidates(header: Path) -> list[Path]:
    stem = header.with_suffix("")
    candidates = [stem.with_name(stem.name + suffix) for suffix in DATA_SUFFIXES]
    return candidates + [
        path.with_suffix(path.suffix.upper()) for path in candidates if path.suffix != path.suffix.upper()
    ]


def old_data(header: Path) -> list[Path]:
    """The data file that goes with a header which is to be replaced, if there is one."""
    try:
        return [find_data(header)] if header.is_file() else []
    except CubeFileError:
        return []


def check_header(header: Path, data: Path) -> None:
    """Refuse a header that promises more pixels than the data file holds, before anything is allocated for them."""
    promised, held = promised_bytes(header), data.stat().st_size
    if held < promised:
        raise CubeFileError(
            f"{data} holds {held} bytes, but its header promises {promised}",
            "a whole file and a header that fits",
            "fetch the data again or mend samples, lines, bands, data type in the header",
        )


def promised_bytes(header: Path) -> int:
    """How long the data file of this header has to be; 0 where that cannot be known, because it is compressed."""
    if header.stat().st_size > LARGEST_HEADER or not _is_envi_header(header):
        raise CubeFileError(
            f"{header} is not an ENVI header", "a text file that begins with ENVI", "name the header of an ENVI file"
        )
    text = header.read_text(encoding="utf-8", errors="replace")
    _refuse_silent_losses(text, header)
    size = {key: _integer(text, key, header) for key in ("samples", "lines", "bands", "data type")}
    offset = _integer(text, "header offset", header, default=0)
    if size["data type"] not in BYTES_OF_DATA_TYPE:
        known = ", ".join(map(str, BYTES_OF_DATA_TYPE))
        raise CubeFileError(f"{header}: data type = {size['data type']}", f"one of {known}", "mend the header")
    if min(size["samples"], size["lines"], size["bands"]) < 1 or offset < 0:
        raise CubeFileError(
            f"{header}: samples, lines, bands, header offset = {size['samples']}, {size['lines']}, {size['bands']}, {offset}",
            "at least 1, 1, 1, 0",
            "mend the header",
        )
    if re.search(r"^\s*file compression\s*=\s*1", text, re.IGNORECASE | re.MULTILINE):
        return 0
    return offset + size["samples"] * size["lines"] * size["bands"] * BYTES_OF_DATA_TYPE[size["data type"]]


def _is_envi_header(header: Path) -> bool:
    with header.open("rb") as file:
        return file.read(16).lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"ENVI")


def _refuse_silent_losses(text: str, header: Path) -> None:
    """What GDAL would pass over: it takes an interleave that it does not know for bsq, and leaves out a list without an
    end.
    """
    for found in re.findall(r"^\s*interleave\s*=\s*([^\r\n]*)", text, re.IGNORECASE | re.MULTILINE):
        if found.strip().lower() not in INTERLEAVES:
            raise CubeFileError(
                f"{header}: interleave = {found.strip()[:40]}", f"one of {', '.join(INTERLEAVES)}", "mend the header"
            )
    if text.rfind("{") > text.rfind("}"):
        raise CubeFileError(f"{header} ends in the middle of a {{list}}", "a whole header", "fetch it again")


def _integer(text: str, key: str, header: Path, default: int | None = None) -> int:
    pattern = rf"^\s*{key.replace(' ', r'[ _]')}\s*=\s*([^\r\n]*)"
    values = {found.strip() for found in re.findall(pattern, text, re.IGNORECASE | re.MULTILINE)}
    if len(values) > 1:
        raise CubeFileError(
            f"{header} gives `{key}` more than once: {', '.join(sorted(values))[:60]}", "one value", "mend the header"
        )
    value = values.pop() if values else None
    if value is None and default is not None:
        return default
    if value is None or not re.fullmatch(r"[-+]?\d{1,18}", value):
        got = f"`{key} = {value[:40]}`" if value is not None else f"no `{key}`"
        raise CubeFileError(f"{header} has {got}", f"`{key} = ` and a whole number", "mend the header")
    return int(value)
