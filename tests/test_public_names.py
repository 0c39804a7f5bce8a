"""The public surface, frozen: whoever changes it changes this list, CHANGELOG.md and the version on purpose."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import hyperfuse

PUBLIC = {
    "FuseConfig": None,
    "HyperfuseError": None,
    "Observation": None,
    "ObservationConfig": None,
    "OutputConfig": None,
    "SimulateConfig": None,
    "benchmark": ["folder", "config", "command"],
    "estimate": ["hsi", "msi", "config"],
    "evaluate": ["fused", "reference", "config", "max_bytes"],
    "find_srf": None,
    "fuse": ["hsi", "msi", "output", "config", "observation"],
    "load_model": ["source"],
    "make_cube": None,
    "open_cube": ["path", "variable", "band_axis", "wavelengths", "nodata_in", "fitting"],
    "physical_values": ["cube", "rows", "columns", "bands", "dtype"],
    "register": ["hsi", "msi", "config"],
    "report": ["fused", "page", "hsi", "msi", "reference", "config"],
    "simulate": ["reference", "scale", "srf", "config"],
    "summarise": ["cube"],
    "uncertainty": ["hsi", "msi", "config", "observation"],
    "write_cube": ["cube", "path", "config", "inputs"],
}
RENAMED = {
    "OutputOptions": "OutputConfig",
    "find_response": "find_srf",
    "fuse_files": "fuse",
    "simulate_pair": "simulate",
}


def test_names() -> None:
    assert sorted(hyperfuse.__all__) == sorted(PUBLIC)
    assert set(dir(hyperfuse)) >= set(PUBLIC) | {"__version__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_loads_and_keeps_its_parameters(name: str) -> None:
    thing = getattr(hyperfuse, name)
    assert thing.__doc__
    if PUBLIC[name] is not None:
        # Beyond these, the options of the request's model, which tests/test_config.py checks.
        assert list(inspect.signature(inspect.unwrap(thing)).parameters) == PUBLIC[name]


@pytest.mark.parametrize("name", RENAMED)
def test_former_names_warn(name: str) -> None:
    with pytest.warns(FutureWarning, match=f"now called hyperfuse.{RENAMED[name]}"):
        assert getattr(hyperfuse, name) is getattr(hyperfuse, RENAMED[name])


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fusee'"):
        hyperfuse.fusee  # noqa: B018


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ("torch", "rasterio", "xarray", "matplotlib")
    code = f"import sys, hyperfuse, hyperfuse.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
