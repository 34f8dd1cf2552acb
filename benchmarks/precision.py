"""Does bf16 cost accuracy? FML and HBFL on CIFAR-10 in fp32 and in faster precisions, three seeds, both alphas.

    python -m benchmarks.precision [--data DIR] [--against bf16 [tf32]] [--device cpu] [--rounds 5] [--jobs 2]

Runs that are finished are left alone, so it can be stopped and started. Writes benchmarks/precision-<device>.csv: for each
cell and precision the last round's accuracy in it and in fp32, the mean of their differences over the seeds, and the spread
(standard deviation) between the seeds of the fp32 runs, which the difference should stay below.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from bayesfed.results import csv_file
from bayesfed.runs import run_file, spec
from benchmarks import common

SEEDS = (0, 1, 2)
CELLS = [(method, alpha) for alpha in (100.0, 0.05) for method in ("hbfl", "fml")]


def mapping(method: str, alpha: float, seed: int, rounds: int) -> dict[str, object]:
    """Return the paper's clients, with a small budget."""
    return {
        "dataset": "cifar10", "partition": {"alpha": alpha, "clients": 10}, "method": {"name": method},
        "models": {"global": "cnn2", "local": common.MIXED}, "rounds": rounds, "local_epochs": 1, "batch_size": 128,
        "seed": seed,
    }  # fmt: skip


def accuracies(folder: Path) -> tuple[float, float]:
    """Return the last round of a finished run: the global model's accuracy, and the mean over the clients."""
    summary = json.loads((folder / "summary.json").read_text())
    return summary["global"]["accuracy_last"], statistics.mean(summary["clients"]["accuracy_last"])


def main() -> None:
    """Train what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--against", choices=["bf16", "tf32"], nargs="+", default=["bf16"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at once, one thread each on a CPU; on a GPU they share it"
    )
    parser.add_argument("--out", type=Path, default=Path("results/precision"))
    args = parser.parse_args()

    def run_of(method: str, alpha: float, seed: int) -> spec.Run:
        return run_file.resolve(mapping(method, alpha, seed, args.rounds))

    def folder(precision: str, *of: Any) -> Path:
        return args.out / args.device / precision / run_of(*of).folder

    def train(task: tuple[str, int]) -> None:
        """Train all cells of a precision and a seed, one after another."""
        precision, seed = task
        place = args.out / args.device / precision
        place.mkdir(parents=True, exist_ok=True)
        files = [place / f"{method}-alpha~{alpha:g}-seed~{seed}.yaml" for method, alpha in CELLS]
        for file, (method, alpha) in zip(files, CELLS, strict=True):
            file.write_text(yaml.safe_dump(run_of(method, alpha, seed).to_dict()))
        options = ["--data", args.data, "--runs", place]
        options += ["--device", args.device, "--precision", precision]
        options += ["--gpu-slots", args.jobs] * (args.device == "cuda")
        threads = {"OMP_NUM_THREADS": "1"} if args.device == "cpu" else {}
        command = [sys.executable, "-m", "bayesfed", "train", *files, *options]
        if code := subprocess.run([*map(str, command)], env=os.environ | threads).returncode:
            raise SystemExit(code)  # the command has said why

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(train, itertools.product((*args.against, "fp32"), SEEDS)))

    rows = []
    for precision, (method, alpha) in itertools.product(args.against, CELLS):
        for place, what in enumerate(("global", "clients")):
            fp32, faster = (
                [100 * accuracies(folder(p, method, alpha, seed))[place] for seed in SEEDS] for p in ("fp32", precision)
            )
            difference = statistics.mean(b - a for a, b in zip(fp32, faster, strict=True))
            spread = statistics.stdev(fp32)
            rows.append(
                {
                    "method": method, "alpha": f"{alpha:g}", "accuracy": what, "rounds": args.rounds, "local_epochs": 1,
                    "device": args.device, "precision": precision,
                    **{f"fp32_seed{seed}": f"{value:.2f}" for seed, value in zip(SEEDS, fp32, strict=True)},
                    **{f"faster_seed{seed}": f"{value:.2f}" for seed, value in zip(SEEDS, faster, strict=True)},
                    "mean_difference": f"{difference:.2f}", "spread_of_seeds": f"{spread:.2f}",
                    "verdict": "below the spread" if abs(difference) < spread else "above the spread",
                }
            )  # fmt: skip
    path = Path(__file__).parent / f"precision-{args.device}.csv"
    print(csv_file.write(path, list(rows[0]), rows))


if __name__ == "__main__":
    main()
