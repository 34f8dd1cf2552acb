"""Vega-Lite specifications of the page's charts, made with Altair: one for each kind of chart, without data."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
from altair.utils import schemapi

POINT_STYLES = {
    "close": ("#009e73", "circle"),
    "higher": ("#de8f05", "triangle-up"),
    "lower": ("#d55e00", "triangle-down"),
}
HEIGHT = 190  # of a panel, in pixels
LINE = 12  # of text, in pixels

Json = dict[str, Any]

unvalidated = schemapi.debug_mode(False)  # it takes half of the time; a test draws each chart

# Of few rounds each has a tick: Vega would have ticks between them, whatever their least step.
OF_ROUNDS: Json = {
    "values": alt.ExprRef("span(domain('x')) < 5 ? sequence(ceil(domain('x')[0]), floor(domain('x')[1]) + 1) : null"),
    "format": "d",
}


@dataclass(frozen=True)
class Curve:
    """The look of a curve: its name in the data, its label, and its colour, dash and point."""

    name: str
    label: str
    colour: str
    dash: list[int]
    shape: str


@dataclass(frozen=True)
class Look:
    """The look of all curves: points marked if there are few, a logarithmic axis, the diagonal, points alone, over
    rounds, which are whole numbers, or names at their ends.
    """

    few: bool = False
    logarithmic: bool = False
    diagonal: bool = False
    scatter: bool = False
    rounds: bool = False
    named: bool = False


LAYERS = ("diagonal", "spread", "seeds", "mean", "marks", "joints", "names", "points")
"""Of `frame_of`, from back to front."""


def lines(curves: Sequence[Curve], below: str, upright: str, look: Look) -> Json:
    """Curves with these names and styles: the layers of their look, with the axes' titles and scales filled in."""
    filled = {
        '"@below"': below,
        '"@upright"': upright,
        '"@form"': ".2f" if upright.endswith("(%)") else ".4g",
        '"@unseen"': 0.75 if look.scatter else 0,
        '["@names"]': [one.name for one in curves],
        '["@colours"]': [one.colour for one in curves],
        '["@dashes"]': [one.dash for one in curves],
        '["@shapes"]': [one.shape for one in curves],
        '"@labels"': {one.name: one.label for one in curves},
    }
    text = frame_of(look.logarithmic, look.rounds)
    for place, value in filled.items():
        text = text.replace(place, json.dumps(value))
    spec: Json = json.loads(text)
    absent = set() if look.diagonal else {"diagonal"}
    absent |= {"spread", "seeds", "mean", "marks"} if look.scatter else set() if look.few else {"marks"}
    absent |= set() if look.named else {"joints", "names"}
    spec["layer"] = [layer for name, layer in zip(LAYERS, spec["layer"], strict=True) if name not in absent]
    if not look.diagonal:
        del spec["datasets"]  # the diagonal's ends
    if not look.named:
        spec["params"] = [one for one in spec["params"] if one["name"] not in ("heights", "names", "room")]
    return spec


@functools.cache
@unvalidated
def frame_of(logarithmic: bool, rounds: bool) -> str:
    """Return the specification of curves with all LAYERS as JSON, with places to fill in: Altair takes its time for each.

    The mean over seeds, a band of one standard deviation, each seed thin behind; hover names run and value. Data: curve,
    seed, x, value, run.
    """
    x = alt.X("x:Q").scale(between("left", "right", "log" if logarithmic else "linear"))
    x = x.title("@below").axis(grid=False, tickCount=5, **OF_ROUNDS if rounds else {})
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
        alt.Tooltip("value:Q", title="@upright", format="@form"),
        alt.Tooltip("mean:Q", title="mean over seeds", format="@form"),
        alt.Tooltip("seeds:Q", title="seeds"),
        alt.Tooltip("run:N", title="run (click opens it)"),
    ]
    points = base.transform_joinaggregate(mean="mean(value)", seeds="count()", groupby=["curve", "x"])
    points = points.mark_point(filled=True, size=60, cursor="pointer").encode(
        x, y, colour, shape, tooltip=tip, opacity=alt.condition(hover, alt.value(1), alt.value("@unseen"))
    )
    spread = base.transform_aggregate(mean="mean(value)", sd="stdev(value)", seeds="count()", groupby=["curve", "x"])
    spread = spread.transform_filter("datum.seeds > 1")
    spread = spread.transform_calculate(value="datum.mean - datum.sd", upper="datum.mean + datum.sd")
    layers = [
        diagonal(x, y),
        spread.mark_area(opacity=0.16, clip=True).encode(x, y, alt.Y2("upper:Q"), colour),
        base.mark_line(strokeWidth=0.8, opacity=0.35, clip=True).encode(x, y, colour, detail="seed:N"),
        base.mark_line(strokeWidth=2, clip=True).encode(x, y.aggregate("mean"), colour, dash),
        base.mark_point(filled=True, size=34).encode(x, y.aggregate("mean"), colour, shape),
        *names_at_ends(base, x, y, colour),
        points.add_params(hover),
    ]
    params = [alt.param("hidden", value=[]), *ends_of_axes()]
    params += [alt.param("heights", value={}), alt.param("names", value="@labels"), alt.param("room", value=200)]
    return json.dumps(finished(alt.layer(*layers), params))


