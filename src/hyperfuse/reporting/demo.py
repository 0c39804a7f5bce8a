"""`hyperfuse demo`: a real scene, degraded, fused by every method, scored, drawn, written.

The scene is Indian Pines, see `indian_pines`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import xarray as xr
from rich.table import Table

from hyperfuse.config import FuseConfig, OutputConfig, SimulateConfig
from hyperfuse.data.datasets import indian_pines
from hyperfuse.errors import CubeWriteError
from hyperfuse.fusion.run import estimate, run_fusion
from hyperfuse.io.files import write_cube
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.metrics.evaluation import evaluate
from hyperfuse.physics.simulate import Simulation, simulate
from hyperfuse.progress import listening, progress
from hyperfuse.reporting.figures import fusion_figure
from hyperfuse.reporting.tables import score_table

SCALE = 4
SRF = "Sentinel-2A"


@dataclass(frozen=True)
class DemoResult:
    table: Table
    files: dict[str, Path]


def run_demo(folder: Path) -> DemoResult:
    """Simulate a pair from Indian Pines, fuse it blind with every method, and write scores, figure and cubes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot make the folder {folder}: {error.strerror}"
        raise CubeWriteError(reason, remedy="choose another with -o") from error
    with warnings.catch_warnings():
        # 145 pixels are no multiple of the scale: the loss of one row and column needs no warning here.
        warnings.filterwarnings("ignore", message="reference cropped")
        # Some Sentinel-2 bands lie in the water vapour absorption, which the corrected scene leaves out.
        pair = simulate(indian_pines(), SCALE, SRF, config=SimulateConfig(skip_uncovered=True))
    fused, seconds = _fuse_by_method(pair)
    scores = {name: evaluate(cube, pair.reference, scale=SCALE) for name, cube in fused.items()}
    best = max(scores, key=lambda name: scores[name].psnr_db)
    bands = pair.reference.sizes["band"]
    title = f"Indian Pines (AVIRIS, {bands} bands) x{SCALE}, {SRF} bands, blind"
    cubes = {"hsi": pair.hsi, "msi": pair.msi, "reference": pair.reference}
    picture = fusion_figure(folder / "demo.png", **cubes, fused_by_method=fused, scale=SCALE, title=title)
    written = {
        name: write_cube(cube, folder / f"{name}.tif", config=OutputConfig(overwrite=True))
        for name, cube in {"fused": fused[best], **cubes}.items()
    }
    return DemoResult(score_table(scores, seconds, title), {"picture": picture, **written})


def _fuse_by_method(pair: Simulation) -> tuple[dict[str, xr.DataArray], dict[str, float]]:
    """What `fuse` does, with one estimation for all methods."""
    fused, seconds = {}, {}
    with progress("Estimating, fusing", len(METHODS) + 1) as advance:
        observation = estimate(pair.hsi, pair.msi)
        advance(1)
        for name in METHODS:
            with listening(lambda report: None):  # one bar for all methods
                run = run_fusion(pair.hsi, pair.msi, None, FuseConfig(method=name), observation=observation)
            assert run.cube is not None  # without an output file
            seconds[name], fused[name] = run.seconds, run.cube
            advance(1)
    return fused, seconds
