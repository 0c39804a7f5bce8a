"""The server: everything behind one gate, every mistake answered in words.

The files of the page itself, held in memory: what is not among them does not exist.

The one door to the page: this machine, this port, this token; small requests, in good time; strict headers on every
reply.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hyperfuse.errors import HyperfuseError
from hyperfuse.viewer import routes as routes_view
from hyperfuse.viewer import routes as routes_work
from hyperfuse.viewer.folder import Folder, OutsideFolderError
from hyperfuse.viewer.jobs import Complaint, TooManyJobsError, complaint_of, keep_warnings_as_notes
from hyperfuse.viewer.session import BusyError, GoneError, Session, Workers

FOLDER = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
START = "index.html"

router = APIRouter()
_files = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in FOLDER.rglob("*") if path.suffix in TYPES}


@router.get("/{name:path}")
async def get_file(name: str) -> Response:
    name = name or START
    if name not in _files:
        raise HTTPException(404, "nothing of this name")
    return Response(_files[name], media_type=TYPES[Path(name).suffix])


HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
READING = ("GET", "HEAD")
WRITING = ("POST", "PUT")
SMALL_BODY = 2**20
SECONDS_WITHOUT_DATA = 20.0
# A body that comes more slowly than this, on one machine, is meant to hold a connection.
SLOWEST_BYTES_PER_SECOND = 64 * 2**10
UPLOADS = "/api/uploads/"


class Gate:
    """ASGI middleware. The token is the first part of every path: it is nowhere in a cookie, so no other site can use
    it.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], upload_limit: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {host.encode() for host in hosts}
        self._origins = {b"http://" + host for host in self._hosts}
        self._upload_limit = upload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.encode() for name in HEADERS}
                kept = [(name, value) for name, value in message["headers"] if name.lower() not in own]
                message["headers"] = kept + [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refuse(send_strictly, *refusal)
            return
        _, _, rest = scope["path"].removeprefix("/").partition("/")
        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}
        limit = self._upload_limit if inner["path"].startswith(UPLOADS) else SMALL_BODY
        if _declared_length(scope) > limit:
            await refuse(send_strictly, 413, _too_large(limit))
            return
        await self._app(inner, _LimitedBody(receive, limit), send_strictly)

    def _refusal(self, scope: Scope) -> tuple[int, Complaint] | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if headers.get(b"host", b"").lower() not in self._hosts:
            return 403, Complaint(
                got="a request for another host", expected="this machine's own address", remedy="use the printed URL"
            )
        method = scope["method"]
        if method not in (*READING, *WRITING):
            return 405, Complaint(got=f"method {method}", expected="GET, POST or PUT", remedy="")
        if method in WRITING and headers.get(b"origin", next(iter(self._origins))).lower() not in self._origins:
            return 403, Complaint(got="a request made by another page", expected="one made by this page", remedy="")
        given, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(given.encode("utf-8", "surrogatepass"), self._token) or not slash:
            return 403, Complaint(
                got="a wrong or missing token", expected="the token of this page", remedy="use the printed URL"
            )
        return None


class _LimitedBody:
    """Reads a request's body, up to a size, and neither for ever nor drop by drop."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._bytes = 0
        self._whole = False
        self._began = time.monotonic()

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._seconds_left())
        except TimeoutError as error:
            raise HTTPException(408, "the request did not arrive in time") from error
        self._whole = not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._limit:
            raise HTTPException(413, _too_large(self._limit)["got"])
        return message

    def _seconds_left(self) -> float:
        return self._began + SECONDS_WITHOUT_DATA + self._bytes / SLOWEST_BYTES_PER_SECOND - time.monotonic()


async def refuse(send: Send, status: int, complaint: Complaint) -> None:
    body = json.dumps(complaint).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _declared_length(scope: Scope) -> int:
    declared: Any = dict(scope["headers"]).get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else 0


def _too_large(limit: int) -> Complaint:
    size = f"{limit / 2**30:g} GB" if limit >= 2**30 else f"{limit / 2**20:g} MB"
    return Complaint(
        got="a request that is too large", expected=f"at most {size}", remedy="copy large files into the folder instead"
    )


UPLOAD_LIMIT = 4 * 2**30
STATUS: dict[type[HyperfuseError], int] = {
    OutsideFolderError: 403,
    GoneError: 410,
    TooManyJobsError: 429,
    BusyError: 503,
}


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
    app.include_router(router)
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
    return JSONResponse(
        Complaint(got=f"{where}: {first['msg']}"[:300], expected="a request as the page makes it", remedy=""), 400
    )


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        Complaint(got=str(error.detail), expected="a request as the page makes it", remedy=""), error.status_code
    )


async def _file_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(complaint_of(error), 400)


async def _left(request: Request, error: Exception) -> JSONResponse:
    """Whoever asked has gone in the middle of it; nobody reads this."""
    return JSONResponse(Complaint(got="half a request", expected="a whole one", remedy=""), 400)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(complaint_of(error), 500)
