"""The one way in: two images, in memory or in files, become one fused cube.

All tiles of a plan, computed or taken from an interrupted run, into the target, which appears when the last one is in
it.

A request carried out: in one piece where the scene is small, else tile by tile, in this process or in many.

Whatever ends a run, the target is whole or as it was before; finished tiles stay, and the next run may continue from
them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import Cancelled, CubeWriteError, OptionError
from hyperfuse.fusion.engine import FusedTile, SceneJob, StageSeconds, fused_in_threads, fused_on_cluster
from hyperfuse.fusion.journal import Journal, WorkFolder
from hyperfuse.fusion.memory import bounded_pools
from hyperfuse.fusion.observe import ObservationHints
from hyperfuse.fusion.output import fused_cube
from hyperfuse.fusion.overlap import INTERSECTION, Area
from hyperfuse.fusion.pair import align_pair
from hyperfuse.fusion.plan import (
    ScenePlan,
    fuse_whole,
    fusion_from,
    learn_scene,
    notes_of,
    observation_from,
    plan_scene,
    prepare_scene,
    warp_from,
)
from hyperfuse.fusion.request import MSI, FusionChoices, FusionRequest, PathLike
from hyperfuse.fusion.tiles import Tile
from hyperfuse.io.atomic import CubeWriter, target_lock
from hyperfuse.io.cube import as_cube
from hyperfuse.io.files import check_target, created_cube, open_cube, write_cube
from hyperfuse.io.output import AS_IT_IS, Clipping, OutputConfig
from hyperfuse.io.provenance import provenance
from hyperfuse.methods.catalogue import DEFAULT
from hyperfuse.physics.srf import SRFSpec
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
        Journal.of(plan.request, plan.memory.tile_size, record),
        notes_of(plan.scene.observation, fusion, plan.scene.warp),
    )
    return plan, plan.job(fusion, template), template


def _continued(plan: ScenePlan, folder: WorkFolder, journal: Journal) -> tuple[ScenePlan, SceneJob, xr.DataArray]:
    notes = folder.scene()
    warp, aligned = warp_from(notes), plan.scene.aligned
    pair = aligned if warp is None else warp.warped(aligned)
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
        work_folder=folder.workplace,
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


@dataclass(frozen=True)
class FusionRun:
    """What a run did: how many tiles and pixels, and where the time went."""

    path: Path
    tiles: int
    pixels: int
    seconds: StageSeconds = field(default_factory=StageSeconds)


def run_fusion(request: FusionRequest) -> FusionRun:
    """What cannot be written is said before the work, not after it."""
    check_target(
        request.target, output=request.stored, options=request.options, cog=request.cog, overwrite=request.overwrite
    )
    with target_lock(request.target), bounded_pools():
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
            warnings.warn(
                f"{count} finished tiles of an interrupted run are thrown away; --resume would keep them", stacklevel=2
            )
        folder.remove()
        return None
    if journal is None:
        warnings.warn(f"nothing of {request.target} to continue: the run begins anew", stacklevel=2)
        return None
    difference = Journal.of(request, (0, 0), {}).difference(journal)
    if difference is not None:
        raise OptionError(
            f"--resume with {difference}",
            "the inputs and options of the interrupted run",
            "mend them, or leave out --resume",
        )
    return journal


Image = xr.DataArray | NDArray[Any] | PathLike


def fuse(
    hsi: Image,
    msi: Image,
    *,
    method: str = DEFAULT,
    weights: PathLike | None = None,
    estimate: bool = True,
    srf: SRFSpec | None = None,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] | None = None,
    local_shift: bool = False,
    trust: str = MSI,
    consistency: bool = False,
    extent: str = INTERSECTION,
    bounds: tuple[float, float, float, float] | None = None,
    bounds_crs: str | None = None,
    mask: Image | None = None,
    hsi_mask: Image | None = None,
) -> xr.DataArray:
    """Fuse a coarse hyperspectral image with a fine multispectral one, in memory.

    Both may be cubes, (band, y, x) arrays or files. The result lies on the MSI's grid and has the HSI's bands, data
    type, scale and nodata. Without georeference on both images they are taken to cover the same extent.

    `method` is a name from `hyperfuse methods`, `weights` the folder of a trained network to use instead. Shift, point
    spread, response and noise are estimated from the pair; what is known may be given (`psf_fwhm` and `shift` in fine
    pixels), and without `estimate` the georeference is trusted and the point spread taken to be as wide as a coarse
    pixel. Where the two images turn out to be shifted against each other, the result lies where the one named by
    `trust` ("msi" or "hsi") says. With `local_shift` the shift may differ from place to place. `consistency` makes a
    method's result agree once more with both images, as far as their noise allows.

    The result covers what both images show, or with `extent` "msi" or "hsi" all that one of them shows, on the MSI's
    grid continued; `bounds` (xmin, ymin, xmax, ymax, in the MSI's CRS or in `bounds_crs`) cut it further. Where `mask`
    is not 0 the MSI is not used, where `hsi_mask` is not 0 the HSI; both may lie on any grid.
    """
    hints, area = ObservationHints(estimate, srf, psf_fwhm, shift), Area(extent, bounds, bounds_crs)
    choices = FusionChoices(method, weights, hints, trust, consistency, area, local_shift)
    hsi_cube, msi_cube = as_image(hsi), as_image(msi)
    msi_mask, coarse_mask = (None if image is None else as_image(image) for image in (mask, hsi_mask))
    with progress("Fusing", total=4) as advance:
        pair = align_pair(
            hsi_cube, msi_cube, area, mask=msi_mask, hsi_mask=coarse_mask, known_offset=choices.known_offset
        )
        advance(1)
        scene = prepare_scene(pair, hsi_cube, choices, advance)
        fused = fuse_whole(scene)
        advance(1)
    return fused_cube(fused, scene.pair, hsi_cube, provenance(method=scene.method_used, weights=scene.weights_digest))


def fuse_files(
    hsi: PathLike,
    msi: PathLike,
    output: PathLike,
    *,
    method: str = DEFAULT,
    weights: PathLike | None = None,
    estimate: bool = True,
    srf: SRFSpec | None = None,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] | None = None,
    local_shift: bool = False,
    trust: str = MSI,
    consistency: bool = False,
    extent: str = INTERSECTION,
    bounds: tuple[float, float, float, float] | None = None,
    bounds_crs: str | None = None,
    mask: PathLike | None = None,
    hsi_mask: PathLike | None = None,
    hsi_variable: str | None = None,
    msi_variable: str | None = None,
    hsi_band_axis: int | None = None,
    msi_band_axis: int | None = None,
    stored: OutputConfig = AS_IT_IS,
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
    ram_gb: float | None = None,
    resume: bool = False,
    workers: int | None = None,
    cluster: str | None = None,
) -> Path:
    """The same from file to file, for scenes of any size.

    What is not said at `fuse`: `stored` are bands and numbers of the output, `options` those of its format. The peak of
    the process's memory stays below `ram_gb` (half of the machine's memory unless given): a scene that does not fit is
    fused in tiles, with statistics from windows spread over it. Finished tiles are kept beside the output until it is
    whole, and `resume` continues an interrupted run from them. `workers` processes of this machine, or the Dask
    `cluster` at an address, work on tiles together; each of them keeps to `ram_gb`.

    Progress and a request to stop: `progress.listening`. What would be done, without doing it: `scene_plan.plan_scene`.
    """
    request = FusionRequest(
        hsi,
        msi,
        output,
        method=method,
        weights=weights,
        estimate=estimate,
        srf=srf,
        psf_fwhm=psf_fwhm,
        shift=shift,
        local_shift=local_shift,
        trust=trust,
        consistency=consistency,
        extent=extent,
        bounds=bounds,
        bounds_crs=bounds_crs,
        mask=mask,
        hsi_mask=hsi_mask,
        hsi_variable=hsi_variable,
        msi_variable=msi_variable,
        hsi_band_axis=hsi_band_axis,
        msi_band_axis=msi_band_axis,
        stored=stored,
        options=options or {},
        cog=cog,
        overwrite=overwrite,
        ram_gb=ram_gb,
        resume=resume,
        workers=workers,
        cluster=cluster,
    )
    return run_fusion(request).path


def as_image(image: Image) -> xr.DataArray:
    return open_cube(image) if isinstance(image, str | os.PathLike) else as_cube(image)
