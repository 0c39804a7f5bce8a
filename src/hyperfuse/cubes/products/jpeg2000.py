"""Is a JPEG 2000 file whole? Its boxes say how long they are; a decoder would notice only at the pixels that are missing."""

from __future__ import annotations

import struct

from hyperfuse.cubes.damaged_files import reading
from hyperfuse.cubes.products.delivery import DeliveredFile
from hyperfuse.errors import CubeFileError

SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
BOX = struct.Struct(">I4s")
LONG_BOX = struct.Struct(">Q")
CODESTREAM_END = b"\xff\xd9"


def refuse_truncated_jp2(file: DeliveredFile) -> None:
    path, begin = file.place()
    with reading(path, "a whole file"), path.open("rb") as stream:
        stream.seek(begin)
        if stream.read(len(SIGNATURE)) != SIGNATURE:
            raise CubeFileError(f"{file.shown} is no JPEG 2000 file", "an image as delivered", "fetch it again")
        position = len(SIGNATURE)
        while position < file.size:
            stream.seek(begin + position)
            header = stream.read(BOX.size)
            if len(header) < BOX.size:
                break
            length, _ = BOX.unpack(header)
            if length == 1:
                (length,) = LONG_BOX.unpack(stream.read(LONG_BOX.size).rjust(LONG_BOX.size, b"\0"))
            if length == 0:
                stream.seek(begin + file.size - len(CODESTREAM_END))
                if stream.read(len(CODESTREAM_END)) == CODESTREAM_END:
                    return
                break
            if length < BOX.size:
                break
            position += length
        if position != file.size:
            raise CubeFileError(f"{file.shown} is truncated: a part of it lies beyond its end", "a whole file", "fetch it again")
