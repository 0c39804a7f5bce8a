"""Whatever a parser stumbles over in a damaged file becomes one error that says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperfuse.errors import CubeFileError, HyperfuseError

# No usual compression does better; a file that claims to does not hold what it promises.
LARGEST_COMPRESSION = 1100
# Whatever is smaller than this is not worth a refusal.
HARMLESS_BYTES = 2**28


def promises_too_much(promised: int, held: int) -> bool:
    """Would a library allocate so many bytes for a piece of a file that cannot be in it?"""
    return promised > HARMLESS_BYTES and promised > held * LARGEST_COMPRESSION


@contextmanager
def reading(path: Path, expected: str, remedy: str = "fetch or export it again") -> Iterator[None]:
    """For blocks in which a library parses `path`: scipy, zarr, h5py and numpy answer damage with all kinds of exceptions."""
    try:
        yield
    except HyperfuseError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise CubeFileError(f"{path} cannot be read: {text}", expected, remedy) from error
