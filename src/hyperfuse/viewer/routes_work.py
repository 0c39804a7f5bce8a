"""What the page asks when somebody works: files of the folder, uploads, estimating, fusing, scores, overviews, downloads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from hyperfuse.cubes.envi import find_data
from hyperfuse.cubes.files import open_cube, open_explained
from hyperfuse.cubes.output_options import OutputOptions
from hyperfuse.cubes.publishing import published
from hyperfuse.errors import OptionError
from hyperfuse.viewer.description import describe_file, offers_overviews
from hyperfuse.viewer.jobs import Job
from hyperfuse.viewer.overview_building import build_overviews
from hyperfuse.viewer.scores import consistency_scores, reference_scores
from hyperfuse.viewer.session import Session
from hyperfuse.viewer.workers import SessionHere, WorkersHere

router = APIRouter(prefix="/api")
Name = str
# An estimation gets as much memory as that of a fusion, and never less than this.
LEAST_BYTES = 2**28


class Pair(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hsi: Name = Field(min_length=1, max_length=1000)
    msi: Name = Field(min_length=1, max_length=1000)


class FuseRequest(Pair):
    """The choices of `hyperfuse fuse`."""

    output: Name = Field(min_length=1, max_length=1000)
    method: str | None = Field(default=None, max_length=40)
    weights: Name | None = Field(default=None, max_length=1000)
    estimate: bool = True
    consistency: bool = False
    trust: Literal["msi", "hsi"] = "msi"
    overwrite: bool = False
    overviews: bool = False
    resume: bool = False
    ram_gb: float | None = Field(default=None, gt=0, le=1e5, allow_inf_nan=False)


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
    return await workers.run(lambda: _methods() | {"networks": session.folder.networks()})


@router.post("/estimate")
async def estimate(pair: Pair, session: SessionHere) -> dict[str, Any]:
    hsi, msi = session.folder.cube(pair.hsi), session.folder.cube(pair.msi)
    return session.jobs.start("estimate", lambda cancel: _estimated(hsi, msi)).as_dict()


@router.post("/fuse")
async def fuse(wanted: FuseRequest, session: SessionHere) -> dict[str, Any]:
    hsi, msi = session.folder.cube(wanted.hsi), session.folder.cube(wanted.msi)
    weights = None if wanted.weights is None else session.folder.network(wanted.weights)
    output = session.folder.output(wanted.output, overwrite=wanted.overwrite)
    return session.jobs.start("fuse", lambda cancel: _fused(session, hsi, msi, weights, output, wanted)).as_dict()


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


def _methods() -> dict[str, Any]:
    from hyperfuse.methods.catalogue import AUTO, DEFAULT, METHODS

    automatic = {"name": AUTO, "line": "the one that gives the HSI back best when the pair is degraded once more", "reference": ""}
    named = [{"name": name, "line": method.line, "reference": method.reference} for name, method in METHODS.items()]
    return {"methods": sorted([automatic, *named], key=lambda method: method["name"] != DEFAULT), "chosen": DEFAULT}


def _estimated(hsi: Path, msi: Path) -> dict[str, Any]:
    from hyperfuse.prediction.aligned_pair import align_pair
    from hyperfuse.prediction.fuse_pair import ObservationHints, observe
    from hyperfuse.prediction.memory import available_bytes, default_ram_gb
    from hyperfuse.prediction.scene_plan import SHARE_OF_PREPARING

    hsi_cube = open_cube(hsi)
    budget = int(SHARE_OF_PREPARING * available_bytes(default_ram_gb()))
    return observe(align_pair(hsi_cube, open_cube(msi)), hsi_cube, ObservationHints(), max(LEAST_BYTES, budget)).summary()


def _fused(session: Session, hsi: Path, msi: Path, weights: Path | None, output: Path, wanted: FuseRequest) -> dict[str, Any]:
    from hyperfuse.methods.catalogue import DEFAULT
    from hyperfuse.prediction import fuse_scene

    chosen = wanted.method or DEFAULT
    written = fuse_scene.fuse_files(
        hsi,
        msi,
        output,
        method=chosen,
        weights=weights,
        estimate=wanted.estimate,
        consistency=wanted.consistency,
        trust=wanted.trust,
        overwrite=wanted.overwrite,
        stored=OutputOptions(overviews=wanted.overviews),
        resume=wanted.resume,
        ram_gb=wanted.ram_gb,
    )
    method = str(open_cube(written).attrs.get("hyperfuse_method", chosen))
    return {
        "hsi": wanted.hsi,
        "msi": wanted.msi,
        "output": written.relative_to(session.folder.root).as_posix(),
        "bytes": sum(path.stat().st_size for path in (_files_of(written) or written.rglob("*"))),
        "method": method,
        "downloads": [session.folder.name_of(path) for path in _files_of(written)],
    }


def _files_of(written: Path) -> list[Path]:
    """What can be downloaded of it: ENVI's header and data; a Zarr store is a folder."""
    if written.is_dir():
        return []
    return [written, find_data(written)] if written.suffix.lower() == ".hdr" else [written]
