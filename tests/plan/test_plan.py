"""The plan: what a config asks for becomes runs, each once, and cells; a current plan is read without torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.papers import grid
from bayesfed.plan import experiments, plan
from bayesfed.results import derived, tables
from bayesfed.runs import run_file

PROJECT = Path(__file__).parents[2]

PAPER = """
paper: small
title: A small paper
reference: nobody, 2026
run: {partition: {scheme: dirichlet_class_shared, clients: 3}, rounds: 2, local_epochs: 1, batch_size: 64}
settings: {"100": IID}
methods:
  FedAvg: {name: fedavg}
  FML: {name: fml}
experiments:
  first:
    models: {global: lenet5, local: [mlp, mlp, lenet5]}
    axes: {dataset: [cifar10], partition.alpha: [100, 0.05], method: [FedAvg, FML]}
  second:                     # FedAvg at alpha 100 is the first experiment's run
    cases: [{dataset: cifar10, models.global: lenet5}]
    axes: {partition.alpha: [100], stragglers: [0, 0.5], method: [FedAvg]}
  tasks:
    dataset: [cifar10, mnist]
    partition: {scheme: whole, clients: 2}
    models: {global: convolutions, local: [lenet5, cnn1]}
    axes: {method: [FML]}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A config of a small paper with stand-in datasets, in a working folder of its own."""
    (tmp_path / "config" / "papers").mkdir(parents=True)
    (tmp_path / "config" / "papers" / "small.yaml").write_text(PAPER.replace("mnist]", "cifar10]"))
    monkeypatch.chdir(tmp_path)
    return {"name": "tiny", "papers": ["small"], "seeds": [0, 1], "datasets": {"cifar10": "digits"}}


def made(config: dict[str, Any]) -> dict[str, Any]:
    return plan.make(config)[0]


def cached(config: dict[str, Any]) -> dict[str, Any]:
    """The plan that `plan.load` finds, made without the process that it starts, which takes longer than all else."""
    path = plan.folder(config["name"]) / "config.yaml"
    files.write_yaml(path, config)
    return plan.write(path)


def of_project(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(PROJECT)
    return made(plan.read_mapping(Path("config", f"{name}.yaml")))


def test_demo_asks_for_every_experiment_of_the_default_papers_in_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = of_project("demo", monkeypatch)
    papers = plan.read_mapping(PROJECT / "config/paper.yaml")["papers"]
    every = {(paper, name) for paper in papers for name in demo["papers"][paper]["experiments"]}
    asked = {(cell["paper"], cell["experiment"]) for cell in demo["cells"]}
    assert asked == every | {("comparison", "mnist-harsh")}
    assert [*demo["papers"]] == [*papers, "comparison"]
    assert 40 <= len(demo["runs"]) <= 150
    assert all(cell["changes"] or cell["used"] != cell["dataset"] for cell in demo["cells"])
    assert {name for run in demo["runs"] for name in run["datasets"]} == {"digits", "digits-parity", "digits-turned"}
    assert "Do not compare its numbers with the papers" in demo["notice"]


def test_check_fills_tables_1_to_4_from_the_papers_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    check = of_project("check", monkeypatch)
    assert Counter(cell["experiment"] for cell in check["cells"]) == {"heterogeneous": 8, "multitask": 3}
    assert {name for run in check["runs"] for name in run["datasets"]} == {"cifar10", "cifar100"}
    assert all(cell["changes"] for cell in check["cells"])


def test_run_files_are_there_while_a_plan_is_made_anew(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a sweep that goes on read them."""
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(config))
    first = {Path(run["runfile"]) for run in plan.write(path)["runs"]}
    there: list[bool] = []
    written = files.write_changed

    def watched(path: Path, text: str) -> None:
        there.append(all(one.exists() for one in first))
        written(path, text)

    monkeypatch.setattr(files, "write_changed", watched)
    path.write_text(yaml.safe_dump(config | {"seeds": [0]}))
    second = {Path(run["runfile"]) for run in plan.write(path)["runs"]}
    assert second < first
    assert there == [True] * len(second) + [False]  # last the plan itself
    assert (
        set(next(iter(second)).parent.glob("*.yaml")) == second
    )  # what is not planned any more is not trained by hand


@pytest.mark.parametrize(("noise", "setting"), [(0.1, "noisy"), (0.2, "IID")])
def test_label_noise_may_have_a_setting_of_its_own(
    config: dict[str, Any], tmp_path: Path, noise: float, setting: str
) -> None:
    paper = tmp_path / "config" / "papers" / "small.yaml"
    paper.write_text(paper.read_text().replace("IID}", "IID, 100 label_noise 0.1: noisy}"))
    cells = made(config | {"run": {"label_noise": noise}})["cells"]
    assert {cell["setting"] for cell in cells if cell["alpha"] == "100"} == {setting}
    assert {told for cell in cells for told in cell["changes"]} == {f"label noise {noise} (paper 0)"}


def test_cells_share_runs(config: dict[str, Any]) -> None:
    small = made(config)
    folders = Counter(cell["folder"] for cell in small["cells"])
    assert len(small["cells"]) == 2 * (4 + 2 + 1)
    assert len(small["runs"]) == len(folders) == 2 * (4 + 1 + 1)
    shared = [cell["experiment"] for cell in small["cells"] if folders[cell["folder"]] == 2]
    assert Counter(shared) == {"first": 2, "second": 2}


