"""`hyperfuse benchmark` as it is typed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.benchmarking.tiny_benchmarks import write_scene

from hyperfuse.cli.app import run
from hyperfuse.errors import ValueRangeError
from hyperfuse.methods import catalogue


@pytest.fixture
def command(tmp_path):
    scene = write_scene(tmp_path / "field.npz")
    return ["-q", "benchmark", "--scenes", f"CAVE={scene}", "--methods", "bicubic,glp", "-o", str(tmp_path / "out")]


def test_everything_is_written_and_made_again_without_the_scenes(tmp_path, command, capsys):
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- benchmark out -->\noutdated\n<!-- end of benchmark out -->\nbelow\n")
    assert run([*command, "--scales", "4,3.2", "--knowledge", "oracle", "--beside-paper", "--into", str(page)]) == 0
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    tables = ["summary.md", "tables.csv", "tables.md", "tables.tex"]
    assert made == ["benchmark.json", "pictures", "psnr_against_scale.png", "results.jsonl", *tables]
    assert len(list((tmp_path / "out" / "pictures").glob("CAVE_field_rgb_x*_clean_*.png"))) == 2
    text = page.read_text()
    assert text.startswith("# Page\n") and text.endswith("below\n") and "outdated" not in text
    assert "as printed" in text and "| glp (oracle) | 2 |" in text
    summary = (tmp_path / "out" / "summary.md").read_text()
    (tmp_path / "field.npz").unlink()
    (tmp_path / "out" / "summary.md").unlink()
    again = ["-q", "benchmark", "-o", str(tmp_path / "out"), "--no-pictures"]
    assert run(again) == 0
    assert (tmp_path / "out" / "summary.md").read_text() == summary
    assert run([*again, "--into", str(tmp_path / "field.md")]) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "field.md").write_text("no marks")
    assert run([*again, "--into", str(tmp_path / "field.md")]) == 2
    assert "without a place for these tables" in capsys.readouterr().err


def test_a_failed_method_is_named_and_ends_with_two(tmp_path, command, capsys, monkeypatch):
    def function(window):
        raise ValueRangeError("a dark night")
        yield

    monkeypatch.setitem(catalogue.METHODS, "glp", replace(catalogue.METHODS["glp"], function=function))
    other = write_scene(tmp_path / "meadow.npz", seed=1)
    assert (
        run([*command, str(other), "--knowledge", "oracle", "--no-pictures"]) == 2
    )  # as where the shell has expanded a pattern
    assert (
        "glp (oracle) failed on 2 of its cases, first on field, rgb, x4, clean: a dark night" in capsys.readouterr().err
    )
    assert "| bicubic (oracle) | 2 |" in (tmp_path / "out" / "summary.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--scales", "four"], "scales 'four'"),
        (["--into", "no_such_page.md"], "no_such_page.md: No such file"),
        (["--noise", "30"], "2 numbers with a comma between them"),
        (["--scales", ","], "scales none; expected at least 1 of them"),
        (["--noise", "nan,30"], "HSI nan dB; expected -20 to 300 dB"),
        (["--shift", "a,b"], "shift 'a'"),
        (["--shift", "0,-1000"], "shift 0 -1000 on a scene of"),
        (["--seed", "-1"], "seed -1"),
        (["--split", "mine"], "split 'mine'"),
        (["--knowledge", "some"], "knowledge 'some'; expected blind, oracle or nominal"),
    ],
)
def test_wrong_options_are_said_in_one_line(tmp_path, command, capsys, wrong, words):
    assert run([*command, *wrong]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert not (tmp_path / "out").exists()


def test_nothing_to_show(tmp_path, capsys):
    assert run(["benchmark", "-o", str(tmp_path / "out")]) == 2
    assert "cannot be read" in capsys.readouterr().err
