"""Tables of a benchmark: a summary in Markdown, and tables in the paper's form as Markdown, LaTeX (booktabs) and CSV.

In the paper's form there is a block per data set, with rows of PSNR, SAM, ERGAS and SSIM at each scale and a column per
model. A cell is mean and standard deviation over the scenes; best and second best are marked among what was measured.
Printed numbers follow behind and are never ranked with them.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyperfuse.benchmarking.cases import AS_RECORDED, CLEAN, CaseName
from hyperfuse.benchmarking.figures import case_figures, chart_panels, scale_chart
from hyperfuse.benchmarking.paper import PrintedScores, printed_ablations, printed_scores, warnings_of
from hyperfuse.benchmarking.results import (
    BLIND,
    FAILED,
    ORACLE,
    SCORED,
    UNFIT,
    Column,
    Result,
    Spread,
    columns_of,
    mean_score,
    read_record,
    results_in,
)
from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import published
from hyperfuse.physics.imperfections import IMPERFECTIONS
from hyperfuse.reporting.tables import ABSENT, BEST, SECOND, ScoreColumn, markdown_table, marked

CHART = "psnr_against_scale.png"
BEGIN, END = "<!-- benchmark {} -->", "<!-- end of benchmark {} -->"
AS_PRINTED = "as printed"
METRICS = (
    ScoreColumn("PSNR", "psnr_db", 2, True),
    ScoreColumn("SAM", "spectral_angle_degrees", 2, False),
    ScoreColumn("ERGAS", "ergas", 2, False),
    ScoreColumn("SSIM", "ssim", 3, True),
)
# Columns of the summary: heading, field of a result, unit, digits, and whether the deviation is shown, too.
SUMMARY_COLUMNS = (
    ("PSNR dB", "psnr_db", 1.0, 2, True),
    ("SAM deg", "spectral_angle_degrees", 1.0, 2, True),
    ("ERGAS", "ergas", 1.0, 3, True),
    ("SSIM", "ssim", 1.0, 4, True),
    ("seconds", "seconds", 1.0, 2, False),
    ("CPU s", "cpu_seconds", 1.0, 2, False),
    ("MB", "peak_bytes", 1e6, 0, False),
)
# Files of earlier versions call the SRF `response` and the model `competitor`.
CSV_COLUMNS = ("dataset", "response", "condition", "knowledge", "scale", "metric", "competitor", "mean",
               "standard_deviation", "scenes")  # fmt: skip
LATEX_HEAD = (
    "% needs \\usepackage{booktabs}; best in bold, second best underlined, mean and standard deviation over scenes\n"
)
LATEX_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
PROTOCOL = """\
Protocol: a scene is clipped at 0, divided by its 99.95th percentile, clipped to 1 and cropped to whole coarse pixels.
The HSI is the scene blurred by a Gaussian PSF with a full width at half maximum of one coarse pixel, grids aligned at
their centres; the MSI is the scene through the SRF. The fused image is clipped to 0..1. PSNR is pooled over bands and
pixels with peak 1, the spectral angle (SAM) is the mean over pixels in degrees, ERGAS has the factor 100/scale, SSIM
is the mean over bands. Blind: only the pair is given, and the seconds are those of `hyperfuse.fuse`, estimation
included. Oracle: the true PSF, shift, SRF and noise are given, too. Nominal: nothing is estimated. Recorded pairs and
pairs with an imperfection are fused with `trust="hsi"`: their reference lies in the frame of the HSI. CPU seconds add
up over threads and do not grow when the machine is busy; memory is what the process grows by at its peak.
"""


def write_report(folder: Path, beside_paper: bool = False, pictures: bool = True) -> list[Path]:
    """Write summary, tables, chart and pictures of a folder's results into it, replacing older ones."""
    record, results = read_record(folder), results_in(folder)
    tables = paper_tables(results, beside_paper)
    if beside_paper and not any(table.warnings for table in tables):
        ours, theirs = (", ".join(sorted({each.dataset for each in group})) for group in (tables, printed_scores()))
        scales = ", ".join(f"{scale:g}" for scale in sorted({each.scale for each in printed_scores()}))
        warnings.warn(
            f"--beside-paper shows nothing: the paper has numbers for {theirs} at scales {scales} without noise and "
            f"shift, none of which fits {ours}; name such a data set with --scenes (`hyperfuse scenes` lists them)",
            stacklevel=2,
        )
    texts = {
        "summary.md": summary_markdown(results, record),
        "tables.md": tables_markdown(tables),
        "tables.csv": tables_csv(tables),
        "tables.tex": tables_latex(tables),
    }
    written = [_write(folder / name, text) for name, text in texts.items()]
    chart = scale_chart(folder / CHART, results, beside_paper)
    return [*written, *([chart] if chart else []), *(case_figures(folder, results) if pictures else [])]


