"""Statements in words on a comparison, each made of its differences by a rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayesfed.results.grounds import FALL, SERVER_IMAGES, SIDES, Ground, Trial
from bayesfed.results.paired import Compared, Comparison

LEADS = {
    "accuracy": "Most accurate",
    "ece": "Best calibrated (ECE)",
    "ood": "Best at OOD detection",
    "worst": "Best for the worst tenth of the clients",
}
PRICES = {"megabytes": "bytes", "computation": "multiply-adds", "passes": "passes per prediction", "time": "time"}
"""The words on a leader's cost."""
GUESS = 2  # from so many times on even a time with other work beside its run says that it is more
ONE_SEED = "With one seed a difference cannot be told from chance."
BINS = 15  # of confidence, in ECE and in reliability diagrams


def by_side(comparisons: Sequence[Comparison]) -> dict[str, list[str]]:
    """Return the statements on each side, under its title."""
    return {SIDES[one.side]: told for one in comparisons if (told := of(one))}


def lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return all statements in one list, each with its side."""
    return [f"{side}: {line}" for side, told in by_side(comparisons).items() for line in told]


def of(comparison: Comparison) -> list[str]:
    """Return all statements on a side: who leads, whose seeds fail, and who has other precisions. Of one seed each nothing
    follows.
    """
    return [*([] if one_seed(comparison) else leads(comparison)), *further(comparison)]


def one_seed(comparison: Comparison) -> bool:
    """Return whether all methods that can be compared have one seed in common."""
    apart = [apart for one in comparison.compared["accuracy"] for apart in one.differences.values()]
    return bool(apart) and all(one.seeds == 1 for one in apart)


def further(comparison: Comparison) -> list[str]:
    """Return all statements but who leads."""
    if one_seed(comparison):
        return [ONE_SEED]
    alone = [
        one.ground.name
        for one in comparison.compared["accuracy"]
        if len(one.values) > 1 and all(len(values) == 1 for values in one.values.values())
    ]
    told = [f"On {listed(alone)} there is one seed. {ONE_SEED}"] if alone else []
    return [*failing(comparison), *precisions(comparison), *told]


@dataclass(frozen=True)
class Lead:
    """The method with the best mean in a column on a ground.

    value, beside: its mean and the baseline's, as text; `beside` is "" for the baseline itself. near: how many of `others`
    are not distinguishable from it. price: what it costs. chance: the ECE that a calibrated model has by chance, as text,
    where its own is no larger; else "". open: why none leads, "" where one does.
    """

    ground: str
    method: str
    value: str
    beside: str
    near: int
    others: int
    price: str
    chance: str
    open: str


def leads(comparison: Comparison) -> list[str]:
    """Name for each quality the method that leads on each ground, beside the baseline, and what it costs."""
    baseline, told = comparison.grounds[0].baseline, []
    for column, words in LEADS.items():
        if found := led(comparison, column):
            told.append(f"{words}: {'; '.join(in_words(one, baseline) for one in found)}.")
    return told


def in_words(lead: Lead, baseline: str) -> str:
    """Write who leads on a ground."""
    inside = [f"{baseline} {lead.beside}"] if lead.beside else []
    inside += [f"{lead.near} other{'s' * (lead.near > 1)} not distinguishable"] if lead.near else []
    inside += [f"a calibrated model has {lead.chance} by chance"] if lead.chance else []
    if lead.open:
        return f"none on {lead.ground} (best mean {', '.join([f'{lead.value} of {lead.method}', *inside])})"
    return f"{lead.method} on {lead.ground} ({', '.join([lead.value, *inside])}){lead.price}"


def led(comparison: Comparison, column: str) -> list[Lead]:
    """Return who leads in a column, ground by ground; without a ground where no two methods have values, or all one seed."""
    signs = comparison.told_apart(column, [(method, comparison.grounds[0].baseline) for method in comparison.methods])
    return [
        lead(comparison, one, signs)
        for one in comparison.compared[column]
        if len(one.means) > 1 and any(len(values) > 1 for values in one.values.values())
    ]


def lead(comparison: Comparison, one: Compared, signs: Mapping[str, Mapping[str, int]]) -> Lead:
    """Return who leads in a column of a ground; `signs`: who is better there than the baseline, as `told_apart` gives it."""
    best, baseline, name, places = one.best, one.ground.baseline, one.ground.name, one.column.decimals
    beside = f"{one.means[baseline]:.{places}f}" if baseline in one.means and best != baseline else ""
    near = sum(one.is_near(method) for method in one.means if method != best)
    chance = by_chance(one, best)
    known = chance is not None and one.means[best] <= chance
    calibrated = baseline in one.means and one.means[baseline] <= (by_chance(one, baseline) or -1.0)
    better = best == baseline or baseline not in one.means or signs[best].get(name) == 1
    return Lead(
        ground=name,
        method=best,
        value=mean(one, best),
        beside=beside,
        near=near,
        others=len(one.means) - 1,
        price=price(comparison, best, name),
        chance=f"{chance:.{places}f}" if known else "",
        open=next(
            (
                why
                for why, holds in (
                    ("half of the methods are near the best", 2 * near >= len(one.means)),
                    (f"the best is not told from {baseline}, corrected for the number of methods", not better),
                    (f"the best and {baseline} are calibrated as well as can be told", known and calibrated),
                )
                if holds
            ),
            "",
        ),
    )


def by_chance(compared: Compared, method: str) -> float | None:
    """Return the mean ECE in percent that a method would have by chance if it were calibrated; None for other columns, and
    for clients' models, whose bins are not recorded.
    """
    if compared.side != "global" or compared.column.name != "ece":
        return None
    found = [chance_ece(compared.ground, one) for one in compared.ground.finished(method)]
    known = [one for one in found if one is not None]
    return statistics.fmean(known) if known else None


def chance_ece(ground: Ground, trial: Trial) -> float | None:
    """Compute the ECE in percent that a calibrated server's model with a run's confidences has by chance; None without bins.

    sum_b n_b/n sqrt(2 p_b (1 - p_b) / (pi n_b)): the mean distance of a share of n_b images from its probability p_b.
    """
    metrics, total, images = trial.run.measured(ground.predictor(trial, "global")), 0.0, 0.0
    for place in range(1, BINS + 1):
        found = [metrics.get(f"reliability_{place}_{what}") for what in ("images", "confidence")]
        if not all(found):
            return None
        count, confidence = (of[max(of)] for of in found if of)
        if count:
            share = min(confidence / count, 1.0)
            total += math.sqrt(2 * share * (1 - share) * count / math.pi)
            images += count
    return 100 * total / images if images else None


def mean(compared: Compared, method: str) -> str:
    """Write a method's mean over its seeds, with its deviation."""
    values, places = list(compared.values[method].values()), compared.column.decimals
    sd = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{compared.means[method]:.{places}f}{sd}"


