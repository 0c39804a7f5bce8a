"""The wheel is complete: build it, install it elsewhere, fuse two small files; every dependency is declared."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hyperfuse import make_cube, open_cube, write_cube

REPOSITORY = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(os.environ.get("HYPERFUSE_SKIP_WHEEL")), reason="HYPERFUSE_SKIP_WHEEL is set"),
]


def run(*command: str | Path, path: Path | None = None) -> str:
    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    parts = [str(part) for part in command]
    done = subprocess.run(parts, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def third_party_imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Top-level names that a module imports, and whether it does so when it is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in {each.partition(".")[0] for each in names} - {"hyperfuse", *sys.stdlib_module_names}:
            yield name, node in tree.body


def test_the_conda_recipe_has_the_same_version_and_dependencies() -> None:
    recipe = (REPOSITORY / "integrations" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f'version = "{project["version"]}"' in recipe
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    needed = [Requirement(text) for text in project["dependencies"]]
    expected = {f"- {renamed.get(each.name, each.name)} {each.specifier}" for each in needed}
    run_part = recipe.partition("  run:\n")[2].partition("\ntest:")[0]
    assert {line.strip() for line in run_part.splitlines() if line.strip()} - expected == {
        "- python >={{ python_min }}"
    }
    assert all(each in run_part for each in expected)


def test_every_import_is_a_declared_dependency() -> None:
    """What is imported when a module is loaded must be a dependency; the viewer and others may ask for their extra."""
    # Extras that may not be installed here.
    providers = {"umap": ["umap-learn"], "huggingface_hub": ["huggingface_hub"]} | packages_distributions()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"core": project["dependencies"]} | project["optional-dependencies"]
    named = {group: {canonicalize_name(Requirement(text).name) for text in texts} for group, texts in groups.items()}
    core, extras = named["core"], set().union(*(names for group, names in named.items() if group != "dev"))
    for path in (REPOSITORY / "src").rglob("*.py"):
        for name, when_loaded in third_party_imports(path):
            found = {canonicalize_name(each) for each in providers[name]}
            allowed = core if when_loaded and "viewer" not in path.parts else core | extras
            assert found & allowed, f"{path.name} imports {name} of {found}, which pyproject.toml does not require"


def test_wheel_installs_and_fuses(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, REPOSITORY)
    wheel, clean = next(tmp_path.glob("hyperfuse-*.whl")), tmp_path / "clean"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", clean, wheel)
    where = run(sys.executable, "-c", "import hyperfuse; print(hyperfuse.__file__)", path=clean)
    assert where.startswith(str(clean))
    command = clean / "bin" / "hyperfuse"

    assert "fuse" in run(command, "--help", path=clean)
    random = np.random.default_rng(1)
    hsi = random.random((6, 8, 8)).astype(np.float32)
    msi = random.random((2, 32, 32)).astype(np.float32)
    write_cube(
        make_cube(hsi, wavelength_nm=np.linspace(450, 900, 6), crs=32633, transform=Affine(40, 0, 0, 0, -40, 0)),
        tmp_path / "h.tif",
    )
    write_cube(make_cube(msi, crs=32633, transform=Affine(10, 0, 0, 0, -10, 0)), tmp_path / "m.tif")
    run(command, "fuse", tmp_path / "h.tif", tmp_path / "m.tif", "-o", tmp_path / "fused.tif", path=clean)
    fused = open_cube(tmp_path / "fused.tif")
    assert fused.shape == (6, 32, 32)
    assert np.allclose(fused["wavelength"], np.linspace(450, 900, 6))
