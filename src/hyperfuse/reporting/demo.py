"""`hyperfuse demo`: a real scene, degraded, fused by every method, scored, drawn, written.

The scene of `hyperfuse demo`: Indian Pines, a real AVIRIS image that travels inside tensorly's wheel.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from affine import Affine
from rich.table import Table

from hyperfuse.errors import CubeFileError, CubeWriteError
from hyperfuse.fusion.observe import ObservationHints, fuse_pair, observe
from hyperfuse.fusion.output import fused_cube
from hyperfuse.fusion.pair import align_pair
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.metrics.evaluation import Evaluation, evaluate
from hyperfuse.physics.simulate import Simulation, simulate_pair
from hyperfuse.progress import progress
from hyperfuse.reporting.fusion_figure import fusion_figure
from hyperfuse.reporting.tables import score_table

BANDS_RECORDED = 220
# The 20 bands, counted from 1, that the corrected scene leaves out: water vapour, and the last one.
BANDS_REMOVED = {*range(104, 109), *range(150, 164), 220}
# The file has no wavelengths. Evenly spaced centres over the sensor's range put the removed bands onto the water bands.
FIRST_NM, LAST_NM = 400.0, 2500.0
FWHM_NM = 10.0
PIXEL_METRES = 20.0


def indian_pines() -> xr.DataArray:
    """145 x 145 pixels of 20 m, 200 bands, sensor counts; wavelengths approximate, position unknown."""
    try:
        from tensorly.datasets import load_indian_pines
    except ImportError as error:
        raise CubeFileError(
            "the demo scene is not installed", "tensorly, whose wheel carries it", "pip install 'hyperfuse[demo]'"
        ) from error
    counts = np.asarray(load_indian_pines()["tensor"]).transpose(2, 0, 1)
    centres = np.linspace(FIRST_NM, LAST_NM, BANDS_RECORDED)
    kept = [band - 1 for band in range(1, BANDS_RECORDED + 1) if band not in BANDS_REMOVED]
    return make_cube(
        counts.astype(np.uint16),
        wavelength_nm=centres[kept],
        fwhm_nm=FWHM_NM,
        transform=Affine(PIXEL_METRES, 0, 0, 0, -PIXEL_METRES, 0),
        attributes={"sensor": "AVIRIS", "scene": "Indian Pines"},
    )


SCALE = 4
RESPONSE = "Sentinel-2A"


@dataclass(frozen=True)
class DemoResult:
    scores: dict[str, Evaluation]
    table: Table
    files: dict[str, Path]


def run_demo(folder: Path) -> DemoResult:
    """Every method gets the pair and nothing else: shift, point spread, response and noise are estimated."""
    folder = _usable_folder(folder)
    simulation = _simulated_scene()
    fused, seconds = _fused_by_method(simulation)
    scores = {name: evaluate(cube, simulation.reference, scale=SCALE) for name, cube in fused.items()}
    best = max(scores, key=lambda name: scores[name].psnr_db)
    title = f"Indian Pines (AVIRIS, {simulation.reference.sizes['band']} bands) x{SCALE}, {RESPONSE} bands, only the pair known"
    picture = fusion_figure(
        folder / "demo.png",
        hsi=simulation.hsi,
        msi=simulation.msi,
        reference=simulation.reference,
        fused_by_method=fused,
        scale=SCALE,
        title=title,
    )
    files = {"fused": write_cube(fused[best], folder / "fused.tif", overwrite=True), "picture": picture}
    for name in ("hsi", "msi", "reference"):
        files[name] = write_cube(getattr(simulation, name), folder / f"{name}.tif", overwrite=True)
    return DemoResult(scores, score_table(scores, seconds, title), files)


def _simulated_scene() -> Simulation:
    with warnings.catch_warnings():
        # 145 pixels do not make whole coarse ones; losing one row and column is no news in a demo.
        warnings.filterwarnings("ignore", message="reference cropped")
        # Bands in the middle of the water vapour absorption are not in the corrected scene.
        return simulate_pair(indian_pines(), SCALE, RESPONSE, skip_uncovered=True)


def _fused_by_method(simulation: Simulation) -> tuple[dict[str, xr.DataArray], dict[str, float]]:
    """What `fuse` does, with one estimation for all methods."""
    hsi, msi = simulation.hsi, simulation.msi
    fused, seconds = {}, {}
    with progress("Estimating, fusing", len(METHODS) + 1) as advance:
        pair = align_pair(hsi, msi)
        observation = observe(pair, hsi, ObservationHints())
        advance(1)
        for name in METHODS:
            started = time.perf_counter()
            values = fuse_pair(pair, observation, name)
            seconds[name] = time.perf_counter() - started
            fused[name] = fused_cube(values, pair, hsi, {"hyperfuse_method": name})
            advance(1)
    return fused, seconds


def _usable_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CubeWriteError(
            f"cannot make the folder {folder}: {error.strerror}", remedy="choose another with -o"
        ) from error
    return folder
