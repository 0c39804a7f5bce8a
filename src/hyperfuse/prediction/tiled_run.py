"""All tiles of a plan, computed or taken from an interrupted run, into the target, which appears when the last one is in it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import xarray as xr

from hyperfuse.cubes.files import created_cube
from hyperfuse.cubes.stored_values import Clipping
from hyperfuse.cubes.undisturbed import CubeWriter
from hyperfuse.errors import Cancelled, CubeWriteError, OptionError
from hyperfuse.prediction.cluster import fused_on_cluster
from hyperfuse.prediction.scene_job import FusedTile, SceneJob
from hyperfuse.prediction.scene_notes import fusion_from, notes_of, observation_from, straightening_from
from hyperfuse.prediction.scene_plan import ScenePlan, learn_scene
from hyperfuse.prediction.tile_engine import StageSeconds, fused_in_threads
from hyperfuse.prediction.tile_plan import Tile
from hyperfuse.prediction.work_folder import Journal, WorkFolder
from hyperfuse.progress import progress

# Formats whose files are made in one piece, from all values at once; MATLAB's newer version is not.
MADE_IN_MEMORY = (".npz",)
MATLAB = ".mat"


def run_tiles(plan: ScenePlan, folder: WorkFolder, journal: Journal | None, seconds: StageSeconds) -> ScenePlan:
    """`journal` is that of the run to be continued, if any. Returns the plan that was carried out."""
    plan = _for_streaming(plan)
    plan, job, template = _begun(plan, folder) if journal is None else _continued(plan, folder, journal)
    finished, clipping = folder.finished(), Clipping()
    with (
        _keeping_tiles(folder, len(plan.tiles)),
        _created(plan, template, folder) as writer,
        progress("Fusing", total=len(plan.tiles), unit="tiles", done=len(finished)) as advance,
    ):
        for tile, fused in _all_tiles(plan, job, folder, finished, seconds):
            is_new = tile.index not in finished
            with seconds.spent_on("writing"):
                if is_new:
                    folder.store(tile, fused.block)
                writer.write(tile.rows, tile.columns, fused.block)
            clipping.count(fused.values, fused.clipped)
            if is_new:
                advance(1, tile.pixels)
    folder.remove()
    clipping.report(template)
    return plan


def _begun(plan: ScenePlan, folder: WorkFolder) -> tuple[ScenePlan, SceneJob, xr.DataArray]:
    record = plan.record()
    template = plan.template(record)
    fusion = learn_scene(plan)
    folder.begin(
        Journal.of(plan.request, plan.memory.tile_size, record), notes_of(plan.scene.observation, fusion, plan.scene.straightening)
    )
    return plan, plan.job(fusion, template), template


def _continued(plan: ScenePlan, folder: WorkFolder, journal: Journal) -> tuple[ScenePlan, SceneJob, xr.DataArray]:
    notes = folder.scene()
    straightening, aligned = straightening_from(notes), plan.scene.aligned
    pair = aligned if straightening is None else straightening.straightened(aligned)
    plan = replace(plan, scene=replace(plan.scene, observation=observation_from(notes), pair=pair))
    plan = plan.in_tiles_of((journal.tile_size[0], journal.tile_size[1]))
    template = plan.template(journal.record)
    return plan, plan.job(fusion_from(notes, plan.scene.network), template), template


def _all_tiles(
    plan: ScenePlan, job: SceneJob, folder: WorkFolder, finished: set[int], seconds: StageSeconds
) -> Iterator[tuple[Tile, FusedTile]]:
    """In the order of the plan, whatever is finished already: the file is then the same, byte for byte."""
    computed = _computed(plan, job, [tile for tile in plan.tiles if tile.index not in finished], seconds)
    try:
        for tile in plan.tiles:
            if tile.index not in finished:
                yield next(computed)
                continue
            block = folder.load(tile, len(job.bands), job.stored_as.dtype)
            yield tile, job.fuse_tile(tile) if block is None else FusedTile(block, 0, 0)
    finally:
        computed.close()


def _computed(
    plan: ScenePlan, job: SceneJob, missing: Sequence[Tile], seconds: StageSeconds
) -> Generator[tuple[Tile, FusedTile], None, None]:
    request = plan.request
    if request.workers is None and request.cluster is None:
        return fused_in_threads(job, missing, plan.memory.tiles_at_once, seconds)
    return fused_on_cluster(job, missing, seconds, workers=request.workers, address=request.cluster)


@contextmanager
def _created(plan: ScenePlan, template: xr.DataArray, folder: WorkFolder) -> Iterator[CubeWriter]:
    request = plan.request
    with created_cube(
        request.target,
        template,
        output=request.stored,
        options=request.options,
        cog=request.cog,
        overwrite=request.overwrite,
        inputs=list(request.inputs.values()),
        workplace=folder.workplace,
    ) as writer:
        yield writer


@contextmanager
def _keeping_tiles(folder: WorkFolder, total: int) -> Iterator[None]:
    """Whoever is told that a run ended early is also told what is left of it."""
    try:
        yield
    except (KeyboardInterrupt, Cancelled) as end:
        raise type(end)(f"stopped; {_what_is_left(folder, total)}") from end
    except CubeWriteError as error:
        words = str(error).replace("nothing was left behind; ", "")
        raise CubeWriteError(words, remedy=_what_is_left(folder, total)) from error
    except BaseException:
        _what_is_left(folder, total)
        raise


def _what_is_left(folder: WorkFolder, total: int) -> str:
    count = len(folder.finished())
    if count == 0:
        folder.remove()
        return "nothing was left behind"
    return f"{count} of {total} tiles are kept in {folder.path}, --resume continues"


def _for_streaming(plan: ScenePlan) -> ScenePlan:
    """Refuse formats that need all values at once, or take their sister that does not."""
    request, suffix = plan.request, plan.request.target.suffix.lower()
    if suffix in MADE_IN_MEMORY:
        raise OptionError(
            f"{suffix} for a scene larger than the memory", "a format that is written in parts", "choose .tif or .zarr"
        )
    if suffix != MATLAB or any(name.upper() == "VERSION" for name in request.options):
        return plan
    return replace(plan, request=replace(request, options={**request.options, "VERSION": "7.3"}))
