"""The simulation's table of an experiment file: what it may say, and what is refused with which words."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from hyperfuse.data.settings import ScaleChoices, SimulationSettings, SRFChoice
from hyperfuse.errors import OptionError


def test_table_of_an_experiment() -> None:
    text = """
        scale = [2, 8]
        psf_fwhm = 1.2
        shift = 0.5
        srfs = ["random", { name = "Sentinel-2A:B2,B3,B4,B8", weight = 3 }]
        msi_bands = 4
        snr_hsi_db = [25, 45]
        noise_free = 0.2
        keep_bands = { least = 10 }
        flips = false
    """
    found = SimulationSettings.model_validate(tomllib.loads(text))
    assert found.scale == (2.0, 8.0) and found.psf_fwhm == (1.2, 1.2)
    assert found.srfs == (SRFChoice(name="random"), SRFChoice(name="Sentinel-2A:B2,B3,B4,B8", weight=3.0))
    assert found.msi_bands == (4, 4) and found.snr_hsi_db == (25.0, 45.0) and found.snr_msi_db is None
    assert found.keep_bands is not None and found.keep_bands.least == 10
    assert SimulationSettings.model_validate(found.model_dump(mode="json")) == found


def test_defaults_are_the_plain_protocol() -> None:
    plain = SimulationSettings()
    assert plain.scale == (4.0, 4.0) and plain.psf_fwhm == (1.0, 1.0) and plain.shift == 0 and plain.keep_bands is None


def test_choices_of_scales_and_a_lone_response() -> None:
    found = SimulationSettings.model_validate({"scale": {"choices": [2, 3.2, 8]}, "srfs": "rgb"})
    assert found.scale == ScaleChoices(choices=(2.0, 3.2, 8.0))
    assert [choice.name for choice in found.srfs] == ["rgb"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"scale": [2, 4, 8]}, "a range \\[low, high\\]"),
        ({"scale": [8, 2]}, "the smaller one first"),
        ({"scale": 0.5}, "expected 1 to 1000"),
        ({"scale": {"choices": []}}, "at least 1"),
        ({"scale": {"choises": [2]}}, "choises"),
        ({"scale": True}, "a number or a range"),
        ({"scale": "four"}, "a number or a range"),
        ({"psf_fwhm": 0.0}, "coarse pixels"),
        ({"shift": -1}, "greater than or equal to 0"),
        ({"srfs": []}, "at least 1"),
        ({"srfs": [{"name": "rgb", "weight": 0}]}, "greater than 0"),
        ({"msi_bands": 0}, "msi bands"),
        ({"msi_bands": [1.5, 3]}, "integer"),
        ({"snr_hsi_db": float("inf")}, "finite"),
        ({"noise_free": 2}, "less than or equal to 1"),
        ({"keep_bands": {"least": 0}}, "greater than or equal to 1"),
        ({"point_spread": 2}, "point_spread"),
    ],
)
def test_refusals(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SimulationSettings.model_validate(table)


def test_former_keys_are_accepted_with_one_warning_each() -> None:
    with pytest.warns(FutureWarning) as caught:
        found = SimulationSettings.model_validate({"responses": "rgb", "belief": {"noise": 0.2}})
    assert [choice.name for choice in found.srfs] == ["rgb"]
    assert found.perturbation is not None and found.perturbation.noise == 0.2
    assert ["srfs" in str(caught[0].message), "perturbation" in str(caught[1].message), len(caught)] == [True, True, 2]
    with pytest.raises(OptionError, match="both 'responses' and 'srfs'"):
        SimulationSettings.model_validate({"responses": "rgb", "srfs": "rgb"})
