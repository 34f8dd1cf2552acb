"""Statements in words on a comparison, each made of its differences by a rule."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bayesfed.results.grounds import FALL, PLAIN, SIDES
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
ONE_SEED = "With one seed a difference cannot be told from chance."
FEW = 3  # names at most, where more are counted


def by_side(comparisons: Sequence[Comparison]) -> dict[str, list[str]]:
    """Return the statements on each side, under its title."""
    return {SIDES[one.side]: told for one in comparisons if (told := of(one))}


def lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return all statements in one list, each with its side."""
    return [f"{side}: {line}" for side, told in by_side(comparisons).items() for line in told]


def of(comparison: Comparison) -> list[str]:
    """Return all statements on a side: who leads, who is better than the baseline, what Bayesian parts change, and whose
    seeds fail. Of one seed each nothing follows.
    """
    apart = [apart for one in comparison.compared["accuracy"] for apart in one.differences.values()]
    if apart and all(one.seeds == 1 for one in apart):
        return [ONE_SEED]
    return [*leads(comparison), *gains(comparison), *parts(comparison), *failing(comparison)]


def leads(comparison: Comparison) -> list[str]:
    """Name the method that leads in which qualities, on how many grounds, and what it costs.

    Where half of the methods are not distinguishable from the best, none leads.
    """
    found: dict[tuple[str, str], list[str]] = {}
    open_ = []
    for column, words in LEADS.items():
        if led := leader(comparison, column):
            best, where, near = led
            if 2 * len(near) >= len(comparison.methods):
                open_.append(f"in {IN[column]} ({best} has the best mean, {len(near)} others are not distinguishable)")
                continue
            others = listed(near) if len(near) <= FEW else f"{len(near)} others"
            close = f" ({others} not distinguishable)" if near else ""
            found.setdefault((best, where), []).append(f"{words}{close}")
    led_by = [
        f"{best} is {listed(words)} on {where}{price(comparison, best)}." for (best, where), words in found.items()
    ]
    return [*led_by, *([f"No method leads {listed(open_)}."] if open_ else [])]


def leader(comparison: Comparison, column: str) -> tuple[str, str, list[str]] | None:
    """Find the method that is best in a column on most grounds, where that is, and the methods near it on all of these.

    Few grounds are named, more are counted. Of several methods it is the one that is near the best most often. None where
    no two methods have values.
    """
    shown = [one for one in comparison.compared[column] if len(one.means) > 1]
    if not shown:
        return None
    best = {method: sum(one.best == method for one in shown) for method in comparison.methods}
    near = {method: sum(one.best == method or one.is_near(method) for one in shown) for method in comparison.methods}
    found = max(best, key=lambda method: (best[method], near[method]))
    won = [one for one in shown if one.best == found]
    names = [one.ground.name for one in won]
    where = listed(names) if len(names) <= FEW else f"{len(names)} of {len(shown)} grounds"
    return found, where, [m for m in comparison.methods if m != found and all(one.is_near(m) for one in won)]


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
    return f", and costs what {baseline} does" if known else ""


def gains(comparison: Comparison) -> list[str]:
    """Name the methods that are better than the baseline in each quality, and those that are worse: on more than half of the
    grounds.
    """
    baseline, where = comparison.grounds[0].baseline, places([ground.name for ground in comparison.grounds])
    pairs = [(method, baseline) for method in comparison.methods]
    every = {words: comparison.told_apart(column, pairs) for column, words in IN.items()}
    known = {words: records for words, records in every.items() if any(map(sum, records.values()))}
    found = []
    for word, place in (("better", 0), ("worse", 2)):
        told = {
            words: [method for method, record in records.items() if record[place] > sum(record) / 2]
            for words, records in known.items()
        }
        if any(told.values()):
            each = "; ".join(f"in {words} {listed(methods) or 'none'}" for words, methods in told.items())
            found.append(f"{word.capitalize()} than {baseline} on {where}: {each}.")
        elif known and word == "better":
            found.append(f"No method can be told to be better than {baseline} on {where} in {listed(list(known))}.")
    return found


def parts(comparison: Comparison) -> list[str]:
    """Say in what each method is better or worse than without its Bayesian part: on more than half of the grounds."""
    twins = [(method, f"{method}{PLAIN}") for method in comparison.methods]
    pairs = [(method, plain) for method, plain in twins if plain in comparison.methods]
    records = {words: comparison.told_apart(column, pairs) for column, words in IN.items()}
    told = []
    for method, _ in pairs:
        better = [words for words, of_words in records.items() if of_words[method][0] > sum(of_words[method]) / 2]
        worse = [words for words, of_words in records.items() if of_words[method][2] > sum(of_words[method]) / 2]
        found = [f"{sign} in {listed(words)}" for sign, words in (("better", better), ("worse", worse)) if words]
        told.append(f"{method} is {', '.join(found) or 'not better or worse'}")
    where = places([ground.name for ground in comparison.grounds])
    return [f"With a Bayesian part rather than without it, on {where}: {'; '.join(told)}."] if told else []


def failing(comparison: Comparison) -> list[str]:
    """Name the methods with seeds that fail, ground by ground."""
    told = []
    for ground in comparison.grounds:
        counts = {m: sum(bool(one.summary) for one in trials.values()) for m, trials in ground.trials.items()}
        names = [f"{method} ({count} of {counts[method]})" for method, count in ground.failing[comparison.side].items()]
        if names:
            told.append(
                f"On {ground.name} seeds fail, without an accuracy or {FALL} points or more below the method's median: "
                f"{listed(names)}."
            )
    return told


def places(names: Sequence[str]) -> str:
    """Name one ground, or say of how many most are meant: of two that is both."""
    return names[0] if len(names) == 1 else "both grounds" if len(names) == 2 else f"most of {len(names)} grounds"


def listed(names: Sequence[str]) -> str:
    """Join names as people do."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
