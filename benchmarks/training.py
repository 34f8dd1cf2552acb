"""Samples per second of local training: the engine beside the barest loop, alternating in one process.

    python -m benchmarks.training [--device auto|cpu|cuda] [--precision auto|fp32|tf32|bf16]

Ten clients of 512 images in CIFAR-10's shape, one local epoch, augmentation included. On a CPU the bare loop may choose
fp32 or the engine's precision, one thread or all, whichever is fastest there. Only ratios carry over to
another machine, but GPU times may be quoted. Writes benchmarks/training-<device>.csv.
"""

import argparse
import contextlib
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bayesfed.data.store import Dataset
from bayesfed.engine import device as devices
from bayesfed.engine.executors import DEFAULT, EXECUTORS
from benchmarks import bare, common

CASES = [
    ("fedavg", "cnn2", 128),
    ("fml", "cnn2", 128),
    ("hbfl", "cnn2", 128),
    ("fml", "mixed", 128),
    ("hbfl", "mixed", 128),
    ("fedavg", "mlp", 32),
    ("hbfl", "mlp", 32),
]
IMAGES = 5120
PAPER_SAMPLES = 250_000  # of a round of the paper: 50 000 images, five local epochs
TURNS = 7


def engine(case: tuple[str, str, int], data: Dataset, precision: str, device: str,
           executor: str) -> tuple[Callable[[], None], list[int]]:  # fmt: skip
    """A round's local training by an executor, and the images of each client."""
    method, model, size = case
    compute = devices.compute(device, precision)
    of = common.federation(method, common.models(model, method), data, compute, batch_size=size)
    block = common.local_training(of, EXECUTORS[executor](of, lambda: None))
    return block, [len(of.shards[k].train) for k in range(of.clients)]


def measure(case: tuple[str, str, int], device: str, precision: str, eager: bool) -> dict[str, Any]:
    """One row."""
    method, model, size = case
    data = common.random_images(IMAGES, 1000)
    block, sizes = engine(case, data, precision, device, DEFAULT[device])
    loop, bare_precision, bare_threads = best_bare(case, data, precision, device, sizes)
    contenders = {"engine": block, "bare": loop}
    if eager:
        contenders["eager"] = engine(case, data, precision, device, "eager")[0]
    used = {name: [] for name in contenders}
    for name, contender in contenders.items():
        contenders[name] = watched(contender, used[name], device)
    seconds = common.alternate(contenders, TURNS)
    speed = {name: sum(sizes) / statistics.median(values) for name, values in seconds.items()}
    row: dict[str, Any] = {
        "method": method, "model": model, "batch_size": size, "device": device, "precision": precision,
        "executor": DEFAULT[device], "bare_precision": bare_precision, "bare_threads": bare_threads,
        "engine_samples_per_second": round(speed["engine"]), "bare_samples_per_second": round(speed["bare"]),
        "engine_over_bare": f"{common.median_ratio(seconds['bare'], seconds['engine']):.2f}",
    }  # fmt: skip
    if eager:
        row["engine_over_eager"] = f"{common.median_ratio(seconds['eager'], seconds['engine']):.2f}"
    row["paper_round_seconds"] = f"{PAPER_SAMPLES / speed['engine']:.2f}"
    if device == "cuda":
        row |= {f"{name}_gpu_use_percent": round(statistics.median(values or [-1])) for name, values in used.items()}
    row["engine_peak_memory_mib"] = peak_memory(case, device, precision)
    return row | common.machine(device)


def best_bare(case: tuple[str, str, int], data: Dataset, precision: str, device: str,
              sizes: list[int]) -> tuple[Callable[[], None], str, int]:  # fmt: skip
    """The bare loop in the precision and, on a CPU, with the threads that make it fastest, and both."""
    method, model, size = case
    network, local = ("cnn2", common.MIXED) if model == "mixed" else (model, [model] * 10)
    every = torch.get_num_threads()
    ways = []
    for way in {precision, "fp32"} if device == "cpu" else {precision}:
        loop = bare.training(method, network, local, data, size, way, device, sizes)
        for threads in {1, every} if device == "cpu" else {every}:
            threaded = with_threads(loop, threads)
            threaded()
            started = time.perf_counter()
            threaded()
            ways.append((time.perf_counter() - started, threaded, way, threads))
    return min(ways, key=lambda one: one[0])[1:]


def with_threads(block: Callable[[], None], threads: int) -> Callable[[], None]:
    """The block with so many threads inside torch's operators."""

    def run() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        block()
        torch.set_num_threads(before)

    return run


def watched(block: Callable[[], None], used: list[float], device: str) -> Callable[[], None]:
    """The block, with the GPU's use noted meanwhile as nvidia-smi tells it (percent of time with a kernel)."""
    if device != "cuda":
        return block

    def run() -> None:
        with gpu_use(used):
            block()

    return run


@contextlib.contextmanager
def gpu_use(into: list[float]) -> Iterator[None]:
    """Samples of nvidia-smi's utilisation while inside; none where nvidia-smi is missing."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        yield
        return
    assert process.stdout is not None
    lines = process.stdout

    def collect() -> None:
        into.extend(float(line) for line in lines if line.strip().isdigit())

    reader = threading.Thread(target=collect)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        reader.join()


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
    """The work of `peak_memory`'s process."""
    block, _ = engine(case, common.random_images(IMAGES, 1000), precision, device, DEFAULT[device])
    block()
    on_device = torch.cuda.max_memory_reserved() / 2**20 if device == "cuda" else None
    print(round(on_device or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def main() -> None:
    """Time every case and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--eager", action="store_true", help="the eager executor too")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = devices.choose_device(args.device)
    precision = devices.choose_precision(args.precision, device)
    if args.memory is not None:
        print_peak_memory(CASES[args.memory], device, precision)
        return
    rows = []
    for case in CASES:
        rows.append(measure(case, device, precision, args.eager))
        common.show(rows[-1])
    common.write(common.HERE / f"training-{device}.csv", rows)


if __name__ == "__main__":
    main()
