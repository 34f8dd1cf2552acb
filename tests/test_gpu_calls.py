"""The two calls for a GPU, run on a CPU with small numbers, and what they promise: a deadline and rows."""

import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from helpers.children import finished
from torch.utils._python_dispatch import TorchDispatchMode

from bayesfed import cli, methods
from bayesfed.data.fetch import fetch
from bayesfed.engine import rounds
from bayesfed.models import network
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import compare, parts, smoke, speed

ROOT = Path(__file__).parent.parent
# What a GPU node may lack. A name that is None in sys.modules cannot be imported.
HEAVY = (
    "pandas",
    "seaborn",
    "matplotlib",
    "sklearn",
    "pooch",
    "torchvision",
    "snakemake",
    "tqdm",
    "PIL",
    "scipy",
)
LIGHT = f"import runpy, sys; sys.modules.update(dict.fromkeys({HEAVY})); "
RUN = "runpy.run_module('benchmarks.gpu', run_name='__main__')"
Rows = list[dict[str, Any]]
Make = Callable[..., Rows]
Scripted = Callable[[list[str], dict[str, str]], tuple[dict[str, Any], parts.Task]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the configs, digits, a nvidia-smi that logs, and nothing installed."""
    (tmp_path / "config").symlink_to(ROOT / "config")
    fetch("digits", tmp_path / "data")
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho '12:00:00, 0, 1000, 141000, 7'\nexec sleep 60\n")
    script.chmod(0o755)
    return tmp_path


def python(place: Path, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run code there, with the sources on PYTHONPATH alone."""
    path = os.pathsep.join([str(place / "bin"), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return finished(command, 300, cwd=place, env=environment)


@pytest.fixture
def make(place: Path) -> Make:
    """A function that makes a call and gives its rows."""

    def run(name: str, *options: str) -> Rows:
        arguments = [name, "--device", "cpu", "--small", "--data", "data", "--out", "out", *options]
        done = python(place, LIGHT + RUN, *arguments)
        log = place / f"out/{name}.log"
        assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
        return [json.loads(line) for line in (place / f"out/{name}.jsonl").read_text().splitlines()]

    return run


@pytest.fixture
def refused(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that makes a call that is refused, and gives what is told; it needs no process of its own."""
    monkeypatch.chdir(place)

    def run(name: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", name, "--device", "cpu", *options])
        assert gpu.main() == 2
        return capsys.readouterr().err

    return run


def test_smoke_asks_for_data_before_any_work(refused: Callable[..., str], place: Path) -> None:
    told = refused("smoke", "--data", "nowhere", "--out", "out")
    assert told.startswith("benchmarks.gpu: --data nowhere: smoke needs a folder with a dataset")
    assert not (place / "out").exists()


def test_parts_are_chosen_by_how_their_names_begin(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the call, whatever the order in which they are named."""
    told = refused("speed", "--small", "--parts", "lanes", "job", "none")
    assert told.startswith("benchmarks.gpu: --parts none: no part of speed begins so; it has ceilings, layouts, ")
    chosen: list[str] = []
    monkeypatch.setattr(parts, "run", lambda task, found: chosen.extend(part.name for part in found) or 0)
    arguments = ["smoke", "--device", "cpu", "--small", "--data", "data", "--parts", "kern", "evic"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
    assert gpu.main() == 0
    assert chosen == ["eviction", "kernels"]


def test_the_page_explains_every_part(place: Path) -> None:
    page = (ROOT / "docs/guides/gpu.md").read_text()
    everything = parts.Task("speed", Path("out"), "cuda", parts.FULL, place / "data", 0.0)
    for part in (*smoke.parts(everything), *speed.parts(everything)):
        name = re.sub(r"^(profile|run|method)-.*", r"\1-*", part.name)
        assert f"\n| `{name}` | " in page


def test_smoke_looks_at_every_method() -> None:
    assert sorted([*smoke.FIRST, *parts.OTHERS]) == sorted(methods.ours())


@pytest.mark.parametrize("name", [*smoke.FIRST, *parts.OTHERS])
def test_there_is_a_run_of_every_method_for_smoke(name: str) -> None:
    assert compare.small(name, compare.compute("cpu", "fp32"), parts.FULL.few).clients == 4


@pytest.mark.parametrize("name", ["fedcurv", "pfedgp"])
def test_what_smoke_asks_of_a_method_can_be_asked_and_holds_on_a_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some that the whole call below leaves out, and in float64; tests/engine/test_cuda_graphs.py records all of them."""
    monkeypatch.setattr(smoke, "STEPS", 1)
    task = parts.Task("smoke", tmp_path, "cpu", replace(parts.SMALL, precisions=()), None, math.inf)
    smoke.other_method(name, task)
    rows = [json.loads(line) for line in (tmp_path / "smoke.jsonl").read_text().splitlines()]
    assert rows[-1]["operators"] > 5
    assert rows[0]["equals_unrecorded"]
    assert not task.wrong


def test_smoke_runs_to_its_end(make: Make) -> None:
    order = ["recorded", "lanes", "noise", "eviction", "rounds", "kernels", "modules", "stacked", "method-fola_full"]
    rows = make("smoke", "--parts", *order)
    assert list(dict.fromkeys(row["part"] for row in rows)) == order
    assert {row["part"] for row in rows if row.get("holds")} == {*order} - {"rounds"}
    assert {row["case"] for row in rows if row["part"] == "kernels"} == {"hbfl", "fedavg"}
    assert all(row["torch"] == torch.__version__ and row.get("holds", True) for row in rows)


@pytest.mark.usefixtures("signals")
def test_smoke_goes_on_with_a_training_that_was_stopped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are calls here, and the second one stops after a round."""
    begun: list[Any] = []
    play = rounds.Trainer.play

    class Called:
        def __init__(self, args: list[str]) -> None:
            begun.append(args)
            try:
                self.returncode = cli.main(args[3:])
            except SystemExit:
                self.returncode = 1
            self.poll = self.wait = lambda: self.returncode
            self.send_signal = lambda number: None

    def played(trainer: rounds.Trainer, progress: rounds.Progress) -> rounds.Progress:
        progress = play(trainer, progress)
        if len(begun) == 2:
            signal.raise_signal(signal.SIGTERM)
        return progress

    monkeypatch.setattr(rounds.Trainer, "play", played)
    monkeypatch.setattr(smoke, "subprocess", SimpleNamespace(Popen=mock.MagicMock(side_effect=Called)))
    smoke.resume(parts.Task("smoke", place, "cpu", parts.SMALL, place / "data", math.inf))
    row = json.loads((place / "smoke.jsonl").read_text())
    assert (row["holds"], row["stopped"], row["after_round"]) == (True, True, 1)


def test_speed_runs_to_its_end(make: Make, place: Path) -> None:
    rows = make("speed")
    assert {row["part"].split("-")[0] for row in rows} == {
        "ceilings",
        "profile",
        "layouts",
        "run",
        "lanes",
        "ways",
        "jobs",
    }
    runs = {row["case"]: row for row in rows if row["part"].startswith("run-")}
    assert runs["fedavg cnn2 alpha 0.05 fp32"]["rounds"] == 2
    assert runs["fedavg cnn2 alpha 0.05 fp32"]["times_eager"] > 0
    assert {row["case"] for row in rows if row["part"] == "layouts"} == {"cnn2 fp32 NHWC", "cnn2 fp32 NCHW"}


class Layouts(TorchDispatchMode):
    """Notes of every image and weight of a convolution, and of its gradient, whether it lies channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
            images = [one for one in args if isinstance(one, torch.Tensor) and one.dim() == 4]
            self.last += [one.is_contiguous(memory_format=torch.channels_last) for one in images]
        return func(*args, **(kwargs or {}))


def test_layouts_compares_channels_last_with_channels_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "in_columns", lambda x: False)
    found = []

    def noted(step: Callable[[], None], device: str) -> float:
        with Layouts() as layouts:
            step()
        found.append(layouts.last)
        return 1.0

    monkeypatch.setattr(speed, "seconds", noted)
    speed.layouts(parts.Task("speed", tmp_path, "cpu", parts.SMALL, None, math.inf))
    channels_last, channels_first = found
    assert len(channels_last) == len(channels_first) > 10
    assert all(channels_last)
    assert not any(channels_first)


def test_fused_compares_one_call_with_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a GPU has the call: here one that leaves out ReLU stands in, and refuses large kernels."""

    def one_call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *rest: object) -> torch.Tensor:
        if weight.shape[-1] > 3:
            raise RuntimeError("no engine\nfor it")
        return F.conv2d(x, weight, bias)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", one_call)
    speed.fused(parts.Task("speed", tmp_path, "cpu", parts.SMALL, None, math.inf))
    rows = {row["case"]: row for row in map(json.loads, (tmp_path / "speed.jsonl").read_text().splitlines())}
    assert rows["cnn1 1 fp32"]["refused"] == "no engine"
    assert set(rows) > {"cnn2 1 fp32", "cnn2 2 fp32"}
    for row in (rows["cnn2 1 fp32"], rows["cnn2 2 fp32"]):
        assert 0.01 < row["difference"] < 2
        assert row["finite"]
        assert row["passes_nan"]
        assert row["microseconds_in_one"] > 0


def test_seconds_on_a_gpu_are_those_of_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            pass

        def record(self) -> None:
            self.at = now[0]
            now[0] += 10  # milliseconds that belong to no call

        def elapsed_time(self, end: "Event") -> float:
            return end.at - self.at

    def work() -> None:
        now[0] += 2

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert 2e-3 <= speed.seconds(work, "cuda") <= 2.5e-3


def test_a_step_is_not_recorded_before_what_it_reads_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = mock.MagicMock()
    monkeypatch.setattr(torch, "cuda", cuda)
    speed.recorded(cuda.step)
    calls = [name for name, *_ in cuda.mock_calls]
    assert "Stream().wait_stream" in calls[: calls.index("step")]


def test_time_is_covered_once() -> None:
    assert speed.covered([]) == 0
    assert speed.covered([(3, 4), (0, 2), (1, 2.5), (3.2, 3.4)]) == 3.5


def test_an_eager_round_is_timed_when_it_is_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before the deadline can cut it."""
    played: list[str] = []
    original = rounds.Trainer.play

    def noted(self: rounds.Trainer, progress: rounds.Progress) -> rounds.Progress:
        played.append(self.executor.name)
        return original(self, progress)

    monkeypatch.setattr(rounds.Trainer, "play", noted)
    scale = replace(parts.SMALL, rounds=5)
    speed.whole_run("fedavg", "cnn2", 0.05, "fp32", True, parts.Task("speed", tmp_path, "cpu", scale, None, math.inf))
    assert played == ["graphs"] * 3 + ["eager"] * 2 + ["graphs"] * 2


def test_kernels_are_those_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for steps in (1, 10):
        monkeypatch.setattr(smoke, "STEPS", steps)
        (tmp_path / str(steps)).mkdir()
        smoke.kernels(parts.Task("smoke", tmp_path / str(steps), "cpu", parts.SMALL, None, math.inf), ["fedavg"])
        found.append(json.loads((tmp_path / str(steps) / "smoke.jsonl").read_text())["operators"])
    assert found[0] == found[1] > 5


DEADLINE = """
import os, signal, subprocess, time
from pathlib import Path
from benchmarks.gpu import parts
parts.MARGIN = 1

def first(task):
    task.row("known", value=1)

def left(task):
    task.row("left", child=subprocess.Popen(["sleep", "600"]).pid)

def second(task):
    task.row("begun", child=subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)

def third(task):
    task.row("never")

def wrong(task):
    task.check("wrong", False)
    task.check("right", True)

def other(task):
    task.check("other precision", False, gate=False)
    raise parts.OutOfTime

def crash(task):
    os.kill(os.getpid(), signal.SIGSEGV)

def late(task):
    raise parts.OutOfTime

def task(name, seconds):
    return parts.Task(name, Path("out"), "cpu", parts.SMALL, None, time.monotonic() + seconds)

wanted = [parts.Part("first", first), parts.Part("left", left), parts.Part("second", second), parts.Part("third", third)]
print(parts.run(task("cut", 5), wanted))
wanted = [parts.Part("late", late, gate=True), parts.Part("crash", crash), parts.Part("other", other, gate=True)]
wanted += [parts.Part("wrong", wrong, gate=True)]
print(parts.run(task("stop", 60), [*wanted, parts.Part("third", third)]))
"""


def test_nothing_outlives_the_deadline_and_a_gate_that_fails_ends_the_call(place: Path) -> None:
    started = time.monotonic()
    done = python(place, DEADLINE)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 60
    said = done.stdout.splitlines()
    assert said[0] == "cut first: done"
    assert said[1] == "cut left: done"
    assert said[2].startswith("cut second: stopped after")
    assert said[3:5] == ["cut third: not begun, the time is over", "2"]
    assert said[5].startswith("stop late: out of time after")  # what comes behind it may still be worth knowing
    assert re.fullmatch(r"stop crash: FAILED after \d+ s: ended by signal 11", said[6])  # of one method alone
    assert re.fullmatch(r"stop other: done but for a part after \d+ s: does not hold: other precision", said[7])
    assert re.fullmatch(r"stop wrong: FAILED after \d+ s: does not hold: wrong", said[8])
    assert said[9:] == ["stop stops here; out/stop.log has more", "4"]
    rows = [json.loads(line) for line in (place / "out/stop.jsonl").read_text().splitlines()]
    assert [(row["case"], row["holds"]) for row in rows] == [
        ("other precision", False),
        ("wrong", False),
        ("right", True),
    ]
    rows = [json.loads(line) for line in (place / "out/cut.jsonl").read_text().splitlines()]
    assert [row["case"] for row in rows] == ["known", "left", "begun"]
    left = [row["child"] for row in rows[1:] if cmdline(row["child"])]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left  # neither outlives its part


def cmdline(pid: int) -> str:
    """What a process was started as; nothing where it is over."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_trainings_that_benchmarks_start_choose_their_own_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three that share a GPU under MPS ask for less than one that has it alone, so nothing is set for all of them."""
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("benchmarks.precision")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ


def test_a_difference_sees_what_is_no_number() -> None:
    right = {"a": torch.ones(2), "b": torch.ones(2)}
    assert compare.difference({"a": torch.ones(2), "b": torch.tensor([1.0, 1.5])}, right) == pytest.approx(0.5 / 2**0.5)
    for name in right:
        wrong = right | {name: torch.tensor([1.0, math.nan])}
        assert not compare.difference(wrong, right) <= 1e9
        assert not compare.difference(right, wrong) <= 1e9
