"""Judgement of a claim: in how many seeds each ordering that a paper claims holds, cell by cell and in all.

A claim in the paper's YAML: `claim` (words), `by` (paper or us), `kind` (below), `experiments`, `metric`,
and what its kind needs; `where` narrows the cells (field -> value or values), `apart` names axes in which cells that are
compared may differ (each method with its best number of local epochs); with a `search` (results/selection.py) best is
compared with best; `most: true` is a claim of most settings: in all it holds where it does in more than half. Kinds:

- `higher`, `lower`, `not higher`: `method` against each of `than`, at equal data, alpha, stragglers, model, client, seed;
- `higher at`: each of `methods` where the axis `along` is `at` against where it is each of `than`, at equal data and so on;
- `falls`, `rises`: with `along` the metric of each of `methods` falls (rises) from its largest value down: it does between
  more than half of all pairs of values, so that two neighbours may be the other way round;
- `smaller gain`: the gain of `method` over each of `than`, averaged over models, is smaller on `dataset`
  than on each of `than_dataset`.

Two sides that are equal are ties: counted apart, and the claim does not hold, except for `not higher`. A finished run
that never reaches a value (`first`), or that has diverged, is worse than any other in a comparison of two sides. If
both have diverged, nothing is compared.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bayesfed.results import cells, selection, tails, verdicts
from bayesfed.results.formatting import text, unique
from bayesfed.results.records import DIVERGED, Record, grouped, of_metric, select
from bayesfed.results.statistics import Statistic
from bayesfed.results.study import Study

LOST = "a side diverged or never gets there"
MATCH = ("dataset", "alpha", "stragglers", "axes", "model", "client")
Claim = Mapping[str, Any]


@dataclass(frozen=True)
class Test:
    """A claim in one cell: what is compared, the records of it, and the difference of each planned seed.

    A difference is one of values of `statistic`, in [-1, 1] unless it is of rounds. None marks a seed of which a run is
    missing, or both have diverged. An infinite one: a side never gets there or has diverged. NaN: neither gets there.
    `ties`: in how many seeds the two sides are equal, and the claim does not hold. `than` says what the method, or its
    value at one place, is compared with, and `sides` the parts of that: values of `along`, or a method and a dataset.
    """

    __test__ = False  # a name that pytest would collect

    method: str
    than: str
    sides: Sequence[str]
    records: Sequence[Record]
    differences: Sequence[float | None]
    holds: Sequence[bool]
    statistic: Statistic
    ties: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a claim's tests, in one cell or over all.

    `holds`, `ties`, `of`: in how many seeds of cells it holds, ties, and could be tested; `planned`: would be with all
    that is planned.

    `difference` is the mean over the tested seeds that have a finite one, in points of a percentage, or as else the
    metric is shown, "" without any: method minus `than`; for `falls` and `rises` at the smallest value of `along` minus
    at the largest; for `smaller gain` on `dataset` minus on the other. `flags`: what limits the verdict. `used`,
    `budget`, `precision` are of the runs; `of_rounds`: of which rounds the compared values are, where not of the runs'
    last.
    """

    holds: int
    ties: int
    of: int
    planned: int
    difference: str
    verdict: str
    flags: Sequence[str]
    used: str
    budget: str
    precision: str
    of_rounds: str

    @property
    def told(self) -> str:
        """The verdict, its count, and what limits it."""
        return verdicts.told(self.verdict, self.holds, self.of, self.flags)


@dataclass(frozen=True)
class Tested:
    """A claim, its tests, what came of all of them, and of each."""

    claim: Claim
    tests: Sequence[Test]
    total: Outcome
    each: Sequence[Outcome]


def _value(records: Sequence[Record], statistic: Statistic, worst: float | None = None) -> float | None:
    """Compute the mean of the records' values; None while one is missing.

    `worst`: the value of a run that never reaches a value, or has diverged.
    """
    values = [record.value(statistic) for record in records]
    for place, record in enumerate(records):
        if values[place] is None and record.done and (record.diverged or statistic.kind == "first"):
            values[place] = worst
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _above(
    records: Sequence[Record], claim: Claim, statistic: Statistic, holding: Callable[[float], bool]
) -> list[Test]:
    """Test `higher`, `lower`, `not higher`, by the differences that hold: one test a baseline and cell."""
    found = []
    for than in claim["than"]:
        for of_cell, differences in _pairs(records, MATCH, "method", claim["method"], than, claim, statistic):
            holds = [difference is not None and holding(difference) for difference in differences]
            ties = _ties(differences, holds)
            found.append(Test(claim["method"], than, [than], of_cell, differences, holds, statistic, ties))
    return found