def test_cell_says_where_it_belongs(config: dict[str, Any]) -> None:
    cell = made(config)["cells"][0]
    assert cell | {"folder": ""} == {
        "paper": "small", "experiment": "first", "dataset": "cifar10", "used": "digits", "alpha": "100",
        "setting": "IID", "method": "FedAvg", "model": None, "models": {"global": "lenet5", "local": []}, "clients": 3, "stragglers": "0", "axes": {}, "seed": 0, "rounds": 2,
        "local_epochs": 1, "batch_size": 64, "clients_on_test": "detailed", "personal": False, "asks": [], "changes": [], "folder": "",
    }  # fmt: skip
    tasks = made(config)["cells"][-1]
    assert (tasks["dataset"], tasks["used"]) == (["cifar10", "cifar10"], ["digits", "digits"])
    assert (tasks["alpha"], tasks["setting"]) == (None, None)


def test_methods_in_another_order_are_another_plan(config: dict[str, Any]) -> None:
    """Figures' colours follow it."""
    methods = "  FedAvg: {name: fedavg}\n  FML: {name: fml}\n"
    assert methods in PAPER
    before = files.json_text(made(config))
    paper = plan.PAPERS / "small.yaml"
    paper.write_text(paper.read_text().replace(methods, "  FML: {name: fml}\n  FedAvg: {name: fedavg}\n"))
    assert files.json_text(made(config)) != before


def test_networks_of_a_cell_are_its_runs(config: dict[str, Any]) -> None:
    ours = {"run": {"models": {"global": "mlp", "local": "cnn1"}}, "axes": {"method": ["FML"]}}
    cells = made(config | {"experiments": {"first": ours}})["cells"]
    found = [cell["models"] for cell in cells if cell["experiment"] in ("first", "second")]
    assert found[0] == {"global": "mlp", "local": ["cnn1"] * 3}
    assert found[-1] == {}  # an axis names it


def test_most_valuable_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest seed of everything; in it what fills tables; in that the cheap, a table's row side by side."""
    monkeypatch.chdir(PROJECT)
    full = made(plan.read_mapping(Path("config/paper.yaml")) | {"papers": ["hbfl"], "experiments": {}})
    of_folder = {cell["folder"]: cell for cell in reversed(full["cells"])}  # as the first that asks for it
    order = [of_folder[run["folder"]] for run in sorted(full["runs"], key=lambda run: -run["priority"])]
    assert sorted(run["priority"] for run in full["runs"]) == list(range(1, len(order) + 1))
    assert [cell["seed"] for cell in order] == [0] * 181 + [1] * 181 + [2] * 181
    first = [(cell["experiment"], cell["method"], cell["dataset"], cell["alpha"]) for cell in order[:11]]
    both = ["cifar10", "cifar100"]
    assert first[:3] == [("multitask", method, both, None) for method in ("Independent", "FML", "HBFL")]
    assert first[3:7] == [("heterogeneous", m, "cifar10", alpha) for alpha in ("100", "0.05") for m in ("FML", "HBFL")]
    assert {experiment for experiment, *_ in first} == {"multitask", "heterogeneous"}
    figures = [(cell["model"], cell["dataset"]) for cell in order[11:181] if cell["experiment"] == "homogeneous"]
    assert figures[0] == ("mlp", "mnist")
    assert figures[-1] == ("cnn2", "cifar100")


def test_a_configs_own_tables_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    spec = made(plan.read_mapping(Path("config/pfedbayes-reduced.yaml")))["papers"]["pfedbayes"]
    assert spec["summary"] == [
        "cifar10_reduced",
        "noise",
        "embedding_reduced",
        "table1",
        "table1_cifar10",
        "leaks",
        "pfedgp_embedding",
        "perfedavg_order",
        "bnfed_form",
    ]
    assert list(spec["tables"])[:4] == ["cifar10_reduced", "noise", "embedding_reduced", "table1"]


def test_every_run_is_of_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    full = of_project("test", monkeypatch)
    assert sorted(run for job in full["jobs"] for run in job) == sorted(run["folder"] for run in full["runs"])


def test_a_config_changes_the_run_of_one_experiment(config: dict[str, Any]) -> None:
    """Whatever the experiment, or the config for all of them, says of it; the partition key by key."""
    config |= {"run": {"rounds": 3}, "experiments": {"second": {"run": {"rounds": 1, "partition": {"clients": 4}}}}}
    cells = made(config)["cells"]
    assert {(c["experiment"], c["rounds"], c["clients"]) for c in cells if c["experiment"] != "tasks"} == {
        ("first", 3, 3), ("second", 1, 4)
    }  # fmt: skip
    told = next(c["changes"] for c in cells if c["experiment"] == "second")
    assert told == ["clients 4 (paper 3)", "rounds 1 (paper 2)"]
    with pytest.raises(InputError, match="round: unknown key; did you mean 'rounds'"):
        made(config | {"experiments": {"second": {"run": {"round": 1}}}})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 5}, "run.seed: seeds are given under `seeds`"),
        ({"method": {"lr": 0.1}}, "run.method: a method's options are given under `methods`"),
    ],
)
@pytest.mark.parametrize("place", ["of all experiments", "of one"])
def test_a_key_of_run_that_has_another_place_is_refused(
    config: dict[str, Any], place: str, changed: Any, message: str
) -> None:
    there = {"run": changed} if place == "of all experiments" else {"experiments": {"first": {"run": changed}}}
    with pytest.raises(InputError, match=re.escape(message)):
        made(config | there)


