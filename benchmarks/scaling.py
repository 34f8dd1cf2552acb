"""How cost grows with clients, images and rounds, and the memory of a thousand clients.

    python -m benchmarks.scaling [--device auto|cpu|cuda] [--precision ...]

FML on CNN2, whose clients keep a model of their own and its momentum between rounds. Whole rounds of five local epochs,
evaluation included: clients 10 (all in every round), 100 and 1000 (a tenth in every round); images 12 500 to 50 000;
and the cost of an empty round after 1, 100 and 200 rounds of history. Each row is a process of its own, so that its
peak memory is its own: for it every client has been seen, and a checkpoint is written. Writes
benchmarks/scaling-<device>.csv.
"""

import argparse
import json
import resource
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
from bayesfed.engine.rounds import Trainer, begin
from benchmarks import common

# clients, part in a round, images, rounds before
CASES = [
    (10, 1.0, 50_000, 1), (100, 0.1, 50_000, 1), (1000, 0.1, 50_000, 1),
    (10, 1.0, 12_500, 1), (10, 1.0, 25_000, 1),
    (10, 1.0, 1000, 100), (10, 1.0, 1000, 200),
]  # fmt: skip


def measure(case: tuple[int, float, int, int], device: str, precision: str) -> dict[str, Any]:
    """One row."""
    clients, participation, images, before = case
    data, compute = common.random_images(images, 10_000), devices.compute(device, precision)
    budget: dict[str, Any] = {"clients": clients, "local_epochs": 5, "rounds": 1000}
    models = {"global": "cnn2", "local": ["cnn2"] * clients}

    def trainer(**changes: Any) -> Trainer:
        of = common.federation("fml", models, data, compute, **budget | changes)
        return Trainer(of, DEFAULT[device], lambda: None, lambda: None)

    # Every client is met once, without training, as it will be after enough rounds.
    meeting = trainer()
    phases, meeting.federation.method.phases = meeting.federation.method.phases, lambda c: []  # type: ignore[method-assign]
    progress = begin(meeting.federation)
    for _ in range(before):
        progress = meeting.play(progress)
    started = time.perf_counter()
    meeting.play(progress)
    empty = time.perf_counter() - started
    meeting.federation.method.phases = phases  # type: ignore[method-assign]

    working = trainer(participation=participation)
    if device == "cuda":
        progress = working.play(progress)  # recording
    seconds = []
    for _ in range(3 if working.federation.run.budget.participation < 1 else 1):
        started = time.perf_counter()
        progress = working.play(progress)
        seconds.append((time.perf_counter() - started) / working.samples)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        checkpoint.save(Path(folder) / "c", progress, checkpoint.Record("key", precision, DEFAULT[device]))
        saving = time.perf_counter() - started
        stored = (Path(folder) / "c").stat().st_size
    row = {
        "clients": clients, "participation": participation, "images": images, "rounds_before": before,
        "device": device, "precision": precision,
        "microseconds_per_sample": f"{1e6 * statistics.median(seconds):.1f}",
        "empty_round_seconds": f"{empty:.2f}",
        "checkpoint_seconds": f"{saving:.2f}", "checkpoint_mib": round(stored / 2**20),
        "peak_resident_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
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
