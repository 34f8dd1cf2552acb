"""The training of a plan's open runs: what is trained in which order, and what becomes of it when something goes wrong."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import fake_worker, plans
from helpers.children import child, finished

from bayesfed import cli
from bayesfed.core import files
from bayesfed.engine import checkpoint, plan_training, plan_worker
from bayesfed.engine.plan_training import Training
from bayesfed.engine.session import Process
from bayesfed.runs import planned
from bayesfed.runs.planned import PlannedRun

# What a GPU node may lack.
HEAVY = ("pandas", "seaborn", "matplotlib", "sklearn", "pooch", "torchvision", "snakemake", "tqdm", "PIL", "scipy")
ENDLESS = 1_000_000  # rounds
Run = Callable[..., Mapping[str, Any]]
Play = Callable[..., Training]


@pytest.fixture
def run() -> Run:
    """A function that gives a small run's mapping, with changes."""

    def make(**changes: Any) -> Mapping[str, Any]:
        return {
            "dataset": "digits", "partition": {"alpha": 1.0, "clients": 2}, "method": {"name": "fedavg"},
            "models": {"global": "softmax"}, "rounds": 2, "local_epochs": 1, "batch_size": 64, "seed": 0,
        } | changes  # fmt: skip

    return make


@pytest.fixture
def options(digits_dir: Path) -> dict[str, Any]:
    """Keywords of a run's place."""
    keys = dict.fromkeys(("device", "precision", "executor"), "auto")
    return {"data": digits_dir, "gpu_slots": 1, "weights": Path("weights"), "partitions": None} | keys


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """A function that trains a plan of scripts (`fake_worker.py`), by the order in which they stand, and gives what became
    of it."""
    monkeypatch.setattr(plan_training, "work", fake_worker.work)
    monkeypatch.setattr(plan_training, "POLL", 0.02)
    files.write_text(tmp_path / "data/digits/dataset.json", "")

    def train(jobs: int = 1, until: float = math.inf, **scripts: str) -> Training:
        training = Training(read(tmp_path, scripts), jobs, {"data": tmp_path / "data"}, until)
        training.train()
        return training

    return train


def read(home: Path, scripts: Mapping[str, str]) -> list[PlannedRun]:
    return planned.read(plans.of_scripts(home, scripts))


def order(tmp_path: Path) -> list[str]:
    """The runs as they were begun."""
    return (tmp_path / "data/order").read_text().split()


def train(plan: Path, data: Path, *more: str) -> list[str]:
    """The command."""
    options = ["--plan", str(plan), "--data", str(data), "--device", "cpu", *more]
    return [sys.executable, "-m", "bayesfed", "train", *options]


def test_it_trains_what_is_open_with_the_training_path_alone(run: Run, tmp_path: Path, digits_dir: Path) -> None:
    plan = plans.of_runs(
        tmp_path, [run(seed=0), run(seed=1), run(seed=2), run(dataset="cifar10", models={"global": "mlp"})], digits_dir
    )
    for name in HEAVY:
        files.write_text(tmp_path / f"lacking/{name}.py", "raise ModuleNotFoundError(name=__name__)")
    path = os.pathsep.join([str(tmp_path / "lacking"), *sys.path])
    first, second, wrong, _ = planned.read(plan)
    wrong.run_file.write_text(wrong.run_file.read_text().replace("rounds: 2", "rounds: 3"))
    done = finished(train(plan, digits_dir, "--jobs", "2"), 300, env=os.environ | {"PYTHONPATH": path})
    told = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr
    assert (
        told[0]
        == f"cifar10 is not in {digits_dir}: 1 runs are skipped; run `bayesfed fetch cifar10 --data {digits_dir}`"
    )
    assert told[-1].startswith(
        f"bayesfed: 2 finished, 0 stopped with a checkpoint, 1 failed ({wrong.name}: {wrong.run_file}: "
    )
    assert "the name is that of run" in told[-1]
    assert told[-1].endswith("), 1 still open")
    assert "the name is that of run" in wrong.failure()
    for one in (first, second):
        assert checkpoint.key_of(one.checkpoint) in one.name
        assert "round 2/2" in one.log.read_text()
    again = Training(planned.read(plan), 1, {"data": digits_dir}, math.inf)
    assert [one.name for one in again.waiting] == [wrong.name]  # the finished ones are left alone


