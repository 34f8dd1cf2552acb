"""Tables of docs/results/tables/hbfl-analysis.md: HBFL's, FML's and FedAvg's finished runs, as the paper has them and
otherwise.

Nothing is trained: the records under `results/` are read, and `python -m analyses.pages` shows what comes out.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from bayesfed.plan import plan
from bayesfed.results import csv_file
from bayesfed.results.run_records import RunRecord

ROOT = Path(__file__).parents[2]

# Experiments in which HBFL's networks and rounds are Table 1's, but for the method; the second config's have fewer rounds.
CONFIGS = {"paper": ("ablation", "by_adam", "falling_rate", "falling_once"), "hbfl-readings": ("readings", "falling")}
RATES = {
    "falling_rate": ", falling learning rate",
    "falling": ", falling learning rate",
    "falling_once": ", learning rate falls once",
}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "100": "IID", "0.05": "Non-IID"}
PAIRS = (
    ("HBFL", "FML"),
    ("HBFL SGD", "FML"),
    ("HBFL", "FML Adam"),
    ("HBFL", "FML uniform Adam"),
    ("HBFL", "FML uniform"),
    ("HBFL", "FML uniform, falling learning rate"),
    ("HBFL", "FML uniform, learning rate falls once"),
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
OF_FIGURE_3 = tuple(("HBFL", other) for other in ("FML", "FedAvg", "FedProx", "ABAVG"))
FIVE, TEN = 5, 10
ENDS = (10, 20, 40, 100)
SETTLED = 20  # round from which swings are measured
FEW = 20  # test images of a client whose accuracy is one of a few numbers
Runs = dict[tuple[str, str], dict[str, Path]]


def cells(config: str) -> Iterator[tuple[dict[str, Any], Path]]:
    """HBFL's cells of a config whose runs are finished and have not diverged, with their folders."""
    with contextlib.chdir(ROOT):
        asked = plan.read_mapping(Path("config", f"{config}.yaml"))
        alone = {} if asked["papers"] == ["hbfl"] else {"papers": ["hbfl"], "experiments": {}}
        made, _ = plan.make(asked | alone)
    for cell in made["cells"]:
        folder = ROOT / "results" / config / "runs" / cell["folder"]
        summary = RunRecord(folder).summary
        if summary and not summary.get("diverged"):
            yield cell, folder


@cache
def finished() -> Runs:
    """Return the folders of finished runs by method: by dataset with setting, and column (the seed, and its rounds if
    fewer).
    """
    found: Runs = {}
    for config, experiments in CONFIGS.items():
        for cell, folder in cells(config):
            if cell["experiment"] in experiments:
                rounds = f", {cell['rounds']} rounds" if cell["changes"] else ""
                place = f"{NAMES[cell['dataset']]}, {NAMES[cell['alpha']]}", f"seed {cell['seed']}{rounds}"
                found.setdefault(place, {})[cell["method"] + RATES.get(cell["experiment"], "")] = folder
    return found


def by_seed(where: str) -> list[tuple[str, str, str]]:
    """Return, for one dataset and setting, method, column and the global model's accuracy: the best round's and the
    mean of the last five's, %.

    Of methods that have a run on a seed of the paper's tables; what has fewer rounds alone is the search's.
    """
    ours = {method for (_, column), methods in finished().items() if "rounds" not in column for method in methods}
    shown = []
    for (at, column), methods in finished().items():
        for method, folder in methods.items() if at == where else ():
            if method not in ours:
                continue
            reached = (RunRecord(folder).summary or {})["global"]
            numbers = (f"{100 * reached[name]:.1f}" for name in ("accuracy_best", "accuracy_last5"))
            shown.append((method, column, " / ".join(numbers)))
    return shown


def searched() -> dict[str, dict[str, Path]]:
    """Return, by seed, the finished runs of the search in which one assumption is changed: the folders by method."""
    where = f"{NAMES['cifar10']}, {NAMES['0.05']}"
    return {
        column.partition(",")[0]: {name: folder for name, folder in methods.items() if "falling" not in name}
        for (at, column), methods in finished().items()
        if at == where and "rounds" in column
    }


def base_of(method: str) -> str:
    """Return the method whose assumption it changes: `HBFL, sigma kept` is HBFL's."""
    return method.replace(",", " ").split()[0]


