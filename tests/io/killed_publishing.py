"""A process that overwrites a cube and is killed at one of the renames.

python killed_publishing.py TARGET RENAME before|after
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.io.random_cubes import sample_cube

from hyperfuse.io.files import write_cube


def killing(rename: Callable[..., None], folder: Path, number: int, moment: str) -> Callable[..., None]:
    """Rename, and kill the process at one of the renames into or out of a folder; a Zarr store has more of its own."""
    count = 0

    def renamed(*paths: str | os.PathLike[str]) -> None:
        nonlocal count
        published = folder in (Path(path).parent for path in paths)
        count += published
        if published and count == number and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*paths)
        if published and count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return renamed


if __name__ == "__main__":
    target, number, moment = sys.argv[1:]
    os.rename = os.replace = killing(os.rename, Path(target).parent, int(number), moment)  # type: ignore[assignment]
    write_cube(sample_cube(seed=1), target, stac=True, overwrite=True)
