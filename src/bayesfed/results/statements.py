"""Statements in words on a comparison, each made of its differences by a rule."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bayesfed.results.grounds import PLAIN, SIDES
from bayesfed.results.paired import Comparison

LEADS = {
    "accuracy": "most accurate",
    "ece": "best calibrated (ECE)",
    "ood": "best at OOD detection",
    "worst": "best for the worst tenth of the clients",
}
IN = {"accuracy": "accuracy", "ece": "ECE", "ood": "OOD detection", "worst": "the worst tenth of the clients"}
PRICES = {"megabytes": "bytes", "computation": "multiply-adds", "passes": "passes per prediction"}
"""The words on a leader's cost; not its time, which other work beside it changes by a fifth."""
FEW = 3  # names at most, where more are counted
FALL = 10  # points of accuracy below a method's median, at which a seed says that it has failed


def by_side(comparisons: Sequence[Comparison]) -> dict[str, list[str]]:
    """Return the statements on each side, under its title."""
    return {SIDES[one.side]: told for one in comparisons if (told := of(one))}


def lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return all statements in one list, each with its side."""
    return [f"{side}: {line}" for side, told in by_side(comparisons).items() for line in told]


def of(comparison: Comparison) -> list[str]:
    """Return all statements on a side: who leads, who is better than the baseline, what Bayesian parts change, and whose
    seeds fail.
    """
    return [*leads(comparison), *gains(comparison), *parts(comparison), *failing(comparison)]


def leads(comparison: Comparison) -> list[str]:
    """Name the method that leads in which qualities, on how many grounds, and what it costs."""
    found: dict[tuple[str, str], list[str]] = {}
    for column, words in LEADS.items():
        if led := leader(comparison, column):
            best, where, near = led
            others = listed(near) if len(near) <= FEW else f"{len(near)} others"
            close = f" ({others} not distinguishable)" if near else ""
            found.setdefault((best, where), []).append(f"{words}{close}")
    return [f"{best} is {listed(words)} on {where}{price(comparison, best)}." for (best, where), words in found.items()]


def leader(comparison: Comparison, column: str) -> tuple[str, str, list[str]] | None:
    """Find the method that is best in a column on most grounds, where that is, and the methods near the best on all.

    Of several it is the one that is near the best most often. None where no two methods have values.
    """
    shown = [one for one in comparison.compared[column] if len(one.means) > 1]
    if not shown:
        return None
    best = {method: sum(one.best == method for one in shown) for method in comparison.methods}
    near = {method: sum(one.best == method or one.is_near(method) for one in shown) for method in comparison.methods}
    found = max(best, key=lambda method: (best[method], near[method]))
    where = shown[0].ground.name if len(shown) == 1 else f"{best[found]} of {len(shown)} grounds"
    return found, where, [method for method, count in near.items() if count == len(shown) and method != found]


def price(comparison: Comparison, method: str) -> str:
    """Compare what a method sends and computes beside the baseline, where that is not the same."""
    baseline, told, known = comparison.grounds[0].baseline, [], False
    for name, words in PRICES.items():
        both = [one.means for one in comparison.compared[name] if {method, baseline} <= one.means.keys()]
        ratios = [means[method] / means[baseline] for means in both if means[baseline]]
        if ratios and method != baseline:
            known, ratio = True, f"{statistics.fmean(ratios):.1f}"
            told += [f"{ratio} times the {words}"] if ratio != "1.0" else []
    if told:
        return f", with {listed(told)} of {baseline}"
    return f", at the cost of {baseline}" if known else ""


def gains(comparison: Comparison) -> list[str]:
    """Name the methods that are better than the baseline in each quality: on more than half of the grounds."""
    baseline, where = comparison.grounds[0].baseline, places([ground.name for ground in comparison.grounds])
    better: dict[str, list[str]] = {}
    for column, words in IN.items():
        records = {method: comparison.record(column, method, baseline) for method in comparison.methods}
        if any(map(sum, records.values())):
            better[words] = [method for method, record in records.items() if record[0] > sum(record) / 2]
    if better and not any(better.values()):
        return [f"No method can be told to be better than {baseline} on {where} in {listed(list(better))}."]
    told = "; ".join(f"in {words} {listed(methods) or 'none'}" for words, methods in better.items())
    return [f"Better than {baseline} on {where}: {told}."] if told else []


def parts(comparison: Comparison) -> list[str]:
    """Say in what each method is better or worse than without its Bayesian part: on more than half of the grounds."""
    told = []
    for method in comparison.methods:
        if f"{method}{PLAIN}" not in comparison.methods:
            continue
        records = {column: comparison.record(column, method, f"{method}{PLAIN}") for column in IN}
        better = [words for column, words in IN.items() if records[column][0] > sum(records[column]) / 2]
        worse = [words for column, words in IN.items() if records[column][2] > sum(records[column]) / 2]
        found = [f"{sign} in {listed(words)}" for sign, words in (("better", better), ("worse", worse)) if words]
        told.append(f"{method} is {', '.join(found) or 'not distinguishable'}")
    where = places([ground.name for ground in comparison.grounds])
    return [f"With a Bayesian part rather than without it, on {where}: {'; '.join(told)}."] if told else []


def failing(comparison: Comparison) -> list[str]:
    """Name the methods of which a seed is FALL points or more below their median accuracy, ground by ground."""
    told = []
    for one in comparison.compared["accuracy"]:
        falls = {
            method: sum(value <= statistics.median(found.values()) - FALL for value in found.values())
            for method, found in one.values.items()
        }
        names = [f"{method} ({count} of {len(one.values[method])})" for method, count in falls.items() if count]
        if names:
            told.append(
                f"On {one.ground.name} seeds fail, {FALL} points or more below the method's median: {listed(names)}."
            )
    return told


def places(names: Sequence[str]) -> str:
    """Name one ground, or count several."""
    return names[0] if len(names) == 1 else f"most of {len(names)} grounds"


def listed(names: Sequence[str]) -> str:
    """Join names as people do."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
