"""The paper's ablations as printed, for the data sets and scales whose tables stand beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hyperfuse.reporting.paper_tables.printed import PrintedAblation, printed_ablations
from hyperfuse.reporting.tables import ABSENT
from hyperfuse.scoring.paper_form import AS_PRINTED, ROWS, PaperTable


def ablation_lines(tables: Sequence[PaperTable]) -> Iterator[str]:
    """Markdown; nothing where no table shows the paper's numbers, or the paper has no ablation on its data set."""
    scales = {(table.dataset.casefold(), row.scale) for table in tables if table.beside_paper for row in table.rows}
    shown = [each for each in printed_ablations() if (each.dataset.casefold(), each.scale) in scales]
    if not shown:
        return
    yield f"\n### The paper's ablations, {AS_PRINTED}\n"
    yield "| data set | scale | variant | parameters, M | operations, G | " + " | ".join(row.heading for row in ROWS) + " |"
    yield "|---|---|---|" + "---:|" * (2 + len(ROWS))
    yield from (f"| {' | '.join(_cells(each))} |" for each in shown)
    yield "\nERGAS has the factor 100/4 at every scale. What a small network makes of the same questions: docs/training.md."


def _cells(printed: PrintedAblation) -> list[str]:
    counts = [ABSENT if count is None else f"{count:g}" for count in (printed.parameters_millions, printed.flops_g)]
    return [printed.dataset, f"x{printed.scale:g}", printed.variant, *counts, *(printed.figures[row.field].text for row in ROWS)]
