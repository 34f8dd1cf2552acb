"""A paper as a config runs it, its records behind all results, and their statistics over seeds."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError, nearest
from bayesfed.results import run_records
from bayesfed.results.formatting import spoken, text, unique
from bayesfed.results.statistics import (
    BEST,
    CURVES_ALONE,
    FOREIGN,
    LEVELS,
    MEASURES,
    STATISTICS,
    TAILS,
    Statistic,
    read_statistic,
)

BUDGET = ("rounds", "local_epochs", "batch_size")

AS_PAPER = "paper's"  # what is said of a cell whose run and data are the paper's in everything
AS_ASKED = "as asked"  # the same of a comparison of one's own
DIVERGED = "diverged"  # what a cell says whose runs stopped because a value was no longer finite
UNRECORDED = "not in its record"  # what a cell says that is missing in a record of an earlier version
WITHOUT = {  # what a run says that has no value of such a statistic
    "first": "never reached",
    "labelled": "no active learning",
    "best_within": "no such rounds",
    "early": "no such rounds",
    "jitter": "no such rounds",
}


@dataclass(frozen=True)
class Record:
    """An accuracy in a run that the plan asks for: of the server's model (`client` is "global") or at a client ("0", "1",
    ...), by its own models or by the server's (see LEVELS).

    `dataset` is the paper's, `used` the one trained on. `axes` are those of its experiment that have no field of their
    own here (`lr`); `field` finds either. `alpha` and `stragglers` are texts, as the plan has
    them; what does not apply is "". `foreign`: the paper's foreign datasets, and those used. `asks`: what else its run
    is asked for, `mistakes` (how well it tells its own) and `active` (learning). `summary` holds accuracies in
    [0, 1], nothing for an unfinished run; `missing` says why a finished one has none; `chosen` what a search has chosen,
    where it has (results/selection.py), and how; `choice` its values alone: `lr 0.1`.
    """

    experiment: str
    dataset: str
    used: str
    setting: str
    alpha: str
    stragglers: str
    axes: Mapping[str, str]
    model: str
    client: str
    method: str
    seed: str
    rounds: int
    local_epochs: int
    batch_size: int
    changes: tuple[str, ...]
    foreign: Mapping[str, str]
    asks: tuple[str, ...]
    folder: Path
    done: bool
    diverged: int
    level: str
    summary: Mapping[str, float]
    missing: str
    chosen: str = ""
    choice: tuple[str, ...] = ()

    def field(self, name: str) -> str:
        """What a cell is asked by: a field or an axis, as text; "" for an axis that another experiment has."""
        value = self.__dict__[name] if name in self.__dict__ else self.axes.get(name, "")
        return value if isinstance(value, str) else text(value)

    @property
    def as_printed(self) -> bool:
        """Whether run and data are the paper's in everything, so that a number may be compared with print."""
        return self.used == self.dataset and not self.changes

    def value(self, statistic: Statistic) -> float | None:
        """An accuracy statistic in [0, 1] (for `first`, a round), or None when the run has none (yet) or diverged.

        best, last, last5: maximum over rounds, last round, mean of the last five (from the summary, where it has them).
        early: mean over the first tenth of the rounds, at least one.
        jitter: standard deviation of the change from round to round over the second half of the rounds (needs two changes).
        labelled: mean over the numbers of labelled images of `along_labelled`, the height of a curve of active learning.
        """
        if not self.done or self.diverged:
            return None
        if statistic.of != "accuracy":
            values = list(self.measured(statistic.of).values())[-TAILS[statistic.name] :]
            return statistics.fmean(values) if values and all(map(math.isfinite, values)) else None
        if statistic.name == "labelled":
            return statistics.fmean(found) if (found := self.along_labelled().values()) else None
        if statistic.name in ("best", *TAILS) and not statistic.kind and self.level not in CURVES_ALONE:
            return self.summary.get(statistic.name)
        curve = self.curve()
        if statistic.kind:
            return self.own(statistic, curve)
        values = list(curve.values())
        if not values:
            return None
        if statistic.name == "best":
            return max(values)
        if statistic.name in TAILS:
            return statistics.fmean(values[-TAILS[statistic.name] :])
        if statistic.name == "early":
            first = [value for round, value in curve.items() if round <= max(1, self.rounds // 10)]
            return statistics.fmean(first) if first else None
        half = [value for round, value in curve.items() if round > self.rounds // 2]
        changes = [after - before for before, after in itertools.pairwise(half)]
        return statistics.stdev(changes) if len(changes) > 1 else None

    def why(self, statistic: Statistic) -> str:
        """Why a run has no value of a statistic; "" for an unfinished one, and where `diverged` says it."""
        if not self.done or self.diverged:
            return self.missing
        if statistic.of != "accuracy":
            undefined = run_records.undefined(self.folder, last=TAILS[statistic.name])
            return undefined.get(self.recorded(statistic.of)) or self.missing or UNRECORDED
        return self.missing or WITHOUT.get(statistic.kind or statistic.name, "")

    def tail(self, statistic: Statistic) -> list[int]:
        """The rounds that a `last` or `last5` is of; nothing for another statistic, or where there is no value."""
        if statistic.name not in TAILS or statistic.of != "accuracy" or self.value(statistic) is None:
            return []
        rounds = list(self.curve())[-TAILS[statistic.name] :]
        if self.level != "personal":
            return rounds
        return list(range(run_records.together(self.folder)[1][rounds[0]], rounds[-1] + 1))

    def at_the_end(self, statistic: Statistic) -> bool:
        """Whether its `tail` is the last rounds of the run."""
        had = run_records.had(self.folder)
        return self.tail(statistic) == list(range(max(1, had + 1 - TAILS[statistic.name]), had + 1))

    def own(self, statistic: Statistic, curve: Mapping[int, float]) -> float | None:
        """A statistic of a paper's own; None where a run never reaches the value, or has none of these rounds."""
        if statistic.kind == "first":
            return next((float(round) for round, value in curve.items() if value >= statistic.argument), None)
        if statistic.kind == "best_within":
            first, last = statistic.argument
            return max((value for round, value in curve.items() if first <= round <= last), default=None)
        return self.at_best(statistic.argument, self.level)

    def at_best(self, best: str, level: str) -> float | None:
        """The accuracy of a level in the first round in which that of the level `best` is best."""
        leading, other = (replace(self, level=name).curve() for name in (best, level))
        return other.get(max(leading, key=lambda round: (leading[round], -round))) if leading else None

    def measured(self, metric: str) -> dict[int, float]:
        """Another metric than accuracy by round, in order, NaN where it has no value; nothing for an unfinished run."""
        return (
            dict(sorted(run_records.measured(self.folder).get(self.recorded(metric), {}).items())) if self.done else {}
        )

    def recorded(self, metric: str) -> str:
        """What a metric is called in the record, which has the names of the datasets used."""
        asked = metric.removeprefix(FOREIGN).removesuffix("_sd") if metric.startswith(FOREIGN) else ""
        return metric.replace(asked, self.foreign.get(asked, asked)) if asked else metric

    def reliability(self, model: str = "global") -> dict[float, float]:
        """A server's model's accuracy in [0, 1] in the last round by the middle of each bin of confidence in percent, of
        bins with at least a thousandth of all images; nothing for an unfinished run, or one whose record is from before
        there were bins."""
        found = run_records.measured(self.folder, model) if self.done and not self.diverged else {}
        last = {
            what: [next(iter(found[name].values())) for name in found if re.fullmatch(rf"reliability_\d+_{what}", name)]
            for what in ("images", "right")
        }
        bins = len(last["images"])
        each = enumerate(zip(last["images"], last["right"], strict=True))
        least = max(1, sum(last["images"]) / 1000)
        return {100 * (number + 0.5) / bins: right / images for number, (images, right) in each if images >= least}

    def along_labelled(self) -> dict[float, float]:
        """In active learning, accuracy in [0, 1] by the labelled images that all clients together trained on: of the last
        round with so many. Nothing for an unfinished run."""
        labelled = run_records.diagnostic(self.folder, "labelled_images") if self.done else {}
        return {labelled[round]: value for round, value in self.curve().items() if round in labelled}

    def curve(self) -> dict[int, float]:
        """Accuracy in [0, 1] by round, in order; nothing for an unfinished run."""
        if self.level == "personal":
            return run_records.together(self.folder)[0] if self.done else {}
        of_level = {"global": "global", "local": "mean", "global_on_shard": f"global on {self.client}"}
        series = of_level.get(self.level, self.client)
        return dict(sorted(run_records.curves(self.folder).get(series, {}).items())) if self.done else {}


FIELDS = ("experiment", "dataset", "used", "setting", "alpha", "stragglers", "model", "client", "method", "seed", "rounds",
          "local_epochs", "batch_size", "level")  # fmt: skip
"""What cells may be asked by, beside axes."""


@dataclass(frozen=True)
class Study:
    """One paper as one config runs it: the paper's YAML, the config's notice, the records, and what the paper calls client
    0."""

    paper: str
    spec: Mapping[str, Any]
    notice: str
    records: Sequence[Record]
    first_client: int

    @property
    def own_method(self) -> str:
        """The label of the paper's own method: the first that bears the paper's name, else its first."""
        methods = self.spec["methods"]
        return next((label for label, block in methods.items() if block.get("name") == self.paper), next(iter(methods)))

    @property
    def heading(self) -> str:
        """What the paper is called: by the label of the method that bears its name, else by its file's name."""
        return self.own_method if self.spec["methods"][self.own_method].get("name") == self.paper else self.paper

    @property
    def published(self) -> Path:
        """Where the printed numbers are, if there are any.

        Raises InputError where the paper had some when it was planned, and they are not there.
        """
        path = Path(self.spec["published_file"])
        if self.spec.get("printed") and not path.is_file():
            raise InputError(
                f"{path}: the printed numbers are not there; run this in the folder that the plan was made in"
            )
        return path

    @property
    def reproduces(self) -> bool:
        """Whether it is of a paper that claims or publishes something, and no comparison of one's own."""
        return bool(self.spec.get("printed")) or any(claim["by"] == "paper" for claim in self.spec.get("claims", []))

    def label(self, name: object) -> str:
        """How the paper writes a name (`cifar10` -> `CIFAR10`)."""
        return str(self.spec.get("labels", {}).get(str(name), name))

    def written(self, field: str, value: str) -> str:
        """How the paper writes the value of a field: a client by its own count, all else by its label."""
        return str(int(value) + self.first_client) if field == "client" and value.isdigit() else self.label(value)

    def labelled(self, field: str, value: str) -> str:
        """A value by its label, with the name of its axis before it where it has none: `lr 0.1`."""
        label = self.written(field, value)
        plain = field in FIELDS and field not in BUDGET
        return label if label != value or plain else f"{spoken(field)} {value}"

    def axes(self, record: Record) -> str:
        """The axes of a record that have no field of their own, in words: `lr 0.1, participation 0.5`."""
        return ", ".join(self.labelled(axis, value) for axis, value in record.axes.items())

    def labels(self, names: str) -> str:
        """`label` of names that are joined by `+` (the datasets of a multi-task run)."""
        return "+".join(self.label(name) for name in names.split("+"))

    def stand_ins(self, records: Iterable[Record]) -> str:
        """`digits for CIFAR10`, for the records trained on another dataset than the paper's; else ""."""
        pairs = {
            f"{used} for {self.label(asked)}": None
            for record in records
            for used, asked in zip(record.used.split("+"), record.dataset.split("+"), strict=True)
            if used != asked
        }
        return ", ".join(pairs)

    @property
    def unchanged(self) -> str:
        """What is said of runs that are as the paper's file asks for."""
        return AS_PAPER if self.reproduces else AS_ASKED

    def changes(self, records: Sequence[Record]) -> str:
        """Everything in which the records' runs and data differ from the paper's, in words; "" without any."""
        if not records:
            return "not in this plan"
        changes = unique(change for record in records for change in record.changes)
        return ", ".join(part for part in (self.stand_ins(records), *changes) if part)

    def budget(self, records: Sequence[Record]) -> str:
        """`changes`, or what is said where there are none."""
        return self.changes(records) or self.unchanged


@dataclass(frozen=True)
class Score:
    """A statistic over seeds: mean, sample standard deviation (None for one), the numbers of seeds with a value, diverged,
    and planned; and of finished runs that have no value, why: of how many seeds, and of how many clients elsewhere."""

    mean: float | None
    sd: float | None
    seeds: int
    diverged: int
    planned: int
    missing: Mapping[str, int]
    left_out: Mapping[str, int]
    statistic: Statistic = BEST

    @property
    def scale(self) -> int:
        """What values are multiplied by to be shown."""
        return self.statistic.scale

    def shown(self) -> str:
        """`80.71`, `80.71 ± 0.30`, or what stands in its place: `diverged`, why a finished run has no value, or "" where
        nothing is finished. Percent with two decimals, fractions with three, rounds with at most one."""
        if self.mean is None:
            return DIVERGED if self.diverged else " or ".join(self.missing)
        return self.number(self.mean) + (f" ± {self.number(self.sd)}" if self.sd is not None else "")

    def number(self, value: float | None) -> str:
        """A mean, or a standard deviation, as shown; "" for none."""
        if value is None:
            return ""
        places = self.statistic.decimals
        return f"{round(value, 1):g}" if places is None else f"{self.scale * value:.{places}f}"

    def count(self) -> str:
        """`3`, or `2 of 3` while seeds are missing, or `1 of 3, 1 diverged`; and why finished runs have no value:
        `never took part`, `2 of 3, 1 never took part`, `3, without 1 client: never took part`."""
        if list(self.missing.values()) == [self.planned]:
            return next(iter(self.missing))
        words = [str(self.seeds) if self.seeds == self.planned else f"{self.seeds} of {self.planned}"]
        words += [f"{self.diverged} {DIVERGED}"] if self.diverged else []
        words += [f"{count} {why}" for why, count in self.missing.items()]
        return ", ".join([*words, *self.without()])

    def without(self) -> list[str]:
        """The clients that a mean leaves out, and why: `without 1 client: never took part`."""
        return [f"without {count} client{'s' if count > 1 else ''}: {why}" for why, count in self.left_out.items()]


def score(records: Iterable[Record], statistic: Statistic) -> Score:
    """Mean and spread over seeds; several records of a seed (clients) are averaged first."""
    by_seed: dict[str, list[float]] = {}
    reasons: dict[str, list[tuple[str, str]]] = {}
    diverged = set()
    for record in records:
        value = record.value(statistic)
        by_seed.setdefault(record.seed, []).extend([] if value is None else [value])
        why = record.missing if value is not None else record.why(statistic)
        reasons.setdefault(record.seed, []).extend([(record.client, why)] if why else [])
        diverged |= {record.seed} if record.diverged else set()
    values = [statistics.fmean(of_seed) for of_seed in by_seed.values() if of_seed]
    return Score(
        mean=statistics.fmean(values) if values else None,
        sd=statistics.stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        diverged=len(diverged),
        planned=len(by_seed),
        missing=Counter(
            why for seed, all in reasons.items() if not by_seed[seed] for why in unique(why for _, why in all)
        ),
        left_out=Counter(
            why for _, why in dict.fromkeys(one for seed, all in reasons.items() if by_seed[seed] for one in all)
        ),
        statistic=statistic,
    )


def select(records: Iterable[Record], where: Mapping[str, Any]) -> list[Record]:
    """The records whose fields or axes equal the values of `where` (a value, or a list of accepted values).

    Raises InputError for a field or axis that no record has, unless what stands before it in `where` already fits none.
    """
    found = records = list(records)
    for field, value in where.items():
        if found and field not in FIELDS and not any(field in record.axes for record in records):
            known = [*FIELDS, *unique(axis for record in records for axis in record.axes)]
            raise InputError(f"no field '{field}' of a cell; {nearest(field, known)}")
        accepted = {text(each) for each in (value if isinstance(value, list) else [value])}
        found = [record for record in found if record.field(field) in accepted]
    return found


def of_metric(records: Iterable[Record], metric: str, own: Mapping[str, Any]) -> tuple[list[Record], Statistic]:
    """The records and the statistic of a metric: whose, of what, and which: `client_accuracy_best` -> (of clients, best),
    `global_ece_last` -> (of the server's model, the ECE of the last round).

    `own` are the statistics of the paper's YAML. Raises InputError for an unknown metric.
    """
    found = {name: Statistic(name) for name in STATISTICS} | {name: read_statistic(name, own[name]) for name in own}
    known = [f"{level}_accuracy_{name}" for level in LEVELS for name in found]
    measured = re.fullmatch(f"global_({'|'.join(MEASURES)}|{FOREIGN}.+)_(last|last5)", metric)
    if measured:
        return [record for record in records if record.level == "global"], Statistic(measured[2], of=measured[1])
    known += [f"global_{name}_last" for name in (*MEASURES, f"{FOREIGN}DATASET")]
    if metric not in known:
        raise InputError(f"unknown metric '{metric}'; {nearest(metric, known)}")
    level, _, name = metric.partition("_accuracy_")
    return [record for record in records if record.level == level], found[name]
