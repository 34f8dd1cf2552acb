"""The axes of a paper's figures: what is along them, in which unit, and how it is drawn."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bayesfed.results.statistics import POINTS, read_metric


def is_scatter(figure: Mapping[str, Any]) -> bool:
    """Return True if a figure has points alone, no lines."""
    return not POINTS.isdisjoint(figure.get("shows", {}))


def scale_of(figure: Mapping[str, Any]) -> int:
    """Return the factor by which a figure's values are shown: accuracies are percent."""
    shows = figure.get("shows", {})
    if "metric" in shows:
        return read_metric(f"{shows['metric']}_last", {})[1].scale
    return 1 if "diagnostic" in shows else 100


def axis_titles(figure: Mapping[str, Any]) -> tuple[str, str]:
    """Return the titles of a figure's horizontal and vertical axes."""
    shows = figure.get("shows", {})
    below = figure.get("x", "round").replace("_", " ")
    if not shows:
        return below, "accuracy (%)"
    return (shows["label"], "accuracy (%)") if is_of_accuracy(figure) else (below, shows["label"])


def is_of_accuracy(figure: Mapping[str, Any]) -> bool:
    """Return True if the vertical axis of a figure has an accuracy."""
    return {"diagnostic", "metric"}.isdisjoint(figure.get("shows", {}))


def is_over_rounds(figure: Mapping[str, Any]) -> bool:
    """Return True if the horizontal axis of a figure has rounds."""
    return "x" not in figure and ("shows" not in figure or not is_of_accuracy(figure))


def has_few(figure: Mapping[str, Any], places: pd.Series) -> bool:
    """Return True if a curve has so few points that each is marked."""
    if "megabytes" in figure.get("shows", {}):
        return len(places) <= 20
    return not {"x", "shows"}.isdisjoint(figure) or bool(places.max() <= 20)


def is_logarithmic(figure: Mapping[str, Any], places: pd.Series) -> bool:
    """Return True if the values of an axis span so much that the axis is logarithmic."""
    return "x" in figure and bool(places.min() > 0 and places.max() >= 100 * places.min())
