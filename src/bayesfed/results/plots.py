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
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from bayesfed.core.files import replacing
from bayesfed.results import csv_file, figures
from bayesfed.results.records import Record
from bayesfed.results.study import Study

PANEL = (2.5, 1.85)
"""Width and height of a panel in inches, when there are many; few panels are drawn larger."""
LEGEND = 8.5  # points
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
    """Write `<out>/<paper>/<figure>.{svg,png}` for each figure of each paper, and `<figure>.chosen.csv` where it
    has a search; returns the files."""
    written = []
    for study in found:
        for name, figure in study.spec.get("figures", {}).items():
            written += save(draw(study, figure), out / study.paper / name)
            if "search" in figure:
                chosen = figures.choices(study, figure, figures.content(study, figure).records)
                written.append(csv_file.write(out / study.paper / f"{name}.chosen.csv", *chosen))
    return written


def draw(study: Study, figure: Mapping[str, Any]) -> Figure:
    """Draw a figure as described in the paper's YAML; a placeholder that says so if no run is finished."""
    data, axis = figures.content(study, figure), figures.axis_of(figure)
    palette = figures.colours(figures.places(study, axis, data.names))
    with matplotlib.rc_context(STYLE):
        if data.curves.empty:
            return _placeholder(study, figure, data.records)
        # A single tall column, where a config cuts the other ones, is laid on its side.
        flat = len(data.columns) == 1 and len(data.rows) > 2
        if flat:
            swapped = data.curves.rename(columns={"row": "column", "column": "row"})
            data = replace(data, curves=swapped, rows=data.columns, columns=data.rows)
        rows, columns = len(data.rows), len(data.columns)
        width = max(min(columns * PANEL[0] + 0.5, 13), 6.4)
        height = rows * (PANEL[1] if columns > 2 else PANEL[1] * 1.35)
        small = figures.footnote(study, data.records, figure.get("shows", {}), data.left_out)
        small += figures.notes(figure, data.records)
        share = _share(figure, data, flat)
        few = figures.has_few(figure, data.curves["round"])
        scales = {} if few else cut_scales(data.curves, share)
        if scales:
            small += " A scale begins where its curves are after a twentieth of the rounds; what is below is cut off."
        small, title = textwrap.fill(small, int(width * 21)), wrapped(figure["title"], width)
        labels = _labels(study, axis, data)
        across = fitting(labels, width)
        head = 0.34 + 0.19 * title.count("\n")
        top, bottom = head + 0.1 + 0.18 * -(-len(labels) // across), 0.14 + 0.14 * (small.count("\n") + 1)
        total = height + top + bottom
        made = Figure(figsize=(width, total))
        made.set_layout_engine("constrained", rect=(0, bottom / total, 1, height / total), h_pad=0.06, w_pad=0.06)
        _panels(made, study, figure, data, palette, few, share, scales)
        _head(made, title, total)
        made.legend(
            handles=[_key(label, name, palette, few) for label, name in zip(labels, data.names, strict=True)],
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


def _labels(study: Study, axis: str, data: figures.Content) -> list[str]:
    """List the labels of the curves in the legend, each with the reason if it is not drawn."""
    drawn = set(data.curves["curve"])
    return [
        (name if axis == figures.NETWORK else study.labelled(axis, name))
        + ("" if name in drawn else f" ({undrawn(data, axis, name)})")
        for name in data.names
    ]


def _panels(
    made: Figure,
    study: Study,
    figure: Mapping[str, Any],
    data: figures.Content,
    palette: dict[str, Any],
    few: bool,
    share: Literal["row", "none"],
    scales: Mapping[tuple[str, str], tuple[float, float]],
) -> None:
    """Draw the panels of a figure, rows and columns as in its content.

    `few`: points are marked; `share`: whether those of a row have one scale; `scales`: those that do not show all.
    """
    curves, shows, scatter = data.curves, figure.get("shows", {}), figures.is_scatter(figure)
    axes = made.subplots(len(data.rows), len(data.columns), squeeze=False, sharex="col", sharey=share)
    log = figures.is_logarithmic(figure, curves["round"])
    below, upright = figures.axis_titles(figure)
    for (i, row), (j, column) in itertools.product(enumerate(data.rows), enumerate(data.columns)):
        panel = axes[i, j]
        own = curves.query("row == @row and column == @column")
        _panel(
            panel,
            own,
            palette,
            few,
            figures.reason(study, figure, data, {row, column}),
            whole="predictors" not in shows,
            percent="diagnostic" not in shows,
            scatter=scatter,
        )
        if i == 0:
            panel.set_title(column, color=INK)
        if j == 0:
            panel.set_ylabel(f"{row}\n{upright}" if row else upright)
        if "reliability" in shows and not own.empty:
            panel.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
        if log:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(lambda at, _: f"{at:g}")  # not as mathematics, which STYLE takes for text
        if i == len(data.rows) - 1:
            panel.set_xlabel(below)
        if (row, column) in scales:
            panel.set_ylim(*scales[row, column])
        if (curves.query("row == @row") if share == "row" else own).empty:
            panel.tick_params(labelleft=False)  # a scale of nothing


def undrawn(data: figures.Content, axis: str, name: str) -> str:
    """Return why there is no curve of that name."""
    return figures.why([record for record in data.records if record.field(axis) == name]) or "not run"


def _placeholder(study: Study, figure: Mapping[str, Any], records: Sequence[Record]) -> Figure:
    """Draw a figure without a finished run."""
    made = Figure(figsize=(6.4, 2.4))
    _head(made, wrapped(figure["title"], made.get_figwidth()), 2.4)
    nothing = "none of its runs is finished" if records else "this configuration runs none of its cells"
    made.text(
        0.5,
        0.5,
        f"Nothing to draw: {figures.why(records) or nothing}.",
        ha="center",
        va="center",
        fontsize=9,
        color=MUTED,
    )
    made.text(0.1 / 6.4, 0.08 / 2.4, textwrap.fill(study.notice, 108), fontsize=6.5, color=MUTED, va="bottom")
    return made


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
    """In how many columns the entries of a legend fit into so many inches; they go down first, then across."""
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


def _share(figure: Mapping[str, Any], data: figures.Content, flat: bool) -> Literal["row", "none"]:
    """Return "row" if the panels of a row have one scale: not with datasets side by side, nor in a column on its side."""
    apart = flat or "dataset" in figure["columns"] or (flattens(data.curves) and not figures.is_scatter(figure))
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


def _panel(axes: Axes, data: pd.DataFrame, palette: dict[str, Any], few: bool,
           empty: str, whole: bool, percent: bool, scatter: bool) -> None:  # fmt: skip
    """Draw one panel, the paper's own method on top, as points or lines; `empty`: its text if it has none.

    `whole`: the horizontal axis has rounds, or other whole numbers; `percent`: values end at 0 and 100.
    """
    if data.empty:
        axes.text(0.5, 0.5, empty, transform=axes.transAxes, ha="center", va="center", color=MUTED)
        return
    if scatter:
        for name in (name for name in reversed(palette) if name in set(data["curve"])):
            own = data[data["curve"] == name]
            axes.scatter(own["round"], own["accuracy"], s=10, color=palette[name], linewidths=0, alpha=0.8)
        return
    over = data.groupby(["curve", "round"])["accuracy"].agg(["mean", "std", "count"]).reset_index()
    order = [name for name in reversed(palette) if name in set(over["curve"])]
    sns.lineplot(
        data=over,
        x="round",
        y="mean",
        hue="curve",
        hue_order=order,
        palette={name: palette[name] for name in order},
        size="curve",
        size_order=order,
        sizes={name: _width(name, palette) for name in order},
        estimator=None,
        marker="o" if few else None,
        markersize=3.2,
        markeredgewidth=0,
        legend=False,
        ax=axes,
    )
    for name in order:
        curve = over[over["curve"] == name]
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
            made.set_layout_engine("none")
        for suffix in (".png", ".svg"):
            target = path.with_name(path.name + suffix)
            with replacing(target) as scratch:
                made.savefig(scratch, format=suffix[1:], dpi=160, metadata={"Date": None} if suffix == ".svg" else None)
            written.append(target)
    return written
