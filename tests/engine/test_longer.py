"""A run goes on from the same one with fewer rounds, and is what one is that was never stopped."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesfed
from bayesfed import cli
from bayesfed.engine import checkpoint
from bayesfed.engine.loaded import LoadedRun

Make = Callable[..., dict[str, Any]]
Json = dict[str, Any]
PART = {"partition": {"alpha": 100.0, "clients": 9, "min_train": 1, "min_test": 0}, "participation": 0.4}


def contents(run: LoadedRun) -> tuple[str, dict[str, torch.Tensor], Json]:
    """The history, every tensor, and the summary without what differs in time."""
    progress, _ = checkpoint.load_one(run.checkpoint, torch.device("cpu"))
    timed = ("train_seconds", "seconds", "cpu_seconds", "files", "digest")
    summary = {key: value for key, value in run.summary.items() if key not in timed}
    return (run.folder / "metrics.csv").read_text(), progress.tensors(), summary


def goes_on(run: Json, first: int, folder: Path, data: Path, **more: Any) -> bool:
    """Train a run from one of `first` rounds and without, hold both equal, and say whether it went on."""
    (folder / "runs").mkdir(parents=True)
    bayesfed.train(run | {"rounds": first}, folder / "runs/short", data=data, **more)
    longer = bayesfed.train(run, folder / "runs/long", data=data, **more)
    whole = bayesfed.train(run, folder / "whole/long", data=data, **more)
    (one, tensors, summary), (other, others, same) = contents(longer), contents(whole)
    assert one == other
    assert summary == same
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    assert "begun" not in whole.provenance
    return "begun" in longer.provenance


@pytest.mark.parametrize(
    ("name", "first", "rounds", "changes"),
    [
        ("hbfl", 3, 4, {}),  # every round is one of the last five
        ("fedavg", 9, 11, PART),  # the ninth is late in both, and not the last
        ("pfedbayes", 2, 12, {}),
        ("scaffold", 10, 12, PART),  # the tenth is detailed in both
        ("fola", 6, 13, PART),
        ("pfedgp", 1, 3, {}),
        ("fedavg", 7, 9, PART | {"clients_on_test": "round", "validation": 0.2}),
        (
            "hbfl",
            2,
            8,
            {"tasks": {"mistakes": True}, "validation": 0.2, "schedule": {"round_decay": 0.9, "epoch_decay": 0.5}},
        ),
        ("hbfl", 10, 11, {"tasks": {"mistakes": True}}),  # the tenth, detailed, was the last
        ("fedbe", 2, 4, {}),
        ("bnfed", 2, 4, {}),
    ],
)
def test_it_equals_one_that_was_never_stopped(
    name: str, first: int, rounds: int, changes: Json, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    if name == "hbfl" and "partition" in changes:
        changes = changes | {"models": {"global": "lenet5", "local": "lenet5"}}
    assert goes_on(mapping(name, **changes) | {"rounds": rounds}, first, tmp_path, data_dir)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedswag", {}),  # its last round collects
        ("fedpa", {}),  # it samples from a share of the rounds on
        ("fedavg", {"schedule": {"cosine": True}}),
        ("fedavg", {"schedule": {"milestones": [[0.5, 0.1]]}}),
        ("fedavg", {"active": {"start": 20, "add": 10, "every": 1, "by": "random"}}),
    ],
)
def test_where_the_number_of_rounds_counts_it_starts_from_round_1(
    name: str, changes: Json, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    assert not goes_on(mapping(name, **changes) | {"rounds": 4}, 2, tmp_path, data_dir)


def test_a_run_that_ran_out_of_patience_ends_there(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    run = mapping({"name": "fedavg", "lr": 1e-9}, validation=0.2, patience=2) | {"rounds": 9}
    assert goes_on(run, 7, tmp_path, data_dir)


def test_the_last_rounds_before_an_early_end_are_not_those_of_the_longer_run(
    mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    """It tests the server on the participants' shards alone, where the shorter run did on all."""
    run = mapping({"name": "fedavg", "lr": 1e-9}, validation=0.2, patience=4, participation=0.4) | {"rounds": 30}
    assert goes_on(run, 7, tmp_path, data_dir)


@pytest.mark.parametrize("what", ["checkpoint", "seed", "diverged", "executor", "earlier version"])
def test_what_does_not_fit_is_left_alone(what: str, mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    lr = 1e30 if what == "diverged" else 0.1
    short, run = tmp_path / "runs/short", mapping({"name": "fedavg", "lr": lr}, rounds=4)
    bayesfed.train(run | {"rounds": 2, "seed": int(what == "seed")}, short, data=data_dir)
    if what == "checkpoint":
        (short / checkpoint.FILE).unlink()
    if what == "earlier version":
        progress, header = checkpoint.load_one(short / checkpoint.FILE, torch.device("cpu"))
        header.rounds_asked = True
        checkpoint.save(short / checkpoint.FILE, progress, header)
    (tmp_path / "runs/other").mkdir()
    (tmp_path / "runs/other/summary.json").write_text("{}")
    (tmp_path / "runs/other/run.yaml").write_text("- 1\n")
    executor = "eager" if what == "executor" else "auto"
    assert "begun" not in bayesfed.train(run, tmp_path / "runs/long", data=data_dir, executor=executor).provenance


def test_the_longest_is_gone_on_from(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    for rounds in (1, 3, 2):
        bayesfed.train(mapping(rounds=rounds), tmp_path / f"runs/{rounds}", data=data_dir)
    found = bayesfed.train(mapping(rounds=4), tmp_path / "runs/4", data=data_dir)
    assert found.provenance["begun"] == {"key": bayesfed.load_run(tmp_path / "runs/3").summary["key"], "rounds": 3}
    assert cli.main(["verify", str(tmp_path / "runs/4"), "--rounds", "1", "--data", str(data_dir)]) == 0


def test_checkpoints_of_their_own_folder_are_found(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    import yaml

    command = ["--data", str(data_dir), "--device", "cpu", "--runs", "runs", "--checkpoints", "kept"]
    for rounds in (1, 2):
        (tmp_path / f"{rounds}.yaml").write_text(yaml.safe_dump(mapping(rounds=rounds)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for rounds in (1, 2):
            assert cli.main(["train", f"{rounds}.yaml", *command]) == 0
    begun = [json.loads(path.read_text()).get("begun") for path in (tmp_path / "runs").rglob("provenance.json")]
    assert [one["rounds"] for one in begun if one] == [1]
    shutil.rmtree(tmp_path / "kept")
