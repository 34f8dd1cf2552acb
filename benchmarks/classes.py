"""Which classes the server's model of a finished run knows, and what it would know with its classes in balance: nothing is trained.

    python -m benchmarks.classes RUN ... [--data data]

Needs the runs' checkpoints, and writes benchmarks/classes.csv: the global model's accuracy on the test images of each class,
on all, and on all when a number for each class is added to its logits so that every class is predicted as often as it occurs.
What the last gains over the one before it is lost in ten numbers, and not in what the network has learned to see.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import bayesfed
from bayesfed.runfile import Run
from benchmarks.common import HERE

PATH = HERE / "classes.csv"
TURNS, PACE = 200, 0.3


def balanced(log_p: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log probabilities (N, classes) plus a number for each class, so that class c is predicted `counts[c]` times, nearly."""
    added = np.zeros(log_p.shape[1])
    for _ in range(TURNS):
        predicted = np.bincount((log_p + added).argmax(1), minlength=len(counts))
        added -= PACE * np.log((predicted + 1) / (counts + 1))
    return log_p + added


def told(run: Run) -> str:
    """A run's method, with the options that are not the default."""
    usual = vars(type(run.options)())
    changed = [f"{key} {value}" for key, value in vars(run.options).items() if value != usual[key]]
    return ", ".join([run.method, *changed])


def row(log_p: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """The numbers of a model, in percent."""
    counts = np.bincount(labels, minlength=log_p.shape[1])
    right = log_p.argmax(1) == labels
    each = {f"class_{label}": 100 * right[labels == label].mean() for label in np.flatnonzero(counts)}
    mended = balanced(log_p, counts).argmax(1) == labels
    return {"all": 100 * right.mean(), "all_in_balance": 100 * mended.mean(), **each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    rows = []
    for folder in args.runs:
        run = bayesfed.load_run(folder, data=args.data)
        images, labels = run.images("test")
        log_p = run.server["global"].log_probabilities(images).double().numpy()
        rows.append({"method": told(run.run), "run": folder.name, **row(log_p, labels)})
    found = pd.DataFrame(rows).round(1)
    found.to_csv(PATH, index=False)
    print(found.to_string(index=False))


if __name__ == "__main__":
    main()
