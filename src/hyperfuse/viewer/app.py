"""The HTTP interface of the page: its files, the open images, spectra, files of the folder and jobs."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Body, Depends, FastAPI, Query, Request, Response
from fastapi import Path as UrlPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from pydantic import FiniteFloat
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hyperfuse.config import PairInputConfig
from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.io.atomic import published
from hyperfuse.io.files import open_explained
from hyperfuse.viewer import jobs
from hyperfuse.viewer.colours import Rendering
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.images import AS_STORED, region_spectra, spectra_at
from hyperfuse.viewer.jobs import FileName, FuseRequest, Pair, error_message
from hyperfuse.viewer.overviews import build_overviews
from hyperfuse.viewer.session import Session, describe_file, offers_overviews
from hyperfuse.viewer.tiles import TilePlace, colour_table, highest_level

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
COLOUR_STOPS = 16

Json = dict[str, Any]
Role = Literal["fused", "hsi", "msi", "reference", "uncertainty", "change_mask"]
Corners = Annotated[list[tuple[FiniteFloat, FiniteFloat]], Body(embed=True, min_length=3, max_length=2000)]
Position = Annotated[float, Query(allow_inf_nan=False)]
TileIndex = Annotated[int, UrlPath(ge=0, le=2**24)]
RenderingOf = Annotated[Rendering, Query()]


class ThreadRoute(APIRoute):
    """Runs a handler that is not a coroutine in a thread of the session."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        @functools.wraps(endpoint)
        async def handle(*arguments: Any, session: Session, **others: Any) -> Any:
            return await session.run(lambda: endpoint(*arguments, session=session, **others))

        super().__init__(path, endpoint if inspect.iscoroutinefunction(endpoint) else handle, **options)


api = APIRouter(prefix="/api", route_class=ThreadRoute)
pages = APIRouter()
# In memory: what is not among them does not exist.
_files = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in PAGE.rglob("*") if path.suffix in TYPES}


def _session(request: Request) -> Session:
    session: Session = request.app.state.session
    return session


SessionOf = Annotated[Session, Depends(_session)]


@pages.get("/{name:path}")
async def get_page_file(name: str) -> Response:
    name = name or "index.html"
    if name not in _files:
        raise HTTPException(404, "nothing of this name")
    return Response(_files[name], media_type=TYPES[Path(name).suffix])


@api.get("/scene")
def get_scene(request: Request, session: SessionOf) -> Json:
    about = {
        "folder": session.folder.root.name,
        "upload_limit": request.app.state.upload_limit,
        "jobs": [job.as_dict() for job in session.jobs.running()],
    }
    view = session.view
    return about | ({"number": 0, "images": []} if view is None else view.describe(session.folder))


@api.post("/scene")
def open_files(files: dict[Role, FileName], session: SessionOf) -> Json:
    paths: dict[str, Path] = {role: session.folder.cube(name) for role, name in files.items()}
    return session.open(paths).describe(session.folder)


@api.get("/tiles/{number}/{layer}/{level}/{row}/{column}")
def get_tile(
    number: int,
    layer: str,
    level: TileIndex,
    row: TileIndex,
    column: TileIndex,
    rendering: RenderingOf,
    session: SessionOf,
) -> Response:
    tile = session.require_view(number).tile(layer, TilePlace(level, row, column), rendering)
    return Response(tile.png, media_type="image/png", headers={"x-complete": f"{tile.complete:.3f}"})