@pytest.mark.parametrize("place", ["config", "config.experiments.first"])
def test_a_stand_in_for_no_dataset_is_refused(config: dict[str, Any], place: str) -> None:
    wanted = {"datasets": config["datasets"] | {"cifar1O": "digits"}}
    with pytest.raises(InputError, match=f"{place}.datasets: no dataset is named 'cifar1O'; did you mean 'cifar10'"):
        made(config | (wanted if place == "config" else {"experiments": {"first": wanted}}))


SKIPPED: dict[str, Any] = {name: {"skip": True} for name in ("first", "second", "tasks")}
CASE = {"dataset": "cifar10", "models.global": "mlp", "method": "Mine"}
OWN = {"title": "Mine", "experiment": "tasks", "columns": [{"method": "FML"}]}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"run": {"partition": {"alpha": 0.5, "min_train": 5}}}, "run.partition.alpha"),
        ({"run": {"partition": {"alpha": "banana"}}}, "run.partition.alpha"),
        ({"run": {"dataset": "digits"}}, "run.dataset"),
        ({"run": {"models": {"global": "mlp"}}}, "run.models.global"),
        ({"run": {"models": {"student": "mlp"}}}, "run.models.student"),
        ({"run": {"stragglers": 2}, "experiments": SKIPPED | {"second": {}}}, "run.stragglers"),
        ({"methods": {"FML": {"lr": 1}}, "experiments": SKIPPED | {"second": {}}}, "methods.FML.lr"),
        ({"methods": {"FML": {"lr": "x", "alpha": 0.1}}, "experiments": SKIPPED | {"second": {}}},
         "methods.FML.lr, config.methods.FML.alpha"),
        ({"methods": {"Mine": {"name": "fedavg", "lr": 1}},
          "experiments": SKIPPED | {"mine": {"cases": [CASE], "axes": {"partition.alpha": [1], "method.lr": [0.1]}}}}, "methods.Mine.lr"),
        ({"methods": {"Mine": {"name": "fedavg"}}, "experiments": SKIPPED | {"mine": {
            "partition": {"alpha": 3, "clients": 2}, "cases": [CASE | {"partition.alpha": 1}]}}}, "experiments.mine.partition.alpha"),
        ({"datasets": {"cifar10": "digits", "fashion-mnist": "digits"}}, "datasets.fashion-mnist"),
        ({"experiments": SKIPPED | {"second": {"datasets": {"cifar10": "digits-parity"}}}}, "datasets.cifar10"),
        ({"experiments": {"first": {"datasets": {"mnist": "digits"}}}}, "experiments.first.datasets.mnist"),
        ({"experiments": SKIPPED | {"first": {"seeds": [3]}}}, "seeds"),
        ({"experiments": SKIPPED | {"first": {"run": {"models": {"student": "mlp"}}}}},
         "experiments.first.run.models.student"),
    ],
)  # fmt: skip
def test_a_value_that_no_run_takes_is_refused(config: dict[str, Any], change: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as error:
        made(config | change)
    assert str(error.value).startswith(f"config.{place}: no run takes this, since ")


def test_a_value_that_one_run_takes_is_none_the_worse(config: dict[str, Any]) -> None:
    """And it is checked there."""
    run = {"stragglers": 0.5, "partition": {"min_train": 5}}
    made(config | {"run": run, "experiments": SKIPPED | {"first": {"axes": {"method": ["FedAvg"]}}, "second": {}}})
    with pytest.raises(InputError, match=r"first .*config\.run\.stragglers: 2\.0 is out of range"):
        made(config | {"run": {"stragglers": 2}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experiments": {"first": {"skip": True, "run": {"rounds": 3}}}}, "experiments.first.run: the experiment is skipped"),
        ({"experiments": {"mine": {"seed": 1, "axes": {"method": ["FML"]}}}}, "experiments.mine.seed: seeds are given under"),
        ({"tables": {"mine": OWN | {"rows": {}, "metric": "client_accuracy_best"}}}, "tables.mine: no planned run is in it"),
        ({"figures": {"mine": OWN | {"rows": [], "columns": [], "accuracy": "client", "methods": ["FML"]}}},
         "figures.mine: no planned run is in it"),
        ({"papers": ["small", "other"]}, "papers: all experiments of 'other' are skipped"),
        ({"plugins": "own"}, "plugins: no run takes anything of own"),
        ({"weights": "own"}, "weights: no run takes anything of own"),
        ({"short_runs": {"below": 0, "together": 3}}, "short_runs.together: no run is short"),
    ],
)  # fmt: skip
def test_what_is_in_no_run_is_refused(config: dict[str, Any], change: dict[str, Any], words: str) -> None:
    Path("own", "papers").mkdir(parents=True)
    other = PAPER.replace("mnist]", "cifar10]")
    for old, new in {"small": "other", "first:": "third:", "tasks:": "fourth:", "second:": "fifth:"}.items():
        other = other.replace(old, new)
    Path("config", "papers", "other.yaml").write_text(other)
    skipped = {"second": {"skip": True}, "tasks": {"skip": True}}
    if "papers" in change:
        skipped |= {name: {"skip": True} for name in ("third", "fourth", "fifth")}
    with pytest.raises(InputError, match=f"^config.{words}"):
        made(config | change | {"experiments": skipped | change.get("experiments", {})})


def test_seeds_are_given_where_they_are_wanted(config: dict[str, Any]) -> None:
    del config["seeds"]
    with pytest.raises(InputError, match=r"^config\.seeds is missing; "):
        made(config)
    cells = made(config | {"experiments": SKIPPED | {"first": {"seeds": [3]}}})["cells"]
    assert {cell["seed"] for cell in cells} == {3}


def test_an_axis_wins_over_the_run_of_all_experiments_and_forbids_the_key_in_its_own(config: dict[str, Any]) -> None:
    cells = made(config | {"run": {"stragglers": 0.25}})["cells"]
    assert {(c["experiment"], c["stragglers"]) for c in cells} >= {
        ("first", "0.25"),
        ("second", "0"),
        ("second", "0.5"),
    }
    message = "small, experiment second (dataset cifar10, model lenet5, alpha 100, stragglers 0, method FedAvg): "
    message += "run.stragglers: the experiment has an axis 'stragglers'; give other values under its `axes` or `cases`"
    with pytest.raises(InputError, match=re.escape(message)):
        made(config | {"experiments": {"second": {"run": {"stragglers": 0.25}}}})
    with pytest.raises(InputError, match=r"run\.partition\.alpha: the experiment has an axis 'partition\.alpha'"):
        made(config | {"experiments": {"second": {"run": {"partition": {"alpha": 1}}}}})
    with pytest.raises(InputError, match=r"run\.models\.global: the experiment has an axis 'models\.global'"):
        made(config | {"experiments": {"second": {"run": {"models": {"global": "mlp"}}}}})


def test_an_experiment_is_repeated_as_often_as_its_paper_says(config: dict[str, Any]) -> None:
    """Unless the config gives its seeds; the config's own are for experiments of which the paper does not say it."""
    path = plan.PAPERS / "small.yaml"
    path.write_text(path.read_text().replace("  first:\n", "  first:\n    seeds: 3\n"))

    def seeds(changes: dict[str, Any]) -> dict[str, set[int]]:
        cells = made(config | changes)["cells"]
        return {name: {cell["seed"] for cell in cells if cell["experiment"] == name} for name in ("first", "second")}

    assert seeds({}) == {"first": {0, 1, 2}, "second": {0, 1}}
    assert seeds({"experiments": {"first": {"seeds": [7]}}}) == {"first": {7}, "second": {0, 1}}


def test_blocks_of_a_run_are_changed_key_by_key(config: dict[str, Any]) -> None:
    """By an experiment as by a config; a partition that names its scheme is another one, whole."""
    path = plan.PAPERS / "small.yaml"
    paper = yaml.safe_load(path.read_text())
    paper["run"] |= {"schedule": {"round_decay": 0.9}, "tasks": {"mistakes": True}}
    paper["experiments"]["first"]["schedule"] = {"milestones": [[0.5, 0.1]]}
    path.write_text(yaml.safe_dump(paper))
    change = {
        "tasks": {"foreign": ["digits-turned"]},
        "partition": {"scheme": "dirichlet_client", "clients": 3, "min_test": 0},
    }
    config["run"] = {"schedule": {"epoch_decay": 0.8}, "partition": {"min_train": 5}}
    config["experiments"] = {"first": {"run": change}, "tasks": {"skip": True}}
    first, *_, last = plan.make(config)[1]
    assert (first.schedule.round_decay, first.schedule.epoch_decay, first.schedule.milestones) == (
        0.9,
        0.8,
        ((0.5, 0.1),),
    )
    assert (first.tasks.mistakes, first.tasks.foreign) == (True, ("digits-turned",))
    assert (first.partition.name, first.partition.min_train) == ("dirichlet_client", 10)
    assert (last.partition.name, last.partition.min_train) == ("dirichlet_class_shared", 5)


def test_what_depends_on_an_axis_is_given_key_by_key(config: dict[str, Any]) -> None:
    """But for a partition of another scheme, which has other options."""
    path = plan.PAPERS / "small.yaml"
    rules = [
        {"where": {"partition.alpha": 0.05}, "run": {"rounds": 7, "partition": {"clients": 4}}},
        {"where": {"partition.alpha": 100}, "run": {"partition": {"scheme": "dirichlet_client", "clients": 5}}},
        {"where": {"method": ["FML"]}, "methods": {"FML": {"lr": 0.5}}},
    ]
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"given": rules}))
    spec = plan.read_paper("small", {})
    first = spec["run"]["partition"]["scheme"]
    run, options = grid.given(spec, {"partition.alpha": 0.05, "method": "FML"})
    assert (run["rounds"], run["batch_size"], options) == (7, 64, {"lr": 0.5})
    assert run["partition"] == {"scheme": first, "clients": 4}
    experiment = {"partition": {"alpha": 0.05}, "models": {"global": "mlp"}, "dataset": "mnist"}
    mapping, _ = experiments.run_mapping(spec, {}, experiment, {"method": "FML"})
    assert (mapping["rounds"], mapping["partition"]["clients"]) == (7, 4)  # of the experiment's keys as of its axes
    run, options = grid.given(spec, {"partition.alpha": 100, "method": "FedAvg"})
    assert (run["rounds"], run["partition"], options) == (2, {"scheme": "dirichlet_client", "clients": 5}, {})


