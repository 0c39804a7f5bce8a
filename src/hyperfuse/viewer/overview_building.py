"""Overviews for a large GeoTIFF, in a file of their own beside it, whole or not at all; the image itself is not touched."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path

from hyperfuse.cubes.publishing import published
from hyperfuse.errors import Cancelled, CubeWriteError
from hyperfuse.progress import Advance, progress
from hyperfuse.viewer.overview_process import write_overviews
from hyperfuse.viewer.tiles import highest_level

STEPS = 100
SECONDS_BETWEEN_LOOKS = 0.25
# Overviews of factors 2, 4, 8, ... hold a third of the pixels; averages compress about as well as the image.
EXPECTED_SHARE = 1 / 3


def build_overviews(path: Path, longer_side: int, cancel: threading.Event) -> Path:
    """GDAL reports no progress, so the growing file is watched; it can only be stopped from outside, so a process does it."""
    target = path.with_name(path.name + ".ovr")
    with published(target) as temporary, progress("Overviews", total=STEPS) as advance:
        stand_in = temporary.with_suffix("")
        arguments = (path, stand_in, highest_level(longer_side))
        worker = multiprocessing.get_context("spawn").Process(target=write_overviews, args=arguments, daemon=True)
        worker.start()
        try:
            _watch(worker, temporary, EXPECTED_SHARE * path.stat().st_size, cancel, advance)
        finally:
            worker.terminate()
            worker.join()
            stand_in.unlink(missing_ok=True)
        if worker.exitcode != 0 or not temporary.exists():
            raise CubeWriteError(f"no overviews of {path.name}", "space beside the image", "nothing was left behind; free some")
    return target


def _watch(worker: BaseProcess, target: Path, expected: float, cancel: threading.Event, advance: Advance) -> None:
    reached = 0
    while worker.is_alive():
        if cancel.wait(SECONDS_BETWEEN_LOOKS):
            raise Cancelled
        size = target.stat().st_size if target.exists() else 0
        now = min(STEPS - 1, int(STEPS * size / expected)) if expected else 0
        if now > reached:
            advance(now - reached)
            reached = now
    worker.join()
    advance(STEPS - reached)
