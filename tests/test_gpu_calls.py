"""The three calls for a GPU, run on a CPU with small numbers, and what they promise: a deadline, rows, a tar."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from helpers.children import child, finished
from helpers.damage import flip
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from bayesfed import cli, methods
from bayesfed.core.errors import InputError
from bayesfed.data.fetch import fetch
from bayesfed.engine import rounds
from bayesfed.models import network
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import call, compare, parcel, real, smoke, speed

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
    "jsonschema",
    "referencing",
)
LIGHT = f"import runpy, sys; sys.modules.update(dict.fromkeys({HEAVY})); "
RUN = "runpy.run_module('benchmarks.gpu', run_name='__main__')"
Rows = list[dict[str, Any]]
Make = Callable[..., Rows]
Scripted = Callable[[list[str], dict[str, str]], tuple[dict[str, Any], call.Task]]


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


def test_parts_are_chosen_by_how_their_names_begin(make: Make, refused: Callable[..., str]) -> None:
    rows = make("smoke", "--parts", "kern", "evic")
    assert list(dict.fromkeys(row["part"] for row in rows)) == ["eviction", "kernels"]
    told = refused("speed", "--small", "--parts", "lanes", "job", "none")
    assert told.startswith("benchmarks.gpu: --parts none: no part of speed begins so; it has ceilings, layouts, ")


def test_the_page_explains_every_part(place: Path) -> None:
    page = (ROOT / "docs/guides/gpu.md").read_text()
    everything = call.Task("speed", Path("out"), "cuda", call.FULL, place / "data", 0.0)
    for part in (*smoke.parts(everything), *speed.parts(everything)):
        name = re.sub(r"^(profile|run|method)-.*", r"\1-*", part.name)
        assert f"\n| `{name}` | " in page


def test_smoke_looks_at_every_method() -> None:
    assert sorted([*smoke.FIRST, *call.OTHERS]) == list(methods.names())


@pytest.mark.parametrize("name", [*smoke.FIRST, *call.OTHERS])
def test_there_is_a_run_of_every_method_for_smoke(name: str) -> None:
    assert compare.small(name, compare.compute("cpu", "fp32"), call.FULL.few).clients == 4


@pytest.mark.parametrize("name", [name for name in call.OTHERS if name not in call.SMALL.others])
def test_what_smoke_asks_of_a_method_can_be_asked_and_holds_on_a_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that the whole call below leaves out, and in float64: it has methods in another precision too."""
    monkeypatch.setattr(smoke, "STEPS", 1)
    task = call.Task("smoke", tmp_path, "cpu", replace(call.SMALL, precisions=()), None, math.inf)
    smoke.other_method(name, task)
    rows = [json.loads(line) for line in (tmp_path / "smoke.jsonl").read_text().splitlines()]
    assert rows[-1]["operators"] > 5
    assert rows[0]["equals_unrecorded"]
    assert not task.wrong


def members(path: Path) -> set[str]:
    with tarfile.open(path) as tar:
        return set(tar.getnames())


def test_smoke_runs_to_its_end(make: Make, place: Path) -> None:
    rows = make("smoke")
    order = ["recorded", "lanes", "noise", "eviction", "resume", "rounds", "kernels", "modules", "method-fml"]
    assert list(dict.fromkeys(row["part"] for row in rows)) == order
    assert {row["part"] for row in rows if row.get("holds")} == {*order} - {"rounds"}
    assert {row["case"] for row in rows if row["part"] == "kernels"} == {"hbfl", "fedavg"}
    assert all(row["torch"] == torch.__version__ and row.get("holds", True) for row in rows)
    assert {"smoke.jsonl", "smoke.log"} <= members(place / "out/smoke.tar.gz")


