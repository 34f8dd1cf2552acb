"""`bayesfed compare` through the real workflow: a method of one's own beside stored records, from start to table."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from helpers.clone import PROJECT, Clone, copy

from bayesfed import cli
from bayesfed.report import compare


@pytest.mark.usefixtures("with_plugins")
def test_a_method_of_ones_own_beside_stored_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    clone.make_plan("config/comparison.yaml")
    monkeypatch.chdir(tmp_path)
    (run,) = json.loads(Path("results/comparison/plan/plan.json").read_text())["runs"]
    assert cli.main(["fetch", "digits"]) == 0
    assert cli.main(["train", run["runfile"], "--runs", "results/comparison/runs"]) == 0
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

    # Neither call starts a process, so that both can be made in this one.
    capsys.readouterr()
    monkeypatch.setattr(compare, "train", lambda *_: pytest.fail("a run is trained"))
    assert cli.main(command) == 0
    told = capsys.readouterr()
    assert "to train" not in told.out + told.err
    assert clone.summaries("comparison") == stored
    assert cli.main(["verify", str(record.parent), "--rounds", "1"]) == 0
    assert "are the recorded ones" in capsys.readouterr().out
    assert "digits-mild" in (tmp_path / "reports/compare.html").read_text()
