"""The charts of the page: the data of their panels, and the words around them (`chart_specs.py` says how they are drawn).

A chart is a specification and panels, each with a CSV of its own: so a figure of many panels holds its specification once,
and panels flow into as many columns as a screen has. The page's style colours text and grid; its script gives each panel its
data and, by parameters, the ends of its axes and the curves that are switched off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bayesfed.report.chart_specs import HEIGHT, LINE, Curve, Json, Look, lines
from bayesfed.report.html_tables import as_link
from bayesfed.results import figure_axes, figure_panels, figures, formatting
from bayesfed.results.records import Record
from bayesfed.results.study import Study

DASHES: list[list[int]] = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
POINTS = 200  # a curve has at most so many, evenly spaced, and its last

Ends = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One panel: its title, its data, in words what it shows, and the ends of its axes."""

    title: str
    csv: str
    words: str
    x: Ends = (0, 1)
    y: Ends = (0, 1)
    heights: Mapping[str, float] = field(default_factory=dict)
    """Of the names of its curves, where these are at the curves' ends."""


@dataclass(frozen=True)
class Chart:
    """A chart of the page: its name there, the paper's name of it, title, small print, curves and panels.

    `choices` is a link that holds what a search has chosen."""

    name: str
    item: str
    title: str
    small: str
    curves: list[Curve]
    panels: list[Panel]
    spec: Json
    choices: str = ""

    @property
    def named(self) -> bool:
        """True if its panels have names at their right."""
        return any(panel.heights for panel in self.panels)

    def data(self) -> Json:
        """Return the chart as the page's script needs it."""
        panels = [
            {"title": one.title, "csv": one.csv, "x": one.x, "y": one.y, "heights": one.heights} for one in self.panels
        ]
        return {"spec": self.spec, "panels": panels}


def of_figure(study: Study, name: str, figure: Mapping[str, Any]) -> Chart:
    """Return the chart of a paper's figure: the same numbers as in its picture (`results/plots.py`)."""
    data, axis, shows = figures.content(study, figure), figures.axis_of(figure), figure.get("shows", {})
    place = f"{study.paper}-{name}"
    frame = data.curves.rename(columns={"round": "x", "accuracy": "value"})
    means = mean_curves(frame, ["row", "column"])
    frame, every = (frame, 1) if figure_axes.is_scatter(figure) else thinned(frame)
    if frame.empty:
        return Chart(place, name, figure["title"], "", [], [], {})
    drawn, percent = set(frame["curve"].unique()), figure_axes.is_of_accuracy(figure)
    names = {each: study.labelled(axis, each) for each in data.names if each in drawn}
    curves = styled(names, figures.places(study, axis, data.names))
    below, upright = figure_axes.axis_titles(figure)
    logarithmic = figure_axes.is_logarithmic(figure, frame["x"])
    across = ends(frame["x"], logarithmic)
    sides = ["row", "column"] if "dataset" in figure["columns"] else ["row"]  # datasets have scales of their own
    limits = {key: bounds(own["value"], percent) for key, own in frame.groupby(sides)}
    panels, crowded = [], figure_panels.crowded(frame)
    for (row, column), text in csv_of_panels(frame, ["row", "column"]).items():
        title, own = ", ".join(filter(None, (row, column))), means[row, column]
        limit = limits[(row, column) if len(sides) > 1 else (row,)]
        named = heights(own, limit) if crowded else {}
        panels.append(Panel(title, text, in_words(own, names, below), across, limit, named))
    small = f"{figures.footnote(study, data, shows)}{figures.notes(figure, data.records)}"
    small = " ".join(filter(None, (small, figure_panels.bare(study, figure, data))))
    small += f" One point in {every} is drawn." if every > 1 else ""
    few = figure_axes.has_few(figure, frame["x"])
    kind = Look(
        few=few,
        logarithmic=logarithmic,
        diagonal="reliability" in shows,
        scatter=figure_axes.is_scatter(figure),
        rounds=figure_axes.is_over_rounds(figure),
        named=crowded,
    )
    spec, choices = lines(curves, below, upright, kind), ""
    if "search" in figure:
        header, rows = figures.choices(study, figure, data.records)
        choices = as_link(csv(pd.DataFrame(rows, columns=header)), "csv")
    return Chart(place, name, figure["title"], small, curves, panels, spec, choices)


