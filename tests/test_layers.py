"""Packages are layers: a module imports from its own package and from those above it in `LAYERS` only."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import hyperfuse

ROOT = Path(hyperfuse.__file__).parent
LAYERS = (
    "errors",
    "progress",
    "compiled",
    "config",
    "io",
    "physics",
    "models",
    "methods",
    "fusion",
    "metrics",
    "data",
    "reporting",
    "accessor",
    "training",
    "benchmarking",
    "viewer",
    "cli",
)
# They only name what is public and where the command line begins.
OUTSIDE = {"__init__", "__main__"}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> Iterator[str]:
    """The layer of every `hyperfuse.X` that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("hyperfuse."))


def test_imports_follow_the_layers() -> None:
    paths = [path for path in ROOT.rglob("*.py") if layer_of(path) not in OUTSIDE]
    assert {layer_of(path) for path in paths} <= set(LAYERS), "a package that LAYERS does not list"
    assert len(paths) > 100
    wrong = [
        f"{path.relative_to(ROOT)} imports {layer}"
        for path in paths
        for layer in imported_layers(path)
        if layer in LAYERS and LAYERS.index(layer) > LAYERS.index(layer_of(path))
    ]
    assert not wrong


def test_benchmarks_import_what_exists() -> None:
    """They are not run by the tests, so a module that moves would break them unnoticed."""
    benchmarks = sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py"))
    assert benchmarks
    for path in benchmarks:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hyperfuse"):
                module = importlib.import_module(str(node.module))
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert not missing, f"{path.name}: {node.module} has no {missing}"
