"""`hyperfuse demo`: a real scene, degraded, fused by every method, scored, drawn, written.

The scene is Indian Pines, see `indian_pines`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xarray as xr
from rich.table import Table

from hyperfuse.config import DEFAULT_METHOD, FuseConfig, OutputConfig
from hyperfuse.data.datasets import indian_pines
from hyperfuse.fusion.run import estimate, run_fusion
from hyperfuse.io.atomic import make_folder
from hyperfuse.io.files import write_cube
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.metrics.evaluation import Evaluation, evaluate
from hyperfuse.physics.simulate import Simulation, simulate
from hyperfuse.progress import listening, progress
from hyperfuse.reporting.figures import fusion_figure, view_fused, view_inputs
from hyperfuse.reporting.tables import score_table

SCALE = 4
# The bands of 10 m.
SRF = "Sentinel-2A:B2,B3,B4,B8"


@dataclass(frozen=True)
class DemoResult:
    table: Table
    scores: dict[str, Evaluation]
    verdict: str
    """How the default method does beside the others."""
    files: dict[str, Path]


def run_demo(folder: Path) -> DemoResult:
    """Simulate a pair from Indian Pines, fuse it blind with every method, and write scores, figure and cubes."""
    make_folder(folder)
    with warnings.catch_warnings():
        # 145 is not a multiple of the scale: the loss of one row and column needs no warning here.
        warnings.filterwarnings("ignore", message="reference cropped")
        pair = simulate(indian_pines(), SCALE, SRF)
    fused, seconds = _fuse_by_method(pair)
    scores = {name: evaluate(cube, pair.reference, scale=SCALE) for name, cube in fused.items()}
    bands = pair.reference.sizes["band"]
    title = f"Indian Pines (AVIRIS, {bands} bands) x{SCALE}, {SRF.replace(':', ' ')}, only the pair known"
    cubes = {"hsi": pair.hsi, "msi": pair.msi, "reference": pair.reference}
    description = json.dumps({name: round(each.psnr_db, 2) for name, each in scores.items()})
    inputs = view_inputs(**cubes)
    views = {name: view_fused(cube, pair.reference, inputs.pixels) for name, cube in fused.items()}
    picture = fusion_figure(folder / "demo.png", title, inputs, views, description)
    written = {
        name: write_cube(cube, folder / f"{name}.tif", config=OutputConfig(overwrite=True))
        for name, cube in {"fused": fused[DEFAULT_METHOD], **cubes}.items()
    }
    files = {"picture": picture, **written}
    return DemoResult(score_table(scores, seconds, title), scores, _verdict(scores), files)


def _verdict(scores: Mapping[str, Evaluation]) -> str:
    own = scores[DEFAULT_METHOD].psnr_db
    other = max(scores.keys() - {DEFAULT_METHOD}, key=lambda name: scores[name].psnr_db)
    gain, interpolated = own - scores[other].psnr_db, own - scores["bicubic"].psnr_db
    begin = f"{DEFAULT_METHOD}, the default, whose result is fused.tif, gains {interpolated:.1f} dB over interpolation"
    if gain >= 0:
        return f"{begin} and {gain:.2f} dB over {other}, the next best"
    return (
        f"{begin}; on this scene {other} is {-gain:.2f} dB better, but over many sensors and scales the default is "
        "(docs/benchmarks.md); --method auto compares them on a pair"
    )


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
