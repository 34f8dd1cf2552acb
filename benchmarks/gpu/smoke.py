"""`smoke`: whether the GPU path does what it should. Stops at the first part that fails."""

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import yaml
from safetensors import safe_open
from torch import Tensor

from bayesfed import methods
from bayesfed.data.sources import SOURCES
from bayesfed.engine.executors.base import Mixer
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Trainer, begin
from bayesfed.errors import InputError
from bayesfed.methods.base import Batch, Learner
from benchmarks import common
from benchmarks.gpu import compare
from benchmarks.gpu.call import Failed, Part, Task, used_mib

GRAPHS = "bayesfed.engine.executors.graphs"
# Largest difference between graphs and eager after two rounds. Batches that are filled up are summed in another order.
BOUNDS = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 2e-2, "bf16": 2e-2}


def names(task: Task) -> tuple[str, ...]:
    """The methods to compare."""
    return task.scale.methods or tuple(methods.names())


def cases(task: Task) -> list[tuple[str, str]]:
    """Method and networks of the paper's rounds."""
    return [case for case in (("hbfl", "mixed"), ("fedavg", "cnn2")) if case[0] in names(task)]


def recorded(task: Task) -> None:
    """Recorded steps equal the same steps unrecorded to the last bit, and eager ones to rounding."""
    for name in names(task):
        for precision in BOUNDS if name in ("hbfl", "fedavg") else ("fp32", "bf16"):
            if precision not in ("fp64", *task.scale.precisions):
                continue
            of = compare.small(name, compare.compute(task.device, precision), task.scale.few)
            found = compare.play(of, "graphs", 2, task.in_time)
            with mock.patch(f"{GRAPHS}.Recorder.record", lambda recorder, step: step):
                unrecorded = compare.play(of, "graphs", 2, task.in_time)
            eager = compare.play(of, "eager", 2, task.in_time)
            equal = compare.same(found, unrecorded)
            apart = compare.difference(compare.tensors(found), compare.tensors(eager))
            task.check(
                f"{name} {precision}", equal and apart <= BOUNDS[precision], equals_unrecorded=equal,
                difference_to_eager=apart, bound=BOUNDS[precision],
            )  # fmt: skip


def lanes(task: Task) -> None:
    """One lane equals ten to the last bit, at the paper's number of images."""
    images = common.random_images(*task.scale.many)
    for method, model in cases(task):
        of = compare.paper_run(method, model, 0.05, images, compare.compute(task.device, "fp32"), epochs=1)
        one, ten = (compare.play(of, "graphs", 1, task.in_time, lanes) for lanes in (1, 10))
        task.check(f"{method} {model}", compare.same(one, ten))


