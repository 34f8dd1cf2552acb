"""Samples per second of local training: the engine beside the barest loop, alternating in one process.

    python -m benchmarks.training [--device auto|cpu|cuda] [--precision auto|fp32|tf32|bf16] [--before CHECKOUT]

Ten clients of 512 images (5000 on a GPU) in CIFAR-10's shape, one local epoch, augmentation included. On a CPU the bare
loop may choose fp32 or the engine's precision, one thread or all, whichever is fastest there. With `--before` the engine
of another version of the project takes turns too. Only ratios carry over to another machine, but GPU times may be quoted.
Writes benchmarks/training-<device>.csv, and leaves other hardware's rows.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bayesfed.data.store import Dataset
from bayesfed.engine import device as devices
from bayesfed.engine.executors import DEFAULT, EXECUTORS
from benchmarks import common

CASES = [
    ("fedavg", "cnn2", 128),
    ("fml", "cnn2", 128),
    ("hbfl", "cnn2", 128),
    ("fml", "mixed", 128),
    ("hbfl", "mixed", 128),
    ("fedavg", "mlp", 32),
    ("hbfl", "mlp", 32),
]
IMAGES = {"cpu": 5120, "cuda": 50_000}
PAPER_SAMPLES = 250_000  # of a round of the paper: 50 000 images, five local epochs
TURNS = 7
PRODUCTS = {
    "aten::mkldnn_convolution",
    "aten::convolution_backward",
    "aten::mm",
    "aten::addmm",
    "aten::_addmm_activation",
}


# The plainest loops for the same work: a module, torch.optim, one client after another, nothing else. They get what a
# careful person would give them: images as one tensor, whole-batch crop and flip, channels_last, bf16 autocast, fused
# optimisers.


def cnn2(classes: int) -> nn.Module:
    """CNN2 of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def mlp(classes: int) -> nn.Module:
    """Return the MLP of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, classes)
    )


def lenet5(classes: int) -> nn.Module:
    """LeNet5 of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def cnn1(classes: int) -> nn.Module:
    """CNN1 of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip


MODULES = {"cnn2": cnn2, "mlp": mlp, "lenet5": lenet5, "cnn1": cnn1}


def augment(pixels: torch.Tensor, indices: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Random crop by 4 and flip of uint8 images (N, 3, 40, 40), normalised, channels_last."""
    device = pixels.device
    x = pixels[indices]
    top, left = torch.randint(0, 9, (2, len(indices), 1), device=device)
    steps = torch.arange(32, device=device)
    rows, columns = top + steps, left + steps
    columns = torch.where(torch.rand(len(indices), 1, device=device) < 0.5, columns, columns.flip(1))
    batch = torch.arange(len(indices), device=device)[:, None, None]
    x = x.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return (x.float() / 255 - mean) / std


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    """Return the SGD of the HBFL paper."""
    return torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4, fused=True)


class FedAvgLoop:
    """One optimiser step of a client of FedAvg."""

    def __init__(self, model: str, local: str, classes: int, device: str) -> None:
        self.net = MODULES[model](classes).to(device)
        self.sgd = sgd(self.net)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Forward, backward, SGD."""
        self.sgd.zero_grad()
        F.cross_entropy(self.net(x), y).backward()
        self.sgd.step()


class FMLLoop:
    """One step of both models of a client of FML."""

    def __init__(self, model: str, local: str, classes: int, device: str) -> None:
        self.meme, self.local = MODULES[model](classes).to(device), MODULES[local](classes).to(device)
        self.optimisers = [sgd(self.meme), sgd(self.local)]

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Two forward passes, two losses, two backward passes, two SGD steps."""
        meme, local = self.meme(x), self.local(x)
        for net, student, teacher in ((0, meme, local), (1, local, meme)):
            kl = F.kl_div(student.log_softmax(-1), teacher.detach().softmax(-1), reduction="batchmean")
            self.optimisers[net].zero_grad()
            (0.5 * F.cross_entropy(student, y) + 0.5 * kl).backward()
            self.optimisers[net].step()


