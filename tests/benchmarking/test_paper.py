"""The paper's printed tables as data: complete, and never without their warnings."""

from __future__ import annotations

import pytest

from hyperfuse.benchmarking.results import METRICS, printed_ablations, printed_efficiency, printed_scores, warnings_of
from hyperfuse.data.datasets import DATASETS

METHODS = ["DSPNet", "MIMO-SST", "DCINN", "DCFormer", "PSTUN", "LRTN", "SSA"]
SEVEN = ["CAVE", "PaviaC", "Harvard", "PaviaU", "Chikusei", "Botswana", "WDC"]


def test_seven_data_sets_four_scales_seven_methods():
    main = [each for each in printed_scores() if each.table == "main"]
    # DCFormer does not go beyond x8.
    expected = {
        (dataset, scale, method)
        for dataset in SEVEN
        for scale in (4.0, 8.0, 16.0, 32.0)
        for method in METHODS
        if method != "DCFormer" or scale <= 8
    }
    assert {(each.dataset, each.scale, each.method) for each in main} == expected
    assert all(
        float(each.figures[metric].mean) > 0 and each.figures[metric].deviation for each in main for metric in METRICS
    )
    assert set(SEVEN) | {"Houston", "Loukia"} == set(DATASETS)


def test_figures_as_printed():
    (ssa,) = (each for each in printed_scores("cave", 4) if each.method == "SSA")
    assert [ssa.figures[metric].text for metric in METRICS] == [
        "45.96 ± 4.69",
        "2.55 ± 1.00",
        "1.72 ± 1.13",
        "0.994 ± 0.005",
    ]
    (lrtn,) = (each for each in printed_scores("WDC", 32) if each.method == "LRTN")
    assert [lrtn.figures[metric].text for metric in METRICS] == [
        "34.99 ± 1.95",
        "3.94 ± 0.50",
        "8.31 ± 1.18",
        "0.945 ± 0.011",
    ]
    psnr = {(each.scale, each.method): each.figures["psnr_db"].mean for each in printed_scores("CAVE")}
    assert [psnr[scale, "SSA"] for scale in (4, 8, 16, 32, 3.2, 5.7)] == [
        "45.96",
        "38.80",
        "31.84",
        "28.06",
        "45.02",
        "43.49",
    ]
    assert psnr[3.2, "bicubic"] == "38.50"
    assert [each.figures["psnr_db"].mean for each in printed_scores("Loukia")] == ["36.25", "35.80", "35.92", "36.42"]


def test_ablations_and_efficiency():
    depth = [each for each in printed_ablations() if each.table == "depth"]
    assert [each.parameters_millions for each in depth] == [2.735, 9.213, 13.934, 18.654]
    assert len([each for each in printed_ablations() if each.table == "kernels"]) == 8
    efficiency = {each.method: each for each in printed_efficiency()}
    assert list(efficiency) == METHODS
    assert (efficiency["PSTUN"].parameters_millions, efficiency["SSA"].milliseconds) == (29.948, 83.4)


def test_warnings():
    def warned(dataset, scale):
        return " ".join(warnings_of(printed_scores(dataset, scale)))

    assert "100/4" not in warned("CAVE", 4)
    assert "100/4" in warned("CAVE", 8)
    assert "tested on pixels that it was trained on" in warned("WDC", 4)
    assert "trained on" not in warned("Harvard", 32)
    assert "500 iterations" in warned("Houston", 4)
    assert "bicubic" in warned("CAVE", 3.2)
    assert all("orders of magnitude" in " ".join(each.warnings) for each in printed_scores())


@pytest.mark.parametrize(("scale", "factor"), [(4, 1.0), (8, 0.5), (32, 0.125), (3.2, 1.0)])
def test_ergas_with_the_factor_of_its_definition(scale, factor):
    for each in printed_scores("CAVE", scale):
        assert each.ergas_as_defined == pytest.approx(float(each.figures["ergas"].mean) * factor)
