"""Fusing in a real browser: choose and drop files, estimate, fuse to the end, cancel, and error messages."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.viewer.browsers import drawn, launched_browser, opened_page
from tests.viewer.served_page import served
from tests.viewer.viewer_scenes import write_pair

from hyperfuse.fusion import run as fusion
from hyperfuse.io.files import open_cube
from hyperfuse.progress import progress


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_pair(folder, side=64)
    return folder


@pytest.fixture
def folder(pair: Path, tmp_path: Path) -> Path:
    for name in ("hsi.tif", "msi.tif"):
        shutil.copy(pair / name, tmp_path)
    (tmp_path / "broken.tif").write_text("no image at all")
    return tmp_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, folder: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Started without an image: the page begins with fusing."""
    with served({}, folder) as url, opened_page(browser, url, request.node.name) as page:
        page.wait_for_selector("#fuse-start")
        yield page


def choose(page: Any, hsi: str = "hsi.tif", msi: str = "msi.tif") -> None:
    page.select_option("#fuse-hsi", hsi)
    page.select_option("#fuse-msi", msi)


def test_fuse_to_the_end(page: Any, folder: Path) -> None:
    assert page.locator("#empty").is_visible()
    choose(page)
    page.wait_for_selector("#card-hsi:has-text('33 bands, 16 × 16 pixels')")
    page.wait_for_selector("#card-msi:has-text('4 bands, 64 × 64 pixels')")
    page.locator("#estimate").click()
    page.wait_for_selector("#estimation:has-text('PSF')")
    page.select_option("#fuse-method", "gsa")
    page.fill("#fuse-output", "result.tif")
    page.locator("#fuse-options summary", has_text="Output").click()
    page.select_option("#option-dtype", "float64")
    page.locator("#fuse-start").click()
    page.locator("#fuse-view").click()
    page.wait_for_function("() => document.title.startsWith('result.tif')")
    drawn(page)
    assert not page.locator("#empty").is_visible()
    assert page.locator("#layer-a option").all_inner_texts()[:3] == ["Fused", "HSI", "MSI"]
    with page.expect_download() as download:
        page.locator("a.download").click()
    assert Path(download.value.path()).read_bytes() == (folder / "result.tif").read_bytes()
    result = open_cube(folder / "result.tif")
    assert (result.shape, result.dtype) == ((33, 64, 64), "float64")


def test_cancel(page: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any, **options: Any) -> None:
        with progress("Fusing", total=2000, unit="tiles") as advance:
            for _ in range(2000):
                time.sleep(0.02)
                advance(1, pixels=1000)

    monkeypatch.setattr(fusion, "run_fusion", slow)
    choose(page)
    page.locator("#fuse-start").click()
    page.wait_for_selector("text=/of 2000 tiles .* left/")
    assert page.locator("#fuse-start").is_disabled()
    page.reload()
    page.wait_for_selector("text=/of 2000 tiles .* left/")
    page.locator("button.cancel").click()
    page.wait_for_selector("#fuse-cancelled")
    assert page.locator("#fuse-start").is_enabled() or not page.locator("#fuse-hsi").input_value()
    assert sorted(path.name for path in folder.iterdir()) == ["broken.tif", "hsi.tif", "msi.tif"]


def test_error_messages(page: Any) -> None:
    choose(page, hsi="broken.tif")
    page.wait_for_selector("#card-hsi .error:has-text('cannot be read')")
    choose(page, hsi="msi.tif", msi="hsi.tif")
    page.wait_for_selector("text=The MSI has more bands than the HSI")
    page.locator("#fuse-start").click()
    page.wait_for_selector("#panel-fuse .error:has-text('swap the two images')")
    page.locator("text=Exchange them").click()
    page.wait_for_selector("#card-hsi:has-text('33 bands')")
    page.fill("#fuse-output", "../outside.tif")
    page.locator("#fuse-start").click()
    page.wait_for_selector("#panel-fuse .error:has-text('outside of the folder')")


def test_drop_two_files(page: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("hsi.tif", "msi.tif"):
        shutil.copy(folder / name, elsewhere / f"dropped_{name}")
    page.set_input_files("#drop-input", [elsewhere / "dropped_msi.tif", elsewhere / "dropped_hsi.tif"])
    page.wait_for_selector("#card-hsi:has-text('33 bands')")
    page.wait_for_selector("#card-msi:has-text('4 bands')")
    assert page.locator("#fuse-hsi").input_value() == "dropped_hsi.tif"
    assert (folder / "dropped_hsi.tif").read_bytes() == (folder / "hsi.tif").read_bytes()
    (elsewhere / "note.exe").write_text("x")
    page.set_input_files("#drop-input", elsewhere / "note.exe")
    page.wait_for_selector("#uploads .error:has-text('note.exe')")


def test_open_files_and_server_that_ended(page: Any) -> None:
    page.locator("#tab-files").click()
    page.select_option("#open-fused", "broken.tif")
    page.locator("#open-files").click()
    page.wait_for_selector("#panel-files .error:has-text('cannot be read')")
    page.select_option("#open-fused", "msi.tif")
    page.locator("#open-files").click()
    page.wait_for_function("() => document.title.startsWith('msi.tif')")
    drawn(page)
    page.route(re.compile("api/spectra"), lambda route: route.abort())
    page.locator("#canvas").click()
    page.wait_for_selector("#messages:has-text('does not answer')")
