"""The public surface, frozen: whoever changes it changes this list, CHANGELOG.md and the version on purpose."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import hyperfuse

PUBLIC = {
    "HyperfuseError": None,
    "OutputConfig": None,
    "benchmark": None,
    "evaluate": ["fused", "reference", "scale", "peak", "with_q2n", "max_bytes"],
    "find_srf": None,
    "fuse": None,
    "fuse_files": None,
    "make_cube": None,
    "open_cube": ["path", "variable", "band_axis"],
    "physical_values": ["cube", "rows", "columns", "bands", "dtype"],
    "simulate": None,
    "summarise": ["cube"],
    "write_cube": ["cube", "path", "output", "options", "cog", "overwrite", "inputs"],
}


def test_names() -> None:
    assert sorted(hyperfuse.__all__) == sorted(PUBLIC)
    assert set(dir(hyperfuse)) >= set(PUBLIC) | {"__version__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_loads_and_keeps_its_parameters(name: str) -> None:
    thing = getattr(hyperfuse, name)
    assert thing.__doc__
    if PUBLIC[name] is not None:
        assert list(inspect.signature(thing).parameters) == PUBLIC[name]


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fusee'"):
        hyperfuse.fusee  # noqa: B018


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ("torch", "rasterio", "xarray", "matplotlib")
    code = f"import sys, hyperfuse, hyperfuse.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
