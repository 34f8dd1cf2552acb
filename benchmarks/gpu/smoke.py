"""`smoke`: whether the GPU path does what it should: HBFL and FedAvg first, then every other method by itself."""

import functools
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import yaml
from safetensors import safe_open
from torch import Tensor

from bayesfed.core.errors import InputError
from bayesfed.data.sources import SOURCES
from bayesfed.data.store import Dataset
from bayesfed.engine.batches import Mixer
from bayesfed.engine.executors import GraphExecutor, StackedExecutor
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Trainer, begin
from bayesfed.engine.session import free_gpu_memory
from bayesfed.methods.node import Batch, Learner
from benchmarks import common
from benchmarks.gpu import compare
from benchmarks.gpu.parts import FULL, Failed, Part, Task, rounds_done, used_mib

WORKER = "bayesfed.engine.executors.cuda_worker"
# Largest difference after a run's few rounds in fp64 of what is summed in another order, as batches that are filled up are.
# In other precisions it is written down and not judged: Adam makes of a gradient that is mere rounding a whole step.
BOUND = 1e-9
FIRST = ("hbfl", "fedavg")  # methods without which nothing else is worth asking
STEPS = 10  # under the profiler
MODULE = "pfedbayes_vgg_bn"


def recorded(task: Task, names: Sequence[str] = FIRST, network: str | None = None) -> None:
    """Check that recorded steps equal the same steps unrecorded to the last bit, and in fp64 eager ones to rounding."""
    for name in names:
        for precision in ("fp64", *task.scale.precisions):
            of = compare.small(name, compare.compute(task.device, precision), task.scale.few, network)
            found = compare.play(of, "graphs", task.scale.compared, task.in_time)
            with mock.patch(f"{WORKER}.Recorder.record", lambda recorder, step: step):
                unrecorded = compare.play(of, "graphs", task.scale.compared, task.in_time)
            eager = compare.play(of, "eager", task.scale.compared, task.in_time)
            equal = compare.same(found, unrecorded)
            apart = compare.difference(compare.tensors(found), compare.tensors(eager))
            holds = equal and (apart <= BOUND or precision != "fp64")
            values = {"equals_unrecorded": equal, "difference_to_eager": apart}
            task.check(f"{name} {precision}", holds, gate=precision == "fp32", **values)


def lanes(task: Task) -> None:
    """Check that one worker equals ten to the last bit, at the paper's number of images."""
    images = common.random_images(*task.scale.many)
    for method, model in compare.CASES:
        of = compare.paper_run(method, model, 0.05, images, compare.compute(task.device, "fp32"), epochs=1)
        one, ten = (compare.play(of, GraphExecutor(of, count), 1, task.in_time) for count in (1, 10))
        task.check(f"{method} {model}", compare.same(one, ten))


