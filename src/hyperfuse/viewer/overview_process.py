"""What a process of its own does, so that it can be stopped; it imports nothing that it does not need."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path


def write_overviews(image: Path, stand_in: Path, levels: int) -> None:
    """STAND_IN.ovr: means over 2, 4, ..., 2^levels pixels of the image, which is only read.

    GDAL writes overviews beside what it has open for writing, so that is a virtual copy of the image.
    """
    import rasterio
    import rasterio.shutil
    from rasterio.enums import Resampling
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    warnings.simplefilter("ignore", NotGeoreferencedWarning)
    settings = {"COMPRESS_OVERVIEW": "DEFLATE", "INTERLEAVE_OVERVIEW": "BAND", "BIGTIFF_OVERVIEW": "IF_SAFER"}
    try:
        with rasterio.Env(GDAL_NUM_THREADS="ALL_CPUS", GDAL_PAM_ENABLED="NO", **settings):
            rasterio.shutil.copy(image, stand_in, driver="VRT")
            with rasterio.open(stand_in, "r+", driver="VRT") as target:
                target.build_overviews([2**level for level in range(1, levels + 1)], Resampling.average)
    except RasterioError:
        # The exit code says it; who waits for this process has words for it.
        sys.exit(1)
