"""Tables in the paper's form: a block per data set, rows of PSNR, SAM, ERGAS and SSIM at each scale, a column per competitor.

A cell is mean and standard deviation over the scenes. Best and second best are marked among what was measured; columns of printed
numbers stand behind them and are never ranked with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hyperfuse.reporting.paper_tables.printed import PrintedScores, ergas_as_defined, printed_scores, warnings_of
from hyperfuse.reporting.tables import ABSENT, ScoreColumn, marked
from hyperfuse.scoring.results import Result
from hyperfuse.scoring.statistics import Entrant, Spread, entrants, scored_by_entrant, spread

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
    response: str
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
        words = [self.dataset, self.response, self.condition, self.knowledge, scenes]
        return ", ".join(dict.fromkeys(words))


def paper_tables(results: Sequence[Result], beside_paper: bool = False) -> list[PaperTable]:
    """One for each data set, response, condition and knowledge, in the order of the results."""
    groups: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in results:
        key = (result.case.dataset, result.case.response, result.case.condition, result.knowledge)
        groups.setdefault(key, []).append(result)
    return [_table(key, group, beside_paper) for key, group in groups.items()]


def _table(key: tuple[str, str, str, str], results: Sequence[Result], beside_paper: bool) -> PaperTable:
    dataset, response, condition, knowledge = key
    columns = entrants(results)
    scales = sorted({result.case.scale for result in results})
    printed = [each for scale in scales for each in printed_scores(dataset, scale)] if beside_paper and condition == "clean" else []
    printed_methods = list(dict.fromkeys(each.method for each in printed))
    rows = [
        TableRow(scale, metric, [*_measured(results, columns, scale, metric), *_printed(printed, printed_methods, scale, metric)])
        for scale in scales
        for metric in ROWS
    ]
    names = [column.competitor for column in columns] + [f"{method}, {AS_PRINTED}" for method in printed_methods]
    scenes = len({result.case.scene for result in results})
    return PaperTable(dataset, response, condition, knowledge, names, rows, scenes, warnings_of(printed))


def _measured(results: Sequence[Result], columns: Sequence[Entrant], scale: float, metric: ScoreColumn) -> Iterable[TableCell]:
    table = scored_by_entrant(result for result in results if result.case.scale == scale)
    found = [spread(table.get(column, {}).values(), lambda result: getattr(result, metric.field)) for column in columns]
    cells = marked([None if each is None else each.mean for each in found], metric)
    for cell, each in zip(cells, found, strict=True):
        deviation = f"{each.deviation:.{metric.digits}f}" if each is not None and each.count > 1 else ""
        yield TableCell(cell.text, deviation, cell.style, each)


def _printed(printed: Sequence[PrintedScores], methods: Sequence[str], scale: float, metric: ScoreColumn) -> Iterable[TableCell]:
    for method in methods:
        found = next((each for each in printed if each.method == method and each.scale == scale), None)
        if found is None:
            yield TableCell(ABSENT)
            continue
        figure = found.figures[metric.field]
        defined = ergas_as_defined(found)
        converted = metric.field == "ergas" and defined != float(figure.mean)
        yield TableCell(f"{figure.mean} [{defined:.2f}]" if converted else figure.mean, figure.deviation)
