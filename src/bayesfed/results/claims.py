"""The orderings that a paper claims: in how many seeds each holds, cell by cell and in all.

A claim in the paper's YAML: `claim` (words), `by` (paper or us), `kind` (below), `experiments`, `metric`,
and what its kind needs; `where` narrows the cells (field -> value or values), `apart` names axes in which cells that are
compared may differ (each method with its best number of local epochs); with a `search` (results/selection.py) best is
compared with best; `most: true` is a claim of most settings: in all it holds where it does in more than half. Kinds:

- `higher`, `lower`, `not higher`: `method` against each of `than`, at equal data, alpha, stragglers, model, client, seed;
- `higher at`: each of `methods` where the axis `along` is `at` against where it is each of `than`, likewise;
- `falls`, `rises`: the metric of each of `methods` falls (rises) at each step from the largest value of `along` down;
- `smaller gain`: the gain of `method` over each of `than`, averaged over models, is smaller on `dataset`
  than on each of `than_dataset`.

Two sides that are equal are level: counted apart, and no holding but for `not higher`. A finished run that never reaches a
value (`first`), or that has diverged, is worse than any other in a comparison of two sides; where both have diverged,
nothing is compared.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesfed.results import cells, csv_file, formatting, run_records, selection, tables, tails
from bayesfed.results import study as join
from bayesfed.results.statistics import Statistic

MATCH = ("dataset", "alpha", "stragglers", "axes", "model", "client")
COLUMNS = (
    "claim", "by", "kind", "metric", "method", "than", "experiment", "dataset", "dataset_used", "alpha",
    "stragglers", "axes", "model", "client", "holds", "level", "of", "planned", "difference", "verdict", "budget",
    "precision",
)  # fmt: skip


Claim = Mapping[str, Any]


@dataclass(frozen=True)
class Test:
    """A claim in one cell: what is compared, the records of it, and the difference of each planned seed.

    A difference is one of values of `statistic`, in [-1, 1] but for rounds; None marks a seed of which a run is missing,
    or both have diverged, an infinite one that a side never gets there or has diverged, NaN that both never get there.
    `level`: in how many seeds the two sides are equal, and the claim does not hold. `than` says what the method, or its
    value at one place, is compared with, and `sides` the parts of that: values of `along`, or a method and a dataset.
    """

    __test__ = False  # a name that pytest would collect

    method: str
    than: str
    sides: Sequence[str]
    records: Sequence[cells.Record]
    differences: Sequence[float | None]
    holds: Sequence[bool]
    statistic: Statistic
    level: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a claim's tests, in one cell or over all: in how many seeds of cells it holds, is level, could be tested
    (`of`), and would be with all that is planned.

    `difference` is the mean over the tested seeds, in points of a percentage, or as else the metric is shown, "" without
    any: method minus `than`; for `falls` and `rises` at the smallest value of `along` minus at the largest; for `smaller
    gain` on `dataset` minus on the other. `apart`: why the verdict is none on the paper, and `part`: in how few of the
    paper's cells it could be reached, or "". `used`, `budget` and `precision` are those of the runs; `of_rounds`: of which
    rounds the compared values are, where not of the runs' last.
    """

    holds: int
    level: int
    of: int
    planned: int
    difference: str
    verdict: str
    apart: str
    part: str
    used: str
    budget: str
    precision: str
    of_rounds: str

    @property
    def told(self) -> str:
        """The verdict, behind it in brackets what limits it."""
        limit = self.apart or self.part
        return f"{self.verdict} ({limit})" if limit else self.verdict


@dataclass(frozen=True)
class Tested:
    """A claim, its tests, what came of all of them, and of each."""

    claim: Claim
    tests: Sequence[Test]
    total: Outcome
    each: Sequence[Outcome]


def _groups(
    records: Iterable[cells.Record], fields: Sequence[str], apart: Sequence[str] = ()
) -> dict[tuple[object, ...], list[cells.Record]]:
    """The records by their values of `fields`, whatever they have of `apart`, in order of first appearance."""
    found: dict[tuple[object, ...], list[cells.Record]] = {}
    for record in records:
        axes = tuple((axis, value) for axis, value in record.axes.items() if axis not in apart)
        key = (axes if field == "axes" else record.field(field) for field in fields if field not in apart)
        found.setdefault(tuple(key), []).append(record)
    return found


