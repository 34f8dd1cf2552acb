"""Samples per second of one client's training: the engine beside the barest loop, alternating in one process.

Random images in CIFAR-10's shape: the time does not depend on what they show. Only ratios carry over to another
machine. Writes benchmarks/training.csv.
"""

import csv
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bayesfed import runfile
from bayesfed.data.partition import dirichlet_class_shared
from bayesfed.data.sources import source
from bayesfed.data.store import Dataset
from bayesfed.engine import device, streams
from bayesfed.engine.executor import epoch_batches
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import begin
from benchmarks.bare import LOOPS, augment

CASES = [
    ("fedavg", "cnn2", 128),
    ("fml", "cnn2", 128),
    ("hbfl", "cnn2", 128),
    ("fedavg", "mlp", 32),
    ("hbfl", "mlp", 32),
]
BLOCKS, BATCHES = 7, 15  # alternating blocks of so many batches; medians are quoted
OUT = Path(__file__).parent / "training.csv"


def images() -> Dataset:
    """6 000 random training images in CIFAR-10's shape."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (6000, 3, 32, 32), np.uint8)
    labels = random.integers(0, 10, 6000)
    return Dataset(source("cifar10"), pixels, labels, pixels[:1000], labels[:1000])


def engine(method: str, model: str, size: int, data: Dataset, precision: str) -> Callable[[], None]:
    """A function that trains BATCHES mini-batches the engine's way, augmentation included."""
    run = runfile.resolve(
        {
            "dataset": "cifar10", "partition": {"alpha": 100.0, "clients": 1}, "method": {"name": method},
            "models": {"global": model}, "rounds": 1, "local_epochs": 1, "batch_size": size, "seed": 0,
        }
    )  # fmt: skip
    shares = dirichlet_class_shared(data.train_labels, data.test_labels, run.partition, 0)
    federation = Federation(run, [data], shares, device.compute("cpu", precision))
    method_ = federation.method
    server, client = federation.node(SERVER, 1), federation.node(0, 1, 1)
    server.state = begin(federation).server
    client.state = method_.init_client(federation.node(0, 0))
    client.state |= method_.start(client, method_.message(server, 0))
    order, crops = streams.generator(0, "order"), streams.generator(0, "augment")

    def block() -> None:
        for batch in itertools.islice(epoch_batches(federation.shards[0], size, order, crops), BATCHES):
            method_.step(client, batch)

    return block


def bare(method: str, model: str, size: int, data: Dataset, precision: str) -> Callable[[], None]:
    """A function that trains BATCHES mini-batches in the plainest way."""
    loop = LOOPS[method](model, 10)
    pixels = torch.nn.functional.pad(torch.from_numpy(data.train_images), (4, 4, 4, 4))
    labels = torch.from_numpy(data.train_labels)
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.source.mean, data.source.std))

    def block() -> None:
        order = torch.randperm(len(labels))
        for i in range(BATCHES):
            indices = order[i * size : (i + 1) * size]
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loop.step(augment(pixels, indices, mean, std), labels[indices])

    return block


def main() -> None:
    """Time every case and write the table."""
    data, precision = images(), device.choose_precision("auto", "cpu")
    rows = []
    for method, model, size in CASES:
        contenders = {"engine": engine(method, model, size, data, precision)}
        contenders["bare"] = bare(method, model, size, data, precision)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for block in contenders.values():
            block()  # warm up
        for _ in range(BLOCKS):
            for name, block in contenders.items():
                started = time.perf_counter()
                block()
                seconds[name].append(time.perf_counter() - started)
        ratio = statistics.median(b / e for b, e in zip(seconds["bare"], seconds["engine"], strict=True))
        speed = {name: BATCHES * size / statistics.median(values) for name, values in seconds.items()}
        rows.append(
            {
                "method": method, "model": model, "batch_size": size, "precision": precision,
                "engine_samples_per_second": round(speed["engine"]), "bare_samples_per_second": round(speed["bare"]),
                "engine_over_bare": round(ratio, 2), "threads": torch.get_num_threads(), "hardware": device.hardware("cpu"),
                "torch": torch.__version__,
            }
        )  # fmt: skip
        print("  ".join(f"{value}" for value in list(rows[-1].values())[:7]), file=sys.stderr)
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(OUT)


if __name__ == "__main__":
    main()
