"""`speed`: where the time of a round goes, and whole runs in rounds a second beside eager rounds and the floor."""

import contextlib
import functools
import gc
import itertools
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.data import store
from bayesfed.engine import device as devices
from bayesfed.engine import gpu_lease
from bayesfed.engine.executors import EXECUTORS, GraphExecutor, StackedExecutor
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.methods.steps import cross_entropy, grad, leaves
from bayesfed.models import Network, build, convolution, network
from benchmarks import common
from benchmarks.gpu import compare
from benchmarks.gpu.parts import FULL, Failed, OutOfTime, Part, Task, used_mib

# Whole runs, the most wanted first: method, networks, alpha, precision, whether a long one, and seconds at most.
RUNS = [
    ("hbfl", "mixed", 0.05, "fp32", True, 240), ("fedavg", "cnn2", 0.05, "fp32", True, 120),
    ("hbfl", "mixed", 100.0, "fp32", False, 60), ("fml", "mixed", 0.05, "fp32", False, 60),
    ("hbfl", "mixed", 0.05, "bf16", False, 60), ("fedavg", "cnn2", 0.05, "bf16", False, 60),
    ("fedprox", "cnn2", 0.05, "fp32", False, 60), ("abavg", "cnn2", 0.05, "fp32", False, 60),
    ("hbfl", "mixed", 0.05, "tf32", False, 60), ("fedavg", "cnn2", 0.05, "tf32", False, 60),
    ("fedavg", "cnn2", 100.0, "fp32", False, 60), ("fml", "mixed", 100.0, "fp32", False, 60),
]  # fmt: skip
WARM = 3  # recorded rounds after which all is recorded
CALLS = 20  # between two events of a GPU


def seconds(work: Callable[[], Any], device: str) -> float:
    """Seconds of one call, the median; on a GPU by events around many, since one alone is over before the next is there."""
    work()
    values = []
    for _ in range(10 if device == "cuda" else 2):
        if device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(CALLS):
                work()
            end.record()
            torch.cuda.synchronize()
            values.append(start.elapsed_time(end) / 1e3 / CALLS)
        else:
            started = time.perf_counter()
            work()
            values.append(time.perf_counter() - started)
    return statistics.median(values)


def ceilings(task: Task) -> None:
    """Measure what the device does at best: products in each precision, and copies (read plus write)."""
    side = 8192 if task.device == "cuda" else 256
    for precision in task.scale.precisions:
        devices.configure(task.device, precision)
        a, b = (torch.randn(side, side, device=task.device, dtype=devices.PRECISIONS[precision]) for _ in range(2))
        rate = 2 * side**3 / seconds(lambda a=a, b=b: a @ b, task.device) / 1e12
        task.row(f"products {precision}", tera_operations_per_second=rate)
    x = torch.randn(side * side * 4, device=task.device)
    y = torch.empty_like(x)
    rate = 2 * x.numel() * 4 / seconds(lambda: y.copy_(x), task.device) / 1e9
    task.row("copies", gigabytes_per_second=rate)


def layouts(task: Task) -> None:
    """Measure a training step of CNN2 on a batch of the paper, with images and weights channels last or channels
    first.
    """
    for precision in task.scale.precisions:
        where = compare.compute(task.device, precision)
        cnn2 = build("cnn2", 10, 3, 32)
        theta = torch.randn(cnn2.parameters, device=task.device) / 50
        images = torch.randn(128, 3, 32, 32, device=task.device, dtype=where.cast)
        y = torch.zeros(128, dtype=torch.int64, device=task.device)
        for name, layout in ("NHWC", torch.channels_last), ("NCHW", torch.contiguous_format):
            step = training_step(cnn2, theta, images.contiguous(memory_format=layout), y)
            forced = mock.patch.object(network, "layout_for", lambda *of, layout=layout: layout)
            with forced, mock.patch.object(convolution, "OWN_WAYS", set[str]()):  # also where this is tried on a CPU
                took = seconds(as_timed(step, task), task.device)
            task.row(f"cnn2 {precision} {name}", microseconds_a_step=1e6 * took)


