"""What the page asks when somebody works: files of the folder, uploads, estimating, fusing, scores, overviews, downloads."""

from __future__ import annotations

import threading
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from hyperfuse.cubes.files import open_explained
from hyperfuse.cubes.publishing import published
from hyperfuse.errors import OptionError
from hyperfuse.viewer.description import describe_file, offers_overviews
from hyperfuse.viewer.fusing import FuseChoices, Pair, UncertaintyChoices, estimation, fusion, offered_methods, uncertainty
from hyperfuse.viewer.jobs import Job
from hyperfuse.viewer.overview_building import build_overviews
from hyperfuse.viewer.scores import consistency_scores, reference_scores
from hyperfuse.viewer.session import Session
from hyperfuse.viewer.workers import SessionHere, WorkersHere

router = APIRouter(prefix="/api")


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
