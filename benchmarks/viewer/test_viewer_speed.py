"""How soon a person sees a large scene, and how soon a spectrum: in a real browser, on a GeoTIFF of 10000 x 10000 x 30.

pytest benchmarks/viewer --benchmark-enable     about 10 GB of temporary files; with HYPERFUSE_LARGE_SCENES=FOLDER they
are kept
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.windows import Window
from tests.viewer.browsers import drawn, launched_browser, opened_page
from tests.viewer.served_page import served

from hyperfuse.data.datasets import indian_pines
from hyperfuse.io.files import write_cube
from hyperfuse.io.grid import Grid
from hyperfuse.viewer.overviews import build_overviews
from hyperfuse.viewer.tiles import highest_level

SIDE, BANDS, STRIP = 10_000, 30, 512
WAVELENGTH_NM = np.linspace(420, 2400, BANDS)
WITH_OVERVIEWS_SECONDS, WITHOUT_SECONDS, SPECTRUM_SECONDS = 1.0, 5.0, 0.1
LEAST_FRAMES = 30  # in a second
Note = Callable[[str], None]
# Times at which the browser draws.
FRAMES = """() => {
    window.frames = [];
    const note = (time) => { window.frames.push(time); requestAnimationFrame(note); };
    requestAnimationFrame(note);
}"""


def write_large(path: Path, interleave: str) -> Path:
    """6 GB of int16, compressed. `interleave`: "band" as hyperfuse writes it, or "pixel": all bands of a block
    together.
    """
    profile = {
        "driver": "GTiff",
        "width": SIDE,
        "height": SIDE,
        "count": BANDS,
        "dtype": "int16",
        "tiled": True,
        "blockxsize": 256,
        "blockysize": 256,
        "compress": "deflate",
        "predictor": 2,
        "zlevel": 1,
        "interleave": interleave,
        "bigtiff": "yes",
        "num_threads": "all_cpus",
        "crs": "EPSG:32633",
        "transform": Affine(10, 0, 400_000, 0, -10, 5_800_000),
        "nodata": -9999,
    }
    noise = np.random.default_rng(0).integers(-4, 5, (STRIP, SIDE)).astype(np.int16)
    with rasterio.open(path, "w", **profile) as target:
        for band, nm in enumerate(WAVELENGTH_NM, start=1):
            target.update_tags(band, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=f"{nm / 1000:.6f}")
        for top in range(0, SIDE, STRIP):
            rows = min(STRIP, SIDE - top)
            target.write(_strip(top, noise[:rows]), window=Window(0, top, SIDE, rows))
    return path


def _strip(top: int, noise: NDArray[np.int16]) -> NDArray[np.int16]:
    """Fields of two surfaces, shaded."""
    y, x = (
        np.arange(top, top + len(noise), dtype=np.float32)[:, None] / 700,
        np.arange(SIDE, dtype=np.float32)[None, :] / 500,
    )
    fields = np.sin(x + 0.3 * np.sin(y)) * np.cos(y)
    shade = 60 * np.sin(9 * x) * np.sin(8 * y)
    green, soil = (1500 + 900 * fields + shade).astype(np.int16), (2200 - 700 * fields + shade).astype(np.int16)
    strip = np.empty((BANDS, *noise.shape), dtype=np.int16)
    for band, nm in enumerate(WAVELENGTH_NM):
        greener = 9 if nm > 700 else 1
        strip[band] = (greener * (green // 10) + (10 - greener) * (soil // 10)) + np.roll(noise, 37 * band, axis=1)
    return strip


@pytest.fixture(scope="module", params=["band", "pixel"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A large file without overviews, in the disk's cache as far as that goes."""
    kept = os.environ.get("HYPERFUSE_LARGE_SCENES")
    folder = Path(kept) / request.param if kept else tmp_path_factory.mktemp(request.param)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "large.tif"
    if not path.exists():
        write_large(path, request.param)
    yield request.param, path
    path.with_name("large.tif.ovr").unlink(missing_ok=True)
    if not kept:
        path.unlink()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_browser() as browser:
        yield browser


@dataclass(frozen=True)
class Pictures:
    """Seconds from asking for the page to the first picture and to the whole one, and what the first one took of the
    processors.

    The latter, of server and browser together, is what a busy machine has less of, and so needs longer for.
    """

    first: float
    whole: float
    computing: float

    def __str__(self) -> str:
        return f"first picture {self.first:.2f} s ({self.computing:.2f} s of computing), whole {self.whole:.2f} s"


