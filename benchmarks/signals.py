"""The time that a run goes on after a signal: the longest time in which nothing looks whether one has come, or, where
that is longer, the grace that a step is given, and the checkpoint behind it.

    python -m benchmarks.signals [--config config/paper.yaml]

Of each method the planned run whose networks are the dearest an image, on images of noise of its shape, few of them, since
a signal is looked for before each mini-batch of training and testing: one round (two of FOLA's errors, its fewest) with all
its tests, aggregation and the server's training, then the checkpoint. One thread. Writes benchmarks/signals-cpu.csv.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bayesfed.engine import checkpoint, signals
from bayesfed.engine.device import Compute
from bayesfed.engine.rounds import Trainer, begin
from bayesfed.plan import plan
from bayesfed.runs.spec import Run
from benchmarks import common

# Of what the server does, as little as there can be: how long one of its steps takes does not depend on it.
FEW = {
    "server_set": 200,
    "validation_images": 200,
    "samples": 2,
    "server_epochs": 2,
    "swa_start": 1,
    "swa_every": 1,
    "aggregated": 1,
}
LARGE = 1e8  # multiply-adds an image, from where on few clients and test images do


def dearest(runs: list[Run]) -> dict[str, tuple[Run, int]]:
    """Find, for each method, the run whose networks cost most an image, and its multiply-adds."""
    found: dict[str, tuple[Run, int]] = {}
    for run in runs:
        names = {run.global_model, *run.local_models, *run.other_models.values()} - {"convolutions"}
        operations = sum(run.build_model(name, run.sources[0]).operations for name in names)
        if not run.multi_task and operations > found.get(run.method, (run, -1))[1]:
            found[run.method] = run, operations
    return found


def measure(run: Run, operations: int) -> dict[str, Any]:
    """Seconds between two looks at most, in a round that tests all it can, and of the checkpoint behind it."""
    large = operations > LARGE
    clients = 2 if large else min(run.partition.clients, 10)
    asked = run.to_dict()
    few = {key: value for key, value in FEW.items() if key in asked["method"]}
    budget = {
        "rounds": 1 + few.get("aggregated", 0),
        "local_epochs": 1,
        "local_batches": 0,
        "batch_size": run.budget.batch_size,
        "server_images": 0,
    }
    local = {"local": list(run.local_models)[-clients:]} if run.local_models else {}
    taken = few.get("server_set", 0) + few.get("validation_images", 0)  # half of a class at most
    train = clients * 2 * run.budget.batch_size + 3 * taken
    images = common.random_images(train, 300 if large else 10_000, run.datasets[0], run.sources[0].side)
    of = common.federation(
        asked["method"] | few, asked["models"] | local, images, Compute(torch.device("cpu"), torch.float32, torch.float32),
        clients=clients, images=asked.get("images", {}), **budget,
    )  # fmt: skip
    moments = [time.perf_counter()]
    of.check = lambda: moments.append(time.perf_counter())
    trainer, progress = Trainer(of, "threads"), begin(of)
    for _ in range(budget["rounds"]):
        progress = trainer.play(progress)
    of.check()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder, "one.safetensors"), progress, checkpoint.Header(run.key, "fp32", "threads"))
    of.check()
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    step, save = max(gaps[:-1]), gaps[-1]
    leaves = min(step, signals.GRACE) + save
    return {
        "longest_seconds": round(step, 2),
        "checkpoint_seconds": round(save, 2),
        "leaves_within_seconds": round(leaves, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("config/paper.yaml"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for method, (run, operations) in dearest(plan.make(plan.read_mapping(args.config))[1]).items():
        names = " and ".join(dict.fromkeys([run.global_model, *run.local_models[-1:], *run.other_models.values()]))
        row = {"method": method, "networks": names, "dataset": run.datasets[0]} | measure(run, operations)
        common.show(row)
        common.write(common.HERE / "signals-cpu.csv", [row | common.machine("cpu")], "method")


if __name__ == "__main__":
    main()
