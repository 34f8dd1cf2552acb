"""The panels of a figure: what is said of those without a curve, and labels at the ends of curves where a panel has many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bayesfed.results import figures
from bayesfed.results.study import Study

MOST = 6
"""Curves of a panel that colours alone tell apart."""


def drawn(data: figures.Content) -> set[tuple[str, str]]:
    """List the panels that have a curve, by row and column."""
    return set(zip(data.curves["row"], data.curves["column"], strict=True))


def bare(study: Study, figure: Mapping[str, Any], data: figures.Content) -> str:
    """Name the panels without a curve, a row of them by its own name, and say why: `No finished run: CNN1; CNN2, IID.`"""
    shown, found = drawn(data), dict[str, list[str]]()
    for row in data.rows:
        missing = [column for column in data.columns if (row, column) not in shown]
        reasons = {column: reason(study, figure, data, {row, column}) for column in missing}
        if row and len(missing) == len(data.columns) and len(set(reasons.values())) == 1:
            found.setdefault(reasons[missing[0]], []).append(row)
            continue
        for column in missing:
            found.setdefault(reasons[column], []).append(", ".join(filter(None, (row, column))))
    return " ".join(f"{why[0].upper()}{why[1:]}: {'; '.join(titles)}." for why, titles in found.items())


def reason(study: Study, figure: Mapping[str, Any], data: figures.Content, titles: set[str]) -> str:
    """Explain why the panel with these titles has no curve."""
    sides = figure["rows"], figure["columns"]
    own = [record for record in data.records if {figures.panel(study, record, side) for side in sides} == titles]
    return figures.why(own) or "no finished run"


def crowded(curves: pd.DataFrame) -> bool:
    """Return True if some panel of curves (row, column, curve) has more of them than colours tell apart."""
    return bool(not curves.empty and curves.groupby(["row", "column"])["curve"].nunique().max() > MOST)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Find a place between `low` and `high` for each label: near its curve's end, in their order, `gap` apart.

    The nearest in squares: with y_i = p_i - i * gap in order, the increasing y by pooling neighbours that are not.
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    pools: list[list[float]] = []
    for number, at in enumerate(order):
        pools.append([places[at] - number * gap])
        while len(pools) > 1 and sum(pools[-2]) / len(pools[-2]) > sum(pools[-1]) / len(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    level = [sum(pool) / len(pool) for pool in pools for _ in pool]
    highest = max(low, high - gap * (len(order) - 1))
    found = dict(zip(order, level, strict=True))
    return [min(max(found[at], low), highest) + gap * order.index(at) for at in range(len(places))]
