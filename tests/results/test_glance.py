"""The results at a glance: what has a run, beside print, with its cost; nothing else."""

import json
from pathlib import Path

from bayesfed import runfolder
from bayesfed.results import glance

PAPERS = Path(__file__).parents[2] / "config/papers"


def provenance(folder: Path, **more: object) -> None:
    """Tell where a stored run was computed, and seal it again."""
    told = {"train_seconds": 7200.0, "device": "cpu", "hardware": "AMD", "threads": 2, "precision": "fp32", **more}
    summary = runfolder.read(folder)
    (folder / "provenance.json").write_text(json.dumps(told))
    runfolder.seal(folder, summary)


def test_glance_by_hand(lab, stored, tmp_path):
    folders = [lab.cell("heterogeneous", "FML", seed=seed) for seed in (0, 1)]
    for folder, best in zip(folders, (0.78, 0.80), strict=True):
        stored(folder, [0.1, best], [[0.5]] * 10)
    provenance(folders[0])
    provenance(folders[1], train_seconds=3600.0, device="cuda", hardware="H200")
    lab.cell("heterogeneous", "FML", seed=2)
    lab.cell("heterogeneous", "HBFL")
    (path,) = glance.write(lab.plan, tmp_path, papers=PAPERS)
    text = path.read_text()
    assert text.startswith("### HBFL\n\n2 of 4 planned runs stand. Accuracies")
    row = next(line for line in text.splitlines() if line.startswith("| CIFAR10, IID, FML | 80.71"))
    assert row == (
        "| CIFAR10, IID, FML | 80.71 | 79.00 ± 1.41 | 44.50 ± 0.71 | **-1.71** | 2 of 3 | 1.5 h | "
        "AMD, 2 threads, fp32 or H200, fp32 |"
    )
    assert "CIFAR10, IID, HBFL" not in text
    assert "multitask" not in text
    assert "not run" not in text


def test_a_small_budget_and_divergence_are_told(lab, stored, tmp_path):
    small = lab.cell("heterogeneous", "FML", rounds=4, changes=["rounds 4 (paper 100)"])
    broken = lab.cell("heterogeneous", "HBFL")
    stored(small, [0.5], [[0.5]] * 10)
    stored(broken, [0.5], [[0.5]] * 10, diverged={"round": 3, "client": "1", "tensor": "mu"})
    for folder in (small, broken):
        provenance(folder, train_seconds=600.0)
    text = glance.write(lab.plan, tmp_path, papers=PAPERS)[0].read_text()
    assert "| CIFAR10, IID, FML | 80.71 | 50.00 | 50.00 | **-30.71** (not the paper's run) | 1 | 10 min |" in text
    assert "| CIFAR10, IID, HBFL | 82.10 | diverged | diverged | (diverged) | 0 of 1, 1 diverged | 10 min |" in text


def test_a_table_of_rounds_that_no_run_has_is_left_out(lab, stored, tmp_path):
    folder = lab.cell("heterogeneous", "FML", rounds=4, changes=["rounds 4 (paper 100)"])
    stored(folder, [0.1, 0.5], [[0.5]] * 10)
    provenance(folder)
    lab.spec["statistics"] = {"late": {"best_within": [70, 80]}}
    lab.spec["tables"]["late"] = {**lab.spec["tables"]["table1"], "title": "Late", "metric": "global_accuracy_late"}
    lab.spec["glance"] = ["late", "table1"]
    text = glance.write(lab.plan, tmp_path, papers=PAPERS)[0].read_text()
    assert "no such rounds" not in text
    assert "Late" not in text
    assert "| CIFAR10, IID, FML | 80.71 | 50.00 |" in text


def test_a_column_with_a_metric_of_its_own_is_told_by_its_title(lab, stored, tmp_path):
    folder = lab.cell("heterogeneous", "FML")
    stored(folder, [0.6, 0.5], [[0.5]] * 10)
    provenance(folder)
    columns = [
        {"method": "FML", "title": "FML's best", "metric": "global_accuracy_best"},
        {"method": "FML", "title": "FML's last", "metric": "global_accuracy_last"},
    ]
    lab.spec["tables"]["both"] = {
        "title": "Both", "experiment": "heterogeneous", "rows": {"dataset": ["cifar10"]}, "columns": columns,
    }  # fmt: skip
    lab.spec["glance"] = ["both"]
    text = glance.write(lab.plan, tmp_path, papers=PAPERS)[0].read_text()
    assert "| CIFAR10, FML's best |  | 60.00 |" in text
    assert "| CIFAR10, FML's last |  | 50.00 |" in text
