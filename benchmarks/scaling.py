"""Growth of cost with clients, images and rounds, and the memory of a thousand clients.

    python -m benchmarks.scaling [--device auto|cpu|cuda] [--precision ...]

FML on CNN2, whose clients keep a model of their own and its momentum between rounds. The time of a trained image is
that of whole rounds of five local epochs, evaluation included, in turns in one process: clients 10 (all in every
round), 100 and 1000 (a tenth in every round), and fewer images. Memory, checkpoint and what a round without training
costs after 1, 100 and 400 rounds: each case in a process of its own, where every client has its state and a round of
one local epoch is trained. Writes benchmarks/scaling-<device>.csv.
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
from bayesfed.engine.device import Compute
from bayesfed.engine.executors import DEFAULT
from bayesfed.engine.rounds import Progress, Trainer, begin, copy
from benchmarks import common

# clients, part in a round, training and test images, rounds before
CASES = [
    (10, 1.0, 50_000, 10_000, 1), (100, 0.1, 50_000, 10_000, 1), (1000, 0.1, 50_000, 10_000, 1),
    (10, 1.0, 12_500, 10_000, 1), (10, 1.0, 25_000, 10_000, 1),
    (10, 1.0, 1000, 100, 1), (10, 1.0, 1000, 100, 100), (10, 1.0, 1000, 100, 400),
]  # fmt: skip
TIMED, TURNS = CASES[:5], 3


def trainer(case: tuple[int, float, int, int, int], compute: Compute, epochs: int) -> tuple[Trainer, Progress]:
    """Return a trainer, and its progress with a state for every client."""
    clients, participation, images, test_images, _ = case
    of = common.federation(
        "fml", {"global": "cnn2", "local": ["cnn2"] * clients}, common.random_images(images, test_images), compute,
        clients=clients, participation=participation, local_epochs=epochs, rounds=1000,
    )  # fmt: skip
    progress = begin(of)
    states = {k: of.method.init_client(of.node(k, 0)) for k in range(clients)}
    progress.clients = {k: copy(state, torch.device("cpu")) for k, state in states.items()}
    return Trainer(of, DEFAULT[compute.device.type]), progress


def rates(device: str, precision: str) -> list[list[float]]:
    """Seconds per trained image of whole rounds of the first cases, a list of turns for each."""
    compute = devices.configure(device, precision)
    playing = [trainer(case, compute, 5) for case in TIMED]
    seconds: list[list[float]] = [[] for _ in TIMED]
    for turn in range(TURNS + (device == "cuda")):  # recording takes the first turn on a GPU
        for number, (one, progress) in enumerate(playing):
            started = time.perf_counter()
            playing[number] = one, one.play(progress)
            if turn >= (device == "cuda"):
                seconds[number].append((time.perf_counter() - started) / one.samples)
    return seconds


def measure(case: tuple[int, float, int, int, int], device: str, precision: str) -> dict[str, Any]:
    """Return the rest of a row."""
    clients, participation, images, test_images, before = case
    one, progress = trainer(case, devices.configure(device, precision), 1)
    method = one.federation.method
    phases, method.phases = method.phases, lambda c: []  # type: ignore[method-assign]
    for _ in range(before):
        progress = one.play(progress)
    started = time.perf_counter()
    progress = one.play(progress)
    empty = time.perf_counter() - started
    method.phases = phases  # type: ignore[method-assign]
    progress = one.play(progress)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        checkpoint.save(Path(folder) / "c", progress, checkpoint.Header("key", precision, DEFAULT[device]))
        saving = time.perf_counter() - started
        stored = (Path(folder) / "c").stat().st_size
    row = {
        "clients": clients, "participation": participation, "images": images, "test_images": test_images, "rounds_before": before,
        "device": device, "precision": precision,
        "empty_round_seconds": f"{empty:.2f}",
        "checkpoint_seconds": f"{saving:.2f}", "checkpoint_mib": round(stored / 2**20),
        "peak_resident_mib": common.peak_resident_mib(),
    }  # fmt: skip
    if device == "cuda":
        row["peak_device_mib"] = round(torch.cuda.max_memory_reserved() / 2**20)
    return row | common.machine(device)


def main() -> None:
    """Measure every case in a process of its own and write the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device, precision = common.chosen(args)
    if args.case is not None:
        print(json.dumps(measure(CASES[args.case], device, precision)))
        return
    seconds = rates(device, precision)
    rows = []
    for number, case in enumerate(CASES):
        command = [sys.executable, "-m", "benchmarks.scaling", "--device", device, "--precision", precision]
        output = subprocess.run(
            [*command, "--case", str(number)], check=True, stdout=subprocess.PIPE, text=True, cwd=common.HERE.parent
        )
        timed = {"microseconds_per_sample": "", "times_that_of_ten_clients": ""}
        if case in TIMED:
            timed["microseconds_per_sample"] = f"{1e6 * statistics.median(seconds[number]):.1f}"
            timed["times_that_of_ten_clients"] = f"{common.median_ratio(seconds[number], seconds[0]):.2f}"
        rows.append(timed | json.loads(output.stdout))
        common.show(rows[-1])
    common.write(common.HERE / f"scaling-{device}.csv", rows)


if __name__ == "__main__":
    main()