def _higher_at(records: Sequence[Record], claim: Claim, statistic: Statistic) -> list[Test]:
    """Test `higher at`: one test a method, other value of `along` and cell."""
    found, along, at = [], claim["along"], text(claim["at"])
    chosen = select(records, {"method": claim["methods"]})
    for than in map(text, claim["than"]):
        for of_cell, differences in _pairs(chosen, ("method", *MATCH), along, at, than, claim, statistic):
            holds = [difference is not None and difference > 0 for difference in differences]
            sides, ties = [f"{along} {at}", than], _ties(differences, holds)
            found.append(
                Test(of_cell[0].method, " > ".join(sides), sides, of_cell, differences, holds, statistic, ties)
            )
    return found


def _pairs(
    records: Sequence[Record], match: Sequence[str], field: str, one: str, other: str, claim: Claim,
    statistic: Statistic,
) -> Iterator[tuple[list[Record], list[float | None]]]:  # fmt: skip
    """Pair the cells, alike in `match`, that the plan has with both values of a field: their records, and for each seed the
    statistic at `one` minus that at the other."""
    worst = -math.inf if statistic.rising else math.inf
    both = select(records, {field: [one, other]})
    for of_cell in grouped(both, match, [field, *claim.get("apart", [])]).values():
        if {record.field(field) for record in of_cell} != {one, other}:
            continue
        differences: list[float | None] = []
        for of_seed in grouped(of_cell, ["seed"]).values():
            ours, theirs = (_value(side, statistic, worst) for side in _sides(of_seed, [field], [(one,), (other,)]))
            neither = ours == theirs == worst and any(record.diverged for record in of_seed)
            differences.append(None if ours is None or theirs is None or neither else ours - theirs)
        yield of_cell, differences


def _sides(records: Sequence[Record], fields: Sequence[str], values: Iterable[tuple[str, ...]]) -> list[list[Record]]:
    """Return the records that have each of these values of some fields, side by side."""
    found = grouped(records, fields)
    return [found.get(each, []) for each in values]


def _ties(differences: Sequence[float | None], holds: Sequence[bool]) -> int:
    """Count the seeds in which two sides are equal, and that is not what is claimed."""
    pairs = zip(differences, holds, strict=True)
    return sum(not held and value is not None and (value == 0 or math.isnan(value)) for value, held in pairs)


def _falls(records: Sequence[Record], claim: Claim, statistic: Statistic, sign: int) -> list[Test]:
    """Test `falls` (sign -1) and `rises` (sign 1): one test a method and cell; its difference is that of the smallest and
    the largest value of `along`."""
    along = claim["along"]
    found = []
    chosen = select(records, {"method": claim["methods"]})
    for of_cell in grouped(chosen, ["method", *MATCH], [along, *claim.get("apart", [])]).values():
        steps = sorted({record.field(along) for record in of_cell}, key=float, reverse=True)
        if len(steps) < 2:
            continue
        differences: list[float | None] = []
        holds = []
        for of_seed in grouped(of_cell, ["seed"]).values():
            known = _values(_sides(of_seed, [along], [(step,) for step in steps]), statistic)
            differences.append(known[-1] - known[0] if known else None)
            pairs = [sign * (low - high) > 0 for high, low in itertools.combinations(known, 2)]
            holds.append(2 * sum(pairs) > len(pairs))
        sides = [f"{along} {steps[0]}", *steps[1:]]
        found.append(Test(of_cell[0].method, " > ".join(sides), sides, of_cell, differences, holds, statistic))
    return found


def _values(sides: Iterable[Sequence[Record]], statistic: Statistic) -> list[float]:
    """Compute the value of each side; none at all while one has none."""
    values = [_value(side, statistic) for side in sides]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _smaller_gain(records: Sequence[Record], claim: Claim, statistic: Statistic) -> list[Test]:
    """Test `smaller gain`: one test a baseline, other dataset, alpha and straggler level."""
    found = []
    method, dataset = claim["method"], claim["dataset"]
    for than, other in itertools.product(claim["than"], claim["than_dataset"]):
        wanted = [(name, data) for data in (dataset, other) for name in (method, than)]
        pair = select(records, {"method": [method, than], "dataset": [dataset, other]})
        for of_cell in grouped(pair, ["alpha", "stragglers", "axes"], claim.get("apart", [])).values():
            if {(record.method, record.dataset) for record in of_cell} != set(wanted):
                continue
            differences: list[float | None] = []
            for of_seed in grouped(of_cell, ["seed"]).values():
                known = _values(_sides(of_seed, ["method", "dataset"], wanted), statistic)
                differences.append((known[0] - known[1]) - (known[2] - known[3]) if known else None)
            holds = [difference is not None and difference < 0 for difference in differences]
            label = f"{than}, gain on {other}"
            found.append(Test(method, label, [than, other], of_cell, differences, holds, statistic))
    return found


KINDS: dict[str, Callable[[Sequence[Record], Claim, Statistic], list[Test]]] = {
    "higher": partial(_above, holding=lambda difference: difference > 0),
    "lower": partial(_above, holding=lambda difference: difference < 0),
    "not higher": partial(_above, holding=lambda difference: not difference > 0),  # where neither gets there, too
    "higher at": _higher_at,
    "falls": partial(_falls, sign=-1),
    "rises": partial(_falls, sign=1),
    "smaller gain": _smaller_gain,
}


