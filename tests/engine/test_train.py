"""One run through the command line: repeats, resumes, refuses, and never leaves a folder silently wrong."""

import contextlib
import csv
import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.children import child
from helpers.playing import convolutions

import bayesfed
from bayesfed import cli
from bayesfed.core import files
from bayesfed.core.plugins import WEIGHTS
from bayesfed.engine import client_states, evaluation, gpu_lease, session, training
from bayesfed.engine.checkpoint import load_one
from bayesfed.engine.federation import Federation
from bayesfed.engine.session import Process
from bayesfed.engine.verify import verify
from bayesfed.methods.fedppd_distill import FedPPDDistill
from bayesfed.methods.fml import FML
from bayesfed.methods.node import Node, State
from bayesfed.methods.predictors import Predictor
from bayesfed.results.hardware import place
from bayesfed.runs import run_file, run_folder

Make = Callable[..., dict[str, Any]]
Train = Callable[..., int]


@pytest.fixture
def train(data_dir: Path, tmp_path: Path) -> Train:
    """Write a run file and train it into `tmp_path / out`; gives the exit code."""

    def call(mapping: dict[str, Any], out: str = "out", *options: str) -> int:
        path = tmp_path / f"{out}.yaml"
        path.write_text(yaml.safe_dump(mapping))
        return cli.main(["train", str(path), "--out", str(tmp_path / out), "--data", str(data_dir), *options])

    return call


