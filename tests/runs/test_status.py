"""`bayesfed status`: the state of a plan's runs by what lies in their folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import plans
from helpers.lab import finish

from bayesfed import cli
from bayesfed.core import files
from bayesfed.runs import planned, status

LOG = "fedavg on digits: round 0 of 20 done\nround 4/20  accuracy 0.6100  7 s\nround 5/20  accuracy 0.6250  9 s\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results of a config `small`, with a run in each state."""
    monkeypatch.chdir(tmp_path)
    home = Path("results/small")
    entries = [
        {"folder": "done", "cost": 1000},
        {"folder": "begun", "cost": 2000},
        {"folder": "held", "cost": 4000, "experiment": "heterogeneous"},
        {"folder": "broken", "cost": 1000, "experiment": "heterogeneous"},
        {"folder": "waiting", "cost": 1000, "method": "hbfl"},
    ]
    plans.write(home, [{"key": run["folder"]} | run for run in entries])
    finish(home / "runs/done", [0.5], train_seconds=3600)
    files.write_text(home / "runs/held/run.log", LOG)
    files.write_text(home / "checkpoints/begun.safetensors", "")
    files.write_text(home / "logs/train/begun.log", "bayesfed: stopped by a signal after round 3 of 20; run it again\n")
    files.write_text(home / "logs/train/broken.log", "round 1/20\nbayesfed: broken.yaml: no space left\n")
    return home


def test_every_state_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with files.locked(home / "runs/held/.lock", ""):
        assert cli.main(["status", "small"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "paper  experiment     finished  running  failed  stopped  open  hours left",
        "hbfl   homogeneous           1        0       0        1     1         3.0",
        "hbfl   heterogeneous         0        1       1        0     0         4.0",
        "all                          1        1       1        1     1         7.0",
        "hours left: an estimate for one run at a time, by what finished runs of a method took for their multiply-adds",
        "running held: round 5 of 20, accuracy 0.6250",
        "failed broken: broken.yaml: no space left",
    ]


@pytest.mark.parametrize("name", ["metrics.csv", "summary.json"])
def test_a_damaged_record_is_named_below_the_table(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_text(home / "runs/done" / name, "<<<<<<< HEAD\n")
    assert cli.main(["status", "small"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split()[-1] == "unknown"
    assert any(line.startswith(f"damaged results/small/runs/done/{name}: not as the run wrote it") for line in said)


def test_nothing_is_estimated_by_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs/done/summary.json").unlink()
    assert cli.main(["status", str(home / "plan/plan.json")]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[:4]] == ["left", *["unknown"] * 3]


def test_nothing_is_left_of_what_is_finished(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans.write(home, [{"folder": "done", "key": "done"}])
    assert cli.main(["status", str(home / "plan/plan.json")]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[:3]] == ["left", "0.0", "0.0"]


def test_many_failures_are_counted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"broken{number}" for number in range(13)]
    plans.write(home, [{"folder": name, "key": name} for name in names])
    for name in names:
        files.write_text(home / f"logs/train/{name}.log", "bayesfed: no space left\n")
    cli.main(["status", "small"])
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == ["failed broken9: no space left", "and 3 more that failed"]


def test_a_job_of_several_runs_has_one_log(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named after the last of its runs that was open, and says of each that failed why."""
    runs = [{"folder": name, "key": name} for name in ("done", "begun", "waiting")]
    plans.write(home, runs, [["done", "begun", "waiting"]])
    log = "bayesfed: results/small/plan/runs/begun.yaml: method 'mine': no\nbayesfed: 1 of 3 runs failed: begun\n"
    (home / "logs/train/begun.log").unlink()
    files.write_text(home / "logs/train/waiting.log", log)
    monkeypatch.chdir(home / "plan")
    assert cli.main(["status", "plan.json"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[2].split() == ["all", "1", "0", "1", "0", "1", "2.0"]
    assert told[-1] == "failed begun: results/small/plan/runs/begun.yaml: method 'mine': no"


def test_the_latest_log_that_names_a_run_decides(home: Path) -> None:
    """Of a run that failed in a job and was stopped by itself later, or the other way round."""
    plans.write(home, [{"folder": name, "key": name} for name in ("begun", "waiting")], [["begun", "waiting"]])
    own, of_job = (home / f"logs/train/{name}.log" for name in ("begun", "waiting"))
    failed = "bayesfed: plan/runs/begun.yaml: method 'mine': no\nbayesfed: 1 of 2 runs failed: begun\n"
    stopped = "bayesfed: stopped by a signal after round 3 of 20; run it again\n"
    for texts, state in (
        (((of_job, failed), (own, stopped)), "stopped"),
        (((own, stopped), (of_job, failed)), "failed"),
    ):
        for second, (log, text) in enumerate(texts):
            files.write_text(log, text)
            os.utime(log, (second, second))
        run = next(run for run in planned.read(home / "plan/plan.json") if run.name == "begun")
        assert status.state_of(run) == state


def test_what_is_no_plan(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_text(Path("other.json"), "{}")
    assert cli.main(["status", "other.json"]) == 2
    assert capsys.readouterr().err.startswith("bayesfed: other.json: this is no plan; give a plan.json")
    assert cli.main(["status", "smal"]) == 2
    assert capsys.readouterr().err.startswith("bayesfed: smal: there is no such plan")


def test_a_run_has_the_places_that_the_workflow_gives_it(home: Path) -> None:
    first = planned.read(Path("small"))[0]
    assert first.run_file == home / "plan/runs/done.yaml"
    assert first.checkpoint == home / "checkpoints/done.safetensors"
    rule = (Path(__file__).parents[2] / "workflow/rules/train.smk").read_text()
    assert '"<logs>/train/{run}.log"' in rule
    assert 'checkpoints=f"{flow.results}/checkpoints"' in rule


def test_the_state_of_a_plan_is_told_without_torch() -> None:
    code = "import sys; from bayesfed import cli; from bayesfed.engine import plan_training; from bayesfed.runs import status; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pandas"} & set(found)