def tests(study: Study, claim: Claim) -> list[Test]:
    """Test a claim in each cell that it speaks of; `plan/paper_check.py` has checked its names."""
    asked = claim.get("search")
    records = select(study.of_experiments(*claim["experiments"]), claim.get("where", {}))
    chosen = selection.choose(study, records, asked)
    records, statistic = of_metric(chosen, claim["metric"], study.spec.get("statistics", {}))
    if asked:
        claim = {**claim, "apart": [*claim.get("apart", []), *asked["over"]]}
    return KINDS[claim["kind"]](records, claim, statistic)


def tested(study: Study, claim: Claim) -> Tested:
    """Test a claim in each of its cells, and judge what came of it in each and in all."""
    found = tests(study, claim)
    planned = claim.get("cells", 0)
    part = f"in {len(found)} of its {planned} cells" if len(found) < planned else ""
    total = _outcome(study, found, claim.get("most", False), part)
    return Tested(claim, found, total, [_outcome(study, [test]) for test in found])


def _outcome(study: Study, found: Sequence[Test], most: bool = False, part: str = "") -> Outcome:
    """Judge tests together: counts, mean difference, verdict, and what limits it, by the finished runs if there are any."""
    counted = [test for test in found if any(value is not None for value in test.differences)]
    planned = [record for test in found for record in test.records]
    records = [record for test in counted for record in test.records if record.done] or planned
    differences = [value for test in found for value in test.differences if value is not None]
    finite = [value for value in differences if math.isfinite(value)]
    holds, ties, of = sum(sum(test.holds) for test in found), sum(test.ties for test in found), len(differences)
    why = unique(reason for test in found for reason in _without(test))
    both = sum(map(_both_diverged, found))
    nothing = DIVERGED if both else " or ".join(why) or "not run"
    asked = sum(len(test.differences) for test in found)
    lost = [f"no difference in {len(differences) - len(finite)}: {LOST}"] if len(finite) < len(differences) else []
    lost += [f"nothing to compare in {both}, which diverged"] if of and both else []
    limits = "; ".join(filter(None, [part, *(f"no value in some: {reason}" for reason in why)]))
    return Outcome(
        holds=holds,
        ties=ties,
        of=of,
        planned=asked,
        difference=shown(statistics.fmean(finite), found[0].statistic) if finite else "",
        verdict=verdicts.word(holds, of, most) if of else nothing,
        flags=[*verdicts.flags(of, asked - both, limits, _apart(records)), *lost],
        used=cells.used(study, records),
        budget=study.budget(records),
        precision=_precision(counted),
        of_rounds=tails.of_rounds(records, found[0].statistic) if found else "",
    )


def _both_diverged(test: Test) -> int:
    """Count the seeds of which all runs are finished and nothing can be compared, since some have diverged."""
    of_seeds = zip(grouped(test.records, ["seed"]).values(), test.differences, strict=True)
    return sum(
        value is None and all(record.done for record in of_seed) and any(record.diverged for record in of_seed)
        for of_seed, value in of_seeds
    )


def _apart(records: Iterable[Record]) -> str:
    """Return why a verdict on these runs is none on the paper; "" if it is one."""
    records = list(records)
    if any(record.used != record.dataset for record in records):
        return "stand-in data"
    return "" if all(record.is_the_papers for record in records) else "not the paper's runs"


def _without(test: Test) -> list[str]:
    """List why finished runs of a test have no value to compare; one that never reaches a value is worse than any."""
    records = test.records if test.statistic.kind != "first" else []
    return [why for record in records if record.value(test.statistic) is None and (why := record.why(test.statistic))]


def _precision(counted: Iterable[Test]) -> str:
    """Return the precision of the runs that are compared; `bf16 against fp32` if those of a seed differ."""
    found = [
        unique(sorted(record.run.provenance["precision"] for record in of_seed if record.done))
        for test in counted
        for of_seed in grouped(test.records, ["seed"]).values()
    ]
    mixed = [" against ".join(each) for each in found if len(each) > 1]
    return mixed[0] if mixed else " or ".join(unique(itertools.chain(*found)))


def shown(difference: float, statistic: Statistic) -> str:
    """Write a difference of two values of a statistic, with its sign, in the places that the statistic has: `+2.91`."""
    return f"{statistic.scale * difference:+.{1 if statistic.decimals is None else statistic.decimals}f}"


def amount(difference: str, statistic: Statistic, signed: bool = False) -> str:
    """Write a difference with its unit, by default without its sign: `2.90 points`."""
    number = difference if signed else difference.lstrip("+-")
    return f"{number} {statistic.unit}s" if statistic.close == 1 else number
