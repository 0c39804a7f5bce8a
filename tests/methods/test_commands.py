"""`hyperfuse estimate` and `hyperfuse methods`, as a user runs them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.methods.tiny_pairs import tiny_pair

from hyperfuse.cli.app import run
from hyperfuse.methods.catalogue import METHODS


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    pair = tiny_pair(10, 3, (20, 20), 4, 1.5, (0.8, -1.3))
    folder = tmp_path_factory.mktemp("pair")
    for name, image in (("hsi", pair.hsi), ("msi", pair.msi)):
        np.savez(folder / f"{name}.npz", cube=image.numpy().transpose(1, 2, 0))
    return str(folder / "hsi.npz"), str(folder / "msi.npz")


def test_methods_lists_every_name_with_its_reference(capsys):
    assert run(["methods"]) == 0
    listed = capsys.readouterr().out
    assert all(
        name in listed and method.description in listed and method.reference in listed
        for name, method in METHODS.items()
    )
    assert "auto" in listed


def test_estimate_as_json(files, capsys):
    assert run(["estimate", *files, "--json"]) == 0
    estimated = json.loads(capsys.readouterr().out)
    assert estimated["misregistration"] == pytest.approx([0.8, -1.3], abs=0.05)
    assert estimated["sigma"] == pytest.approx([1.5, 1.5], rel=0.02)
    assert len(estimated["srf"]) == 3


def test_estimate_for_people(files, capsys):
    assert run(["estimate", *files]) == 0
    text = capsys.readouterr().out
    assert "fine pixels down, right" in text
    assert "confidence" in text


def test_estimate_of_a_missing_file_is_one_line(files, capsys):
    assert run(["estimate", "missing.npz", files[1]]) == 2
    assert "does not exist" in capsys.readouterr().err
