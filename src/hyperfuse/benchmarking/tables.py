"""Tables of a benchmark: a summary in Markdown, and tables in the paper's form as Markdown, LaTeX (booktabs) and CSV.

In the paper's form there is a block per data set, with rows of PSNR, SAM, ERGAS and SSIM at each scale and a column per
model. A cell is mean and standard deviation over the scenes; best and second best are marked among what was measured.
Printed numbers follow and are never ranked with them. The folder `pages` holds what surrounds the tables.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from hyperfuse.benchmarking.cases import AS_RECORDED, CLEAN, CasePair
from hyperfuse.benchmarking.results import (
    BLIND,
    FAILED,
    NOMINAL,
    ORACLE,
    SCORED,
    UNFIT,
    CaseName,
    PrintedScores,
    Result,
    Spread,
    columns_of,
    mean_score,
    printed_ablations,
    printed_scores,
    read_record,
    results_in,
    session_line,
    warnings_of,
)
from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import published, write_text
from hyperfuse.physics.imperfections import describe_imperfections
from hyperfuse.reporting import style
from hyperfuse.reporting.figures import FusedViews, InputViews, fusion_figure, view_fused, view_inputs
from hyperfuse.reporting.tables import ABSENT, BEST, SECOND, Cell, ScoreColumn, markdown_table, marked

CHART = "psnr_against_scale.png"
BEGIN, END = "<!-- benchmark {} -->", "<!-- end of benchmark {} -->"
AS_PRINTED = "as printed"
METRICS = (
    ScoreColumn("PSNR", "psnr_db", 2, True),
    ScoreColumn("SAM", "spectral_angle_degrees", 2, False),
    ScoreColumn("ERGAS", "ergas", 2, False),
    ScoreColumn("SSIM", "ssim", 3, True),
)


class SummaryColumn(NamedTuple):
    heading: str
    field: str
    digits: int
    unit: float = 1.0
    with_deviation: bool = True


SUMMARY_COLUMNS = (
    SummaryColumn("PSNR dB", "psnr_db", 2),
    SummaryColumn("SAM deg", "spectral_angle_degrees", 2),
    SummaryColumn("ERGAS", "ergas", 3),
    SummaryColumn("SSIM", "ssim", 4),
    SummaryColumn("seconds", "seconds", 2, with_deviation=False),
    SummaryColumn("CPU s", "cpu_seconds", 2, with_deviation=False),
    SummaryColumn("MB", "peak_bytes", 0, 1e6, with_deviation=False),
)
CSV_COLUMNS = ("dataset", "srf", "condition", "knowledge", "scale", "metric", "model", "mean",
               "standard_deviation", "scenes")  # fmt: skip
LATEX_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def render(page: str, **values: Any) -> str:
    """Fill a page of the folder `pages`; the text ends without a line break."""
    settings: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    environment = Environment(loader=PackageLoader(__package__, "pages"), autoescape=False, **settings)
    environment.filters |= {"latex": lambda text: text.translate(LATEX_ESCAPES), "session": session_line}
    return environment.get_template(page).render(values).rstrip("\n")


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
        "summary.md": f"# Benchmark\n\n{summary_markdown(results, record)}\n",
        "tables.md": f"{tables_markdown(tables)}\n",
        "tables.csv": tables_csv(tables),
        "tables.tex": tables_latex(tables),
    }
    written = [write_text(folder / name, text) for name, text in texts.items()]
    chart = scale_chart(folder / CHART, results, beside_paper)
    return [*written, *([chart] if chart else []), *(case_figures(folder, results) if pictures else [])]


def write_into(document: Path, folder: Path, beside_paper: bool = False) -> Path:
    """Put the summary between the document's marks for this folder's name; `beside_paper` the tables, too.

    Of imperfections only the mean scores are given. The chart goes into `images` beside the document.
    """
    name = folder.absolute().name
    before, after = around_the_place(document, folder)
    results = results_in(folder)
    parts = ["", summary_markdown(results, read_record(folder), level=3, brief=True)]
    if beside_paper:
        parts += ["", tables_markdown(paper_tables(results, beside_paper))]
    if chart_panels(results):
        images = document.parent / "images"
        images.mkdir(exist_ok=True)
        scale_chart(images / f"{name}_{CHART}", results, beside_paper)
        parts += ["", f"![PSNR against scale]({images.name}/{name}_{CHART})"]
    return write_text(document, "\n".join([before, *parts, after]))


def around_the_place(document: Path, folder: Path) -> tuple[str, str]:
    """The document up to its mark for this folder's name, and from the closing mark on; it must have both."""
    name = folder.absolute().name
    begin, end = BEGIN.format(name), END.format(name)
    try:
        text = document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f": {error.strerror}" if isinstance(error, OSError) else " is not a text file"
        raise OptionError(f"{document}{reason}", "a Markdown file", "check --into") from error
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        expected = f"the lines {begin} and {end}, once each"
        raise OptionError(f"{document} without a place for these tables", expected, "add them")
    return text[: text.index(begin) + len(begin)], text[text.index(end) :]


