"""Overviews: smaller versions of an image inside its GeoTIFF, so that a viewer shows a large scene at once."""

from __future__ import annotations

import warnings
from pathlib import Path

import rasterio
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning

from hyperfuse.cubes.guarded_file import GuardedOpener

# As GDAL itself decides: the last overview fits into one block.
SMALLEST_OVERVIEW = 256


def overview_factors(height: int, width: int) -> list[int]:
    """2, 4, 8, ... until the longer side fits into one block; none for an image that does so itself."""
    factors: list[int] = []
    while max(height, width) > SMALLEST_OVERVIEW * 2 ** len(factors):
        factors.append(2 ** (len(factors) + 1))
    return factors


def add_overviews(path: Path, opener: GuardedOpener) -> None:
    """Averages of the valid pixels, block by block, compressed as the image is."""
    # One thread, whatever the environment says: GDAL's workers would call our Python file while this thread waits for them.
    with warnings.catch_warnings(), rasterio.Env(GDAL_NUM_THREADS="1"):
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "r+", driver="GTiff", opener=opener) as target:
            target.build_overviews(overview_factors(target.height, target.width), Resampling.average)
    opener.raise_error()
