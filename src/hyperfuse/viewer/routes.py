"""What the page asks when somebody works: files of the folder, uploads, estimating, fusing, scores, overviews,
downloads.

What the page asks while somebody looks: the scene, tiles, legends, spectra, metadata.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import published
from hyperfuse.io.files import open_explained
from hyperfuse.viewer.colours import Look
from hyperfuse.viewer.jobs import Job
from hyperfuse.viewer.layers import colour_table
from hyperfuse.viewer.scene import ROLES
from hyperfuse.viewer.session import Session, SessionHere, WorkersHere, describe_file, offers_overviews
from hyperfuse.viewer.spectra import MOST_CORNERS, region_spectra, spectra_at
from hyperfuse.viewer.tiles import TilePlace
from hyperfuse.viewer.work import (
    FuseChoices,
    Pair,
    UncertaintyChoices,
    build_overviews,
    consistency_scores,
    estimation,
    fusion,
    offered_methods,
    reference_scores,
    uncertainty,
)

router = APIRouter(prefix="/api")
LookHere = Annotated[Look, Query()]
FEWEST_STOPS = 16


class Files(BaseModel):
    """Names below the folder to open together."""

    model_config = ConfigDict(extra="forbid")

    fused: str | None = Field(default=None, max_length=1000)
    hsi: str | None = Field(default=None, max_length=1000)
    msi: str | None = Field(default=None, max_length=1000)
    reference: str | None = Field(default=None, max_length=1000)
    uncertainty: str | None = Field(default=None, max_length=1000)


class Region(BaseModel):
    model_config = ConfigDict(extra="forbid")

    corners: list[tuple[float, float]] = Field(max_length=MOST_CORNERS)
    """Row and column on the page."""


@router.get("/scene")
async def get_scene(request: Request, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    scene = session.scene
    about: dict[str, Any] = {
        "folder": session.folder.root.name,
        "upload_limit": request.app.state.upload_limit,
        "jobs": [job.as_dict() for job in session.jobs.running()],
    }
    if scene is None:
        return about | {"number": 0, "images": []}
    return about | await workers.run(lambda: session.describe(scene))


@router.post("/scene")
async def open_files(files: Files, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        paths = {role: session.folder.cube(name) for role in ROLES if (name := getattr(files, role))}
        return session.describe(session.open(paths))

    return await workers.run(work)


@router.get("/tiles/{number}/{layer}/{level}/{row}/{column}")
async def get_tile(
    number: int,
    layer: str,
    level: int,
    row: int,
    column: int,
    look: LookHere,
    session: SessionHere,
    workers: WorkersHere,
) -> Response:
    tile = await workers.run(lambda: session.tile(number, layer, TilePlace(level, row, column), look))
    return Response(tile.png, media_type="image/png", headers={"x-complete": f"{tile.complete:.3f}"})


@router.get("/legends/{number}/{layer}")
async def get_legend(
    number: int, layer: str, look: LookHere, session: SessionHere, workers: WorkersHere
) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        scene = session.require_scene(number)
        shown = session.layer(scene, layer, look)
        limits, linked = session.limits(scene, layer, look)
        return {
            "label": shown.label,
            "unit": shown.unit,
            "limits": limits.tolist(),
            "linked": linked,
            "stops": _stops(look.colours) if shown.planes == 1 else None,
        }

    return await workers.run(work)


@router.get("/spectra/{number}")
async def get_spectra(
    number: int,
    row: Annotated[float, Query(allow_inf_nan=False)],
    column: Annotated[float, Query(allow_inf_nan=False)],
    session: SessionHere,
    workers: WorkersHere,
) -> dict[str, Any]:
    scene = session.require_scene(number)
    found = await workers.run(lambda: spectra_at(scene, row, column))
    return {"row": row, "column": column, "spectra": [spectrum.as_dict() for spectrum in found]}


@router.post("/regions/{number}")
async def get_region(number: int, region: Region, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    scene = session.require_scene(number)
    found = await workers.run(lambda: region_spectra(scene, region.corners))
    return {"corners": region.corners, "spectra": [spectrum.as_dict() for spectrum in found]}


@router.get("/images/{role}")
async def get_metadata(role: str, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    scene = session.require_scene()
    if role not in scene.images:
        raise OptionError(f"image {role[:40]!r}", f"one of {', '.join(scene.images)}")
    image = scene.images[role]
    return await workers.run(lambda: {"file": str(image.path), "role": role} | describe_file(image.cube, image.found))


def _stops(colours: str) -> list[str]:
    table = colour_table(colours)[:: 255 // (FEWEST_STOPS - 1)]
    return [f"rgb({red} {green} {blue})" for red, green, blue in table.tolist()]


class OverviewRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: str = Field(max_length=40)


@router.get("/files")
async def list_files(session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    files = await workers.run(session.folder.files)
    return {"folder": session.folder.root.name, "files": [vars(file) for file in files]}


@router.get("/files/summary")
async def summarise_file(path: str, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    return await workers.run(lambda: describe_file(*open_explained(session.folder.cube(path))))


@router.get("/files/picture")
async def picture_of_file(path: str, session: SessionHere, workers: WorkersHere) -> Response:
    png = await workers.run(lambda: session.quick_look(session.folder.cube(path)))
    return Response(png, media_type="image/png")


@router.put("/uploads/{name}", status_code=201)
async def upload_file(name: str, request: Request, session: SessionHere) -> dict[str, Any]:
    path = session.folder.upload(name)
    with published(path) as temporary, temporary.open("wb") as target:
        async for chunk in request.stream():
            await anyio.to_thread.run_sync(target.write, chunk)
    return {"path": path.relative_to(session.folder.root).as_posix()}


@router.get("/download")
async def download_file(path: str, session: SessionHere) -> FileResponse:
    file = session.folder.download(path)
    return FileResponse(file, filename=file.name, media_type="application/octet-stream")


@router.get("/methods")
async def list_methods(session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    return await workers.run(lambda: offered_methods(session.folder))


@router.post("/estimate")
async def estimate(pair: Pair, session: SessionHere) -> dict[str, Any]:
    work = estimation(session.folder, pair)
    return session.jobs.start("estimate", lambda cancel: work()).as_dict()


@router.post("/fuse")
async def fuse(wanted: FuseChoices, session: SessionHere) -> dict[str, Any]:
    work = fusion(session.folder, wanted)
    return session.jobs.start("fuse", lambda cancel: work()).as_dict()


@router.post("/uncertainty")
async def find_uncertainty(wanted: UncertaintyChoices, session: SessionHere) -> dict[str, Any]:
    work = uncertainty(session.folder, wanted)
    return session.jobs.start("uncertainty", lambda cancel: work()).as_dict()


@router.post("/scores")
async def score(session: SessionHere) -> dict[str, Any]:
    scene = session.require_scene()

    def work(cancel: threading.Event) -> dict[str, Any]:
        if "reference" in scene.images:
            return {"reference": reference_scores(scene)}
        return {"consistency": consistency_scores(scene, lambda: session.observed_pair(scene))}

    return session.jobs.start("scores", work).as_dict()


@router.post("/overviews")
async def overviews(wanted: OverviewRequest, session: SessionHere) -> dict[str, Any]:
    scene = session.require_scene()
    image = scene.images.get(wanted.role)
    if image is None or not offers_overviews(image):
        raise OptionError(f"overviews of {wanted.role!r}", "a large GeoTIFF without them", "")

    def work(cancel: threading.Event) -> dict[str, Any]:
        build_overviews(image.path, max(image.height, image.width), cancel)
        if session.scene is scene:
            session.open({role: other.path for role, other in scene.images.items()})
        return {"role": image.role}

    return session.jobs.start("overviews", work).as_dict()


@router.get("/jobs/{name}")
async def get_job(name: str, session: SessionHere) -> dict[str, Any]:
    return _job(session, name).as_dict()


@router.post("/jobs/{name}/cancel")
async def cancel_job(name: str, session: SessionHere) -> dict[str, Any]:
    job = _job(session, name)
    job.cancel.set()
    return job.as_dict()


def _job(session: Session, name: str) -> Job:
    job = session.jobs.find(name)
    if job is None:
        raise OptionError("an unknown job", "one that was started on this page")
    return job