def by_experiment(
    study: Study, frame: pd.DataFrame, name: str, title: str, below: str, upright: str, *, diagonal: bool = False
) -> list[Chart]:
    """Return a chart for each experiment of a frame, with a panel for each cell and a curve for each method.

    `frame`: experiment, panel, curve, seed, x, value, run.
    """
    found = []
    for experiment, own in frame.groupby("experiment", sort=False):
        used = set(own["curve"].unique())
        names = {method: method for method in study.spec["methods"] if method in used}
        curves = styled(names, figures.places(study, "method", names))
        means, panels = mean_curves(own, ["panel"]), []
        own, every = thinned(own)
        across = ends(own["x"])
        span = own.groupby("panel")["value"].agg(["min", "max"])
        crowded = figure_panels.crowded(own.assign(row="", column=own["panel"]))
        for (cell,), text in csv_of_panels(own.drop(columns="experiment"), ["panel"]).items():
            words = in_words(means[cell,], names, below)
            limits = (0.0, 100.0) if diagonal else bounds(span.loc[cell], False)
            named = heights(means[cell,], limits) if crowded else {}
            panels.append(Panel(cell, text, words, limits if diagonal else across, limits, named))
        kind = Look(few=bool(own["x"].nunique() <= 20), diagonal=diagonal, rounds=not diagonal, named=crowded)
        small = f"One point in {every} is drawn." if every > 1 else ""
        place = f"{study.paper}-{name}-{experiment}"
        spec = lines(curves, below, upright, kind)
        found.append(Chart(place, "", f"{title}, {formatting.spoken(experiment)}", small, curves, panels, spec))
    return found


def cell_name(study: Study, record: Record) -> str:
    """Name a cell without its method and seed."""
    words = [study.stand_ins([record]) or study.labels(record.dataset), study.label(record.model)]
    words += [f"alpha {record.alpha}"] if record.alpha else []
    words += [f"stragglers {record.stragglers}"] if record.stragglers not in ("", "0") else []
    return ", ".join(filter(None, [*words, study.axes(record)]))


def heights(means: Mapping[str, list[tuple[float, float]]], limits: Ends) -> dict[str, float]:
    """Place the height of each curve's name at the right of its panel: beside its end, a line of text apart."""
    low, high = limits
    gap = (high - low) * LINE / HEIGHT
    return dict(zip(means, figure_panels.spread([of[-1][1] for of in means.values()], gap, low, high), strict=True))


def styled(names: Mapping[str, str], places: Mapping[str, int]) -> list[Curve]:
    """Return the curves of these names (and labels), in the figures' colours; dash and point tell them apart too."""
    palette = figures.colours(places)
    return [
        Curve(
            name,
            label,
            palette[name],
            DASHES[places[name] % len(DASHES)],
            SHAPES[places[name] % len(SHAPES)],
        )
        for name, label in names.items()
    ]


def thinned(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """At most some POINTS points of a curve of a seed, every n-th and its last; and n."""
    curve = [name for name in ("row", "column", "panel", "curve", "seed", "run") if name in frame]
    places = frame.groupby(curve or (lambda _: 0), dropna=False)["x"]
    order, last = places.rank(method="dense"), places.transform("max")
    every = max(1, -(-int(order.max()) // POINTS)) if len(frame) else 1
    return frame[((order - 1) % every == 0) | (frame["x"] == last)], every


def bounds(values: pd.Series, percent: bool) -> Ends:
    """Compute the ends of an axis that shows all of these values with some room; a percentage ends at 0 and 100."""
    low, high = float(values.min()), float(values.max())
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = (max(low - room, 0.0), min(high + room, 100.0)) if percent else (low - room, high + room)
    return float(f"{low:.4g}"), float(f"{high:.4g}")


def ends(places: pd.Series, logarithmic: bool = False) -> Ends:
    """Return the ends of an axis from the first place to the last."""
    first, last = float(places.min()), float(places.max())
    if first < last:
        return first, last
    return (first / 2, first * 2) if logarithmic else (first - 0.5, first + 0.5)


def csv(frame: pd.DataFrame) -> str:
    """Write data as CSV text."""
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def csv_of_panels(frame: pd.DataFrame, sides: Sequence[str]) -> dict[Any, str]:
    """Write the data of each panel as CSV text, by the panel's values of `sides`."""
    head, *lines = csv(frame.drop(columns=[*sides])).splitlines(keepends=True)
    found: dict[Any, list[str]] = {}
    for panel, line in zip(zip(*(frame[side].tolist() for side in sides), strict=True), lines, strict=True):
        found.setdefault(panel, [head]).append(line)
    return {panel: "".join(own) for panel, own in found.items()}


def mean_curves(frame: pd.DataFrame, sides: Sequence[str]) -> dict[Any, dict[str, list[tuple[float, float]]]]:
    """Compute the mean over seeds along each curve, by the panel's values of `sides`, then by the curve."""
    found: dict[Any, dict[str, list[tuple[float, float]]]] = {}
    mean = frame.groupby([*sides, "curve", "x"])["value"].mean()
    for (*panel, curve, at), value in zip(mean.index.tolist(), mean.tolist(), strict=True):
        found.setdefault(tuple(panel), {}).setdefault(curve, []).append((at, value))
    return found


def in_words(means: Mapping[str, list[tuple[float, float]]], names: Mapping[str, str], below: str) -> str:
    """Describe a panel: where each curve ends and where it is highest, as means over seeds."""
    told = []
    for name, label in names.items():
        if points := means.get(name):
            (at, last), (best_at, best) = points[-1], max(points, key=lambda point: point[1])
            highest = f", highest {best:.4g} at {best_at:g}" if len(points) > 1 else ""
            told.append(f"{label}: {last:.4g} at {below} {at:g}{highest}")
    return "; ".join(told)
