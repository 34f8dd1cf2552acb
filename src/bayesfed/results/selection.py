"""A search for the best hyperparameters, as a table, a figure or a claim asks for it: `search: {over: AXES, by: METRIC}`.

The cells of an experiment that differ in the axes of `over` alone are the choices of one search. A choice counts when
all its seeds have been run; the one with the largest mean of `by` over its seeds is chosen (of equals the first in the
plan), and its runs stand for the whole search. `by` is an accuracy on test images, as in the papers, or a metric on
validation images, `validation_nll`. Choosing is part of what is reported: outputs say which images it was on. A search of
which choices are missing, in the plan or still to be run, is not the paper's: it says `best of 7 of 12`.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bayesfed.papers import grid
from bayesfed.results.formatting import spoken, text, unique
from bayesfed.results.records import Record, of_metric
from bayesfed.results.statistics import RUN, VALIDATION, Statistic, in_words
from bayesfed.results.study import Study

Search = Mapping[str, Any]
Group = tuple[tuple[str, str], ...]
LEVELS = ("global", "local", "personal", RUN)
"""The levels by whose metrics a search can choose: one value a run."""
FIELDS = ("experiment", "dataset", "alpha", "stragglers", "model", "method")
"""Fields that tell the cells of searches apart, beside axes that have no field of their own."""


def choose(study: Study, records: Iterable[Record], search: Search | None) -> list[Record]:
    """Select the records of the chosen runs, in order and of LEVELS alone; all records where no search is asked for.

    Each says in `chosen` what was chosen, and in `changes` where the search was not whole. A search without any choice
    that has been run keeps all its records, as not run.
    """
    if search is None:
        return list(records)
    records, over = [record for record in records if record.level in LEVELS], search["over"]
    by, statistic = of_metric(records, search["by"], study.spec.get("statistics", {}))
    searches: dict[Group, dict[Group, list[Record]]] = {}
    for record in by:
        group, choice = place(record, over)
        searches.setdefault(group, {}).setdefault(choice, []).append(record)
    of_paper = {name: choices_of_paper(study, name, over) for name in unique(record.experiment for record in by)}
    found: dict[Group, tuple[Group | None, tuple[str, ...], str, list[str]]] = {}
    for group, choices in searches.items():
        run = {choice: own for choice, own in choices.items() if all(record.done for record in own)}
        best = first_best(run, statistic)
        theirs = of_paper[dict(group)["experiment"]]
        of = len(set(choices).union(*(own for rest, own in theirs.items() if set(rest) <= set(group))))
        told = f"best of {len(run)}" if len(run) == of else f"best of {len(run)} of {of}"
        values = tuple(f"{spoken(axis)} {study.label(value)}" for axis, value in best or () if value)
        lacking = [] if len(run) == of else [f"{told} choices of {listed(over)}"]
        found[group] = best, values, f"{', '.join(values)} ({told}, {how(search)})" if best else "", lacking
    kept = []
    for record in records:
        group, choice = place(record, over)
        best, values, chosen, lacking = found[group]
        changes = (*record.changes, *lacking)
        if best is None:
            kept.append(replace(record, done=False, diverged=0, summary={}, missing="", changes=changes))
        elif best == choice:
            kept.append(replace(record, chosen=chosen, choice=values, changes=changes))
    return kept


def listed(over: Sequence[str]) -> str:
    """Write axes in words."""
    return ", ".join(map(spoken, over))


def place(record: Record, over: Sequence[str]) -> tuple[Group, Group]:
    """Return the search that a record belongs to, and its choice there."""
    axes = [axis for axis in (*FIELDS, *record.axes) if axis not in over]
    return tuple((axis, record.field(axis)) for axis in axes), tuple((axis, record.field(axis)) for axis in over)


def first_best(run: Mapping[Group, Sequence[Record]], statistic: Statistic) -> Group | None:
    """Return the choice with the best mean over its seeds; one that diverged has none, and is chosen if all did."""
    means = {}
    for choice, records in run.items():
        values = [record.value(statistic) for record in records]
        known = [value for value in values if value is not None]
        sign = 1 if statistic.rising else -1
        means[choice] = sign * statistics.fmean(known) if known and len(known) == len(values) else -math.inf
    return max(means, key=lambda choice: means[choice]) if means else None


def choices_of_paper(study: Study, experiment: str, over: Sequence[str]) -> dict[Group, set[Group]]:
    """Return the choices that the paper's own grid has, by the rest of the point."""
    found: dict[Group, set[Group]] = {}
    its = study.spec["experiments"][experiment]
    for point in grid.grid(its, {}, experiment):
        values = {axis: text(value) for axis, value in grid.shortened(point, its).items()}
        rest = tuple(sorted((axis, value) for axis, value in values.items() if axis not in over))
        found.setdefault(rest, set()).add(tuple((axis, values.get(axis, "")) for axis in over))
    return found


def how(search: Search) -> str:
    """Name the images on which a search has chosen."""
    return "chosen on validation images" if search["by"].startswith(VALIDATION) else "chosen on test accuracy"


def words(search: Search) -> str:
    """Write a search in words: what was chosen, by what, and how."""
    return f"Best over {listed(search['over'])} by the mean of its {in_words(search['by'])}, {how(search)}."


def chosen(records: Iterable[Record]) -> str:
    """Describe what was chosen for the records of a cell, seeds of one search; "" if nothing was."""
    return "; ".join(unique(record.chosen for record in records if record.chosen))


def counts(records: Iterable[Record]) -> str:
    """Count in how many searches each value was chosen: `lr 0.1 (3), lr 0.01 (1)`."""
    choices = {place(record, ())[0]: record.choice for record in records if record.chosen}
    found = Counter(itertools.chain(*choices.values()))
    return ", ".join(f"{choice} ({count})" for choice, count in sorted(found.items()))
