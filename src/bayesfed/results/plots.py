"""The paper's figures as pictures (`figures.py` says what they show): curves in panels, mean and band over seeds."""

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from bayesfed.core.files import replacing
from bayesfed.results import csv_file, figure_axes, figure_panels, figures
from bayesfed.results.study import Study

PANEL = (2.5, 1.85)
"""Width and height of a panel in inches, when there are many; few panels are drawn larger."""
LEGEND = 8.5  # points
SUFFIXES = (".png", ".svg")
LISTED = ["paper", "figure", "title", "panels", "panels_asked"]
INK, MUTED = "#222222", "#6b6b6b"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#b0b0b0",
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # a dollar in a label is a dollar
    # The same bytes from the same numbers, so that a rebuilt figure is no change in git.
    "svg.hashsalt": "bayesfed",
}


def write(found: Iterable[Study], out: Path) -> list[Path]:
    """Write the figures of each paper, and what became of them; returns the files.

    `<out>/<paper>/<figure>.{svg,png}` for each figure that has a curve, `<figure>.chosen.csv` where it has a search, and
    `<out>/figures.csv` over all of them. The earlier picture of a figure without a curve is deleted.
    """
    written, rows = [], []
    for study in found:
        for name, figure in study.spec.get("figures", {}).items():
            path, data = out / study.paper / name, figures.content(study, figure)
            if data.curves.empty:
                for suffix in SUFFIXES:
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
            else:
                written += save(draw(study, figure, data), path)
            if "search" in figure:
                chosen = figures.choices(study, figure, data.records)
                written.append(csv_file.write(out / study.paper / f"{name}.chosen.csv", *chosen))
            shown, asked = len(figure_panels.drawn(data)), len(data.rows) * len(data.columns)
            rows.append(dict(zip(LISTED, (study.paper, name, figure["title"], shown, asked), strict=True)))
    return [*written, csv_file.write(out / "figures.csv", LISTED, rows)]