def write_into(document: Path, folder: Path, beside_paper: bool = False) -> Path:
    """Put the summary between the document's marks for this folder's name; `beside_paper` the tables, too.

    Of imperfections only the mean scores are given. The chart goes into `images` beside the document.
    """
    name = folder.absolute().name
    before, after = around_the_place(document, folder)
    results = results_in(folder)
    lines = ["", *summary_lines(results, read_record(folder), level=3, brief=True)]
    if beside_paper:
        tables = paper_tables(results, beside_paper)
        lines += ["", *tables_lines(tables), *_ablation_lines(tables)]
    if chart_panels(results):
        images = document.parent / "images"
        images.mkdir(exist_ok=True)
        scale_chart(images / f"{name}_{CHART}", results, beside_paper)
        lines += ["", f"![PSNR against scale]({images.name}/{name}_{CHART})"]
    return _write(document, "\n".join([before, *lines, after]))


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
        expected = f"the lines {begin} and {end}, once each"
        raise OptionError(f"{document} without a place for these tables", expected, "add them")
    return text[: text.index(begin) + len(begin)], text[text.index(end) :]


def _write(path: Path, text: str) -> Path:
    with published(path, overwrite=True) as target:
        target.write_text(text, encoding="utf-8")
    return path


def summary_markdown(results: Sequence[Result], record: Mapping[str, Any]) -> str:
    return "\n".join(["# Benchmark\n", *summary_lines(results, record)]) + "\n"


def summary_lines(
    results: Sequence[Result], record: Mapping[str, Any], level: int = 2, *, brief: bool = False
) -> Iterator[str]:
    """Protocol, means, distances to the best of the others, every case; headings of this level.

    `brief` leaves out the tables of single imperfections and their cases.
    """
    heading = "#" * level
    yield from _session_lines(record)
    yield ""
    yield PROTOCOL
    by_condition: dict[str, list[Result]] = {}
    for result in results:
        by_condition.setdefault(result.case.condition, []).append(result)
    if len(by_condition) > 1:
        yield f"{heading} Mean PSNR in dB\n"
        yield from overview_table(by_condition)
        yield ""
    detailed = {name: own for name, own in by_condition.items() if not (brief and name in IMPERFECTIONS)}
    for condition, own in detailed.items():
        yield f"{heading} {condition[0].upper()}{condition[1:]}\n"
        yield from condition_table(own)
        yield ""
    yield f"{heading} Every case, PSNR in dB / spectral angle in degrees\n"
    yield from case_table([result for result in results if result.case.condition in detailed])
    if failures := [result for result in results if result.state == FAILED]:
        yield f"\n{heading} Failed\n"
        yield from (f"- {each.model} ({each.knowledge}), {each.case}: {each.message}" for each in failures)
    if left_out := [*record["request"].get("left_out", ()), *_describe_unfit(results)]:
        yield f"\n{heading} Left out\n"
        yield from (f"- {reason}" for reason in left_out)