def price(comparison: Comparison, method: str, ground: str) -> str:
    """Compare what a method sends, computes and takes on a ground beside the baseline, where that is not the same."""
    baseline = comparison.grounds[0].baseline
    means = {name: one.means for name, of in comparison.compared.items() for one in of if one.ground.name == ground}
    known = {name: of for name, of in means.items() if {method, baseline} <= of.keys()}
    if method == baseline or not known.keys() & PRICES.keys():
        return ""
    told = []
    rough = any(one.rough(method) for one in comparison.grounds if one.name == ground)
    for name in [name for name in PRICES if name in known and known[name][baseline]]:
        ratio = known[name][method] / known[name][baseline]
        if name == "time" and rough:
            told += [f"about {ratio:.0f} times the time"] if ratio >= GUESS else []
            continue
        told += [] if f"{ratio:.1f}" == "1.0" else [f"{ratio:.1f} times the {PRICES[name]}"]
    dear = [f"{listed(told)} of {baseline}"] if told else []
    if held := known[SERVER_IMAGES.name][method] - known[SERVER_IMAGES.name][baseline]:
        dear.append(f"{held:.0f} images of the server's own")
    same_as = f", and {'sends and computes' if rough else 'costs'} what {baseline} does"
    return f", with {listed(dear)}" if dear else same_as


def failing(comparison: Comparison) -> list[str]:
    """Name the methods with seeds that fail, ground by ground."""
    told = []
    for ground in comparison.grounds:
        counts = {method: len(ground.finished(method)) for method in ground.trials}
        names = [f"{method} ({count} of {counts[method]})" for method, count in ground.failing[comparison.side].items()]
        if names:
            told.append(
                f"On {ground.name} seeds fail, without an accuracy or {FALL} points or more below the method's median: "
                f"{listed(names)}."
            )
    return told


def precisions(comparison: Comparison) -> list[str]:
    """Say on which grounds methods have seeds that were computed in another precision than the baseline's."""
    told = []
    for ground in comparison.grounds:
        used = {
            method: {seed: one.run.provenance["precision"] for seed, one in ground.counted(method).items()}
            for method in ground.methods(comparison.side)
        }
        base = used.pop(ground.baseline, {})
        other = {
            method: {(of[seed], base[seed]) for seed in of.keys() & base.keys() if of[seed] != base[seed]}
            for method, of in used.items()
        }
        if apart := [found for found in other.values() if found]:
            has, its = ("has", "its") if len(apart) == 1 else ("have", "their")
            pairs = set().union(*apart)
            here, there = (" and ".join(sorted({pair[at] for pair in pairs})) for at in (0, 1))
            told.append(
                f"On {ground.name} {len(apart)} of {len(used)} methods {has} seeds in another precision than {ground.baseline} "
                f"({here} beside {there}), which is in {its} differences."
            )
    return told


def listed(names: Sequence[str]) -> str:
    """Join names as people do."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