def _value(records: Sequence[cells.Record], statistic: Statistic, worst: float | None = None) -> float | None:
    """The mean of the records' values; None while one is missing. `worst` stands for a run that never reaches a value, or
    has diverged."""
    values = [record.value(statistic) for record in records]
    for place, record in enumerate(records):
        if values[place] is None and record.done and (record.diverged or statistic.kind == "first"):
            values[place] = worst
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _above(
    records: Sequence[cells.Record], claim: Claim, statistic: Statistic, holding: Callable[[float], bool]
) -> list[Test]:
    """`higher`, `lower`, `not higher`, by the differences that hold: one test a baseline and cell."""
    found = []
    for than in claim["than"]:
        for of_cell, differences in _pairs(records, MATCH, "method", claim["method"], than, claim, statistic):
            holds = [difference is not None and holding(difference) for difference in differences]
            found.append(
                Test(claim["method"], than, [than], of_cell, differences, holds, statistic, _level(differences, holds))
            )
    return found


def _higher_at(records: Sequence[cells.Record], claim: Claim, statistic: Statistic) -> list[Test]:
    """`higher at`: one test a method, other value of `along` and cell."""
    found, along, at = [], claim["along"], formatting.text(claim["at"])
    chosen = cells.select(records, {"method": claim["methods"]})
    for than in map(formatting.text, claim["than"]):
        for of_cell, differences in _pairs(chosen, ("method", *MATCH), along, at, than, claim, statistic):
            holds = [difference is not None and difference > 0 for difference in differences]
            sides, level = [f"{along} {at}", than], _level(differences, holds)
            found.append(
                Test(of_cell[0].method, " > ".join(sides), sides, of_cell, differences, holds, statistic, level)
            )
    return found


def _pairs(
    records: Sequence[cells.Record], match: Sequence[str], field: str, one: str, other: str, claim: Claim,
    statistic: Statistic,
) -> Iterator[tuple[list[cells.Record], list[float | None]]]:  # fmt: skip
    """The cells, alike in `match`, that the plan has with both values of a field; and for each seed the statistic at `one`
    minus that at the other."""
    worst = -math.inf if statistic.rising else math.inf
    both = cells.select(records, {field: [one, other]})
    for of_cell in _groups(both, match, [field, *claim.get("apart", [])]).values():
        if {record.field(field) for record in of_cell} != {one, other}:
            continue
        differences: list[float | None] = []
        for of_seed in _groups(of_cell, ["seed"]).values():
            ours, theirs = (_value(cells.select(of_seed, {field: value}), statistic, worst) for value in (one, other))
            neither = ours == theirs == worst and any(record.diverged for record in of_seed)
            differences.append(None if ours is None or theirs is None or neither else ours - theirs)
        yield of_cell, differences


def _level(differences: Sequence[float | None], holds: Sequence[bool]) -> int:
    """In how many seeds two sides are equal, and that is not what is claimed."""
    pairs = zip(differences, holds, strict=True)
    return sum(not held and value is not None and (value == 0 or math.isnan(value)) for value, held in pairs)


def _falls(records: Sequence[cells.Record], claim: Claim, statistic: Statistic, sign: int) -> list[Test]:
    """`falls` (sign -1) and `rises` (sign 1): one test a method and cell; its difference is smallest minus largest value of
    `along`."""
    along = claim["along"]
    found = []
    chosen = cells.select(records, {"method": claim["methods"]})
    for of_cell in _groups(chosen, ["method", *MATCH], [along, *claim.get("apart", [])]).values():
        steps = sorted({record.field(along) for record in of_cell}, key=float, reverse=True)
        if len(steps) < 2:
            continue
        differences: list[float | None] = []
        holds = []
        for of_seed in _groups(of_cell, ["seed"]).values():
            values = [_value(cells.select(of_seed, {along: step}), statistic) for step in steps]
            known = [value for value in values if value is not None]
            complete = len(known) == len(steps)
            differences.append(known[-1] - known[0] if complete else None)
            holds.append(complete and all(sign * (b - a) > 0 for a, b in itertools.pairwise(known)))
        sides = [f"{along} {steps[0]}", *steps[1:]]
        found.append(Test(of_cell[0].method, " > ".join(sides), sides, of_cell, differences, holds, statistic))
    return found