class HBFLLoop:
    """One step of a client of HBFL: noisy meme, Adam on mean and rho, then the local model against the mean."""

    def __init__(self, model: str, local: str, classes: int, device: str) -> None:
        self.mean, self.local = MODULES[model](classes).to(device), MODULES[local](classes).to(device)
        self.rho = {name: torch.full_like(p, -5.0, requires_grad=True) for name, p in self.mean.named_parameters()}
        self.adam = torch.optim.Adam(
            [
                {"params": list(self.mean.parameters()), "weight_decay": 5e-4},
                {"params": list(self.rho.values()), "weight_decay": 0.0},
            ],
            0.001,
            fused=True,
        )
        self.sgd = sgd(self.local)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Three forward and two backward passes."""
        sigma = {name: F.softplus(rho) for name, rho in self.rho.items()}
        noisy = {name: p + sigma[name] * torch.randn_like(p) for name, p in self.mean.named_parameters()}
        loss = F.cross_entropy(torch.func.functional_call(self.mean, noisy, (x,)), y)
        loss = loss - 1e-4 / 5000 * sum(s.log().sum() for s in sigma.values())
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        with torch.no_grad():
            teacher = self.mean(x).softmax(-1)
        local = self.local(x)
        kl = F.kl_div(local.log_softmax(-1), teacher, reduction="batchmean")
        self.sgd.zero_grad()
        (0.5 * F.cross_entropy(local, y) + 0.5 * kl).backward()
        self.sgd.step()


LOOPS = {"fedavg": FedAvgLoop, "fml": FMLLoop, "hbfl": HBFLLoop}


def bare(method: str, model: str, local: list[str], data: Dataset, size: int, precision: str, device: str,
             clients: list[int]) -> Callable[[], None]:  # fmt: skip
    """Return a function that trains clients with so many images each, one after another, for an epoch."""
    loops = [LOOPS[method](model, own, 10, device) for own in local]
    pixels = F.pad(torch.from_numpy(data.train_images), (4, 4, 4, 4)).to(device)
    labels = torch.from_numpy(data.train_labels).to(device)
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (data.source.mean, data.source.std))

    def block() -> None:
        for loop, count in zip(loops, clients, strict=True):
            order = torch.randperm(len(labels), device=device)[:count]
            for indices in order.split(size):
                with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                    loop.step(augment(pixels, indices, mean, std), labels[indices])
        if device == "cuda":
            torch.cuda.synchronize()

    return block


def engine(case: tuple[str, str, int], data: Dataset, precision: str, device: str,
           executor: str) -> tuple[Callable[[], None], list[int]]:  # fmt: skip
    """Return a round's local training by an executor, and the images of each client."""
    method, model, size = case
    compute = devices.configure(device, precision)
    of = common.federation(method, common.models(model, method), data, compute, batch_size=size)
    block = common.local_training(of, EXECUTORS[executor](of))
    return block, [len(of.shards[k].train) for k in range(of.clients)]


EARLIER = """
import sys
from bayesfed.engine.executors import DEFAULT
from benchmarks import common, training
method, model, size, device, precision, threads, images = sys.argv[1:]
training.torch.set_num_threads(int(threads))
data = common.random_images(int(images), 1000)
block, _ = training.engine((method, model, int(size)), data, precision, device, DEFAULT[device])
for _ in sys.stdin:
    block()
    print(flush=True)
"""


