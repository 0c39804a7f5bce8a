"""One definition of options: what the command line, Python, batch lists, the record and the docs derive from it."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import hyperfuse
from hyperfuse.cli.app import run
from hyperfuse.config import (
    BenchmarkConfig,
    FuseConfig,
    OutputConfig,
    all_requests,
    field_names,
    flag_of,
    options_table,
    update_options_page,
)
from hyperfuse.errors import OptionError

PAGE = Path(__file__).parents[1] / "docs" / "options.md"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"psf_fwhm": -1}, "psf fwhm -1; expected a number above 0 and .*; fix --psf-fwhm"),
        ({"psf_fwhm": float("nan")}, "psf fwhm nan; expected a number"),
        ({"trust": "nobody"}, "trust 'nobody'; expected msi or hsi"),
        ({"shift": "1"}, "expected 2 numbers; fix --shift"),
        ({"local_shift": "maybe"}, "expected yes or no"),
        ({"workers": 0}, "expected at least 1; fix --workers"),
        ({"ram_gb": "much"}, "expected a number; fix --ram"),
        ({"ram_gb": 1e7}, "expected a number above 0 and below 1e\\+06; fix --ram"),
        ({"psf_fhwm": 2}, "unknown option 'psf_fhwm'; did you mean 'psf_fwhm'"),
        ({"zzz": 2}, "unknown option 'zzz'; expected one of bands, dtype"),
        ({"method": "gsa", "weights": "folder"}, "leave out --method or --weights"),
        ({"bounds": (1, 0, 0, 1)}, "XMIN < XMAX"),
        ({"bounds": (0, 0, float("inf"), 1)}, "XMIN < XMAX"),
        ({"bounds_crs": "EPSG:4326"}, "add --bounds"),
        ({"uncertainty": "u.tif", "consistency": True}, "--uncertainty with"),
    ],
)
def test_wrong_options_name_themselves(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FuseConfig(**options)


def test_text_becomes_values() -> None:
    config = FuseConfig(shift="0.5, 1", bounds="0 0 1 1", creation_options="A=b;C=d", ram_gb="1.5", estimate="no")
    assert config.given() == {
        "shift": (0.5, 1.0),
        "bounds": (0.0, 0.0, 1.0, 1.0),
        "creation_options": {"A": "b", "C": "d"},
        "ram_gb": 1.5,
        "estimate": False,
    }
    scales = BenchmarkConfig(scales="4,10/3", methods="none", noise=["30,40"])
    assert (scales.scales, scales.methods, scales.noise) == ((4.0, 10 / 3), (), ((30.0, 40.0),))


def test_requests_are_frozen_and_replaced() -> None:
    config = FuseConfig(method="gsa")
    with pytest.raises(ValueError, match="frozen"):
        config.method = "fuse"  # type: ignore[misc]
    assert config.replace(psf_fwhm=3.0).given() == {"method": "gsa", "psf_fwhm": 3.0}
    with pytest.raises(OptionError):
        config.replace(psf_fwhm=0.0)
    assert repr(config) == "FuseConfig(method='gsa')"


def test_the_record_holds_what_changes_the_result() -> None:
    config = FuseConfig(psf_fwhm=3.5, shift=(0.0, 1.0), ram_gb=2.0, mask=np.zeros((1, 2, 2)), trust="hsi")
    recorded = config.recorded()
    assert recorded.pop("mask").startswith("array[1,2,2]-")
    assert recorded == {"psf_fwhm": 3.5, "shift": (0.0, 1.0), "trust": "hsi"}
    text = " ".join(f"{name}={value}" for name, value in recorded.items())
    assert FuseConfig.from_record(text + " later=1 trust=nobody").recorded() == recorded
    assert FuseConfig(srf=Path("a.csv")).recorded() == {"srf": "a.csv"}


def test_former_names_warn() -> None:
    with pytest.warns(FutureWarning, match="'response' is now called 'srf'"):
        assert FuseConfig(response="rgb").srf == "rgb"
    with pytest.warns(FutureWarning, match="fuse_files is now called hyperfuse.fuse"):
        assert hyperfuse.fuse_files is hyperfuse.fuse
    assert field_names(FuseConfig)["response"] == "srf"
    with pytest.raises(OptionError, match="both 'response' and 'srf'"):
        FuseConfig(srf="rgb", response="rgb")


def test_a_config_may_be_positional_and_is_checked() -> None:
    scene = hyperfuse.make_cube(np.random.default_rng(0).random((4, 16, 16), dtype=np.float32))
    pair = hyperfuse.simulate(scene, 4, np.eye(2, 4))
    config = FuseConfig(method="bicubic", estimate=False)
    assert hyperfuse.fuse(pair.hsi, pair.msi, None, config).shape == scene.shape
    mask = np.zeros((16, 16), dtype=bool)
    mask[:4, :4] = True
    assert np.isnan(hyperfuse.fuse(pair.hsi, pair.msi, config=config, mask=mask).values[:, :4, :4]).all()
    with pytest.raises(OptionError, match="config of type dict; expected FuseConfig"):
        hyperfuse.fuse(pair.hsi, pair.msi, config={"method": "gsa"})


def test_python_functions_show_every_option() -> None:
    for function, model in ((hyperfuse.fuse, FuseConfig), (hyperfuse.write_cube, OutputConfig)):
        assert set(model.model_fields) <= set(inspect.signature(function).parameters)
    with pytest.raises(OptionError, match="did you mean 'psf_fwhm'"):
        hyperfuse.fuse(np.zeros((2, 4, 4)), np.zeros((1, 8, 8)), psf_fhwm=3.0)


@pytest.mark.parametrize(
    ("command", "model"), [("fuse", "FuseConfig"), ("convert", "OutputConfig"), ("benchmark", "BenchmarkConfig")]
)
def test_the_command_line_has_every_option(
    command: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    config = next(each for each in all_requests() if each.__name__ == model)
    assert not [flag for flag in (flag_of(config, name) for name in config.model_fields) if flag not in shown]
    assert "--response" not in shown


def test_the_options_page_is_up_to_date() -> None:
    """After a change: `hyperfuse.config.update_options_page`."""
    text = PAGE.read_text(encoding="utf-8")
    assert update_options_page(text) == text
    assert all(f"<!-- options {model.__name__} -->" in text for model in all_requests())
    assert "| `--psf-fwhm FWHM` | `psf_fwhm` |" in options_table(FuseConfig)
