"""`bf.compare`: what it trains, how it calls the workflow, and what it gives back. The workflow itself: tests/workflow."""

from __future__ import annotations

import html
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.comparing import finish, history

import bayesfed as bf
from bayesfed import cli
from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.plan import compared
from bayesfed.report import compare as comparing
from bayesfed.report.compare import run_workflow
from bayesfed.results import searches
from bayesfed.runs import run_folder
from bayesfed.runs.packing import PACKED

PROJECT = Path(__file__).parents[2]
SNAKEMAKE = """
import sys, time
sys.stderr.write("Building DAG of jobs...\\n2 runs to train\\nSelect jobs to execute...\\nExecute 1 jobs...\\n")
time.sleep(1)
sys.stderr.write("WorkflowError:\\nno space left\\nElapsed time: 0:00:01\\n")
sys.exit(3)
"""
INTERRUPTED = """
import os, pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(0.5)
pathlib.Path("checkpoint").touch()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A project with the records of FedAvg on a ground; a workflow that makes up what it is asked to train."""
    (tmp_path / "config/papers").mkdir(parents=True)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").touch()
    paper = yaml.safe_load((PROJECT / "config/papers/comparison.yaml").read_text())
    axes = {"dataset": ["digits"], "models.global": ["mlp"], "partition.alpha": [0.1], "method": ["FedAvg", "FedProx"]}
    paper |= {"given": [], "experiments": {"digits-harsh": {"seeds": 2, "axes": axes}}}
    (tmp_path / "config/papers/comparison.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    request = compared.Request(methods=("fedavg",), seeds=2, grounds=("digits-harsh",))
    made, _ = compared.planning.make(request.config({"digits-harsh": ["FedAvg"]}))
    for planned in made["runs"]:
        finish(compared.STORED / planned["folder"], history(0.8))
    found: list[list[str]] = []

    def run(command: list[str], cells: dict[str, Any]) -> int:
        found.append(command[1:])
        config = yaml.safe_load(Path(command[command.index("--configfile") + 1]).read_text())
        made, runs = compared.planning.make(config)
        for planned, one in zip(made["runs"], runs, strict=True):
            searched = one.budget.seed in compared.SEARCHED
            level = 0.9 - (abs(one.options.lr - 0.3) if searched else 0)  # type: ignore[attr-defined]
            finish(compared.OWN / planned["folder"], history(level))
        return 0

    monkeypatch.setattr(comparing, "run_workflow", run)
    return found


def test_a_profile_has_cores_of_its_own(calls: list[list[str]]) -> None:
    Path("profiles/slurm").mkdir(parents=True)
    bf.compare("fedprox", ground="digits-harsh", seeds=1, profile="profiles/slurm")
    assert "--cores" not in calls[0]


def test_only_what_is_missing_is_trained_and_all_is_shown(calls: list[list[str]]) -> None:
    Path("profiles/slurm").mkdir(parents=True)
    found = bf.compare("fedprox", ground="digits-harsh", seeds=2, cores=1, gpus=2, profile="profiles/slurm")
    (command,) = calls
    assert command[:5] == ["-m", "snakemake", "runs", "--cores", "1"]
    assert command[-4:] == ["--resources", "gpu=2", "--workflow-profile", "profiles/slurm"]
    table = found.table.set_index(["models", "method"])
    assert set(table.loc["global"].index) == {"FedAvg", "FedProx"}
    assert table.loc[("global", "FedProx"), "nll"] == pytest.approx(0.1)
    assert table.loc[("global", "FedProx"), "nll_difference"] == pytest.approx(-0.1)
    assert "Global model, FedProx − FedAvg" in str(found)
    assert "\n▸ FedProx" in str(found)  # the row of a method that was asked for
    assert any("Most accurate: " in line for line in found.statements)
    assert "\nBrier ↓: Brier score, last round.\n" in str(found)
    assert "nobody has tuned" not in Path("reports/compare.html").read_text()
    records = sorted(path.parent for path in compared.OWN.rglob(run_folder.SUMMARY))
    assert len(records) == 2
    assert all((record / PACKED).exists() for record in records)
    bf.compare("fedavg", ground="digits-harsh", seeds=2)
    assert len(calls) == 1  # a second call trains nothing
    assert set(found.table["method"]) == {"FedAvg", "FedProx"}  # also where that call's numbers replaced the file


def test_of_several_values_the_best_on_validation_images_is_compared(
    calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The made-up workflow scores a run by how near its rate is to 0.3: beyond 0.1 and 0.3 the next rate, 1, is tried."""
    found = bf.compare("fedprox:lr=0.1/0.3,mu=0.5", ground="digits-harsh", seeds=2)
    assert found.asked == ["FedProx mu=0.5 lr=0.3"]
    assert len(calls) == 3  # two rates, then the next, then the ground
    page = Path("reports/compare.html").read_text()
    assert all(f'"lr {rate}"' in page for rate in ("0.1", "0.3", "1"))
    assert "FedProx mu=0.5 lr=0.3" in set(found.table["method"])
    assert "lr 0.3   0.1000          yes" in capsys.readouterr().err
    bf.compare("fedprox:lr=0.1/0.3,mu=0.5", ground="digits-harsh", seeds=2)
    assert len(calls) == 3  # a second call trains nothing


def test_a_method_by_default_beside_searched_ones_is_told(
    calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    bf.compare("own_feddyn", ground="digits-harsh", seeds=2, plugins=Path(__file__).parents[2] / "examples/own_plugins")
    told = "own_feddyn: with default options, where the others' are chosen from six or more; give values to choose from"
    assert told in capsys.readouterr().err
    assert told in html.unescape(Path("reports/compare.html").read_text())


def test_nothing_is_searched_where_nothing_can_be_compared(calls: list[list[str]]) -> None:
    for path in compared.STORED.rglob(run_folder.SUMMARY):
        path.unlink()
    with pytest.raises(InputError, match="no finished run of digits-harsh here"):
        bf.compare("fedprox:lr=0.1/0.3", ground="digits-harsh", seeds=2)
    assert calls == []


def test_a_search_without_a_finite_score_chooses_nothing(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "predictive_nll", lambda summary, personal: math.inf)
    with pytest.raises(InputError, match=r"fedprox:lr=0\.1/0\.3: no configuration has a validation NLL"):
        bf.compare("fedprox:lr=0.1/0.3", ground="digits-harsh", seeds=2)
    assert len(calls) == 1


def test_the_command_prints_tables_and_names_files(calls: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "fedprox:mu=0.5", "--ground", "digits-harsh", "--seeds", "1", "--cores", "1"]) == 0
    out = capsys.readouterr().out
    assert "FedProx mu=0.5  1" in out
    assert "not distinguishable from the best" in out
    assert out.rstrip().endswith("reports/compare.html")
    assert Path("reports/compare.html").is_file()
    assert calls


def test_a_ground_of_ones_own_names_what_is_left_out(
    calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = bf.compare("fedavg", dataset="digits", model="mlp", alpha=0.5, rounds=2, seeds=1)
    said = capsys.readouterr().err
    assert "BNFed is left out: " in said
    assert "which nobody has tuned on this dataset" in said
    assert "which nobody has tuned on this dataset" in Path("reports/compare.html").read_text()
    assert {"FedAvg", "HBFL", "pFedGP"} <= set(found.table["method"])


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", "bayesfed: compare: training failed: see the lines above; mend"),
        (
            "round 0 of 2\nbayesfed: method 'mine': no\nbayesfed: 1 of 1 runs failed: a.yaml\nmore\n",
            "bayesfed: compare: training failed: method 'mine': no; mend",
        ),
    ],
)
def test_failed_training_ends_in_one_line(
    log: str, told: str, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], cells: dict[str, Any]) -> int:
        path = compared.OWN.parent / "logs/train/of/mine.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log)
        return 1

    monkeypatch.setattr(comparing, "run_workflow", run)
    with pytest.raises(SystemExit) as ended:
        cli.comparing.compare(cli.parser().parse_args(["compare", "fedprox", "--ground", "digits-harsh"]))
    assert str(ended.value).startswith(told)
    assert calls == []


def test_a_call_tells_how_far_its_runs_are_and_leaves_out_what_snakemake_says_of_itself(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once where nothing has changed since; of runs that are trained now, not of one that was stopped."""
    monkeypatch.setattr(comparing, "SECONDS", 0.1)
    request = compared.Request(methods=("fedprox",), seeds=3, grounds=("digits-harsh",))
    made, _ = compared.planning.make(request.config({"digits-harsh": ["FedProx"]}))
    files.write_json(compared.OWN.parent / "plan/plan.json", made)
    finished, stopped, running = (compared.OWN / run["folder"] for run in made["runs"])
    finish(finished, history(0.8))
    for folder in (stopped, running):
        files.write_text(folder / "run.log", "round 2/50  accuracy 0.5000  1 s\nround 3/50  accuracy 0.6000  2 s\n")
    with files.locked(running / ".lock", "held"):
        cells = {cell["folder"]: cell for cell in made["cells"]}
        assert run_workflow([sys.executable, "-c", SNAKEMAKE], cells) == 3
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "1 of 3 runs finished; FedProx on digits, α 0.1, seed 2: round 3/50",
        "2 runs to train",
        "WorkflowError:",
        "no space left",
    ]


@pytest.mark.usefixtures("signals")
def test_an_interrupted_call_waits_for_checkpoints_and_says_that_it_goes_on(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        comparing, "run_workflow", lambda _, cells: run_workflow([sys.executable, "-c", INTERRUPTED], cells)
    )
    with pytest.raises(SystemExit, match="bayesfed: interrupted; the same command goes on"):
        cli.main(["compare", "fedprox", "--ground", "digits-harsh"])
    assert Path("checkpoint").exists()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"cores": 0}, "--cores 0: give a whole number of at least 1, or all"),
        ({"cores": "some"}, "--cores some: give a whole number"),
        ({"gpus": -1}, "gpus: -1 is out of range; it must be at least 0"),
        ({"gpus": "1"}, "gpus: expected a whole number, found '1'"),
        ({"profile": 3}, "profile: expected a path, found 3"),
        ({"profile": "nowhere"}, "--profile 'nowhere': there is no such folder"),
    ],
)
def test_what_the_workflow_would_not_take_is_refused(how: dict[str, Any], told: str, calls: list[list[str]]) -> None:
    with pytest.raises(InputError, match=told):
        bf.compare("fedprox", ground="digits-harsh", **how)
    assert calls == []