def test_whatever_a_config_changes_is_named(config: dict[str, Any]) -> None:
    """Not the budget alone: methods, clients, participation, points outside the paper's grid; more rounds, too."""
    changed = config | {
        "run": {"rounds": 3, "participation": 0.2, "partition": {"clients": 4}},
        "methods": {"FedAvg": {"lr": 0.001}},
        "experiments": {
            "first": {"axes": {"partition.alpha": [100.0, 1], "method": ["FedAvg"]}},
            "second": {"cases": [{"models.global": "lenet5", "dataset": "cifar10"}], "axes": {"stragglers": [0]}},
            "tasks": {"skip": True},
        },
    }
    common = ["clients 4 (paper 3)", "lr 0.001 (paper 0.01)", "rounds 3 (paper 2)", "participation 0.2 (paper 1)"]
    cells = {(c["experiment"], c["alpha"]): c["changes"] for c in made(changed)["cells"]}
    assert cells == {
        ("first", "100"): common,
        ("first", "1"): ["alpha 1 (not in the paper)", *common],
        ("second", "100"): common,
    }
    assert not any(cell["changes"] for cell in made(config)["cells"])


def test_a_config_adds_methods_experiments_tables_and_figures(config: dict[str, Any]) -> None:
    """A sweep along keys of the method, the partition and the run file, beside the paper's own experiments."""
    rows = {"lr": [0.1, 0.01], "clients": [3, 4]}
    shown = {"title": "Sweep", "experiment": "sweep", "rows": rows, "columns": [{"method": "Mine"}]}
    drawn = {"title": "Sweep", "experiment": "sweep", "rows": [], "columns": ["lr"], "curves": "clients"}
    config |= {
        "methods": {"Mine": {"name": "fedavg", "momentum": 0.5}},
        "experiments": {
            "sweep": {
                "seeds": [5],
                "cases": [{"dataset": "cifar10", "models.global": "mlp", "partition.alpha": 1}],
                "axes": {
                    "method": ["Mine"],
                    "method.lr": [0.1, 0.01],
                    "partition.clients": [3, 4],
                    "participation": [0.5],
                },
            },
            "tasks": {"skip": True},
        },
        "tables": {"sweep": shown | {"metric": "global_accuracy_best"}},
        "figures": {"sweep": drawn | {"accuracy": "global", "methods": ["Mine"]}},
    }
    small, runs = plan.make(config)
    by_folder = {run.folder: run for run in runs}
    own = [(cell, by_folder[cell["folder"]]) for cell in small["cells"] if cell["experiment"] == "sweep"]
    assert len(own) == 4
    for cell, run in own:
        assert cell["seed"] == 5
        assert cell["axes"] == {"lr": run.options.lr, "clients": run.partition.clients, "participation": 0.5}
        assert (run.options.momentum, run.budget.participation, run.global_model) == (0.5, 0.5, "mlp")
        assert cell["changes"] == ["experiment sweep is not the paper's"]
    assert {(run.options.lr, run.partition.clients) for _, run in own} == {(0.1, 3), (0.1, 4), (0.01, 3), (0.01, 4)}
    (paper,) = small["papers"].values()
    assert [*paper["tables"]] == ["sweep"]
    assert not any(cell["changes"] for cell in small["cells"] if cell["experiment"] == "first")


