"""Shared by the benchmarks: random images in CIFAR-10's shape, federations of them, fair timing, tables."""

import argparse
import csv
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesfed.data.catalogue import source
from bayesfed.data.schemes import divide
from bayesfed.data.store import Dataset
from bayesfed.engine import device as devices
from bayesfed.engine import gpu_sharing
from bayesfed.engine.device import Compute
from bayesfed.engine.executors import Executor, Job
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import begin, copy
from bayesfed.results import csv_file
from bayesfed.runs import run_file

HERE = Path(__file__).parent
# The clients of HBFL's Table 1, by their own models.
MIXED = ["mlp", "mlp", "lenet5", "lenet5", "cnn1", "cnn1", "cnn1", "cnn2", "cnn2", "cnn2"]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--device", default="auto", help="auto, cpu or cuda")
    found.add_argument("--precision", default="auto", help="auto, fp32, tf32 or bf16")
    return found


def chosen(args: argparse.Namespace) -> tuple[str, str]:
    """Device and precision by name, as a training job with convolutions would choose them, with as many queues to a GPU as
    one alone has.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(gpu_sharing.queues(1)))  # before torch starts CUDA
    device = devices.choose_device(args.device)
    return device, devices.choose_precision(args.precision, device)


def random_images(train: int, test: int, name: str = "cifar10", side: int = 32) -> Dataset:
    """Images of noise, of a dataset's channels: how long training takes does not depend on what they show."""
    random, shape = np.random.default_rng(0), source(name)
    pixels = random.integers(0, 256, (max(train, test), shape.channels, side, side), np.uint8)
    labels = random.integers(0, 10, len(pixels))
    return Dataset(shape, pixels[:train], labels[:train], pixels[:test], labels[:test])


def federation(
    method: str | dict[str, Any],
    models: dict[str, Any],
    data: Dataset,
    compute: Compute,
    *,
    clients: int = 10,
    **budget: Any,
) -> Federation:
    """Return the clients of a run on such images; alpha 100 and two images at least, unless `alpha` or `min_train` is
    among the rest, which goes to the run file.
    """
    method = {"name": method} if isinstance(method, str) else method
    partition = {"alpha": 100.0, "clients": clients, "min_train": 2, "min_test": 0}
    partition |= {name: budget.pop(name) for name in ("alpha", "min_train") if name in budget}
    run = run_file.resolve(
        {
            "dataset": data.source.name, "partition": partition, "method": method, "models": models, "rounds": 100,
            "local_epochs": 1, "batch_size": 128, "seed": 0,
        } | budget
    )  # fmt: skip
    shares = divide(data.train_labels, data.test_labels, run.partition, 0)
    return Federation(run, [data], shares, compute)


def few_steps(method: str, server: int) -> dict[str, Any]:
    """Return a method's options for a few images, `server` of them for the server: as little work as does each of its
    parts.
    """
    ensemble = {
        "server_set": server, "samples": 2, "server_epochs": 4, "server_lr": 0.1, "swa_start": 2, "swa_every": 2,
    }  # fmt: skip
    options: dict[str, dict[str, Any]] = {
        "abavg": {"validation_images": server},
        "fedavg_temperature": {"calibration_images": server},
        "fola_errors": {"aggregated": 1, "epochs": 2},
        "bnfed": {"lr": 0.1, "validation_images": server},
        "pfedgp": {"features": 8, "steps": 2, "chains": 2, "test_chains": 2},
        "pfedvem": {"head_epochs": 2, "draws": 2},
        "fedbe": ensemble,
        "fedppd_distill": ensemble | {"server_student_lr": 0.1},
    }
    return options.get(method, {})


def models(name: str, method: str) -> dict[str, Any]:
    """Return the `models` of a run file: `mixed` are the paper's clients, else all have the same network."""
    if name == "mixed":
        return {"global": "cnn2", "local": MIXED}
    return {"global": name, "local": [name] * 10} if method in ("fml", "hbfl") else {"global": name}


def starter(federation: Federation) -> Callable[[int], Job]:
    """Return a function that makes a client ready for the first round's local training."""
    method = federation.method
    server = federation.node(SERVER, 1)
    server.state = begin(federation).server
    kept = {k: method.init_client(federation.node(k, 0)) for k in range(federation.clients)}

    def start(client: int) -> Job:
        c = federation.node(client, 1, federation.run.budget.local_epochs)
        c.state = copy(kept[client], federation.compute.device)
        c.state |= method.start(c, method.message(server, client))
        return Job(c, method.phases(c))

    return start


def local_training(federation: Federation, executor: Executor) -> Callable[[], None]:
    """Return a function that does one round's local training of all clients and nothing else."""
    start = starter(federation)

    def block() -> None:
        for _ in executor.run(range(federation.clients), start, lambda job: None):
            pass
        federation.compute.synchronise()

    return block


def alternate(contenders: dict[str, Callable[[], None]], times: int) -> dict[str, list[float]]:
    """Seconds of every contender, in turns, after one call of each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for block in contenders.values():
        block()
    for _ in range(times):
        for name, block in contenders.items():
            started = time.perf_counter()
            block()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def median_ratio(slow: list[float], fast: list[float]) -> float:
    """Return how many times as fast, the median over the turns."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def machine(device: str) -> dict[str, Any]:
    """Return the columns that say where a row was measured."""
    threads = torch.get_num_threads() if device == "cpu" else ""
    return {"threads": threads, "hardware": devices.hardware(device), "torch": torch.__version__}


def peak_resident_mib() -> int:
    """Return the most memory this process has held; not getrusage's number, which a parent's memory is carried over
    into.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def write(path: Path, rows: list[dict[str, Any]], *same: str) -> None:
    """Put the rows into a CSV, in place of those that are the same in these columns, by default in the hardware."""
    if path.exists():
        stored, columns = csv.DictReader(path.read_text().splitlines()), same or ("hardware",)
        rows = [row for row in stored if any(row[name] != rows[0][name] for name in columns)] + rows
    columns = dict.fromkeys(key for row in reversed(rows) for key in row)  # those of today first
    print(csv_file.write(path, list(columns), rows))


def show(row: dict[str, Any]) -> None:
    """Print a row, without hardware and versions."""
    print("  ".join(f"{key} {value}" for key, value in row.items() if key not in ("hardware", "torch")), flush=True)