@api.get("/legends/{number}/{layer}")
def get_legend(number: int, layer: str, rendering: RenderingOf, session: SessionOf) -> Json:
    view = session.require_view(number)
    shown = view.layer(layer, rendering)
    limits, linked = view.limits(layer, rendering)
    colours = colour_table(rendering.colours)[:: 255 // (COLOUR_STOPS - 1)].tolist()
    stops = [f"rgb({red} {green} {blue})" for red, green, blue in colours] if shown.planes == 1 else None
    return {"label": shown.label, "unit": shown.unit, "limits": limits.tolist(), "linked": linked, "stops": stops}


@api.get("/spectra/{number}")
def get_spectra(number: int, row: Position, column: Position, session: SessionOf) -> Json:
    spectra = spectra_at(session.require_view(number).opened, row, column)
    return {"row": row, "column": column, "spectra": [spectrum.as_dict() for spectrum in spectra]}


@api.post("/regions/{number}")
def get_region(number: int, corners: Corners, session: SessionOf) -> Json:
    spectra = region_spectra(session.require_view(number).opened, corners)
    return {"corners": corners, "spectra": [spectrum.as_dict() for spectrum in spectra]}


@api.get("/images/{role}")
def get_metadata(role: str, session: SessionOf) -> Json:
    images = session.require_view().opened.images
    if role not in images:
        raise OptionError(f"image {role[:40]!r}", f"one of {', '.join(images)}")
    return {"file": str(images[role].path), "role": role} | describe_file(images[role].cube, images[role].notes)


@api.get("/files")
def list_files(session: SessionOf) -> Json:
    return {"folder": session.folder.root.name, "files": session.folder.files()}


@api.get("/files/summary")
def summarise_file(path: str, session: SessionOf) -> Json:
    return describe_file(*open_explained(session.folder.cube(path)))


@api.get("/files/picture")
def get_thumbnail(path: str, session: SessionOf) -> Response:
    return Response(session.thumbnail(session.folder.cube(path)), media_type="image/png")


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
def list_methods(session: SessionOf) -> Json:
    return jobs.offered_methods(session.folder)


@api.post("/estimate")
async def estimate(pair: Pair, session: SessionOf) -> Json:
    return session.jobs.start("estimate", jobs.estimation(session.folder, pair))


@api.post("/fuse")
async def fuse(body: FuseRequest, session: SessionOf) -> Json:
    return session.jobs.start("fuse", jobs.fusion(session.folder, body))


@api.post("/uncertainty")
async def compute_uncertainty(body: FuseRequest, session: SessionOf) -> Json:
    return session.jobs.start("uncertainty", jobs.fusion(session.folder, body, uncertainty=True))


@api.post("/scores")
async def compute_scores(session: SessionOf) -> Json:
    view = session.require_view()
    return session.jobs.start("scores", lambda cancel: jobs.scores(view.opened, view.observed_pair))


@api.post("/overviews")
async def add_overviews(role: Annotated[str, Body(embed=True, max_length=40)], session: SessionOf) -> Json:
    view = session.require_view()
    image = view.opened.images.get(role)
    if image is None or not offers_overviews(image):
        raise OptionError(f"overviews of {role!r}", "a large GeoTIFF without them", "")

    def work(cancel: threading.Event) -> Json:
        build_overviews(image.path, highest_level(image), cancel)
        if session.view is view:
            session.open({other.role: other.path for other in view.opened.images.values()})
        return {"role": role}

    return session.jobs.start("overviews", work)


@api.get("/jobs/{name}")
async def get_job(name: str, session: SessionOf) -> Json:
    return session.jobs.find(name).as_dict()


@api.post("/jobs/{name}/cancel")
async def cancel_job(name: str, session: SessionOf) -> Json:
    job = session.jobs.find(name)
    job.cancel.set()
    return job.as_dict()


def create_app(
    images: Mapping[str, Path], folder: Path, upload_limit: int, inputs: PairInputConfig = AS_STORED
) -> FastAPI:
    """The page without the gate; `images` by role may lie anywhere, everything else below `folder`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan, redirect_slashes=False)
    app.state.session = Session(Folder.at(folder))
    app.state.upload_limit = upload_limit
    if images:
        app.state.session.open(images, inputs)
    app.include_router(api)
    app.include_router(pages)
    for kind in (RequestValidationError, HTTPException, ClientDisconnect, HyperfuseError, OSError, Exception):
        app.add_exception_handler(kind, _error_response)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    jobs.keep_warnings_as_notes()
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
        expected = isinstance(error, HyperfuseError | OSError)
        return JSONResponse(error_message(error), getattr(error, "status", 400 if expected else 500))
    return JSONResponse(error_message(OptionError(got, "a request as the page makes it")), status)