def earlier(checkout: Path, case: tuple[str, str, int], device: str, precision: str) -> Callable[[], None]:
    """Do the same training by the engine of another checkout, in a process of its own that ends with this one."""
    paths = os.pathsep.join(map(str, (checkout / "src", checkout)))
    asked = [*case, device, precision, torch.get_num_threads(), IMAGES[device]]
    process = subprocess.Popen(
        [sys.executable, "-c", EARLIER, *map(str, asked)],
        env={**os.environ, "PYTHONPATH": paths}, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answer = process.stdin, process.stdout

    def block() -> None:
        ask.write("\n")
        ask.flush()
        if not answer.readline():
            raise RuntimeError(f"the engine of {checkout} has failed")

    return block


def measure(case: tuple[str, str, int], device: str, precision: str, before: Path | None = None) -> dict[str, Any]:
    """Measure one row."""
    method, model, size = case
    data = common.random_images(IMAGES[device], 1000)
    block, sizes = engine(case, data, precision, device, DEFAULT[device])
    loops = bare_ways(case, data, precision, device, sizes)
    contenders: dict[Any, Callable[[], None]] = {"engine": block, **loops}
    if before:
        contenders["before"] = earlier(before, case, device, precision)
    seconds = common.alternate(contenders, TURNS)
    bare_precision, bare_threads = best = min(loops, key=lambda way: statistics.median(seconds[way]))
    seconds["bare"] = seconds[best]
    speed = {name: sum(sizes) / statistics.median(values) for name, values in seconds.items()}
    row: dict[str, Any] = {
        "method": method, "model": model, "batch_size": size, "device": device, "precision": precision,
        "executor": DEFAULT[device], "bare_precision": bare_precision, "bare_threads": bare_threads,
        "bare_optimisers": "fused",
        "engine_samples_per_second": round(speed["engine"]), "bare_samples_per_second": round(speed["bare"]),
        "engine_over_bare": f"{common.median_ratio(seconds['bare'], seconds['engine']):.2f}",
    }  # fmt: skip
    if before:
        name = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=before, capture_output=True, text=True
        ).stdout
        row |= {
            "before": name.strip(), "before_over_bare": f"{common.median_ratio(seconds['bare'], seconds['before']):.2f}",
            "engine_over_before": f"{common.median_ratio(seconds['before'], seconds['engine']):.2f}",
        }  # fmt: skip
    row["paper_round_seconds"] = f"{PAPER_SAMPLES / speed['engine']:.2f}"
    if device == "cpu":
        row["engine_products_percent"] = products_percent(case, data, precision)
    row["engine_peak_memory_mib"] = peak_memory(case, device, precision)
    return row | common.machine(device)


def bare_ways(case: tuple[str, str, int], data: Dataset, precision: str, device: str,
              sizes: list[int]) -> dict[tuple[str, int], Callable[[], None]]:  # fmt: skip
    """Run the bare loop in each precision and, on a CPU, with each number of threads that may make it fastest."""
    method, model, size = case
    network, local = ("cnn2", common.MIXED) if model == "mixed" else (model, [model] * 10)
    every = torch.get_num_threads()
    return {
        (way, threads): with_threads(bare(method, network, local, data, size, way, device, sizes), threads)
        for way in sorted({precision, "fp32"} if device == "cpu" else {precision})
        for threads in sorted({1, every} if device == "cpu" else {every})
    }


def with_threads(block: Callable[[], None], threads: int) -> Callable[[], None]:
    """Run the block with so many threads inside torch's operators."""

    def run() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        block()
        torch.set_num_threads(before)

    return run


def products_percent(case: tuple[str, str, int], data: Dataset, precision: str) -> str:
    """Percent of the engine's time on a CPU in convolutions, products and their gradients, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    block, _ = engine(case, data, precision, "cpu", "eager")
    block()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        block()
    torch.set_num_threads(threads)
    operators = found.key_averages()
    every, products = (
        sum(operator.self_cpu_time_total for operator in operators if operator.key in PRODUCTS or not only)
        for only in (False, True)
    )
    return f"{100 * products / every:.0f}"


def peak_memory(case: tuple[str, str, int], device: str, precision: str) -> int:
    """MiB at most, of the device on a GPU, else resident, in a process that does nothing else."""
    command = [sys.executable, "-m", "benchmarks.training", "--device", device, "--precision", precision]
    output = subprocess.run(
        [*command, "--memory", str(CASES.index(case))],
        check=True,
        capture_output=True,
        text=True,
        cwd=common.HERE.parent,
    )
    return int(output.stdout.split()[-1])


def print_peak_memory(case: tuple[str, str, int], device: str, precision: str) -> None:
    """Do the work of `peak_memory`'s process."""
    block, _ = engine(case, common.random_images(IMAGES[device], 1000), precision, device, DEFAULT[device])
    block()
    print(torch.cuda.max_memory_reserved() // 2**20 if device == "cuda" else common.peak_resident_mib())


def main() -> None:
    """Time every case and write the table."""
    parser = common.parser(__doc__)
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="another version of the project, timed in turns"
    )
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device, precision = common.chosen(args)
    if args.memory is not None:
        print_peak_memory(CASES[args.memory], device, precision)
        return
    rows = []
    for case in CASES:
        rows.append(measure(case, device, precision, args.before))
        common.show(rows[-1])
    common.write(common.HERE / f"training-{device}.csv", rows)


if __name__ == "__main__":
    main()