def noise(task: Task, names: Sequence[str] = FIRST, network: str | None = None) -> None:
    """Check that the GPU equals the CPU in float64, HBFL with noise that is given to both."""
    images = (task.scale.few[0] // 4, task.scale.few[1] // 4) if task.scale.few[0] > 1000 else task.scale.few
    for name in names:
        runs = []
        for device in ("cpu", task.device):
            random = np.random.default_rng(0)

            def given(learner: Learner, like: Tensor, random: np.random.Generator = random) -> Tensor:
                return torch.from_numpy(random.standard_normal(like.shape)).to(like)

            of = compare.small(name, compare.compute(device, "fp64"), images, network)
            with mock.patch.object(Learner, "noise", given):  # the same in the order of calls, which eager keeps
                runs.append(compare.tensors(compare.play(of, "eager", task.scale.compared, task.in_time)))
        apart = compare.difference(runs[1], runs[0])
        task.check(name, apart <= BOUND, difference=apart, bound=BOUND)


def eviction(task: Task) -> None:
    """Check that a worker that must let recordings go for others computes the same, to the last bit."""
    of = compare.small("hbfl", compare.compute(task.device, "fp32"), task.scale.few)
    whole = compare.play(of, "graphs", task.scale.compared, task.in_time)
    with mock.patch(f"{WORKER}.MOST_BUFFERS", 1):
        task.check(
            "hbfl", compare.same(compare.play(of, GraphExecutor(of, 2), task.scale.compared, task.in_time), whole)
        )


def resume(task: Task) -> None:
    """Check that a training that SIGTERM stops, and that is started again, equals one that was left alone."""
    found = dataset(task.data)
    run = {
        "dataset": found, "partition": {"alpha": 1.0, "clients": 4}, "method": {"name": "hbfl"}, "seed": 0,
        "models": {"global": "lenet5", "local": ["mlp", "lenet5", "mlp", "lenet5"]}, "batch_size": 128,
        "rounds": task.scale.resumed_rounds, "local_epochs": 1,
        "images": {} if task.scale is FULL else {"prepare": {"resize": 16}},
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
    """Return a dataset of the folder, CIFAR-10 best; raises InputError where there is none."""
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


def stored(out: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return the metrics and the checkpoint's tensors of a run."""
    with safe_open(out / "checkpoint.safetensors", "np") as file:
        arrays = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return (out / "metrics.csv").read_bytes(), arrays


def rounds(task: Task) -> None:
    """Seconds a round of the paper, evaluation included, and the memory that is taken of the GPU after each case, by
    everyone."""
    images = common.random_images(*task.scale.many)
    for method, model in compare.CASES:
        for precision in task.scale.precisions:
            some_rounds(task, method, model, precision, images)
            free_gpu_memory()


def some_rounds(task: Task, method: str, model: str, precision: str, images: Dataset) -> None:
    """Write the row of a case."""
    of = compare.paper_run(method, model, 0.05, images, compare.compute(task.device, precision), task.scale.epochs)
    of.check = task.in_time
    trainer, progress, took = Trainer(of, "graphs"), begin(of), list[float]()
    for _ in range(task.scale.short_rounds):
        started = time.perf_counter()
        progress = trainer.play(progress)
        took.append(time.perf_counter() - started)
    task.row(
        f"{method} {model} {precision}", first_round_seconds=took[0], round_seconds=statistics.median(took[1:]),
        gpu_mib_of_all=used_mib(),
    )  # fmt: skip


def stacked(task: Task) -> None:
    """Check that clients whose networks are equal, stacked however uneven, are in fp64 to rounding what eager ones are; in
    other precisions it is written down, and with torch's compiler where that is tried.
    """
    for precision in ("fp64", *task.scale.precisions):
        of = compare.small("gaussian", compare.compute(task.device, precision), task.scale.few)
        eager = compare.play(of, "eager", task.scale.compared, task.in_time)
        for compiled in (False, True)[: 1 + task.scale.compiles]:
            with mock.patch("bayesfed.engine.executors.stacked.RAGGED", 0.0):
                executor = StackedExecutor(of, compiled=compiled)
                found = compare.play(of, executor, task.scale.compared, task.in_time)
            apart = compare.difference(compare.tensors(found), compare.tensors(eager))
            # A CPU has convolutions in oneDNN's memory, which is not traced.
            stacks = task.device == "cpu" or None not in executor.steps.values()
            holds = stacks and (apart <= BOUND or precision != "fp64")
            task.check(f"gaussian {precision}{' compiled' * compiled}", holds, difference_to_eager=apart)


def kernels(task: Task, names: Sequence[str] = FIRST) -> None:
    """Kernels of one mini-batch step, by the profiler, the mean of STEPS: of a session it may lose the first few. On a CPU,
    operators that call no others."""
    for name in names:
        of = compare.small(name, compare.compute(task.device, "fp32"), task.scale.few)
        step = one_step(of)
        for _ in range(2):
            step()
        of.compute.synchronise()
        with compare.profiler(task.device) as profiled:
            for _ in range(STEPS):
                step()
            of.compute.synchronise()
        every = [one.key for one in compare.events(profiled.function_events, task.device) if not one.cpu_children]
        what = "kernels" if task.device == "cuda" else "operators"
        copies = sum(key.startswith(("Memcpy", "Memset")) for key in every)
        found = {what: round((len(every) - copies) / STEPS), "copies_and_fills": round(copies / STEPS)}
        task.check(name, len(every) > 0, **found)


def one_step(of: Federation) -> Callable[[], None]:
    """Return a function that does one mini-batch step of the last client, whose networks are the largest."""
    method, client = of.method, of.clients - 1
    server, c = of.node(SERVER, 1), of.node(client, 1, 1)
    server.state = method.init_server(server)
    c.state = method.init_client(of.node(client, 0))
    c.state |= method.start(c, method.message(server, client))
    size = of.run.budget.batch_size
    chunk = next(Mixer(of, c).epoch(of.shards[client]))
    learner, phase = c.learner(), method.phases(c)[0]
    batch = Batch(chunk.x[:size], chunk.y[:size], None, chunk.index[:size] if phase.indexed else None)
    return lambda: phase.step(learner, batch)


def other_method(name: str, task: Task) -> None:
    """Check one of the other methods: a recording that fails may leave its process unable to make another."""
    for check in (recorded, noise, kernels):
        check(task, [name])


def modules(task: Task) -> None:
    """Check a network that is a PyTorch module, with batch normalisation, in place of a chain of layers."""
    for check in (recorded, noise):
        check(task, ["fedavg"], MODULE)


def parts(task: Task) -> list[Part]:
    """Return the parts in order; raises InputError at once where `resume` would find no data."""
    dataset(task.data)
    return [
        Part("recorded", recorded, 90, gate=True),
        Part("lanes", lanes, 60, gate=True),
        Part("noise", noise, 60, gate=True),
        Part("eviction", eviction, 30, gate=True),
        Part("resume", resume, 120, leases=False, gate=True),
        Part("rounds", rounds, 120),
        Part("kernels", kernels, 30),
        Part("modules", modules, 45),
        Part("stacked", stacked, 120),
        *(Part(f"method-{name}", functools.partial(other_method, name), 45) for name in task.scale.others),
    ]
