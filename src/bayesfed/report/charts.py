"""What the page draws: Vega-Lite specifications made with Altair, and the data of their panels.

A chart is a specification and panels, each with a CSV of its own: so a figure of many panels holds its specification once,
and panels flow into as many columns as a screen has. The page's style colours text and grid; its script gives each panel its
data and, by parameters, the ends of its axes and the curves that are switched off.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd
from altair.utils import schemapi

from bayesfed.report.html_tables import as_link
from bayesfed.results import figures, formatting
from bayesfed.results.records import Record
from bayesfed.results.study import Study

DASHES: list[list[int]] = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
KINDS = {"close": ("#009e73", "circle"), "higher": ("#de8f05", "triangle-up"), "lower": ("#d55e00", "triangle-down")}
POINTS = 200  # a curve has at most so many, evenly spaced, and its last
HEIGHT = 190

Json = dict[str, Any]
Ends = tuple[float, float]

# Of few rounds each has a tick: Vega would have ticks between them, whatever their least step.
OF_ROUNDS: Json = {
    "values": alt.ExprRef("span(domain('x')) < 5 ? sequence(ceil(domain('x')[0]), floor(domain('x')[1]) + 1) : null"),
    "format": "d",
}


@dataclass(frozen=True)
class Panel:
    """One panel: its title, its data, in words what it shows, and the ends of its axes."""

    title: str
    csv: str
    words: str
    x: Ends = (0, 1)
    y: Ends = (0, 1)


@dataclass(frozen=True)
class Curve:
    """How a curve is drawn: its name in the data, its label, and its colour, dash and point."""

    name: str
    label: str
    colour: str
    dash: list[int]
    shape: str


@dataclass(frozen=True)
class Chart:
    """A chart of the page: its name there, the paper's name of it, title, small print, curves and panels; `empty` says which
    panels it lacks, and why, `choices` is a link that holds what a search has chosen."""

    name: str
    item: str
    title: str
    small: str
    curves: list[Curve]
    panels: list[Panel]
    spec: Json
    empty: str = ""
    choices: str = ""

    def data(self) -> Json:
        """Say what the page's script needs of it."""
        panels = [{"title": one.title, "csv": one.csv, "x": one.x, "y": one.y} for one in self.panels]
        return {"spec": self.spec, "panels": panels}


def of_figure(study: Study, name: str, figure: Mapping[str, Any]) -> Chart:
    """Give a figure of a paper: the same numbers as in the picture of it (`results/drawing.py`)."""
    data, axis, shows = figures.content(study, figure), figures.axis_of(figure), figure.get("shows", {})
    place = f"{study.paper}-{name}"
    frame = data.curves.rename(columns={"round": "x", "accuracy": "value"})
    frame, every = (frame, 1) if figures.is_scatter(figure) else thinned(frame)
    if frame.empty:
        return Chart(place, name, figure["title"], "", [], [], {})
    drawn, percent = set(frame["curve"].unique()), "diagnostic" not in shows
    names = {each: study.labelled(axis, each) for each in data.names if each in drawn}
    curves = styled(names, figures.places(study, axis, data.names))
    below, upright = figures.axis_titles(figure)
    logarithmic = figures.is_logarithmic(figure, frame["x"])
    across = ends(frame["x"], logarithmic)
    sides = ["row", "column"] if "dataset" in figure["columns"] else ["row"]  # datasets have scales of their own
    limits = {key: bounds(own["value"], percent) for key, own in frame.groupby(sides)}
    means = mean_curves(frame, ["row", "column"])
    panels, empty = [], []
    for (row, column), own in frame.groupby(["row", "column"], sort=False):
        title = ", ".join(filter(None, (str(row), str(column))))
        text, words = csv(own.drop(columns=["row", "column"])), in_words(means[row, column], names, below)
        panels.append(Panel(title, text, words, across, limits[(row, column) if len(sides) > 1 else (row,)]))
    for row, column in (side for side in itertools.product(data.rows, data.columns) if side not in means):
        title = ", ".join(filter(None, (row, column)))
        empty.append((title, figures.reason(study, figure, data, {row, column})))
    small = f"{figures.footnote(study, data.records, shows, data.left_out)}{figures.notes(figure, data.records)}"
    small += f" Every {every}th point is drawn." if every > 1 else ""
    few = figures.has_few(figure, frame["x"])
    kind = Kind(
        few=few,
        logarithmic=logarithmic,
        diagonal="reliability" in shows,
        scatter=figures.is_scatter(figure),
        rounds=figures.is_over_rounds(figure),
    )
    spec, choices = lines(curves, below, upright, kind), ""
    if "search" in figure:
        header, rows = figures.choices(study, figure, data.records)
        choices = as_link(csv(pd.DataFrame(rows, columns=header)), "csv")
    return Chart(place, name, figure["title"], small, curves, panels, spec, without_curve(empty), choices)