def test_speed_runs_to_its_end(make: Make, place: Path) -> None:
    rows = make("speed")
    assert {row["part"].split("-")[0] for row in rows} == {"ceilings", "profile", "layouts", "run", "lanes", "jobs"}
    runs = {row["case"]: row for row in rows if row["part"].startswith("run-")}
    assert runs["fedavg cnn2 alpha 0.05 fp32"]["rounds"] == 2
    assert runs["fedavg cnn2 alpha 0.05 fp32"]["times_eager"] > 0
    assert {row["case"] for row in rows if row["part"] == "layouts"} == {"cnn2 fp32 NHWC", "cnn2 fp32 NCHW"}
    assert "speed.jsonl" in members(place / "out/speed.tar.gz")


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
    speed.layouts(call.Task("speed", tmp_path, "cpu", call.SMALL, None, math.inf))
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
    speed.fused(call.Task("speed", tmp_path, "cpu", call.SMALL, None, math.inf))
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
    scale = replace(call.SMALL, rounds=5)
    speed.whole_run("fedavg", "cnn2", 0.05, "fp32", True, call.Task("speed", tmp_path, "cpu", scale, None, math.inf))
    assert played == ["graphs"] * 3 + ["eager"] * 2 + ["graphs"] * 2


def test_kernels_are_those_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for steps in (1, 10):
        monkeypatch.setattr(smoke, "STEPS", steps)
        (tmp_path / str(steps)).mkdir()
        smoke.kernels(call.Task("smoke", tmp_path / str(steps), "cpu", call.SMALL, None, math.inf), ["fedavg"])
        found.append(json.loads((tmp_path / str(steps) / "smoke.jsonl").read_text())["operators"])
    assert found[0] == found[1] > 5


