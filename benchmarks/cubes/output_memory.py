"""Peak memory and time of writing a cube that is never in memory: plain, with overviews, cloud-optimised, and into
other formats.

GDAL_CACHEMAX=200 python benchmarks/cubes/output_memory.py
"""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import time
from pathlib import Path

import numpy as np
from affine import Affine

from hyperfuse.config import OutputConfig
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import created_cube
from hyperfuse.io.output import UNCHANGED

BANDS, SIZE, ROWS = 60, 2500, 256
WAYS = {
    "plain .tif": (".tif", UNCHANGED, False),
    "--compress zstd": (".tif", OutputConfig(compress="zstd"), False),
    "--overviews": (".tif", OutputConfig(overviews=True), False),
    "--cog": (".tif", UNCHANGED, True),
    ".hdr": (".hdr", UNCHANGED, False),
    ".nc": (".nc", UNCHANGED, False),
    ".zarr": (".zarr", UNCHANGED, False),
}


def peak_mb() -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def write_one(way: str) -> None:
    suffix, output, cog = WAYS[way]
    place = {"crs": "EPSG:32633", "transform": Affine(10, 0, 4e5, 0, -10, 5.7e6), "nodata": 0}
    template = make_cube(np.broadcast_to(np.int16(0), (BANDS, SIZE, SIZE)), **place)
    # Smooth with some noise, as images are.
    noise = np.random.default_rng(0).integers(0, 60, (BANDS, ROWS, SIZE), dtype=np.int16)
    strip = noise + (np.arange(SIZE, dtype=np.int16) % 2000 + 100)
    with tempfile.TemporaryDirectory() as folder:
        path, before, start = Path(folder) / f"cube{suffix}", peak_mb(), time.perf_counter()
        with created_cube(path, template, output.replace(cog=cog)) as writer:
            for row in range(0, SIZE, ROWS):
                rows = slice(row, min(SIZE, row + ROWS))
                writer.write(rows, slice(0, SIZE), strip[:, : rows.stop - row])
        seconds = time.perf_counter() - start
        files = [path, path.with_suffix(".img")] if suffix == ".hdr" else path.rglob("*") if path.is_dir() else [path]
        size = sum(each.stat().st_size for each in files) / 2**20
    print(f"{way:<16} {size:6.0f} MB in {seconds:5.0f} s, peak {peak_mb():5.0f} MB, {before:.0f} MB of it before")


def main() -> None:
    print(f"{BANDS} x {SIZE} x {SIZE} int16, {BANDS * SIZE * SIZE * 2 / 2**20:.0f} MB, in strips of {ROWS} rows")
    for way in WAYS:
        process = multiprocessing.get_context("spawn").Process(target=write_one, args=(way,))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
