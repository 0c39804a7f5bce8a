"""A process that overwrites a cube and is killed at one of the renames.

python killed_publishing.py TARGET RENAME before|after
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from tests.io.random_cubes import sample_cube

from hyperfuse.io.files import write_cube


def killing(rename: Callable[..., None], number: int, moment: str) -> Callable[..., None]:
    count = 0

    def renamed(*arguments: object) -> None:
        nonlocal count
        count += 1
        if count == number and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return renamed


if __name__ == "__main__":
    target, number, moment = sys.argv[1:]
    os.rename = os.replace = killing(os.rename, int(number), moment)  # type: ignore[assignment]
    write_cube(sample_cube(seed=1), target, stac=True, overwrite=True)
