"""Ways of cutting test images into shards, compared with HBFL's published client accuracies: nothing is trained.

    python -m analyses.hbfl.shard_sizes

A client's accuracy is m / n, n its test images, and is printed twice, for FML and for HBFL, to two decimals: few n within
four standard deviations of a rule's mean can give both. Where a rule deals all images out the n of all clients sum to
10 000, too. For each rule at alpha 100: in how many ways that can be, how far the likeliest lies from the rule's own draws
(chi-square), and the probability that a draw fits, by a Gaussian of the draws' mean and covariance.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]


PATH = Path(__file__).with_name("shard_sizes.csv")
PRINTED = Path(ROOT, "config", "papers", "hbfl.published.csv")
CLASSES = {"CIFAR10": 10, "CIFAR100": 100}
IMAGES, CLIENTS, ALPHA, DRAWS, DEVIATIONS = 10_000, 10, 100.0, 4000, 4
Shares = NDArray[np.float64]  # of the clients in each class: (classes, clients)
Sizes = NDArray[np.int64]  # images of each client: (clients,), or of many draws (draws, clients)
Rule = Callable[[Shares, int, np.random.Generator], Sizes]


def cut(rounded: Callable[[Shares], Shares]) -> Rule:
    """Cut each class where the shares' sum, times the images of a class and rounded, says so; the last client has the
    rest."""

    def rule(shares: Shares, images: int, random: np.random.Generator) -> Sizes:
        ends = rounded(shares.cumsum(1) * images).astype(np.int64)
        ends[:, -1] = images
        return np.diff(ends, axis=1, prepend=0).sum(0)

    return rule


RULES: dict[str, Rule] = {
    "classes cut at floor(cumsum(p) n): our default": cut(np.floor),
    "classes cut at cumsum(p) n to the nearest": cut(np.round),
    "floor(p n) images of each class, the rest left (FOLA's code)": lambda shares, n, _: (
        np.floor(shares * n).sum(0).astype(np.int64)
    ),
    "each image to a client drawn by p": lambda shares, n, random: random.multinomial(n, shares).sum(0),
    "clients of equal size": lambda shares, n, _: np.full(shares.shape[1], shares.shape[0] * n // shares.shape[1]),
}


def fits(images: int, percent: float) -> bool:
    """Return whether a whole number of so many images is that percentage, to two decimals."""
    nearest = round(percent * images / 100)
    return any(
        f"{100 * m / images:.2f}" == f"{percent:.2f}" for m in range(nearest - 1, nearest + 2) if 0 <= m <= images
    )


def row(draws: Sizes, printed: list[list[float]]) -> dict[str, object]:
    """Return the sets of sizes that fit: how many, the probability of any of them, and the likeliest with its squared
    Mahalanobis distance from the mean of a rule's draws (draws, clients), which is chi-square distributed.

    `printed`: the percentages of each client.
    """
    mean, spread = draws.mean(0), draws.std(0)
    near = [
        range(int(np.ceil(m - DEVIATIONS * s)), int(m + DEVIATIONS * s) + 1) for m, s in zip(mean, spread, strict=True)
    ]
    able = [[n for n in window if all(fits(n, p) for p in own)] for window, own in zip(near, printed, strict=True)]
    sums = draws.sum(1)
    found = np.array([sizes for sizes in itertools.product(*able) if sums.min() <= sum(sizes) <= sums.max()])
    if not len(found):
        return {"sets": 0}
    free = slice(
        draws.shape[1] - (sums.min() == sums.max())
    )  # where the sum is fixed, the last size follows from the others
    covariance, off = np.cov(draws[:, free].T), (found - mean)[:, free]
    distance = np.einsum("si,ij,sj->s", off, np.linalg.inv(covariance), off)
    best, probability = distance.argmin(), np.exp(-distance / 2).sum() / np.sqrt(np.linalg.det(2 * np.pi * covariance))
    return {
        "sets": len(found), "chi_square": f"{distance[best]:.1f}", "probability": f"{probability:.0e}",
        "sizes": " ".join(map(str, found[best])),
    }  # fmt: skip


def main() -> None:
    printed = pd.read_csv(PRINTED)
    printed = printed[printed["item"].isin(["table2", "table3"]) & (printed["alpha"] == ALPHA)]
    rows = []
    for (dataset, classes), (name, rule) in itertools.product(CLASSES.items(), RULES.items()):
        random = np.random.default_rng(0)
        shares = random.dirichlet(np.full(CLIENTS, ALPHA), (DRAWS, classes))
        draws = np.array([rule(each, IMAGES // classes, random) for each in shares])
        own = printed[printed["dataset"] == dataset].groupby("client")["value"].apply(list)
        rows.append({"dataset": dataset, "rule": name} | row(draws, own.tolist()))
    found = pd.DataFrame(rows).astype({"sets": int})
    found.to_csv(PATH, index=False)
    print(found.to_string())


if __name__ == "__main__":
    main()
