"""Is a MATLAB 5 file built as it should be? scipy trusts it: a wrong type ends the whole process, a wrong length fills the memory.

Every element is a tag (type, length) and that many bytes, padded to eight. A matrix is an element that holds elements: its flags,
dimensions and name, then by its class values, cells or fields; a compressed element holds a deflated matrix. See "MAT-File Format",
chapter 1, The MathWorks.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HEADER = 128
INT8, INT32, UINT32, MATRIX, COMPRESSED, UTF8 = 1, 5, 6, 14, 15, 16
# Other writers than MATLAB are not so strict about these.
WHOLE_NUMBERS, NAMES = {INT32, UINT32}, {INT8, UTF8}
NUMBERS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}
TEXTS = {16, 17, 18}
TYPES = NUMBERS | TEXTS | {MATRIX, COMPRESSED}
# Classes of matrices: 1 cell, 2 struct, 3 object, 4 char, 5 sparse, then numbers of all kinds.
NUMERIC_CLASSES = range(6, 16)
# Functions and objects of classes: left alone, because `matlab.py` never has them read.
ONLY_FOR_MATLAB = {16, 17}
IS_COMPLEX = 0x0800
DEEPEST = 64
# What is deflated is protected by its own checksum: looking at the beginning finds a wrong writer.
INFLATED_AT_MOST = 2**20
PIECE = 2**16
CONTENT_AT_MOST = 256


@dataclass(frozen=True)
class Element:
    kind: int
    size: int
    content: bytes


def check_tags(path: Path) -> None:
    """Raises ValueError where the file cannot be true."""
    with path.open("rb") as stream:
        header = stream.read(HEADER)
        if len(header) < HEADER:
            raise ValueError("it ends within its header")
        order = ">" if header[126:128] == b"MI" else "<"
        elements = _elements(stream, path.stat().st_size - HEADER, order, 0)
    strange = [element.kind for element in elements if element.kind not in (MATRIX, COMPRESSED)]
    if strange:
        raise ValueError(f"an element of type {strange[0]} where a variable should be")


def _elements(stream: IO[bytes], length: int, order: str, depth: int) -> list[Element]:
    """The elements that fill the next `length` bytes, each of them checked."""
    if depth > DEEPEST:
        raise ValueError("its structs are nested too deeply")
    elements = []
    end = stream.tell() + length
    while stream.tell() < end:
        element, start = _next_element(stream, end, order)
        if element.kind == MATRIX and element.size:
            stream.seek(start)
            _check_matrix(_elements(stream, element.size, order, depth + 1), order)
        elif element.kind == COMPRESSED:
            stream.seek(start)
            _check_inflated(_inflated_beginning(stream, element.size), order)
            stream.seek(start + element.size)
        elements.append(element)
    return elements


def _inflated_beginning(stream: IO[bytes], size: int) -> bytes:
    inflater, inflated, left = zlib.decompressobj(), bytearray(), size
    while left > 0 and len(inflated) < INFLATED_AT_MOST:
        piece = stream.read(min(left, PIECE))
        left -= len(piece)
        inflated += inflater.decompress(piece, INFLATED_AT_MOST - len(inflated))
        if not piece:
            raise ValueError("it is truncated")
    return bytes(inflated)


def _next_element(stream: IO[bytes], end: int, order: str) -> tuple[Element, int]:
    """An element and where its bytes begin; the stream is left behind it."""
    tag = stream.read(8)
    if len(tag) < 8:
        raise ValueError("it is truncated")
    first, size = struct.unpack(f"{order}II", tag)
    if first >> 16:
        # A small element, whose bytes are inside its tag.
        element = Element(first & 0xFFFF, first >> 16, tag[4 : 4 + (first >> 16)])
        start, possible = stream.tell(), element.size <= 4 and element.kind not in (MATRIX, COMPRESSED)
    else:
        start = stream.tell()
        element, possible = Element(first, size, stream.read(min(size, CONTENT_AT_MOST, end - start))), size <= end - start
        padding = 0 if element.kind == COMPRESSED else -size % 8
        stream.seek(min(start + size + padding, end))
    if element.kind not in TYPES or not possible:
        raise ValueError(f"an element of type {element.kind} and {element.size} bytes cannot be")
    return element, start


def _check_matrix(elements: list[Element], order: str) -> None:
    kinds = [element.kind for element in elements]
    if kinds[:1] != [UINT32] or elements[0].size != 8:
        raise ValueError("a matrix without flags")
    flags = struct.unpack(f"{order}I", elements[0].content[:4])[0]
    if flags & 0xFF in ONLY_FOR_MATLAB:
        return
    if len(kinds) < 3 or kinds[1] not in WHOLE_NUMBERS or kinds[2] not in NAMES:
        raise ValueError("a matrix without dimensions and name")
    entries = math.prod(_integers(elements[1], order))
    if not _is_as_its_class(flags, entries, elements[3:], order):
        raise ValueError(f"a matrix of class {flags & 0xFF} with {entries} entries and elements of types {kinds[3:9]} cannot be")


def _is_as_its_class(flags: int, entries: int, rest: list[Element], order: str) -> bool:
    kinds = [element.kind for element in rest]
    parts = 2 if flags & IS_COMPLEX else 1
    match flags & 0xFF:
        case number if number in NUMERIC_CLASSES:
            return len(kinds) == parts and set(kinds) <= NUMBERS
        case 4:
            return len(kinds) == 1 and set(kinds) <= NUMBERS | TEXTS
        case 5:
            return len(kinds) == 2 + parts and set(kinds) <= NUMBERS
        case 1:
            return len(kinds) == entries and set(kinds) <= {MATRIX}
        case 2:
            return _are_fields(rest, entries, order)
        case 3:
            return kinds[:1] == [INT8] and _are_fields(rest[1:], entries, order)
    return False


def _are_fields(rest: list[Element], entries: int, order: str) -> bool:
    """The length of a field's name, all names, and one matrix for each field of each entry."""
    if len(rest) < 2 or rest[0].kind not in WHOLE_NUMBERS or rest[1].kind not in NAMES:
        return False
    (length,) = _integers(rest[0], order) or (0,)
    if length < 1 or rest[1].size % length:
        return False
    fields = rest[2:]
    return len(fields) == entries * (rest[1].size // length) and all(element.kind == MATRIX for element in fields)


def _integers(element: Element, order: str) -> tuple[int, ...]:
    count = len(element.content) // 4
    return struct.unpack(f"{order}{count}I", element.content[: 4 * count])


def _check_inflated(inflated: bytes, order: str) -> None:
    stream = io.BytesIO(inflated)
    if len(inflated) < INFLATED_AT_MOST:
        if [element.kind for element in _elements(stream, len(inflated), order, 1)] != [MATRIX]:
            raise ValueError("a compressed element that holds no matrix")
        return
    # Too large to look through: its flags, dimensions, name and the type of its values.
    stream.seek(8)
    elements = [_next_element(stream, 2**33, order)[0] for _ in range(4)]
    flags = struct.unpack(f"{order}I", elements[0].content[:4].ljust(4, b"\0"))[0]
    if flags & 0xFF in NUMERIC_CLASSES:
        _check_matrix([*elements, *[elements[3]] * bool(flags & IS_COMPLEX)], order)