def test_a_signal_to_the_command_leaves_a_checkpoint_to_go_on_from(run: Run, tmp_path: Path, digits_dir: Path) -> None:
    plan = plans.of_runs(tmp_path, [run(rounds=ENDLESS), run(rounds=ENDLESS, seed=1)], digits_dir)
    stopped, other = planned.read(plan)
    for begun in (1, 2):
        with child(train(plan, digits_dir), stderr=-1) as command:
            before = stopped.progress()[0]
            while stopped.progress()[0] <= before + 1 and command.poll() is None:
                time.sleep(0.05)
            assert stopped.running
            command.send_signal(signal.SIGTERM)
            told = command.communicate(timeout=60)[1].splitlines()
        assert command.returncode == 1
        assert told[-1] == (
            "bayesfed: stopped by a signal: 0 finished, 1 stopped with a checkpoint, 0 failed, 1 still open"
        )
        assert not stopped.running
        assert not stopped.failure()
        log = (stopped.folder / "run.log").read_text()
        assert log.count(f" of {ENDLESS} done") == begun
        assert not other.folder.exists()
    kept = checkpoint.load(stopped.checkpoint, stopped.run_file.stem, torch.device("cpu"))[0].round
    assert kept >= before + 1 > 1
    assert log.count(f"round 0 of {ENDLESS} done") == 1  # the second went on


def test_a_run_stops_after_its_round_when_the_time_is_over(
    run: Run, tmp_path: Path, digits_dir: Path, options: dict[str, Any]
) -> None:
    plan = plans.of_runs(tmp_path, [run(rounds=4)], digits_dir)
    whole = plans.of_runs(tmp_path / "whole", [run(rounds=4)], digits_dir)
    (one,), (other,) = planned.read(plan), planned.read(whole)
    with Process(waits=False) as process:
        for rounds in (1, 2, 3):
            outcome = plan_worker.train(one, options | {"until": 0.0}, process)
            assert outcome == plan_worker.Outcome(
                "stopped", f"stopped as its time is over after round {rounds} of 4; run it again to go on"
            )
            assert checkpoint.load(one.checkpoint, one.run_file.stem, torch.device("cpu"))[0].round == rounds
        # A run that ends with its time is finished, and one that is finished is left alone.
        assert plan_worker.train(one, options | {"until": 0.0}, process).state == "finished"
        assert plan_worker.train(one, options | {"until": 0.0}, process).state == "finished"
        assert plan_worker.train(other, options, process).state == "finished"
    assert (one.folder / "metrics.csv").read_bytes() == (other.folder / "metrics.csv").read_bytes()