def noise(task: Task) -> None:
    """The GPU equals the CPU in float64, HBFL with noise that is given to both."""
    images = (task.scale.few[0] // 4, task.scale.few[1] // 4) if task.scale.few[0] > 1000 else task.scale.few
    for name in names(task):
        runs = []
        for device in ("cpu", task.device):
            random = np.random.default_rng(0)

            def given(learner: Learner, like: Tensor, random: np.random.Generator = random) -> Tensor:
                return torch.from_numpy(random.standard_normal(like.shape)).to(like)

            of = compare.small(name, compare.compute(device, "fp64"), images)
            with mock.patch.object(Learner, "noise", given):  # the same in the order of calls, which eager keeps
                runs.append(compare.tensors(compare.play(of, "eager", 2, task.in_time)))
        apart = compare.difference(runs[1], runs[0])
        task.check(name, apart <= BOUNDS["fp64"], difference=apart, bound=BOUNDS["fp64"])


def eviction(task: Task) -> None:
    """A lane that must let recordings go for others computes the same, to the last bit."""
    of = compare.small("hbfl", compare.compute(task.device, "fp32"), task.scale.few)
    whole = compare.play(of, "graphs", 2, task.in_time)
    with mock.patch(f"{GRAPHS}.KINDS", 1):
        task.check("hbfl", compare.same(compare.play(of, "graphs", 2, task.in_time, lanes=2), whole))


def resume(task: Task) -> None:
    """A training that SIGTERM stops, and that is started again, equals one that was left alone."""
    found = dataset(task.data)
    run = {
        "dataset": found, "partition": {"alpha": 1.0, "clients": 4}, "method": {"name": "hbfl"}, "seed": 0,
        "models": {"global": "lenet5", "local": ["mlp", "lenet5", "mlp", "lenet5"]}, "batch_size": 128,
        "rounds": task.scale.resumed_rounds, "local_epochs": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.yaml")
        file.write_text(yaml.safe_dump(run))

        def start(out: Path) -> subprocess.Popen[bytes]:
            options = ["--out", str(out), "--data", str(task.data), "--device", task.device]
            return subprocess.Popen([sys.executable, "-m", "bayesfed", "train", str(file), *options])

        whole, parts = Path(folder, "whole"), Path(folder, "parts")
        finish(start(whole), task)
        first = start(parts)
        while first.poll() is None and not rounds_done(parts / "run.log"):
            task.in_time()
            time.sleep(0.01)
        first.send_signal(signal.SIGTERM)
        stopped = first.wait() == 1 and not (parts / "summary.json").exists()
        where = rounds_done(parts / "run.log")
        finish(start(parts), task)
        equal = stored(whole) == stored(parts)
        task.check(f"hbfl on {found}", stopped and equal, stopped=stopped, after_round=where, equal=equal)


def dataset(data: Path | None) -> str:
    """A dataset of the folder, CIFAR-10 best; raises InputError where there is none."""
    for name in SOURCES:
        if data and (data / name / "dataset.json").exists():
            return name
    raise InputError(f"--data {data}: smoke needs a folder with a dataset, digits will do; see `bayesfed fetch`")


def finish(trainer: "subprocess.Popen[bytes]", task: Task) -> None:
    """Wait for a training; raises Failed where it fails."""
    while trainer.poll() is None:
        task.in_time()
        time.sleep(0.05)
    if trainer.returncode:
        raise Failed(f"{' '.join(map(str, trainer.args))}: exit code {trainer.returncode}")  # type: ignore[arg-type]


def rounds_done(log: Path) -> int:
    """The last round in a run's log."""
    lines = log.read_text().splitlines() if log.exists() else []
    return max([int(line.split()[1].partition("/")[0]) for line in lines if line.startswith("round ")], default=0)


def stored(out: Path) -> tuple[bytes, dict[str, bytes]]:
    """The metrics and the checkpoint's tensors of a run."""
    with safe_open(out / "checkpoint.safetensors", "np") as file:
        arrays = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return (out / "metrics.csv").read_bytes(), arrays


def rounds(task: Task) -> None:
    """Seconds a round of the paper, evaluation included, and the memory it takes."""
    images = common.random_images(*task.scale.many)
    for method, model in cases(task):
        for precision in task.scale.precisions:
            where = compare.compute(task.device, precision)
            of = compare.paper_run(method, model, 0.05, images, where, task.scale.epochs)
            of.check = task.in_time
            trainer, progress, took = Trainer(of, "graphs"), begin(of), list[float]()
            for _ in range(task.scale.short_rounds):
                started = time.perf_counter()
                progress = trainer.play(progress)
                took.append(time.perf_counter() - started)
            task.row(
                f"{method} {model} {precision}", first_round_seconds=took[0],
                round_seconds=statistics.median(took[1:]), gpu_mib_of_all=used_mib(),
            )  # fmt: skip


def kernels(task: Task) -> None:
    """Kernels of one mini-batch step of every method, by the profiler; on a CPU, operators that call no others."""
    for name in names(task):
        of = compare.small(name, compare.compute(task.device, "fp32"), task.scale.few)
        step = one_step(of)
        for _ in range(2):
            step()
        of.compute.synchronise()
        with compare.profiler(task.device) as profiled:
            step()
            of.compute.synchronise()
        every = [one.key for one in compare.events(profiled.function_events, task.device) if not one.cpu_children]
        what = "kernels" if task.device == "cuda" else "operators"
        copies = sum(key.startswith(("Memcpy", "Memset")) for key in every)
        task.check(name, len(every) > 0, **{what: len(every) - copies}, copies_and_fills=copies)


def one_step(of: Federation) -> Callable[[], None]:
    """A function that does one mini-batch step of the last client, whose networks are the largest."""
    method, client = of.method, of.clients - 1
    server, c = of.node(SERVER, 1), of.node(client, 1, 1)
    server.state = method.init_server(server)
    c.state = method.init_client(of.node(client, 0))
    c.state |= method.start(c, method.message(server, client))
    size = of.run.budget.batch_size
    chunk = next(Mixer(of, c).epoch(of.shards[client]))
    learner, phase, batch = c.learner(), method.phases(c)[0], Batch(chunk.x[:size], chunk.y[:size])
    return lambda: phase.step(learner, batch)


def parts(task: Task) -> list[Part]:
    """The parts in order; raises InputError at once where `resume` would find no data."""
    dataset(task.data)
    return [
        Part("recorded", recorded, 150),
        Part("lanes", lanes, 60),
        Part("noise", noise, 60),
        Part("eviction", eviction, 30),
        Part("resume", resume, 120, leases=False),
        Part("rounds", rounds, 120),
        Part("kernels", kernels, 60),
    ]
