"""The demo, and what README.md says and shows of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from hyperfuse.config import DEFAULT_METHOD
from hyperfuse.io.files import open_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.reporting.demo import run_demo

ROOT = Path(__file__).parents[2]


def test_the_demo_is_what_the_readme_shows(tmp_path: Path) -> None:
    """The default is about the best, its result has a place on the Earth, README.md shows this run."""
    pytest.importorskip("tensorly")
    result = run_demo(tmp_path / "demo")
    assert set(result.scores) == set(METHODS)
    psnr = {name: round(scores.psnr_db, 2) for name, scores in result.scores.items()}
    assert psnr[DEFAULT_METHOD] >= max(psnr.values()) - 0.02  # the lift is 0.01 dB better on this scene
    assert DEFAULT_METHOD in result.verdict
    fused = open_cube(tmp_path / "demo" / "fused.tif")
    assert grid_of(fused).crs == 32616 and fused.attrs["hyperfuse_method"] == DEFAULT_METHOD
    assert all(path.stat().st_size > 10_000 for path in result.files.values())
    shown = json.loads(Image.open(ROOT / "docs" / "images" / "demo.png").text["Description"])  # type: ignore[attr-defined]
    assert shown == pytest.approx({name: psnr[name] for name in shown}, abs=0.02)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in (DEFAULT_METHOD, "bicubic"):
        assert f"{shown[name]:.2f} dB" in text
