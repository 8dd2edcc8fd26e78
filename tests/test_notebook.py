"""The notebook of the documentation runs as it stands."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "stored without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown, table, figure, _ = (cell.outputs[-1].data for cell in notebook.cells if cell.cell_type == "code")
    assert "<table" in shown["text/html"]
    assert "<svg" in shown["text/html"]
    assert "topk:3" in table["text/html"]
    assert "image/png" in figure
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()
