"""The page on a true server in a thread, as `hyperfuse view` serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from hyperfuse.viewer.server import PageServer

# A busy machine may be slow; only what is stuck waits for so long.
PATIENCE_SECONDS = 180


@contextmanager
def served(images: Mapping[str, Path], folder: Path) -> Iterator[str]:
    """Yields the URL with its token."""
    page = PageServer(images, folder)
    thread = threading.Thread(target=page.run, daemon=True)
    thread.start()
    try:
        yield page.url
    finally:
        page.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def finished(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """The job when it has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while job["state"] in ("running", "stopping"):
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
        job = client.get(f"api/jobs/{job['job']}").json()
    return job
