"""Methods side by side on grounds: every value of every run that a comparison shows, from the records of its plan.

A ground is a dataset, a partition and a network, on which several methods ran with the same seeds. It has two sides: the
server's model on the full test set (`global`), and the clients' models on their own test images (`personal`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from bayesfed.results import hardware, whole_run
from bayesfed.results.formatting import unique
from bayesfed.results.records import DIVERGED
from bayesfed.results.run_records import Curve, RunRecord, mean_of, number
from bayesfed.results.statistics import FOREIGN, Statistic
from bayesfed.results.whole_run import UNRECORDED, Found, tenth

PLAIN = ", plain"  # ends the label of a method without its Bayesian part
SIDES = {"global": "Global model", "personal": "Personal models"}
SHARE = 0.95  # of the baseline's accuracy: bytes are counted until that is reached, too
FALL = 10  # points of accuracy below a method's median, at which a seed says that it has failed
OTHER_HARDWARE, OTHER_THREADS, OTHER_WORK, NO_BASELINE = (
    "on other hardware",
    "by another number of threads",
    "beside other work",
    "no run of the baseline",
)
Seed = TypeVar("Seed", int, str)
WAITED = 1.2  # times a CPU's seconds, from which on a run has shared its cores: its own seconds then grow, too


@dataclass(frozen=True)
class Trial:
    """A run on a ground. cost: multiply-adds, by the plan's estimate; server_images: training images of the server's own."""

    method: str
    seed: str
    run: RunRecord
    foreign: tuple[str, ...]
    cost: int
    server_images: int

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary of its run, empty while that is not finished."""
        return self.run.summary or {}

    @property
    def shared(self) -> bool:
        """Return whether other work has taken the cores of its CPU in part."""
        spent, passed = (self.summary.get(name) for name in ("cpu_seconds", "train_seconds"))
        return bool(self.run.provenance["device"] == "cpu" and spent and passed > WAITED * spent)

    def validated(self, model: str) -> float | None:
        """Return the accuracy in [0, 1] of a model of the clients on validation images."""
        tested: Mapping[str, Any] = (self.summary.get("validation") or {}).get("clients") or {}
        return number(tested.get(model, {}).get("accuracy"))


def usual(done: Iterable[tuple[str, Seed]]) -> list[Seed]:
    """Return the seeds that more than half of the methods have, of finished runs' methods and seeds."""
    done = set(done)
    counts, methods = Counter(seed for _, seed in done), {method for method, _ in done}
    return sorted(seed for seed, count in counts.items() if 2 * count > len(methods))


