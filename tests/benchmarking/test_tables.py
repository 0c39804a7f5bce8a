"""From results to statistics, tables and marks; the paper's numbers stay apart from ours."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from tests.benchmarking.tiny_benchmarks import result

from hyperfuse.benchmarking.results import BLIND, FAILED, ORACLE, UNFIT, mean_score
from hyperfuse.benchmarking.tables import (
    case_table,
    chart_panels,
    condition_table,
    describe_failures,
    distance_to_best_other,
    paper_tables,
    scale_chart,
    summary_markdown,
    tables_csv,
    tables_latex,
    tables_markdown,
)

RESULTS = [
    result("ours", 40.0),
    result("ours", 44.0, scene="two"),
    result("glp", 41.0),
    result("glp", 42.0, scene="two"),
    result("net_1", None, state=UNFIT),
    result("net_1", 30.0, scene="two"),
    result("glp", 43.0, knowledge="oracle"),
    result("glp", 42.5, scene="two", knowledge="oracle"),
]


def test_mean_score_is_mean_and_standard_deviation_over_scenes():
    values = [40.0, 44.0, 45.0]
    found = mean_score([result("ours", value, scene=str(value)) for value in values], "psnr_db")
    assert (found.mean, found.deviation, found.count) == (
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values)),
        3,
    )
    assert mean_score([result("ours", None, state=FAILED)], "psnr_db") is None


def test_distance_is_to_the_best_of_the_others_in_each_case():
    assert distance_to_best_other(RESULTS, "ours", ORACLE) == "-0.75, -3.00 (one, rgb, x4)"
    assert distance_to_best_other(RESULTS, "ours", BLIND) == "+0.50, -1.00 (one, rgb, x4)"
    assert distance_to_best_other(RESULTS, "glp", ORACLE) == "-", "its own oracle is no other"


def test_a_recorded_pair_is_compared_with_the_blind_ones():
    recorded = [result("ours", 31.0, condition="as recorded"), result("glp", 30.0, condition="as recorded")]
    assert distance_to_best_other(recorded, "ours", ORACLE).startswith("+1.00, +1.00")


def test_best_and_second_best_of_each_row_are_marked():
    blind, oracle = paper_tables(RESULTS)
    assert blind.title == "valley, rgb, clean, blind, 2 scenes"
    assert blind.columns == ["ours", "glp", "net_1"]
    text = tables_markdown([blind])
    assert "| x4 | PSNR | **42.00** ± 2.00 | <u>41.50</u> ± 0.50 | 30.00 |" in text
    assert "| x4 | SAM | **48.00** ± 2.00 | <u>48.50</u> ± 0.50 | 60.00 |" in text
    assert [row.metric.heading for row in oracle.rows] == ["PSNR", "SAM", "ERGAS", "SSIM"]


def test_latex_escapes_and_marks():
    text = tables_latex(paper_tables(RESULTS)[:1])
    assert r"net\_1 \\" in text
    assert (
        r"$\times$4 & PSNR $\uparrow$ & \textbf{42.00}$_{\pm 2.00}$ & \underline{41.50}$_{\pm 0.50}$ & 30.00 \\" in text
    )
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1


def test_csv_holds_every_measured_figure_in_full():
    rows = list(csv.DictReader(io.StringIO(tables_csv(paper_tables(RESULTS, beside_paper=True)))))
    first = next(row for row in rows if row["model"] == "ours" and row["metric"] == "ssim")
    assert (float(first["mean"]), first["scenes"], first["scale"]) == (pytest.approx(0.42), "2", "4")
    assert not [row for row in rows if "printed" in row["model"]]


def as_dataset(name, results):
    return [replace(each, case=replace(each.case, dataset=name)) for each in results]


def test_printed_numbers_stand_beside_ours_unranked_and_with_warnings():
    ours = as_dataset("cave", [result("ours", 50.0), result("glp", 48.0), result("ours", 49.0, scale=8.0)])
    (table,) = paper_tables(ours, beside_paper=True)
    assert table.columns[:3] == ["ours", "glp", "DSPNet, as printed"]
    text = tables_markdown([table])
    assert "**50.00** | <u>48.00</u> | 40.37 ± 3.25 |" in text
    assert "3.46 [1.73] ± 1.57" in text  # SSA at x8, with the factor of the definition in brackets
    assert any("100/4 at every scale" in words for words in table.warnings)
    assert not any("trained on" in words for words in table.warnings)
    (pavia,) = paper_tables(as_dataset("PaviaC", ours), beside_paper=True)
    assert any("tested on pixels that it was trained on" in words for words in pavia.warnings)
    assert paper_tables(ours)[0].columns == ["ours", "glp"]
    assert text.count("### The paper's ablations, as printed") == 1
    assert "| CAVE | x4 | 6 + 6 blocks | 18.654 | 202 | 45.96 ± 4.69 |" in text and "| PaviaC |" not in text
    assert "ablations" not in tables_markdown(paper_tables(ours))
    assert "| PaviaC | x8 | SSA | - | - | 38.59 ± 0.67 |" in tables_markdown([pavia])


def test_summary_tables_name_the_worst_case_and_what_failed():
    failed = result("ours", None, scene="three", state=FAILED, message="a dark night")
    lines = "\n".join(condition_table([*RESULTS, failed]))
    assert "| ours | 2 | 42.00 ± 2.00 |" in lines
    assert "-0.75, -3.00 (one, rgb, x4)" in lines
    assert "are not to be compared" in lines
    cases = "\n".join(case_table([*RESULTS, failed]))
    assert "| one, rgb, x4, clean | 40.00 / 50.00 | 41.00 / 49.00 | - | **43.00 / 47.00** |" in cases
    assert "| three, rgb, x4, clean | failed | - | - | - |" in cases
    words = "ours (blind) failed on 1 of its cases, first on three, rgb, x4, clean: a dark night"
    assert describe_failures([*RESULTS, failed]) == [words]


def test_chart_needs_several_scales(tmp_path):
    assert scale_chart(tmp_path / "chart.png", RESULTS) is None
    several = as_dataset("CAVE", [result("ours", 50.0 - scale, scale=scale) for scale in (4.0, 5.7, 16.0)])
    assert list(chart_panels([*several, *RESULTS])) == [("CAVE", "rgb", "clean")]
    assert scale_chart(tmp_path / "chart.png", several, beside_paper=True).stat().st_size > 5000


def test_imperfections_have_an_overview_and_are_kept_short_in_documents():
    changed = [
        replace(each, case=replace(each.case, condition="change"), psnr_db=each.psnr_db - 10)
        for each in RESULTS
        if each.psnr_db is not None
    ]
    results, record = [*RESULTS, *changed], {"request": {}, "sessions": []}
    whole, brief = (summary_markdown(results, record, brief=brief) for brief in (False, True))
    for text in (whole, brief):
        assert "| condition |  | cases | ours | glp | net_1 | glp (oracle) |" in text
        assert "| clean |  | 2 | 42.00 | 41.50 | 30.00 | **42.75** |" in text
        words = "MSI of another date: 3 % of the area shows something else"
        assert f"| change | {words} | 2 | 32.00 | 31.50 | 20.00 | **32.75** |" in text
    assert "## Change" in whole and "| one, rgb, x4, change |" in whole
    assert "## Change" not in brief and "| one, rgb, x4, change |" not in brief
    assert "## Clean" in brief and "| one, rgb, x4, clean |" in brief


def test_chart_shows_what_was_given(tmp_path):
    nominal = [result("ours", 50.0 - scale, scale=scale, knowledge="nominal") for scale in (4.0, 8.0)]
    assert list(chart_panels(nominal)) == [("valley", "rgb", "clean")]
    assert chart_panels([replace(each, case=replace(each.case, condition="bend")) for each in nominal]) == {}
