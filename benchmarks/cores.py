"""A machine's cores: one job that takes all of them, or a job on each? Small networks too, beside the barest loop.

    python -m benchmarks.cores [--device cpu] [--precision ...]

Local training of FedAvg, images a second of the whole machine: one process with all threads, or a process with one
thread for each, all of them at once. CNN2 and the MLP on ten clients of 256 images in CIFAR-10's shape, augmented;
`784-...` are fully connected networks on ten clients of 1000 images in MNIST's shape, not augmented. The barest loop is
that of benchmarks.training; images without augmentation it normalises once, beforehand. Processes of all four kinds take
turns. Writes benchmarks/cores-cpu.csv.
"""

import itertools
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bayesfed.engine import device as devices
from bayesfed.engine.executors import DEFAULT, EXECUTORS
from bayesfed.models.network import Chain, Linear, Network
from benchmarks import common, training

CASES = [("cnn2", 128), ("mlp", 32), ("784-200-200", 32), ("784-100", 100), ("784-100", 32)]
CLIENTS, IMAGES, SMALL_IMAGES = 10, 2560, 10_000
TURNS = 5


def widths(model: str) -> list[int]:
    """Return the hidden layers of a small network, by its name."""
    return [int(width) for width in model.split("-")[1:]]


def engine(model: str, size: int, precision: str) -> Callable[[], None]:
    """Return a round's local training by the engine."""
    if model in training.MODULES:
        data = common.random_images(IMAGES, 1000)
        return training.engine(("fedavg", model, size), data, precision, "cpu", DEFAULT["cpu"])[0]
    data = common.random_images(SMALL_IMAGES, 1000, "mnist", 28)
    compute = devices.configure("cpu", precision)
    of = common.federation("fedavg", {"global": "mlp"}, data, compute, batch_size=size)
    layers = (*map(Linear, widths(model)), Linear(10))
    of.networks = [{"global": Network(model, Chain(layers), (1, 28, 28))}] * of.clients
    return common.local_training(of, EXECUTORS[DEFAULT["cpu"]](of))


def bare(model: str, size: int, precision: str) -> Callable[[], None]:
    """Return the same by the barest loop."""
    if model in training.MODULES:
        data = common.random_images(IMAGES, 1000)
        sizes = [IMAGES // CLIENTS] * CLIENTS
        return training.bare("fedavg", model, [model] * CLIENTS, data, size, precision, "cpu", sizes)
    data = common.random_images(SMALL_IMAGES, 1000, "mnist", 28)
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.source.mean, data.source.std))
    images = ((torch.from_numpy(data.train_images).float() / 255 - mean) / std).flatten(1)
    labels = torch.from_numpy(data.train_labels)
    loops = []
    for _ in range(CLIENTS):
        sides = [784, *widths(model)]
        hidden = [layer for pair in itertools.pairwise(sides) for layer in (nn.Linear(*pair), nn.ReLU())]
        net = nn.Sequential(*hidden, nn.Linear(sides[-1], 10))
        loops.append((net, training.sgd(net)))

    def block() -> None:
        for net, sgd in loops:
            for indices in torch.randperm(len(labels))[: SMALL_IMAGES // CLIENTS].split(size):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    sgd.zero_grad()
                    F.cross_entropy(net(images[indices]), labels[indices]).backward()
                    sgd.step()

    return block


def serve(pipe: Connection, make: Callable[..., Callable[[], None]], case: tuple[str, int, str], threads: int) -> None:
    """Do a process's work: a round each time it is asked, until it is told to end."""
    torch.set_num_threads(threads)
    block = make(*case)
    while pipe.recv():
        block()
        pipe.send(True)


def processes(make: Callable[..., Callable[[], None]], case: tuple[str, int, str], count: int,
              threads: int) -> tuple[Callable[[], None], Callable[[], None]]:  # fmt: skip
    """Return a function that has so many processes do a round each, at once, and one that ends them."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    for _ in range(count):
        here, there = context.Pipe()
        context.Process(target=serve, args=(there, make, case, threads), daemon=True).start()
        pipes.append(here)

    def ask(go: bool) -> None:
        for pipe in pipes:
            pipe.send(go)

    def block() -> None:
        ask(True)
        for pipe in pipes:
            pipe.recv()

    return block, lambda: ask(False)


def measure(model: str, size: int, precision: str) -> dict[str, Any]:
    """Measure one row."""
    cores = torch.get_num_threads()
    case = (model, size, precision)
    kinds = {
        f"{name}_{way}": (make, count, threads)
        for name, make in (("engine", engine), ("bare", bare))
        for way, count, threads in (("one_job", 1, cores), ("job_a_core", cores, 1))
    }
    running = {kind: processes(make, case, count, threads) for kind, (make, count, threads) in kinds.items()}
    seconds = common.alternate({kind: block for kind, (block, _) in running.items()}, TURNS)
    for _, end in running.values():
        end()
    images = IMAGES if model in training.MODULES else SMALL_IMAGES
    speed = {kind: kinds[kind][1] * images / statistics.median(values) for kind, values in seconds.items()}

    def best(name: str) -> str:
        return max((f"{name}_one_job", f"{name}_job_a_core"), key=lambda kind: speed[kind])

    def ratio(fast: str, slow: str) -> str:
        jobs = kinds[fast][1] / kinds[slow][1]
        return f"{jobs * common.median_ratio(seconds[slow], seconds[fast]):.2f}"

    return {
        "model": model, "batch_size": size, "precision": precision,
        **{f"{kind}_images_per_second": round(value) for kind, value in speed.items()},
        "job_a_core_over_one_job": ratio("engine_job_a_core", "engine_one_job"),
        "engine_over_bare": ratio(best("engine"), best("bare")),
    } | common.machine("cpu")  # fmt: skip


def main(cases: Sequence[tuple[str, int]] = CASES) -> None:
    """Time every case and write the table."""
    args = common.parser(__doc__).parse_args()
    precision = devices.choose_precision(args.precision, "cpu")
    rows = []
    for model, size in cases:
        rows.append(measure(model, size, precision))
        common.show(rows[-1])
    common.write(common.HERE / "cores-cpu.csv", rows)


if __name__ == "__main__":
    main()
