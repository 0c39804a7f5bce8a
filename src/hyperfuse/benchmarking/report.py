"""What is made of the results, in the folder beside them: summary, tables, chart and pictures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from hyperfuse.benchmarking.figures import (
    INPUTS,
    case_figure,
    case_folder,
    chart_panels,
    load_fused,
    load_inputs,
    scale_chart,
)
from hyperfuse.benchmarking.results import RESULTS, Result, ResultsFile, read_record
from hyperfuse.benchmarking.summary import summary_lines, summary_markdown
from hyperfuse.benchmarking.tables import markdown_lines, paper_tables, tables_csv, tables_latex, tables_markdown
from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import published

CHART = "psnr_against_scale.png"
BEGIN, END = "<!-- benchmark {} -->", "<!-- end of benchmark {} -->"


def write_report(folder: Path, beside_paper: bool = False, pictures: bool = True) -> list[Path]:
    """Everything that the folder's results give; the files that were written, replacing older ones."""
    record, results = read_record(folder), results_in(folder)
    tables = paper_tables(results, beside_paper)
    if beside_paper and not any(table.warnings for table in tables):
        datasets = ", ".join(dict.fromkeys(table.dataset for table in tables))
        warnings.warn(
            f"the paper prints no numbers of {datasets} at these scales, without noise and shift", stacklevel=2
        )
    written = [
        _written(folder / "summary.md", summary_markdown(results, record)),
        _written(folder / "tables.md", tables_markdown(tables)),
        _written(folder / "tables.csv", tables_csv(tables)),
        _written(folder / "tables.tex", tables_latex(tables)),
    ]
    chart = scale_chart(folder / CHART, results, beside_paper)
    return [*written, *([chart] if chart else []), *(_pictures(folder, results) if pictures else [])]


def write_into(document: Path, folder: Path, beside_paper: bool = False) -> Path:
    """Puts the summary between the document's marks for this folder's name, which it must have; beside the paper the
    tables, too.

    The chart goes into `images` beside the document.
    """
    name = folder.absolute().name
    before, after = around_the_place(document, folder)
    results = results_in(folder)
    lines = ["", *summary_lines(results, read_record(folder), level=3)]
    if beside_paper:
        lines += ["", *markdown_lines(paper_tables(results, beside_paper))]
    if chart_panels(results):
        images = document.parent / "images"
        images.mkdir(exist_ok=True)
        scale_chart(images / f"{name}_{CHART}", results, beside_paper)
        lines += ["", f"![PSNR against scale]({images.name}/{name}_{CHART})"]
    return _written(document, "\n".join([before, *lines, after]))


def around_the_place(document: Path, folder: Path) -> tuple[str, str]:
    """The document up to its mark for this folder's name, and from the closing mark on; it must have both."""
    name = folder.absolute().name
    begin, end = BEGIN.format(name), END.format(name)
    try:
        text = document.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{document}: {error.strerror}", "a Markdown file", "check --into") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{document} is no text", "a Markdown file", "check --into") from error
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise OptionError(
            f"{document} without a place for these tables", f"the lines {begin} and {end}, once each", "add them"
        )
    return text[: text.index(begin) + len(begin)], text[text.index(end) :]


def results_in(folder: Path) -> list[Result]:
    results = ResultsFile(folder / RESULTS).all()
    if not results:
        raise OptionError(f"no results in {folder}", "a folder of `hyperfuse benchmark`", "name scenes to benchmark on")
    return results


def _pictures(folder: Path, results: Sequence[Result]) -> list[Path]:
    written = []
    for case in dict.fromkeys(result.case for result in results):
        kept = case_folder(folder, case)
        if (kept / f"{INPUTS}.npz").exists():
            fused = load_fused(kept, [result.competitor for result in results if result.case == case])
            if fused:
                written.append(case_figure(kept.with_name(f"{kept.name}.png"), str(case), load_inputs(kept), fused))
    return written


def _written(path: Path, text: str) -> Path:
    with published(path, overwrite=True) as target:
        target.write_text(text, encoding="utf-8")
    return path
