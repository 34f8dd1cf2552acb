"""Differences between methods, paired by seed: intervals, wins and ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bayesfed.results.grounds import COLUMNS, SIDES, Column, Ground
from bayesfed.results.grounds_of_plan import baseline_of, has_grounds, load
from bayesfed.results.run_records import RunRecord
from bayesfed.results.study import Study

LEVEL = 0.95  # of the intervals
ROUNDING = 1e-9  # so little does rounding part values that are equal, and differences, in parts of their mean


@dataclass(frozen=True)
class Difference:
    """A method's mean difference to another over the seeds that both have, its interval, and the p-value of the t test
    that it belongs to; neither of one seed, nor of two with equal differences."""

    mean: float
    low: float | None
    high: float | None
    seeds: int
    p: float | None = None

    def sign(self, rising: bool) -> int:
        """Separate better (1) and worse (-1) from what the interval leaves open (0)."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return 0
        return 1 if (self.mean > 0) is rising else -1


@dataclass(frozen=True)
class Compared:
    """A column of a ground's side: the values of its methods by seed, and all their differences."""

    ground: Ground
    side: str
    column: Column

    @cached_property
    def values(self) -> dict[str, dict[str, float]]:
        """Method -> seed -> value, of methods with a value."""
        every = {one: self.ground.values(self.column, self.side, one)[0] for one in self.ground.methods(self.side)}
        return {method: found for method, found in every.items() if found}

    @cached_property
    def means(self) -> dict[str, float]:
        """Method -> mean over its seeds."""
        return {method: statistics.fmean(found.values()) for method, found in self.values.items()}

    @cached_property
    def differences(self) -> dict[tuple[str, str], Difference]:
        """(method, other) -> difference, of all pairs with a seed in common, each pair once in the order of methods."""
        methods = list(self.values)
        pairs: dict[tuple[str, str], Difference] = {}
        by_seeds: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        for place, method in enumerate(methods):
            for other in methods[place + 1 :]:
                seeds = tuple(seed for seed in self.values[method] if seed in self.values[other])
                by_seeds.setdefault(seeds, []).append((method, other))
        for seeds, of_seeds in by_seeds.items():
            if not seeds:
                continue
            apart = [[self.values[a][seed] - self.values[b][seed] for seed in seeds] for a, b in of_seeds]
            pairs |= dict(zip(of_seeds, intervals(np.array(apart)), strict=True))
        return pairs

    def difference(self, method: str, other: str) -> Difference | None:
        """Return the difference of a method to another; None for a method to itself, and without a common seed."""
        if found := self.differences.get((method, other)):
            return found
        turned = self.differences.get((other, method))
        if turned is None:
            return None
        low, high = (None if end is None else -end for end in (turned.high, turned.low))
        return Difference(-turned.mean, low, high, turned.seeds, turned.p)

    def corrected(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """Return (method, other) -> p-value of their difference, corrected for the number of these pairs: those up to
        1 - LEVEL have a false discovery rate of that (Benjamini and Hochberg, 1995). Pairs without a p-value are left out.
        """
        from scipy.stats import false_discovery_control

        known = {pair: found.p for pair in pairs if (found := self.difference(*pair)) and found.p is not None}
        return dict(zip(known, false_discovery_control(list(known.values())).tolist(), strict=True)) if known else {}

    @cached_property
    def whole(self) -> dict[str, float]:
        """The means of the methods with the most seeds: that of fewer is not one over the same seeds."""
        most = max(map(len, self.values.values()), default=0)
        return {method: mean for method, mean in self.means.items() if len(self.values[method]) == most}

    @cached_property
    def best(self) -> str:
        """The method with the best mean, of those with the most seeds; "" without any."""
        choose: Callable[..., str] = max if self.column.rising else min
        return choose(self.whole, key=self.whole.__getitem__, default="")

    def steady(self, method: str) -> bool:
        """Return whether a method has the most seeds, and none of them fails."""
        return method in self.whole and method not in self.ground.failing[self.side]

    def is_near(self, method: str) -> bool:
        """Return True if the interval of a method's difference to the best has zero in it, and none of its seeds fails: a
        seed that does makes the interval wide. Of a single seed in common there is no interval, and it counts as one with
        zero in it, unless all methods have one seed: then nothing is marked.
        """
        apart, several = self.difference(method, self.best), any(len(one) > 1 for one in self.values.values())
        open_ = apart is not None and several and apart.sign(self.column.rising) == 0
        return open_ and method not in self.ground.failing[self.side]

    @cached_property
    def ranks(self) -> dict[str, float]:
        """Method -> rank by its mean, from 1, of those with the most seeds; equal means share theirs."""
        from scipy.stats import rankdata

        means = np.array(list(self.whole.values()))
        return dict(zip(self.whole, rankdata(-means if self.column.rising else means).tolist(), strict=True))


def intervals(apart: np.ndarray) -> list[Difference]:
    """Return the mean of each row of differences (pairs, seeds) with its interval, mean -+ t s / sqrt(seeds), Student's t.

    A percentile bootstrap of so few seeds is too narrow: with five it takes chance for a difference in one case of seven.
    Two differences that are equal, as those of few test images often are, have no interval.
    """
    from scipy.stats import t

    apart = np.where(np.abs(apart) < ROUNDING, 0.0, apart)
    means, seeds = apart.mean(-1), apart.shape[-1]
    if seeds < 2:
        return [Difference(mean, None, None, seeds) for mean in means.tolist()]
    error = apart.std(-1, ddof=1) / np.sqrt(seeds)
    reach = float(t.ppf((1 + LEVEL) / 2, seeds - 1)) * error
    sizes = np.divide(np.abs(means), error, out=np.where(means == 0, 0.0, np.inf), where=error > 0)
    p = 2 * t.sf(sizes, seeds - 1)
    equal = (error <= ROUNDING * np.abs(means)) & (means != 0) & (seeds == 2)
    columns = (means, means - reach, means + reach, p, equal)
    return [
        Difference(mean, None, None, seeds) if alike else Difference(mean, low, high, seeds, chance)
        for mean, low, high, chance, alike in zip(*map(np.ndarray.tolist, columns), strict=True)
    ]


@dataclass(frozen=True)
class Comparison:
    """All columns of all grounds on one side."""

    grounds: Sequence[Ground]
    side: str

    @cached_property
    def compared(self) -> Mapping[str, Sequence[Compared]]:
        """Column -> its ground by ground."""
        return {column.name: [Compared(one, self.side, column) for one in self.grounds] for column in COLUMNS}

    @property
    def methods(self) -> list[str]:
        """The methods that have this side on any ground."""
        return list(dict.fromkeys(method for one in self.grounds for method in one.methods(self.side)))

    def told_apart(self, column: str, pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
        """Return for the first method of each pair the grounds by name, and whether it is better there than the other (1),
        open (0) or worse (-1): by p-values corrected for the number of pairs. A method whose seeds fail, or that has fewer
        than others, is better than none: its mean is over the seeds that went well.
        """
        signs: dict[str, dict[str, int]] = {method: {} for method, _ in pairs}
        for one in self.compared[column]:
            for (method, other), p in one.corrected(pairs).items():
                apart = one.difference(method, other)
                better = apart is not None and (apart.mean > 0) is one.column.rising
                known = p <= 1 - LEVEL and one.steady(method if better else other)
                signs[method][one.ground.name] = (1 if better else -1) if known else 0
        return signs

    def mean_rank(self, column: str, method: str) -> tuple[float, int] | None:
        """Compute a method's mean rank, and over how many grounds; None without any."""
        ranks = [one.ranks[method] for one in self.compared[column] if method in one.ranks]
        return (statistics.fmean(ranks), len(ranks)) if ranks else None


def of_grounds(studies: Sequence[Study]) -> list[Study]:
    """Return the studies that have grounds and no table, figure or claim of a paper."""
    return [study for study in studies if has_grounds(study.spec)]


def runs_of(studies: Sequence[Study]) -> Callable[[str], RunRecord]:
    """Return what finds the run of a folder as a plan has it, below `runs/`."""
    runs = {f"/{record.folder.as_posix()}": record.run for study in studies for record in study.records}
    return {folder.rpartition("/runs/")[2]: run for folder, run in runs.items()}.__getitem__


def of_plan(plan: Mapping[str, Any], studies: Sequence[Study]) -> list[Comparison]:
    """Return both sides of the grounds of a plan; none for papers, and where nothing but searches is finished."""
    own = of_grounds(studies)
    if not own:
        return []
    runs = runs_of(own)
    costs = {run["folder"]: run["cost"] for run in plan["runs"]}
    methods = {label: block for study in own for label, block in study.spec["methods"].items()}
    cells = [cell for cell in plan["cells"] if cell["paper"] in {study.paper for study in own}]
    found = load(cells, costs, baseline_of(methods), runs)
    shown = [ground for ground in found if any(ground.methods(side) for side in SIDES)]
    return [Comparison(shown, side) for side in SIDES] if shown else []


def shown(apart: Difference, column: Column) -> str:
    """Write a difference with its sign and interval: `+1.20 [+0.30, +2.10]`."""
    places = column.decimals
    between = "" if apart.low is None else f" [{signed(apart.low, places)}, {signed(apart.high or 0.0, places)}]"
    return f"{signed(apart.mean, places)}{between}"


def signed(value: float, places: int) -> str:
    """Write a number with its sign, a minus as typographers set it."""
    return f"{value:+.{places}f}".replace("-", "−")
