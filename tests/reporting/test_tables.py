"""Tables: marks where they belong, nothing lost in Markdown, ASCII only."""

from __future__ import annotations

import dataclasses
import io
import math

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hyperfuse.io.cube import make_cube
from hyperfuse.metrics.evaluation import Evaluation, evaluate
from hyperfuse.reporting.tables import band_table, evaluation_table, markdown_table, score_table


def cells(table: Table) -> list[list[Text]]:
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scores() -> dict[str, Evaluation]:
    rng = np.random.default_rng(0)
    reference = make_cube(rng.uniform(0.1, 0.9, (3, 16, 16)), wavelength_nm=[470, 550, 650])
    noise = rng.standard_normal((3, 16, 16))
    return {
        name: evaluate(reference + level * noise, reference, scale=4)
        for name, level in (("bicubic", 0.1), ("gsa", 0.02), ("net", 0.05))
    }


def text_of(table: Table) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200).print(table)
    return stream.getvalue()


def test_best_is_bold_and_second_best_underlined(scores: dict[str, Evaluation]) -> None:
    table = score_table(scores)
    headings = [column.header for column in table.columns]
    assert headings == ["method", "PSNR dB", "mean-band PSNR dB", "SAM deg", "ERGAS", "SSIM"]
    assert [column.justify for column in table.columns] == ["left", *["right"] * 5]
    assert [[cell.style for cell in row] for row in cells(table)] == [
        ["", *[style] * 5] for style in ("", "bold", "underline")
    ]


def test_the_terminal_shows_the_same(scores: dict[str, Evaluation]) -> None:
    table = score_table(scores, seconds={"bicubic": 0.04, "gsa": 1.26}, title="Scores")
    text = text_of(table)
    assert "Scores" in text and "best in bold" in text
    assert f"{scores['gsa'].psnr_db:.2f}" in text and " 1.3 " in text
    styles = [[str(cell.style) for cell in column.cells] for column in table.columns[1:6]]  # type: ignore[union-attr]
    assert styles == [["", "bold", "underline"]] * 5


def test_equal_figures_are_marked_alike(scores: dict[str, Evaluation]) -> None:
    gsa = scores["gsa"]
    twin = dataclasses.replace(gsa, psnr_db=gsa.psnr_db + 1e-6)
    first = [row[1] for row in cells(score_table({"a": gsa, "b": twin, "c": scores["net"]}))]
    assert first[0].plain == first[1].plain
    assert [cell.style for cell in first] == ["bold", "bold", "underline"]


def test_one_method_alone_is_not_the_best_of_anything(scores: dict[str, Evaluation]) -> None:
    table = score_table({"gsa": scores["gsa"]})
    assert not any(cell.style for cell in cells(table)[0])
    assert "bold" not in text_of(table)


def test_absent_and_infinite_figures(scores: dict[str, Evaluation]) -> None:
    perfect = dataclasses.replace(scores["gsa"], psnr_db=math.inf, ssim=None)
    row = cells(score_table({"perfect": perfect, "net": scores["net"]}))[0]
    assert (row[1].plain, row[1].style, row[-1].plain) == ("inf", "bold", "-")
    nowhere = {name: dataclasses.replace(score, ergas=None) for name, score in scores.items()}
    assert "ERGAS" not in text_of(score_table(nowhere))


def test_markdown_escapes_its_separator() -> None:
    lines = list(markdown_table(["method", "PSNR dB"], [["a|b", "31.20"]]))
    assert lines == ["| method | PSNR dB |", "| --- | ---: |", "| a\\|b | 31.20 |"]


def test_one_evaluation_in_full(scores: dict[str, Evaluation]) -> None:
    text = text_of(evaluation_table(scores["gsa"], "gsa"))
    for word in ("PSNR dB", "SAM deg", "ERGAS", "SSIM", "UIQI", "RMSE", "peak", "scale", "100.00 %"):
        assert word in text
    assert "Q2n" not in text
    assert "-" in text_of(evaluation_table(dataclasses.replace(scores["gsa"], scale=None, ergas=None)))


def test_every_band_has_its_row(scores: dict[str, Evaluation]) -> None:
    gsa = scores["gsa"]
    without_second = dataclasses.replace(gsa, band_rmse=np.where(np.arange(3) == 1, np.nan, gsa.band_rmse))
    table = band_table(without_second)
    assert table.row_count == 3
    assert "550.0" in text_of(table)
    assert list(table.columns[3].cells)[1] == "-"


def test_tables_survive_an_ascii_terminal(scores: dict[str, Evaluation]) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=stream, width=120).print(
        score_table(scores), evaluation_table(scores["gsa"]), band_table(scores["gsa"])
    )
