"""A process that runs the command line with small tiles, each of which takes a while: something to interrupt.

python slow_tiles.py SECONDS_PER_TILE LARGEST_FILE ARGUMENTS...     LARGEST_FILE in bytes stands for a full disk; 0 is
no limit
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from numpy.typing import NDArray

from hyperfuse.cli.app import main
from hyperfuse.fusion import plan, run
from hyperfuse.fusion.engine import FusedTile, Tile, TileInputs, TileJob
from hyperfuse.fusion.kept import WorkFolder


def slow_down(seconds: float) -> None:
    fuse = TileJob.fuse

    def slowly(job: TileJob, tile: Tile, inputs: TileInputs | None) -> FusedTile:
        time.sleep(seconds)
        return fuse(job, tile, inputs)

    TileJob.fuse = slowly  # type: ignore[method-assign]


def slow_keeping(seconds: float) -> None:
    """For runs whose tiles are fused in other processes, where nothing is changed."""
    keep = WorkFolder.keep

    def slowly(folder: WorkFolder, tile: Tile, block: NDArray[Any]) -> None:
        keep(folder, tile, block)
        time.sleep(seconds)

    WorkFolder.keep = slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    plan.TILE_SIZES = ((64, 64),)
    plan.LARGEST_WHOLE_SIDE = 0
    run.SECONDS_NOT_KEPT = 0.0
    (slow_keeping if {"--workers", "--cluster"} & set(sys.argv) else slow_down)(float(sys.argv[1]))
    limit = int(sys.argv[2])
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    del sys.argv[1:3]
    main()