@cache
def on_mnist() -> Runs:
    """Figure 3's finished runs on MNIST: by alpha and seed, the folders by method."""
    found: Runs = {}
    for cell, folder in cells("paper"):
        if cell["experiment"] == "homogeneous" and cell["dataset"] == "mnist":
            found.setdefault((f"MNIST, alpha {cell['alpha']}", f"seed {cell['seed']}"), {})[cell["method"]] = folder
    return found


def five_round_means(values: dict[int, float]) -> dict[int, float]:
    """Return, by round, the mean of it and the four before it."""
    each = [values[number] for number in sorted(values)]
    return {end: fmean(each[end - FIVE : end]) for end in range(FIVE, len(each) + 1)}


def compared(first: Path, second: Path) -> dict[str, str]:
    """Return how far the first run is ahead of the second, in points: its global model in the mean of the first and of
    the last ten rounds; in how many rounds it is, and in which last by its five-round mean; its clients, in the mean,
    and how many of them, by best rounds and by the last five.
    """
    ours, theirs = (RunRecord(folder).curves["global"] for folder in (first, second))
    ahead = {number: ours[number] - theirs[number] for number in sorted(ours)}
    each = list(ahead.values())
    last = max((at for at, mean in five_round_means(ahead).items() if mean > 0), default=0)
    told = {
        "first ten rounds": f"{100 * fmean(each[:TEN]):+.1f}",
        "last ten": f"{100 * fmean(each[-TEN:]):+.1f}",
        "ahead in": f"{sum(points > 0 for points in each)} of {len(each)}",
        "last ahead by five-round mean": str(last or "never"),
    }
    clients = [(RunRecord(folder).summary or {})["clients"] for folder in (first, second)]
    for when, name in (("best", "accuracy_best"), ("last five", "accuracy_last5")):
        points = [mine - other for mine, other in zip(*(of[name] for of in clients), strict=True)]
        told[f"clients, {when}"] = f"{100 * fmean(points):+.1f}"
        told[f"clients ahead, {when}"] = f"{sum(point > 0 for point in points)} of {len(points)}"
    return told


def pairs(found: Runs, wanted: tuple[tuple[str, str], ...]) -> Iterator[dict[str, str]]:
    """Yield each wanted pair of runs on one seed; see `compared`."""
    for first, second in wanted:
        for (where, column), methods in found.items():
            if first in methods and second in methods:
                yield {"ahead of": f"{first} of {second}", "where": f"{where}, {column}"} | compared(
                    methods[first], methods[second]
                )