def training_step(model: Network, theta: Tensor, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Do a forward and a backward pass."""

    def step() -> None:
        (leaf,) = leaves(theta)
        grad(cross_entropy(model(leaf, x), y).mean(), leaf)

    return step


FUSED = ("cnn1", "cnn2")  # networks whose convolutions are tried; LeNet5 has those of CNN1


def convolutions(name: str) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
    """Return a network's convolutions on a batch of CIFAR-10: what each is called, the shapes of its images and
    weights, its pooling.
    """
    side, channels = 32, 3
    for number, layer in enumerate(build(name, 10, channels, side).layers, 1):
        if isinstance(layer, network.Conv):
            yield (
                f"{name} {number}",
                (128, channels, side, side),
                (layer.out, channels, layer.kernel, layer.kernel),
                layer.pool,
            )
            side, channels = (side - layer.kernel + 1) // layer.pool, layer.out


def pooled(x: Tensor, pool: int) -> Tensor:
    """Return the maxima, found as for a gradient, over windows of that size."""
    return F.max_pool2d(x, pool, return_indices=True)[0] if pool > 1 else x


def fused(task: Task) -> None:
    """Measure each convolution with its bias, ReLU and pooling: the first three in cuDNN's one call and apart, where
    ReLU comes last. Microseconds, how far they lie apart, whether what lay in the memory of the result shows (cuDNN is
    handed that memory as an addend times 0, and 0 NaN is NaN), whether it gives the same bits again (PyTorch asks
    cuDNN for no deterministic algorithm there), and whether a NaN in an image is still one behind its ReLU.
    """
    for precision in task.scale.precisions:
        where = compare.compute(task.device, precision)
        layout = network.layout_for(where.device, where.cast) or torch.contiguous_format
        for name, *shapes, pool in (one for of in FUSED for one in convolutions(of)):
            x, weight = (
                torch.randn(shape, device=task.device, dtype=where.cast).contiguous(memory_format=layout)
                for shape in shapes
            )
            bias = torch.randn(len(weight), device=task.device, dtype=where.cast)

            def apart(x: Tensor = x, weight: Tensor = weight, bias: Tensor = bias, pool: int = pool) -> Tensor:
                return pooled(F.conv2d(x, weight, bias), pool).relu_()

            def one_call(x: Tensor = x, weight: Tensor = weight, bias: Tensor = bias) -> Tensor:
                return torch.cudnn_convolution_relu(x, weight, bias, [1, 1], [0, 0], [1, 1], 1)

            def in_one(one_call: Callable[[], Tensor] = one_call, pool: int = pool) -> Tensor:
                return pooled(one_call(), pool)

            place = F.conv2d(x, weight, bias).fill_(math.nan).data_ptr()  # memory that the allocator gives out again
            try:
                first = one_call()
            except RuntimeError as error:  # cuDNN has it not for all shapes
                task.row(f"{name} {precision}", refused=str(error).partition("\n")[0])
                continue
            expected, found = apart().double(), in_one()
            broken = x.clone()
            broken[0, 0, 0, 0] = math.nan
            task.row(
                f"{name} {precision}", difference=float((found - expected).norm() / expected.norm()),
                finite=bool(first.isfinite().all()), in_memory_of_nan=first.data_ptr() == place,
                repeats_itself=all(torch.equal(one_call(), first) for _ in range(CALLS)),
                passes_nan=bool(one_call(broken).isnan().any()),
                microseconds_in_one=1e6 * seconds(as_timed(in_one, task), task.device),
                microseconds_apart=1e6 * seconds(as_timed(apart, task), task.device),
            )  # fmt: skip


def as_timed(step: Callable[[], Any], task: Task) -> Callable[[], Any]:
    """Return the step as it is timed: recorded on a GPU, so that launches do not count."""
    return recorded(step) if task.device == "cuda" else step


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Return the step as a CUDA graph, so that launches do not count."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def profile(method: str, model: str, precision: str, task: Task) -> None:
    """Measure what a round of local training is made of, recorded and eager: kernels, the time that they take
    together, and for how long any of them runs. Both without the profiler first, which leaves traces of its own.
    """
    images = common.random_images(max(task.scale.many[0] // 5, 100), task.scale.many[1])
    blocks: dict[str, Callable[[], None]] = {}
    walls: dict[str, float] = {}
    for executor in ("graphs", "eager"):
        of = compare.paper_run(method, model, 100.0, images, compare.compute(task.device, precision), epochs=1)
        of.check = task.in_time
        blocks[executor] = block = common.local_training(of, EXECUTORS[executor](of))
        block()
        started = time.perf_counter()
        block()
        walls[executor] = time.perf_counter() - started
    for executor, block in blocks.items():
        with compare.profiler(task.device) as profiled:
            block()
        every = compare.events(profiled.key_averages(), task.device)
        ran = [one for one in compare.events(profiled.function_events, task.device) if not one.cpu_children]
        spans = [(one.time_range.start / 1e6, one.time_range.end / 1e6) for one in ran]

        def spent(one: Any) -> float:
            return float(one.self_device_time_total if task.device == "cuda" else one.self_cpu_time_total) / 1e6

        total, busy = sum(end - start for start, end in spans), covered(spans)
        top = sorted(every, key=lambda one: -spent(one))[:25]
        task.row(
            f"{method} {model} {precision} {executor}", wall_seconds=walls[executor], kernel_seconds=total,
            busy_seconds=busy, at_once=total / busy if busy else None, kernels=sum(one.count for one in every),
            top=[(one.key[:90], one.count, round(spent(one), 5)) for one in top],
        )  # fmt: skip


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """For how long at least one of the spans (start, end) lasts."""
    total, until = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


# Forward passes of the travelling and of the own model in a step; a backward pass counts as two.
PASSES = {"fedavg": (3, 0), "fml": (3, 3), "hbfl": (4, 3)}
VECTORS = {"fedavg": 5, "fml": 10, "hbfl": 21}  # reads and writes of parameter-sized vectors a step cannot avoid


def work_of(of: Federation, rounds: int) -> dict[str, float]:
    """Return the operations and the bytes that no program avoids in so many rounds; with the ceilings they give a
    floor.
    """
    if of.method.name not in PASSES:
        return {}
    travelling, own = PASSES[of.method.name]
    share = [len(of.shards[k].train) for k in range(of.clients)]
    epochs = of.run.budget.local_epochs * rounds
    work = sum(
        n * 2 * (travelling * nets["global"].operations + (own * nets["local"].operations if "local" in nets else 0))
        for n, nets in zip(share, of.networks, strict=True)
    )
    steps = sum(-(-n // of.run.budget.batch_size) for n in share)
    moved = sum(share) * 3072 + steps * VECTORS[of.method.name] * of.networks[0]["global"].parameters * 4
    return {"tera_operations": epochs * work / 1e12, "gigabytes": epochs * moved / 1e9}


def real_or_noise(task: Task) -> tuple[store.Dataset, bool]:
    """CIFAR-10 where the data folder has it and the call is no small one, else noise; and whether it is real."""
    if task.data and (task.data / "cifar10" / "dataset.json").exists() and task.scale is FULL:
        return store.load("cifar10", task.data), True
    return common.random_images(*task.scale.many), False


def whole_run(method: str, model: str, alpha: float, precision: str, long: bool, task: Task) -> None:
    """Measure rounds of a cell at the paper's size, each evaluated, beside an eager round in fp32; a row also if cut
    short.

    The eager round is played, and memory read, when a few recorded rounds are over: the deadline may cut the rest.
    """
    before = used_mib()
    images, real = real_or_noise(task)
    of = compare.paper_run(method, model, alpha, images, compare.compute(task.device, precision), task.scale.epochs)
    if task.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    of.check = task.in_time
    trainer, progress, took = Trainer(of, "graphs"), begin(of), list[float]()
    wanted = task.scale.rounds if long else task.scale.other_rounds
    eager_seconds, memory, over = None, dict[str, int | None](), False
    try:
        for number in range(1, wanted + 1):
            started = time.perf_counter()
            progress = trainer.play(progress)
            took.append(time.perf_counter() - started)
            if number == min(WARM, wanted):
                memory = memory_now(task, before)
                eager_seconds = eager_round(of, progress) if precision == "fp32" and alpha == 0.05 else None
    except OutOfTime:
        memory, over = memory or memory_now(task, before), True
    accuracy = [row.value for row in progress.history if (row.model, row.metric) == ("global", "test_accuracy")]
    typical = statistics.median(took[1:] or took) if took else None
    task.row(
        f"{method} {model} alpha {alpha:g} {precision}", rounds=len(took), of_rounds=wanted, seconds=sum(took),
        first_round_seconds=took[0] if took else None, round_seconds=typical, eager_round_seconds=eager_seconds,
        times_eager=eager_seconds / typical if eager_seconds and typical else None,
        real_images=real, best_accuracy=max(accuracy, default=None), last_accuracy=accuracy[-1] if accuracy else None,
        **memory, **work_of(of, len(took)),
    )  # fmt: skip
    if over:
        raise OutOfTime


def eager_round(of: Federation, progress: Progress) -> float:
    """Seconds of an eager round: the second, since the first finds out how each size of mini-batch is computed best."""
    eager, took = Trainer(of, "eager"), 0.0
    for _ in range(2):
        started = time.perf_counter()
        eager.play(progress)
        took = time.perf_counter() - started
    return took


def memory_now(task: Task, before: int | None) -> dict[str, int | None]:
    """Peak memory in MiB, by torch's allocator and by the device.

    The allocator counts tensors and the pools of recorded steps; the device also CUDA's context, libraries and the
    graphs themselves, and whatever other processes have done since `before`. This process gives nothing back to the
    device, so what it has taken there is its peak.
    """
    if task.device == "cpu":
        return {"resident_mib": common.peak_resident_mib()}
    after = used_mib()
    return {
        "allocator_mib": torch.cuda.max_memory_reserved() // 2**20,
        "device_mib": after - before if after is not None and before is not None else None,
    }


def lanes(task: Task) -> None:
    """Measure local training of HBFL by the number of lanes, in turns."""
    images = common.random_images(max(task.scale.many[0] // 5, 100), task.scale.many[1])
    for alpha in (100.0, 0.05):
        of = compare.paper_run("hbfl", "mixed", alpha, images, compare.compute(task.device, "fp32"), epochs=1)
        of.check = task.in_time
        # No more lanes in all than torch has streams, 32: the end of one's graphs would spoil another's on its stream.
        ways = {str(n): common.local_training(of, GraphExecutor(of, n)) for n in task.scale.lanes}
        for n, values in common.alternate(ways, 3 if task.device == "cuda" else 1).items():
            task.row(f"hbfl mixed alpha {alpha:g}, {n} lanes", seconds=statistics.median(values))
        ways.clear()
        gc.collect()


def ways(task: Task) -> None:
    """Measure local training with clients by themselves (lanes), stacked, compiled, and both, in turns, at a mild and a
    harsh alpha.
    """
    images = common.random_images(max(task.scale.many[0] // 5, 100), task.scale.many[1])
    cases = [case for case in compare.CASES if case[0] in task.scale.timed]
    # The most wanted first: torch's compiler takes minutes.
    for precision in [one for one in ("bf16", "fp32") if one in task.scale.precisions]:
        for alpha, (method, model) in itertools.product((100.0, 0.05), cases):
            of = compare.paper_run(method, model, alpha, images, compare.compute(task.device, precision), epochs=1)
            of.check = task.in_time
            every = {"lanes": GraphExecutor(of), "stacked": StackedExecutor(of)}
            if task.scale.compiles:
                every["compiled"] = StackedExecutor(of, together=1, compiled=True)
                every["both"] = StackedExecutor(of, compiled=True)
            blocks = {name: common.local_training(of, executor) for name, executor in every.items()}
            for name, values in common.alternate(blocks, 5 if task.device == "cuda" else 1).items():
                seconds_each = statistics.median(values)
                task.row(f"{method} {model} alpha {alpha:g} {precision}, {name}", seconds=seconds_each)
            every.clear()
            blocks.clear()
            gc.collect()


SHARED_ROUNDS = 2  # of every job, behind a first one


def jobs(task: Task) -> None:
    """Measure rounds of HBFL by the number of jobs that share a GPU, in turns of its time, or side by side where MPS
    has been started: seconds in which all have done a round each.
    """
    if task.device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu_lease.visible_devices()[0]
    how = "under MPS" if mps_runs() else "in turns"
    forks = multiprocessing.get_context("fork")
    for count in task.scale.jobs:
        ready, (theirs, ours) = forks.Barrier(count), forks.Pipe(duplex=False)
        children = [forks.Process(target=one_job, args=(task, count, ready, ours)) for _ in range(count)]
        for child in children:
            child.start()
        while any(child.exitcode is None for child in children):
            if any(child.exitcode for child in children):
                ready.abort()  # one is dead, and the others are not to wait for it
            time.sleep(0.1)
        if any(child.exitcode for child in children):
            task.in_time()
            raise Failed(f"{count} jobs {how}: exit codes {[child.exitcode for child in children]}")
        took = max(theirs.recv() for _ in children)
        task.row(f"hbfl mixed, {count} jobs {how}", seconds_a_round_of_each=took, rounds_a_second=count / took)


def mps_runs() -> bool:
    """Return whether a daemon of NVIDIA's Multi-Process Service runs here; the name of a process is cut at 15 letters."""
    names = set[str]()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            names.add(path.read_text().strip())
    return "nvidia-cuda-mps" in names


def one_job(task: Task, count: int, ready: Barrier, took: Connection) -> None:
    """Do a job's rounds, begun when all are ready for them; sends the mean of their seconds."""
    with gpu_lease.lease(task.device, slots=count):
        where = devices.configure(task.device, "fp32", count)
        images = common.random_images(*task.scale.many)
        of = compare.paper_run("hbfl", "mixed", 0.05, images, where, task.scale.epochs)
        of.check = task.in_time
        trainer, progress = Trainer(of, "graphs"), begin(of)
        progress = trainer.play(progress)
        ready.wait()
        started = time.perf_counter()
        for _ in range(SHARED_ROUNDS):
            progress = trainer.play(progress)
        took.send((time.perf_counter() - started) / SHARED_ROUNDS)


def parts(task: Task) -> list[Part]:
    """Return the parts, the most wanted first."""

    def wanted(method: str, precision: str) -> bool:
        return precision in task.scale.precisions and method in task.scale.timed

    runs = [
        Part(
            f"run-{method}-{alpha:g}-{precision}",
            functools.partial(whole_run, method, model, alpha, precision, long),
            most,
        )
        for method, model, alpha, precision, long, most in RUNS
        if wanted(method, precision)
    ]
    profiles = [
        Part(f"profile-{method}-{precision}", functools.partial(profile, method, model, precision), 40)
        for method, model in (("hbfl", "mixed"), ("fedavg", "cnn2"))
        for precision in ("fp32", "bf16")
        if wanted(method, precision)
    ]
    return [
        Part("ceilings", ceilings, 30), Part("layouts", layouts, 30), *[Part("fused", fused, 30)] * (task.device == "cuda"),
        *profiles, *runs[:4], Part("jobs", jobs, 150, leases=False), Part("lanes", lanes, 60), *runs[4:],
        Part("ways", ways, 540),
    ]  # fmt: skip