def _smaller_gain(records: Sequence[cells.Record], claim: Claim, statistic: Statistic) -> list[Test]:
    """`smaller gain`: one test a baseline, other dataset, alpha and straggler level."""
    found = []
    method = claim["method"]
    for than in claim["than"]:
        for other in claim["than_dataset"]:
            pair = cells.select(records, {"method": [method, than], "dataset": [claim["dataset"], other]})
            for of_cell in _groups(pair, ["alpha", "stragglers", "axes"], claim.get("apart", [])).values():
                wanted = {(name, data) for name in (method, than) for data in (claim["dataset"], other)}
                if {(record.method, record.dataset) for record in of_cell} != wanted:
                    continue
                differences: list[float | None] = []
                for of_seed in _groups(of_cell, ["seed"]).values():
                    values = [
                        _value(cells.select(of_seed, {"method": name, "dataset": data}), statistic)
                        for data in (claim["dataset"], other)
                        for name in (method, than)
                    ]
                    known = [value for value in values if value is not None]
                    complete = len(known) == len(values)
                    differences.append((known[0] - known[1]) - (known[2] - known[3]) if complete else None)
                holds = [difference is not None and difference < 0 for difference in differences]
                label = f"{than}, gain on {other}"
                found.append(Test(method, label, [than, other], of_cell, differences, holds, statistic))
    return found


KINDS: dict[str, Callable[[Sequence[cells.Record], Claim, Statistic], list[Test]]] = {
    "higher": lambda records, claim, statistic: _above(records, claim, statistic, lambda difference: difference > 0),
    "lower": lambda records, claim, statistic: _above(records, claim, statistic, lambda difference: difference < 0),
    "not higher": lambda records, claim, statistic: _above(
        records,
        claim,
        statistic,
        lambda difference: not difference > 0,  # where neither gets there, too
    ),
    "higher at": _higher_at,
    "falls": lambda records, claim, statistic: _falls(records, claim, statistic, -1),
    "rises": lambda records, claim, statistic: _falls(records, claim, statistic, 1),
    "smaller gain": _smaller_gain,
}


def tests(study: cells.Study, claim: Claim) -> list[Test]:
    """A claim in each cell that it speaks of; `plan/paper_check.py` has checked its names."""
    where = {"experiment": claim["experiments"], **claim.get("where", {})}
    own, asked = study.spec.get("statistics", {}), claim.get("search")
    chosen = selection.choose(study, cells.select(study.records, where), asked)
    records, statistic = cells.of_metric(chosen, claim["metric"], own)
    if asked:
        claim = {**claim, "apart": [*claim.get("apart", []), *asked["over"]]}
    return KINDS[claim["kind"]](records, claim, statistic)


def tested(study: cells.Study, claim: Claim) -> Tested:
    """A claim, tested in each of its cells."""
    found = tests(study, claim)
    planned = claim.get("cells", 0)
    part = f"in {len(found)} of its {planned} cells" if len(found) < planned else ""
    total = _outcome(study, found, claim.get("most", False), part)
    return Tested(claim, found, total, [_outcome(study, [test]) for test in found])


def rows(study: cells.Study, of: Tested) -> list[dict[str, str]]:
    """A claim's rows: first over all cells (`dataset` is "all", it counts pairs of cell and seed), then each."""
    claim = of.claim
    common = {
        "claim": claim["claim"],
        "by": claim["by"],
        "kind": claim["kind"],
        "metric": claim["metric"],
        "experiment": "+".join(claim["experiments"]),
    }
    sides = {"method": claim.get("method", ""), "than": ", ".join(map(formatting.text, claim.get("than", [])))}
    whole = [{**common, **sides, "dataset": "all", **_columns(of.total)}]
    for test, outcome in zip(of.tests, of.each, strict=True):
        chosen = {"chosen": choices(test)} if "search" in claim else {}
        whole.append({**common, **_cell(study, test), **_columns(outcome), **chosen})
    return whole


def _columns(outcome: Outcome) -> dict[str, str]:
    """An outcome as text."""
    return {
        "holds": str(outcome.holds) if outcome.of else "",
        "level": str(outcome.level) if outcome.of else "",
        "of": str(outcome.of),
        "planned": str(outcome.planned),
        "difference": outcome.difference,
        "verdict": outcome.told,
        "dataset_used": outcome.used,
        "budget": outcome.budget,
        "precision": outcome.precision,
        "of_rounds": outcome.of_rounds,
    }


def _cell(study: cells.Study, test: Test) -> dict[str, str]:
    """The columns that name a test's cell; what differs within it stays empty."""
    common = set.intersection(*({(axis, r.field(axis)) for axis in r.axes} for r in test.records))

    def axes(record: cells.Record) -> str:
        return study.axes(
            replace(record, axes={axis: each for axis, each in record.axes.items() if (axis, each) in common})
        )

    row = {"method": test.method, "than": test.than}
    for field in MATCH:
        values = formatting.unique(axes(r) if field == "axes" else r.field(field) for r in test.records)
        row[field] = study.labels(values[0]) if len(values) == 1 else ""
    row["dataset"] = " and ".join(formatting.unique(study.labels(record.dataset) for record in test.records))
    row["client"] = study.written("client", row["client"].replace("global", ""))
    return row


