"""Reports in a real browser: that of the results in the repository, and one of made-up runs; `make test-report` runs
these."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.lab import Lab, finish
from playwright.sync_api import Browser, sync_playwright

from bayesfed.plan import plan as planning
from bayesfed.report import build

PROJECT = Path(__file__).parents[2]
HOSTILE = "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Without a sandbox, since a container's root has none; the page is our own.
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def of_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the results that stand in the repository, with the benchmarks, and a file in the place of the
    workflow's."""
    folder = tmp_path_factory.mktemp("results")
    plan = folder / "results/paper/plan"
    (folder / "reports").mkdir()
    plan.parent.mkdir(parents=True)
    for part in ("runs", "partitions", "tables", "figures"):
        (plan.parent / part).symlink_to(PROJECT / "results/paper" / part)
    (plan.parent / "speed").mkdir()
    for table in (PROJECT / "benchmarks").glob("*.csv"):
        shutil.copyfile(table, plan.parent / "speed" / table.name)
    (folder / "reports/paper-workflow.html").write_text("the workflow's report\n")
    here = Path.cwd()
    os.chdir(PROJECT)  # where a plan and what is made of it look for their papers
    try:
        planning.write(PROJECT / "config/paper.yaml", plan)
        return build.write(plan / "plan.json", folder / "reports/paper.html")[0]
    finally:
        os.chdir(here)


@pytest.fixture(scope="session")
def of_made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of made-up runs: three seeds, a budget that is not the paper's, a run that diverged, a partition, hostile
    words."""
    root = tmp_path_factory.mktemp("made-up") / "results/test"
    lab = Lab(root)
    lab.notice = HOSTILE
    lab.spec["title"] = lab.spec["tables"]["table1"]["title"] = lab.spec["claims"][0]["claim"] = HOSTILE
    lab.spec["labels"]["cnn2"] = lab.spec["figures"]["figure4"]["title"] = HOSTILE
    measured = {"nll": 1.2, "brier": 0.5, "ece": 0.12, "mce": 0.3}
    for method, level in (("HBFL", 0.6), ("FML", 0.5)):
        for seed in range(3):
            for alpha in ("100", "0.05"):
                server = [level * (1 - 0.5**round) + 0.01 * seed for round in range(1, 30)]
                folder = lab.cell("heterogeneous", method, alpha=alpha, seed=seed)
                finish(folder, server, [server] * 10, {"global": measured}, on_shards=[server] * 10)
    small = {"rounds": 2, "changes": ["rounds 2 (paper 100)"]}
    finish(lab.cell("heterogeneous", "HBFL", "cifar100", **small), [0.1, 0.2])
    finish(lab.cell("heterogeneous", "FML", "cifar100", **small), [0.1], diverged={"round": 1})
    plan = lab.plan
    content = json.loads(plan.read_text())
    name = "partitions/cifar10/dirichlet-alpha~0.05-clients~10-seed~0"
    for run in content["runs"]:
        run |= {"partition": f"{name}.npz", "datasets": ["cifar10"]}
    plan.write_text(json.dumps(content))
    table = ["client,split,images,class_0,class_1"]
    table += [f"{k},{split},{20 * k + 10},{20 * k},10" for k in range(10) for split in ("train", "test")]
    (root / name).parent.mkdir(parents=True)
    (root / f"{name}.csv").write_text("\n".join(table) + "\n")
    return build.write(plan, root.parent.parent / "reports/test.html")[0]