def _session_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Command, date, versions, machine."""
    for command in dict.fromkeys(session["command"] for session in record["sessions"] if session["command"]):
        yield f"    {command}\n"
    for session in record["sessions"]:
        commit = f"commit {session['commit']}, " if session["commit"] else ""
        versions = f"hyperfuse {session['hyperfuse']}, {commit}torch {session['torch']}"
        yield f"{session['date']}: {versions}, {session['machine']}."
    for dataset in record["request"].get("overlapping", ()):
        overlap = f"\nThe test blocks of {dataset} overlap its training pixels"
        yield f"{overlap}: networks trained by the paper's split have seen them."


def overview_table(by_condition: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """A row per condition: the mean PSNR over its cases; the best in bold."""
    columns = columns_of(each for results in by_condition.values() for each in results)
    rows = []
    for condition, results in by_condition.items():
        scored = _scored(results)
        means = [mean_score(scored.get(column, {}).values(), "psnr_db") for column in columns]
        best = max((each.mean for each in means if each is not None), default=None)
        cells = [ABSENT if each is None else f"{each.mean:.2f}" for each in means]
        marks = ["**" if each is not None and each.mean == best else "" for each in means]
        description = IMPERFECTIONS[condition].description if condition in IMPERFECTIONS else ""
        cases = len({result.case for result in results})
        shown = [f"{mark}{cell}{mark}" for mark, cell in zip(marks, cells, strict=True)]
        rows.append([condition, description, str(cases), *shown])
    headings = ["condition", "", "cases", *(column.label for column in columns)]
    yield from markdown_table(headings, rows, left=(0, 1))


def condition_table(results: Sequence[Result]) -> Iterator[str]:
    """A row per column of results: means over all cases, and distances to the best of the others in every case."""
    scored = _scored(results)
    given = [knowledge for knowledge in (ORACLE, BLIND) if any(column.knowledge == knowledge for column in scored)]
    distances = [f"over the best other {knowledge}: mean, worst dB" for knowledge in given]
    headings = ["", "cases", *(heading for heading, *_ in SUMMARY_COLUMNS), *distances]
    rows = []
    for column, cases in scored.items():
        if cases:
            means = [
                _mean_text(mean_score(cases.values(), name), unit, digits, with_deviation=with_deviation)
                for _, name, unit, digits, with_deviation in SUMMARY_COLUMNS
            ]
            differences = (distance_to_best_other(results, column, knowledge) for knowledge in given)
            rows.append([column.label, str(len(cases)), *means, *map(str, (each or ABSENT for each in differences))])
    yield from markdown_table(headings, rows, left=(0, *range(len(headings) - len(given), len(headings))))
    if len({row[1] for row in rows}) > 1:
        yield "\nMeans over different numbers of cases are not to be compared."


def case_table(results: Sequence[Result]) -> Iterator[str]:
    """A row per case; the best PSNR in bold."""
    columns = columns_of(results)
    by_key = {result.key: result for result in results}
    rows = []
    for case in dict.fromkeys(result.case for result in results):
        row = [by_key.get((case, *column)) for column in columns]
        best = max((each.psnr_db for each in row if each is not None and each.psnr_db is not None), default=None)
        rows.append([str(case), *(_case_cell(each, best) for each in row)])
    headings = ["scene, MSI, scale, condition", *(column.label for column in columns)]
    yield from markdown_table(headings, rows, left=range(len(headings)))


def _scored(results: Iterable[Result]) -> dict[Column, dict[CaseName, Result]]:
    results = list(results)
    table: dict[Column, dict[CaseName, Result]] = {column: {} for column in columns_of(results)}
    for result in results:
        if result.state == SCORED:
            table[Column(result.model, result.knowledge)][result.case] = result
    return table


@dataclass(frozen=True)
class Distance:
    """How far in dB a model is above the best of the others, case by case: on average, and in the worst case."""

    mean: float
    worst: float
    worst_case: CaseName

    def __str__(self) -> str:
        case = self.worst_case
        return f"{self.mean:+.2f}, {self.worst:+.2f} ({case.scene}, {case.srf}, x{case.scale:g})"


def distance_to_best_other(results: Iterable[Result], column: Column, knowledge: str) -> Distance | None:
    """Against the others with this knowledge; a recorded pair has no oracles and is compared with blind ones."""
    table = _scored(results)
    differences: list[tuple[float, CaseName]] = []
    for case, own in table[column].items():
        compared = BLIND if case.condition == AS_RECORDED else knowledge
        others = [
            result.psnr_db
            for other, cases in table.items()
            if other.model != column.model and other.knowledge == compared
            if (result := cases.get(case)) is not None and result.psnr_db is not None
        ]
        if own.psnr_db is not None and others:
            differences.append((own.psnr_db - max(others), case))
    if not differences:
        return None
    return Distance(float(np.mean([each for each, _ in differences])), *min(differences, key=lambda each: each[0]))


def _describe_unfit(results: Iterable[Result]) -> Iterator[str]:
    """An unexplained dash in a table looks like a failure."""
    cases: dict[str, dict[CaseName, str]] = {}
    for result in results:
        if result.state == UNFIT:
            cases.setdefault(result.model, {})[result.case] = result.message
    for model, messages in cases.items():
        first, message = next(iter(messages.items()))
        count = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
        yield f"{model} is {message}: {first}{count}"


def describe_failures(results: Iterable[Result]) -> list[str]:
    """One line per model that failed."""
    failed: dict[Column, list[Result]] = {}
    for result in results:
        if result.state == FAILED:
            failed.setdefault(Column(result.model, result.knowledge), []).append(result)
    return [
        f"{model} ({knowledge}) failed on {len(own)} of its cases, first on {own[0].case}: {own[0].message}"
        for (model, knowledge), own in failed.items()
    ]


def _case_cell(result: Result | None, best: float | None) -> str:
    if result is None or result.state == UNFIT:
        return ABSENT
    if result.state == FAILED:
        return FAILED
    if result.psnr_db is None:
        return "equal"
    scores = f"{result.psnr_db:.2f} / {result.spectral_angle_degrees:.2f}"
    return f"**{scores}**" if result.psnr_db == best else scores


def _mean_text(spread: Spread | None, unit: float, digits: int, *, with_deviation: bool) -> str:
    if spread is None:
        return ABSENT
    deviation = f" ± {spread.deviation / unit:.{digits}f}" if with_deviation and spread.count > 1 else ""
    return f"{spread.mean / unit:.{digits}f}{deviation}"


@dataclass(frozen=True)
class TableCell:
    text: str
    """The mean, or `-`."""
    deviation: str = ""
    style: str = ""
    measured: Spread | None = None


@dataclass(frozen=True)
class TableRow:
    scale: float
    metric: ScoreColumn
    cells: list[TableCell]


@dataclass(frozen=True)
class PaperTable:
    dataset: str
    srf: str
    condition: str
    knowledge: str
    columns: list[str]
    rows: list[TableRow]
    scenes: int
    """Of the block; a column may have fewer where a model failed or does not fit."""
    warnings: list[str]

    @property
    def title(self) -> str:
        scenes = f"{self.scenes} scene{'s' * (self.scenes > 1)}"
        return ", ".join(dict.fromkeys([self.dataset, self.srf, self.condition, self.knowledge, scenes]))


def paper_tables(results: Sequence[Result], beside_paper: bool = False) -> list[PaperTable]:
    """One for each data set, SRF, condition and knowledge, in the order of the results."""
    groups: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in results:
        key = (result.case.dataset, result.case.srf, result.case.condition, result.knowledge)
        groups.setdefault(key, []).append(result)
    return [_paper_table(key, group, beside_paper) for key, group in groups.items()]


def _paper_table(key: tuple[str, str, str, str], results: Sequence[Result], beside_paper: bool) -> PaperTable:
    dataset, _, condition, _ = key
    models = [column.model for column in columns_of(results)]
    scales = sorted({result.case.scale for result in results})
    shown = beside_paper and condition == CLEAN
    printed = [each for scale in scales for each in printed_scores(dataset, scale)] if shown else []
    methods = list(dict.fromkeys(each.method for each in printed))
    rows = []
    for scale in scales:
        by_model = [[each for each in results if (each.model, each.case.scale) == (name, scale)] for name in models]
        by_method = {each.method: each for each in printed if each.scale == scale}
        for metric in METRICS:
            ours = _measured_cells([mean_score(group, metric.field) for group in by_model], metric)
            theirs = [_printed_cell(by_method.get(method), metric) for method in methods]
            rows.append(TableRow(scale, metric, [*ours, *theirs]))
    names = [*models, *(f"{method}, {AS_PRINTED}" for method in methods)]
    return PaperTable(*key, names, rows, len({result.case.scene for result in results}), warnings_of(printed))


def _measured_cells(spreads: Sequence[Spread | None], metric: ScoreColumn) -> Iterator[TableCell]:
    cells = marked([None if each is None else each.mean for each in spreads], metric)
    for cell, each in zip(cells, spreads, strict=True):
        deviation = f"{each.deviation:.{metric.digits}f}" if each is not None and each.count > 1 else ""
        yield TableCell(cell.text, deviation, cell.style, each)


def _printed_cell(printed: PrintedScores | None, metric: ScoreColumn) -> TableCell:
    if printed is None:
        return TableCell(ABSENT)
    figure = printed.figures[metric.field]
    converted = metric.field == "ergas" and printed.ergas_as_defined != float(figure.mean)
    text = f"{figure.mean} [{printed.ergas_as_defined:.2f}]" if converted else figure.mean
    return TableCell(text, figure.deviation)


def tables_markdown(tables: Sequence[PaperTable]) -> str:
    return "\n".join([*tables_lines(tables), *_ablation_lines(tables)]) + "\n"


def tables_lines(tables: Sequence[PaperTable]) -> Iterator[str]:
    yield "Mean ± standard deviation over scenes; best in bold, second best underlined."
    for table in tables:
        yield f"\n### {table.title}\n"
        rows = [[f"x{row.scale:g}", row.metric.heading, *map(_markdown_cell, row.cells)] for row in table.rows]
        yield from markdown_table(["scale", "", *table.columns], rows, left=(0, 1))
        if table.warnings:
            yield ""
            yield from (f"- {warning}" for warning in table.warnings)


def _ablation_lines(tables: Sequence[PaperTable]) -> Iterator[str]:
    """The paper's ablations on the data sets and scales of these tables."""
    scales = {(table.dataset.casefold(), row.scale) for table in tables if table.warnings for row in table.rows}
    ablations = [each for each in printed_ablations() if (each.dataset.casefold(), each.scale) in scales]
    if ablations:
        yield f"\n### The paper's ablations, {AS_PRINTED}\n"
        yield from printed_table(ablations)
        yield "\nERGAS has the factor 100/4 at every scale. The same ablations of a small network: docs/reproduce.md."


