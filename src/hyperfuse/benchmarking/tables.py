"""The tables as Markdown, LaTeX (booktabs) and CSV.

Tables in the paper's form: a block per data set, rows of PSNR, SAM, ERGAS and SSIM at each scale, a column per
competitor.

A cell is mean and standard deviation over the scenes. Best and second best are marked among what was measured; columns
of printed numbers stand behind them and are never ranked with them.

The paper's ablations as printed, for the data sets and scales whose tables stand beside it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hyperfuse.benchmarking.paper import (
    PrintedAblation,
    PrintedScores,
    ergas_as_defined,
    printed_ablations,
    printed_scores,
    warnings_of,
)
from hyperfuse.benchmarking.results import Result
from hyperfuse.benchmarking.summary import Entrant, Spread, entrants, scored_by_entrant, spread
from hyperfuse.reporting.tables import ABSENT, BEST, SECOND, ScoreColumn, marked

ROWS = (
    ScoreColumn("PSNR", "psnr_db", 2, True),
    ScoreColumn("SAM", "spectral_angle_degrees", 2, False),
    ScoreColumn("ERGAS", "ergas", 2, False),
    ScoreColumn("SSIM", "ssim", 3, True),
)
AS_PRINTED = "as printed"


@dataclass(frozen=True)
class TableCell:
    text: str
    """The mean, or `-`."""
    deviation: str = ""
    style: str = ""
    found: Spread | None = None


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
    """How many there are in the block; a column may have fewer where a competitor failed or does not fit."""
    warnings: list[str]

    @property
    def beside_paper(self) -> bool:
        return any(name.endswith(AS_PRINTED) for name in self.columns)

    @property
    def title(self) -> str:
        scenes = f"{self.scenes} scene{'s' * (self.scenes > 1)}"
        words = [self.dataset, self.srf, self.condition, self.knowledge, scenes]
        return ", ".join(dict.fromkeys(words))


def paper_tables(results: Sequence[Result], beside_paper: bool = False) -> list[PaperTable]:
    """One for each data set, response, condition and knowledge, in the order of the results."""
    groups: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in results:
        key = (result.case.dataset, result.case.srf, result.case.condition, result.knowledge)
        groups.setdefault(key, []).append(result)
    return [_table(key, group, beside_paper) for key, group in groups.items()]


def _table(key: tuple[str, str, str, str], results: Sequence[Result], beside_paper: bool) -> PaperTable:
    dataset, srf, condition, knowledge = key
    columns = entrants(results)
    scales = sorted({result.case.scale for result in results})
    printed = (
        [each for scale in scales for each in printed_scores(dataset, scale)]
        if beside_paper and condition == "clean"
        else []
    )
    printed_methods = list(dict.fromkeys(each.method for each in printed))
    rows = [
        TableRow(
            scale,
            metric,
            [*_measured(results, columns, scale, metric), *_printed(printed, printed_methods, scale, metric)],
        )
        for scale in scales
        for metric in ROWS
    ]
    names = [column.competitor for column in columns] + [f"{method}, {AS_PRINTED}" for method in printed_methods]
    scenes = len({result.case.scene for result in results})
    return PaperTable(dataset, srf, condition, knowledge, names, rows, scenes, warnings_of(printed))


def _measured(
    results: Sequence[Result], columns: Sequence[Entrant], scale: float, metric: ScoreColumn
) -> Iterable[TableCell]:
    table = scored_by_entrant(result for result in results if result.case.scale == scale)
    found = [spread(table.get(column, {}).values(), lambda result: getattr(result, metric.field)) for column in columns]
    cells = marked([None if each is None else each.mean for each in found], metric)
    for cell, each in zip(cells, found, strict=True):
        deviation = f"{each.deviation:.{metric.digits}f}" if each is not None and each.count > 1 else ""
        yield TableCell(cell.text, deviation, cell.style, each)


def _printed(
    printed: Sequence[PrintedScores], methods: Sequence[str], scale: float, metric: ScoreColumn
) -> Iterable[TableCell]:
    for method in methods:
        found = next((each for each in printed if each.method == method and each.scale == scale), None)
        if found is None:
            yield TableCell(ABSENT)
            continue
        figure = found.figures[metric.field]
        defined = ergas_as_defined(found)
        converted = metric.field == "ergas" and defined != float(figure.mean)
        yield TableCell(f"{figure.mean} [{defined:.2f}]" if converted else figure.mean, figure.deviation)


def ablation_lines(tables: Sequence[PaperTable]) -> Iterator[str]:
    """Markdown; nothing where no table shows the paper's numbers, or the paper has no ablation on its data set."""
    scales = {(table.dataset.casefold(), row.scale) for table in tables if table.beside_paper for row in table.rows}
    shown = [each for each in printed_ablations() if (each.dataset.casefold(), each.scale) in scales]
    if not shown:
        return
    yield f"\n### The paper's ablations, {AS_PRINTED}\n"
    yield (
        "| data set | scale | variant | parameters, M | operations, G | "
        + " | ".join(row.heading for row in ROWS)
        + " |"
    )
    yield "|---|---|---|" + "---:|" * (2 + len(ROWS))
    yield from (f"| {' | '.join(_cells(each))} |" for each in shown)
    yield "\nERGAS has the factor 100/4 at every scale. What a small network makes of the same questions: docs/training.md."


