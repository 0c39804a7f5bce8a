"""`hyperfuse report` and `fuse --report`: a page that needs nothing but itself, of any scene, or nothing at all."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from affine import Affine

from hyperfuse import evaluate, fuse, make_cube, open_cube, report, simulate, write_cube
from hyperfuse.cli.app import run
from hyperfuse.errors import BandError, CubeWriteError, GridError, OptionError
from hyperfuse.io.cube import lazy_variable
from hyperfuse.models.baselines.mimo_sst import MIMOSST, MIMOSSTConfig
from hyperfuse.reporting import examine as examined_part
from hyperfuse.reporting.examine import examine, read_record
from hyperfuse.reporting.report import DASH, line_chart, render_page, thinned
from hyperfuse.reporting.style import highest_square

VOID = {"meta", "img", "br", "line", "path"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hsi.tif, msi.tif, reference.tif, fused.tif: patches of four materials, 96 x 80 pixels, 12 bands, x4."""
    random = np.random.default_rng(5)
    wavelength = np.linspace(430, 950, 12)
    spectra = np.stack(
        [0.3 + 0.2 * np.sin(wavelength / width + phase) for width, phase in ((90, 0), (140, 1), (70, 2), (200, 3))]
    )
    labels = np.kron(random.integers(0, 4, (24, 20)), np.ones((4, 4), int))
    values = spectra[labels].transpose(2, 0, 1) * (1 + 0.1 * random.standard_normal((96, 80)))
    scene = make_cube(
        values.astype(np.float32), wavelength_nm=wavelength, crs=32633, transform=Affine(10, 0, 5e5, 0, -10, 5e6)
    )
    folder = tmp_path_factory.mktemp("report")
    pair = simulate(scene, 4, "rgb+nir")
    for name, cube in (("hsi", pair.hsi), ("msi", pair.msi), ("reference", pair.reference)):
        write_cube(cube, folder / f"{name}.tif")
    fuse(folder / "hsi.tif", folder / "msi.tif", folder / "fused.tif", method="gsa", psf_fwhm=4.0, shift=(0.0, 0.0))
    return folder