def printed_table(printed: Iterable[PrintedScores]) -> Iterator[str]:
    """Numbers of the paper, a row each."""
    counts = ["parameters, M", "operations, G"]
    headings = ["data set", "scale", "variant", *counts, *(metric.heading for metric in METRICS)]
    yield from markdown_table(headings, map(_printed_cells, printed), left=(0, 1, 2))


def _printed_cells(printed: PrintedScores) -> list[str]:
    counts = [ABSENT if count is None else f"{count:g}" for count in (printed.parameters_millions, printed.flops_g)]
    figures = [printed.figures[metric.field].text for metric in METRICS]
    return [printed.dataset, f"x{printed.scale:g}", printed.method, *counts, *figures]


def tables_csv(tables: Sequence[PaperTable]) -> str:
    """One line per measured figure with all its digits; printed numbers are not included."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        of_table = (table.dataset, table.srf, table.condition, table.knowledge)
        for row in table.rows:
            for name, cell in zip(table.columns, row.cells, strict=True):
                if (spread := cell.measured) is not None:
                    of_row = (f"{row.scale:g}", row.metric.field, name)
                    writer.writerow([*of_table, *of_row, spread.mean, spread.deviation, spread.count])
    return text.getvalue()


def _markdown_cell(cell: TableCell) -> str:
    text = {BEST: f"**{cell.text}**", SECOND: f"<u>{cell.text}</u>"}.get(cell.style, cell.text)
    return f"{text} ± {cell.deviation}" if cell.deviation else text


def tables_latex(tables: Sequence[PaperTable]) -> str:
    return LATEX_HEAD + "\n".join(_latex_table(table) for table in tables)


def _latex_table(table: PaperTable) -> str:
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{table.title.translate(LATEX_ESCAPES)}.}}",
        rf"\begin{{tabular}}{{@{{}}ll{'c' * len(table.columns)}@{{}}}}",
        r"\toprule",
        " & ".join(["", "", *(name.translate(LATEX_ESCAPES) for name in table.columns)]) + r" \\",
    ]
    scale = None
    for row in table.rows:
        if row.scale != scale:
            lines.append(r"\midrule")
        first = rf"$\times${row.scale:g}" if row.scale != scale else ""
        arrow = r"$\uparrow$" if row.metric.higher_is_better else r"$\downarrow$"
        lines.append(" & ".join([first, f"{row.metric.heading} {arrow}", *map(_latex_cell, row.cells)]) + r" \\")
        scale = row.scale
    notes = [rf"\\[2pt]{{\footnotesize {warning.translate(LATEX_ESCAPES)}}}" for warning in table.warnings]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes, r"\end{table*}", ""])


def _latex_cell(cell: TableCell) -> str:
    text = {BEST: rf"\textbf{{{cell.text}}}", SECOND: rf"\underline{{{cell.text}}}"}.get(cell.style, cell.text)
    return rf"{text}$_{{\pm {cell.deviation}}}$" if cell.deviation else text
