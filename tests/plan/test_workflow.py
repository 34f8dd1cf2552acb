"""The files and runs of a config as the rules name them; no Snakemake runs here."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.clone import PROJECT
from snakemake.resources import GroupResources, Resources

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.plan import plan, workflow
from bayesfed.plan.workflow import Workflow

JOBS = [["a", "b", "c"], ["long"]]
CONFIG = {"name": "tiny", "papers": ["small"], "seeds": [0]}


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A plan of four runs in two jobs, two of which share a partition; `b` is finished."""
    runs = [
        {
            "folder": folder,
            "runfile": f"runs/{folder}.yaml",
            "datasets": ["digits", "digits-parity"] if folder == "c" else ["digits"],
            "partition": None if folder == "c" else f"partitions/digits/iid-seed~{int(folder == 'long')}.npz",
            "priority": priority,
        }
        for folder, priority in (("long", 3), ("a", 4), ("b", 2), ("c", 1))
    ]
    paper = {"tables": {}, "figures": {"one": {"title": "One"}, "best": {"title": "Best", "search": {}}}}
    papers = {
        "small": paper | {"printed": True, "published_file": "small.published.csv"},
        "other": paper | {"printed": False, "published_file": "other.published.csv"},
    }
    made = {"runs": runs, "jobs": JOBS, "papers": papers}
    monkeypatch.setattr(plan, "load", lambda config: made)
    monkeypatch.chdir(tmp_path)
    finish("b")
    return made


def finish(run: str) -> None:
    folder = Path("results/tiny/runs", run)
    folder.mkdir(parents=True)
    (folder / "summary.json").touch()


def summaries(*runs: str) -> list[str]:
    return [f"results/tiny/runs/{run}/summary.json" for run in runs]


@pytest.mark.usefixtures("planned")
def test_a_job_is_its_open_runs_and_known_by_the_last() -> None:
    flow = Workflow(CONFIG, cores=5)
    assert flow.declared == ["c", "long"]
    assert flow.threads == 2
    assert flow.summaries == summaries("b", "c", "long")
    assert flow.run_files("c") == ["runs/a.yaml", "runs/c.yaml"]
    assert flow.priority("c") == 4
    assert flow.data("c") == [
        "data/digits/dataset.json",
        "data/partitions/digits/iid-seed~0.npz",
        "data/digits-parity/dataset.json",
    ]
    finish("c")
    assert Workflow(CONFIG).declared == ["a", "long"]


@pytest.mark.usefixtures("planned")
def test_only_open_runs_can_be_trained() -> None:
    def trainable(**options: Any) -> set[str]:
        flow = Workflow(CONFIG | options, every=options.get("runs") == "all")
        return {run for run in ("a", "b", "c", "long", "other") if re.fullmatch(flow.trainable, run)}

    assert trainable() == {"a", "c", "long"}
    assert trainable(runs="all") == {"a", "b", "c", "long"}  # on a node, in a report
    for run in ("a", "c", "long"):
        finish(run)
    assert trainable() == set()


@pytest.mark.usefixtures("planned")
def test_a_node_keeps_the_name_of_its_job() -> None:
    """Its runs may have been finished meanwhile."""
    flow = Workflow(CONFIG, every=True)
    assert flow.trained_with("c") == ["a", "c"]
    finish("c")
    assert Workflow(CONFIG, every=True).trained_with("c") == ["a", "c"]
    assert flow.summaries == summaries("long", "a", "b", "c")


@pytest.mark.usefixtures("planned")
def test_results_of_finished_runs_alone() -> None:
    """Nothing is trained; a run that comes is another set of runs, wherever its summary's time is from."""
    finished = CONFIG | {"runs": "finished"}
    flow = Workflow(finished, every=True)
    assert flow.summaries == summaries("b")
    assert (flow.declared, flow.trainable) == ([], "(?!)")
    finish("a")
    digests = {Workflow(config).wanted_digest for config in (finished, CONFIG)} | {flow.wanted_digest}
    assert len(digests) == 3
    for run in ("c", "long"):
        finish(run)
    assert Workflow(finished).wanted_digest == Workflow(CONFIG).wanted_digest in digests


