"""The HTTP interface of the page: its files, the open images, spectra, files of the folder and jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.io.atomic import published
from hyperfuse.io.files import open_explained
from hyperfuse.viewer.colours import Rendering
from hyperfuse.viewer.folder import Folder, OutsideFolderError
from hyperfuse.viewer.images import ROLES
from hyperfuse.viewer.jobs import (
    ErrorMessage,
    FuseRequest,
    Pair,
    TooManyJobsError,
    consistency_scores,
    error_message,
    estimation,
    fusion,
    keep_warnings_as_notes,
    offered_methods,
    reference_scores,
)
from hyperfuse.viewer.overviews import build_overviews
from hyperfuse.viewer.session import GoneError, Session, describe_file, offers_overviews
from hyperfuse.viewer.spectra import MOST_CORNERS, region_spectra, spectra_at
from hyperfuse.viewer.tiles import TilePlace, colour_table, highest_level

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
COLOUR_STOPS = 16
# Requests at work, and threads: one that timed out still has its thread.
MOST_REQUESTS = 4
MOST_THREADS = 12
SECONDS_OF_WORK = 30.0

Answer = TypeVar("Answer")
Json = dict[str, Any]


class BusyError(HyperfuseError):
    """A request that took too long; repeating it may find the work done."""


STATUS: dict[type[Exception], int] = {
    OutsideFolderError: 403,
    GoneError: 410,
    TooManyJobsError: 429,
    BusyError: 503,
    HyperfuseError: 400,
    OSError: 400,
    Exception: 500,
}


class Workers:
    """Runs the work of requests in threads, few at a time and not for ever."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(MOST_REQUESTS)
        self._threads = anyio.CapacityLimiter(MOST_THREADS)

    async def run(self, work: Callable[[], Answer]) -> Answer:
        try:
            async with asyncio.timeout(SECONDS_OF_WORK), self._turns:
                return await anyio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)
        except TimeoutError as error:
            raise BusyError(f"no answer within {SECONDS_OF_WORK:g} s", "less work", "try again in a moment") from error


def _session(request: Request) -> Session:
    session: Session = request.app.state.session
    return session


def _workers(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers


SessionOf = Annotated[Session, Depends(_session)]
WorkersOf = Annotated[Workers, Depends(_workers)]
RenderingOf = Annotated[Rendering, Query()]
FileName = Annotated[str | None, Field(max_length=1000)]


class Files(BaseModel):
    """Names below the folder to open together."""

    model_config = ConfigDict(extra="forbid")

    fused: FileName = None
    hsi: FileName = None
    msi: FileName = None
    reference: FileName = None
    uncertainty: FileName = None


class Region(BaseModel):
    """Rows and columns of the page."""

    model_config = ConfigDict(extra="forbid")

    corners: list[tuple[float, float]] = Field(max_length=MOST_CORNERS)


class OverviewRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: str = Field(max_length=40)


api = APIRouter(prefix="/api")
pages = APIRouter()
# In memory: what is not among them does not exist.
_files = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in PAGE.rglob("*") if path.suffix in TYPES}


@pages.get("/{name:path}")
async def get_page_file(name: str) -> Response:
    name = name or "index.html"
    if name not in _files:
        raise HTTPException(404, "nothing of this name")
    return Response(_files[name], media_type=TYPES[Path(name).suffix])


@api.get("/scene")
async def get_scene(request: Request, session: SessionOf, workers: WorkersOf) -> Json:
    view = session.view
    about = {
        "folder": session.folder.root.name,
        "upload_limit": request.app.state.upload_limit,
        "jobs": [job.as_dict() for job in session.jobs.running()],
    }
    if view is None:
        return about | {"number": 0, "images": []}
    return about | await workers.run(lambda: view.describe(session.folder))


@api.post("/scene")
async def open_files(files: Files, session: SessionOf, workers: WorkersOf) -> Json:
    def work() -> Json:
        paths = {role: session.folder.cube(name) for role in ROLES if (name := getattr(files, role))}
        return session.open(paths).describe(session.folder)

    return await workers.run(work)


@api.get("/tiles/{number}/{layer}/{level}/{row}/{column}")
async def get_tile(
    number: int,
    layer: str,
    level: int,
    row: int,
    column: int,
    rendering: RenderingOf,
    session: SessionOf,
    workers: WorkersOf,
) -> Response:
    view = session.require_view(number)
    tile = await workers.run(lambda: view.tile(layer, TilePlace(level, row, column), rendering))
    return Response(tile.png, media_type="image/png", headers={"x-complete": f"{tile.complete:.3f}"})


