"""Whatever a parser stumbles over in a damaged file becomes one error that says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperfuse.errors import CubeFileError, HyperfuseError


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
