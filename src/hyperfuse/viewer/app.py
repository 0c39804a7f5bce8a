"""The server: everything behind one gate, every mistake answered in words."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from hyperfuse.errors import HyperfuseError
from hyperfuse.viewer import page_files, routes_view, routes_work
from hyperfuse.viewer.complaints import Complaint, complaint_of
from hyperfuse.viewer.folder import Folder, OutsideFolderError
from hyperfuse.viewer.gate import Gate
from hyperfuse.viewer.jobs import TooManyJobsError, keep_warnings_as_notes
from hyperfuse.viewer.session import GoneError, Session
from hyperfuse.viewer.workers import BusyError, Workers

UPLOAD_LIMIT = 4 * 2**30
STATUS: dict[type[HyperfuseError], int] = {OutsideFolderError: 403, GoneError: 410, TooManyJobsError: 429, BusyError: 503}


def create_app(
    images: Mapping[str, Path], folder: Path, token: str, *, hosts: Iterable[str], upload_limit: int = UPLOAD_LIMIT
) -> ASGIApp:
    """`images` are opened at once, by role, and may lie anywhere; everything else must lie below `folder`.

    Only requests to `hosts` ("127.0.0.1:PORT") whose path begins with the token are answered.
    """
    session = Session(Folder.at(folder))
    if images:
        session.open(images)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan, redirect_slashes=False)
    app.state.session = session
    app.state.workers = Workers()
    app.state.upload_limit = upload_limit
    app.include_router(routes_view.router)
    app.include_router(routes_work.router)
    app.include_router(page_files.router)
    app.add_exception_handler(HyperfuseError, _own_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OSError, _file_error)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unexpected_error)
    return Gate(app, token, hosts, upload_limit)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    keep_warnings_as_notes()
    # While the browser starts, what it will ask first is made ready.
    threading.Thread(target=app.state.session.prepare, name="prepare", daemon=True).start()
    yield
    await anyio.to_thread.run_sync(app.state.session.close)


async def _own_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(complaint_of(error), STATUS.get(type(error), 400))  # type: ignore[arg-type]


async def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse(Complaint(got=f"{where}: {first['msg']}"[:300], expected="a request as the page makes it", remedy=""), 400)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(Complaint(got=str(error.detail), expected="a request as the page makes it", remedy=""), error.status_code)


async def _file_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(complaint_of(error), 400)


async def _left(request: Request, error: Exception) -> JSONResponse:
    """Whoever asked has gone in the middle of it; nobody reads this."""
    return JSONResponse(Complaint(got="half a request", expected="a whole one", remedy=""), 400)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(complaint_of(error), 500)