def along() -> Iterator[dict[str, str]]:
    """Yield, for every run of HBFL and FML as the paper has them, the global model's five-round mean, %, at some
    rounds' end, its best less the last of them, and by how much it differs from round to round in the second half, in
    the mean.
    """
    for (where, column), methods in finished().items():
        for method in ("HBFL", "FML"):
            if method in methods:
                curve = RunRecord(methods[method]).curves["global"]
                means, late = five_round_means(curve), [curve[number] for number in sorted(curve)[len(curve) // 2 :]]
                swings = [abs(after - before) for before, after in itertools.pairwise(late)]
                reached = {f"round {end}": f"{100 * means[end]:.1f}" if end in means else "" for end in ENDS}
                yield {"": f"{method}, {where}, {column}"} | reached | {
                    "best less last": f"{100 * (max(curve.values()) - list(means.values())[-1]):.1f}",
                    "from round to round, late": f"{100 * fmean(swings):.1f}",
                }  # fmt: skip


def swings() -> Iterator[dict[str, str]]:
    """Yield, for runs on CIFAR-10 at alpha 0.05, how the global model's accuracy swings from round SETTLED on: its mean
    distance from the mean of the rounds before and after, in points; how often that distance changes its sign, in percent,
    73 for independent rounds and 100 for a swing of period two; and the best round less the last five, in points.
    """
    for (where, column), methods in finished().items():
        for method, folder in methods.items() if where == f"{NAMES['cifar10']}, {NAMES['0.05']}" else ():
            if base_of(method) in ("FML", "FedAvg") or method in ("HBFL", "HBFL SGD"):
                curve = RunRecord(folder).curves["global"]
                each = [100 * curve[number] for number in sorted(curve)]
                late = each[SETTLED - 1 :]
                away = [
                    now - (before + after) / 2 for before, now, after in zip(late, late[1:], late[2:], strict=False)
                ]
                turns = [one * other < 0 for one, other in itertools.pairwise(away)]
                yield {
                    "": f"{method}, {column}",
                    "swing": f"{fmean(map(abs, away)):.1f}",
                    "turns, %": f"{100 * fmean(turns):.0f}",
                    "best less last five": f"{max(each) - fmean(each[-FIVE:]):.1f}",
                }


def precisions() -> Iterator[dict[str, str]]:
    """Yield how much two clients' precisions differ at most in each run of HBFL, over all parameters, and the server's
    mean sigma.
    """
    for (where, column), methods in finished().items():
        for method, folder in methods.items():
            if spread := RunRecord(folder).diagnostics.get("log_precision_spread", {}):
                sigma = RunRecord(folder).diagnostics.get("sigma_mean", {})
                yield {"": f"{method}, {where}, {column}"} | {
                    "last round": f"{math.exp(spread[max(spread)]):.3g}",
                    "most in a round": f"{math.exp(max(spread.values())):.3g}",
                    "mean sigma, last round": f"{sigma[max(sigma)]:.4f}",
                }


def clients(name: str) -> Iterator[dict[str, str]]:
    """Yield, for a dataset at alpha 0.05, each client's test images on each seed of Table 2 or 3, and how far FML and
    HBFL are from the published numbers there, in points of the client's best round; then the means, of all and of
    those with more than a few images.
    """
    where = f"{name}, {NAMES['0.05']}"
    published = {
        (row["method"], int(row["client"])): float(row["value"])
        for row in csv_file.read(ROOT / plan.PAPERS / "hbfl.published.csv")
        if row["client"] and (row["dataset"], row["alpha"]) == (name.replace("-", ""), "0.05")
    }
    number = max(client for _, client in published)
    titles = {str(k): f"client {k}" for k in range(1, number + 1)}
    titles |= {"all": "mean", "many": f"mean of those with more than {FEW} test images"}
    told = {row: {name: title} for row, title in titles.items()}
    for (at, column), methods in finished().items():
        if at != where or "rounds" in column or not {"FML", "HBFL"} <= methods.keys():
            continue
        # Older records do not say it; some other of the same shards does.
        images = next(
            of["test_images"]
            for of in (RunRecord(one).summary for one in methods.values())
            if of and "test_images" in of
        )
        for k in range(number):
            told[str(k + 1)][f"{column}: test images"] = str(images[k])
        for method in ("FML", "HBFL"):
            best = (RunRecord(methods[method]).summary or {})["clients"]["accuracy_best"]
            away = [100 * best[k] - published[method, k + 1] for k in range(number)]
            head = f"{column}: {method} less the published"
            for k in range(number):
                told[str(k + 1)][head] = f"{away[k]:+.1f}"
            told["all"][head] = f"{fmean(away):+.1f}"
            told["many"][head] = f"{fmean(a for a, n in zip(away, images, strict=True) if n > FEW):+.1f}"
    yield from told.values()


def computed() -> Iterator[dict[str, str]]:
    """Yield where and in which precision HBFL's finished runs were computed, one after another where there were
    several places, and how many so of the tables and figures and of the search. A run on a GPU and elsewhere has a row
    of its own, with its rounds.
    """
    counts: dict[str, dict[str, int]] = {}
    for config in CONFIGS:
        for folder, cell in {folder: cell for cell, folder in cells(config)}.items():
            made = RunRecord(folder).provenance
            sessions = [(one["by"]["hardware"], one["rounds"]) for one in made.get("sessions", [])] or [
                (made["hardware"], 0)
            ]
            rounds: dict[str, int] = {}
            for name, many in sessions:
                rounds[name] = rounds.get(name, 0) + many
            where = " then ".join(rounds)
            if len(rounds) > 1 and any("NVIDIA" in name for name in rounds):
                of = f"{cell['method']}, {cell['used']}, alpha {cell['alpha']}, seed {cell['seed']}"
                where = " then ".join(f"{name} ({many} rounds)" for name, many in rounds.items()) + f": {of}"
            found = counts.setdefault(f"{where}, {made['precision']}", dict.fromkeys(CONFIGS, 0))
            found[config] += 1
    for where, found in sorted(counts.items()):
        yield {"computed on": where} | {f"runs of `{config}`": str(number) for config, number in found.items()}