@dataclass(frozen=True)
class Ground:
    """A ground with its runs, method -> seed -> run, and the label of the method that others are measured against."""

    name: str
    dataset: str
    alpha: str
    model: str
    clients: int
    rounds: int
    baseline: str
    trials: Mapping[str, Mapping[str, Trial]]

    @cached_property
    def seeds(self) -> frozenset[str]:
        """The seeds that count: those of finished runs of more than half of the methods that have any."""
        every = self.trials.items()
        return frozenset(usual((name, seed) for name, of in every for seed, one in of.items() if one.summary))

    def counted(self, method: str) -> dict[str, Trial]:
        """Return a method's finished runs by seed, of the seeds that count."""
        every = self.trials.get(method, {})
        return {seed: trial for seed, trial in every.items() if trial.summary and seed in self.seeds}

    def value(self, column: Column, side: str, trial: Trial) -> Found:
        """Find a run's value of a column, or why there is none."""
        if trial.summary.get("diverged"):
            return DIVERGED
        found = column.find(self, side, trial)
        return found if isinstance(found, str) or math.isfinite(found) else "not a number"

    def values(self, column: Column, side: str, method: str) -> tuple[dict[str, float], str]:
        """Return a method's values by seed, and why finished runs have none."""
        found = {seed: self.value(column, side, trial) for seed, trial in self.counted(method).items()}
        why = unique(one for one in found.values() if isinstance(one, str))
        return {seed: one for seed, one in found.items() if isinstance(one, float)}, " or ".join(why)

    def methods(self, side: str) -> list[str]:
        """List the methods with a finished run that have this side."""
        return [method for method, trials in self.trials.items() if any(has(one, side) for one in trials.values())]

    @cached_property
    def target(self) -> Mapping[str, float]:
        """The accuracy in [0, 1] that `megabytes_to` counts to, by side: SHARE of the baseline's mean; none without it."""
        means = {side: self.values(ACCURACY, side, self.baseline)[0].values() for side in SIDES}
        return {side: SHARE * statistics.fmean(found) / 100 for side, found in means.items() if found}

    @cached_property
    def failing(self) -> Mapping[str, Mapping[str, int]]:
        """Side -> method -> its seeds without an accuracy, or with one FALL points or more below the method's median.

        The median is of three seeds or more: of two, neither can be told to be the one that failed.
        """
        found: dict[str, dict[str, int]] = {side: {} for side in SIDES}
        for side in SIDES:
            for method in self.methods(side):
                values = self.values(ACCURACY, side, method)[0].values()
                low = statistics.median(values) - FALL if len(values) > 2 else -math.inf
                fallen = sum(value <= low for value in values)
                fallen += len(self.counted(method)) - len(values)
                found[side] |= {method: fallen} if fallen else {}
        return found

    @cached_property
    def mean_models(self) -> Mapping[str, str]:
        """The clients' model by which a method counts: of several the best by mean validation accuracy over the seeds, the
        first without validation.
        """
        found = {}
        for method, trials in self.trials.items():
            finished = [trial for trial in trials.values() if trial.summary]
            models = unique(model for trial in finished for model in trial.run.client_models)
            values = {model: [trial.validated(model) or 0.0 for trial in finished] for model in models}
            whole = (model for model in models if not model.endswith("_sampled"))
            found[method] = max(whole, key=lambda model: sum(values[model]), default="")
        return found

    @cached_property
    def client_models(self) -> Mapping[str, str]:
        """What the clients of a method predict with: the average over weight samples of `mean_models` where there is one."""
        found = {}
        for method, mean in self.mean_models.items():
            finished = [trial for trial in self.trials[method].values() if trial.summary]
            sampled = any(f"{mean}_sampled" in trial.run.client_models for trial in finished)
            found[method] = f"{mean}_sampled" if sampled else mean
        return found

    def accuracies(self, side: str, trial: Trial) -> Curve:
        """Return the accuracy in [0, 1] by round: the server's, or the mean over the clients."""
        if side == "global":
            return trial.run.curves.get("global", {})
        return mean_of(trial.run.of_clients(self.mean_models[trial.method]))

    def predictor(self, trial: Trial, side: str) -> str:
        """Name the predictor that a run's method is for, "" without this side: its average over samples where it has one."""
        if side == "personal":
            return self.client_models[trial.method]
        return whole_run.predictive(trial.run) if trial.summary.get("global") else ""

    def beside(self, trial: Trial) -> list[Trial] | str:
        """List the baseline's runs on the same hardware, those that shared it with nothing where there are any, or say why
        there are none. A run's time does not depend on its seed.
        """
        others = [one for one in self.finished(self.baseline) if not one.summary.get("diverged")]
        if not others:
            return NO_BASELINE
        alike = [one for one in others if made_on(one) == made_on(trial)]
        if not alike:
            return OTHER_HARDWARE
        own = [one for one in alike if threads(one) == threads(trial)]
        if not own:
            return OTHER_THREADS
        return [one for one in own if not one.shared] or own

    def rough(self, method: str) -> bool:
        """Return whether a method's time is a guess: other work ran beside all its runs, or all those that one is beside."""
        own = self.finished(method)
        alone = [one for one in own if not one.shared]
        beside = [others for one in alone or own if not isinstance(others := self.beside(one), str)]
        return not alone or any(all(one.shared for one in others) for others in beside)

    def finished(self, method: str) -> list[Trial]:
        """List the finished runs of a method, of the seeds that count."""
        return list(self.counted(method).values())


