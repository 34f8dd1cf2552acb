"""A comparison as files: its tables as text, CSV, Markdown and LaTeX, and its scatter plots as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayesfed.core import files
from bayesfed.results import csv_file, gains, hardware, latex, markdown, statements
from bayesfed.results.formatting import unique
from bayesfed.results.grounds import COLUMNS, PLAIN, QUALITY, SIDES, TIME, Column, Ground, shown_columns
from bayesfed.results.paired import LEVEL, Compared, Comparison, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEST, NEAR = "★", "≈"
MARKS = (
    f"↑ higher is better, ↓ lower. {BEST}: best mean, of the methods with all seeds that count: those of more than half of the methods. {NEAR}: not distinguishable from the best, by the {LEVEL:.0%} t interval of the difference, "
    "paired by seed, and no seed fails; that is missing evidence, not equality. Cells are mean ± sd over seeds; (3 of 5): of the seeds that have a value. ~: a time with other work beside the run, a guess."
)
PAIRS = (("megabytes", "accuracy"), ("predictive", "ece"), ("ece", "ood"))
"""Columns of each scatter plot: across and upright."""
FEW = 10  # methods whose names fit into a chart
ACCURACIES = (10, 30, 50, 70, 80, 90, 95, 97, 98, 99, 99.5)
TICKS = {"accuracy": ACCURACIES, "predictive": ACCURACIES, "ece": (0.1, 0.3, 1, 3, 10, 30)}


@dataclass(frozen=True)
class Cell:
    """A cell as shown: its text, its mark, its mean, or why there is none."""

    text: str
    mark: str
    mean: float | None
    why: str

    @property
    def whole(self) -> str:
        """Mark and text, or why there is none."""
        return f"{self.mark} {self.text}".strip() or self.why


def cell(compared: Compared, method: str) -> Cell:
    """Write the cell of a method; qualities have a spread and, where methods differ, a mark; costs have neither."""
    found = compared.values.get(method)
    if not found:
        return Cell("", "", None, compared.ground.values(compared.column, compared.side, method)[1])
    places, mean = compared.column.decimals, compared.means[method]
    sd = f" ± {statistics.stdev(found.values()):.{places}f}" if len(found) > 1 and compared.column in QUALITY else ""
    telling = compared.column in QUALITY and len(set(compared.means.values())) > 1
    best = compared.whole.get(method) == compared.means[compared.best]
    mark = (BEST if best else NEAR if compared.is_near(method) else "") if telling else ""
    finished = len(compared.ground.finished(method))
    some = f" ({len(found)} of {finished})" if len(found) < finished else ""
    if compared.column is TIME:  # of the runs with nothing beside them, however many
        return Cell(f"{'~' * compared.ground.rough(method)}{mean:.{places}f}", "", mean, "")
    return Cell(f"{mean:.{places}f}{sd}{some}", mark, mean, "")


def with_twins(methods: Iterable[str], known: Collection[str]) -> list[str]:
    """List methods in their order, each followed by its twin without the Bayesian part where that is among the known.

    A twin whose method is not there has its own place.
    """
    methods = list(methods)
    wholes = [method for method in methods if method.removesuffix(PLAIN) not in methods or not method.endswith(PLAIN)]
    return [one for method in wholes for one in (method, f"{method}{PLAIN}") if one == method or one in known]


def ordered(comparison: Comparison, place: int) -> list[str]:
    """List the methods of a ground, the most accurate first, each with its plain twin below it."""
    means, methods = comparison.compared["accuracy"][place].means, comparison.grounds[place].methods(comparison.side)
    return with_twins(sorted(methods, key=lambda method: -means.get(method, -1.0)), methods)


def title(ground: Ground) -> str:
    """Describe a ground, and what its runs were made on."""
    alpha = f", Dirichlet α {ground.alpha}" if ground.alpha else ""
    told = f"{ground.name}: {ground.dataset}{alpha}, {ground.model}, {ground.clients} clients, {ground.rounds} rounds"
    runs = [trial for of in ground.trials.values() for trial in of.values() if trial.summary]
    images = sorted({count for trial in runs for count in trial.summary.get("test_images", [])})
    sizes = f"; {' to '.join(map(str, unique([images[0], images[-1]])))} test images a client" if images else ""
    return f"{told}{sizes}; on {hardware.places(trial.run.provenance for trial in runs)}"


def seeds(ground: Ground, side: str, method: str) -> str:
    """Count a method's finished runs of the seeds that count, and those that fail: `5`, `3 of 5`, or `5, 1 fails`."""
    trials, done, failing = ground.trials[method], len(ground.finished(method)), ground.failing[side].get(method)
    count = str(done) if done == len(trials) else f"{done} of {len(trials)}"
    return f"{count}, {failing} fail{'s' if failing == 1 else ''}" if failing else count


