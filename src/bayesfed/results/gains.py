"""Who is better and who worse than the baseline, and than its own plain twin: counts over the grounds of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bayesfed.results.formatting import unique
from bayesfed.results.grounds import PLAIN, SIDES
from bayesfed.results.paired import Comparison

QUALITIES = {"accuracy": "accuracy", "ece": "ECE", "ood": "OOD detection", "worst": "worst tenth"}
BASELINE, TWIN = "beside_baseline", "beside_plain"
"""What a method is set beside: ends of the names of the columns of `comparison.csv` that say it."""
WORDS = {1: "better", 0: "open", -1: "worse"}
COSTS = {"megabytes": "MB", "time": "time", "passes": "passes to predict"}
KEY = (
    "Better or worse: by p-values corrected for the number of methods. An empty cell is missing evidence, not equality. Costs are "
    "those of the baseline times this. A plain twin is the same method without one Bayesian part."
)
Row = Mapping[str, str]
Table = tuple[str, list[str], list[list[str]]]


def told(comparison: Comparison) -> dict[tuple[str, str], dict[str, str]]:
    """Return (ground, method) -> whether it is better than what it is set beside, worse or open, by column of the file."""
    baseline = comparison.grounds[0].baseline
    twins = {method: f"{method}{PLAIN}" for method in comparison.methods}
    beside = {
        BASELINE: [(method, baseline) for method in comparison.methods],
        TWIN: [(method, twin) for method, twin in twins.items() if twin in comparison.methods],
    }
    found: dict[tuple[str, str], dict[str, str]] = {}
    for end, pairs in beside.items():
        for column in QUALITIES:
            for method, signs in comparison.told_apart(column, pairs).items():
                for ground, sign in signs.items():
                    found.setdefault((ground, method), {})[f"{column}_{end}"] = WORDS[sign]
    return found


def tables(rows: Sequence[Row], baseline: str) -> list[Table]:
    """Return title, head and rows of both tables, from the rows of `comparison.csv`; without those that say nothing."""
    grounds = len({row["ground"] for row in rows})
    over = f" (+ and −, on how many of {grounds} grounds)" if grounds > 1 else ""
    titles = {
        BASELINE: f"Better and worse than {baseline}{over}",
        TWIN: f"Is it the Bayesian part? Better and worse than the plain twin{over}",
    }
    return [(title, *found) for beside, title in titles.items() if (found := table(rows, beside, baseline))[1]]


def table(rows: Sequence[Row], beside: str, baseline: str) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of counts, from the rows of `comparison.csv`; without rows where nothing is known.

    Beside the baseline it has the methods that can be told from it on any ground, those with most gains first, and what they
    cost; beside their plain twins all that have one.
    """
    base = {(row["ground"], row["models"]): row for row in rows if row["method"] == baseline}
    columns = {(side, name): f"{title}, {side}" for side in SIDES for name, title in QUALITIES.items()}
    shown = [key for key in columns if any(row[f"{key[1]}_{beside}"] for row in rows if row["models"] == key[0])]
    costs = [name for name in COSTS if beside == BASELINE and any(row[name] for row in rows)]
    alone = len({row["ground"] for row in rows}) == 1
    found = []
    for method in unique(row["method"] for row in rows if not row["method"].endswith(PLAIN)):
        own = [row for row in rows if row["method"] == method]
        of = [[row[f"{name}_{beside}"] for row in own if row["models"] == side] for side, name in shown]
        better, worse = (sum(one.count(word) for one in of) for word in (WORDS[1], WORDS[-1]))
        if better or worse or (beside == TWIN and any(map(any, of))):
            cells = [*(counted(one, alone) for one in of), *(ratio(own, base, name) for name in costs)]
            found.append((worse - better if beside == BASELINE else 0, [method, *cells]))
    found.sort(key=lambda one: one[0])
    return ["method", *(columns[key] for key in shown), *(COSTS[name] for name in costs)], [row for _, row in found]


def counted(words: Sequence[str], alone: bool) -> str:
    """Write on how many grounds a method is better and worse: `+2 −1`; of a single ground the word."""
    if alone:
        return "".join(words).removeprefix(WORDS[0])
    counts = {"+": words.count(WORDS[1]), "−": words.count(WORDS[-1])}
    return " ".join(f"{sign}{count}" for sign, count in counts.items() if count)


def ratio(own: Sequence[Row], base: Mapping[tuple[str, str], Row], name: str) -> str:
    """Write the mean over the grounds of a method's cost beside the baseline's, "" where it is not known; of passes the
    largest, since those of the server's and of the clients' models differ.
    """
    pairs = [(row[name], base.get((row["ground"], row["models"]), {}).get(name)) for row in own]
    ratios = [float(cost) / float(other) for cost, other in pairs if cost and other]
    return f"{max(ratios) if name == 'passes' else statistics.fmean(ratios):.1f}x" if ratios else ""