def _cells(printed: PrintedAblation) -> list[str]:
    counts = [ABSENT if count is None else f"{count:g}" for count in (printed.parameters_millions, printed.flops_g)]
    return [
        printed.dataset,
        f"x{printed.scale:g}",
        printed.variant,
        *counts,
        *(printed.figures[row.field].text for row in ROWS),
    ]


CSV_COLUMNS = (
    "dataset",
    "response",
    "condition",
    "knowledge",
    "scale",
    "metric",
    "competitor",
    "mean",
    "standard_deviation",
    "scenes",
)
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
}
LATEX_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX_HEAD = (
    "% needs \\usepackage{booktabs}; best in bold, second best underlined, mean and standard deviation over scenes\n"
)


def tables_markdown(tables: Sequence[PaperTable]) -> str:
    return "\n".join(markdown_lines(tables)) + "\n"


def markdown_lines(tables: Sequence[PaperTable]) -> Iterator[str]:
    yield "Mean ± standard deviation over scenes; best in bold, second best underlined."
    for table in tables:
        yield f"\n### {table.title}\n"
        yield "| scale | | " + " | ".join(name.replace("|", "\\|") for name in table.columns) + " |"
        yield "|---|---|" + "---:|" * len(table.columns)
        for row in table.rows:
            cells = " | ".join(map(_markdown_cell, row.cells))
            yield f"| x{row.scale:g} | {row.metric.heading} | {cells} |"
        if table.warnings:
            yield ""
            yield from (f"- {words}" for words in table.warnings)
    yield from ablation_lines(tables)


def tables_latex(tables: Sequence[PaperTable]) -> str:
    return LATEX_HEAD + "\n".join(_latex_table(table) for table in tables)


def tables_csv(tables: Sequence[PaperTable]) -> str:
    """One line per figure that was measured, digits and all; printed numbers are not in it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        of_table = (table.dataset, table.srf, table.condition, table.knowledge)
        for row in table.rows:
            for name, cell in zip(table.columns, row.cells, strict=True):
                if cell.found is not None:
                    figures = (cell.found.mean, cell.found.deviation, cell.found.count)
                    writer.writerow([*of_table, f"{row.scale:g}", row.metric.field, name, *figures])
    return text.getvalue()


def _markdown_cell(cell: TableCell) -> str:
    text = {BEST: f"**{cell.text}**", SECOND: f"<u>{cell.text}</u>"}.get(cell.style, cell.text)
    return f"{text} ± {cell.deviation}" if cell.deviation else text


def _latex_table(table: PaperTable) -> str:
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{_escaped(table.title)}.}}",
        rf"\begin{{tabular}}{{@{{}}ll{'c' * len(table.columns)}@{{}}}}",
        r"\toprule",
        " & ".join(["", "", *(_escaped(name) for name in table.columns)]) + r" \\",
    ]
    scale = None
    for row in table.rows:
        if row.scale != scale:
            lines.append(r"\midrule")
        first = rf"$\times${row.scale:g}" if row.scale != scale else ""
        arrow = r"$\uparrow$" if row.metric.higher_is_better else r"$\downarrow$"
        lines.append(" & ".join([first, f"{row.metric.heading} {arrow}", *map(_latex_cell, row.cells)]) + r" \\")
        scale = row.scale
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\\[2pt]{{\footnotesize {_escaped(words)}}}" for words in table.warnings),
    ]
    return "\n".join([*lines, r"\end{table*}", ""])


def _latex_cell(cell: TableCell) -> str:
    text = {BEST: rf"\textbf{{{cell.text}}}", SECOND: rf"\underline{{{cell.text}}}"}.get(cell.style, cell.text)
    return rf"{text}$_{{\pm {cell.deviation}}}$" if cell.deviation else text


def _escaped(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
