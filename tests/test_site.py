"""The site is built strictly, links every page and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a browser fetches by itself; links that a reader follows may lead anywhere.
LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'>\s]+)[^>]*>")
# Named in the head of each page, but not loaded.
METADATA = ("canonical", "next", "prev")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("mkdocs", "mkdocstrings", "jupytext", "latex2mathml"):
        pytest.importorskip(module, reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr + built.stdout
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        tags = LOADED.finditer(page.read_text(encoding="utf-8"))
        fetched = [tag[1] for tag in tags if not any(f'rel="{kind}"' in tag[0] for kind in METADATA)]
        assert not fetched, f"{page.relative_to(site)} loads {fetched}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", style.read_text(encoding="utf-8")), style


def test_every_page_is_there(site: Path) -> None:
    for source in (ROOT / "docs").rglob("*.md"):
        assert (site / source.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), source
    commands = (site / "commands.html").read_text(encoding="utf-8")
    assert "hyperfuse fuse" in commands
    assert "--psf-fwhm" in commands
    assert "<math" in (site / "how_it_works.html").read_text(encoding="utf-8")
