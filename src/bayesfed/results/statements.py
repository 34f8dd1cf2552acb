"""Statements in words on a comparison, each made of its differences by a rule."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from bayesfed.results.grounds import FALL, PLAIN, SIDES
from bayesfed.results.paired import Compared, Comparison

LEADS = {
    "accuracy": "most accurate",
    "ece": "best calibrated (ECE)",
    "ood": "best at OOD detection",
    "worst": "best for the worst tenth of the clients",
}
IN = {"accuracy": "accuracy", "ece": "ECE", "ood": "OOD detection", "worst": "the worst tenth of the clients"}
PRICES = {"megabytes": "bytes", "computation": "multiply-adds", "passes": "passes per prediction", "time": "time"}
"""The words on a leader's cost."""
UNSURE = 0.25  # of a ratio of times: other work on the machine changes them by a fifth
ONE_SEED = "With one seed a difference cannot be told from chance."
FEW, MANY = 3, 8  # names at most, where more are counted; those of who is better are more


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
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    open_, names = [], [ground.name for ground in comparison.grounds]
    for column, words in LEADS.items():
        if led := leader(comparison, column):
            best, won, near = led
            of_near = [f"{method} {value}" for method, value in near.items()]
            if 2 * len(near) >= len(comparison.methods):
                where = places(won, names)
                open_.append(
                    f"in {IN[column]} (on {where} {best} has the best mean, {len(near)} others are not distinguishable)"
                )
                continue
            others = listed(of_near) if len(near) <= FEW else f"{len(near)} others"
            close = f" ({others} not distinguishable)" if near else ""
            found.setdefault((best, tuple(won)), []).append(f"{words}{close}")
    led_by = [
        f"{best} is {listed(words)} on {places(won, names)}{price(comparison, best, won)}."
        for (best, won), words in found.items()
    ]
    return [*led_by, *([f"No method leads {listed(open_)}."] if open_ else [])]


def leader(comparison: Comparison, column: str) -> tuple[str, list[str], dict[str, str]] | None:
    """Find the method that is best in a column on most grounds, the names of these, and the methods near it on all of them
    with their means on the first.

    Of several methods it is the one that is near the best most often. None where
    no two methods have values.
    """
    shown = [one for one in comparison.compared[column] if len(one.means) > 1]
    if not shown:
        return None
    best = {method: sum(one.best == method for one in shown) for method in comparison.methods}
    near = {method: sum(one.best == method or one.is_near(method) for one in shown) for method in comparison.methods}
    found = max(best, key=lambda method: (best[method], near[method]))
    won = [one for one in shown if one.best == found]
    close = [m for m in comparison.methods if m != found and all(one.is_near(m) for one in won)]
    return found, [one.ground.name for one in won], {method: mean(won[0], method) for method in close}


def mean(compared: Compared, method: str) -> str:
    """Write a method's mean over its seeds, with its deviation."""
    values, places = list(compared.values[method].values()), compared.column.decimals
    sd = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{compared.means[method]:.{places}f}{sd}"


def price(comparison: Comparison, method: str, on: Collection[str]) -> str:
    """Compare what a method sends, computes and takes beside the baseline on some grounds, where that is not the same."""
    baseline, told, known = comparison.grounds[0].baseline, [], False
    for name, words in PRICES.items():
        there = [one.means for one in comparison.compared[name] if one.ground.name in on]
        both = [means for means in there if {method, baseline} <= means.keys()]
        ratios = [means[method] / means[baseline] for means in both if means[baseline]]
        if ratios and method != baseline:
            known, ratio = True, statistics.fmean(ratios)
            same = abs(ratio - 1) < UNSURE if name == "time" else f"{ratio:.1f}" == "1.0"
            told += [] if same else [f"{ratio:.1f} times the {words}"]
    if told:
        return f", with {listed(told)} of {baseline}"
    return f", and costs what {baseline} does" if known else ""


def gains(comparison: Comparison) -> list[str]:
    """Name the methods that are better than the baseline in each quality and on which grounds, and those that are only
    worse.
    """
    baseline, names = comparison.grounds[0].baseline, [ground.name for ground in comparison.grounds]
    pairs = [(method, baseline) for method in comparison.methods]
    every = {words: comparison.told_apart(column, pairs) for column, words in IN.items()}
    for signs in every.values():
        for twin in [method for method in signs if method.endswith(PLAIN)]:
            del signs[twin]  # `parts` says what tells it from the whole method
    known = {words: signs for words, signs in every.items() if any(signs.values())}
    better = {words: grouped(signs, 1, names, MANY) for words, signs in known.items()}
    worse = {
        words: grouped({method: on for method, on in signs.items() if 1 not in on.values()}, -1, names, FEW)
        for words, signs in known.items()
    }
    found = []
    for word, of_words in (("Better", better), ("Worse", worse)):
        each = [f"in {words} {told or 'none'}" for words, told in of_words.items()]
        if any(of_words.values()):
            found.append(f"{word} than {baseline}: {'; '.join(each)}.")
        elif known and word == "Better":
            found.append(f"No method can be told to be better than {baseline} in {listed(list(known))}.")
    return found


def grouped(signs: Mapping[str, Mapping[str, int]], sign: int, grounds: Sequence[str], most: int) -> str:
    """Write the methods that have a sign on some of the grounds, by name or of more than `most` their number, and on which;
    those that have it on more come first.
    """
    groups: dict[tuple[int, int, str], list[str]] = {}
    for method, on in signs.items():
        have, turned = ([name for name in grounds if on.get(name) == one] for one in (sign, -sign))
        if have:
            where = places(have, grounds) + (f"; worse: {places(turned, grounds)}" if turned else "")
            groups.setdefault((-len(have), len(turned), where), []).append(method)
    named = {key: listed(found) if len(found) <= most else f"{len(found)} methods" for key, found in groups.items()}
    return ", ".join(f"{named[key]} ({key[-1]})" for key in sorted(groups))


def parts(comparison: Comparison) -> list[str]:
    """Say in what each method is better or worse than without its Bayesian part, and on which grounds."""
    twins = [(method, f"{method}{PLAIN}") for method in comparison.methods]
    pairs = [(method, plain) for method, plain in twins if plain in comparison.methods]
    every = {words: comparison.told_apart(column, pairs) for column, words in IN.items()}
    told, names = [], [ground.name for ground in comparison.grounds]
    for method, _ in pairs:
        if not any(signs[method] for signs in every.values()):
            continue  # no seed in common
        found: dict[tuple[str, str], list[str]] = {}
        for word, sign in (("better", 1), ("worse", -1)):
            for words, signs in every.items():
                if have := [name for name in names if signs[method].get(name) == sign]:
                    found.setdefault((word, places(have, names)), []).append(words)
        each = [f"{word} in {listed(words)} ({where})" for (word, where), words in found.items()]
        told.append(f"{method} is {', '.join(each) or 'not better or worse'}")
    return [f"With a Bayesian part rather than without it: {'; '.join(told)}."] if told else []


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


def places(found: Sequence[str], every: Sequence[str]) -> str:
    """Name some of the grounds; of more than a few say how many of them it is."""
    if len(found) == len(every) > 1:
        return "both grounds" if len(every) == 2 else f"all {len(every)} grounds"
    return listed(found) if len(found) <= FEW else f"{len(found)} of {len(every)} grounds"


def listed(names: Sequence[str]) -> str:
    """Join names as people do."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