def table(comparison: Comparison, place: int, columns: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """Return the head and rows of a ground's table."""
    head = ["Method", "Seeds", *(column.head for column in columns)]
    ground = comparison.grounds[place]
    rows = [
        [
            method,
            seeds(ground, comparison.side, method),
            *(cell(comparison.compared[one.name][place], method).whole for one in columns),
        ]
        for method in ordered(comparison, place)
    ]
    return head, rows


def differences(comparison: Comparison, method: str, other: str) -> tuple[list[str], list[list[str]]]:
    """List a method's differences to another: a row a ground, with their intervals and the number of seeds."""
    columns = [one for one in QUALITY if any(each.means for each in comparison.compared[one.name])]
    rows = []
    for place, ground in enumerate(comparison.grounds):
        found = [comparison.compared[one.name][place].difference(method, other) for one in columns]
        if any(found):
            told = [shown(apart, one) if apart else "" for apart, one in zip(found, columns, strict=True)]
            rows.append([ground.name, str(max(one.seeds for one in found if one)), *told])
    return ["Ground", "Seeds", *(one.head for one in columns)], rows


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table for a terminal, columns under each other."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )


def numbers(comparison: Comparison) -> list[dict[str, str]]:
    """List a row a ground and method: each column's mean, sd and number of seeds, its difference to the baseline, the
    p-value of that, corrected for the number of methods, and whether it is better than the baseline and its plain twin.
    """
    found, told = [], gains.told(comparison)
    for place, ground in enumerate(comparison.grounds):
        pairs = [(method, ground.baseline) for method in comparison.methods]
        corrected = {column.name: comparison.compared[column.name][place].corrected(pairs) for column in QUALITY}
        for method in ordered(comparison, place):
            row = {"ground": ground.name, "models": comparison.side, "method": method}
            for column in COLUMNS:
                one = comparison.compared[column.name][place]
                values, apart = one.values.get(method, {}), one.difference(method, ground.baseline)
                guess = column is TIME and ground.rough(method)
                of_column: dict[str, float | None] = {
                    "": None if guess else one.means.get(method),
                    "_sd": statistics.stdev(values.values()) if len(values) > 1 else None,
                    "_difference": apart.mean if apart and not guess else None,
                    "_low": apart.low if apart and not guess else None,
                    "_high": apart.high if apart and not guess else None,
                    "_p": corrected.get(column.name, {}).get((method, ground.baseline)),
                }
                row |= {
                    f"{column.name}{end}": "" if value is None else f"{value:.6g}" for end, value in of_column.items()
                }
                row[f"{column.name}_seeds"] = str(len(values))
            for end in (gains.BASELINE, gains.TWIN):
                for name in (f"{quality}_{end}" for quality in gains.QUALITIES):
                    row[name] = told.get((ground.name, method), {}).get(name, "")
            found.append(row)
    return found


def tables(comparisons: Sequence[Comparison]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Yield title, head and rows of the table of each ground and side."""
    return [
        (f"{SIDES[one.side]}, {title(ground)}", *table(one, place, shown_columns(one.grounds, one.side)))
        for one in comparisons
        for place, ground in enumerate(one.grounds)
        if ground.methods(one.side)
    ]


def gains_tables(comparisons: Sequence[Comparison]) -> list[gains.Table]:
    """Return title, head and rows of the tables that say who is better and worse than the baseline and than plain twins."""
    baseline = comparisons[0].grounds[0].baseline
    return gains.tables([row for one in comparisons for row in numbers(one)], baseline)


def legend(comparisons: Sequence[Comparison]) -> str:
    """Say what each column is that any table shows, a line a column."""
    used = [column for one in comparisons for column in shown_columns(one.grounds, one.side)]
    return "\n".join(f"{column.head}: {column.words}." for column in COLUMNS if column in used)


def write(comparisons: Sequence[Comparison], out: Path) -> list[Path]:
    """Write `comparison.csv`, `.md`, `.tex`, `.png` and `.svg` into a folder; returns the files."""
    rows = [row for one in comparisons for row in numbers(one)]
    found = tables(comparisons)
    baseline = comparisons[0].grounds[0].baseline
    under = f"{MARKS} Differences are to {baseline}."
    text = "\n".join(
        [
            *(f"## {title}\n\n{markdown.table(head, of)}" for title, head, of in gains.tables(rows, baseline)),
            f"{gains.KEY}\n\n{MARKS}\n",
            *(f"## {one[0].replace(': ', chr(10) * 2, 1)}.\n\n{markdown.table(*one[1:])}" for one in found),
            *(f"- {line}" for line in statements.lines(comparisons)),
        ]
    )
    files.write_text(out / "comparison.md", f"{text}\n")
    files.write_text(out / "comparison.tex", "\n".join(latex.table(*one, under) for one in found))
    written = [
        csv_file.write(out / "comparison.csv", list(rows[0]), rows),
        out / "comparison.md",
        out / "comparison.tex",
    ]
    return [*written, *picture(comparisons[0], out / "comparison")]


def spread(axes: Axes, way: str, column: str) -> None:
    """Give an axis, x or y, of accuracies or ECE in percent its room near 100 or 0, where most methods are: logarithms of
    the error or of the ECE, with ticks at round values.
    """
    from matplotlib.ticker import MaxNLocator

    set_scale, limits = getattr(axes, f"set_{way}scale"), getattr(axes, f"get_{way}lim")
    if column in ("accuracy", "predictive"):
        set_scale("function", functions=(lambda value: -np.log(101 - value), lambda place: 101 - np.exp(-place)))
    elif column == "ece":
        set_scale("log")
    if column in TICKS:
        low, high = limits()
        ticks = [at for at in TICKS[column] if low <= at <= high]
        if len(ticks) < 3:
            ticks = [at for at in MaxNLocator(4).tick_values(low, high) if low <= at <= high]
        axes.set(**{f"{way}ticks": ticks, f"{way}ticklabels": [f"{at:g}" for at in ticks]})
        axes.minorticks_off()


def picture(comparison: Comparison, path: Path) -> list[Path]:
    """Draw the scatter plots of each ground, a point a method.

    Of more than FEW those are named that have the best mean of an axis, and the baseline.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from bayesfed.results import plots

    columns = {column.name: column for column in COLUMNS}
    with matplotlib.rc_context(plots.STYLE):
        made = Figure(figsize=(9, 2.6 * len(comparison.grounds)), layout="constrained")
        axes = made.subplots(len(comparison.grounds), len(PAIRS), squeeze=False)
        for place, ground in enumerate(comparison.grounds):
            for at, (across, upright) in zip(axes[place], PAIRS, strict=True):
                x, y = (comparison.compared[name][place] for name in (across, upright))
                known = [method for method in x.means if method in y.means]
                of_many = [method for method in known if method in (ground.baseline, x.best, y.best)]
                named = known if len(known) <= FEW else of_many
                for method in known:
                    own = method == ground.baseline
                    at.scatter(
                        x.means[method], y.means[method], color="C1" if own else "C0", s=16, zorder=3 if own else 2
                    )
                spread(at, "x", across)
                spread(at, "y", upright)
                for method in named:
                    spot = (x.means[method], y.means[method])
                    left = at.transAxes.inverted().transform(at.transData.transform(spot))[0] < 0.5
                    away = (4 if left else -4, -9 if method == ground.baseline else 3)
                    side = "left" if left else "right"
                    text = at.annotate(method, spot, away, textcoords="offset points", ha=side, fontsize=7)
                    text.set_in_layout(False)
                title = f"{ground.name}, {SIDES[comparison.side].lower()}"
                at.set(xlabel=columns[across].head, ylabel=columns[upright].head, title=title)
        return plots.save(made, path)
