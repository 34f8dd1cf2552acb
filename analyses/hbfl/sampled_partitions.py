"""Sampled partitions of HBFL at alpha 0.05: how usual each is, and the accuracy that it gives clients by itself:
nothing is trained.

    python -m analyses.hbfl.sampled_partitions RUN [--data data]

RUN is a finished run at alpha 100 with its checkpoint, whose clients so have all classes alike. Its global model judges each
sampled partition: to its class probabilities of a client's test images the client's own class shares are given as the prior
(Bayes' rule), and its accuracy on a client's shard is what as good a network reaches there that has learned no more of the
client than which classes it has. Over many sampled partitions, and for the seeds of the tables and of
`config/hbfl-readings.yaml`: the largest client's share of all training images, how many classes the client of an image has,
and the clients' mean accuracy by the judge.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import bayesfed
from analyses.hbfl import finished_runs
from bayesfed.data.schemes import Dirichlet, Indices, Partition, divide
from bayesfed.results.run_records import RunRecord

PATH = Path(__file__).with_name("sampled_partitions.csv")
FIVE_ROUNDS = "runs of five rounds"
SEEDS = {"tables": (0, 1, 2), "search": (97, 98, 99), FIVE_ROUNDS: tuple(range(80, 90))}
FIRST = 1000  # the seed of the first of many sampled partitions: none that has a run
ALPHA, DRAWS = 0.05, 2000
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
COLUMNS = {
    "largest_percent": "draws_with_a_smaller_percent",
    "classes": "draws_with_fewer_classes_percent",
    "judged_percent": "draws_with_lower_percent",
}


def judged(log_p: NDArray[np.float64], train: Indices, test: Indices, partition: Partition) -> float:
    """Mean over clients of the judge's accuracy on their test images, each with the client's class shares as prior.

    `log_p`: the judge's log probabilities of all test images (N, classes). `train`, `test`: all labels.
    """
    right = []
    for client in range(len(partition.train_offsets) - 1):
        own = partition.test(client)
        counts = np.bincount(train[partition.train(client)], minlength=log_p.shape[1])
        with np.errstate(divide="ignore"):  # log 0: a class that the client does not have
            prior = np.log(counts / counts.sum())
        right.append(((log_p[own] + prior).argmax(1) == test[own]).mean())
    return float(np.mean(right))


def classes(train: Indices, partition: Partition) -> float:
    """Return how many classes the client of a training image has, in the mean over images: 1 / sum p^2 of the client's
    class shares p, which is their number where all are alike.
    """
    counts = [np.bincount(train[partition.train(k)]) for k in range(len(partition.train_offsets) - 1)]
    return sum(n.sum() * n.sum() ** 2 / (n**2).sum() for n in counts) / len(train)  # type: ignore[no-any-return]


def row(log_p: NDArray[np.float64], train: Indices, test: Indices, partition: Partition) -> dict[str, float]:
    """Describe a sampled partition: the largest client's share of training images, %, classes of an image's client,
    and the clients by the judge, %.
    """
    sizes = np.diff(partition.train_offsets)
    of_judge = judged(log_p, train, test, partition)
    return dict(zip(COLUMNS, (100 * sizes.max() / sizes.sum(), classes(train, partition), 100 * of_judge), strict=True))


def table(many: pd.DataFrame, named: pd.DataFrame) -> pd.DataFrame:
    """Quantiles of many sampled partitions, then the named ones, each with the share of the many that lie below it."""
    quantiles = many.quantile(list(QUANTILES)).rename(
        lambda q: f"{100 * q:g} % of {len(many)} sampled partitions are below"
    )
    below = {there: [100 * (many[name] < value).mean() for value in named[name]] for name, there in COLUMNS.items()}
    return pd.concat([quantiles, named.assign(**below)]).round(1).rename_axis("draw")


def named(seed: int, what: str) -> str:
    """Name a sampled partition in the table."""
    return f"seed {seed} ({what})"


def goes_with() -> pd.DataFrame:
    """Correlation, over the runs of five rounds, of each measure with the best accuracy of FML's and HBFL's global models
    and with HBFL's lead; from the table here and the records under `results/`."""
    reached: dict[str, dict[str, float]] = {}
    for cell, folder in finished_runs.cells("hbfl-readings"):
        if cell["experiment"] == "draws":
            best = (RunRecord(folder).summary or {})["global"]["accuracy_best"]
            reached.setdefault(named(cell["seed"], FIVE_ROUNDS), {})[cell["method"]] = best
    accuracies = pd.DataFrame.from_dict(reached, orient="index")
    accuracies["HBFL less FML"] = accuracies["HBFL"] - accuracies["FML"]
    measures = pd.read_csv(PATH, index_col="draw").loc[accuracies.index, list(COLUMNS)]
    return pd.DataFrame({of: measures.corrwith(accuracies[of]) for of in accuracies}).round(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    run = bayesfed.load_run(args.run, data=args.data)
    (_, train), (images, test) = run.images("train"), run.images("test")
    log_p = run.server["global"].log_probabilities(images).double().numpy()
    scheme = Dirichlet(alpha=ALPHA)

    def drawn(seed: int) -> dict[str, float]:
        return row(log_p, train, test, divide(train, test, scheme, seed))

    many = pd.DataFrame([drawn(seed) for seed in range(FIRST, FIRST + DRAWS)])
    ours = {named(seed, what): drawn(seed) for what, seeds in SEEDS.items() for seed in seeds}
    found = table(many, pd.DataFrame.from_dict(ours, orient="index"))
    right = (log_p.argmax(1) == test).mean()
    found.loc["the judge on all test images", "judged_percent"] = round(100 * right, 1)
    found.to_csv(PATH)
    print(found.to_string())
    print(goes_with().to_string())


if __name__ == "__main__":
    main()