def test_axes_have_short_names_in_cells(config: dict[str, Any]) -> None:
    """But for an option that is called as the partition's alpha, and those that the experiment wants in full."""
    case = {"dataset": "cifar10", "models.global": "mlp", "partition.alpha": 1, "method": "FML"}
    axes = {
        "method.alpha": [0.5],
        "method.beta": [0.25],
        "method.lr": [0.1],
        "partition.clients": [4],
        "participation": [0.5],
    }
    own = {"cases": [case], "axes": axes, "full_names": ["method.lr"]}
    cell = made(config | {"seeds": [0], "experiments": SKIPPED | {"mine": own}})["cells"][0]
    assert (cell["model"], cell["alpha"]) == ("mlp", "1")
    assert cell["axes"] == {"method.alpha": 0.5, "beta": 0.25, "method.lr": 0.1, "clients": 4, "participation": 0.5}


def test_local_models_only_where_a_method_has_them(config: dict[str, Any]) -> None:
    runs = {run.method: run for run in plan.make(config)[1] if not run.multi_task}
    assert runs["fml"].local_models == ("mlp", "mlp", "lenet5")
    assert runs["fedavg"].local_models == ()


def test_config_changes_grid_budget_and_hyperparameters(config: dict[str, Any]) -> None:
    config |= {
        "run": {"rounds": 7, "partition": {"min_train": 5}},
        "methods": {"FML": {"alpha": 0.25}},
        "experiments": {
            "first": {"seeds": [4], "datasets": {"cifar10": "digits-parity"}, "axes": {"partition.alpha": [1]}},
            "second": {"cases": [{"dataset": "cifar10", "models.global": "mlp"}], "axes": {"stragglers": [0.9]}},
            "tasks": {"skip": True},
        },
    }
    small, runs = plan.make(config)
    assert [(c["experiment"], c["method"], c["alpha"], c["stragglers"], c["seed"]) for c in small["cells"]] == [
        ("first", "FedAvg", "1", "0", 4),
        ("first", "FML", "1", "0", 4),
        ("second", "FedAvg", "100", "0.9", 0),
        ("second", "FedAvg", "100", "0.9", 1),
    ]
    assert [run.datasets for run in runs] == [("digits-parity",)] * 2 + [("digits",)] * 2
    assert {run.budget.rounds for run in runs} == {7}
    assert {run.partition.min_train for run in runs} == {5}
    assert [run.options.alpha for run in runs if run.method == "fml"] == [0.25]
    assert runs[-1].global_model == "mlp"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": [0]}, "config.seed: unknown key; did you mean 'seeds'?"),
        ({True: 1}, "config.True: unknown key"),
        ({"papers": []}, "config.papers: expected a list of 1 or more, found []"),
        ({"papers": ["large"]}, "config/papers/large.yaml: there is no such file; valid: small"),
        ({"experiments": {"frist": {}}}, "config.experiments.frist: unknown key; did you mean 'first'?"),
        (
            {"experiments": {name: {"skip": True} for name in ("first", "second", "tasks")}},
            "config.experiments: no experiment is left to run",
        ),
        ({"experiments": {"first": {"axis": {}}}}, "config.experiments.first.axis: unknown key"),
        ({"experiments": {"first": {"axes": {"stragglers": [0]}}}}, "config.experiments.first.axes.stragglers"),
        (
            {"experiments": {"mine": {"axes": {"method": ["FML"], "lrr": [1]}}}},
            "lrr: unknown key; did you mean 'method.lr'?",
        ),
        ({"experiments": {"mine": {"seeds": [1]}}}, "config.experiments.mine: unknown key"),
        (
            {"experiments": {"mine": {"axes": {"method": ["FML"]}, "run": {"rounds": 1}}}},
            "config.experiments.mine.run: keys of a run file, such as rounds, are keys of your own experiment itself",
        ),
        (
            {"experiments": {"mine": {"axes": {"method": ["FML"], "method.lr": [1]}, "cases": [{"method.lr": 0.5}]}}},
            "config.experiments.mine.cases: 'method.lr' is an axis of this experiment, too; give its values in one of them",
        ),
        ({"tables": {"mine": {"title": "x"}}}, "config.tables.mine.experiment is missing; "),
        (
            {"tables": {"mine": {"title": "x", "columns": "FML"}}},
            "config.tables.mine.columns: expected a list, found 'FML'",
        ),
        (
            {"tables": {"mine": {"rows": {"method": "FML"}}}},
            "config.tables.mine.rows.method: expected a list, found 'FML'",
        ),
        (
            {"figures": {"mine": {"curves": ["method"]}}},
            "config.figures.mine.curves: expected text, found ['method']",
        ),
        ({"figures": {"mine": {"titel": "x"}}}, "config.figures.mine.titel: unknown key; did you mean 'title'?"),
        ({"experiments": {"first": {"axes": {"method": ["FLM"]}}}}, "none labelled 'FLM'; did you mean 'FML'?"),
        (
            {"experiments": {"first": {"axes": {"partition.alpha": 0.05}}}},
            "experiments.first.axes.partition.alpha: expected a list, found 0.05",
        ),
        ({"experiments": {"first": {"axes": {"partition.alpha": [0]}}}}, "(dataset cifar10, alpha 0, method FedAvg)"),
        (
            {
                "experiments": {
                    "mine": {
                        "cases": [
                            {"dataset": "cifar10", "models.global": "mlp", "method": "FML", "partition.alpha": 1}
                        ],
                        "axes": {"seed": [0, 1]},
                    }
                }
            },
            "axis 'seed': seeds are given under `seeds`",
        ),
        ({"methods": {"FMl": {}}}, "config.methods.FMl: unknown key; did you mean 'FML'?"),
        ({"methods": {"FML": {"lr2": 1}}}, "method.lr2: unknown key"),
        (
            {"methods": {"Mine": {"name": "fml", "lr": 1}}},
            "config.methods.Mine: no experiment names it; put it into one's axis, experiments.NAME.axes.method: [..., Mine]",
        ),
        ({"run": {"round": 1}}, "alpha 100, method FedAvg): config.run.round: unknown key; did you mean 'rounds'?"),
        ({"datasets": {"cifar10": "digit"}}, "did you mean 'digits'?"),
        ({"run": 3}, "config.run: expected keys and values, found 3"),
        ({"seeds": 3}, "config.seeds: expected a list, found 3"),
    ],
)
def test_mistakes_are_named(config: dict[str, Any], change: dict[Any, Any], words: str) -> None:
    Path("config", "tiny.yaml").write_text(yaml.safe_dump(config | change))
    with pytest.raises(InputError) as error:
        plan.write(Path("config", "tiny.yaml"))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path("results").exists()


