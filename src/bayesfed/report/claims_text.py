"""Results of a paper in words made from the data: its claims one by one, and how close its numbers are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayesfed.report import html_tables
from bayesfed.results import claims, verdicts
from bayesfed.results.published_numbers import Compared
from bayesfed.results.records import DIVERGED, Record
from bayesfed.results.statistics import in_words

FEW = 4
"""Cells of a claim that the overview lists one by one."""

MARKS = {
    verdicts.SUPPORTED: ("yes", "✓"),
    verdicts.MOSTLY: ("part", "◕"),
    verdicts.MIXED: ("part", "◑"),
    verdicts.MOSTLY_NOT: ("part", "◔"),
    verdicts.CONTRADICTED: ("no", "✗"),
    DIVERGED: ("diverged", "✕"),
}
"""Class and sign of a verdict; another one is open."""

COMPARED = ("higher", "lower", "not higher")

Published = dict[tuple[str, frozenset[tuple[str, str, str, str]]], float]
"""The published number of what a metric is measured of: records by folder, level and client."""


@dataclass(frozen=True)
class Line:
    """A claim in one cell that has been run: where, what came out here and in the paper, how often, and the link to its
    runs."""

    where: str
    here: str
    published: str
    counted: str
    verdict: str
    mark: str
    kind: str
    holds: bool
    link: str

    @property
    def words(self) -> str:
        """All of it in one sentence."""
        return f"{self.here}, as claimed in {self.counted}{f'; published: {self.published}' if self.published else ''}"


@dataclass(frozen=True)
class Answer:
    """A claim: its words, whose it is, the verdict over all its cells (`word` alone, and as told), in how many it holds, and
    these cells; `apart`: what was run is not the paper's, so the verdict is none on the paper."""

    claim: str
    by: str
    kind: str
    mark: str
    word: str
    verdict: str
    outcome: str
    mean: str
    lines: list[Line]
    run: bool
    apart: bool

    @property
    def headlines(self) -> list[tuple[str, str, str, str, str, str]]:
        """(where, here, published, class, mark, verdict) of each of few cells, or else of all together."""
        if len(self.lines) <= FEW:
            return [(one.where, one.here, one.published, one.kind, one.mark, one.verdict) for one in self.lines]
        return [(f"{len(self.lines)} cells", self.mean, "", self.kind, self.mark, self.verdict)]


def published(compared: Iterable[Compared]) -> Published:
    """Return the published numbers by metric and records."""
    return {
        (one.cell.metric, place(one.cell.records)): float(one.row["published"])
        for one in compared
        if one.row["published"]
    }


def place(records: Iterable[Record]) -> frozenset[tuple[str, str, str, str]]:
    """Identify what records are of. Experiments may share a run of which a paper publishes several numbers."""
    return frozenset((record.experiment, str(record.folder), record.level, record.client) for record in records)


def answer(of: claims.Tested, rows: Sequence[Mapping[str, str]], known: Published) -> Answer:
    """Describe a claim; `rows` are those of its cells in `claims.csv`."""
    claim, total = of.claim, of.total
    lines = []
    for row, test, came in zip(rows, of.tests, of.each, strict=True):
        if came.of:
            kind, mark = MARKS.get(came.verdict, ("open", ""))
            lines.append(
                Line(
                    where=where(row),
                    here=outcome(claim, came, test),
                    published=as_published(claim, test, known),
                    counted=counted(came),
                    verdict=came.told,
                    mark=mark,
                    kind=kind,
                    holds=came.holds == came.of,
                    link=f"#runs={html_tables.runs_of(test.records)}",
                )
            )
    kind, mark = MARKS.get(total.verdict, ("open", ""))
    diverged = total.verdict == DIVERGED
    told = "nothing to compare, both sides diverged" if diverged else "no test run"
    told = f"as claimed in {total.holds} of {total.of} tests" if lines else told
    told += f", ties in {total.ties}" if total.ties else ""
    told += f" ({total.planned} planned)" if total.of != total.planned else ""
    mean = ""
    if len(lines) > 1 and total.difference:
        mean = f"mean difference {claims.amount(total.difference, of.tests[0].statistic, signed=True)}"
        told += f", {mean}"
    told += f"; measured: {in_words(claim['metric'])}"
    told += f" ({total.of_rounds})" if total.of_rounds else ""
    told += f"; {total.precision}" if " against " in total.precision else ""
    apart = any(flag.startswith(verdicts.OFF_PROTOCOL) for flag in total.flags)
    return Answer(
        claim["claim"],
        claim["by"],
        kind,
        mark,
        total.verdict,
        total.told,
        told,
        mean,
        lines,
        bool(lines) or diverged,
        apart,
    )


def where(row: Mapping[str, str]) -> str:
    """Name a claim's cell: `CIFAR10, alpha 0.05, client 3`."""
    named = (("", "dataset"), ("alpha ", "alpha"), ("stragglers ", "stragglers"), ("", "axes"), ("", "model"))
    words = [f"{word}{row[key]}" for word, key in (*named, ("client ", "client")) if row[key]]
    return ", ".join(word for word in words if word != "stragglers 0")


