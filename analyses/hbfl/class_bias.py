"""The classes that the server's model of a finished run knows, before and after class-bias correction: nothing is
trained.

    python -m analyses.hbfl.class_bias RUN ... [--data data]

Needs the runs' checkpoints, and writes analyses/hbfl/class_bias.csv, in which other runs' rows stay: the global model's
accuracy on all test images; on all when a number for each class is added to its logits, so that every class is predicted as
often as it occurs (what that gains is lost in so many numbers, and not in what the network has learned to see); of how many
classes it knows less than a twentieth; how far its logits lie from 0 in the mean; its accuracy were they rounded to bf16.

Last, whether the clients' shards foretell those numbers. A client's logits have the log of its class shares in them, and
were an average of models an average of logits, the global model's would have the clients' mean of it. `by_shares` is the
correlation of what balance takes from the classes with that mean, `slope` how many units it takes for one of it. Where all
clients hold nearly the same, neither says anything.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import bayesfed
from bayesfed.engine.loaded import LoadedRun
from bayesfed.runs.spec import Run
from benchmarks import common

PATH = Path(__file__).with_name("class_bias.csv")
TURNS, PACE = 1200, 0.3
SLOWER = 0.995  # a turn's steps against the last one's, or classes whose logits hardly vary would swing for ever
FEW = 5  # percent
BATCH = 500
UNWEIGHTED = ("uniform", "precision-without-q")  # averages in which a client counts whatever its images


def balancing(logits: NDArray[np.float32], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return what to add to the logits (N, classes) of each class, so that class c is predicted `counts[c]` times,
    nearly.
    """
    added = np.zeros(logits.shape[1], logits.dtype)
    for turn in range(TURNS):
        predicted = np.bincount((logits + added).argmax(1), minlength=len(counts))
        added -= PACE * SLOWER**turn * np.log((predicted + 1) / (counts + 1)).astype(logits.dtype)
    return added


def mean_log_shares(run: LoadedRun, classes: int) -> NDArray[np.float64]:
    """Return the log of a class's share of a client's training images, of each class one more than it has, in the mean
    of the clients as the method's average weights them: (classes,).
    """
    clients = range(run.run.partition.clients)
    held = np.stack([np.bincount(run.images("train", client)[1], minlength=classes) for client in clients])
    q = np.ones(len(held)) if getattr(run.run.options, "average", "") in UNWEIGHTED else held.sum(1)
    return np.average(np.log((held + 1) / (held + 1).sum(1, keepdims=True)), axis=0, weights=q)


def told(run: Run) -> str:
    """Return a run's method, with its options that are no defaults, and whether its learning rate changes over rounds."""
    usual = vars(type(run.options)())
    changed = [f"{key} {value}" for key, value in vars(run.options).items() if value != usual[key]]
    return ", ".join([run.method, *changed, *(["learning rate by a schedule"] if run.schedule.varies else [])])


def row(logits: NDArray[np.float32], labels: NDArray[np.int64], shares: NDArray[np.float64]) -> dict[str, float]:
    """Return the numbers of a model, accuracies in percent, from its logits and its clients' `mean_log_shares`."""
    counts = np.bincount(labels, minlength=logits.shape[1])
    rounded = torch.from_numpy(logits).bfloat16().float().numpy()

    def accuracy(of: NDArray[np.float32]) -> float:
        return 100 * float((of.argmax(1) == labels).mean())

    right = logits.argmax(1) == labels
    each = np.array([100 * right[labels == label].mean() for label in np.flatnonzero(counts)])
    added = balancing(logits, counts)
    return {
        "all": accuracy(logits), "all_in_balance": accuracy(logits + added), "classes_below_5": int((each < FEW).sum()),
        "mean_logit": float(logits.mean()), "logits_in_bf16": accuracy(rounded),
        "by_shares": float(np.corrcoef(shares, -added)[0, 1]), "slope": float(np.polyfit(shares, -added, 1)[0]),
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
        logits = torch.cat(batches).numpy()
        numbers = row(logits, labels, mean_log_shares(run, logits.shape[1]))
        found = {name: round(value, 2) for name, value in numbers.items()}
        found = {"method": told(run.run), **setting, **found}
        common.show(found)
        common.write(PATH, [found], "run")


if __name__ == "__main__":
    main()