@api.get("/legends/{number}/{layer}")
async def get_legend(number: int, layer: str, rendering: RenderingOf, session: SessionOf, workers: WorkersOf) -> Json:
    view = session.require_view(number)

    def work() -> Json:
        shown = view.layer(layer, rendering)
        limits, linked = view.limits(layer, rendering)
        colours = colour_table(rendering.colours)[:: 255 // (COLOUR_STOPS - 1)].tolist()
        return {
            "label": shown.label,
            "unit": shown.unit,
            "limits": limits.tolist(),
            "linked": linked,
            "stops": [f"rgb({r} {g} {b})" for r, g, b in colours] if shown.planes == 1 else None,
        }

    return await workers.run(work)


@api.get("/spectra/{number}")
async def get_spectra(
    number: int,
    row: Annotated[float, Query(allow_inf_nan=False)],
    column: Annotated[float, Query(allow_inf_nan=False)],
    session: SessionOf,
    workers: WorkersOf,
) -> Json:
    opened = session.require_view(number).opened
    spectra = await workers.run(lambda: spectra_at(opened, row, column))
    return {"row": row, "column": column, "spectra": [spectrum.as_dict() for spectrum in spectra]}


@api.post("/regions/{number}")
async def get_region(number: int, region: Region, session: SessionOf, workers: WorkersOf) -> Json:
    opened = session.require_view(number).opened
    spectra = await workers.run(lambda: region_spectra(opened, region.corners))
    return {"corners": region.corners, "spectra": [spectrum.as_dict() for spectrum in spectra]}


@api.get("/images/{role}")
async def get_metadata(role: str, session: SessionOf, workers: WorkersOf) -> Json:
    images = session.require_view().opened.images
    if role not in images:
        raise OptionError(f"image {role[:40]!r}", f"one of {', '.join(images)}")
    image = images[role]
    return await workers.run(lambda: {"file": str(image.path), "role": role} | describe_file(image.cube, image.notes))


@api.get("/files")
async def list_files(session: SessionOf, workers: WorkersOf) -> Json:
    return {"folder": session.folder.root.name, "files": await workers.run(session.folder.files)}


@api.get("/files/summary")
async def summarise_file(path: str, session: SessionOf, workers: WorkersOf) -> Json:
    return await workers.run(lambda: describe_file(*open_explained(session.folder.cube(path))))


@api.get("/files/picture")
async def picture_of_file(path: str, session: SessionOf, workers: WorkersOf) -> Response:
    png = await workers.run(lambda: session.thumbnail(session.folder.cube(path)))
    return Response(png, media_type="image/png")


@api.put("/uploads/{name}", status_code=201)
async def upload_file(name: str, request: Request, session: SessionOf) -> Json:
    path = session.folder.upload(name)
    with published(path) as temporary, temporary.open("wb") as target:
        async for chunk in request.stream():
            await anyio.to_thread.run_sync(target.write, chunk)
    return {"path": path.relative_to(session.folder.root).as_posix()}


@api.get("/download")
async def download_file(path: str, session: SessionOf) -> FileResponse:
    file = session.folder.download(path)
    return FileResponse(file, filename=file.name, media_type="application/octet-stream")


@api.get("/methods")
async def list_methods(session: SessionOf, workers: WorkersOf) -> Json:
    return await workers.run(lambda: offered_methods(session.folder))


@api.post("/estimate")
async def estimate(pair: Pair, session: SessionOf) -> Json:
    work = estimation(session.folder, pair)
    return session.jobs.start("estimate", lambda cancel: work())


@api.post("/fuse")
async def fuse(body: FuseRequest, session: SessionOf) -> Json:
    work = fusion(session.folder, body)
    return session.jobs.start("fuse", lambda cancel: work())


@api.post("/uncertainty")
async def compute_uncertainty(body: FuseRequest, session: SessionOf) -> Json:
    work = fusion(session.folder, body, uncertainty=True)
    return session.jobs.start("uncertainty", lambda cancel: work())


@api.post("/scores")
async def score(session: SessionOf) -> Json:
    view = session.require_view()

    def work(cancel: threading.Event) -> Json:
        if "reference" in view.opened.images:
            return {"reference": reference_scores(view.opened)}
        return {"consistency": consistency_scores(view.opened, view.observed_pair)}

    return session.jobs.start("scores", work)


@api.post("/overviews")
async def overviews(body: OverviewRequest, session: SessionOf) -> Json:
    view = session.require_view()
    image = view.opened.images.get(body.role)
    if image is None or not offers_overviews(image):
        raise OptionError(f"overviews of {body.role!r}", "a large GeoTIFF without them", "")

    def work(cancel: threading.Event) -> Json:
        build_overviews(image.path, highest_level(max(image.height, image.width)), cancel)
        if session.view is view:
            session.open({role: other.path for role, other in view.opened.images.items()})
        return {"role": image.role}

    return session.jobs.start("overviews", work)


@api.get("/jobs/{name}")
async def get_job(name: str, session: SessionOf) -> Json:
    return session.jobs.find(name).as_dict()


@api.post("/jobs/{name}/cancel")
async def cancel_job(name: str, session: SessionOf) -> Json:
    job = session.jobs.find(name)
    job.cancel.set()
    return job.as_dict()


def create_app(images: Mapping[str, Path], folder: Path, upload_limit: int) -> FastAPI:
    """The page without the gate; `images` by role may lie anywhere, everything else below `folder`."""
    session = Session(Folder.at(folder))
    if images:
        session.open(images)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan, redirect_slashes=False)
    app.state.session = session
    app.state.workers = Workers()
    app.state.upload_limit = upload_limit
    app.include_router(api)
    app.include_router(pages)
    for kind in (RequestValidationError, HTTPException, ClientDisconnect, HyperfuseError, OSError, Exception):
        app.add_exception_handler(kind, _error_response)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    keep_warnings_as_notes()
    # While the browser starts, compute what it will request first.
    threading.Thread(target=app.state.session.prepare, name="prepare", daemon=True).start()
    yield
    await anyio.to_thread.run_sync(app.state.session.jobs.stop_all)


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        got, status = f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"[:300], 400
    elif isinstance(error, HTTPException):
        got, status = str(error.detail), error.status_code
    elif isinstance(error, ClientDisconnect):
        # Nobody reads this.
        got, status = "half a request", 400
    else:
        status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
        return JSONResponse(error_message(error), status)
    return JSONResponse(ErrorMessage(got=got, expected="a request as the page makes it", remedy=""), status)
