"""What README claims is measured: a figure with a unit stands in a table of docs/benchmarks.md, which says how it was
made, or in the picture of the demo (tests/reporting/test_demo.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
UNITS = r"dB|degrees?|°|seconds?|s|ms|minutes?|hours?|MB|GB|MPix/s|times|%"
CLAIM = re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?)\s?(?:{UNITS})(?![\w/])")
BLOCK = re.compile(r"<!-- benchmark (?P<name>[\w-]+) -->\n(?P<body>.*?)<!-- end of benchmark (?P=name) -->", re.DOTALL)
MADE = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC: hyperfuse .+, commit [0-9a-f]{7,}.*, torch .+, \d+ cores", re.MULTILINE
)


def claims(text):
    """Figures with a unit, outside of code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", " ", text, flags=re.DOTALL)
    return CLAIM.findall(prose)


def table_numbers(text):
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return set(re.findall(r"\d+(?:\.\d+)?", "\n".join(rows)))


def page():
    return (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_every_figure_of_the_readme_stands_in_a_table():
    shown = json.loads(Image.open(ROOT / "docs" / "images" / "demo.png").text["Description"])
    known = table_numbers(page()) | {f"{psnr_db:.2f}" for psnr_db in shown.values()}
    missing = [figure for figure in claims((ROOT / "README.md").read_text(encoding="utf-8")) if figure not in known]
    assert not missing, f"README claims {', '.join(missing)}, which no table of docs/benchmarks.md has"


def test_every_table_says_how_it_was_made():
    blocks = {found["name"]: found["body"] for found in BLOCK.finditer(page()) if found["body"]}
    assert page().count("<!-- benchmark ") == len(BLOCK.findall(page())) > 0
    for name, body in blocks.items():
        assert "    hyperfuse benchmark --" in body, f"{name} has no command"
        assert MADE.search(body), f"{name} does not say when, of which commit and on what"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("reaches 37.11 dB and 4.5 degrees in 0.25 s", ["37.11", "4.5", "0.25"]),
        ("8.0 times bicubic, 162 MB, 3 %", ["8.0", "162", "3"]),
        ("Python 3.11, x4, 31 bands, 2 commands, `0.5 s`", []),
        ("```\n12 dB\n```", []),
    ],
)
def test_what_counts_as_a_claim(text, found):
    assert claims(text) == found