def pictures(browser: Any, path: Path, name: str) -> Pictures:
    before = computing_seconds()
    with served({"fused": path}, path.parent) as url, opened_page(browser, url, name) as page:
        seconds = []
        for part in ("first picture", "whole picture"):
            page.wait_for_function("(name) => performance.getEntriesByName(name).length > 0", arg=part, timeout=300_000)
            seconds.append(page.evaluate("(name) => performance.getEntriesByName(name)[0].startTime", part) / 1000)
            if len(seconds) == 1:
                computing = computing_seconds() - before
    return Pictures(seconds[0], seconds[1], computing)


def computing_seconds() -> float:
    """Of this process, which serves, and of the browser that it started."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def spectra_seconds(path: Path) -> tuple[list[float], float]:
    """How long each of many took, once the picture stands, and how much computing one of them is."""
    places = np.random.default_rng(1).integers(0, SIDE, (30, 2))
    seconds = []
    with served({"fused": path}, path.parent) as url, httpx.Client(base_url=url, timeout=60) as client:
        top = f"api/tiles/1/fused/{client.get('api/scene').json()['levels']}/0/0"
        while float(client.get(top).headers["x-complete"]) < 1:
            time.sleep(0.1)
        before = computing_seconds()
        for row, column in places:
            start = time.perf_counter()
            assert client.get(f"api/spectra/1?row={row}&column={column}").status_code == 200
            seconds.append(time.perf_counter() - start)
        computing = (computing_seconds() - before) / len(places)
    return seconds, computing


def test_large_scene(scene: tuple[str, Path], browser: Any, note_figure: Note) -> None:
    interleave, path = scene
    size = path.stat().st_size / 1e9
    plain = pictures(browser, path, f"large_{interleave}_without")
    note_figure(f"{interleave}, {size:.1f} GB, no overviews: {plain}")
    spectra, computing = spectra_seconds(path)
    note_figure(
        f"{interleave}: spectrum {1000 * median(spectra):.0f} ms ({1000 * computing:.0f} ms of computing), "
        f"slowest of {len(spectra)} {1000 * max(spectra):.0f} ms"
    )
    start = time.perf_counter()
    built = build_overviews(path, highest_level(Grid(SIDE, SIDE, None, None)), threading.Event())
    minutes = (time.perf_counter() - start) / 60
    note_figure(f"{interleave}: overviews built in {minutes:.1f} min, {built.stat().st_size / 1e9:.1f} GB")
    quick = pictures(browser, path, f"large_{interleave}_with")
    note_figure(f"{interleave}, with overviews: {quick}")
    note_figure(f"load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")

    assert plain.first < WITHOUT_SECONDS
    assert median(spectra) < SPECTRUM_SECONDS
    assert quick.first < WITH_OVERVIEWS_SECONDS


def test_pan(browser: Any, note_figure: Note, tmp_path: Path) -> None:
    """Frames per second while the scene of the demo is dragged about, zoomed in, for some seconds."""
    path = write_cube(indian_pines(), tmp_path / "fused.tif")
    with served({"fused": path}, tmp_path) as url, opened_page(browser, url, "pan") as page:
        drawn(page)
        box = page.locator("#canvas").bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(*middle)
        page.evaluate(FRAMES)
        page.mouse.down()
        start = time.perf_counter()
        while (angle := 2 * (time.perf_counter() - start)) < 8:
            page.mouse.move(middle[0] + 200 * np.sin(angle), middle[1] + 120 * np.sin(1.7 * angle))
        page.mouse.up()
        gaps = np.diff(page.evaluate("() => window.frames")) / 1000
    rate = 1 / gaps.mean()
    note_figure(f"pan on the demo scene: {rate:.0f} frames/s, slowest frame {1000 * gaps.max():.0f} ms")
    assert rate > LEAST_FRAMES


def test_start(scene: tuple[str, Path], note_figure: Note) -> None:
    """From typing the command to the page being served."""
    command = [
        sys.executable,
        "-c",
        "from hyperfuse.cli.app import main; main()",
        "view",
        str(scene[1]),
        "--no-browser",
    ]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        seconds = time.perf_counter() - start
        process.terminate()
    note_figure(f"{scene[0]}: `hyperfuse view` serves after {seconds:.2f} s")
