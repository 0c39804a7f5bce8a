"""Serve the page on this machine alone, until interrupted: this port, this token, small requests in good time."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import h11
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hyperfuse.config import PairInputConfig
from hyperfuse.errors import OptionError
from hyperfuse.io.files import FORMATS
from hyperfuse.io.isolation import start_server
from hyperfuse.io.spool import private_folder
from hyperfuse.viewer.app import create_app
from hyperfuse.viewer.images import AS_STORED
from hyperfuse.viewer.jobs import error_message

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 200
SECONDS_IDLE = 30
SECONDS_TO_END = 2
SECONDS_FOR_A_HEAD = 10.0
SECONDS_WITHOUT_DATA = 20.0
# A body that arrives more slowly than this on one machine is meant to hold a connection.
SLOWEST_BYTES_PER_SECOND = 64 * 2**10
LARGEST_HEADER = 16 * 2**10
SMALL_BODY = 2**20
UPLOAD_LIMIT = 4 * 2**30
UPLOADS = "/api/uploads/"
READING, WRITING = ("GET", "HEAD"), ("POST", "PUT")
REDIRECTION = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>hyperfuse</title>
<a href="{url}">hyperfuse</a>
"""
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


def serve(
    images: Mapping[str, Path],
    folder: Path,
    *,
    port: int = 0,
    open_browser: bool = True,
    inputs: PairInputConfig = AS_STORED,
    announce: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page until Control-C; `announce` receives its URL, and port 0 takes any free one.

    `images`, by role, are opened at once, with what `inputs` say about them, and may lie anywhere; files below `folder`
    can be opened, fused and written.

    The URL holds the token. Other users of the machine can read the arguments of every program, and perhaps a log: the
    browser, and output that is redirected, get a file that only this user can read and that leads to the page.
    """
    page = PageServer(images, folder, port, inputs)
    door = private_folder() / "open.html"
    door.touch(mode=0o600)
    door.write_text(REDIRECTION.format(url=page.url), encoding="utf-8")
    announce(page.url if sys.stdout.isatty() else door.as_uri())
    if open_browser:
        # Starting a browser may take seconds and must not block the server.
        threading.Thread(target=webbrowser.open, args=(door.as_uri(),), daemon=True).start()
    try:
        with suppress(KeyboardInterrupt):
            page.run()
    finally:
        door.unlink(missing_ok=True)


class PageServer:
    """The page at `url`, served from `run` until `stop`, which may be called from another thread."""

    def __init__(
        self, images: Mapping[str, Path], folder: Path, port: int = 0, inputs: PairInputConfig = AS_STORED
    ) -> None:
        self._listener = _listen(port)
        port = self._listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.url = f"http://{LOOPBACK}:{port}/{token}/"
        # Before there are threads.
        start_server({library for each in FORMATS.values() for library in each.libraries})
        try:
            app = create_app(images, folder, UPLOAD_LIMIT, inputs)
        except BaseException:
            self._listener.close()
            raise
        self._server = uvicorn.Server(
            uvicorn.Config(
                Gate(app, token, (f"{LOOPBACK}:{port}", f"localhost:{port}")),
                log_level="error",
                access_log=False,
                server_header=False,
                ws="none",
                http=ImpatientProtocol,
                timeout_keep_alive=SECONDS_IDLE,
                timeout_graceful_shutdown=SECONDS_TO_END,
                limit_concurrency=MOST_CONNECTIONS,
                h11_max_incomplete_event_size=LARGEST_HEADER,
            )
        )

    def run(self) -> None:
        with self._listener:
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True


def _listen(port: int) -> socket.socket:
    try:
        # From now on connections wait until the server accepts them.
        return socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        text = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        raise OptionError(f"port {port}: {text}", "a free port", "leave --port out to take any") from error


class ImpatientProtocol(H11Protocol):
    """Also bounds the time before a connection's first request and within a request's head, unlike uvicorn's own."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(SECONDS_FOR_A_HEAD, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Gate:
    """ASGI middleware that admits only requests to `hosts` whose path begins with the token, and adds strict headers.

    The token is part of the path and never in a cookie, so that no other site can use it.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        path = "/" + scope["path"].removeprefix("/").partition("/")[2]
        limit = UPLOAD_LIMIT if path.startswith(UPLOADS) else SMALL_BODY
        refusal = self._refusal(scope, limit)
        if refusal is None:
            inner = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
            await self._app(inner, _limited(receive, limit), send_strictly)
        else:
            status, error = refusal
            response = JSONResponse(error_message(error), status, headers={"connection": "close"})
            await response(scope, receive, send_strictly)

    def _refusal(self, scope: Scope, limit: int) -> tuple[int, OptionError] | None:
        """Why a request is not admitted."""
        headers, method = Headers(scope=scope), scope["method"]
        length, origin = headers.get("content-length", "0"), headers.get("origin")
        given, slash, _ = scope["path"].removeprefix("/").partition("/")
        if headers.get("host", "").lower() not in self._hosts:
            return 403, OptionError("a request for another host", "this machine's own address", "use the printed URL")
        if method not in (*READING, *WRITING):
            return 405, OptionError(f"method {method}", "GET, POST or PUT")
        if (
            method in WRITING
            and origin is not None
            and origin.lower() not in {f"http://{host}" for host in self._hosts}
        ):
            return 403, OptionError("a request made by another page", "one made by this page")
        if not secrets.compare_digest(given.encode("utf-8", "surrogatepass"), self._token) or not slash:
            return 403, OptionError("a wrong or missing token", "the token of this page", "use the printed URL")
        if length.isdecimal() and int(length) > limit:
            size = f"at most {limit / 2**20:g} MB"
            return 413, OptionError("a request that is too large", size, "copy large files into the folder instead")
        return None


def _limited(receive: Receive, limit: int) -> Receive:
    """Limit the size of a request's body and the time until it has arrived."""
    began, size, complete = time.monotonic(), 0, False

    async def read() -> Message:
        nonlocal size, complete
        if complete:
            return await receive()
        left = began + SECONDS_WITHOUT_DATA + size / SLOWEST_BYTES_PER_SECOND - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), left)
        except TimeoutError as error:
            raise HTTPException(408, "the request did not arrive in time") from error
        complete = not message.get("more_body", False)
        size += len(message.get("body", b""))
        if size > limit:
            raise HTTPException(413, "a request that is too large")
        return message

    return read
