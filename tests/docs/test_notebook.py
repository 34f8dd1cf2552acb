"""The notebook in docs/guides/ runs as it stands, and stands there with what it gives."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "guides" / "notebook.ipynb"


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each code cell gives: the names of its streams, and the formats of all else."""
    return [
        sorted(output.get("name") or "+".join(sorted(output["data"])) for output in cell["outputs"])
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with fewer rounds; its own assertions hold, and its outputs are of the kinds that are stored."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    fresh = nbformat.read(NOTEBOOK, 4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell["outputs"] = []
    (training,) = (cell for cell in fresh.cells if "rounds=20" in cell.source)
    training.source = training.source.replace("rounds=20", "rounds=2")
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(fresh, timeout=300, kernel_name="python3", resources=place, coalesce_streams=True).execute()
    assert kinds(fresh) == kinds(nbformat.read(NOTEBOOK, 4))
    assert (tmp_path / "runs/hbfl/summary.json").exists()
