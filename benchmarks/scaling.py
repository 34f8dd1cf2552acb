"""Growth of cost with clients, images and rounds, and the memory of a thousand clients.

    python -m benchmarks.scaling [--device auto|cpu|cuda] [--precision ...]

FML on CNN2, whose clients keep a model of their own and its momentum between rounds. The time of a trained image is
that of whole rounds of five local epochs, evaluation included, in turns in one process: clients 10 (all in every
round), 100 and 1000 (a tenth in every round), and fewer images; and 10 000 clients of 50 images each, a hundredth in every
round, against ten such clients. Memory, checkpoint and what a round without training costs after 1, 100 and 400 rounds:
each case in a process of its own, where every client has its state and a round of one local epoch is trained; there FedAvg
too, whose clients keep nothing, with 1000 and 100 000. Writes benchmarks/scaling-<device>.csv.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from bayesfed.engine import checkpoint
from bayesfed.engine import device as devices
from bayesfed.engine.device import Compute
from bayesfed.engine.executors import DEFAULT
from bayesfed.engine.rounds import Progress, Trainer, begin, copy
from bayesfed.methods.method import Method
from bayesfed.methods.node import Node, Phase
from benchmarks import common


class Case(NamedTuple):
    """So many clients, the part of them in a round, images, rounds before, the method, and a dataset with its side."""

    clients: int
    participation: float
    images: int
    test_images: int
    rounds_before: int = 1
    method: str = "fml"
    dataset: tuple[str, int] = ("cifar10", 32)


GREY, SMALL = ("mnist", 32), ("femnist", 28)
TEN, FIFTY_EACH = Case(10, 1.0, 50_000, 10_000), Case(10, 1.0, 500, 100, dataset=GREY)
# Timed ones, each with the ten clients that it is set against.
TIMED = {
    TEN: TEN, Case(100, 0.1, 50_000, 10_000): TEN, Case(1000, 0.1, 50_000, 10_000): TEN, Case(10, 1.0, 12_500, 10_000): TEN,
    Case(10, 1.0, 25_000, 10_000): TEN, FIFTY_EACH: FIFTY_EACH, Case(10_000, 0.01, 500_000, 100, dataset=GREY): FIFTY_EACH,
}  # fmt: skip
CASES = [
    *TIMED, *(Case(10, 1.0, 1000, 100, rounds) for rounds in (1, 100, 400)),
    Case(1000, 0.1, 5000, 100, method="fedavg", dataset=SMALL),
    Case(100_000, 0.001, 500_000, 100, method="fedavg", dataset=SMALL),
]  # fmt: skip
TURNS = 3
PIECE = 100  # clients that begin at once


def trainer(case: Case, compute: Compute, epochs: int, folder: Path) -> tuple[Trainer, Progress]:
    """Return a trainer, and its progress with a state for every client, in `folder` where they are many."""
    models = {"global": "cnn2"} | ({"local": ["cnn2"] * case.clients} if case.method == "fml" else {})
    name, side = case.dataset
    of = common.federation(
        case.method, models, common.random_images(case.images, case.test_images, name, side), compute, clients=case.clients,
        participation=case.participation, min_train=0, local_epochs=epochs, rounds=1000,
    )  # fmt: skip
    progress = begin(of)
    for first in range(0, case.clients, PIECE):
        states = {k: of.method.init_client(of.node(k, 0)) for k in range(first, min(first + PIECE, case.clients))}
        progress.clients |= {k: copy(state, torch.device("cpu")) for k, state in states.items()}
        progress = progress.bounded(folder)
    return Trainer(of, DEFAULT[compute.device.type]), progress


def rates(device: str, precision: str) -> dict[Case, list[float]]:
    """Seconds per trained image of whole rounds of the timed cases, a list of turns for each."""
    compute = devices.configure(device, precision)
    seconds: dict[Case, list[float]] = {case: [] for case in TIMED}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {case: Path(scratch) / str(number) for number, case in enumerate(TIMED)}
        playing = {case: trainer(case, compute, 5, folder) for case, folder in folders.items()}
        for turn in range(TURNS + (device == "cuda")):  # recording takes the first turn on a GPU
            for case, (one, progress) in playing.items():
                started = time.perf_counter()
                playing[case] = one, one.play(progress).bounded(folders[case])
                if turn >= (device == "cuda"):
                    seconds[case].append((time.perf_counter() - started) / one.samples)
    return seconds


def nothing(method: Method, c: Node) -> Sequence[Phase]:
    """Do no training: the phases of an empty round."""
    return []


def measure(case: Case, device: str, precision: str) -> dict[str, Any]:
    """Return the rest of a row."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "c.safetensors"
        folder = checkpoint.of_clients(path)
        one, progress = trainer(case, devices.configure(device, precision), 1, folder)
        federation, executor = one.federation, DEFAULT[device]
        with mock.patch.object(type(federation.method), "phases", nothing):
            one = Trainer(federation, executor)  # which sees to it that a method stays as it is
            for _ in range(case.rounds_before):
                progress = one.play(progress).bounded(folder)
            started = time.perf_counter()
            progress = one.play(progress).bounded(folder)
            empty = time.perf_counter() - started
        progress = Trainer(federation, executor).play(progress).bounded(folder)
        started = time.perf_counter()
        checkpoint.save(path, progress, checkpoint.Header("key", precision, executor))
        saving = time.perf_counter() - started
        stored = sum(file.stat().st_size for file in Path(scratch).rglob("*") if file.is_file())
    row = {
        "method": case.method, "clients": case.clients, "participation": case.participation, "images": case.images,
        "test_images": case.test_images, "rounds_before": case.rounds_before, "device": device, "precision": precision,
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
            ratio = common.median_ratio(seconds[case], seconds[TIMED[case]])
            timed["microseconds_per_sample"] = f"{1e6 * statistics.median(seconds[case]):.1f}"
            timed["times_that_of_ten_clients"] = f"{ratio:.2f}"
        rows.append(timed | json.loads(output.stdout))
        common.show(rows[-1])
    common.write(common.HERE / f"scaling-{device}.csv", rows)


if __name__ == "__main__":
    main()
