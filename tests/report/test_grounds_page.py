"""The page of a comparison: its data, and that only plans of grounds have it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from helpers.comparing import cell, finish, history

from bayesfed import cli
from bayesfed.report import build

METHODS = {"FedAvg": {"name": "fedavg"}, "Mine <b>": {"name": "fedprox"}}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of a ground with three seeds of two methods, and of a search of which one run is open."""
    root = tmp_path / "results/comparison"
    cells = [cell("harsh", method, seed) for method in METHODS for seed in range(3)]
    cells += [cell("search", "FedAvg", 100, axes={"lr": lr}, folder=f"search/{lr}") for lr in (0.1, 0.2)]
    for one in cells[:-1]:
        level = (0.9 if one["method"] == "FedAvg" else 0.8) + 0.01 * one["seed"] * (one["seed"] < 100)
        finish(root / "runs" / one["folder"], history(level), key="0", method="fedavg", dataset=["mnist"])
    common = {"paper": "comparison", "setting": "harsh", "models": {}, "stragglers": "0", "local_epochs": 1,
              "batch_size": 50, "clients_on_test": "detailed", "asks": [], "changes": []}  # fmt: skip
    spec = {
        "paper": "comparison",
        "methods": METHODS,
        "experiments": {},
        "first_client": 0,
        "published_file": "none.csv",
    }
    content = {
        "config": "comparison",
        "title": "All methods",
        "notice": "",
        "benchmarks": False,
        "runs": [{"folder": one["folder"], "cost": 1, "method": "fedavg"} for one in cells],
        "cells": [common | one for one in cells],
        "papers": {"comparison": spec | {"tables": {}, "figures": {}, "claims": [], "printed": False}},
        "logs": {},
    }
    (root / "plan").mkdir(parents=True)
    (root / "plan/plan.json").write_text(json.dumps(content))
    return root / "plan/plan.json"


def data_of(page: Path) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_report_of_a_comparison_is_its_page(plan: Path, tmp_path: Path) -> None:
    written = build.write(plan, tmp_path / "reports/comparison.html")
    text, data = written[0].read_text(), data_of(written[0])
    assert "<h1>All methods</h1>" in text
    assert "Mine <b>" not in text
    assert text.count("<b>FedAvg</b>") == 8  # leads on both sides in four qualities
    assert text.count("://") == text.count("http://www.w3.org/2000/svg")  # a name, and no request
    assert data["methods"] == ["FedAvg", "Mine <b>"]
    assert data["cells"]["global"][0]["FedAvg"]["nll"][:3] == ["0.090 ± 0.010", "★", 0.09]
    assert data["cells"]["personal"][0]["FedAvg"]["accuracy"][1] == "★"
    assert data["differences"]["global"][0]["nll"] == {"0,1": [-0.1, -0.1, -0.1]}
    assert data["ranks"]["global"]["Mine <b>"]["ece"] == [2.0, 1]
    assert "passes" not in data["shown"]["global"]
    assert data["target"]["global"][0].endswith("(95% of FedAvg)")
    runs = data["runs"]["harsh"]["FedAvg"]
    assert [run["row"][0] for run in runs] == ["0", "1", "2"]
    of_seeds = [fmean(float(run["row"][side]) for run in runs) for side in (1, 2)]
    assert of_seeds == pytest.approx(
        [data["cells"][side][0]["FedAvg"]["accuracy"][2] for side in ("global", "personal")], abs=0.01
    )
    assert runs[0]["command"] == f"bayesfed verify {plan.parents[1]}/runs/harsh/FedAvg/0 --rounds 1"
    assert data["searches"]["FedAvg"] == [["mnist", [["lr 0.1", "0.1000", ""], ["lr 0.2", "open", ""]]]]
    assert len(data["runs"]["harsh"]["Mine <b>"]) == 3


@pytest.mark.parametrize(("inside", "named"), [(".", "plan/plan.json"), ("plan", "plan.json")])
def test_a_plan_is_found_from_where_it_lies(
    inside: str, named: str, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parents[1] / inside)
    assert cli.main(["tables", named, "--out", str(tmp_path / "tables")]) == 0
    assert "FedAvg" in (tmp_path / "tables/comparison/comparison.csv").read_text()
    assert build.write(Path(named), tmp_path / "page.html")[0].is_file()


def test_the_tables_of_a_comparison_are_written_with_all_others(plan: Path, tmp_path: Path) -> None:
    assert cli.main(["tables", str(plan), "--out", str(tmp_path / "tables")]) == 0
    assert (tmp_path / "tables/comparison/comparison.csv").is_file()


def test_papers_and_searches_alone_have_a_paper_s_page(plan: Path, tmp_path: Path) -> None:
    content = json.loads(plan.read_text())
    content["cells"] = [one for one in content["cells"] if one["experiment"] == "search"]
    plan.write_text(json.dumps(content))
    assert 'role="tablist"' in build.write(plan, tmp_path / "reports/comparison.html")[0].read_text()


def test_a_plan_of_papers_and_grounds_has_both_pages(plan: Path, tmp_path: Path) -> None:
    content = json.loads(plan.read_text())
    table = {"title": "One table", "experiment": "harsh", "metric": "global_accuracy_last5"}
    table |= {"rows": {"method": ["FedAvg"]}, "columns": [{"dataset": "mnist"}]}
    content["papers"]["one"] = content["papers"]["comparison"] | {"paper": "one", "tables": {"t": table}}
    content["cells"] += [one | {"paper": "one"} for one in content["cells"] if one["experiment"] == "harsh"]
    content["cells"] = [one | {"used": "digits"} for one in content["cells"]]
    content["notice"] = "A small trial."
    plan.write_text(json.dumps(content))
    page, grounds, _ = build.write(plan, tmp_path / "reports/both.html")
    assert 'id="tab-one"' in page.read_text()
    assert 'id="tab-comparison"' not in page.read_text()
    assert f'<a href="{grounds.name}">all methods on the same data</a>' in page.read_text()
    assert '<p class="notice" role="note">A small trial.</p>' in grounds.read_text()
    assert data_of(grounds)["grounds"][0]["title"].startswith("harsh: digits in place of mnist, Dirichlet")
    assert [len(of) for of in data_of(grounds)["runs"]["harsh"].values()] == [3, 3]
    assert cli.main(["tables", str(plan), "--out", str(tmp_path / "tables")]) == 0
    assert (tmp_path / "tables/comparison/comparison.csv").is_file()
    assert (tmp_path / "tables/one/t.csv").is_file()