def made_on(trial: Trial) -> tuple[object, ...]:
    """Return the machines, the device and the precision of a run."""
    made = trial.run.provenance
    return frozenset(hardware.machines(made)), made["device"], made["precision"]


def threads(trial: Trial) -> dict[str, set[str]]:
    """Return the numbers of threads of a run, by machine."""
    return {name: set(found) for name, found in hardware.machines(trial.run.provenance).items()}


def has(trial: Trial, side: str) -> bool:
    """Return True if a finished run has tested models of a side, one that diverged included."""
    return bool(trial.summary and (trial.run.curves.get("global") if side == "global" else trial.run.mean_of_clients))


@dataclass(frozen=True)
class Column:
    """A column: its title, the way to find its value in a run, and how it is shown. words: what it is, in full."""

    name: str
    title: str
    words: str
    find: Callable[[Ground, str, Trial], Found]
    rising: bool = False
    decimals: int = 3

    @property
    def head(self) -> str:
        """The title with an arrow: up where higher is better, down where lower is."""
        return f"{self.title} {'↑' if self.rising else '↓'}"


def accuracy(ground: Ground, side: str, trial: Trial) -> Found:
    """Find the accuracy of the last five rounds in percent: the server's, or the mean over the clients."""
    curve = ground.accuracies(side, trial)
    return 100 * last(curve) if curve else UNRECORDED


def last(curve: Curve) -> float:
    """Compute the mean of a curve's last five rounds."""
    return statistics.fmean(curve[at] for at in sorted(curve)[-5:])


def measured(metric: str, scale: float = 1) -> Callable[[Ground, str, Trial], Found]:
    """Return the way to find a metric of what a method predicts with, in the last round; `foreign`: the OOD images."""

    def find(ground: Ground, side: str, trial: Trial) -> Found:
        model = ground.predictor(trial, side)
        name = f"{FOREIGN}{trial.foreign[0]}" if metric == "foreign" and trial.foreign else metric
        if not model:
            return UNRECORDED
        of_shards = not name.startswith("auroc")  # these are of clients on the full test set alone
        curves = trial.run.measured(model) if side == "global" else trial.run.over_clients(model, shards=of_shards)
        return scale * curves[name][max(curves[name])] if curves.get(name) else UNRECORDED

    return find


def worst_tenth(ground: Ground, side: str, trial: Trial) -> Found:
    """Find the accuracy in percent of the worst tenth of the clients on their own test images, last five rounds."""
    if side == "global":
        found = whole_run.spread(trial.summary, Statistic("last5", "spread", "global_on_shard", of="worst10"))
        return found if isinstance(found, str) else 100 * found
    curves = trial.run.of_clients(ground.mean_models[trial.method])
    values = sorted(map(last, curves))
    return 100 * statistics.fmean(values[: tenth(values)]) if values else UNRECORDED


def megabytes(ground: Ground, side: str, trial: Trial) -> Found:
    """Find the megabytes sent both ways in all rounds."""
    return sum(trial.summary["bytes"].values()) / 1e6 if "bytes" in trial.summary else UNRECORDED


def megabytes_to(ground: Ground, side: str, trial: Trial) -> Found:
    """Find the megabytes sent both ways until the ground's target is reached."""
    if side not in ground.target:
        return NO_BASELINE
    return whole_run.sent_until(trial.run, ground.accuracies(side, trial), ground.target[side])


def seconds(ground: Ground, side: str, trial: Trial) -> Found:
    """Find the seconds of a run in the mean of the baseline's on the same hardware.

    On a CPU those that its cores spent, of runs that shared them with nothing where there are any; on a GPU those that
    passed.
    """
    if trial.shared and not all(one.shared for one in ground.finished(trial.method)):
        return OTHER_WORK
    others = ground.beside(trial)
    if isinstance(others, str):
        return others
    kind = "cpu_seconds" if trial.run.provenance["device"] == "cpu" else "train_seconds"
    own, *theirs = (one.summary.get(kind) or 0.0 for one in (trial, *others))
    return own / statistics.fmean(theirs) if own and all(theirs) else UNRECORDED