def test_the_old_word_for_finished_runs_is_refused() -> None:
    with pytest.raises(InputError, match=r"config\.runs: 'standing' is not a choice; .*finished"):
        Workflow(CONFIG | {"runs": "standing"})


@pytest.mark.usefixtures("planned")
def test_without_a_finished_run_there_are_no_results() -> None:
    Path(*Path(summaries("b")[0]).parts).unlink()
    with pytest.raises(InputError, match="results/tiny/runs holds no finished run of this config; train first"):
        Workflow(CONFIG | {"runs": "finished"})


@pytest.mark.usefixtures("planned")
def test_partitions_and_their_pictures() -> None:
    """Of finished runs alone, those that have all pictures; the page shows the other tables, too."""
    flow = Workflow(CONFIG)
    assert flow.datasets == ["data/digits/dataset.json", "data/digits-parity/dataset.json"]
    assert list(flow.runs_of_partitions) == [f"data/partitions/digits/iid-seed~{seed}.npz" for seed in (1, 0)]
    pictures = [f"results/tiny/partitions/digits/iid-seed~{seed}{end}" for seed in (1, 0) for end in workflow.PICTURES]
    assert (flow.overviews, flow.shown_partitions) == (pictures, [])
    Path("results/tiny/partitions/digits").mkdir(parents=True)
    for picture in (*pictures[:3], pictures[5]):
        Path(picture).touch()
    flow = Workflow(CONFIG | {"runs": "finished"})
    assert flow.overviews == pictures[:3]
    assert flow.shown_partitions == sorted([pictures[2], pictures[5]])


@pytest.mark.usefixtures("planned")
def test_folders_of_a_config(tmp_path: Path) -> None:
    flow = Workflow(CONFIG | {"plugins": "../mine", "partitions": "./shares/"})
    assert flow.partition_folder == "shares"
    assert next(iter(flow.runs_of_partitions)) == "shares/digits/iid-seed~1.npz"
    assert flow.option("plugins") == ["--plugins", "../mine"]
    assert Workflow(CONFIG).option("partitions") == []
    assert flow.plugins_from("results/tiny") == "../../../mine"
    assert Workflow(CONFIG | {"plugins": "/mine"}).plugins_from("results/tiny") == "/mine"
    assert Workflow(CONFIG).plugins_from("results/tiny") == "datasets.txt"


@pytest.mark.usefixtures("planned")
def test_files_that_results_are_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow(CONFIG | {"benchmarks": True})
    assert flow.published == ["small.published.csv"]
    assert flow.searched == [("small", "best"), ("other", "best")]
    Path("results/tiny/figures/small").mkdir(parents=True)
    Path("results/tiny/figures/small/one.svg").touch()
    assert flow.drawn(["snakemake", "--report"]) == [("small", "one", "One")]
    assert flow.drawn(["snakemake"]) == []
    assert flow.benchmarks == {}
    Path("benchmarks").mkdir()
    for name in ("rounds-cpu.csv", "kernels.csv", "data.csv"):
        Path("benchmarks", name).touch()
    flow = Workflow(CONFIG | {"benchmarks": True})
    assert flow.benchmarks == {name: f"benchmarks/{name}" for name in ("rounds-cpu.csv", "kernels.csv")}
    assert Workflow(CONFIG).benchmarks == {}
    monkeypatch.chdir(plan.PACKAGE.parents[1])
    found = workflow.code("results", "report")
    assert {"src/bayesfed/results/tables.py", "src/bayesfed/report/templates/page.css"} <= set(found)
    assert not [path for path in found if "__pycache__" in path or "/plan/" in path]


