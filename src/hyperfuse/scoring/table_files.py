"""The tables as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from hyperfuse.reporting.tables import BEST, SECOND
from hyperfuse.scoring.paper_form import PaperTable, TableCell
from hyperfuse.scoring.printed_ablations import ablation_lines

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
LATEX_SPECIAL = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
LATEX_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX_HEAD = "% needs \\usepackage{booktabs}; best in bold, second best underlined, mean and standard deviation over scenes\n"


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
        of_table = (table.dataset, table.response, table.condition, table.knowledge)
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
    lines += [r"\bottomrule", r"\end{tabular}", *(rf"\\[2pt]{{\footnotesize {_escaped(words)}}}" for words in table.warnings)]
    return "\n".join([*lines, r"\end{table*}", ""])


def _latex_cell(cell: TableCell) -> str:
    text = {BEST: rf"\textbf{{{cell.text}}}", SECOND: rf"\underline{{{cell.text}}}"}.get(cell.style, cell.text)
    return rf"{text}$_{{\pm {cell.deviation}}}$" if cell.deviation else text


def _escaped(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