def by_experiment(
    study: Study, frame: pd.DataFrame, name: str, title: str, below: str, upright: str, *, diagonal: bool = False
) -> list[Chart]:
    """Give a chart for each experiment of a frame (experiment, panel, curve, seed, x, value, run): a panel a cell, a curve a
    method."""
    found = []
    for experiment, own in frame.groupby("experiment", sort=False):
        used = set(own["curve"].unique())
        names = {method: method for method in study.spec["methods"] if method in used}
        curves = styled(names, figures.places(study, "method", names))
        own, every = thinned(own)
        means, panels = mean_curves(own, ["panel"]), []
        for cell, of_cell in own.groupby("panel", sort=False):
            text, words = csv(of_cell.drop(columns=["experiment", "panel"])), in_words(means[cell,], names, below)
            limits = (0.0, 100.0) if diagonal else bounds(of_cell["value"], False)
            panels.append(Panel(str(cell), text, words, limits if diagonal else ends(own["x"]), limits))
        kind = Kind(few=bool(own["x"].nunique() <= 20), diagonal=diagonal, rounds=not diagonal)
        small = f"Every {every}th point is drawn." if every > 1 else ""
        place = f"{study.paper}-{name}-{experiment}"
        spec = lines(curves, below, upright, kind)
        found.append(Chart(place, "", f"{title}, {formatting.spoken(experiment)}", small, curves, panels, spec))
    return found


def cell_name(study: Study, record: Record) -> str:
    """Give a cell's name but for method and seed."""
    words = [study.stand_ins([record]) or study.labels(record.dataset), study.label(record.model)]
    words += [f"alpha {record.alpha}"] if record.alpha else []
    words += [f"stragglers {record.stragglers}"] if record.stragglers not in ("", "0") else []
    return ", ".join(filter(None, [*words, study.axes(record)]))


def without_curve(panels: Sequence[tuple[str, str]]) -> str:
    """Panels without a curve, by their titles, and why; of many, how many."""
    if len(panels) <= 4:
        return "; ".join(f"{title}: {reason}" for title, reason in panels)
    return f"{len(panels)} panels: {', '.join(formatting.unique(reason for _, reason in panels))}"


def styled(names: Mapping[str, str], places: Mapping[str, int]) -> list[Curve]:
    """Give the curves of these names (and labels), with colours as in the figures; dash and point tell them apart too."""
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
    """At most POINTS places below the curves, every n-th; and n."""
    places = sorted(frame["x"].unique())
    kept = formatting.thinned(places, POINTS)
    return frame[frame["x"].isin(kept)], round(len(places) / len(kept)) if kept else 1


def bounds(values: pd.Series, percent: bool) -> Ends:
    """Give the ends of an axis that shows all of these values with some room; a percentage ends at 0 and 100."""
    low, high = float(values.min()), float(values.max())
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = (max(low - room, 0.0), min(high + room, 100.0)) if percent else (low - room, high + room)
    return float(f"{low:.4g}"), float(f"{high:.4g}")


def ends(places: pd.Series, logarithmic: bool = False) -> Ends:
    """Give the ends of an axis from the first place to the last."""
    first, last = float(places.min()), float(places.max())
    if first < last:
        return first, last
    return (first / 2, first * 2) if logarithmic else (first - 0.5, first + 0.5)


def csv(frame: pd.DataFrame) -> str:
    """Give data of a panel as text."""
    text = io.StringIO()
    frame.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
    return text.getvalue()


def mean_curves(frame: pd.DataFrame, sides: Sequence[str]) -> dict[Any, dict[str, list[tuple[float, float]]]]:
    """Give the mean over seeds along each curve, by the panel's values of `sides`, then by the curve."""
    found: dict[Any, dict[str, list[tuple[float, float]]]] = {}
    mean = frame.groupby([*sides, "curve", "x"])["value"].mean()
    for (*panel, curve, at), value in zip(mean.index.tolist(), mean.tolist(), strict=True):
        found.setdefault(tuple(panel), {}).setdefault(curve, []).append((at, value))
    return found


def in_words(means: Mapping[str, list[tuple[float, float]]], names: Mapping[str, str], below: str) -> str:
    """Say what a panel shows: where each curve ends and where it is highest, as means over seeds."""
    told = []
    for name, label in names.items():
        if points := means.get(name):
            (at, last), (best_at, best) = points[-1], max(points, key=lambda point: point[1])
            highest = f", highest {best:.4g} at {best_at:g}" if len(points) > 1 else ""
            told.append(f"{label}: {last:.4g} at {below} {at:g}{highest}")
    return "; ".join(told)