def test_a_worker_leaves_a_run_that_another_process_holds(
    run: Run, tmp_path: Path, digits_dir: Path, options: dict[str, Any]
) -> None:
    (one,) = planned.read(plans.of_runs(tmp_path, [run()], digits_dir))
    with Process(waits=False) as process, files.locked(one.folder / ".lock", ""):
        assert one.running
        assert plan_worker.train(one, options, process).state == "held"
    assert not one.running


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As SIGHUP is where `nohup` starts the command; another one ends it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        training = Training([], 1, {"data": tmp_path}, math.inf)
        with training.signals():
            signal.raise_signal(signal.SIGHUP)
            assert not training.heard
            signal.raise_signal(signal.SIGTERM)
            assert training.heard
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nothing_begins_when_the_time_is_over(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new: what is trained stops after its round."""
    begun = tmp_path / "data/order"
    monkeypatch.setattr(plan_training, "time", mock := type("Clock", (), {})())
    mock.monotonic = lambda: 101.0 if begun.exists() else 99.0
    training = play(until=100.0, first="stop", second="finish")
    assert order(tmp_path) == ["first"]
    assert training.told() == "0 finished, 1 stopped with a checkpoint, 0 failed, 1 still open"


def test_the_time_may_be_over_before_a_worker_is_there(run: Run, tmp_path: Path, digits_dir: Path) -> None:
    done = finished(train(plans.of_runs(tmp_path, [run()], digits_dir), digits_dir, "--until", "1e-9"), 300)
    assert (done.returncode, done.stderr) == (0, "0 finished, 0 stopped with a checkpoint, 0 failed, 1 still open\n")


def test_the_most_valuable_is_trained_first(play: Play, tmp_path: Path) -> None:
    assert play(c="finish", a="finish", b="finish").finished == 3
    assert order(tmp_path) == ["c", "a", "b"]


def test_a_plan_of_which_nothing_can_be_trained_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the commands that fetch what is missing."""
    plan = plans.write(tmp_path, [{"key": name, "folder": name, "datasets": [name]} for name in ("far", "mnist")])
    for name in ("far", "mnist"):
        files.write_text(tmp_path / f"plan/runs/{name}.yaml", "plugins: my plugins")
    data = tmp_path / "data"
    assert cli.main(["train", "--plan", str(plan), "--data", str(data)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"far is not in {data}: 1 runs are skipped; run `bayesfed fetch far --plugins 'my plugins' --data {data}`",
        f"mnist is not in {data}: 1 runs are skipped; run `bayesfed fetch mnist --data {data}`",
        "bayesfed: nothing was trained, datasets are missing, see above: 0 finished, 0 stopped with a checkpoint, 0 failed, "
        "2 still open",
    ]


def test_one_that_fails_leaves_the_others_alone(play: Play, tmp_path: Path) -> None:
    training = play(first="refuse", second="crash", third="finish")
    assert training.finished == 1
    assert {name: outcome.code for name, outcome in training.failed.items()} == {"first": 2, "second": 1}
    log = tmp_path / "logs/train/second.log"
    assert training.told() == (
        "1 finished, 0 stopped with a checkpoint, 2 failed (first: its rounds are wrong; "
        f"second: its process ended by exit code 7; see {log}), 0 still open"
    )


def test_an_error_of_its_own_leaves_no_worker_that_waits_for_a_run(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nobody reads what it tells: a worker that is busy then has no end but that of its pipe."""
    hear = Training.hear

    def heard(self: Training) -> None:
        hear(self)
        if (tmp_path / "begun").exists():
            raise BrokenPipeError

    monkeypatch.setattr(Training, "hear", heard)
    with pytest.raises(BrokenPipeError):
        play(first=f"deaf {tmp_path / 'begun'}", second="finish")
    assert order(tmp_path) == ["first"]


def test_one_that_finds_no_place_beside_others_waits_for_them(play: Play, tmp_path: Path) -> None:
    """As on a GPU that takes no second process: from then on one is trained at a time."""
    beside = f"after {tmp_path}/runs/crowded/tried"
    training = play(2, beside=beside, crowded="crowded", last="finish")
    assert (training.finished, training.failed, training.jobs) == (3, {}, 1)
    assert sorted(order(tmp_path)[:2]) == ["beside", "crowded"]
    assert order(tmp_path)[2:] == ["crowded", "last"]


def test_one_alone_that_finds_no_place_has_failed(play: Play) -> None:
    training = play(first="crowded", second="finish")
    assert (training.finished, *training.failed) == (1, "first")


def test_a_run_that_another_command_trains_is_left_to_it(play: Play, tmp_path: Path) -> None:
    """Until that has finished it; here the second run plays the other command, too."""
    summary = tmp_path / "runs/held/summary.json"
    with files.locked(tmp_path / "runs/held/.lock", ""):
        training = play(2, held="finish", own=f"write {summary}")
    assert order(tmp_path) == ["own"]
    assert training.told() == "1 finished, 0 stopped with a checkpoint, 0 failed, 0 still open"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plan", "nowhere"], "nowhere: there is no such plan; give a plan.json"),
        (
            ["--plan", "x", "run.yaml"],
            "RUN.yaml: give run files with --out or --runs, or --plan PLAN without run files",
        ),
        (["--out", "x"], "RUN.yaml: give run files"),
        (["--plan", "x", "--jobs", "0"], "--jobs 0: it is too small; give 1 or more"),
        (["--plan", "x", "--until", "nan"], "--until nan: expected minutes; give a number > 0"),
        (["--runs", "x", "run.yaml", "--jobs", "2"], "--jobs: it needs --plan; add that, or leave it out"),
    ],
)
def test_arguments_that_cannot_be(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"bayesfed: {said}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused_before_any_run(run: Run, tmp_path: Path, digits_dir: Path) -> None:
    plan = plans.of_runs(tmp_path, [run()], digits_dir)
    done = finished([*train(plan, digits_dir), "--device", "cuda"], 300)
    assert (done.returncode, done.stderr) == (
        2,
        "bayesfed: --device cuda: this machine has no usable GPU; use --device auto or cpu\n",
    )
    assert not (tmp_path / "runs").exists()
