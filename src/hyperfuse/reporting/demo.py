"""`hyperfuse demo`: a real scene, degraded, fused by every method, scored, drawn, written."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import xarray as xr
from rich.table import Table

from hyperfuse.cubes.files import write_cube
from hyperfuse.degradation.simulation import Simulation, simulate_pair
from hyperfuse.errors import CubeWriteError
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.prediction.aligned_pair import align_pair
from hyperfuse.prediction.fuse_pair import ObservationHints, fuse_pair, observe
from hyperfuse.prediction.fused_cube import fused_cube
from hyperfuse.progress import progress
from hyperfuse.quality.evaluation import Evaluation, evaluate
from hyperfuse.reporting.demo_scene import indian_pines
from hyperfuse.reporting.fusion_figure import fusion_figure
from hyperfuse.reporting.tables import score_table

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
        raise CubeWriteError(f"cannot make the folder {folder}: {error.strerror}", remedy="choose another with -o") from error
    return folder