@pytest.mark.parametrize("place", ["run", "experiment"])
@pytest.mark.parametrize(
    ("asked", "metric"),
    [
        ({"tasks": {"mistakes": True}}, "global_auroc_mistakes_last"),
        ({"clients_on_test": "round"}, "local_accuracy_last"),
    ],
)
def test_what_a_config_asks_of_runs_can_be_shown(
    config: dict[str, Any], place: str, asked: dict[str, Any], metric: str
) -> None:
    table = {
        "title": "Mine",
        "experiment": "first",
        "rows": {"method": ["FedAvg"]},
        "columns": [{"alpha": 100, "metric": metric}],
    }
    config["tables"] = {"mine": table}
    with pytest.raises(InputError, match="does not"):
        plan.make(config)
    made(config | ({"run": asked} if place == "run" else {"experiments": {"first": {"run": asked}}}))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            {"tables": {"mine": {"rows": {"lr": [0.1, 0.01]}, "columns": [{"metric": "global_accuracy_best"}]}}},
            "config.tables.mine: runs that differ in method would be averaged as if they were one; name it in rows or columns",
        ),
        (
            {"figures": {"mine": {"rows": [], "columns": [], "accuracy": "global", "methods": ["FedAvg", "FML"]}}},
            "config.figures.mine: runs that differ in lr would be averaged",
        ),
    ],
)
def test_a_mean_of_several_runs_of_a_seed_is_refused(config: dict[str, Any], own: dict[str, Any], words: str) -> None:
    config["experiments"] = {
        "sweep": {
            "cases": [{"dataset": "cifar10", "models.global": "mlp", "partition.alpha": 1}],
            "axes": {"method": ["FedAvg", "FML"], "method.lr": [0.1, 0.01]},
        }
    }
    for items in own.values():
        items["mine"] |= {"title": "Sweep", "experiment": "sweep"}
    with pytest.raises(InputError) as error:
        plan.make(config | own)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": {"partition": {"clients": 1000}}}, "1000 clients with at least 10 training images need 10000, there are 1438"),
        ({"run": {"partition": {"min_train": 100000}}}, "3 clients with at least 100000 training images need 300000"),
        ({"run": {"active": {"start": 5000, "add": 1, "every": 1}}}, "active.start: no client has more than 5000 images"),
        ({"run": {"server_images": 720}}, "server_images: 720 for the server, but dataset 'digits' has 1438 for training"),
        ({"methods": {"Mine": {"name": "fedbe"}}}, "method 'fedbe' has 10000 images for the server, by its option `server_set`, but dataset 'digits' has 1438"),
    ],
)  # fmt: skip
def test_more_images_than_a_dataset_has_are_refused(config: dict[str, Any], change: dict[str, Any], words: str) -> None:
    """Those of the dataset that a stand-in is for would do; a config's own experiment is counted with the config's run."""
    case = {"dataset": "cifar10", "models.global": "mlp", "partition.alpha": 1, "method": "Mine"}
    skipped: dict[str, Any] = {name: {"skip": True} for name in ("first", "second", "tasks")}
    config |= {"methods": {"Mine": {"name": "fedavg"}}, "experiments": skipped | {"mine": {"cases": [case]}}} | change
    with pytest.raises(
        InputError, match=r"^small, experiment mine \(dataset cifar10, model mlp, alpha 1, method Mine"
    ) as error:
        made(config)
    assert words in str(error.value)