def choices(test: Test) -> str:
    """What a search has chosen for a test, and for which of its cells: `FOLA, alpha 0.1: lr 0.01 (best of 5, ...)`."""
    chosen = [record for record in test.records if record.chosen]
    named = (f"{r.method}{f', alpha {r.alpha}' if r.alpha else ''}: {r.chosen}" for r in chosen)
    return "; ".join(formatting.unique(named))


def _outcome(study: cells.Study, found: Sequence[Test], most: bool = False, part: str = "") -> Outcome:
    """Counts, mean difference and verdict over tests; what limits it, of the runs that stand, where any count."""
    records = [record for test in found for record in test.records]
    counted = [test for test in found if any(value is not None for value in test.differences)]
    records = [record for test in counted for record in test.records if record.done] or records
    differences = [value for test in found for value in test.differences if value is not None]
    finite = [value for value in differences if math.isfinite(value)]
    holds, level, of = sum(sum(test.holds) for test in found), sum(test.level for test in found), len(differences)
    why = formatting.unique(reason for test in found for reason in _without(test))
    if not of:
        verdict = cells.DIVERGED if any(record.diverged for record in records) else " or ".join(why) or "not run"
    elif holds == of or level == of:
        verdict = "holds" if holds else "level"
    elif most:
        verdict = "holds" if 2 * holds > of else "does not hold"
    else:
        verdict = "holds in part" if holds else "does not hold"
    apart = ""
    if of and any(record.used != record.dataset for record in records):
        apart = "stand-in data"
    elif of and not all(record.as_printed for record in records):
        apart = "not the paper's runs"
    return Outcome(
        holds=holds,
        level=level,
        of=of,
        planned=sum(len(test.differences) for test in found),
        difference=shown(statistics.fmean(finite), found[0].statistic) if finite else "",
        verdict=verdict,
        apart=apart,
        part="; ".join(filter(None, [part, *(f"no value in some: {reason}" for reason in why)])) if of else "",
        used=tables.used(study, records),
        budget=study.budget(records),
        precision=_precision(counted),
        of_rounds=tails.of_rounds(records, found[0].statistic) if found else "",
    )


def _without(test: Test) -> list[str]:
    """Why finished runs of a test have no value to compare; one that never reaches a value is worse than any."""
    records = test.records if test.statistic.kind != "first" else []
    return [why for record in records if record.value(test.statistic) is None and (why := record.why(test.statistic))]


def _precision(counted: Sequence[Test]) -> str:
    """The precision of the runs that are compared; `bf16 against fp32` where those of a seed differ."""
    found = [
        formatting.unique(
            sorted(run_records.provenance(record.folder)["precision"] for record in of_seed if record.done)
        )
        for test in counted
        for of_seed in _groups(test.records, ["seed"]).values()
    ]
    mixed = [" against ".join(each) for each in found if len(each) > 1]
    return mixed[0] if mixed else " or ".join(formatting.unique(itertools.chain(*found)))


def shown(difference: float, statistic: Statistic) -> str:
    """A difference of two values of a statistic, with its sign, in the places that the statistic has: `+2.91`."""
    return f"{statistic.scale * difference:+.{1 if statistic.decimals is None else statistic.decimals}f}"


def amount(difference: str, statistic: Statistic, signed: bool = False) -> str:
    """A difference with its unit, by default without its sign: `2.90 points`."""
    number = difference if signed else difference.lstrip("+-")
    return f"{number} {statistic.unit}s" if statistic.close == 1 else number


def write(plan: Path, out: Path) -> list[Path]:
    """Write `<out>/<paper>/claims.csv` for each paper of the plan; arguments, errors as in `tables.write`."""
    written = []
    for study in join.studies(plan):
        asked = study.spec.get("claims", [])
        found = [row for claim in asked for row in rows(study, tested(study, claim))]
        said = {
            "of_rounds": any(row["of_rounds"] for row in found),
            "chosen": any("search" in claim for claim in asked),
        }
        header = [*COLUMNS, *(name for name, shown in said.items() if shown)]
        kept = [{name: row.get(name, "") for name in header} for row in found]
        written.append(csv_file.write(out / study.paper / "claims.csv", header, kept))
    return written