def names_at_ends(base: Any, x: Any, y: Any, colour: Any) -> list[Any]:
    """Write the curves' names at the right of the panel, each joined to its curve's end; the page says how high each is."""
    last = base.transform_joinaggregate(last="max(x)", groupby=["curve"]).transform_filter("datum.x == datum.last")
    last = last.transform_aggregate(x="max(x)", value="mean(value)", groupby=["curve"])
    last = last.transform_calculate(height="heights[datum.curve]", edge="right", name="names[datum.curve]")
    edge, height = x.copy(), y.copy()
    edge.shorthand, height.shorthand = "edge:Q", "height:Q"
    joint = last.mark_rule(strokeWidth=1, x2Offset=12).encode(x, y, alt.X2("edge:Q"), alt.Y2("height:Q"), colour)
    name = last.mark_text(align="left", dx=14, fontSize=10, limit=alt.ExprRef("room"))
    return [joint, name.encode(edge, height, alt.Text("name:N"))]


@unvalidated
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
    return finished(alt.layer(*layers, line, points.add_params(hover)), params)


@unvalidated
def beside_published() -> Json:
    """Return the specification of ours against the published numbers: a point for each cell, and the line of equality.

    Data: cell, x (published), value, kind, verdict, run.
    """
    colours, shapes = zip(*POINT_STYLES.values(), strict=True)
    colour = alt.Color("kind:N").scale(domain=list(POINT_STYLES), range=list(colours)).legend(None)
    shape = alt.Shape("kind:N").scale(domain=list(POINT_STYLES), range=list(shapes)).legend(None)
    x = alt.X("x:Q").scale(between("left", "right")).title("published (%)").axis(tickCount=5)
    y = alt.Y("value:Q").scale(between("low", "high")).title("here (%)").axis(tickCount=5)
    tip = ["cell:N", alt.Tooltip("x:Q", title="published"), alt.Tooltip("value:Q", title="here"), "verdict:N"]
    points = alt.Chart().mark_point(filled=True, size=80, opacity=0.85, cursor="pointer")
    shown = points.encode(x, y, colour, shape, tooltip=tip)
    return finished(alt.layer(diagonal(x, y), shown), ends_of_axes(), 260)


@unvalidated
def heat_map() -> Json:
    """Images of each class at each client. Data: client, class, images."""
    tip = ["client:O", "class:O", "images:Q"]
    x = alt.X("class:O").title("class").axis(labelAngle=0, labelOverlap=True)
    y = alt.Y("client:O").title("client").axis(labelOverlap=True)
    colour = alt.Color("images:Q").scale(scheme="viridis", type="sqrt").legend(None)
    return finished(alt.Chart().mark_rect().encode(x, y, colour, tooltip=tip))


@unvalidated
def clients() -> Json:
    """Return the specification of a point for each client: accuracy over number of images. Data: client, model, images,
    value.
    """
    x = alt.X("images:Q").title("training images").axis(grid=False, tickCount=5)
    y = alt.Y("value:Q").scale(zero=False).title("best accuracy on its shard (%)")
    tip = ["client:O", "model:N", "images:Q", alt.Tooltip("value:Q", title="accuracy", format=".2f")]
    return finished(alt.Chart().mark_point(filled=True, size=70, color="#0072b2").encode(x, y, tooltip=tip))


def nearest() -> Any:
    """Return a selection of the point nearest to the pointer."""
    return alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")


def between(low: str, high: str, kind: Literal["linear", "log"] = "linear") -> alt.Scale:
    """Return a scale between two parameters of the page."""
    zero: Json = {} if kind == "log" else {"zero": False}
    return alt.Scale(type=kind, domain=[alt.ExprRef(low), alt.ExprRef(high)], nice=False, **zero)


def ends_of_axes() -> list[Any]:
    """Return the parameters that hold the ends of a panel's axes, percentages unless the page says otherwise."""
    return [alt.param(name, value=number) for name, number in (("left", 0), ("right", 100), ("low", 0), ("high", 100))]


def diagonal(x: Any, y: Any) -> Any:
    """Return the line on which both axes are equal, from end to end of the panel."""
    ends = alt.Chart(alt.InlineData([{"last": False}, {"last": True}])).transform_calculate(
        x="datum.last ? min(right, high) : max(left, low)", value="datum.x"
    )
    return ends.mark_line(strokeDash=[4, 4], strokeWidth=1, color="#888", clip=True).encode(x, y)


def finished(chart: Any, params: Sequence[Any] = (), height: int = HEIGHT) -> Json:
    """Return a chart as JSON, as wide as its place, with parameters of the page (Altair's way to add them copies all
    layers), without what the page adds: its data and its colours.
    """
    whole = chart.properties(width="container", height=height, data=alt.NamedData("panel"))
    spec: Json = whole.to_dict(validate=False)
    spec.pop("config", None)
    if params:
        spec["params"] = [*(one.param.to_dict() for one in params), *spec.get("params", [])]
    return spec
