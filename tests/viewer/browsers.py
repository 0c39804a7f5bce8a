"""Debian's chromium, driven by Playwright; a message on the console fails the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# The browser itself logs a failed request (what the page makes of it is for the test to see), and how tests read
# pixels.
OF_THE_BROWSER = ("the server responded with a status of 4", "net::ERR_FAILED", "willReadFrequently")
# A busy machine may be slow; only a page that is stuck waits for so long.
PATIENCE_MS = 180_000
DESK, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}


@contextmanager
def launched_browser() -> Iterator[Any]:
    """Skips the test where there is no browser."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need playwright: pip install playwright"
    )
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("the browser tests need chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened_page(browser: Any, url: str, name: str, **settings: Any) -> Iterator[Any]:
    """The page when it is ready. It must ask nobody but its own server, and leave nothing on the console."""
    context = browser.new_context(**({"viewport": DESK, "color_scheme": "dark"} | settings))
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on(
        "request",
        lambda request: messages.append(request.url) if not request.url.startswith((url, "blob:", "data:")) else None,
    )
    try:
        page.goto(url)
        page.wait_for_selector("html[data-ready=yes]")
        yield page
        if folder := os.environ.get("HYPERFUSE_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}.png")
        unexpected = [text for text in messages if not any(part in text for part in OF_THE_BROWSER)]
        assert not unexpected, unexpected
    finally:
        context.close()


def drawn(page: Any) -> None:
    """Wait until every tile is on the map."""
    page.wait_for_selector("#canvas[data-whole=true]", state="attached")


def painted(page: Any) -> None:
    """Wait until what was changed is on the screen: a frame is requested, then drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def zoomed(page: Any, action: Callable[[], object]) -> None:
    """Do something, and wait until the map has another zoom."""
    before = page.locator("#canvas").get_attribute("data-zoom")
    action()
    page.wait_for_function("(before) => document.getElementById('canvas').dataset.zoom !== before", arg=before)
    drawn(page)


def colour_at(page: Any, across: float, down: float) -> list[int]:
    """Red, green, blue and alpha of the map, at shares of its width and height."""
    script = """([across, down]) => {
        const canvas = document.getElementById("canvas"), context = canvas.getContext("2d");
        const [x, y] = [Math.round(across * canvas.width), Math.round(down * canvas.height)];
        return [...context.getImageData(x, y, 1, 1).data];
    }"""
    return list(page.evaluate(script, [across, down]))


def click_map(page: Any, across: float, down: float, **how: Any) -> None:
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    page.locator("#canvas").click(position={"x": across * box["width"], "y": down * box["height"]}, **how)


def drag_map(page: Any, *places: tuple[float, float]) -> None:
    box = page.locator("#canvas").bounding_box()
    points = [(box["x"] + across * box["width"], box["y"] + down * box["height"]) for across, down in places]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()
