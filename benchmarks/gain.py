"""What HBFL's gain over FML is made of: finished runs of both and of FedAvg, as the paper has them and otherwise, side by side.

Nothing is trained: the records under `results/` are read, and `python -m benchmarks.pages` shows what comes out.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from bayesfed import plan
from bayesfed.results import runs
from benchmarks.common import HERE

# Experiments in which HBFL's networks and rounds are Table 1's, but for the method; the second config's have fewer rounds.
CONFIGS = {"paper": ("ablation", "by_adam", "falling_rate"), "hbfl-readings": ("readings", "falling")}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "100": "IID", "0.05": "Non-IID"}
PAIRS = (
    ("HBFL", "FML"),
    ("HBFL SGD", "FML"),
    ("HBFL", "FML Adam"),
    ("HBFL", "FML uniform Adam"),
    ("HBFL", "FML uniform"),
    ("HBFL", "FML uniform, falling rate"),
    ("HBFL", "FedAvg Adam"),
    ("HBFL SGD", "FedAvg"),
    ("FedAvg", "FML"),
    ("HBFL", "HBFL plain mean"),
    ("HBFL", "HBFL without noise"),
    ("HBFL unscaled", "HBFL"),
    ("HBFL unscaled", "FML"),
    ("HBFL, decoupled decay", "HBFL unscaled"),
    ("HBFL, decoupled decay", "FML"),
)
FIVE, TEN = 5, 10
Runs = dict[tuple[str, str], dict[str, Path]]


def cells(config: str) -> Iterator[tuple[dict[str, Any], Path]]:
    """HBFL's cells of a config whose runs are finished, with their folders."""
    with contextlib.chdir(HERE.parent):
        asked = plan.read_mapping(Path("config", f"{config}.yaml"))
        alone = {} if asked["papers"] == ["hbfl"] else {"papers": ["hbfl"], "experiments": {}}
        made, _ = plan.make(asked | alone)
    for cell in made["cells"]:
        folder = HERE.parent / "results" / config / "runs" / cell["folder"]
        if runs.summary(folder):
            yield cell, folder


@cache
def finished() -> Runs:
    """By dataset with setting, and column (the seed, and its rounds where they are fewer): the folders of finished runs by method."""
    found: Runs = {}
    for config, experiments in CONFIGS.items():
        for cell, folder in cells(config):
            if cell["experiment"] in experiments:
                rounds = f", {cell['rounds']} rounds" if cell["changes"] else ""
                place = f"{NAMES[cell['dataset']]}, {NAMES[cell['alpha']]}", f"seed {cell['seed']}{rounds}"
                falling = ", falling rate" if cell["experiment"].startswith("falling") else ""
                found.setdefault(place, {})[cell["method"] + falling] = folder
    return found


def by_seed(where: str) -> list[tuple[str, str, str]]:
    """Of one dataset and setting, method, column and the global model's accuracy: the best round's and the mean of the last five's, %.

    Of methods that have a run on a seed of the paper's tables; what has fewer rounds alone is the search's.
    """
    ours = {method for (_, column), methods in finished().items() if "rounds" not in column for method in methods}
    shown = []
    for (at, column), methods in finished().items():
        for method, folder in methods.items() if at == where else ():
            if method not in ours:
                continue
            reached = (runs.summary(folder) or {})["global"]
            numbers = (f"{100 * reached[name]:.1f}" for name in ("accuracy_best", "accuracy_last5"))
            shown.append((method, column, " / ".join(numbers)))
    return shown


def compared(first: Path, second: Path) -> dict[str, str]:
    """How far the first run is ahead of the second, in points: its global model in the mean of the first and of the last ten
    rounds; in how many rounds it is, and in which last by its five-round mean; its clients, by best rounds and by the last five."""
    ours, theirs = (runs.curves(folder)["global"] for folder in (first, second))
    ahead = [ours[round] - theirs[round] for round in sorted(ours)]
    means = [fmean(ahead[end - FIVE : end]) for end in range(FIVE, len(ahead) + 1)]
    last = max((at for at, mean in enumerate(means, FIVE) if mean > 0), default=0)
    clients = [(runs.summary(folder) or {})["clients"] for folder in (first, second)]
    by_best, by_last5 = (
        fmean(ours) - fmean(theirs)
        for ours, theirs in ([of[name] for of in clients] for name in ("accuracy_best", "accuracy_last5"))
    )
    return {
        "first ten rounds": f"{100 * fmean(ahead[:TEN]):+.1f}",
        "last ten": f"{100 * fmean(ahead[-TEN:]):+.1f}",
        "ahead in": f"{sum(each > 0 for each in ahead)} of {len(ahead)}",
        "last ahead by five-round mean": str(last or "never"),
        "clients, best": f"{100 * by_best:+.1f}",
        "clients, last five": f"{100 * by_last5:+.1f}",
    }


def pairs() -> Iterator[dict[str, str]]:
    """Every pair of runs on one seed that tells something apart, see `compared`."""
    found = finished()
    for first, second in PAIRS:
        for (where, column), methods in found.items():
            if first in methods and second in methods:
                yield {"ahead of": f"{first} of {second}", "where": f"{where}, {column}"} | compared(
                    methods[first], methods[second]
                )