def draw(study: Study, figure: Mapping[str, Any], data: figures.Content) -> Figure:
    """Draw a figure as described in the paper's YAML: the panels that have a curve; its small print names the others."""
    axis, bare = figures.axis_of(figure), figure_panels.bare(study, figure, data)
    palette = figures.colours(figures.places(study, axis, data.names))
    shown = figure_panels.drawn(data)
    data = replace(
        data,
        rows=[row for row in data.rows if any((row, column) in shown for column in data.columns)],
        columns=[column for column in data.columns if any((row, column) in shown for row in data.rows)],
    )
    with matplotlib.rc_context(STYLE):
        # A single tall column, where a config cuts the other ones, is laid on its side.
        flat = len(data.columns) == 1 and len(data.rows) > 2
        if flat:
            swapped = data.curves.rename(columns={"row": "column", "column": "row"})
            data = replace(data, curves=swapped, rows=data.columns, columns=data.rows)
        rows, columns = len(data.rows), len(data.columns)
        crowded = figure_panels.crowded(data.curves)
        width = max(min(columns * PANEL[0] + 0.5, 13), 6.4)
        height = rows * (PANEL[1] if columns > 2 else PANEL[1] * 1.35)
        if crowded:  # room for labels at the right of each panel
            width, height = max(width, 4.2 * columns), rows * 2.9
        small = figures.footnote(study, data, figure.get("shows", {}))
        small += figures.notes(figure, data.records) + (f" {bare}" if bare else "")
        share = figure_panels.common_scale(figure, data, flat)
        few = figure_axes.has_few(figure, data.curves["round"])
        scales = {} if few else figure_panels.cut_scales(data.curves, share)
        if scales:
            small += " A scale begins where its curves are after a twentieth of the rounds; what is below is cut off."
        small, title = textwrap.fill(small, int(width * 21)), wrapped(figure["title"], width)
        labels = _labels(study, axis, data)
        across = fitting([*labels.values()], width)
        head = 0.34 + 0.19 * title.count("\n")
        top, bottom = head + 0.1 + 0.18 * -(-len(labels) // across), 0.14 + 0.14 * (small.count("\n") + 1)
        total = height + top + bottom
        made = Figure(figsize=(width, total))
        made.set_layout_engine("constrained", rect=(0, bottom / total, 1, height / total), h_pad=0.06, w_pad=0.06)
        _panels(made, figure, data, palette, few, share, scales, labels if crowded else {})
        _head(made, title, total)
        made.legend(
            handles=[_key(label, name, palette, few) for name, label in labels.items()],
            loc="upper left",
            bbox_to_anchor=(0.11 / width, 1 - head / total),
            ncols=across,
            frameon=False,
            fontsize=LEGEND,
            borderaxespad=0,
            borderpad=0,
            handlelength=1.6,
            columnspacing=1.6,
        )
        made.text(0.1 / width, 0.08 / total, small, fontsize=6.5, color=MUTED, va="bottom", linespacing=1.35)
    return made


def _labels(study: Study, axis: str, data: figures.Content) -> dict[str, str]:
    """List the labels of the curves in the legend, each with the reason if it is not drawn."""
    drawn = set(data.curves["curve"])
    return {
        name: (name if axis == figures.NETWORK else study.labelled(axis, name))
        + ("" if name in drawn else f" ({undrawn(data, axis, name)})")
        for name in data.names
    }


def _panels(
    made: Figure,
    figure: Mapping[str, Any],
    data: figures.Content,
    palette: dict[str, Any],
    few: bool,
    share: Literal["row", "none"],
    scales: Mapping[tuple[str, str], tuple[float, float]],
    labels: Mapping[str, str],
) -> None:
    """Draw the panels of a figure, rows and columns as in its content.

    `few`: points are marked; `share`: whether those of a row have one scale; `scales`: those that do not show all;
    `labels`: those at the ends of curves, if these are many.
    """
    curves, shows, scatter = data.curves, figure.get("shows", {}), figure_axes.is_scatter(figure)
    axes = made.subplots(len(data.rows), len(data.columns), squeeze=False, sharex="col", sharey=share)
    log, rounds = figure_axes.is_logarithmic(figure, curves["round"]), figure_axes.is_over_rounds(figure)
    below, upright = figure_axes.axis_titles(figure)
    shown = figure_panels.drawn(data)
    top = {column: next(row for row in data.rows if (row, column) in shown) for column in data.columns}
    last = {column: next(row for row in reversed(data.rows) if (row, column) in shown) for column in data.columns}
    left = {row: next(column for column in data.columns if (row, column) in shown) for row in data.rows}
    for (i, row), (j, column) in itertools.product(enumerate(data.rows), enumerate(data.columns)):
        panel = axes[i, j]
        if (row, column) not in shown:
            panel.set_visible(False)
            continue
        own = curves.query("row == @row and column == @column")
        _panel(panel, own, palette, few, whole=rounds, percent=figure_axes.is_of_accuracy(figure), scatter=scatter)
        if row == top[column]:
            panel.set_title(column, color=INK)
        if column == left[row]:
            panel.set_ylabel(f"{row}\n{upright}" if row else upright)
            panel.tick_params(labelleft=True)
        if "reliability" in shows:
            panel.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
        if log:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(lambda at, _: f"{at:g}")  # not as mathematics, which STYLE takes for text
        if row == last[column]:
            panel.set_xlabel(below)
            panel.tick_params(labelbottom=True)
        if (row, column) in scales:
            panel.set_ylim(*scales[row, column])
        if labels:
            _label_ends(panel, own, palette, labels)


def _label_ends(panel: Axes, own: pd.DataFrame, palette: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Write the curves' names at the right of their panel, each joined to its curve's end."""
    ends = own.groupby(["curve", "round"])["accuracy"].mean().reset_index("round").groupby("curve").last()
    low, high = panel.get_ylim()
    gap = (high - low) * 0.075
    places = figure_panels.spread(ends["accuracy"].tolist(), gap, low, high)
    for (name, at, value), place in zip(ends.reset_index().itertuples(index=False), places, strict=True):
        panel.annotate(
            labels[name],
            (at, value),
            (1.05, (place - low) / (high - low)),
            textcoords="axes fraction",
            fontsize=7,
            va="center",
            color=INK,
            arrowprops={
                "arrowstyle": "-",
                "color": palette[name],
                "linewidth": 0.9,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def undrawn(data: figures.Content, axis: str, name: str) -> str:
    """Return why there is no curve of that name."""
    return figures.why([record for record in data.records if record.field(axis) == name]) or "not run"


def _head(made: Figure, title: str, total: float) -> None:
    """Write the title at the left edge, above the legend."""
    made.text(
        0.1 / made.get_figwidth(),
        1 - 0.1 / total,
        title,
        fontsize=10.5,
        fontweight="bold",
        color=INK,
        va="top",
    )


def wrapped(title: str, width: float) -> str:
    """Break a title into lines that fit a figure of so many inches."""
    return textwrap.fill(title, int(width * 11))


def fitting(labels: Sequence[str], width: float) -> int:
    """Count the columns in which the entries of a legend fit into so many inches; they go down first, then across."""
    inches = np.array([TextPath((0, 0), label, size=LEGEND).get_extents().width / 72 for label in labels])
    for columns in range(len(labels), 1, -1):
        # Beside its text an entry has a line, and room on both sides of it.
        if sum(0.5 + max(column) for column in np.array_split(inches, columns)) < width:
            return columns
    return 1


def _key(label: str, name: str, palette: Mapping[str, Any], few: bool) -> Line2D:
    """Return a curve's entry in the legend."""
    marker = "o" if few else "None"
    width = _width(name, palette) + 0.4
    return Line2D([], [], color=palette[name], linewidth=width, label=label, marker=marker, markersize=3.5)


def _panel(axes: Axes, data: pd.DataFrame, palette: dict[str, Any], few: bool,
           whole: bool, percent: bool, scatter: bool) -> None:  # fmt: skip
    """Draw one panel, the paper's own method on top, as points or lines.

    `whole`: rounds are below, which are whole numbers; `percent`: values end at 0 and 100.
    """
    if scatter:
        for name in (name for name in reversed(palette) if name in set(data["curve"])):
            own = data[data["curve"] == name]
            axes.scatter(own["round"], own["accuracy"], s=10, color=palette[name], linewidths=0, alpha=0.8)
        return
    over = data.groupby(["curve", "round"])["accuracy"].agg(["mean", "std", "count"]).reset_index()
    order = [name for name in reversed(palette) if name in set(over["curve"])]
    for name in order:
        curve = over[over["curve"] == name]
        axes.plot(
            curve["round"],
            curve["mean"],
            color=palette[name],
            linewidth=_width(name, palette),
            marker="o" if few else None,
            markersize=3.2,
            markeredgewidth=0,
        )
        if (curve["count"] > 1).all():
            # An accuracy ends at 0 and 100 %, whatever its spread.
            low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
            low, high = (low.clip(0), high.clip(upper=100)) if percent else (low, high)
            axes.fill_between(curve["round"], low, high, color=palette[name], alpha=0.16, linewidth=0, zorder=1.5)
    axes.set(xlabel="", ylabel="")
    # Of a single round its own tick alone, where matplotlib wants two and would find the second between rounds.
    least = 1 if whole and data["round"].nunique() == 1 else 2
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=whole, min_n_ticks=least))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def _width(name: str, palette: Mapping[str, Any]) -> float:
    """Return the width of a curve's line: a little more for the paper's own method."""
    return 1.9 if name == next(iter(palette)) else 1.3


def save(made: Figure, path: Path) -> list[Path]:
    """Write `<path>.svg` and `<path>.png` (160 dots an inch) whole; the same figure gives the same bytes."""
    written = []
    with matplotlib.rc_context(STYLE):
        if engine := made.get_layout_engine():  # arranged once, not twice for each file
            engine.execute(made)
            made.set_layout_engine(None)  # not "none", with which each file would be drawn twice
        for suffix in SUFFIXES:
            target = path.with_name(path.name + suffix)
            with replacing(target) as scratch:
                made.savefig(scratch, format=suffix[1:], dpi=160, metadata={"Date": None} if suffix == ".svg" else None)
            written.append(target)
    return written