@dataclass(frozen=True)
class Kind:
    """How curves are drawn: points marked where there are few, a logarithmic axis, the diagonal, points alone, or over
    rounds, which are whole numbers."""

    few: bool = False
    logarithmic: bool = False
    diagonal: bool = False
    scatter: bool = False
    rounds: bool = False


def lines(curves: Sequence[Curve], below: str, upright: str, kind: Kind) -> Json:
    """Curves with these names and styles: the frame of their kind, with its axes' titles and scales filled in."""
    filled = {
        '"@below"': below,
        '"@upright"': upright,
        '["@names"]': [one.name for one in curves],
        '["@colours"]': [one.colour for one in curves],
        '["@dashes"]': [one.dash for one in curves],
        '["@shapes"]': [one.shape for one in curves],
    }
    with schemapi.debug_mode(False):  # validation takes half of the time; a test draws each chart
        text = frame_of(kind, ".2f" if upright.endswith("(%)") else ".4g")
    for place, value in filled.items():
        text = text.replace(place, json.dumps(value))
    found: Json = json.loads(text)
    return found


@functools.cache
def frame_of(kind: Kind, form: str) -> str:
    """Give the specification of curves as JSON, with places to fill in: Altair takes its time for each.

    The mean over seeds, a band of one standard deviation, each seed thin behind; hover names run and value. Data: curve,
    seed, x, value, run.
    """
    x = alt.X("x:Q").scale(between("left", "right", "log" if kind.logarithmic else "linear"))
    x = x.title("@below").axis(grid=False, tickCount=5, **OF_ROUNDS if kind.rounds else {})
    y = alt.Y("value:Q").scale(between("low", "high")).title("@upright").axis(tickCount=5)
    colour = alt.Color("curve:N").scale(domain=["@names"], range=["@colours"]).legend(None)
    dash = alt.StrokeDash("curve:N").scale(domain=["@names"], range=["@dashes"]).legend(None)
    shape = alt.Shape("curve:N").scale(domain=["@names"], range=["@shapes"]).legend(None)
    base = alt.Chart().transform_filter("indexof(hidden, datum.curve) < 0")
    hover = nearest()
    tip = [
        alt.Tooltip("curve:N", title="curve"),
        alt.Tooltip("seed:N", title="seed"),
        alt.Tooltip("x:Q", title="@below"),
        alt.Tooltip("value:Q", title="@upright", format=form),
        alt.Tooltip("mean:Q", title="mean over seeds", format=form),
        alt.Tooltip("seeds:Q", title="seeds"),
        alt.Tooltip("run:N", title="run (click opens it)"),
    ]
    seen = alt.condition(hover, alt.value(1), alt.value(0.75 if kind.scatter else 0))
    points = base.transform_joinaggregate(mean="mean(value)", seeds="count()", groupby=["curve", "x"])
    points = points.mark_point(filled=True, size=60, cursor="pointer").encode(
        x, y, colour, shape, tooltip=tip, opacity=seen
    )
    layers: list[Any] = [diagonal(x, y)] if kind.diagonal else []
    if not kind.scatter:
        spread = base.transform_aggregate(
            mean="mean(value)", sd="stdev(value)", seeds="count()", groupby=["curve", "x"]
        )
        spread = spread.transform_filter("datum.seeds > 1")
        spread = spread.transform_calculate(value="datum.mean - datum.sd", upper="datum.mean + datum.sd")
        layers.append(spread.mark_area(opacity=0.16, clip=True).encode(x, y, alt.Y2("upper:Q"), colour))
        each = base.mark_line(strokeWidth=0.8, opacity=0.35, clip=True)
        layers.append(each.encode(x, y, colour, detail="seed:N"))
        mean = base.mark_line(strokeWidth=2, clip=True)
        layers.append(mean.encode(x, y.aggregate("mean"), colour, dash))
    if kind.few and not kind.scatter:
        layers.append(base.mark_point(filled=True, size=34).encode(x, y.aggregate("mean"), colour, shape))
    hidden = alt.param("hidden", value=[])
    return json.dumps(finished(alt.layer(*layers, points.add_params(hover)).add_params(hidden, *ends_of_axes())))


