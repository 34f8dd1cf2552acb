"""A method added as one file trains, resumes and appears in a table, with no other file touched."""

import csv
import json
from pathlib import Path

import pytest
import yaml

from bayesfed import cli

PAPER = {
    "paper": "mine",
    "title": "A paper of one table",
    "reference": "none",
    "run": {"partition": {"scheme": "dirichlet_class_shared", "clients": 4}, "rounds": 2, "local_epochs": 1, "batch_size": 32},
    "settings": {"1": "IID"},
    "methods": {"Toy": {"name": "toy"}, "Toy, slow": {"name": "toy", "lr": 0.01}, "FedAvg": {"name": "fedavg"}},
    "experiments": {"one": {"axes": {"dataset": ["few"], "partition.alpha": [1], "models.global": ["lenet5"], "method": ["Toy", "Toy, slow", "FedAvg"]}}},
    "labels": {"few": "Few digits"},
    "tables": {
        "table1": {
            "title": "Accuracy", "experiment": "one", "metric": "global_accuracy_best",
            "rows": {"dataset": ["few"], "setting": ["IID"]}, "columns": [{"method": "Toy"}, {"method": "Toy, slow"}, {"method": "FedAvg"}],
        }
    },
}  # fmt: skip


@pytest.mark.usefixtures("toys")
def test_one_file_is_enough(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config/papers").mkdir(parents=True)
    Path("config/papers/mine.yaml").write_text(yaml.safe_dump(PAPER))
    Path("config/papers/mine.published.csv").write_text("item,dataset,setting,alpha,client,model,method,metric,value\n")
    Path("config/mine.yaml").write_text(yaml.safe_dump({"name": "mine", "papers": ["mine"], "seeds": [0]}))
    assert cli.main(["plan", "config/mine.yaml", "--out", "results/mine/plan"]) == 0
    plan = json.loads(Path("results/mine/plan/plan.json").read_text())
    assert len(plan["runs"]) == 3
    for run in plan["runs"]:
        out = f"results/mine/runs/{run['folder']}"
        assert cli.main(["train", run["runfile"], "--out", out, "--data", str(data_dir)]) == 0
    assert cli.main(["tables", "results/mine/plan/plan.json", "--out", "results/mine/tables"]) == 0
    with Path("results/mine/tables/mine/table1.csv").open() as file:
        (row,) = csv.DictReader(file)
    for label in ("Toy", "Toy, slow", "FedAvg"):
        folder = next(cell["folder"] for cell in plan["cells"] if cell["method"] == label)
        summary = json.loads(Path("results/mine/runs", folder, "summary.json").read_text())
        assert float(row[label]) == pytest.approx(100 * summary["global"]["accuracy_best"], abs=0.006)
