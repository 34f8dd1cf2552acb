"""How cost grows with clients, images and rounds, and the memory of a thousand clients.

    python -m benchmarks.scaling [--device auto|cpu|cuda] [--precision ...]

FML on CNN2, whose clients keep a model of their own and its momentum between rounds. Whole rounds of five local epochs,
evaluation included: clients 10 (all in every round), 100 and 1000 (a tenth in every round); images 12 500 to 50 000;
and what a round without training costs after 1, 100 and 400 rounds. Each row is a process of its own, so that its
peak memory is its own: for it every client has its state, and a checkpoint is written. Writes
benchmarks/scaling-<device>.csv.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bayesfed.engine import checkpoint
from bayesfed.engine import device as devices
from bayesfed.engine.executors import DEFAULT
from bayesfed.engine.rounds import Trainer, begin, copy
from benchmarks import common

# clients, part in a round, training and test images, rounds before
CASES = [
    (10, 1.0, 50_000, 10_000, 1), (100, 0.1, 50_000, 10_000, 1), (1000, 0.1, 50_000, 10_000, 1),
    (10, 1.0, 12_500, 10_000, 1), (10, 1.0, 25_000, 10_000, 1),
    (10, 1.0, 1000, 100, 1), (10, 1.0, 1000, 100, 100), (10, 1.0, 1000, 100, 400),
]  # fmt: skip


def measure(case: tuple[int, float, int, int, int], device: str, precision: str) -> dict[str, Any]:
    """One row."""
    clients, participation, images, test_images, before = case
    data, compute = common.random_images(images, test_images), devices.compute(device, precision)
    models = {"global": "cnn2", "local": ["cnn2"] * clients}
    of = common.federation(
        "fml", models, data, compute, clients=clients, participation=participation, local_epochs=5, rounds=1000
    )
    trainer, method = Trainer(of, DEFAULT[device], lambda: None, lambda: None), of.method
    progress = begin(of)
    progress.clients = {k: copy(method.init_client(of.node(k, 0)), torch.device("cpu")) for k in range(clients)}

    phases, method.phases = method.phases, lambda c: []  # type: ignore[method-assign]
    for _ in range(before):
        progress = trainer.play(progress)
    started = time.perf_counter()
    progress = trainer.play(progress)
    empty = time.perf_counter() - started
    method.phases = phases  # type: ignore[method-assign]

    if device == "cuda":
        progress = trainer.play(progress)  # recording
    seconds = []
    for _ in range(3 if participation < 1 else 1):
        started = time.perf_counter()
        progress = trainer.play(progress)
        seconds.append((time.perf_counter() - started) / trainer.samples)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        checkpoint.save(Path(folder) / "c", progress, checkpoint.Record("key", precision, DEFAULT[device]))
        saving = time.perf_counter() - started
        stored = (Path(folder) / "c").stat().st_size
    row = {
        "clients": clients, "participation": participation, "images": images, "test_images": test_images, "rounds_before": before,
        "device": device, "precision": precision,
        "microseconds_per_sample": f"{1e6 * statistics.median(seconds):.1f}",
        "empty_round_seconds": f"{empty:.2f}",
        "checkpoint_seconds": f"{saving:.2f}", "checkpoint_mib": round(stored / 2**20),
        "peak_resident_mib": common.peak_resident_mib(),
    }  # fmt: skip
    if device == "cuda":
        row["peak_device_mib"] = round(torch.cuda.max_memory_reserved() / 2**20)
    return row | common.machine(device)


def main() -> None:
    """Measure every case in a process of its own and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = devices.choose_device(args.device)
    precision = devices.choose_precision(args.precision, device)
    if args.case is not None:
        print(json.dumps(measure(CASES[args.case], device, precision)))
        return
    rows = []
    for case in range(len(CASES)):
        command = [sys.executable, "-m", "benchmarks.scaling", "--device", device, "--precision", precision]
        output = subprocess.run(
            [*command, "--case", str(case)], check=True, stdout=subprocess.PIPE, text=True, cwd=common.HERE.parent
        )
        rows.append(json.loads(output.stdout))
        common.show(rows[-1])
    common.write(common.HERE / f"scaling-{device}.csv", rows)


if __name__ == "__main__":
    main()
