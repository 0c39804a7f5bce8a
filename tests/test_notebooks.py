"""Every notebook runs from top to bottom in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(source: Path, tmp_path: Path) -> None:
    jupytext = pytest.importorskip("jupytext", reason="the extra docs is not installed")
    nbmake = pytest.importorskip("nbmake.nb_run", reason="the extra dev is not installed")
    path = tmp_path / f"{source.stem}.ipynb"
    jupytext.write(jupytext.read(source), path)
    result = nbmake.NotebookRun(path, default_timeout=240, kernel="python3").execute()
    assert result.error is None, result.error.trace
    assert any(cell.get("outputs") for cell in result.nb.cells)
