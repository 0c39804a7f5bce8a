"""`kernels`, the network part of `info`, and the errors of `export` (its file is tested in test_onnx_export.py)."""

from __future__ import annotations

import json

import pytest
from tests.models.network_fixtures import tiny_network

from hyperfuse.cli.experiments import describe_network, export, kernels, print_network
from hyperfuse.errors import BandError, CubeWriteError, OptionError, WeightsError


@pytest.fixture
def weights(tmp_path):
    tiny_network().save_pretrained(tmp_path / "weights")
    return str(tmp_path / "weights")


def test_info_of_the_paper_s_network_as_json(capsys):
    print_network(describe_network("ssa-6-6"), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["parameters"] == 18_654_403
    assert printed["multiply_adds"]["output_kernel_per_candidate"] / 1e9 == pytest.approx(202.0, rel=0.005)
    assert printed["receptive_field"] == {"fine": 16, "coarse": 15}


def test_info_for_people(capsys):
    print_network(
        describe_network("ssa-small", bands=10, msi_bands=4, size=64, scale=3.2, fixed_bands=True), as_json=False
    )
    printed = capsys.readouterr().out
    assert "coarse size: 20" in printed
    assert "matryoshka kernels: False" in printed
    assert "multiply adds, equation: " in printed


def test_info_says_what_is_wrong():
    with pytest.raises(OptionError, match='no network is called "ssa-7"; expected one of'):
        describe_network("ssa-7")
    with pytest.raises(BandError, match="220 hsi bands and 3 msi bands; expected at most 194 together"):
        describe_network("ssa-small", bands=220)
    with pytest.raises(OptionError, match=r"scale 0\.5; expected"):
        describe_network("ssa-small", scale=0.5)


def test_kernels_draws_and_prints(weights, tmp_path, capsys):
    kernels(weights, tmp_path / "kernels.png", as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["smoothness"]) == {"input kernel (hsi)", "input kernel (pair)", "output kernel"}
    assert (tmp_path / "kernels.png").exists()
    kernels(weights, tmp_path / "kernels.svg", channels=6)
    assert "output kernel        smoothness" in capsys.readouterr().out


def test_errors_become_those_of_the_command_line(tmp_path, weights):
    with pytest.raises(WeightsError, match="does not exist"):
        export(str(tmp_path / "nothing"), tmp_path / "a.onnx")
    with pytest.raises(CubeWriteError, match="nowhere is not a folder"):
        kernels(weights, tmp_path / "nowhere" / "kernels.png")
    with pytest.raises(OptionError, match="2 channels to draw"):
        kernels(weights, tmp_path / "kernels.png", channels=2)


@pytest.mark.parametrize(("command", "name"), [(export, "network.onnx"), (kernels, "kernels.png")])
def test_what_lies_at_the_target_is_kept_before_any_work(command, name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(CubeWriteError, match="exists already; choose another name or add --overwrite"):
        command("no such weights", tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "work").write_text("mine")
    with pytest.raises((CubeWriteError, OptionError), match="folder"):
        command("no such weights", tmp_path / "folder", overwrite=True)


def test_kernels_replaces_a_figure_on_request(weights, tmp_path):
    (tmp_path / "kernels.svg").write_text("old")
    kernels(weights, tmp_path / "kernels.svg", overwrite=True)
    assert (tmp_path / "kernels.svg").stat().st_size > 1000