class Outline(HTMLParser):
    """Tags that are opened are closed, in order; addresses, texts and ids are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.without_text = 0
        self.images = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.addresses += [str(found[name]) for name in ("src", "href") if name in found]
        self.ids += [str(found["id"])] if "id" in found else []
        if tag == "img":
            self.images += 1
            self.without_text += "alt" not in found
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def outline(page: Path) -> Outline:
    found = Outline()
    found.feed(page.read_text(encoding="utf-8"))
    assert not found.open
    return found


def figures(page: Path) -> dict:
    text = re.search(r'id="figures">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    return json.loads(text.group(1))


def test_a_page_with_a_reference(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    report(
        folder / "fused.tif", page, hsi=folder / "hsi.tif", msi=folder / "msi.tif", reference=folder / "reference.tif"
    )
    found = outline(page)
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in found.addresses), (
        "nothing from elsewhere"
    )
    assert {address[1:] for address in found.addresses if address.startswith("#")} <= set(found.ids)
    assert found.images >= 4 + 4 + 8
    assert found.without_text == 0
    scores = figures(page)
    wanted = evaluate(open_cube(folder / "fused.tif"), open_cube(folder / "reference.tif"), scale=4)
    assert scores["reference"]["psnr_db"] == pytest.approx(wanted.psnr_db)
    assert scores["reference"]["ergas"] == pytest.approx(wanted.ergas)
    assert scores["reduced_resolution"]["fused_by"] == "gsa"
    assert scores["reduced_resolution"]["scores"]["psnr_db"] > scores["reduced_resolution"]["scores"]["bicubic_psnr_db"]
    assert scores["consistency"]["hsi"]["relative"] < 0.02
    assert 0.5 < scores["without_reference"]["hqnr"] < 1
    text = page.read_text(encoding="utf-8")
    assert f"{wanted.psnr_db:.2f} dB" in text
    assert 'PSF, down and across</th><td class="text">4.000 4.000 fine pixels (FWHM)' in text


def test_the_command_without_a_reference(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    inputs = [
        str(folder / "fused.tif"),
        "--hsi",
        str(folder / "hsi.tif"),
        "--msi",
        str(folder / "msi.tif"),
        "-o",
        str(page),
    ]
    assert run(["-q", "report", *inputs, "--method", "bicubic", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == figures(page)
    assert printed["reference"] is None
    assert printed["reduced_resolution"]["fused_by"] == "bicubic"
    assert run(["-q", "report", *inputs]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(["-q", "report", *inputs, "--overwrite"]) == 0


def test_the_first_sentence_says_whether_to_trust_it(folder: Path, tmp_path: Path) -> None:
    pair = {"hsi": folder / "hsi.tif", "msi": folder / "msi.tif"}
    fuse(*pair.values(), tmp_path / "good.tif")
    good = report(tmp_path / "good.tif", tmp_path / "good.html", **pair)
    assert good.doubts() == []
    assert good.verdict().startswith(
        "This image can be trusted as far as its inputs can show: it reproduces the HSI to "
    )
    assert good.expected_error is not None and good.expected_error.shape == good.part.fused_values.shape
    text = (tmp_path / "good.html").read_text(encoding="utf-8")
    assert f'<p class="verdict">{good.verdict()}</p>' in text
    assert "Expected error" in text and "more and less by its expected error" in text

    upside_down = open_cube(tmp_path / "good.tif")
    write_cube(upside_down.copy(data=upside_down.values[:, ::-1]), tmp_path / "bad.tif")
    bad = report(tmp_path / "bad.tif", tmp_path / "bad.html", **pair)
    assert len(bad.doubts()) >= 2
    assert bad.verdict().startswith("Do not trust this image: degraded to the HSI")
    assert "verdict doubtful" in (tmp_path / "bad.html").read_text(encoding="utf-8")


def test_fuse_writes_it_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [str(folder / "hsi.tif"), str(folder / "msi.tif")]
    command = [
        "-q",
        "fuse",
        *pair,
        "-o",
        str(tmp_path / "out.tif"),
        "--method",
        "gsa",
        "--no-estimate",
        "--bands",
        "1-5",
    ]
    assert run([*command, "--report"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "out.tif"), str(tmp_path / "out.html")]
    assert figures(tmp_path / "out.html")["examined"]["bands"] == 5
    (tmp_path / "out.tif").unlink()
    assert run([*command, "--report"]) == 2
    assert not (tmp_path / "out.tif").exists(), "the page is refused before the work"
    assert run([*command, "--report-to", str(tmp_path / "other.txt")]) == 2
    assert "ends with .html" in capsys.readouterr().err


def test_a_network_is_judged_where_its_weights_are_at_hand(folder: Path, tmp_path: Path) -> None:
    MIMOSST(MIMOSSTConfig(bands=12, msi_bands=4, width=4)).save_pretrained(tmp_path / "weights")
    files = {"hsi": folder / "hsi.tif", "msi": folder / "msi.tif"}
    fused = fuse(open_cube(files["hsi"]), open_cube(files["msi"]), weights=tmp_path / "weights", estimate=False)
    write_cube(fused, tmp_path / "fused.tif")
    write_cube(fused.isel(band=slice(0, 7)), tmp_path / "few.tif")
    page = tmp_path / "report.html"
    findings = report(tmp_path / "fused.tif", page, **files)
    assert "give its folder with --weights" in findings.reduced_resolution.why_not
    findings = report(tmp_path / "fused.tif", page, **files, weights=tmp_path / "weights", overwrite=True)
    assert findings.reduced_resolution.scores is not None
    findings = report(tmp_path / "few.tif", page, **files, weights=tmp_path / "weights", overwrite=True)
    assert "does not fit the remaining bands: 7 hsi bands" in findings.reduced_resolution.why_not
    MIMOSST(MIMOSSTConfig(bands=12, msi_bands=4, width=4)).save_pretrained(tmp_path / "other")
    with pytest.raises(OptionError, match="the weights that fused it"):
        report(tmp_path / "fused.tif", page, **files, weights=tmp_path / "other", overwrite=True)


def test_a_large_scene_is_judged_by_a_part_of_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examined_part, "LARGEST_SIDE", 64)
    page = tmp_path / "report.html"
    findings = report(
        folder / "fused.tif", page, hsi=folder / "hsi.tif", msi=folder / "msi.tif", reference=folder / "reference.tif"
    )
    assert not findings.part.is_everything
    assert findings.part.fused_values.shape[1:] == (64, 64)
    assert "Scores and maps are of rows 16 to 79" in page.read_text()
    # The part's HSI pixels are those of its own ground.
    assert findings.consistency.with_hsi.relative < 0.02


class CountedWaves:
    """A cube that exists only as a formula of the ground, and counts what is read of it."""

    dtype = np.dtype(np.float32)
    block = None

    def __init__(self, shape: tuple[int, int, int], pixel: float) -> None:
        self.shape, self.pixel, self.values_read = shape, pixel, 0

    def read(self, bands: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        y, x = (self.pixel * (np.arange(axis.start, axis.stop) + 0.5) for axis in (rows, columns))
        values = 0.5 + 0.4 * np.sin(y[:, None] / 90 + bands[:, None, None]) * np.cos(x / 130)
        self.values_read += values.size
        return values.astype(np.float32)


def test_of_a_scene_larger_than_memory_only_the_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examined_part, "LARGEST_SIDE", 64)
    sizes = {"fused": (8, 40_000, 40_000), "msi": (3, 40_000, 40_000), "hsi": (8, 10_000, 10_000)}
    readers = {name: CountedWaves(shape, 40_000 / shape[1]) for name, shape in sizes.items()}
    cubes = {name: make_cube(lazy_variable(reader)) for name, reader in readers.items()}
    cubes["fused"].attrs["hyperfuse_options"] = "estimate=False"
    part = examine(**cubes, recorded=read_record(cubes["fused"]))
    assert part.fused_values.shape == (8, 64, 64)
    assert (part.rows, part.columns) == (slice(19968, 20032), slice(19968, 20032))
    assert part.hsi_values.shape == (8, 16, 16)
    seen = part.coarse_on_fine(part.hsi_values)
    assert np.abs(seen - part.fused_values).max() < 0.1, "the same ground"
    assert sum(reader.values_read for reader in readers.values()) < 20 * 8 * 64 * 64


def test_images_without_georeference_cover_the_same_ground(folder: Path, tmp_path: Path) -> None:
    for name in ("hsi", "msi", "fused"):
        np.save(tmp_path / f"{name}.npy", open_cube(folder / f"{name}.tif").values)
    page = tmp_path / "report.html"
    axes = {f"{name}_band_axis": 0 for name in ("hsi", "msi", "fused")}
    files = {name: tmp_path / f"{name}.npy" for name in ("hsi", "msi")}
    findings = report(tmp_path / "fused.npy", page, **files, **axes)
    assert findings.consistency.with_hsi.relative < 0.05
    assert findings.reduced_resolution.scores is None
    assert "does not record what fused it" in page.read_text()
    assert "no block is complete" not in page.read_text()
    without_blocks = replace(findings.without_reference, khan_distortion=None, hqnr=None)
    without_index = render_page(replace(findings, without_reference=without_blocks), {}, {"fused": "fused.npy"})
    assert "no block is complete" in without_index


def test_nothing_of_a_file_s_name_or_record_becomes_markup(folder: Path, tmp_path: Path) -> None:
    cube = open_cube(folder / "fused.tif").load()
    cube.attrs["hyperfuse_method"] = "</script><img src=http://x.y/z onerror=alert(1)>"
    name = "<b>&'fused.nc"
    write_cube(cube, tmp_path / name)
    page = tmp_path / "report.html"
    report(tmp_path / name, page, hsi=folder / "hsi.tif", msi=folder / "msi.tif")
    found = outline(page)
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    assert "is unknown to this version" in page.read_text()


def test_what_does_not_belong_together_is_refused_and_nothing_written(folder: Path, tmp_path: Path) -> None:
    page, files = tmp_path / "report.html", {"hsi": folder / "hsi.tif", "msi": folder / "msi.tif"}
    fused = open_cube(folder / "fused.tif").load()
    np.save(tmp_path / "few.npy", fused.values[:5])
    with pytest.raises(BandError, match="the HSI that it was made from"):
        report(tmp_path / "few.npy", page, **files)
    with pytest.raises(GridError, match="not the MSI's"):
        report(folder / "hsi.tif", page, **files)
    with pytest.raises(GridError, match="expected the same size"):
        report(folder / "fused.tif", page, **files, reference=folder / "hsi.tif")
    with pytest.raises(OptionError, match="one of the two"):
        report(folder / "fused.tif", page, **files, method="gsa", weights="somewhere")
    with pytest.raises(OptionError, match="magic"):
        report(folder / "fused.tif", page, **files, method="magic")
    with pytest.raises(OptionError, match=r"ends with \.html"):
        report(folder / "fused.tif", tmp_path / "report.pdf", **files)
    with pytest.raises(CubeWriteError, match="mkdir -p"):
        report(folder / "fused.tif", tmp_path / "nowhere/report.html", **files)
    assert [path.name for path in tmp_path.iterdir()] == ["few.npy"]


def test_the_record_of_a_fused_file_is_read_back(tmp_path: Path) -> None:
    pair = simulate(make_cube(np.random.default_rng(0).random((4, 32, 32), dtype=np.float32)), 4, np.eye(2, 4))
    known = {"estimate": False, "shift": (0.0, 1.0), "psf_fwhm": 3.0, "trust": "hsi", "srf": tmp_path / "srf.npy"}
    np.save(known["srf"], np.eye(2, 4))
    path = fuse(pair.hsi, pair.msi, tmp_path / "fused.tif", method="bicubic", **known)
    config = read_record(open_cube(path)).config
    assert config.given() == known | {"srf": str(known["srf"])}


def test_the_record_is_read_back() -> None:
    cube = make_cube(np.zeros((1, 2, 2)))
    cube.attrs["hyperfuse_method"] = "gsa"
    text = "estimate=False psf_fwhm=4.5 shift=(0.5, -1.0) trust=hsi srf=a b.csv consistency=True later=1"
    cube.attrs["hyperfuse_options"] = text
    found = read_record(cube)
    config = found.config
    assert (found.record["method"], config.estimate, config.psf_fwhm, config.shift) == ("gsa", False, 4.5, (0.5, -1.0))
    assert (config.trust, config.srf, config.consistency, config.local_shift) == ("hsi", "a b.csv", True, False)
    for damaged in ("psf_fwhm=__import__('os')", "shift=(1, 2, 3)", "[]"):
        cube.attrs["hyperfuse_options"] = damaged
        assert (read_record(cube).config.psf_fwhm, read_record(cube).config.shift) == (None, None)


def test_squares_and_thinning() -> None:
    values = np.zeros((20, 30))
    values[12, 25] = 1
    rows, columns = highest_square(values, 5)
    assert rows.start <= 12 < rows.stop and columns.start <= 25 < columns.stop
    assert (rows.stop - rows.start, columns.stop - columns.start) == (5, 5)
    assert highest_square(values, 100) == (slice(0, 20), slice(0, 30))
    wide = np.arange(2000.0)[None, :].repeat(2, axis=0)
    wide[0, 0] = np.nan
    assert thinned(wide).shape == (1, 667)
    assert thinned(wide)[0, 0] == pytest.approx((1 + 2 + 0 + 1 + 2) / 5)


def test_one_band_has_no_angles_and_can_still_be_seen(folder: Path, tmp_path: Path) -> None:
    for name in ("hsi", "msi", "reference", "fused"):
        write_cube(open_cube(folder / f"{name}.tif").isel(band=[0]), tmp_path / f"{name}.tif")
    page = tmp_path / "report.html"
    pair = {name: tmp_path / f"{name}.tif" for name in ("hsi", "msi", "reference")}
    report(tmp_path / "fused.tif", page, **pair, method="bicubic")
    outline(page)
    text = page.read_text(encoding="utf-8")
    assert "80 x 96 pixels, 1 band, scale 4." in text and "1 bands" not in text
    assert "SAM" not in text and "Spectral angle" not in text
    assert text.count(f"h{DASH}") == 4 * 3 + 1 + 2, "a dash for every value of four spectra and two charts of bands"


def test_ticks_are_told_apart() -> None:
    along = np.array([1.0])
    lines = [(str(height), "fused", np.array([height])) for height in (34561.2, 34563.1)]
    chart = line_chart((along, "band"), lines, "", "")
    assert [label for _, label in chart.columns] == ["1"]
    labels = [label for _, label in chart.rows]
    assert "34561.6" in labels and len(set(labels)) == len(labels)