def test_real_trains_what_is_open_and_brings_records_home(
    make: Make, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {"dataset": "mnist", "model": "mlp"}
    config = {
        "name": "small", "papers": ["hbfl"], "seeds": [0, 1],
        "run": {"rounds": 1, "local_epochs": 1, "batch_size": 64}, "datasets": {"mnist": "digits"},
        "experiments": {
            **{name: {"skip": True} for name in ("heterogeneous", "ablation", "falling_rate", "falling_once", "by_adam", "proximal", "multitask", "stragglers")},
            "homogeneous": {"cases": [case, case | {"dataset": "cifar10"}], "axes": {"alpha": [1], "method": ["FedAvg"]}},
        },
    }  # fmt: skip
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(place)
    assert cli.main(["plan", "config.yaml", "--out", "results/small/plan"]) == 0  # it needs what a GPU node may lack
    rows = make("real", "--plan", "results/small/plan/plan.json", "--jobs", "2", "--precision", "bf16")
    assert [rows[0][key] for key in ("waiting", "without_data", "of")] == [2, 2, 4]  # no CIFAR-10 there
    assert [row["exit_code"] for row in rows[1:]] == [0, 0]
    home = members(place / "out/real.tar.gz")
    for row in rows[1:]:
        assert {f"{row['records']}/{name}" for name in ("summary.json", "metrics.csv", "provenance.json")} <= home
        assert json.loads((place / row["records"] / "provenance.json").read_text())["precision"] == "bf16"
    assert (place / "out/memory.csv").read_text() == "12:00:00, 0, 1000, 141000, 7\n"


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """A function that gives a plan whose runs are shell scripts, or else refused input, and a task for `real`, in a folder
    that is the current one."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data/digits/dataset.json"
    data.parent.mkdir(parents=True)
    data.touch()
    (tmp_path / "out").mkdir()
    with contextlib.ExitStack() as running:

        def make(names: list[str], scripts: dict[str, str]) -> tuple[dict[str, Any], call.Task]:
            def start(plan: dict[str, Any], run: dict[str, Any], *_: Any) -> "subprocess.Popen[str]":
                return running.enter_context(child(["sh", "-c", scripts.get(run["folder"], "exit 2")]))

            monkeypatch.setattr(real, "start", start)
            plan = {"config": "small", "runs": [{"folder": name, "datasets": ["digits"]} for name in names]}
            return plan, call.Task("real", Path("out"), "cpu", call.SMALL, Path("data"), time.monotonic() + 60)

        yield make


def outcomes() -> list[tuple[str, int | None]]:
    """The runs of `real` and their exit codes, as they ended."""
    rows = [json.loads(line) for line in Path("out/real.jsonl").read_text().splitlines()]
    return [(row["case"], row.get("exit_code")) for row in rows[1:]]


def test_real_tries_a_run_once_more_that_found_no_place(scripted: Scripted) -> None:
    """As on a GPU that takes no third process: the run waits, and from then on two are begun at once."""
    beside = "until grep -q crowded out/real.jsonl; do sleep 0.05; done; sleep 0.3"
    crowded = "test -e tried && exit 0; touch tried; exit 1"
    late = "test -e tried && exit 0; exit 1"
    scripts = {"first": beside, "second": beside, "crowded": crowded, "late": late}
    plan, task = scripted(["first", "second", "crowded", "late"], scripts)
    real.train(plan, 3, "auto", task)
    told = outcomes()
    assert told[0] == ("crowded", 1)
    assert sorted(told[1:]) == [("crowded", 0), ("first", 0), ("late", 0), ("second", 0)]


def test_real_tries_alone_what_found_no_place_together(scripted: Scripted) -> None:
    alone = "test -e tried && exit 0; sleep 0.5; touch tried; exit 1"
    plan, task = scripted(["first", "second", "third"], dict.fromkeys(["first", "second", "third"], alone))
    with pytest.raises(call.Failed, match="real: 1 runs failed"):  # the last to end had nobody beside it
        real.train(plan, 3, "auto", task)
    assert sorted(code for _, code in outcomes()) == [0, 0, 1, 1, 1]


def test_real_tries_no_run_a_third_time(scripted: Scripted) -> None:
    beside = "until [ $(grep -c broken out/real.jsonl) = 2 ]; do sleep 0.05; done"
    scripts = {
        "first": beside,
        "second": "until grep -q broken out/real.jsonl; do sleep 0.05; done",
        "broken": "exit 1",
    }
    plan, task = scripted(["first", "second", "broken"], scripts)
    with pytest.raises(call.Failed, match="real: 1 runs failed"):
        real.train(plan, 3, "auto", task)
    assert sorted(outcomes()) == [("broken", 1), ("broken", 1), ("first", 0), ("second", 0)]


@pytest.mark.parametrize(
    ("jobs", "names", "message", "told"),
    [
        (
            2,
            ["good", "bad1", "bad2", "bad3"],
            "real: 3 runs failed",
            [("bad1", 2), ("bad2", 2), ("good", 0), ("bad3", 2)],
        ),
        (1, ["bad1", "bad2"], "real: the first runs all fail", [("bad1", 2), ("not begun", None)]),
    ],
)
def test_real_begins_no_further_run_while_all_fail(
    jobs: int, names: list[str], message: str, told: list[tuple[str, int | None]], scripted: Scripted
) -> None:
    """As on a GPU that has no room for another; the one that has goes on, and when it is done there is room."""
    plan, task = scripted(names, {"good": "until grep -q bad2 out/real.jsonl; do sleep 0.05; done"})
    with pytest.raises(call.Failed, match=message):
        real.train(plan, jobs, "auto", task)
    assert sorted(outcomes()) == sorted(told)


def test_real_says_where_a_plan_comes_from(refused: Callable[..., str]) -> None:
    for wrong in ("config/paper.yaml", "nowhere.json"):
        told = refused("real", "--plan", wrong)
        assert told.startswith(f"benchmarks.gpu: --plan {wrong}: expected a plan.json; `bayesfed plan ")


def test_runs_come_by_priority_then_as_planned_and_only_open_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = {
        "config": "paper",
        "runs": [{"folder": "a"}, {"folder": "b", "priority": 2}, {"folder": "c"}, {"folder": "d", "priority": 9}],
    }
    assert [run["folder"] for run in real.open_runs(plan)] == ["d", "b", "a", "c"]
    done = tmp_path / "results/paper/runs/d"
    done.mkdir(parents=True)
    (done / "summary.json").write_text("{}")
    assert [run["folder"] for run in real.open_runs(plan)] == ["b", "a", "c"]


DEADLINE = """
import os, signal, subprocess, time
from pathlib import Path
from benchmarks.gpu import call
call.MARGIN = 1

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
    raise call.OutOfTime

def crash(task):
    os.kill(os.getpid(), signal.SIGSEGV)

def late(task):
    raise call.OutOfTime

def task(name, seconds):
    return call.Task(name, Path("out"), "cpu", call.SMALL, None, time.monotonic() + seconds)

parts = [call.Part("first", first), call.Part("left", left), call.Part("second", second), call.Part("third", third)]
print(call.run(task("cut", 5), parts))
parts = [call.Part("late", late, gate=True), call.Part("crash", crash), call.Part("other", other, gate=True)]
parts += [call.Part("wrong", wrong, gate=True)]
print(call.run(task("stop", 60), [*parts, call.Part("third", third)]))
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
    assert said[3:6] == ["cut third: not begun, the time is over", "out/cut.tar.gz", "2"]
    assert said[6].startswith("stop late: out of time after")  # what comes behind it may still be worth knowing
    assert re.fullmatch(r"stop crash: FAILED after \d+ s: ended by signal 11", said[7])  # of one method alone
    assert re.fullmatch(r"stop other: done but for a part after \d+ s: does not hold: other precision", said[8])
    assert re.fullmatch(r"stop wrong: FAILED after \d+ s: does not hold: wrong", said[9])
    assert said[10:] == ["stop stops here; out/stop.log has more", "out/stop.tar.gz", "4"]
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
    assert {"cut.jsonl", "cut.log"} <= members(place / "out/cut.tar.gz")


def cmdline(pid: int) -> str:
    """What a process was started as; nothing where it is over."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_trainings_that_benchmarks_start_choose_their_own_number_of_queues() -> None:
    """Three that share a GPU under MPS ask for less than one that has it alone, so nothing is set for all of them."""
    code = "import os, benchmarks.precision, benchmarks.gpu.real; print(os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS'))"
    outside = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
    found = subprocess.run([sys.executable, "-c", code], env=outside, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "None"


def test_a_difference_sees_what_is_no_number() -> None:
    right = {"a": torch.ones(2), "b": torch.ones(2)}
    assert compare.difference({"a": torch.ones(2), "b": torch.tensor([1.0, 1.5])}, right) == pytest.approx(0.5 / 2**0.5)
    for name in right:
        wrong = right | {name: torch.tensor([1.0, math.nan])}
        assert not compare.difference(wrong, right) <= 1e9
        assert not compare.difference(right, wrong) <= 1e9


def test_data_come_in_parts(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "MIB", 2**13)
    parts = parcel.pack(["digits"], place / "data", tmp_path / "parts", 1)
    assert [part.name for part in parts] == [f"digits-{n}-of-{len(parts)}.part" for n in range(1, len(parts) + 1)]
    assert len(parts) > 2
    assert max(part.stat().st_size for part in parts) == 2**13
    into = tmp_path / "there"
    assert parcel.unpack(parts[1], into).startswith(f"missing: {parts[0].name}, ")
    for part in parts[2:]:
        parcel.unpack(part, into)
    assert parcel.unpack(parts[0], into) == "complete and verified: digits"
    assert {path.name for path in into.rglob("*") if path.is_file()} == {"train.npz", "test.npz", "dataset.json"}
    with pytest.raises(InputError, match="expected a part that `pack` has written"):
        parcel.unpack(into / "digits" / "train.npz", into)


@given(
    shape=st.tuples(st.integers(1, 30), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)),
    side=st.integers(1, 40), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_images_come_out_of_pictures_as_they_were(shape: tuple[int, ...], side: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    with mock.patch.object(parcel, "SIDE", side):
        found = [np.atleast_3d(picture) for picture in parcel.pictures(images)]
        coloured = [np.broadcast_to(picture, (*picture.shape[:2], 3)) for picture in found]
        assert np.array_equal(parcel.from_pictures(coloured, shape), images)
    assert max(len(picture) for picture in found) <= max(side, shape[2])


def test_a_damaged_part_is_seen(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the record, the labels or the pictures; a byte between the tar's files, which nothing reads, may be any."""
    monkeypatch.setattr(parcel, "MIB", 2**13)
    parts, seen = parcel.pack(["digits"], place / "data", tmp_path / "parts", 1), 0
    for damaged in parts:
        right = damaged.read_bytes()
        damaged.write_bytes(flip(right, 600))
        there = tmp_path / f"there-{damaged.name}"
        for part in parts[:-1]:
            parcel.unpack(part, there)
        try:
            assert parcel.unpack(parts[-1], there) == "complete and verified: digits"
        except InputError as error:
            assert "the parts of digits are damaged" in str(error)  # noqa: PT017
            seen += 1
        damaged.write_bytes(right)
    assert seen >= len(parts) - 2
