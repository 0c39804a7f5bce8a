"""Viewing in a real browser: open, pan, click, swipe, change bands, dark and light, keys, phone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.viewer.browsers import (
    PHONE,
    click_map,
    colour_at,
    drag_map,
    drawn,
    launched_browser,
    opened_page,
    painted,
    zoomed,
)
from tests.viewer.served_page import served
from tests.viewer.viewer_scenes import BAD, write_pair

from hyperfuse.io.files import open_cube, write_cube


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewed")
    reference = write_pair(folder)
    noise = 0.02 * np.random.default_rng(0).standard_normal(reference.shape).astype(np.float32)
    write_cube(reference.copy(data=reference.values + noise), folder / "fused.tif")
    write_cube(reference.copy(data=np.full_like(reference.values, 0.02)), folder / "sure.tif")
    weight = reference.isel(band=[0]).copy(data=np.ones((1, *reference.shape[1:]), dtype=np.float32))
    weight[:, :30, :30] = 0.2
    write_cube(weight, folder / "weight.tif")
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    names = {role: role for role in ("fused", "hsi", "msi", "reference")}
    names |= {"uncertainty": "sure", "change_mask": "weight"}
    with served({role: folder / f"{name}.tif" for role, name in names.items()}, folder) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened_page(browser, url, request.node.name) as page:
        drawn(page)
        yield page


def place_of(page: Any) -> tuple[int, int]:
    """Row and column of the last pixel that was clicked, counted from 1."""
    text = page.locator(".pins li").last.inner_text()
    found = re.search(r"row (\d+), column (\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


def clicked(page: Any, across: float, down: float) -> tuple[int, int]:
    """The place whose spectra appear after a click; every place has a number of its own."""
    last = "[...document.querySelectorAll('.pins .what')].map((one) => parseInt(one.textContent)).at(-1) ?? 0"
    before = page.evaluate(last)
    click_map(page, across, down)
    page.wait_for_function(f"(before) => ({last}) > before", arg=before)
    return place_of(page)


def test_open(page: Any) -> None:
    assert "fused.tif" in page.title()
    assert page.locator("#badge-a").inner_text() == "Fused"
    assert colour_at(page, 0.5, 0.45)[3] == 255
    assert colour_at(page, 0.01, 0.5)[3] == 0
    assert page.locator("#scale-text").inner_text().endswith("m")


def test_pan_and_zoom(page: Any) -> None:
    row, column = clicked(page, 0.5, 0.5)
    drag_map(page, (0.5, 0.5), (0.4, 0.4))
    drawn(page)
    moved = clicked(page, 0.5, 0.5)
    assert moved[0] > row + 5
    assert moved[1] > column + 5
    assert clicked(page, 0.4, 0.4) == (row, column)

    before = clicked(page, 0.3, 0.3)
    zoomed(page, lambda: page.mouse.wheel(0, -600))
    assert clicked(page, 0.3, 0.3) == pytest.approx(before, abs=1)
    far = clicked(page, 0.6, 0.6)
    zoomed(page, lambda: page.locator("#zoom-fit").click())
    assert abs(clicked(page, 0.6, 0.6)[0] - before[0]) > abs(far[0] - before[0])


def test_keys_alone(page: Any) -> None:
    page.locator("#canvas").focus()
    for key in ("+", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    with page.expect_response(re.compile("api/spectra")):
        page.keyboard.press("Enter")
    page.wait_for_selector(".pins li")
    row, column = place_of(page)
    assert row > 48
    assert column > 48
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("s")
    assert page.locator("#divider").is_visible()
    page.locator("#divider").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#divider").get_attribute("aria-valuenow") == "48"
    page.locator("#tab-spectra").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-scores").is_visible()


def test_spectra_pins_region_and_exports(page: Any, folder: Path) -> None:
    row, column = clicked(page, 0.5, 0.4)
    page.keyboard.press("p")
    clicked(page, 0.4, 0.6)
    assert page.locator(".pins li").count() == 2
    clicked(page, 0.45, 0.6)
    assert page.locator(".pins li").count() == 2
    page.locator("#draw-region").click()
    with page.expect_response(re.compile("api/regions")):
        drag_map(page, (0.42, 0.3), (0.6, 0.3), (0.6, 0.5), (0.42, 0.5))
    page.wait_for_selector("text=region of")

    with page.expect_download() as download:
        page.locator("#save-csv").click()
    lines = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    fused = [line for line in lines if line["image"] == "fused" and line["place"] == f"row {row}, column {column}"]
    expected = open_cube(folder / "fused.tif").values[:, row - 1, column - 1]
    np.testing.assert_allclose([float(line["value"]) for line in fused], expected, rtol=1e-6)
    assert [index for index, line in enumerate(fused) if line["good"] == "0"] == list(BAD)
    assert {line["image"] for line in lines} == {"fused", "hsi", "msi", "reference", "uncertainty", "change_mask"}
    assert any(line["deviation"] for line in lines if line["place"].startswith("region"))

    with page.expect_download() as download:
        page.locator("#save-plot").click()
    picture = np.array(Image.open(download.value.path()).convert("RGB"))
    assert picture.shape == (960, 1800, 3)
    assert len(np.unique(picture[..., 0])) > 50
    page.locator("#plot").hover(position={"x": 120, "y": 100})
    page.locator(".reading").filter(has_text="nm: ").wait_for()


def test_swipe_and_blink(page: Any) -> None:
    page.locator("[data-compare=swipe]").click()
    page.select_option("#layer-b", "angle")
    page.wait_for_selector("#legend-b:has-text('spectral angle')")
    assert not page.locator("#legend").is_visible()
    drawn(page)
    left, right = colour_at(page, 0.45, 0.42), colour_at(page, 0.55, 0.42)
    box = page.locator("#divider").bounding_box()
    page.mouse.move(box["x"] + 12, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 200, steps=5)
    page.mouse.up()
    painted(page)
    assert colour_at(page, 0.45, 0.42) == left
    assert colour_at(page, 0.55, 0.42) != right
    assert page.locator("#badge-b").inner_text() == "Spectral angle"

    page.select_option("#layer-b", "hsi")
    page.locator("[data-compare=blink]").click()
    page.wait_for_function("() => document.getElementById('badge-a').textContent === 'HSI'")
    page.wait_for_function("() => document.getElementById('badge-a').textContent === 'Fused'")


def test_each_map_of_a_swipe_has_its_legend(page: Any) -> None:
    held: list[Any] = []
    page.locator("[data-compare=swipe]").click()
    page.select_option("#layer-a", "change")
    page.select_option("#layer-b", "difference")
    page.wait_for_selector("#legend:has-text('how far the MSI was used')")
    page.wait_for_selector("#legend-b:has-text('fused - reference')")
    assert page.locator("#legend .ends").inner_text().split() == ["≤", "0", "≥", "1"]
    page.route(re.compile("api/legends"), lambda route: held.append(route))
    page.select_option("#layer-b", "angle")
    page.wait_for_selector("#legend-b .pending")
    assert page.locator("#legend-b").inner_text().split("\n") == ["Spectral angle", "loading …"]
    assert page.locator("#legend .ends").is_visible()
    for each in held:
        each.continue_()
    page.wait_for_selector("#legend-b .ends")
    drawn(page)


def test_a_region_drawn_by_keys(page: Any) -> None:
    page.keyboard.press("r")
    page.wait_for_selector("#messages:has-text('Enter sets a corner')")
    for key in ("Enter", "ArrowRight", "Enter", "Enter", "Backspace", "Shift+ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    with page.expect_response(re.compile("api/regions")) as response:
        page.keyboard.press("Shift+Enter")
    (top, left), (same, right), (bottom, below) = response.value.json()["corners"]
    assert same == top and right == below
    assert (bottom - top) / (right - left) == pytest.approx(88 / 80)
    page.wait_for_selector("text=region of")
    page.keyboard.press("r")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.locator(".pins li").count() == 1
    assert page.locator("#messages:has-text('Enter sets a corner')").count() == 0


def test_charts_leave_gaps_at_bad_bands(page: Any) -> None:
    page.locator("#tab-scores").click()
    page.locator("#score").click()
    page.wait_for_selector("#scores")
    script = """async () => {
        const { lineOf, positions, shaded } = await import(new URL("script/series.js", document.baseURI));
        const { lead } = await import(new URL("script/store.js", document.baseURI));
        const one = lead(), line = lineOf(one, positions(one), one.good.map(() => 1));
        return [line.bands.filter((band, at) => line.y[at] === null), shaded().length];
    }"""
    # Two bad bands, and two holes between the spectral ranges of the scene.
    gaps, greys = page.evaluate(script)
    assert gaps.count(None) == 2
    assert {gap for gap in gaps if gap is not None} == set(BAD)
    assert greys == len(gaps)


def test_tour(page: Any) -> None:
    page.wait_for_selector("#messages:has-text('New here?')")
    page.keyboard.press("?")
    page.locator("#tour-start").click()
    for stop in range(1, 6):
        page.wait_for_selector(f"#tour:has-text('{stop} of 5')")
        page.locator("#tour .primary").click()
    page.wait_for_selector("#tour", state="detached")
    assert page.locator(".pins li").count() == 1 or page.locator("#panel-scores").is_visible()
    assert page.locator("[data-compare=one]").get_attribute("aria-checked") == "true"
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#messages > *").count() == 0


def test_bands_indices_and_colour_maps(page: Any) -> None:
    def changed(action: Any) -> list[int]:
        before = colour_at(page, 0.52, 0.42)
        action()
        page.wait_for_function(
            """(before) => {
                const canvas = document.getElementById("canvas"), context = canvas.getContext("2d");
                const [x, y] = [Math.round(0.52 * canvas.width), Math.round(0.42 * canvas.height)];
                const now = [...context.getImageData(x, y, 1, 1).data];
                return String(now) !== before && canvas.dataset.whole === "true";
            }""",
            arg=",".join(map(str, before)),
        )
        return colour_at(page, 0.52, 0.42)

    changed(lambda: page.locator("input[value=infrared]").check())
    changed(lambda: page.locator("input[value=pca]").check())
    changed(lambda: page.locator("input[value=band]").check())
    assert page.locator("#legend").is_visible()
    changed(lambda: page.locator("input[aria-label='Band band']").fill("12"))
    assert "1030 nm" in page.locator(".band output").inner_text()
    red, green, blue, _ = changed(lambda: page.locator("label:has-text('Colour map') select").select_option("grey"))
    assert red == green == blue
    changed(lambda: page.locator("input[value=index]").check())
    changed(lambda: page.locator("label:has-text('Colour map') select").select_option("magma"))
    page.locator("select[aria-labelledby=index-label]").select_option("NDWI")
    page.wait_for_selector("#legend:has-text('NDWI')")


def test_scores_and_metadata(page: Any) -> None:
    page.locator("#tab-scores").click()
    page.locator("#score").click()
    page.wait_for_selector("#scores")
    assert "PSNR" in page.locator("#scores").inner_text()
    page.locator("#tab-files").click()
    page.locator("#panel-files summary", has_text="HSI: hsi.tif").click()
    page.wait_for_selector("#panel-files td:has-text('EPSG:32633')")


def test_dark_and_light(browser: Any, url: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened_page(browser, url, "light", color_scheme="light") as page:
        light = page.evaluate(ground)
        page.emulate_media(color_scheme="dark")
        page.wait_for_selector("html[data-theme=dark]")
        assert page.evaluate(ground) != light
        page.locator("#theme").click()
        assert page.evaluate(ground) == light
        page.reload()
        page.wait_for_selector("html[data-ready=yes]")
        assert page.evaluate(ground) == light


def test_on_a_phone(browser: Any, url: str) -> None:
    with opened_page(
        browser, url, "phone", viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2
    ) as page:
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        box = page.locator("#canvas").bounding_box()
        assert box["width"] == PHONE["width"]
        assert box["height"] > 250
        page.touchscreen.tap(box["x"] + 195, box["y"] + 140)
        page.wait_for_selector("#plot")
        plot = page.locator("#plot").bounding_box()
        assert plot["width"] > 300
        for name in ("colours", "scores", "files", "fuse"):
            page.locator(f"#tab-{name}").tap()
            assert page.locator(f"#panel-{name}").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        sizes = page.evaluate(
            "[...document.querySelectorAll('.bar button, .zoom button')]"
            ".map((one) => one.getBoundingClientRect().height)"
        )
        assert min(sizes) >= 30


def test_everything_has_a_name(page: Any) -> None:
    """What a screen reader would call each control, in every panel."""
    clicked(page, 0.5, 0.5)
    panels = {
        "colours": "[name=style]",
        "spectra": "#plot",
        "scores": "#score",
        "files": "#open-files",
        "fuse": "#fuse-start",
    }
    for tab, content in panels.items():
        page.locator(f"#tab-{tab}").click()
        page.locator(f"#panel-{tab} {content}").first.wait_for()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, a, canvas, [role]")]
            .filter((one) => !one.closest("[aria-hidden=true]") && one.type !== "file")
            .filter((one) => !(one.getAttribute("aria-label") || one.getAttribute("aria-labelledby")
                || one.labels?.length || one.textContent.trim() || one.title || one.querySelector("img[alt], input")))
            .map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert [one for one in nameless if 'id="messages"' not in one] == []
