"""The example folder of own plugins through the whole pipeline, and what a change in it sets off."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from helpers.clone import PROJECT, Clone, copy

from bayesfed.report import build

CONFIG = "examples/own_plugins/config.yaml"
SMALL = """
short_runs: {together: 2}
run: {rounds: 1, local_epochs: 0, local_batches: 1}
experiments: {shapes: {axes: {partition.alpha: [100]}}}
seeds:"""


@pytest.mark.usefixtures("with_plugins")
def test_example(tmp_path: Path) -> None:
    """Tables, figure and report; again there is nothing to do; a changed plugin trains its runs alone; a faulty one is
    told."""
    clone = Clone(tmp_path)
    copy(PROJECT / "examples", tmp_path / "examples")
    clone.edit(CONFIG, "\nseeds:", SMALL)
    clone.make_plan(CONFIG)
    clone.snakemake("results", config=CONFIG)
    results = tmp_path / "results" / "own-plugins"
    with (results / "tables" / "shapes" / "table1.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["FedDyn"])
    assert 0 < float(row["FedDyn"]) <= 100
    with (results / "tables" / "shapes" / "table1.compare.csv").open(newline="") as file:
        assert {row["verdict"] for row in csv.DictReader(file)} == {"not published", "not run"}
    assert (results / "figures" / "shapes" / "figure1.svg").exists()
    page = clone.folder / "reports/own-plugins.html"
    build.write(results / "plan/plan.json", page)
    assert "Top-1 test accuracy (%) on drawn shapes" in page.read_text()
    summaries = clone.summaries("own-plugins")
    own = {path.parts[-3]: json.loads(path.with_name("provenance.json").read_text())["plugins"] for path in summaries}
    assert own["own_feddyn"].keys() - own["fedavg"].keys() == {"methods/own_feddyn"}
    assert {"networks/resnet8", "datasets/shapes", "preparations/contrast"} == own["fedavg"].keys()
    assert "Nothing to be done" in clone.snakemake("-n", "results", config=CONFIG)

    clone.edit("examples/own_plugins/methods/own_feddyn.py", "alpha: float = option(0.01", "alpha: float = option(0.02")
    listed = clone.snakemake("-n", config=CONFIG)
    assert re.findall(r"results/own-plugins/runs/\S+/(\w+)/seed~0-\w+/summary.json \(update\)\n    log", listed) == [
        "own_feddyn"
    ]

    clone.edit("examples/own_plugins/methods/own_feddyn.py", "METHOD = FedDyn", "METHOD = FedDin")
    output = clone.snakemake("-n", config=CONFIG, code=1)
    assert re.search(r"methods/own_feddyn\.py, line \d+: NameError: name 'FedDin' is not defined", output)
    assert len(output.splitlines()) <= 4
