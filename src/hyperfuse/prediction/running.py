"""A request carried out: in one piece where the scene is small, else tile by tile, in this process or in many.

Whatever ends a run, the target is whole or as it was before; finished tiles stay, and the next run may continue from them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

from hyperfuse.cubes.files import refuse_target, write_cube
from hyperfuse.cubes.stored_values import Clipping
from hyperfuse.cubes.target_lock import only_run_on
from hyperfuse.errors import OptionError
from hyperfuse.prediction.fused_cube import fused_cube
from hyperfuse.prediction.fusion_request import FusionRequest
from hyperfuse.prediction.memory import bounded_pools
from hyperfuse.prediction.prepared_scene import fuse_whole
from hyperfuse.prediction.scene_plan import ScenePlan, plan_scene
from hyperfuse.prediction.tile_engine import StageSeconds
from hyperfuse.prediction.tiled_run import run_tiles
from hyperfuse.prediction.work_folder import Journal, WorkFolder
from hyperfuse.progress import progress


@dataclass(frozen=True)
class FusionRun:
    """What a run did: how many tiles and pixels, and where the time went."""

    path: Path
    tiles: int
    pixels: int
    seconds: StageSeconds = field(default_factory=StageSeconds)


def run_fusion(request: FusionRequest) -> FusionRun:
    """What cannot be written is said before the work, not after it."""
    refuse_target(request.target, output=request.stored, options=request.options, cog=request.cog, overwrite=request.overwrite)
    with only_run_on(request.target), bounded_pools():
        folder = WorkFolder(request.target)
        journal = _to_continue(folder, request)
        plan = plan_scene(request, None if journal is None else journal.method)
        seconds = StageSeconds()
        if plan.memory.whole and journal is None:
            _run_whole(plan, seconds)
        else:
            plan = run_tiles(plan, folder, journal, seconds)
        return FusionRun(request.target, len(plan.tiles), sum(tile.pixels for tile in plan.tiles), seconds)


def _run_whole(plan: ScenePlan, seconds: StageSeconds) -> None:
    request, scene, clipping = plan.request, plan.scene, Clipping()
    with progress("Fusing", total=len(plan.tiles), unit="tiles") as advance:
        with seconds.spent_on("computing"):
            fused = fused_cube(fuse_whole(scene), scene.pair, scene.hsi, plan.record(), request.stored, clipping)
        advance(1, fused.sizes["y"] * fused.sizes["x"])
    with seconds.spent_on("writing"):
        write_cube(
            fused,
            request.target,
            output=request.stored.for_the_file(),
            options=request.options,
            cog=request.cog,
            overwrite=request.overwrite,
            inputs=list(request.inputs.values()),
        )
    clipping.report(fused)


def _to_continue(folder: WorkFolder, request: FusionRequest) -> Journal | None:
    """The journal of an interrupted run, if it is to be continued; else what is left of one is cleared away."""
    journal = folder.journal()
    if not request.resume:
        if journal is not None:
            count = len(folder.finished())
            warnings.warn(f"{count} finished tiles of an interrupted run are thrown away; --resume would keep them", stacklevel=2)
        folder.remove()
        return None
    if journal is None:
        warnings.warn(f"nothing of {request.target} to continue: the run begins anew", stacklevel=2)
        return None
    difference = Journal.of(request, (0, 0), {}).difference(journal)
    if difference is not None:
        raise OptionError(
            f"--resume with {difference}", "the inputs and options of the interrupted run", "mend them, or leave out --resume"
        )
    return journal
