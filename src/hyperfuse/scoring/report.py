"""What is made of the results, in the folder beside them."""

from __future__ import annotations

from pathlib import Path

from hyperfuse.cubes.publishing import published
from hyperfuse.scoring.benchmark import Benchmark
from hyperfuse.scoring.run_record import read_record
from hyperfuse.scoring.summary import summary_markdown

SUMMARY = "summary.md"


def write_report(done: Benchmark) -> list[Path]:
    """The files that were written, replacing older ones."""
    record = read_record(done.folder)
    return [_written(done.folder / SUMMARY, summary_markdown(done.results, record, done.left_out))]


def _written(path: Path, text: str) -> Path:
    with published(path, overwrite=True) as target:
        target.write_text(text, encoding="utf-8")
    return path
