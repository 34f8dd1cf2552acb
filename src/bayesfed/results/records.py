"""A row of results: one accuracy of one run that the plan asks for, and the rows that a table, figure or claim asks for."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError, nearest
from bayesfed.results import whole_run
from bayesfed.results.formatting import text, unique
from bayesfed.results.run_records import Curve, RunRecord
from bayesfed.results.statistics import CURVES_ALONE, RUN, TAILS, Statistic, read_metric
from bayesfed.results.whole_run import NEVER, UNRECORDED

IN_SUMMARY = ("best", "last", "last5")  # statistics that the summary of a run has
BUDGET = ("rounds", "local_epochs", "batch_size")

DIVERGED = "diverged"  # what a cell says whose runs stopped because a value was no longer finite
WITHOUT = {  # what a run says that has no value of such a statistic
    "first": NEVER,
    "labelled": "no active learning",
    "best_within": "no such rounds",
    "first10pct": "no such rounds",
    "round_std": "no such rounds",
}


@dataclass(frozen=True)
class Record:
    """An accuracy in a run that the plan asks for: of the server's model (`client` is "global") or at a client ("0", "1",
    ...), by its own models or by the server's (see LEVELS); or whatever has one value a run (level RUN).

    `dataset` is the paper's, `used` the one trained on. `axes` are those of its experiment that have no field of their
    own here (`lr`); `field` finds either. `alpha` and `stragglers` are texts, as the plan has them; what does not apply
    is "". `foreign`: the paper's OOD datasets, and those used. `asks`: what else its run is asked for, `mistakes` (how
    well it tells its own), `active` (learning) and `validation`. `personal`: its method is for a model a client.
    `summary` holds accuracies in [0, 1], nothing for an unfinished run; `missing` says why a finished one has none;
    `chosen` what a search has chosen, where it has (results/selection.py), and how; `choice` its values alone: `lr 0.1`.
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
    personal: bool
    run: RunRecord
    done: bool
    diverged: int
    level: str
    summary: Mapping[str, float]
    missing: str
    chosen: str = ""
    choice: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return self.run.folder

    def field(self, name: str) -> str:
        """Return a value that cells are asked by, a field or an axis, as text; "" for an axis that another experiment
        has.
        """
        own = self.__dict__
        value = own[name] if name in own else self.axes.get(name, "")
        return value if type(value) is str else text(value)

    @property
    def is_the_papers(self) -> bool:
        """True where run and data are the paper's in everything, so that a number may be compared with the published
        numbers."""
        return self.used == self.dataset and not self.changes

    def value(self, statistic: Statistic) -> float | None:
        """Compute a statistic, an accuracy in [0, 1] (for `first`, a round); None when the run has none (yet) or diverged.

        best, last, last3, last5: maximum over rounds, last round, mean of the last three and five (from the summary, where
        it has them).
        first10pct: mean over the first tenth of the rounds, at least one.
        round_std: standard deviation of the change from round to round over the second half of the rounds (needs two
        changes).
        labelled: mean over the numbers of labelled images of `along_labelled`, the height of a curve of active learning.
        """
        if not self.done or self.diverged:
            return None
        if self.level == RUN:
            return None if isinstance(of_run := self.of_run(statistic), str) else of_run
        if statistic.of != "accuracy":
            values = list(self.measured(statistic.of).values())[-TAILS[statistic.name] :]
            return statistics.fmean(values) if values and all(map(math.isfinite, values)) else None
        if statistic.name == "labelled":
            return statistics.fmean(found) if (found := self.along_labelled().values()) else None
        if statistic.name in IN_SUMMARY and not statistic.kind and self.level not in CURVES_ALONE:
            return self.summary.get(statistic.name)
        return self.own(statistic) if statistic.kind else self.over_rounds(statistic.name)

    def of_run(self, statistic: Statistic) -> whole_run.Found:
        """Find a value of the level RUN, or why there is none."""
        return whole_run.find(self.run, statistic, self.personal, self.foreign)

    def over_rounds(self, name: str) -> float | None:
        """Compute one of STATISTICS from the curve, as `value` defines it."""
        curve = self.curve()
        values = list(curve.values())
        if not values:
            return None
        if name == "best":
            return max(values)
        if name in TAILS:
            return statistics.fmean(values[-TAILS[name] :])
        if name == "first10pct":
            first = [value for at, value in curve.items() if at <= max(1, self.rounds // 10)]
            return statistics.fmean(first) if first else None
        half = [value for at, value in curve.items() if at > self.rounds // 2]
        changes = [after - before for before, after in itertools.pairwise(half)]
        return statistics.stdev(changes) if len(changes) > 1 else None

    def why(self, statistic: Statistic) -> str:
        """Return why a run has no value of a statistic; "" for an unfinished one, and if `diverged` says it."""
        if not self.done or self.diverged:
            return self.missing
        if self.level == RUN:
            return found if isinstance(found := self.of_run(statistic), str) else ""
        if statistic.of != "accuracy":
            undefined = self.run.undefined(last=TAILS[statistic.name])
            return undefined.get(self.recorded(statistic.of)) or self.missing or UNRECORDED
        return self.missing or WITHOUT.get(statistic.kind or statistic.name, "")

    def tail(self, statistic: Statistic) -> list[int]:
        """List the rounds that one of TAILS is of; none for another statistic, or where there is no value."""
        if self.level == RUN or statistic.name not in TAILS or statistic.of != "accuracy":
            return []
        if self.value(statistic) is None:
            return []
        rounds = [*itertools.islice(reversed(self.curve()), TAILS[statistic.name])][::-1]
        if self.level != "personal":
            return rounds
        return list(range(self.run.together[1][rounds[0]], rounds[-1] + 1))

    @cached_property
    def ends_whole(self) -> bool:
        """True if it has an accuracy in each of the last five rounds of its run, so that any tail is of these."""
        if not self.done or self.level in ("personal", RUN):
            return False
        had, curve = self.run.rounds, self.curve()
        return all(at in curve for at in range(max(1, had + 1 - TAILS["last5"]), had + 1))

    def at_the_end(self, tail: Sequence[int], statistic: Statistic) -> bool:
        """Return True if a `tail` is the last rounds of the run."""
        had = self.run.rounds
        return tail == list(range(max(1, had + 1 - TAILS[statistic.name]), had + 1))

    def own(self, statistic: Statistic) -> float | None:
        """Compute a statistic of a paper's own; None where a run never reaches the value, or has none of these rounds."""
        if statistic.kind == "at_best_of":
            return self.at_best(statistic.argument, self.level)
        curve = self.curve().items()
        if statistic.kind == "first":
            return next((float(at) for at, value in curve if value >= statistic.argument), None)
        first, last = statistic.argument
        return max((value for at, value in curve if first <= at <= last), default=None)

    def at_best(self, best: str, level: str) -> float | None:
        """Return the accuracy of a level in the first round in which that of the level `best` is best."""
        leading, other = (replace(self, level=name).curve() for name in (best, level))
        return other.get(max(leading, key=lambda at: (leading[at], -at))) if leading else None

    def measured(self, metric: str) -> Curve:
        """Another metric than accuracy by round, in order, NaN where it has no value; nothing for an unfinished run."""
        return self.run.measured().get(self.recorded(metric), {}) if self.done else {}

    def recorded(self, metric: str) -> str:
        """Return the name of a metric in the record of the run, which has the names of the datasets used."""
        return whole_run.recorded(metric, self.foreign)

    def reliability(self, model: str = "global") -> dict[float, float]:
        """Compute the accuracy of a server's model in [0, 1] in the last round, by the middle of each bin of confidence
        in percent.

        Of bins with at least a thousandth of all images; nothing for an unfinished run, or for a record older than
        bins.
        """
        found = self.run.measured(model) if self.done and not self.diverged else {}
        of = {name: values for name, values in found.items() if name.startswith("reliability_")}
        last = {
            what: [next(iter(of[name].values())) for name in of if name.endswith(f"_{what}")]
            for what in ("images", "right")
        }
        bins = len(last["images"])
        each = enumerate(zip(last["images"], last["right"], strict=True))
        least = max(1, sum(last["images"]) / 1000)
        return {100 * (number + 0.5) / bins: right / images for number, (images, right) in each if images >= least}

    def along_labelled(self) -> dict[float, float]:
        """In active learning, accuracy in [0, 1] by the labelled images that all clients together trained on: of the last
        round with so many. Nothing for an unfinished run."""
        labelled = self.run.diagnostics.get("labelled_images", {}) if self.done else {}
        return {labelled[at]: value for at, value in self.curve().items() if at in labelled}

    def along_rounds(self, metric: str) -> dict[float, float]:
        """Return a metric of a predictor, as `predictive_ece`, by the rounds in which it is measured; nothing where none
        is.
        """
        level, statistic = read_metric(f"{metric}_last", {})
        own = statistic if statistic.predictor else replace(statistic, predictor=level)
        found = whole_run.curve(self.run, own, self.foreign) if self.done else {}
        return {} if isinstance(found, str) else {at: value for at, value in found.items() if math.isfinite(value)}

    def along_megabytes(self) -> dict[float, float]:
        """Accuracy in [0, 1] by the megabytes sent until then, both ways. Nothing where no bytes are known."""
        sent = self.run.megabytes if self.done else {}
        return {sent[at]: value for at, value in self.curve().items() if at in sent}

    def curve(self) -> Curve:
        """Accuracy in [0, 1] by round, in order; nothing for an unfinished run."""
        if not self.done:
            return {}
        if self.level == "personal":
            return self.run.together[0]
        of_level = {"global": "global", "local": "mean", "global_on_shard": f"global on {self.client}"}
        return self.run.curves.get(of_level.get(self.level, self.client), {})


FIELDS = ("experiment", "dataset", "used", "setting", "alpha", "stragglers", "model", "client", "method", "seed", "rounds",
          "local_epochs", "batch_size", "level")  # fmt: skip
"""Fields that cells may be asked by, beside axes."""


def select(records: Iterable[Record], where: Mapping[str, Any]) -> list[Record]:
    """Select the records whose fields or axes equal the values of `where` (a value, or a list of accepted values).

    Raises InputError for a field or axis that no record has, unless an earlier key of `where` already fits none.
    """
    found = records = list(records)
    for field, value in where.items():
        if found and field not in FIELDS and not any(field in record.axes for record in records):
            known = [*FIELDS, *unique(axis for record in records for axis in record.axes)]
            raise InputError(f"no field '{field}' of a cell; {nearest(field, known)}")
        accepted = {text(each) for each in (value if isinstance(value, list) else [value])}
        found = [record for record in found if record.field(field) in accepted]
    return found


def grouped(
    records: Iterable[Record], fields: Sequence[str], apart: Sequence[str] = ()
) -> dict[tuple[str, ...], list[Record]]:
    """Group records by their values of fields or axes, `axes` being all axes that a record has, in order of first
    appearance; whatever they have of `apart`."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        axes = [part for axis in record.axes.items() if axis[0] not in apart for part in axis]
        key = (axes if field == "axes" else [record.field(field)] for field in fields if field not in apart)
        found.setdefault(tuple(itertools.chain(*key)), []).append(record)
    return found


def of_metric(records: Iterable[Record], metric: str, own: Mapping[str, Any]) -> tuple[list[Record], Statistic]:
    """Return the records and the statistic of a metric, as `statistics.read_metric` reads it."""
    level, statistic = read_metric(metric, own)
    return [record for record in records if record.level == level], statistic