def test_written_run_files_are_the_runs(config: dict[str, Any]) -> None:
    Path("config", "tiny.yaml").write_text(yaml.safe_dump(config))
    for run in plan.write(Path("config", "tiny.yaml"))["runs"]:
        assert run_file.load(Path(run["runfile"])).folder == run["folder"]


def test_run_files_of_an_earlier_plan_go(config: dict[str, Any], tmp_path: Path) -> None:
    for seeds in ([0], [1]):
        Path("config", "tiny.yaml").write_text(yaml.safe_dump(config | {"seeds": seeds}))
        found = plan.write(Path("config", "tiny.yaml"), tmp_path)
        assert set((tmp_path / "runs").iterdir()) == {Path(run["runfile"]) for run in found["runs"]}


def test_a_run_file_is_no_config() -> None:
    with pytest.raises(InputError, match="config: this is a run file; train it with `bayesfed train FILE --out DIR`"):
        plan.make({"dataset": "digits", "method": {"name": "fedavg"}})


def test_current_plan_is_read_without_torch_or_process(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached(config)
    program = f"""
import subprocess, sys
from bayesfed.plan import plan
subprocess.run = None
assert plan.load({config!r})["jobs"] == {first["jobs"]!r}
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_plan_made_by_hand_gets_its_config(config: dict[str, Any]) -> None:
    """`bayesfed plan mine.yaml --out results/mine/plan` writes none, and the workflow's report reads it."""
    files.write_yaml(Path("mine.yaml"), config)
    made_by_hand = plan.write(Path("mine.yaml"), plan.folder("tiny"))
    assert plan.load(config) == made_by_hand
    assert plan.read_mapping(plan.folder("tiny") / "config.yaml") == config


def test_a_refused_config_leaves_nothing_behind(config: dict[str, Any]) -> None:
    """The workflow's report reads the config beside the plan: that of the plan again, once the mistake is taken back."""
    first = plan.load(config)
    with pytest.raises(InputError, match="did you mean 'digits'"):
        plan.load(config | {"datasets": {"cifar10": "digit"}})
    assert plan.load(config) == first
    assert plan.read_mapping(plan.folder("tiny") / "config.yaml") == config


def test_a_planner_that_is_killed_says_so(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(plan.subprocess, "run", lambda *args, **more: killed)
    with pytest.raises(
        InputError, match=r"planning tiny was ended from outside \(exit code -9\); memory may have run out"
    ):
        plan.load(config)


def test_a_config_of_the_name_of_a_command_s_own_is_refused(config: dict[str, Any]) -> None:
    files.write_yaml(Path("config/compare.yaml"), config | {"name": "compare"})
    with pytest.raises(InputError, match="name: compare is that of `bayesfed compare`"):
        plan.check_file(Path("config/compare.yaml"))
    Path("config/compare.yaml").unlink()
    files.write_yaml(Path("results/compare/config.yaml"), config | {"name": "compare"})
    plan.check_file(Path("results/compare/config.yaml"))


def test_plugins_of_a_run_are_given_where_the_plan_sees_them_change(config: dict[str, Any]) -> None:
    for change in ({"run": {"plugins": "own"}}, {"experiments": SKIPPED | {"first": {"run": {"plugins": "own"}}}}):
        with pytest.raises(
            InputError, match=r"run\.plugins: a folder of plugins is given under the config's `plugins`"
        ):
            made(config | change)


def test_plan_is_made_anew_for_a_run_file_that_is_not_as_written(config: dict[str, Any]) -> None:
    first, second = (Path(run["runfile"]) for run in cached(config)["runs"][:2])
    was, into = first.read_text(), plan.folder("tiny")
    assert plan.current(config, into)
    first.write_text(was.replace("rounds: 2", "rounds: 3"))
    assert plan.current(config, into) is None
    cached(config)
    assert first.read_text() == was
    second.unlink()
    assert plan.current(config, into) is None
    cached(config)
    assert second.exists()
    assert plan.load(config) == plan.current(config, into)


def test_a_plan_is_written_when_its_content_changes(config: dict[str, Any]) -> None:
    """Tables are made again when it is newer: a comment in a method makes another plan of the same content."""
    path = plan.folder("tiny") / plan.PLAN
    run = Path(cached(config)["runs"][0]["runfile"])
    os.utime(path, (1, 1))
    os.utime(run, (1, 1))
    paper = plan.PAPERS / "small.yaml"
    paper.write_text(f"{paper.read_text()}\n# A comment.\n")
    assert plan.current(config, path.parent) is None
    cached(config)
    assert path.stat().st_mtime == run.stat().st_mtime == 1
    assert plan.current(config, path.parent)
    path.write_text(path.read_text().replace('"tiny"', '"tinier"'))
    assert plan.current(config, path.parent) is None
    cached(config | {"title": "Another"})
    assert path.stat().st_mtime > 1


def test_printed_numbers_that_are_gone_are_missed(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a command that is run in another folder would say that nothing is printed."""
    Path("config/papers/small.published.csv").write_text(
        "item,dataset,setting,alpha,client,model,method,metric,value\n"
    )
    path = Path(cached(config)["runs"][0]["runfile"]).parents[1] / "plan.json"
    tables.write_comparison(derived.load(path), Path("tables"))
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    with pytest.raises(
        InputError, match=r"config/papers/small\.published\.csv: the published numbers are not there; run this in"
    ):
        tables.write_comparison(derived.load(".." / path), Path("tables"))


def test_plan_is_made_anew_when_its_sources_change(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Config, paper, published numbers and source; each alone."""
    package = tmp_path / "package"
    shutil.copytree(plan.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(plan, "PACKAGE", package)
    seen = [plan.content_hash(config)]
    for path in (plan.PAPERS / "small.yaml", plan.PAPERS / "small.published.csv", package / "methods" / "fml.py"):
        with path.open("a") as file:
            file.write("\n# more\n")
        seen.append(plan.content_hash(config))
    seen.append(plan.content_hash(config | {"title": "another"}))
    assert plan.content_hash(config | {"runs": "finished", "gpu_slots": 2, "title": "another"}) == seen[-1]
    assert len(set(seen)) == len(seen)


FOREIGN = """
  foreign:
    cases:
      - {dataset: mnist, models.global: mlp, tasks.foreign: [fashion-mnist]}
      - {dataset: cifar10, models.global: lenet5, tasks.foreign: [cifar100]}
    tasks: {mistakes: true}
    axes: {partition.alpha: [100], method: [FedAvg]}
"""


def test_foreign_data_are_planned_fetched_and_stood_in_for(config: dict[str, Any]) -> None:
    """What a task needs is fetched before the run; where another dataset stands in for it, the cell knows and says so."""
    paper = Path("config/papers/small.yaml")
    paper.write_text(paper.read_text() + FOREIGN)
    stand_ins = {"datasets": {"cifar10": "cifar10", "mnist": "digits", "fashion-mnist": "digits-turned"}}
    config["experiments"] = {
        "first": {"skip": True},
        "second": {"skip": True},
        "tasks": {"skip": True},
        "foreign": stand_ins,
    }
    del config["datasets"]
    planned = made(config | {"seeds": [0]})
    assert [run["datasets"] for run in planned["runs"]] == [["digits", "digits-turned"], ["cifar10", "cifar100"]]
    digits, cifar = planned["cells"]
    assert digits["foreign"] == {"fashion-mnist": "digits-turned"}
    assert cifar["foreign"] == {"cifar100": "cifar100"}
    assert [one for one in digits["changes"] if "foreign" in one] == [
        "tasks foreign digits-turned (paper fashion-mnist)"
    ]
    assert not [one for one in cifar["changes"] if "foreign" in one]
    runs = [run_file.resolve(mapping) for mapping in (run.to_dict() for run in plan.make(config | {"seeds": [0]})[1])]
    assert [run.tasks.mistakes for run in runs] == [True, True]


def test_a_callback_is_in_every_run_file_and_changes_nothing(config: dict[str, Any]) -> None:
    Path("own", "callbacks").mkdir(parents=True)
    Path("own", "callbacks", "mine.py").write_text("CALLBACKS = {'mine': print}\n")
    plain, followed = plan.make(config), plan.make(config | {"plugins": "own", "run": {"on_round": "mine"}})
    assert followed[0]["cells"] == plain[0]["cells"]
    assert [run.on_round for run in followed[1]] == ["mine"] * len(plain[1])
    with pytest.raises(InputError, match=r"config.run.on_round: no callback is named 'mien'; did you mean 'mine'"):
        plan.make(config | {"plugins": "own", "run": {"on_round": "mien"}})


def test_a_predictor_that_no_method_has_is_refused(config: dict[str, Any]) -> None:
    """At planning, by its name; one of another method of the experiment, too, where a column names its method."""
    table = {"title": "t", "experiment": "first", "rows": {"alpha": [100]}}

    def plan_with(**column: Any) -> None:
        experiments = {"first": {"axes": {"partition.alpha": [100]}}, "second": {"skip": True}, "tasks": {"skip": True}}
        plan.make(config | {"experiments": experiments, "tables": {"mine": table | {"columns": [column]}}})

    plan_with(method="FML", metric="meme_ece_last")
    plan_with(method="FedAvg", metric="predictive_ece_last")
    with pytest.raises(
        InputError, match=r"config.tables.mine: 'mem_ece_last': FML has no predictor 'mem'; did you mean 'meme'"
    ):
        plan_with(method="FML", metric="mem_ece_last")
    with pytest.raises(InputError, match=r"'meme_ece_last': FedAvg has no predictor 'meme'"):
        plan_with(method="FedAvg", metric="meme_ece_last")