def summary_markdown(
    results: Sequence[Result], record: Mapping[str, Any], level: int = 2, *, brief: bool = False
) -> str:
    """Protocol, means, distances to the best of the others, every case; headings of this level.

    `brief` leaves out the tables of single imperfections and their cases.
    """
    by_condition: dict[str, list[Result]] = {}
    for result in results:
        by_condition.setdefault(result.case.condition, []).append(result)
    detailed = {name: own for name, own in by_condition.items() if not (brief and describe_imperfections(name))}
    return render(
        "summary.md.j2",
        heading="#" * level,
        sessions=record["sessions"],
        overlapping=record["request"].get("overlapping", ()),
        overview="\n".join(overview_table(by_condition)) if len(by_condition) > 1 else "",
        conditions={name: "\n".join(condition_table(own)) for name, own in detailed.items()},
        cases="\n".join(case_table([result for result in results if result.case.condition in detailed])),
        failures=[result for result in results if result.state == FAILED],
        left_out=[*record["request"].get("left_out", ()), *_describe_unfit(results)],
    )


def overview_table(by_condition: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """A row per condition: the mean PSNR over its cases; the best in bold."""
    columns = columns_of(each for results in by_condition.values() for each in results)
    rows = []
    for condition, results in by_condition.items():
        spreads = [mean_score((each for each in results if each.column == name), "psnr_db") for name in columns]
        texts = [ABSENT if each is None else f"{each.mean:.2f}" for each in spreads]
        cells = _best_in_bold([None if each is None else each.mean for each in spreads], texts)
        rows.append(
            [condition, describe_imperfections(condition), str(len({result.case for result in results})), *cells]
        )
    yield from markdown_table(["condition", "", "cases", *columns], rows, left=(0, 1))


def _best_in_bold(values: Sequence[float | None], texts: Sequence[str]) -> list[str]:
    best = max((value for value in values if value is not None), default=None)
    return [
        f"**{text}**" if value is not None and value == best else text
        for value, text in zip(values, texts, strict=True)
    ]


def condition_table(results: Sequence[Result]) -> Iterator[str]:
    """A row per column of results: means over all cases, and distances to the best of the others in every case."""
    given = [knowledge for knowledge in (ORACLE, BLIND) if any(each.knowledge == knowledge for each in results)]
    distances = [f"over the best other {knowledge}: mean, worst dB" for knowledge in given]
    headings = ["", "cases", *(each.heading for each in SUMMARY_COLUMNS), *distances]
    rows = []
    for column in columns_of(results):
        own = [each for each in results if each.column == column and each.state == SCORED]
        if own:
            means = [_mean_cell(mean_score(own, each.field), each) for each in SUMMARY_COLUMNS]
            differences = [distance_to_best_other(results, column, knowledge) for knowledge in given]
            rows.append([column, str(len(own)), *means, *differences])
    yield from markdown_table(headings, rows, left=(0, *range(len(headings) - len(given), len(headings))))
    if len({row[1] for row in rows}) > 1:
        yield "\nMeans over different numbers of cases are not to be compared."


def _mean_cell(spread: Spread | None, column: SummaryColumn) -> str:
    if spread is None:
        return ABSENT
    values = [spread.mean, spread.deviation] if column.with_deviation and spread.count > 1 else [spread.mean]
    return " ± ".join(f"{value / column.unit:.{column.digits}f}" for value in values)


def case_table(results: Sequence[Result]) -> Iterator[str]:
    """A row per case; the best PSNR in bold."""
    columns = columns_of(results)
    by_case: dict[CaseName, dict[str, Result]] = {}
    for result in results:
        by_case.setdefault(result.case, {})[result.column] = result
    rows = []
    for case, own in by_case.items():
        row = [own.get(column) for column in columns]
        rows.append(
            [str(case), *_best_in_bold([getattr(each, "psnr_db", None) for each in row], [*map(_case_cell, row)])]
        )
    headings = ["scene, MSI, scale, condition", *columns]
    yield from markdown_table(headings, rows, left=range(len(headings)))


def _case_cell(result: Result | None) -> str:
    if result is None or result.state == UNFIT:
        return ABSENT
    if result.psnr_db is None:
        return FAILED if result.state == FAILED else "equal"
    return f"{result.psnr_db:.2f} / {result.spectral_angle_degrees:.2f}"


def distance_to_best_other(results: Iterable[Result], column: str, knowledge: str) -> str:
    """By how many dB a column is above the best other model of this knowledge: on average and in the worst case.

    A recorded pair has no oracles and is compared with blind ones.
    """
    scores = [(each, each.psnr_db) for each in results if each.psnr_db is not None]
    own = [(each, psnr_db) for each, psnr_db in scores if each.column == column]
    best: dict[CaseName, float] = {}
    for each, psnr_db in scores:
        compared = BLIND if each.case.condition == AS_RECORDED else knowledge
        if own and each.model != own[0][0].model and each.knowledge == compared:
            best[each.case] = max(psnr_db, best.get(each.case, -math.inf))
    differences = [(psnr_db - best[each.case], each.case) for each, psnr_db in own if each.case in best]
    if not differences:
        return ABSENT
    worst, case = min(differences, key=lambda each: each[0])
    mean = np.mean([difference for difference, _ in differences])
    return f"{mean:+.2f}, {worst:+.2f} ({case.scene}, {case.srf}, x{case.scale:g})"


def _describe_unfit(results: Iterable[Result]) -> Iterator[str]:
    """An unexplained dash in a table looks like a failure."""
    unfit = {(result.model, result.case): result for result in results if result.state == UNFIT}
    for model in dict.fromkeys(model for model, _ in unfit):
        first, *others = (result for (name, _), result in unfit.items() if name == model)
        yield f"{model} is {first.message}: {first.case}" + (f" and {len(others)} more" if others else "")


def describe_failures(results: Iterable[Result]) -> list[str]:
    """One line per model that failed."""
    failed: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.state == FAILED:
            failed.setdefault((result.model, result.knowledge), []).append(result)
    return [
        f"{model} ({knowledge}) failed on {len(own)} of its cases, first on {own[0].case}: {own[0].message}"
        for (model, knowledge), own in failed.items()
    ]


@dataclass(frozen=True)
class TableCell(Cell):
    deviation: str = ""
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
    models = list(dict.fromkeys(result.model for result in results))
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
        yield TableCell(cell.text, cell.style, deviation, each)


def _printed_cell(printed: PrintedScores | None, metric: ScoreColumn) -> TableCell:
    if printed is None:
        return TableCell(ABSENT)
    figure = printed.figures[metric.field]
    converted = metric.field == "ergas" and printed.ergas_as_defined != float(figure.mean)
    text = f"{figure.mean} [{printed.ergas_as_defined:.2f}]" if converted else figure.mean
    return TableCell(text, deviation=figure.deviation)


def tables_markdown(tables: Sequence[PaperTable], *, ablations: bool = True) -> str:
    """With the paper's ablations on the data sets and scales of these tables, where it is shown beside ours."""
    lines = ["Mean ± standard deviation over scenes; best in bold, second best underlined."]
    for table in tables:
        rows = [[f"x{row.scale:g}", row.metric.heading, *map(_markdown_cell, row.cells)] for row in table.rows]
        lines += [f"\n### {table.title}\n", *markdown_table(["scale", "", *table.columns], rows, left=(0, 1))]
        lines += ["", *(f"- {warning}" for warning in table.warnings)] if table.warnings else []
    scales = {(table.dataset.casefold(), row.scale) for table in tables if table.warnings for row in table.rows}
    printed = [each for each in printed_ablations() if (each.dataset.casefold(), each.scale) in scales]
    if printed and ablations:
        lines += [f"\n### The paper's ablations, {AS_PRINTED}\n", *printed_table(printed)]
        lines.append(
            "\nERGAS has the factor 100/4 at every scale. The same ablations of a small network: docs/reproduce.md."
        )
    return "\n".join(lines)


def _markdown_cell(cell: TableCell) -> str:
    text = {BEST: f"**{cell.text}**", SECOND: f"<u>{cell.text}</u>"}.get(cell.style, cell.text)
    return f"{text} ± {cell.deviation}" if cell.deviation else text


def printed_table(printed: Iterable[PrintedScores]) -> Iterator[str]:
    """Numbers of the paper, a row each."""
    headings = ["data set", "scale", "variant", "parameters, M", "operations, G", *(each.heading for each in METRICS)]
    rows = []
    for each in printed:
        counts = [ABSENT if count is None else f"{count:g}" for count in (each.parameters_millions, each.flops_g)]
        figures = [each.figures[metric.field].text for metric in METRICS]
        rows.append([each.dataset, f"x{each.scale:g}", each.method, *counts, *figures])
    yield from markdown_table(headings, rows, left=(0, 1, 2))


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


def tables_latex(tables: Sequence[PaperTable]) -> str:
    return render("tables.tex.j2", tables=tables) + "\n"


PICTURES = "pictures"
# Inches.
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW, LEGEND_HEIGHT = 5.2, 3.9, 3, 0.9
PRINTED_COLOUR, PRINTED_MARKERS = "#999999", "1234+x."


def case_folder(folder: Path, case: CaseName) -> Path:
    """Where the views of a case are kept."""
    readable = re.sub(r"[^A-Za-z0-9.+]+", "_", f"{case.dataset} {case}")
    return folder / PICTURES / f"{readable[:80]}_{zlib.crc32(repr(case).encode()):08x}"


def keep_views(folder: Path, pair: CasePair, model: str, fused: NDArray[np.float32]) -> None:
    """Save what a figure shows of a fused image; what all models share is saved once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not _file_of(folder).exists():
        _save(_file_of(folder), view_inputs(pair.hsi, pair.msi, pair.reference))
    shown = pair.reference.copy(data=np.clip(fused, 0.0, 1.0))
    _save(_file_of(folder, model), view_fused(shown, pair.reference, load_inputs(folder).pixels))


def load_inputs(folder: Path) -> InputViews:
    with np.load(_file_of(folder)) as stored:
        return InputViews(**{name: stored[name] for name in stored} | {"axis_name": str(stored["axis_name"])})


def load_fused(folder: Path, models: Iterable[str]) -> dict[str, FusedViews]:
    """The views that were kept, in the order of `models`."""
    views = {}
    for model in models:
        path = _file_of(folder, model)
        if path.exists():
            with np.load(path) as stored:
                views[model] = FusedViews(**{name: stored[name] for name in stored})
    return views


def _file_of(folder: Path, model: str | None = None) -> Path:
    """The file of the inputs, or of a model of any name."""
    return folder / (f"{quote(model, safe=' +')}.npz" if model is not None else "=inputs.npz")


def _save(path: Path, views: InputViews | FusedViews) -> None:
    with published(path, overwrite=True) as target, target.open("wb") as file:
        np.savez_compressed(file, **vars(views))


def case_figures(folder: Path, results: Sequence[Result]) -> list[Path]:
    """Draw every case of which views were kept; the files that were written."""
    written = []
    for case in dict.fromkeys(result.case for result in results):
        kept = case_folder(folder, case)
        fused = load_fused(kept, [result.model for result in results if result.case == case])
        if fused and _file_of(kept).exists():
            written.append(fusion_figure(kept.with_name(f"{kept.name}.png"), str(case), load_inputs(kept), fused))
    return written


def chart_panels(results: Sequence[Result]) -> dict[tuple[str, str, str], list[Result]]:
    """Results by data set, SRF and condition, where there are several scales; imperfections only in tables.

    Of results both blind and oracle the blind ones are shown: the two lie so close that one hides the other.
    """
    panels: dict[tuple[str, str, str], list[Result]] = {}
    given = {result.knowledge for result in results}
    shown = next((each for each in (BLIND, ORACLE) if each in given), NOMINAL)
    for result in results:
        if result.knowledge != shown or describe_imperfections(result.case.condition):
            continue
        panels.setdefault((result.case.dataset, result.case.srf, result.case.condition), []).append(result)
    return {key: group for key, group in panels.items() if len({result.case.scale for result in group}) > 1}


def scale_chart(path: Path, results: Sequence[Result], beside_paper: bool = False) -> Path | None:
    """Draw the PSNR of every model against the scale; None where nothing was measured at several scales."""
    panels = chart_panels(results)
    if not panels:
        return None
    across = min(PANELS_PER_ROW, len(panels))
    down = math.ceil(len(panels) / across)
    figure = style.new_figure(across * PANEL_WIDTH, down * PANEL_HEIGHT + LEGEND_HEIGHT, layout="constrained")
    dashes = ("-", *itertools.repeat("-.", 20))
    styles_in_turn = itertools.product(dashes, zip(style.COLOURS, style.MARKERS, strict=True))
    names = dict.fromkeys(result.model for result in results)
    styles = {
        name: {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.4, "markersize": 4.5}
        for name, (dash, (colour, marker)) in zip(names, styles_in_turn, strict=False)
    }
    measured: dict[str, Any] = {}
    printed: dict[str, Any] = {}
    for place, (key, group) in enumerate(panels.items()):
        axes: Any = figure.add_subplot(down, across, place + 1)
        scales = sorted({result.case.scale for result in group})
        if beside_paper and key[2] == CLEAN:
            printed |= _draw_printed(axes, key[0], scales)
        for model in dict.fromkeys(each.model for each in group):
            own = [each for each in group if each.model == model]
            means = [(x, mean_score((each for each in own if each.case.scale == x), "psnr_db")) for x in scales]
            if points := [(scale, spread.mean) for scale, spread in means if spread is not None]:
                (measured[own[0].column],) = axes.plot(*zip(*points, strict=True), **styles[model])
        axes.set_title(", ".join(dict.fromkeys(key)), fontsize=style.MEDIUM, loc="left")
        axes.set_xscale("log", base=2)
        axes.set_xticks(scales, [f"x{scale:g}" for scale in scales])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("scale", fontsize=style.SMALL)
        if place % across == 0:
            axes.set_ylabel("PSNR (dB), mean over scenes", fontsize=style.SMALL)
        style.clean_axes(axes)
    style.draw_legend(figure, measured | printed, "outside lower center", 3 * across)
    return style.save_png(figure, path)


def _draw_printed(axes: Any, dataset: str, scales: Sequence[float]) -> dict[str, Any]:
    by_method: dict[str, list[tuple[float, float]]] = {}
    for each in printed_scores(dataset):
        if each.scale in scales:
            by_method.setdefault(each.method, []).append((each.scale, float(each.figures["psnr_db"].mean)))
    handles = {}
    for (method, points), marker in zip(by_method.items(), itertools.cycle(PRINTED_MARKERS)):
        line = {"color": PRINTED_COLOUR, "marker": marker, "markersize": 6, "linewidth": 0.8}
        (handles[f"{method}, as printed"],) = axes.plot(*zip(*sorted(points), strict=True), **line)
    return handles