def test_a_registered_method_is_refused(calls: list[list[str]]) -> None:
    @bf.register
    class Mine(bf.methods.FedAvg):
        name, label = "mine", "Mine"

    with pytest.raises(InputError, match="mine: registered in this session, where no other process finds it"):
        bf.compare("mine", ground="digits-harsh")
    assert calls == []


def test_methods_are_named(calls: list[list[str]]) -> None:
    for one in (bf.methods.FedAvg(), bf.methods.FedAvg):
        with pytest.raises(InputError, match=r"^FedAvg: a method is a name here"):
            bf.compare(one, ground="digits-harsh")  # type: ignore[arg-type]
    assert calls == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ground": None}, "ground: expected text, found None"),
        ({"ground": [1]}, "ground[0]: expected text, found 1"),
        ({"seeds": [0, 1]}, "seeds: expected a whole number, found [0, 1]"),
        ({"seeds": "3"}, "seeds: expected a whole number, found '3'"),
        ({"seeds": 3.0}, "seeds: expected a whole number, found 3.0"),
        ({"plugins": 3}, "plugins: expected text, found 3"),
        ({"dataset": np.zeros((9, 9))}, "dataset: expected text, found [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ...], "),
        ({"partition": bf.IID(clients=4, images_each=50, server=0)}, "partition: expected text, found IID(clients=4"),
        ({"alpha": "1"}, "alpha: expected a number, found '1'"),
        ({"clients": "4"}, "clients: expected a whole number, found '4'"),
        ({"rounds": 2.5}, "rounds: expected a whole number, found 2.5"),
        ({"model": 3}, "model: expected text, found 3"),
    ],
)
def test_a_value_of_the_wrong_type_is_told_as_in_a_run(
    given: dict[str, Any], told: str, calls: list[list[str]]
) -> None:
    with pytest.raises(InputError) as caught:
        bf.compare("fedavg", **{"dataset": "digits", "model": "mlp"} | given)
    assert str(caught.value).startswith(told)
    assert calls == []


def test_numbers_of_numpy_are_numbers(calls: list[list[str]]) -> None:
    numbers: dict[str, Any] = dict.fromkeys(("clients", "rounds", "cores", "gpus"), np.int64(2))
    numbers |= {"alpha": np.float64(1), "seeds": np.int64(1)}
    found = bf.compare("fedavg", dataset="digits", model="mlp", **numbers)
    assert found.sides[0].grounds[0].name == "digits-alpha1-mlp"
    assert len(calls) == 1