def error(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line on standard error."""
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_run_folder_is_whole(train: Train, mapping: Make, tmp_path: Path) -> None:
    assert train(mapping("hbfl", rounds=2)) == 0
    out = tmp_path / "out"
    assert {p.name for p in out.iterdir()} == {
        ".lock", "run.yaml", "metrics.csv", "provenance.json", "run.log", "summary.json", "checkpoint.safetensors",
    }  # fmt: skip
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {(row["client"], row["model"], row["metric"]) for row in rows if row["round"] == "2"}
    uncertain = ("nll", "brier", "ece", "mce")
    assert {("global", "global", "test_accuracy"), ("global", "server", "log_precision_spread")} <= found
    assert {("global", "global_sampled", f"test_{m}") for m in (*uncertain, "accuracy")} <= found
    assert {(str(k), "meme_sampled", f"shard_{m}") for k in range(4) for m in (*uncertain, "accuracy")} <= found
    for model in ("meme", "local"):
        assert {
            (str(k), model, f"{s}_{m}") for k in range(4) for s in ("shard", "test") for m in (*uncertain, "accuracy")
        } <= found
    plain = {
        (row["client"], row["metric"])
        for row in rows
        if row["round"] == "1" and row["model"] not in ("server", "communication", "computation")
    }
    assert plain == {("global", "test_accuracy"), *((str(k), "shard_accuracy") for k in range(4))}

    summary = json.loads((out / "summary.json").read_text())
    curve = [float(row["value"]) for row in rows if (row["model"], row["metric"]) == ("global", "test_accuracy")]
    assert summary["global"]["accuracy_best"] == pytest.approx(max(curve), rel=1e-5)
    assert summary["global"]["accuracy_last"] == pytest.approx(curve[-1], rel=1e-5)
    client = [
        float(r["value"])
        for r in rows
        if r["client"] == "1" and r["metric"] == "shard_accuracy" and r["model"] in ("meme", "local")
    ]
    assert summary["clients"]["accuracy_best"][1] == pytest.approx(max(client), rel=1e-5)
    on_shard = {
        row["client"]: float(row["value"])
        for row in rows
        if (row["round"], row["model"], row["metric"]) == ("2", "global", "shard_accuracy")
    }
    assert summary["global_on_shards"]["accuracy_last"] == pytest.approx([on_shard[str(k)] for k in range(4)], rel=1e-5)
    assert summary["global_on_shards"]["mean"]["accuracy_last"] == pytest.approx(sum(on_shard.values()) / 4, rel=1e-5)
    assert summary["clients"]["missing"] == summary["global_on_shards"]["missing"] == {}
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["key"] == summary["key"]
    assert provenance["dataset_fingerprints"].keys() == {"few"}
    assert provenance["samples_per_second"] > 0


@pytest.mark.usefixtures("toys")
def test_a_summary_says_why_a_client_has_no_accuracy(train: Train, mapping: Make, tmp_path: Path) -> None:
    """A method without client predictors, one without a global model, and a client that never took part."""
    assert train(mapping("toy"), "toy") == train(mapping("independent", participation=0.25), "own") == 0
    toy, own = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("toy", "own"))
    assert toy["clients"]["missing"] == {str(k): "no client predictors" for k in range(4)}
    assert toy["clients"]["mean"] == {}
    assert toy["global_on_shards"]["missing"] == {}
    assert own["global_on_shards"]["missing"] == {str(k): "no global model" for k in range(4)}
    absent = {str(k) for k, value in enumerate(own["clients"]["accuracy_last"]) if value is None}
    assert len(absent) >= 2  # one client takes part in each of two rounds
    assert own["clients"]["missing"] == dict.fromkeys(absent, "never took part")


def test_two_runs_of_one_file_are_identical(train: Train, mapping: Make, tmp_path: Path) -> None:
    assert train(mapping("hbfl"), "a") == train(mapping("hbfl"), "b") == 0
    assert (tmp_path / "a/metrics.csv").read_bytes() == (tmp_path / "b/metrics.csv").read_bytes()


def stop_in_round(number: int, patch: pytest.MonkeyPatch) -> None:
    """A signal comes in the middle of a round: half of its clients have trained."""
    original = Federation.node

    def stop_midway(self: Federation, client: int, round: int, *rest: Any) -> Any:
        if round == number and client == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, client, round, *rest)

    patch.setattr(Federation, "node", stop_midway)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("method", "memory"), [("hbfl", None), ("fedppd_distill", None), ("fml", 0)])
def test_a_stopped_run_resumes_bit_for_bit(
    method: str, memory: int | None, train: Train, mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory`: bytes for states of clients; beyond them they are in files."""
    whole = mapping(method, rounds=3, stragglers=0.5, local_epochs=2)
    assert train(whole, "whole") == 0
    if memory is not None:
        monkeypatch.setattr(client_states, "IN_MEMORY", memory)
    out = tmp_path / "stopped"
    for done in range(3):  # one run, stopped in each of its rounds
        with monkeypatch.context() as patch:
            stop_in_round(done + 1, patch)
            with pytest.raises(SystemExit, match=f"stopped by a signal after round {done} of 3; run it again"):
                train(whole, out.name)
        assert not (out / "summary.json").exists()
    assert train(whole, out.name) == 0
    assert (out / "metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()
    assert (out / "checkpoint.clients").exists() == (memory == 0)
    assert tensors(out / "checkpoint.safetensors") == tensors(tmp_path / "whole/checkpoint.safetensors")


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    ("place", "name", "number", "done"),
    [
        (Federation, "predict", signal.SIGTERM, 0),
        (FedPPDDistill, "aggregate", signal.SIGINT, 0),
        (FedPPDDistill, "server_phases", signal.SIGHUP, 0),
        (training.checkpoint, "save", signal.SIGTERM, 1),
    ],
)
def test_a_signal_is_heard_at_any_moment(
    place: Any, name: str, number: signal.Signals, done: int, train: Train, mapping: Make, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In a test, the aggregation, the server's training, a checkpoint: at the next batch at the latest."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(training, "CHECKPOINT_SHARE", 1e9)
    asked, original, waiting = mapping("fedppd_distill", rounds=2), getattr(place, name), list[int]()

    def signalled(*args: Any, **kwargs: Any) -> Any:
        if waiting:
            os.kill(os.getpid(), waiting.pop())
        return original(*args, **kwargs)

    assert train(asked, "whole") == 0
    monkeypatch.setattr(place, name, signalled)
    waiting.append(number)
    with pytest.raises(SystemExit, match=f"stopped by a signal after round {done} of 2"):
        train(asked, "stopped")
    assert train(asked, "stopped") == 0
    found = [record(tmp_path / one, tmp_path / one / "checkpoint.safetensors") for one in ("stopped", "whole")]
    assert found[0] == found[1]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_changes_nothing(
    number: signal.Signals, train: Train, mapping: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SIGHUP is under nohup, and SIGINT in what a script runs in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    original = Federation.node
    monkeypatch.setattr(Federation, "node", lambda *args: os.kill(os.getpid(), number) or original(*args))
    try:
        assert train(mapping(rounds=1)) == 0
    finally:
        signal.signal(number, before)


@pytest.mark.usefixtures("signals")
def test_a_closed_terminal_that_is_written_to_leaves_a_checkpoint(
    train: Train, mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(training.Reporter, "round_done", gone)
    with pytest.raises(SystemExit, match="stopped by a signal after round 1 of 2"):
        train(mapping(rounds=2))
    assert (tmp_path / "out/checkpoint.safetensors").exists()


@pytest.fixture
def together(data_dir: Path, tmp_path: Path) -> Callable[..., int]:
    """Train run files one after another in one process, below `tmp_path / runs`; gives the exit code."""

    def call(*mappings: dict[str, Any], options: tuple[str, ...] = ()) -> int:
        paths = [tmp_path / f"{number}.yaml" for number in range(len(mappings))]
        for path, mapping in zip(paths, mappings, strict=True):
            path.write_text(yaml.safe_dump(mapping))
        where = ["--runs", str(tmp_path / "runs"), "--data", str(data_dir), *options]
        return cli.main(["train", *map(str, paths), *where])

    return call


def record(folder: Path, checkpoint: Path) -> tuple[Any, ...]:
    """What a run leaves, but for the time that it took: metrics, run file, provenance, summary, tensors."""
    timed = (
        "train_seconds",
        "seconds",
        "cpu_seconds",
        "samples_per_second",
        "files",
        "digest",
    )  # digests change with the times
    whole = [json.loads((folder / name).read_text()) for name in ("provenance.json", "summary.json")]
    plain = [{key: value for key, value in one.items() if key not in timed} for one in whole]
    return (folder / "metrics.csv").read_bytes(), (folder / "run.yaml").read_bytes(), plain, tensors(checkpoint)


def tensors(checkpoint: Path) -> dict[str, bytes]:
    """The tensors of a checkpoint by their names, those in other files too, and its history."""
    progress, _ = load_one(checkpoint, torch.device("cpu"))
    found = {name: tensor.numpy().tobytes() for name, tensor in progress.tensors().items()}
    return found | {"history": repr(progress.history).encode()}


def test_runs_of_one_process_leave_what_each_alone_does(
    train: Train, together: Callable[..., int], mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other methods, networks, partitions, precisions of images and datasets follow each other; data is loaded once."""
    runs = [
        mapping("hbfl", **convolutions("hbfl")),
        mapping("fola", batch_size=64, **convolutions("fola")),
        mapping("fedavg", partition={"alpha": 0.5, "clients": 3}, **convolutions("fedavg")),
        mapping("scaffold", images={"prepare": "none"}, models={"global": "mlp"}),
        mapping("fedavg", dataset="few-parity", seed=1, **convolutions("fedavg")),
    ]
    for number, run in enumerate(runs):
        assert train(run, f"alone{number}") == 0
    loaded: list[str] = []
    original = training.store.load
    monkeypatch.setattr(training.store, "load", lambda name, *rest: loaded.append(name) or original(name, *rest))
    assert together(*runs, options=("--checkpoints", str(tmp_path / "checkpoints"))) == 0
    assert loaded == ["few", "few", "few-parity"]
    for number in range(len(runs)):
        alone = tmp_path / f"alone{number}"
        folder = run_file.load(tmp_path / f"{number}.yaml").folder
        checkpoint = tmp_path / "checkpoints" / f"{folder}.safetensors"
        assert record(alone, alone / "checkpoint.safetensors") == record(tmp_path / "runs" / folder, checkpoint)


def test_a_run_that_fails_leaves_the_others_alone(
    together: Callable[..., int], mapping: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert together(mapping(), mapping(server_images=240), mapping(seed=1)) == 2
    assert error(capsys) == f"bayesfed: 1 of 3 runs failed: {tmp_path / '1.yaml'}"
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 2

    def broken(*_: Any) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(FML, "aggregate", broken)
    with pytest.raises(SystemExit, match=r"1 of 2 runs failed: .*0\.yaml"):
        together(mapping("fml"), mapping(seed=2))
    assert f"\nbayesfed: {tmp_path / '0.yaml'}: ValueError: a mistake of ours\n" in capsys.readouterr().err
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 3


def test_a_planned_run_file_that_gives_another_run_is_refused(
    mapping: Make, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a batch its folder would be another one, and the planned cell stay empty without a word."""
    path = tmp_path / "0123456789ab.yaml"
    path.write_text(yaml.safe_dump(mapping()))
    assert cli.main(["train", str(path), "--runs", str(tmp_path / "runs"), "--data", str(data_dir)]) == 2
    assert "0123456789ab.yaml: the name is that of run 0123456789ab, and the run file gives" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_memory_of_a_gpu_is_given_back_after_each_run_of_a_process(
    together: Callable[..., int], mapping: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[None] = []
    free_gpu_memory = session.free_gpu_memory
    monkeypatch.setattr(session, "free_gpu_memory", lambda: given.append(None))
    assert together(mapping(), mapping(server_images=125)) == 2  # too few of a class: known when it is dealt
    assert len(given) == 2
    freed: list[None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(None))
    free_gpu_memory()
    assert not freed  # asking would start CUDA
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    free_gpu_memory()
    assert len(freed) == 1


@pytest.mark.usefixtures("signals")
def test_a_signal_stops_all_of_a_process_and_they_go_on(
    train: Train, together: Callable[..., int], mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [mapping(seed=0), mapping(rounds=3, seed=1), mapping(seed=2)]
    original = Federation.node

    def stop_midway(self: Federation, client: int, round: int, *rest: Any) -> Any:
        if (self.run.budget.seed, round, client) == (1, 2, 2):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, client, round, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "node", stop_midway)
        with pytest.raises(SystemExit, match="stopped by a signal after round 1 of 3"):
            together(*runs)
    done = list((tmp_path / "runs").rglob("summary.json"))
    assert [path.parent.name[:6] for path in done] == ["seed~0"]
    assert not list((tmp_path / "runs").rglob("seed~2*"))
    before = done[0].stat().st_mtime_ns
    assert together(*runs) == 0
    assert done[0].stat().st_mtime_ns == before
    assert train(runs[1], "alone") == 0
    (stopped,) = (tmp_path / "runs").rglob("seed~1*")
    checkpoint = "checkpoint.safetensors"
    assert record(stopped, stopped / checkpoint) == record(tmp_path / "alone", tmp_path / "alone" / checkpoint)


@pytest.mark.usefixtures("signals")
def test_a_signal_in_a_runs_last_checkpoint_stops_the_next_ones_too(
    together: Callable[..., int], mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, original = [mapping(rounds=1, seed=seed) for seed in (0, 1)], training.checkpoint.save

    def signalled(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(training.checkpoint, "save", signalled)
        with pytest.raises(SystemExit, match="stopped by a signal after round 1 of 1"):
            together(*runs)
    assert not list((tmp_path / "runs").rglob("seed~1*"))
    assert together(*runs) == 0
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 2


def test_a_run_without_any_value_ends(train: Train, mapping: Make, tmp_path: Path, data_dir: Path) -> None:
    """Nothing is tested but in detailed rounds, and it diverges before the first."""
    floor = {"scheme": "dirichlet_class_floor", "alpha": 100.0, "clients": 4, "min_test": 0}
    asked = mapping({"name": "heurfedamp", "lr": 1e30}, rounds=3, partition=floor)
    assert train(asked, "out") == 0
    assert json.loads((tmp_path / "out/summary.json").read_text())["diverged"]["round"] == 1
    rows = (tmp_path / "out/metrics.csv").read_text().splitlines()
    assert [row.split(",")[:4] for row in rows[1:]] == [
        *(["1", "global", "communication", f"bytes_{way}"] for way in ("down", "up")),
        *(["1", "global", "computation", f"multiply_adds_{whose}"] for whose in ("clients", "server")),
    ]
    assert cli.main(["verify", str(tmp_path / "out"), "--data", str(data_dir)]) == 0


def test_mistakes_of_all_run_files_are_told_before_any_is_trained(
    together: Callable[..., int], mapping: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = session.train

    def noting(*args: Any) -> None:
        print("training", file=sys.stderr)
        original(*args)

    monkeypatch.setattr(session, "train", noting)
    assert together(mapping(rounds=1), mapping() | {"rouds": 3}) == 2
    told = capsys.readouterr().err
    assert told.count("rouds: unknown key; did you mean 'rounds'?") == 1
    assert told.index("rouds") < told.index("training")
    assert cli.main(["train", "nowhere.yaml", "--runs", "there"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "bayesfed: nowhere.yaml: there is no such file"


def test_places_of_one_run_and_of_several(train: Train, together: Callable[..., int], mapping: Make, tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert cli.main(["train", "a.yaml", "b.yaml", "--out", "there"]) == 2
    assert error(capsys) == "bayesfed: --out there: it takes one run, not 2; give --runs DIR"
    assert train(mapping(), "out", "--checkpoints", "there") == 2
    assert error(capsys) == "bayesfed: --checkpoints: it needs --runs; add that, or leave it out"
    assert together(mapping(), options=("--checkpoint", "there")) == 2
    assert error(capsys) == "bayesfed: --checkpoint: it needs --out; add that, or leave it out"


def test_a_finished_run_is_left_alone(
    train: Train, mapping: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(mapping()) == 0
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir() if p.name != ".lock"}
    capsys.readouterr()
    assert train(mapping()) == 0
    assert error(capsys).endswith("done already")
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir() if p.name != ".lock"}


def test_every_file_comes_back_from_the_checkpoint(
    train: Train, mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(mapping("fml")) == 0
    names = ("metrics.csv", "run.yaml", "summary.json", "provenance.json")
    before = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    for name in names:
        (tmp_path / "out" / name).unlink()
    monkeypatch.setattr(training, "assemble", None)  # training would fail
    assert train(mapping("fml")) == 0
    assert before == {name: (tmp_path / "out" / name).read_bytes() for name in names}


@pytest.mark.parametrize("executor", ["eager", "threads", "graphs"])
def test_a_diverged_run_ends_and_says_where(executor: str, train: Train, mapping: Make, tmp_path: Path,
                                            capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A step of client 2 in round 2 makes its local model infinite: the run is over, recorded, and left alone."""
    original = FML.start

    def start(self: FML, c: Node, message: State) -> State:
        state = original(self, c, message)
        if (c.round, c.client) == (2, 2):
            state["theta"] = torch.full_like(state["theta"], 1e30)
        return state

    monkeypatch.setattr(FML, "start", start)
    assert train(mapping("fml", rounds=5), "out", "--executor", executor) == 0
    out = tmp_path / "out"
    assert error(capsys) == f"checkpoint: {out}/checkpoint.safetensors"
    log = (out / "run.log").read_text()
    assert "diverged in round 2: client 2's phi is not finite; the run ends here" in log
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["diverged"] == {"round": 2, "client": "2", "tensor": "phi"}
    assert run_folder.read(out) == summary
    with (out / "metrics.csv").open() as file:
        assert {row["round"] for row in csv.DictReader(file)} == {"1", "2"}
    before = (out / "summary.json").read_bytes()
    (out / "summary.json").unlink()
    monkeypatch.setattr(training, "assemble", None)  # training would fail
    assert train(mapping("fml", rounds=5)) == 0
    assert (out / "summary.json").read_bytes() == before


@pytest.mark.parametrize("owner", ["server", "2"])
def test_a_prediction_that_is_no_number_ends_a_run(owner: str, train: Train, mapping: Make, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Of parameters that are all finite: its accuracy would be that of the first class."""
    name = "server_predictors" if owner == "server" else "client_predictors"
    original = getattr(FML, name)

    def predictors(self: FML, node: Node) -> list[Predictor]:
        found = original(self, node)
        if node.round == 2 and str(node.client) in (owner, "-1"):
            return [replace(one, log_probabilities=lambda x: torch.full((len(x), 10), math.nan)) for one in found]
        return found

    monkeypatch.setattr(FML, name, predictors)
    assert train(mapping("fml", rounds=3, validation=0.2)) == 0
    model = "global" if owner == "server" else "local"
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["diverged"] == {"round": 2, "client": owner, "tensor": f"prediction by its model '{model}'"}
    assert summary["validation"]["global" if owner == "server" else "clients"][model]["nll"] is None


def test_a_metric_that_is_not_finite_is_null(train: Train, mapping: Make, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Parameters that are finite may give an infinite loss: the summary stays JSON."""
    monkeypatch.setattr(evaluation, "uncertainty", lambda *_: {"nll": torch.tensor(float("inf"))})
    assert train(mapping()) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["uncertainty"]["global"]["nll"] is None
    assert summary["diverged"] is None


def test_results_are_written_anew_from_a_checkpoint_alone(
    train: Train, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    """As for a damaged record whose summary was deleted; the cached partition may be gone, too."""
    out, cached = tmp_path / "out", data_dir / str(run_file.resolve(mapping(), data_dir).partition_file)
    assert train(mapping()) == 0
    before = (out / "summary.json").read_bytes()
    for path in (*(out / name for name in ("summary.json", "metrics.csv")), cached):
        path.unlink()
    assert train(mapping()) == 0
    assert (out / "summary.json").read_bytes() == before


def test_refuses_another_runs_folder(train: Train, mapping: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(mapping()) == 0
    assert train(mapping(seed=1)) == 2
    assert re.search(r"this folder holds run \w+, not \w+ \(seed: 0 there, 1 here\); give another", error(capsys))


def test_refuses_to_replace_what_it_did_not_write(
    train: Train, mapping: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "metrics.csv").write_text("precious\n")
    assert train(mapping()) == 2
    assert "out: its metrics.csv would be replaced, and nothing says that this run wrote that" in error(capsys)
    assert (out / "metrics.csv").read_text() == "precious\n"
    (out / "metrics.csv").unlink()
    assert train(mapping()) == 0
    for name in ("summary.json", "checkpoint.safetensors"):  # as one is told to do with a record that was changed
        (out / name).unlink()
    assert train(mapping(seed=1)) == 2
    assert train(mapping()) == 0


def test_a_finished_run_leaves_another_runs_checkpoints_alone(
    train: Train, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    assert train(mapping()) == 0
    others = [tmp_path / "other.safetensors", tmp_path / "other.before.safetensors"]
    assert train(mapping(seed=1), "other", "--checkpoint", str(others[0])) == 0
    others[1].write_bytes(others[0].read_bytes())
    assert train(mapping(), "out", "--checkpoint", str(others[0])) == 0
    assert all(one.exists() for one in others)
    assert train(mapping(seed=1), "other", "--checkpoint", str(others[0])) == 0
    assert not others[1].exists()


def test_refuses_to_replace_a_users_run_file(
    data_dir: Path, mapping: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "run.yaml"
    mine.write_text(text := f"# mine\n{yaml.safe_dump(mapping('fedavg', rounds=1))}")
    command = ["--out", str(tmp_path), "--data", str(data_dir)]
    assert cli.main(["train", str(mine), *command]) == 2
    assert error(capsys).endswith(
        f"{mine} would be replaced by the completed run file; rename it, or give another folder"
    )
    assert mine.read_text() == text
    mine.rename(renamed := tmp_path / "mine.yaml")
    assert cli.main(["train", str(renamed), *command]) == 0
    assert cli.main(["train", str(mine), *command]) == 0  # the completed one may stand there: it goes on, or is done
    mine.write_text(text)
    assert cli.main(["train", str(mine), *command]) == 2  # a finished run's is its record, and replaced by nothing
    assert "not as the run wrote it" in error(capsys)


@pytest.mark.parametrize(
    ("out", "checkpoint", "message"),
    [
        ("file", "new", "{}/file: this is a file, and a folder is needed for the run folder"),
        ("file/below", "new", "{}/file: this is a file, and a folder is needed for the run folder"),
        ("out", "file/below/one", "{}/file: this is a file, and a folder is needed for the checkpoint"),
        ("out", "folder", "--checkpoint {}/folder: this is a folder"),
    ],
)
def test_refuses_places_that_cannot_be(out: str, checkpoint: str, message: str, train: Train, mapping: Make, tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(mapping()))
    places = ["--out", str(tmp_path / out), "--checkpoint", str(tmp_path / checkpoint)]
    assert cli.main(["train", str(run), *places, "--data", str(tmp_path)]) == 2
    assert message.format(tmp_path) in error(capsys)


def test_refuses_a_damaged_checkpoint(
    train: Train, mapping: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(mapping()) == 0
    path = tmp_path / "out/checkpoint.safetensors"
    (tmp_path / "out/summary.json").unlink()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert train(mapping()) == 2
    assert "this checkpoint is damaged" in error(capsys)
    assert train(mapping(seed=1), "other", "--checkpoint", str(path)) == 2
    path.write_bytes(whole)
    assert train(mapping(seed=1), "other", "--checkpoint", str(path)) == 2
    assert re.search(
        r"this checkpoint belongs to run \w+, not to \w+ \(seed: 0 there, 1 here\); give another", error(capsys)
    )


@pytest.mark.parametrize(("option", "begun", "other"), [("precision", "bf16", "fp32"), ("executor", "graphs", "eager")])
def test_a_resume_keeps_how_it_was_begun(
    option: str, begun: str, other: str, train: Train, mapping: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(mapping(), "out", f"--{option}", begun) == 0
    (tmp_path / "out/summary.json").unlink()
    assert train(mapping(), "out", f"--{option}", other) == 2
    assert f"--{option} {other}: this run was begun with {begun}; go on with that" in error(capsys)
    assert train(mapping()) == 0
    assert json.loads((tmp_path / "out/provenance.json").read_text())[option] == begun


def test_of_a_run_that_was_begun_otherwise_both_checkpoints_are_named(
    train: Train, mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (2, 3):
        with monkeypatch.context() as patch:
            stop_in_round(number, patch)
            with pytest.raises(SystemExit):
                train(mapping(rounds=3))
    assert train(mapping(rounds=3), "out", "--executor", "eager") == 2
    named = error(capsys).rpartition("or delete ")[2].split(" and ")
    assert named == [f"{tmp_path}/out/checkpoint{one}.safetensors" for one in ("", ".before")]
    for path in named:
        Path(path).unlink()
    assert train(mapping(rounds=3), "out", "--executor", "eager") == 0


def test_a_run_begun_on_another_device_goes_on_by_this_ones_executor(
    train: Train, mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        machine = training.machine
        patch.setattr(training, "machine", lambda *on: machine(*on) | {"device": "cuda"})
        stop_in_round(2, patch)
        with pytest.raises(SystemExit):
            train(mapping(rounds=3), "out", "--executor", "graphs")
    assert train(mapping(rounds=3)) == 0
    assert json.loads((tmp_path / "out/provenance.json").read_text())["executor"] == "threads"


def test_a_run_stopped_in_its_first_round_is_begun_again_as_asked(
    train: Train, mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been on another device."""
    with monkeypatch.context() as patch:
        stop_in_round(1, patch)
        with pytest.raises(SystemExit):
            train(mapping(), "out", "--executor", "graphs", "--precision", "bf16")
    assert (tmp_path / "out/checkpoint.safetensors").exists()
    assert train(mapping()) == train(mapping(), "whole") == 0
    provenance, whole = (run_folder.provenance(tmp_path / name) for name in ("out", "whole"))
    assert (provenance["executor"], provenance["precision"]) == (whole["executor"], whole["precision"])
    assert run_folder.metrics(tmp_path / "out") == run_folder.metrics(tmp_path / "whole")


def test_a_run_that_went_on_elsewhere_names_every_machine(
    train: Train, mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the last one alone, in whose hours the others' would be counted."""
    for number, hardware in ((2, "one"), (3, "one"), (5, "two")):
        with monkeypatch.context() as patch:
            patch.setattr(training.device, "hardware", lambda _, hardware=hardware: hardware)
            stop_in_round(number, patch)
            with pytest.raises(SystemExit):
                train(mapping(rounds=5))
    assert train(mapping(rounds=5)) == 0
    provenance = run_folder.provenance(tmp_path / "out")
    assert [(one["by"]["hardware"], one["rounds"]) for one in provenance["sessions"][:2]] == [("one", 2), ("two", 2)]
    assert provenance["sessions"][2]["by"] | provenance == provenance
    assert sum(one["seconds"] for one in provenance["sessions"]) == pytest.approx(provenance["train_seconds"], abs=1e-3)
    with Process() as process:
        assert "hardware" in verify(tmp_path / "out", 1, data_dir, "cpu", process, WEIGHTS, None).differs
    threads = f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    assert place(provenance).startswith(f"one, {threads} then two, {threads} then ")


def test_the_log_ends_with_the_checkpoint(train: Train, mapping: Make, tmp_path: Path) -> None:
    """The workflow keeps it in a tree of its own, beside the run folders."""
    checkpoint = tmp_path / "checkpoints/one.safetensors"
    assert train(mapping(), "out", "--checkpoint", str(checkpoint)) == 0
    assert (tmp_path / "out/run.log").read_text().splitlines()[-1] == f"checkpoint: {checkpoint}"
    assert checkpoint.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "mnist"}, "dataset mnist: .* is missing: run `bayesfed fetch mnist --data"),
        ({"method": {"name": "hbfi"}}, "no method is named 'hbfi'"),
        ({"partition": {"alpha": 1.0, "clients": 300}}, "partition.clients: 300 clients .* at most 25 clients fit"),
        (
            {"server_images": 240},
            "server_images: 240 for the server, but dataset .few. has 250 .*, and at most half may leave",
        ),
        ({"server_images": 125}, "server_images: 125 for the server: that would take 13 of the"),
    ],
)
def test_refuses_before_any_work(change: dict[str, Any], message: str, train: Train, mapping: Make, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert train(mapping() | change) == 2
    captured = capsys.readouterr().err.strip().splitlines()
    assert re.search(message, captured[-1])
    assert not (tmp_path / "out/checkpoint.safetensors").exists()
    assert not (tmp_path / "out/summary.json").exists()


def test_refuses_a_gpu_that_is_not_there(train: Train, mapping: Make, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert train(mapping(), "out", "--device", "cuda") == 2
    assert "this machine has no usable GPU" in error(capsys)


def call(mapping: dict[str, Any], data: Path, folder: Path) -> list[str]:
    """The command line of a training in a process of its own."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(mapping))
    out = str(folder / "out")
    return [sys.executable, "-m", "bayesfed", "train", str(path), "--out", out, "--data", str(data)]


def test_a_trainer_waits_for_the_folders_holder_and_terminated_leaves_a_checkpoint(
    mapping: Make, digits_dir: Path, tmp_path: Path
) -> None:
    asked, log = call(mapping("fedavg", dataset="digits", rounds=200), digits_dir, tmp_path), tmp_path / "out/run.log"
    with contextlib.ExitStack() as running:
        with files.locked(tmp_path / "out/.lock", "the test holds it"):
            trainer = running.enter_context(child(asked, stderr=subprocess.PIPE))
            assert trainer.stderr is not None
            assert "another process holds this run; waiting" in trainer.stderr.readline()
            assert not log.exists()
        while not (log.exists() and "round 2/" in log.read_text()):
            time.sleep(0.05)
            assert trainer.poll() is None
        trainer.terminate()
        trainer.terminate()  # a second signal changes nothing
        trainer.communicate()
        assert trainer.returncode == 1
    assert (tmp_path / "out/checkpoint.safetensors").exists()
    assert not (tmp_path / "out/summary.json").exists()
    assert not list((tmp_path / "out").glob(".checkpoint*"))


LONG_STEP = """
import sys, time
import bayesfed
from bayesfed import cli
from bayesfed.engine import signals
from bayesfed.engine.federation import Federation

def node(self, client, round, *rest):
    if round == 2:
        print("in it", flush=True)
        time.sleep(600)
    return original(self, client, round, *rest)

original, Federation.node, signals.GRACE = Federation.node, node, 0.2
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_signal_does_not_wait_for_a_step_of_minutes(mapping: Make, digits_dir: Path, tmp_path: Path) -> None:
    asked = call(mapping("fedavg", dataset="digits", rounds=2), digits_dir, tmp_path)
    asked[1:3] = ["-c", LONG_STEP]
    with child(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "in it\n"
        trainer.send_signal(signal.SIGINT)
        _, told = trainer.communicate(timeout=60)
        assert trainer.returncode == 1
    assert told.splitlines()[-1] == "bayesfed: stopped by a signal after round 1 of 2; run it again to go on"
    assert not list((tmp_path / "out").glob(".checkpoint*"))
    log = (tmp_path / "out/run.log").read_text()
    assert cli.main(asked[3:]) == 0
    assert "round 1/" not in (tmp_path / "out/run.log").read_text()[len(log) :]


def test_a_device_is_leased_before_torch_looks_for_one(
    train: Train, mapping: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once torch has asked for a GPU, CUDA_VISIBLE_DEVICES is read and a lease would come too late."""
    happened: list[str] = []

    @contextlib.contextmanager
    def note(wanted: str, slots: int) -> Iterator[str]:
        happened.append(f"lease for {wanted}")
        yield ""

    monkeypatch.setattr(gpu_lease, "lease", note)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: happened.append("torch asked") or False)
    assert train(mapping(rounds=1)) == 0
    assert happened[0] == "lease for auto"
    assert "torch asked" in happened


def test_who_waits_for_a_gpu_holds_no_run(
    train: Train, mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the GPU may wait for that run."""
    held: list[bool] = []

    @contextlib.contextmanager
    def look(wanted: str, slots: int) -> Iterator[str]:
        held.append(files.is_locked(tmp_path / "out/.lock"))
        yield ""

    monkeypatch.setattr(gpu_lease, "lease", look)
    assert train(mapping(rounds=1)) == 0
    assert held == [False]


def test_a_summary_names_what_a_method_predicts_with(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    for name, named in (("fedlap_cov", "global"), ("fedavg", None)):
        bayesfed.train(mapping(name, rounds=1), tmp_path / name, data=data_dir)
        assert json.loads((tmp_path / name / "summary.json").read_text()).get("predictive") == named
