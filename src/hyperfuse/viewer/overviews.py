"""Overviews of a large GeoTIFF in a file beside it, complete or not at all; the image itself is only read.

Imports little: a separate process imports this module to build them.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import warnings
from pathlib import Path

from hyperfuse.errors import Cancelled, CubeWriteError
from hyperfuse.io.atomic import published
from hyperfuse.progress import progress

STEPS = 100
SECONDS_BETWEEN_CHECKS = 0.25
# Factors 2, 4, 8, ... hold a third of the pixels; averages compress about as well as the image.
EXPECTED_SHARE = 1 / 3


def build_overviews(path: Path, levels: int, cancel: threading.Event) -> Path:
    """Write PATH.ovr with averages over 2, 4, ..., 2^levels pixels.

    GDAL reports no progress, so the growing file is watched; and it can only be cancelled as a process of its own.
    """
    target = path.with_name(path.name + ".ovr")
    with published(target) as temporary, progress("Overviews", total=STEPS) as advance:
        virtual, reached = temporary.with_suffix(""), 0
        expected = max(1.0, EXPECTED_SHARE * path.stat().st_size)
        process = multiprocessing.get_context("spawn").Process(
            target=write_overviews, args=(path, virtual, levels), daemon=True
        )
        process.start()
        try:
            while process.is_alive():
                if cancel.wait(SECONDS_BETWEEN_CHECKS):
                    raise Cancelled
                size = temporary.stat().st_size if temporary.exists() else 0
                now = min(STEPS - 1, int(STEPS * size / expected))
                if now > reached:
                    advance(now - reached)
                    reached = now
        finally:
            process.terminate()
            process.join()
            virtual.unlink(missing_ok=True)
        if process.exitcode != 0 or not temporary.exists():
            raise CubeWriteError(
                f"no overviews of {path.name}", "space beside the image", "nothing was left behind; free some space"
            )
        advance(STEPS - reached)
    return target


def write_overviews(image: Path, virtual: Path, levels: int) -> None:
    """Write VIRTUAL.ovr; GDAL builds overviews of what it has open for writing, here a virtual copy of the image."""
    import rasterio
    import rasterio.shutil
    from rasterio.enums import Resampling
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    warnings.simplefilter("ignore", NotGeoreferencedWarning)
    settings = {"COMPRESS_OVERVIEW": "DEFLATE", "INTERLEAVE_OVERVIEW": "BAND", "BIGTIFF_OVERVIEW": "IF_SAFER"}
    try:
        with rasterio.Env(GDAL_NUM_THREADS="ALL_CPUS", GDAL_PAM_ENABLED="NO", **settings):
            rasterio.shutil.copy(image, virtual, driver="VRT")
            with rasterio.open(virtual, "r+", driver="VRT") as target:
                target.build_overviews([2**level for level in range(1, levels + 1)], Resampling.average)
    except RasterioError:
        # The exit code is enough for the process that waits.
        sys.exit(1)
