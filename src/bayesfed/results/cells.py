"""Cells of tables: the records behind each, their mean and spread over seeds, and the text shown."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bayesfed.results import selection, tails, whole_run
from bayesfed.results.formatting import text, unique
from bayesfed.results.records import DIVERGED, Record, grouped, of_metric, select
from bayesfed.results.statistics import BEST, Statistic
from bayesfed.results.study import Study


@dataclass(frozen=True)
class Score:
    """A statistic over seeds.

    `mean`; `sd`, the sample standard deviation (None for one seed); numbers of seeds with a value, diverged, and planned.
    `missing`: why finished runs have no value, and of how many seeds; `left_out`: of how many clients in other seeds.
    """

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
        """The factor by which values are multiplied to be shown."""
        return self.statistic.scale

    def shown(self) -> str:
        """Write the value: `80.71`, `80.71 ± 0.30`, `diverged`, why a finished run has none, or "" if none is finished.

        Percent with two decimals, fractions with three, rounds with at most one.
        """
        if self.mean is None:
            return DIVERGED if self.diverged else " or ".join(self.missing)
        return self.number(self.mean) + (f" ± {self.number(self.sd)}" if self.sd is not None else "")

    def number(self, value: float | None) -> str:
        """Write a mean, or a standard deviation, as shown; "" for none."""
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
        """List the clients that a mean leaves out, and why: `without 1 client: never took part`."""
        return [f"without {count} client{'s' if count > 1 else ''}: {why}" for why, count in self.left_out.items()]


def score(records: Iterable[Record], statistic: Statistic) -> Score:
    """Compute mean and spread over seeds; several records of a seed (clients) are averaged first."""
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
            why for seed, told in reasons.items() if not by_seed[seed] for why in unique(why for _, why in told)
        ),
        left_out=Counter(
            why for _, why in dict.fromkeys(one for seed, told in reasons.items() if by_seed[seed] for one in told)
        ),
        statistic=statistic,
    )


@dataclass(frozen=True)
class Cell:
    """A cell of a table: keys (names, not labels), column title, records, metric, and the statistic to show."""

    keys: Mapping[str, str]
    column: str
    records: list[Record]
    metric: str
    statistic: Statistic

    @cached_property
    def score(self) -> Score:
        """The cell's value over seeds, in [0, 1]."""
        return score(self.records, self.statistic)

    @cached_property
    def last5(self) -> Score:
        """The mean of the last five of what it is of, over seeds."""
        return score(self.records, self.statistic.last5)

    @cached_property
    def caveat(self) -> str:
        """The remark on a calibration that is not the predictive's, or on bytes that no record has."""
        runs = [record.run for record in self.records]
        return whole_run.of_mean_network(self.statistic, runs) or whole_run.computed_later(self.statistic, runs)

    @cached_property
    def of_rounds(self) -> str:
        """The rounds that its last values are of, and those of the last five beside it, where not the run's last."""
        return tails.of_rounds(self.records, self.statistic, self.statistic.last5)


Row = tuple[dict[str, str], list[Cell]]
"""A row of a table: its keys and its cells."""


def rows(study: Study, table: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a table in the paper's order; raise InputError for a key that no record has.

    A table's YAML: `experiment`, `metric`, `rows` (key -> values, crossed in order), `columns` (a list of
    keys each, with a `title` and a `metric` where a column has its own), `published` (items of the published CSV;
    default: the table's name), `title`, `note`, `search` (results/selection.py).
    """
    records = selection.choose(study, study.of_experiments(table["experiment"]), table.get("search"))
    for key in table["rows"]:
        select(records, {key: []})  # raises for a key that no record has
    columns = []
    for column in table["columns"]:
        metric, asked = column.get("metric", table.get("metric")), keys_of(column)
        of_column, statistic = of_metric(select(records, asked), metric, study.spec.get("statistics", {}))
        columns.append((title(study, column), asked, metric, statistic, grouped(of_column, list(table["rows"]))))
    found = []
    for values in itertools.product(*(map(text, of_key) for of_key in table["rows"].values())):
        keys = dict(zip(table["rows"], values, strict=True))
        of_row = [
            Cell(
                {**keys, **{key: text(value) for key, value in asked.items()}},
                name,
                groups.get(values, []),
                metric,
                statistic,
            )
            for name, asked, metric, statistic, groups in columns
        ]
        found.append((keys, of_row))
    return found


def title(study: Study, keys: Mapping[str, Any]) -> str:
    """Return a column's title, given or from its keys: `HBFL`, `client 1: CIFAR10, LeNet5`."""
    if "title" in keys:
        return str(keys["title"])
    words = [study.labelled(key, text(value)) for key, value in keys_of(keys).items() if key != "client"]
    client = f"client {study.written('client', str(keys['client']))}" if "client" in keys else ""
    return ": ".join(part for part in (client, ", ".join(words)) if part)


def keys_of(column: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a column asks of its cells."""
    return {key: value for key, value in column.items() if key not in ("metric", "title")}


def budget(records: Iterable[Record], field: str) -> str:
    """Return the records' value of a budget field; several are joined by ` or `."""
    return " or ".join(unique(str(getattr(record, field)) for record in records))


def used(study: Study, records: Iterable[Record]) -> str:
    """Name the dataset trained on, in the paper's writing if it is the paper's."""
    return " or ".join(unique(study.labels(record.used) for record in records))
