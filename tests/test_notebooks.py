"""Every notebook runs from top to bottom in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(source: Path, tmp_path: Path) -> None:
    jupytext = pytest.importorskip("jupytext", reason="the extra docs is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra docs is not installed")
    notebook = jupytext.read(source)
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert shown
    assert not [output for output in shown if output.output_type == "error"]
