"""`hyperfuse efficiency`: counts are exact, exponents are fitted, files come together. Nothing here depends on how fast
it runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hyperfuse.benchmarking import efficiency as efficiency_measuring
from hyperfuse.benchmarking.efficiency import (
    PairSize,
    find_subjects,
    fitted_exponent,
    growth_sizes,
    measure_efficiency,
    run_efficiency,
    timed,
)
from hyperfuse.cli.app import run
from hyperfuse.config import EfficiencyConfig
from hyperfuse.errors import CubeWriteError, OptionError
from hyperfuse.methods.universal import shipped_network
from hyperfuse.models.analysis import count_multiply_adds, multiply_adds, performed_multiply_adds
from hyperfuse.models.catalogue import BASELINE_PRESETS, build_network
from hyperfuse.models.matryoshka import Components, WavelengthBands
from hyperfuse.models.ssa import SSA, SSAConfig, preset

SMALL = PairSize(bands=5, msi_bands=2, side=16, scale=4.0)
ONCE = EfficiencyConfig(warm_up=1, repeats=3, seconds=0.0, growth=False)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiency_measuring, "MATMUL_SIDE", 32)
    monkeypatch.setattr(efficiency_measuring, "BAND_COUNTS", (4, 6, 8))
    monkeypatch.setattr(efficiency_measuring, "SIDES", (1.0, 1.25, 1.5))


def test_ours_and_baselines_are_counted_alike() -> None:
    config = preset("ssa-small")
    pair = {"bands": 31, "msi_bands": 3, "fine_size": (16, 16), "coarse_size": (4, 4)}
    assert performed_multiply_adds(config, **pair) == count_multiply_adds(config, **pair).performed
    assert performed_multiply_adds(BASELINE_PRESETS["dcinn-thin"], **pair) > 0, (
        "in evaluation, where nothing is fitted to values"
    )
    mimo = build_network(BASELINE_PRESETS["mimo-sst-thin"])
    hsi, msi = torch.rand(1, 31, 4, 4), torch.rand(1, 3, 16, 16)
    assert performed_multiply_adds(mimo.config, **pair) == multiply_adds(lambda: mimo(hsi, msi))


@pytest.mark.parametrize("channels", [Components(count=4), WavelengthBands(knots=5)])
def test_channels_that_are_found_from_the_pair_are_counted(channels: Components | WavelengthBands) -> None:
    sizes = {"width": 4, "spectral_blocks": 1, "spatial_blocks": 1, "decoder_hidden": (8,), "feature_width": 4}
    config = SSAConfig(**sizes, msi_kernel="own", channels=channels, base="gsa")
    assert performed_multiply_adds(config, 6, 3, (16, 16), (4, 4)) > 16 * 16 * 9 * 4 * 4


def test_a_matrix_product_is_counted_by_hand() -> None:
    assert multiply_adds(lambda: torch.rand(3, 4) @ torch.rand(4, 5)) == 3 * 4 * 5


def test_exponents_are_those_that_made_the_costs() -> None:
    sizes = [64.0, 96.0, 128.0, 192.0]
    assert fitted_exponent(sizes, [3 * size**1.7 for size in sizes]) == pytest.approx(1.7)
    assert fitted_exponent(sizes, [0, 0, 1, 2]) is None
    assert fitted_exponent([1.0, 1.0, 1.0], [1, 2, 3]) is None


def test_sizes_of_growth() -> None:
    sides, bands = growth_sizes(PairSize(31, 3, 128, 4.0))
    assert [size.side for size in sides] == [128, 160, 192]
    assert [size.bands for size in bands] == [4, 6, 8]
    assert {size.side for size in bands} == {32}
    sides, _ = growth_sizes(SMALL)
    assert [size.side for size in sides] == [32], "not less than eight coarse pixels"


def test_warm_up_and_repeats_end_by_number_or_by_time() -> None:
    calls = []

    def work() -> torch.Tensor:
        calls.append(1)
        return torch.zeros(1)

    found = timed(work, EfficiencyConfig(warm_up=20, repeats=50, seconds=1e9), "cpu")
    assert (found.warm_up, found.repeats, len(calls)) == (20, 50, 71), "and once for the memory"
    found = timed(work, ONCE, "cpu")
    assert (found.warm_up, found.repeats) == (1, 3)
    assert found.fastest_seconds <= found.seconds
    assert found.steady_seconds == found.processor_seconds


def test_every_kind_is_measured() -> None:
    subjects = find_subjects(["ssa-small", "mimo-sst-thin"], ["bicubic", "gsa"], [])
    result = measure_efficiency(subjects, SMALL, ONCE, "cpu")
    by_name = {cost.name: cost for cost in result.costs}
    assert list(by_name) == ["ssa-small", "mimo-sst-thin", "bicubic", "gsa"]
    assert by_name["mimo-sst-thin"].parameters == sum(
        each.numel() for each in build_network(BASELINE_PRESETS["mimo-sst-thin"].with_bands(5, 2)).parameters()
    )
    assert by_name["gsa"].parameters == 0
    (shipped,) = find_subjects([], ["universal"], [])
    assert shipped.parameters(SMALL) == sum(each.numel() for each in shipped_network().parameters()) > 0
    assert by_name["gsa"].multiply_adds > by_name["bicubic"].multiply_adds > 0
    for cost in result.costs:
        assert cost.megapixels_per_second == pytest.approx(256 / 1e6 / cost.seconds)
        assert cost.in_matmuls > 0 and np.isfinite(cost.in_matmuls)


def test_what_does_not_fit_the_bands_is_left_out_and_trained_weights_come_in(tmp_path: Path) -> None:
    SSA(preset("ssa-small").with_max_channels(8)).save_pretrained(tmp_path / "run/weights")
    build_network(BASELINE_PRESETS["mimo-sst-thin"].with_bands(9, 3)).save_pretrained(tmp_path / "baseline")
    subjects = find_subjects([], [], [str(tmp_path / "run/weights"), str(tmp_path / "baseline")])
    result = measure_efficiency(subjects, SMALL, ONCE, "cpu")
    assert [cost.name for cost in result.costs] == ["run"]
    assert result.left_out == ["baseline"]


def test_the_command_writes_three_files_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new/efficiency"
    command = ["-q", "efficiency", "-o", str(folder), "--networks", "none", "--methods", "bicubic,gsa", "--size", "32"]
    command += ["--bands", "6"]
    command += ["--seconds", "100", "--warm-up", "1", "--repeats", "3"]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((folder / "efficiency.json").read_text())
    assert [each["name"] for each in found["subjects"]] == ["bicubic", "gsa"]
    assert {path.name for path in folder.iterdir()} == {"efficiency.json", "efficiency.md", "efficiency.png"}
    assert "| gsa |  |" in (folder / "efficiency.md").read_text()
    assert (folder / "efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert run(command) == 2
    assert "exists already" in capsys.readouterr().err
    assert run([*command, "--no-growth", "--overwrite"]) == 0
    assert {path.name for path in folder.iterdir()} == {"efficiency.json", "efficiency.md"}, (
        "no figure of another measurement"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"networks": ("ssa-9",)}, "no network is called 'ssa-9'.*mimo-sst"),
        ({"methods": ("magic",), "networks": ()}, "no method is called 'magic'.*gsa"),
        ({"networks": (), "methods": ()}, "nothing to measure"),
        ({"device": "tpu"}, "auto, cpu or cuda"),
    ],
)
def test_what_is_wrong_is_said_before_the_work(tmp_path: Path, wrong: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run_efficiency(tmp_path / "out", EfficiencyConfig(bands=5, msi_bands=2, size=16, **wrong))
    assert not (tmp_path / "out").exists()


def test_impossible_pairs_and_folders(tmp_path: Path) -> None:
    for wrong, message in (
        ({"bands": 0}, "bands 0; expected at least 1"),
        ({"msi_bands": 10**6}, "msi bands 1000000; expected .*at most 4096"),
        ({"size": 10**6}, "size 1000000; expected .*at most 16384"),
        ({"scale": 0.5}, "scale 0.5; expected at least 1"),
        ({"scale": float("nan")}, "scale nan; expected at least 1"),
        ({"size": 4, "scale": 4.0}, "at least two coarse pixels"),
    ):
        with pytest.raises(OptionError, match=message):
            EfficiencyConfig(**wrong)
    with pytest.raises(OptionError, match="half of this machine's memory"):
        run_efficiency(tmp_path / "out", EfficiencyConfig(bands=4096, size=16384))
    (tmp_path / "file").write_text("")
    with pytest.raises(CubeWriteError, match="is a file"):
        run_efficiency(tmp_path / "file", EfficiencyConfig())
