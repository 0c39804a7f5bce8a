"""What ARCHITECTURE.md says about adding a format and a method works as written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

import hyperfuse
from hyperfuse.io import arrays, atomic, cube, files, isolation, numpy_files
from hyperfuse.methods import catalogue, injection, window

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
LIBRARIES = (Iterator, Mapping, contextmanager, partial, Path, Any, NDArray, safe_open, save_file, Tensor)


def example(heading: str) -> str:
    found = re.search(rf"### {heading}:.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def names(*modules: Any) -> dict[str, Any]:
    known = {key: value for module in modules for key, value in vars(module).items() if not key.startswith("__")}
    return known | {getattr(each, "__name__", str(each)): each for each in LIBRARIES} | {"xr": xr, "Any": Any}


def test_every_module_is_named():
    text, root = PAGE.read_text(encoding="utf-8"), Path(hyperfuse.__file__).parent
    modules = [path for path in root.rglob("*.py") if not path.name.startswith("__")]
    alike = root / "io" / "products", root / "models" / "baselines"  # one module per mission and per network
    unnamed = [path for path in modules if f"{path.name}`" not in text and path.parent not in alike]
    assert not unnamed, f"ARCHITECTURE.md does not name {', '.join(map(str, unnamed))}"


def test_a_format(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FORMATS", dict(files.FORMATS))
    monkeypatch.setattr(isolation, "_is_child", True)  # functions of no module cannot be sent to a child
    exec(example("a format"), names(arrays, atomic, cube, numpy_files, files))
    stored = hyperfuse.make_cube(np.random.default_rng(0).random((3, 4, 5), np.float32), wavelength_nm=[450, 550, 650])
    monkeypatch.setattr(files, "WRITABLE", (*files.WRITABLE, ".safetensors"))
    hyperfuse.write_cube(stored, tmp_path / "a.safetensors")
    opened = hyperfuse.open_cube(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(opened.values, stored.values)
    assert opened["wavelength"].values.tolist() == [450, 550, 650]


def test_a_method(monkeypatch):
    function, entry = example("a method").rsplit("\n\n", 1)
    known = names(window, injection, catalogue)
    exec(function, known)
    monkeypatch.setattr(catalogue, "METHODS", dict(catalogue.METHODS) | eval(f"{{{entry.strip()}}}", known))
    scene = hyperfuse.make_cube(np.random.default_rng(0).random((4, 16, 16), np.float32))
    pair = hyperfuse.simulate(scene, 4, np.eye(2, 4))
    fused = hyperfuse.fuse(pair.hsi, pair.msi, method="modulation", estimate=False)
    assert fused.shape == (4, 16, 16) and np.isfinite(fused.values).all()
