"""Tables of scores for the terminal (rich), best in bold, second best underlined; and lines of Markdown tables.

Plain ASCII throughout, so that a table survives any terminal, pipe and log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from hyperfuse.metrics.evaluation import Evaluation

ABSENT = "-"
BEST, SECOND = "bold", "underline"


@dataclass(frozen=True)
class ScoreColumn:
    heading: str
    field: str
    digits: int
    higher_is_better: bool


METHOD_COLUMNS = (
    ScoreColumn("PSNR dB", "psnr_db", 2, True),
    ScoreColumn("mean-band PSNR dB", "mean_band_psnr_db", 2, True),
    ScoreColumn("SAM deg", "spectral_angle_degrees", 3, False),
    ScoreColumn("ERGAS", "ergas", 3, False),
    ScoreColumn("SSIM", "ssim", 4, True),
    ScoreColumn("Q2n", "q2n", 4, True),
)


@dataclass(frozen=True)
class Cell:
    text: str
    style: str = ""


def score_table(
    scores: Mapping[str, Evaluation], seconds: Mapping[str, float] | None = None, title: str | None = None
) -> Table:
    """One row per method; columns without any figure are left out."""
    caption = "best in bold, second best underlined" if len(scores) > 1 else None
    table = Table("method", title=title, title_justify="left", caption=caption, caption_justify="left")
    columns = [[Cell(method) for method in scores]]
    for column in METHOD_COLUMNS:
        values = [getattr(evaluation, column.field) for evaluation in scores.values()]
        if any(value is not None for value in values):
            table.add_column(column.heading, justify="right")
            columns.append(marked(values, column))
    if seconds is not None:
        table.add_column("time s", justify="right")
        columns.append([Cell(_shown(seconds.get(method), 1)) for method in scores])
    for row in zip(*columns, strict=True):
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    return table


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[int] = (0,)) -> Iterator[str]:
    """Lines of a Markdown table; columns are aligned to the right except for those at `left`."""
    aligned = set(left)
    marks = ["---" if place in aligned else "---:" for place in range(len(headings))]
    for line in (headings, marks, *rows):
        cells = [cell.replace("|", "\\|") for cell in line]
        yield f"| {' | '.join(cells)} |"


def evaluation_table(evaluation: Evaluation, title: str | None = None) -> Table:
    """One row per overall figure of one evaluation."""
    table = Table("metric", title=title, title_justify="left")
    table.add_column("value", justify="right")
    for column in METHOD_COLUMNS:
        if column.field != "q2n" or evaluation.q2n is not None:
            table.add_row(column.heading, _shown(getattr(evaluation, column.field), column.digits))
    table.add_row("UIQI", _shown(evaluation.uqi, 4))
    table.add_row("RMSE", f"{evaluation.rmse:.4g}")
    table.add_row("peak", f"{evaluation.peak:.6g}")
    table.add_row("scale", ABSENT if evaluation.scale is None else f"{evaluation.scale:g}")
    table.add_row("values compared", f"{100 * evaluation.compared_fraction:.2f} %")
    return table


def band_table(evaluation: Evaluation) -> Table:
    """One row per band; bands left out show no figures."""
    table = Table()
    for heading in ("band", "nm", "PSNR dB", "RMSE", "SSIM", "UIQI"):
        table.add_column(heading, justify="right")
    for band, nm in enumerate(evaluation.wavelength_nm):
        table.add_row(
            str(band + 1),
            _shown(nm, 1),
            _shown(evaluation.band_psnr_db[band], 2),
            ABSENT if math.isnan(evaluation.band_rmse[band]) else f"{evaluation.band_rmse[band]:.4g}",
            _shown(evaluation.band_ssim[band], 4),
            _shown(evaluation.band_uqi[band], 4),
        )
    return table


def marked(values: list[float | None], column: ScoreColumn) -> list[Cell]:
    """Ranks are those of the rounded figures: equal figures get equal marks."""
    shown = [_shown(value, column.digits) for value in values]
    ranking = sorted({float(text) for text in shown if text != ABSENT}, reverse=column.higher_is_better)
    styles = dict(zip(ranking, (BEST, SECOND), strict=False)) if len(values) > 1 else {}
    return [Cell(text, "" if text == ABSENT else styles.get(float(text), "")) for text in shown]


def _shown(value: float | None, digits: int) -> str:
    return ABSENT if value is None or math.isnan(value) else f"{value:.{digits}f}"
