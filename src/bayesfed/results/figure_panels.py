"""The panels of a figure: those with a curve, the reasons of the others, labels at ends of curves, and scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from bayesfed.results import figure_axes, figures
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

    The nearest in squares: y_i = p_i - i * gap, in order, must rise.
    """
    from scipy.optimize import isotonic_regression  # slow to load, and for crowded panels alone

    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(order))
    rising = isotonic_regression(np.array(places)[order] - steps).x
    found = np.empty(len(order))
    found[order] = rising.clip(low, max(low, high - gap * (len(order) - 1))) + steps
    return [*map(float, found)]


def common_scale(figure: Mapping[str, Any], data: figures.Content, flat: bool) -> Literal["row", "none"]:
    """Return "row" if the panels of a row have one scale: not with datasets side by side, nor in a column on its side."""
    apart = flat or "dataset" in figure["columns"] or (flattens(data.curves) and not figure_axes.is_scatter(figure))
    return "none" if apart else "row"


def cut_scales(curves: pd.DataFrame, share: Literal["row", "none"]) -> dict[tuple[str, str], tuple[float, float]]:
    """Compute the scales that are not to show all, by the row and column of their panels.

    If what curves pass in the first twentieth of the rounds alone would take more than two thirds, only what comes
    later is shown.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    mean = curves.groupby(["row", "column", "curve", "round"])["accuracy"].mean().reset_index()
    for _, own in mean.groupby(["row"] if share == "row" else ["row", "column"]):
        later = own.loc[own["round"] >= own["round"].max() / 20, "accuracy"]
        low, high, least = own["accuracy"].min(), own["accuracy"].max(), later.min()
        if least - low > (high - low) * 2 / 3:
            edge = (high - least) / 10
            found |= dict.fromkeys(zip(own["row"], own["column"], strict=True), (least - edge, high + edge))
    return found


def flattens(curves: pd.DataFrame) -> bool:
    """Return True if a scale common to all panels of a row would press the curves of one into less than a seventh of
    its height.
    """
    span = curves.groupby(["row", "column"])["accuracy"].agg(lambda values: values.max() - values.min())
    of_row = curves.groupby("row")["accuracy"].agg(lambda values: values.max() - values.min())
    return bool((span < of_row.reindex(span.index, level="row") / 7).any())