def outcome(claim: Mapping[str, Any], came: claims.Outcome, test: claims.Test) -> str:
    """Describe the outcome in a cell: `HBFL 2.90 points above FML`."""
    size = claims.amount(came.difference, test.statistic)
    mean = statistics.fmean([one for one in test.differences if one is not None and math.isfinite(one)] or [0.0])
    up, equal = mean > 0, math.isclose(mean, 0, abs_tol=1e-12)
    if (
        came.difference and not equal and not float(came.difference)
    ):  # too small to be shown, except as a 1 in its last digit
        size = f"less than {claims.amount(came.difference[:-1] + '1', test.statistic)}"
    if not came.difference:
        never = "both" if came.ties == came.of else "one of them"
        words = f"{test.method} and {test.than}: {never} never there, or diverged"
    elif claim["kind"] in COMPARED:
        words = f"{test.method} {size} {'above' if up else 'below'} {test.than}"
        words = f"{test.method} equal to {test.than}" if equal else words
    elif claim["kind"] == "higher at":
        at, other = test.sides
        words = f"{test.method}, {at}: {size} {'above' if up else 'below'} {other}"
    elif claim["kind"] in ("falls", "rises"):
        words = f"{test.method} {'rises' if up else 'falls'} by {size} over {' to '.join(test.sides)}"
        one_way = up == (claim["kind"] == "rises")
        words += ", but not at each step" if one_way and came.holds != came.of else ""
    else:
        than, other = test.sides
        words = f"{test.method}'s gain over {than} {size} {'larger' if up else 'smaller'} on {claim['dataset']} than on {other}"
    return words


def counted(came: claims.Outcome) -> str:
    """Count the seeds in which a claim holds in a cell: `3 of 3 seeds`."""
    seeds = f"{came.holds} of {came.of} seed{'s' if came.of != 1 else ''}"
    seeds += f", ties in {came.ties}" if came.ties else ""
    return seeds + (f" ({came.planned} planned)" if came.of != came.planned else "")


def as_published(claim: Mapping[str, Any], test: claims.Test, known: Published) -> str:
    """Describe the published difference: `11.43 points above`; "" if the paper has none."""
    if claim["kind"] not in COMPARED:
        return ""
    sides = [place(record for record in test.records if record.method == name) for name in (test.method, test.than)]
    ours, theirs = (known.get((claim["metric"], side)) for side in sides)
    if ours is None or theirs is None:
        return ""
    difference = (ours - theirs) / test.statistic.scale
    if not difference:
        return "equal"
    size = claims.amount(claims.shown(difference, test.statistic), test.statistic)
    return f"{size} {'above' if difference > 0 else 'below'}"


@dataclass(frozen=True)
class Closeness:
    """Counts of a paper's cells: published, with a run, and of those that may be compared, near, above and below.

    `median`: of the distances in points, rounded up, "" without any.
    """

    published: int
    run: int
    close: int
    higher: int
    lower: int
    apart: int
    median: str

    @property
    def compared(self) -> int:
        """The number of cells that may be compared."""
        return self.close + self.higher + self.lower


def closeness(tables: Iterable[html_tables.Table]) -> Closeness:
    """Count over the cells of all tables with a published number each; the median is of percentages alone."""
    found = [cell for table in tables if table.counted for cell in table.cells if cell.row["published"]]
    kinds = [cell.kind for cell in found]
    near = (cell for cell in found if cell.percent and cell.kind in ("close", "higher", "lower"))
    points = [abs(float(cell.row["difference"])) for cell in near]
    return Closeness(
        published=len(found),
        run=len(kinds) - kinds.count("open"),
        close=kinds.count("close"),
        higher=kinds.count("higher"),
        lower=kinds.count("lower"),
        apart=kinds.count("apart") + kinds.count("diverged"),
        median=f"{math.ceil(10 * statistics.median(points) - 1e-9) / 10:.1f}" if points else "",
    )


def lead(label: str, found: Sequence[Answer], numbers: Closeness, done: int, planned: int) -> list[str]:
    """Summarise in few sentences: the first claim that has been tested, all claims, the numbers, and how many runs they
    rest on.
    """
    own = [one for one in found if one.by == "paper"] or found
    run, of = [one for one in own if one.run], "the paper's" if any(one.by == "paper" for one in own) else "our"
    if not done:
        about = f", so nothing is said of {label}'s claims or numbers" if own or numbers.published else ""
        return [f"None of the {planned} planned runs is finished yet{about}."]
    counted = {word: sum(one.word == word for one in run) for word in MARKS}
    counts = [f"{count} {word}" for word, count in counted.items() if count]
    words = []
    if run:
        first = run[0]
        line = first.lines[0] if len(first.lines) == 1 else None
        said = f"{line.where}: {line.words}" if line else f"{first.outcome[:1].upper()}{first.outcome[1:]}"
        words.append(f"{first.claim[:1].upper()}{first.claim[1:]}: {first.verdict}. {said}.")
    rest = f"{done} of {planned} planned runs are finished"
    verdict = ", so verdicts are preliminary" if run else ""
    words.append(f"{rest}{verdict}." if done < planned else f"All {planned} planned runs are finished.")
    others = sum(one.apart for one in run)
    told = f"{'has' if len(run) == 1 else 'have'} been tested"
    if others:
        told += (
            f"{f', {others} of them' if others < len(run) else ''} on other data, or by other runs, than the paper's"
        )
    every = f"{len(own)} claim{'s' * (len(own) > 1)}"
    if run:
        words.append(f"Of {of} {every} {len(run)} {told}: {', '.join(counts)}.")
    elif own:
        words.append(f"None of {of} {every} has been tested yet.")
    if numbers.published:
        told = f"{numbers.run} of its {numbers.published} published numbers have a run beside them"
        if numbers.compared:
            told += f": {numbers.close} within a point, {numbers.higher} higher, {numbers.lower} lower"
            told += f"; half of them are within {numbers.median} points" if numbers.median else ""
        told += f"; {numbers.apart} cannot be compared" if numbers.apart and numbers.run else ""
        words.append(f"{told}.")
    return words
