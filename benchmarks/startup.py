"""Short runs, each in a process of its own or all in one: how much of the time is not training?

    python -m benchmarks.startup --data data [--precision ...]

First rounds of FOLA's MLP on MNIST (which must have been fetched), ten clients, alpha 0.01, one local epoch, one thread:
RUNS seeds, FOLA and FedAvg in turns. A run as the workflow calls it alone, then the next, against `bayesfed train A.yaml
B.yaml ... --runs DIR`; batches of both kinds take turns. What is not training is everything but `train_seconds` of the
runs' records, which is their rounds with evaluation. Writes benchmarks/startup-cpu.csv.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bayesfed.data import partition
from bayesfed.engine import device as devices
from bayesfed.runs import run_file
from benchmarks import common

RUNS, TURNS = 3, 2
BATCH_SIZES = [254]


def run_files(folder: Path, batch_size: int, data: Path) -> list[Path]:
    """Return the runs, with their partitions made: those are shared with all other runs of a seed."""
    found = []
    for number in range(RUNS):
        mapping = {
            "dataset": "mnist",
            "partition": {"scheme": "dirichlet_class_floor", "alpha": 0.01, "min_train": 0, "min_test": 0},
            "method": {"name": ["fola", "fedavg"][number % 2]},
            "models": {"global": "fola_mlp"},
            "images": {"prepare": "none"},
            "rounds": 1, "local_epochs": 1, "batch_size": batch_size, "clients_on_test": "round", "seed": number,
        }  # fmt: skip
        run = run_file.resolve(mapping, data)
        partition.build(run.datasets[0], run.partition, number, data)
        found.append(folder / f"{number}.yaml")
        found[-1].write_text(yaml.safe_dump(mapping))
    return found


def timed(commands: list[list[str]], runs: Path) -> tuple[float, float]:
    """Seconds of the commands, one after another, and seconds in which runs below `runs` were trained."""
    started = time.perf_counter()
    for command in commands:
        train = [sys.executable, "-m", "bayesfed", "train", *command, "--runs", str(runs), "--device", "cpu"]
        subprocess.run(train, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    whole = time.perf_counter() - started
    records = [json.loads(path.read_text()) for path in runs.rglob("summary.json")]
    return whole, sum(record["train_seconds"] for record in records)


def measure(batch_size: int, data: Path, precision: str) -> dict[str, Any]:
    """Measure one row."""
    options = ["--data", str(data), "--precision", precision]
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "together": []}
    with tempfile.TemporaryDirectory() as name:
        paths = [str(path) for path in run_files(Path(name), batch_size, data)]
        for turn in range(TURNS):
            found["alone"].append(timed([[path, *options] for path in paths], Path(name, f"alone{turn}")))
            found["together"].append(timed([[*paths, *options]], Path(name, f"together{turn}")))
    seconds = {way: statistics.median(whole for whole, _ in turns) for way, turns in found.items()}
    rest = {way: statistics.median(1 - train / whole for whole, train in turns) for way, turns in found.items()}
    return {
        "model": "fola_mlp", "batch_size": batch_size, "precision": precision, "runs": RUNS,
        **{f"{way}_seconds_per_run": f"{value / RUNS:.2f}" for way, value in seconds.items()},
        **{f"{way}_not_training_percent": f"{100 * value:.0f}" for way, value in rest.items()},
        "together_over_alone": f"{statistics.median(a / b for (a, _), (b, _) in zip(*found.values(), strict=True)):.2f}",
    } | common.machine("cpu") | {"threads": 1}  # fmt: skip


def main() -> None:
    """Time every case and write the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    precision = devices.choose_precision(args.precision, "cpu", ["fola_mlp"])
    rows = []
    for batch_size in BATCH_SIZES:
        rows.append(measure(batch_size, args.data, precision))
        common.show(rows[-1])
    common.write(common.HERE / "startup-cpu.csv", rows)


if __name__ == "__main__":
    main()
