"""A plan's runs, loaded once."""

import io
from collections import Counter
from pathlib import Path

import pytest

from bayesfed import cli

FILES = {"run.yaml", "metrics.csv", "provenance.json", "summary.json"}


@pytest.mark.parametrize("command", [["tables"], ["published"], ["figures"], ["report"]])
def test_a_command_reads_each_file_of_a_run_once(lab, stored, tmp_path, monkeypatch, command):
    """Also where experiments, tables, figures and claims share a run."""
    folders = [lab.cell("heterogeneous", method, seed=seed) for method in ("HBFL", "FML") for seed in (0, 1)]
    lab.cells += [{**cell, "experiment": "ablation"} for cell in lab.cells]
    for folder in folders:
        stored(folder, [0.5, 0.6], [[0.5]] * 10, {"global": {"ece": 0.1}}, on_shards=[[0.5]] * 10, test_images=[5] * 10)
    plan, opened, open_file = lab.plan, Counter[Path](), io.open

    def counting(file, *arguments, **keywords):
        opened[Path(file)] += 1
        return open_file(file, *arguments, **keywords)

    monkeypatch.setattr(io, "open", counting)
    monkeypatch.setattr("builtins.open", counting)
    assert cli.main([*command, str(plan), "--out", str(tmp_path / "out" / "made")]) == 0
    assert {opened[folder / name] for folder in folders for name in FILES} == {1}
    assert max(count for path, count in opened.items() if lab.root / "runs" in path.parents) == 1


def test_papers_share_a_record(lab, stored):
    stored(lab.cell("heterogeneous", "HBFL"), [0.5])
    lab.cells.append({**lab.cells[0], "experiment": "ablation"})
    (one,) = lab.found
    assert len({record.run for record in one.study.records}) == 1
    assert one.rows is one.rows
    assert one.compared is one.compared
