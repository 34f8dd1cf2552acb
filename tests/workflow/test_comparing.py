"""`bayesfed compare` through the real workflow: a method of one's own beside stored records, from start to table."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import yaml
from helpers.clone import PROJECT, Clone, copy


def test_a_method_of_ones_own_beside_stored_records(tmp_path: Path) -> None:
    """FedAvg's records are there; own_feddyn alone is trained, its record is packed, and a second call trains nothing.

    The records of one's own can be moved beside the others.
    """
    clone = Clone(tmp_path)
    copy(PROJECT / "examples", tmp_path / "examples")
    path = tmp_path / "config/papers/comparison.yaml"
    paper = yaml.safe_load(path.read_text())
    axes = {"dataset": ["digits"], "models.global": ["mlp"], "partition.alpha": [1.0], "method": ["FedAvg"]}
    paper["run"] |= {"partition": {"clients": 3}, "rounds": 2}
    paper |= {"given": [], "experiments": {"digits-mild": {"seeds": 1, "axes": axes}}}
    path.write_text(yaml.safe_dump(paper, sort_keys=False))
    clone.edit("config/comparison.yaml", "seeds: [100]", "# no searches")
    clone.snakemake("runs", config="config/comparison.yaml")
    stored = clone.summaries("comparison")
    assert len(stored) == 1

    command = ("compare", "own_feddyn", "--plugins", "examples/own_plugins", "--ground", "digits-mild", "--seeds", "1")
    output = clone.run("bayesfed", *command, "--cores", "1")
    assert "1 runs to train" in output
    (record,) = clone.summaries("compare")
    assert json.loads(record.read_text())["method"] == "own_feddyn"
    assert {path.name for path in record.parent.glob("metrics*")} == {"metrics.json.xz"}
    with (tmp_path / "results/compare/comparison.csv").open(newline="") as file:
        rows = {(row["models"], row["method"]): row for row in csv.DictReader(file)}
    assert {("global", "FedAvg"), ("global", "own_feddyn")} <= rows.keys()
    assert float(rows["global", "own_feddyn"]["accuracy"]) > 0
    assert "own_feddyn − FedAvg" in output

    assert "to train" not in clone.run("bayesfed", *command)
    assert clone.summaries("comparison") == stored
    verified = clone.run("bayesfed", "verify", str(record.parent), "--rounds", "1")
    assert "are the recorded ones" in verified
    assert "digits-mild" in (tmp_path / "reports/compare.html").read_text()
