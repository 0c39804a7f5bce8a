"""Serve the page on this machine alone, until interrupted.

Connections that say nothing: hung up on, so that nobody can hold all of them.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hyperfuse.errors import OptionError
from hyperfuse.viewer.app import create_app

SECONDS_FOR_A_HEAD = 10.0


class ImpatientProtocol(H11Protocol):
    """The server's own protocol bounds the time between two requests, but neither before the first nor within a
    request's head.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_a_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._waiting is None:
            self._wait_for_a_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_a_head(self) -> None:
        self._waiting = self.loop.call_later(SECONDS_FOR_A_HEAD, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 200
SECONDS_IDLE = 30
SECONDS_TO_END = 2
LARGEST_HEADER = 16 * 2**10


def serve(
    images: Mapping[str, Path],
    folder: Path,
    *,
    port: int = 0,
    open_browser: bool = True,
    announce: Callable[[str], None] = lambda url: None,
) -> None:
    """Port 0 takes any that is free. `announce` gets the URL, token included, when the page can be opened."""
    page = PageServer(images, folder, port)

    def tell() -> None:
        announce(page.url)
        if open_browser:
            # Starting a browser may take seconds, and must not hold up the server that it will ask.
            threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()

    try:
        page.run(tell)
    except KeyboardInterrupt:
        # Control-C is the ordinary way to end it.
        return


class PageServer:
    """The page at `url`, from `run` until `stop`, which may be called from another thread."""

    def __init__(self, images: Mapping[str, Path], folder: Path, port: int = 0) -> None:
        self._listener = _listen(port)
        port = self._listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.url = f"http://{LOOPBACK}:{port}/{token}/"
        try:
            app = create_app(images, folder, token, hosts=(f"{LOOPBACK}:{port}", f"localhost:{port}"))
        except BaseException:
            self._listener.close()
            raise
        self._server = _Server(
            uvicorn.Config(
                app,
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

    def run(self, started: Callable[[], None] = lambda: None) -> None:
        self._server.tell = started
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._listener.close()

    def stop(self) -> None:
        self._server.should_exit = True


class _Server(uvicorn.Server):
    tell: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.tell()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        listener.close()
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(f"port {port}: {text}", "a free port", "leave --port out to take any") from error
    return listener
