"""The tree is the data flow: a module imports from its own folder, from folders that sort before it, and from the ground floor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperfuse

ROOT = Path(hyperfuse.__file__).parent
GROUND_FLOOR = {"errors", "progress"}
# The command line calls everything and is called by nothing; the package itself only names what is public.
ABOVE_ALL = {"cli", "__init__", "__main__"}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0].removesuffix(".py") not in ABOVE_ALL)


def imported_parts(path: Path) -> Iterator[str]:
    """Second parts of every `hyperfuse.X` that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "hyperfuse" else [module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "hyperfuse":
                yield parts[1] if len(parts) > 1 else ""


def test_there_are_modules() -> None:
    assert len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upstream(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for part in imported_parts(path):
        if own in GROUND_FLOOR:
            assert part in GROUND_FLOOR, f"{path.name} imports {part}"
        elif own == "networks":
            assert part == "networks", f"networks/{path.name} imports {part}: networks know torch and nothing else of ours"
        else:
            # Networks know nothing of us, so that everybody may use them.
            allowed = part in GROUND_FLOOR | {"networks"} or part <= own
            assert allowed, f"{own}/{path.name} imports {part}, which comes later in the data flow"


def test_ground_floor_is_small() -> None:
    files = {path.stem for path in ROOT.glob("*.py")}
    assert files == GROUND_FLOOR | {"__init__", "__main__"}