def of_run(below: str, upright: str, diagonal_line: bool = False) -> Json:
    """Curves of one run, over rounds or, with the diagonal, over confidence. Data: curve, x, value, colour, width."""
    hover = nearest()
    x = alt.X("x:Q").title(below).scale(zero=False, nice=False)
    x = x.axis(grid=False, tickCount=5, **{} if diagonal_line else OF_ROUNDS)
    y = alt.Y("value:Q").title(upright).scale(zero=False).axis(tickCount=5)
    colour = alt.Color("colour:N").scale(None)
    tip = ["curve:N", alt.Tooltip("x:Q", title=below), alt.Tooltip("value:Q", title=upright, format=".4~g")]
    base = alt.Chart().transform_filter("indexof(hidden, datum.curve) < 0")
    line = base.mark_line().encode(x, y, colour, alt.StrokeWidth("width:Q").scale(None), detail="curve:N")
    # A line of a single round is none, and its point is all there is to see.
    seen = alt.when(hover).then(alt.value(1)).when("datum.points == 1").then(alt.value(1)).otherwise(alt.value(0))
    points = base.transform_joinaggregate(points="count()", groupby=["curve"]).mark_point(filled=True, size=50)
    points = points.encode(x, y, colour, tooltip=tip, opacity=seen)
    layers: list[Any] = [diagonal(x, y)] if diagonal_line else []
    params = [alt.param("hidden", value=[]), *(ends_of_axes() if diagonal_line else [])]
    return finished(alt.layer(*layers, line, points.add_params(hover)).add_params(*params))


def beside_print() -> Json:
    """Ours against print: a point a cell, and the line where they are equal. Data: cell, x (print), value, kind, verdict,
    run."""
    colours, shapes = zip(*KINDS.values(), strict=True)
    colour = alt.Color("kind:N").scale(domain=list(KINDS), range=list(colours)).legend(None)
    shape = alt.Shape("kind:N").scale(domain=list(KINDS), range=list(shapes)).legend(None)
    x = alt.X("x:Q").scale(between("left", "right")).title("in print (%)").axis(tickCount=5)
    y = alt.Y("value:Q").scale(between("low", "high")).title("here (%)").axis(tickCount=5)
    tip = ["cell:N", alt.Tooltip("x:Q", title="print"), alt.Tooltip("value:Q", title="here"), "verdict:N"]
    points = alt.Chart().mark_point(filled=True, size=80, opacity=0.85, cursor="pointer")
    shown = points.encode(x, y, colour, shape, tooltip=tip)
    return finished(alt.layer(diagonal(x, y), shown).add_params(*ends_of_axes()), 260)


def heat_map() -> Json:
    """Images of each class at each client. Data: client, class, images."""
    tip = ["client:O", "class:O", "images:Q"]
    x = alt.X("class:O").title("class").axis(labelAngle=0, labelOverlap=True)
    y = alt.Y("client:O").title("client").axis(labelOverlap=True)
    colour = alt.Color("images:Q").scale(scheme="viridis", type="sqrt").legend(None)
    return finished(alt.Chart().mark_rect().encode(x, y, colour, tooltip=tip))


def clients() -> Json:
    """Give a point a client: its accuracy over how many images it has. Data: client, model, images, value."""
    x = alt.X("images:Q").title("training images").axis(grid=False, tickCount=5)
    y = alt.Y("value:Q").scale(zero=False).title("best accuracy on its shard (%)")
    tip = ["client:O", "model:N", "images:Q", alt.Tooltip("value:Q", title="accuracy", format=".2f")]
    return finished(alt.Chart().mark_point(filled=True, size=70, color="#0072b2").encode(x, y, tooltip=tip))


def nearest() -> Any:
    """Give the point nearest to the pointer."""
    return alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")


def between(low: str, high: str, kind: Literal["linear", "log"] = "linear") -> alt.Scale:
    """Give a scale between two parameters of the page."""
    zero: Json = {} if kind == "log" else {"zero": False}
    return alt.Scale(type=kind, domain=[alt.ExprRef(low), alt.ExprRef(high)], nice=False, **zero)


def ends_of_axes() -> list[Any]:
    """Give the parameters that hold the ends of a panel's axes, percentages unless the page says otherwise."""
    return [alt.param(name, value=number) for name, number in (("left", 0), ("right", 100), ("low", 0), ("high", 100))]


def diagonal(x: Any, y: Any) -> Any:
    """Give the line on which both axes are equal, from end to end of the panel."""
    ends = alt.Chart(alt.InlineData([{"last": False}, {"last": True}])).transform_calculate(
        x="datum.last ? min(right, high) : max(left, low)", value="datum.x"
    )
    return ends.mark_line(strokeDash=[4, 4], strokeWidth=1, color="#888", clip=True).encode(x, y)


def finished(chart: Any, height: int = HEIGHT) -> Json:
    """Give a chart as JSON, as wide as its place, without what the page gives: its data, and its colours."""
    whole = chart.properties(width="container", height=height, data=alt.NamedData("panel"))
    spec: Json = whole.to_dict(validate=False)
    spec.pop("config", None)
    return spec