def computation(ground: Ground, side: str, trial: Trial) -> Found:
    """Find the multiply-adds of training in those of the baseline: counted where both records have them, else planned."""
    other = ground.trials.get(ground.baseline, {}).get(trial.seed)
    if other is None or other.summary.get("diverged"):
        return NO_BASELINE
    counted = [one.summary.get("multiply_adds") for one in (trial, other)]
    own, theirs = (sum((one or {}).values()) for one in counted)
    return own / theirs if own and theirs else trial.cost / other.cost


def passes(ground: Ground, side: str, trial: Trial) -> Found:
    """Find the passes through networks for one prediction."""
    counted = (trial.summary.get("passes") or {}).get("global" if side == "global" else "clients") or {}
    value = number(counted.get(ground.predictor(trial, side)))
    return UNRECORDED if value is None else value


def server_images(ground: Ground, side: str, trial: Trial) -> Found:
    """Return the number of training images of the server's own."""
    return float(trial.server_images)


ACCURACY = Column("accuracy", "Accuracy %", "accuracy in percent, mean of the last five rounds", accuracy, True, 2)
COLUMNS = (
    ACCURACY,
    Column("predictive", "Predictive %", "accuracy in percent of what the method predicts with, last round", measured("accuracy", 100), True, 2),
    Column("nll", "NLL", "negative log-likelihood in nats of what the method predicts with, last round", measured("nll")),
    Column("ece", "ECE %", "expected calibration error in percent, 15 bins, last round; of clients' models the mean over the clients, each on its own test images. Few images raise it: a calibrated model has some by chance", measured("ece", 100), decimals=2),
    Column("brier", "Brier", "Brier score, last round", measured("brier")),
    Column("ood", "OOD AUROC", "AUROC of entropy for OOD images among test images, last round: mean of five random draws of up to 1000 of each", measured("foreign"), True),
    Column("mistakes", "Mistake AUROC", "AUROC of entropy for its own mistakes on the full test set, last round: mean of five random draws of as many right as wrong images", measured("auroc_mistakes"), True),
    Column("worst", "Worst 10 %", "accuracy in percent of the worst tenth of the clients (of ten the worst one, however few images it has), last five rounds", worst_tenth, True, 2),
    Column("megabytes", "MB", "megabytes sent both ways in all rounds", megabytes, decimals=0),
    Column("megabytes_to", "MB to target", f"megabytes until {SHARE:.0%} of the baseline's accuracy is reached", megabytes_to, decimals=0),
    Column("time", "Time ratio", "time of all rounds, tests included, baseline = 1, same hardware: on a CPU what its cores spent in runs without other work beside them, on a GPU what passed", seconds, decimals=2),
    Column("computation", "Compute ratio", "multiply-adds of training, baseline = 1; not counted are second derivatives, squares of single images' gradients, pFedVEM's further heads and Gaussian processes; in records of ABAVG, FedAvg temperature and pFedGP also passes outside of steps", computation, decimals=2),
    Column("passes", "Passes", "passes through networks for one prediction; 1: the mean network alone", passes, decimals=0),
    Column("server_images", "Server images", "training images of the server's own, which no client trains on", server_images, decimals=0),
)  # fmt: skip
QUALITY, TIME, SERVER_IMAGES = COLUMNS[:8], COLUMNS[10], COLUMNS[-1]
"""Columns that say how good a method is; the others say what it costs."""


def shown_columns(grounds: Sequence[Ground], side: str) -> list[Column]:
    """List the columns of which any run on this side has a value; server images where it has any."""
    every = [(ground, method) for ground in grounds for method in ground.methods(side)]
    found = {column: [ground.values(column, side, method)[0] for ground, method in every] for column in COLUMNS}
    empty = {column for column, values in found.items() if not any(values)}
    if not any(any(of.values()) for of in found[SERVER_IMAGES]):
        empty.add(SERVER_IMAGES)
    return [column for column in COLUMNS if column not in empty]
