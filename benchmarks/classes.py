"""Which classes the server's model of a finished run knows, and what it would know with its classes in balance: nothing is trained.

    python -m benchmarks.classes RUN ... [--data data]

Needs the runs' checkpoints, and writes benchmarks/classes.csv, in which other runs' rows stay: the global model's accuracy on
all test images; on all when a number for each class is added to its logits, so that every class is predicted as often as it
occurs (what that gains is lost in so many numbers, and not in what the network has learned to see); of how many classes it
knows less than a twentieth; how far its logits lie from 0 in the mean; and its accuracy were they rounded to bf16.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import bayesfed
from bayesfed.runfile import Run
from benchmarks import common

PATH = common.HERE / "classes.csv"
TURNS, PACE = 200, 0.3
FEW = 5  # percent
BATCH = 500


def balanced(logits: NDArray[np.float32], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits (N, classes) plus a number for each class, so that class c is predicted `counts[c]` times, nearly."""
    added = np.zeros(logits.shape[1], logits.dtype)
    for _ in range(TURNS):
        predicted = np.bincount((logits + added).argmax(1), minlength=len(counts))
        added -= PACE * np.log((predicted + 1) / (counts + 1)).astype(logits.dtype)
    return logits + added


def told(run: Run) -> str:
    """A run's method, with the options that are not the default."""
    usual = vars(type(run.options)())
    changed = [f"{key} {value}" for key, value in vars(run.options).items() if value != usual[key]]
    return ", ".join([run.method, *changed])


def row(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, float]:
    """The numbers of a model, accuracies in percent."""
    counts = np.bincount(labels, minlength=logits.shape[1])
    rounded = torch.from_numpy(logits).bfloat16().float().numpy()

    def accuracy(of: NDArray[np.float32]) -> float:
        return 100 * float((of.argmax(1) == labels).mean())

    right = logits.argmax(1) == labels
    each = np.array([100 * right[labels == label].mean() for label in np.flatnonzero(counts)])
    return {
        "all": accuracy(logits), "all_in_balance": accuracy(balanced(logits, counts)), "classes_below_5": int((each < FEW).sum()),
        "mean_logit": float(logits.mean()), "logits_in_bf16": accuracy(rounded),
    }  # fmt: skip


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    for folder in args.runs:
        run = bayesfed.load_run(folder, data=args.data)
        images, labels = run.images("test")
        model = run.server["global"]
        batches = [model.network(model.prepare(images[at : at + BATCH])) for at in range(0, len(images), BATCH)]
        budget, alpha = run.run.budget, run.run.partition.alpha
        setting = {"dataset": run.run.datasets[0], "alpha": alpha, "rounds": budget.rounds, "run": folder.name}
        found = {name: round(value, 2) for name, value in row(torch.cat(batches).numpy(), labels).items()}
        found = {"method": told(run.run), **setting, **found}
        common.show(found)
        common.write(PATH, [found], same="run")


if __name__ == "__main__":
    main()