def test_the_page_of_grounds_lies_beside_that_of_papers(planned: dict[str, Any]) -> None:
    """Where there are both, and a run of a ground, which a search is not."""
    planned["papers"]["other"] |= {"figures": {}}
    planned["cells"] = [{"paper": "other", "experiment": "search_digits", "folder": "a"}]
    assert Workflow(CONFIG).methods_page == []
    planned["cells"].append({"paper": "other", "experiment": "digits-mild", "folder": "a"})
    assert Workflow(CONFIG).methods_page == ["reports/tiny-methods.html"]
    assert Workflow(CONFIG | {"runs": "finished"}).methods_page == []  # `b` alone is finished
    del planned["papers"]["small"]
    assert Workflow(CONFIG).methods_page == []


def test_every_run_is_a_job_on_a_node_and_in_a_report() -> None:
    assert not workflow.every_run(["snakemake", "--cores", "2"], main=True)
    assert workflow.every_run(["snakemake", "--report", "page.html"], main=True)
    assert not workflow.every_run(["snakemake", "--report", "page.html", "--report-after-run"], main=True)
    assert workflow.every_run(["snakemake"], main=False)


def test_jobs_find_the_command_line_of_this_environment() -> None:
    found = workflow.environment({"data_mirror": "/mirror"})
    assert os.access(Path(found["PATH"].split(os.pathsep)[0], "bayesfed"), os.X_OK)
    assert found["BAYESFED_MIRROR"] == "/mirror"
    assert "BAYESFED_MIRROR" not in workflow.environment({})


@pytest.mark.parametrize("given", [["--workflow-profile", "slrum"], ["--workflow-profile=slrum"]])
def test_a_profile_that_is_not_there(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles" / "slurm").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="there is no profile slrum; there are profiles/slurm"):
        workflow.check_profile(["snakemake", *given])
    for profile in ("none", "profiles/slurm"):
        workflow.check_profile(["snakemake", "--workflow-profile", profile])


def test_fifty_partitions_ask_slurm_for_little() -> None:
    """They are one job, whose resources Snakemake adds up."""
    profile = files.read_yaml(PROJECT / "profiles/slurm/config.yaml")
    texts = dict(one.split("=") for one in profile["default-resources"]) | profile["set-resources"]["partition"]
    each = {name: eval(text, {"attempt": 1}) for name, text in texts.items()} | {"_cores": 1, "_nodes": 1}
    jobs = [SimpleNamespace(resources=each, pipe_group=None)] * profile["group-components"]["partitions"]
    bound = Resources.from_mapping({"_cores": profile["cores"]})
    asked = GroupResources.basic_layered([jobs], bound, False)
    assert len(jobs) == 50
    assert (asked["_cores"], asked["mem_mb"], asked["runtime"]) == (10, 20_000, 25)


def test_a_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.fullmatch(
        "no Slurm answers here (.*No such file.*); start it on a login node of the cluster", workflow.trouble("slurm")
    )
    assert workflow.trouble("local") == ""
    command = tmp_path / "scontrol"
    for state in ("DOWN", "UP"):
        command.write_text(f"#!/bin/sh\necho 'Slurmctld(primary) at here is {state}'\n")
        command.chmod(0o755)
        assert ("at here is DOWN" in workflow.trouble("slurm")) == (state == "DOWN")


@pytest.mark.usefixtures("planned")
def test_reasons_of_failures_since_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    flow = Workflow(CONFIG)
    logs = Path("results/tiny/logs/train")
    logs.mkdir(parents=True)
    for name in ("old", "new"):
        (logs / f"{name}.log").write_text(f"round 1\nbayesfed: {name} failed\n")
    os.utime(logs / "old.log", (flow.started - 10, flow.started - 10))
    os.utime(logs / "new.log", (flow.started + 10, flow.started + 10))
    flow.tell_reasons()
    assert capsys.readouterr().err == "bayesfed: new failed\n"
