"""Data of a paper's figures: accuracy over rounds, along an axis, or over confidence, in panels of curves.

`plots.py` draws a picture of it, the report a chart.
"""

import itertools
import math
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bayesfed.results import cells, figure_axes, selection
from bayesfed.results.formatting import unique
from bayesfed.results.records import Record, of_metric, select
from bayesfed.results.run_records import finite, mean_of
from bayesfed.results.statistics import BEST
from bayesfed.results.study import Study
from bayesfed.results.whole_run import UNRECORDED

COLUMNS = ["row", "column", "curve", "seed", "round", "accuracy", "run"]
NETWORK = "network"
"""In place of an axis of runs: curves are the networks of a run, each with its own error."""
Points = Mapping[Any, float]
"""The points of a curve: place on the horizontal axis -> accuracy, or the like."""
Line = tuple[str, str, str, str, str]
"""A curve of a run: row and column of its panel, its name, its seed, and its run."""
PALETTE = (
    "#d55e00", "#0173b2", "#de8f05", "#029e73", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9",
)  # fmt: skip
"""Apart for colour-blind readers, the strong vermilion first (seaborn's `colorblind`, which takes a second to import)."""
COLOURS = len(PALETTE)


@dataclass(frozen=True)
class Content:
    """The content of a figure: its curves (percent, long form), their names in order, its panels, and all its records.

    `drawn`: the runs that curves are of. `left_out`: the finished ones that are not drawn, since fewer curves of their panel
    have their seed than another.
    """

    curves: pd.DataFrame
    names: list[str]
    rows: list[str]
    columns: list[str]
    records: list[Record]
    drawn: Set[str]
    left_out: Set[str]


def content(study: Study, figure: Mapping[str, Any]) -> Content:
    """Return the content of a figure; its curves have a row for each point: panel, curve, seed, round, percent, run.

    Curves are to be compared, and seeds differ by more than methods: of a panel those seeds are drawn that most of its
    curves have, and others only of a curve that has none of these. Only finished runs give curves; one that diverged
    gives its own, as far as it came, only where no other seed of its line did better, since tables leave it out of their
    means, too. Panels are all those that the plan asks for. A figure's YAML: `experiment`, `accuracy` (one of LEVELS),
    `where`, `rows`, `columns`, `methods`, `curves` (the axis that tells its curves apart; unless given, `method`), `x`
    (an axis of numbers to put below, against each run's best accuracy, in place of rounds), `shows`, `search`
    (results/selection.py), `note`, `title`. With an `x`, the column `round` holds its values.

    `shows` puts something else in the place of the accuracy over rounds: {diagnostic: NAME, label: WORDS}, what the method's
    server has logged under that name; {metric: NAME, label: WORDS}, a metric of a predictor, as `predictive_ece`, in the
    rounds in which it is measured; {predictors: NAME, label: WORDS, round: R}, the accuracy in round R (-1: the last) of
    the server's predictors "NAME 0", "NAME 0.5" and so on, along these numbers; {labelled: true, label: WORDS}, the accuracy
    along the labelled images that all clients together trained on, in the last round with so many; {megabytes: true, label:
    WORDS}, the accuracy along the megabytes sent until then, both ways; {reliability: NAME,
    label: WORDS}, the accuracy of its predictor NAME in the last round along the middles of bins of confidence in percent;
    {against: LEVEL, label: WORDS}, a point a run: its best accuracy, and below it that of another level in the same round,
    in percent; or {error: NAME, label: WORDS}, a point for every network of which the server has logged a value as "NAME
    network": its accuracy, and below it that value; the first words of networks tell them apart, in place of methods.
    """
    level = f"{figure['accuracy']}_accuracy_best"
    where = {"method": figure["methods"], **figure.get("where", {})}
    chosen = selection.choose(study, select(study.of_experiments(figure["experiment"]), where), figure.get("search"))
    records, _ = of_metric(chosen, level, {})
    if not {"reliability", "megabytes", "metric"}.isdisjoint(figure.get("shows", {})):
        records = [replace(r, missing=why_bare(r, points(r, figure))) for r in records]
    axis, scale = axis_of(figure), figure_axes.scale_of(figure)
    whole = undiverged(study, figure, records)
    drawn, left_out = {run for (*_, run), _ in whole}, set[str]()
    if figure_axes.is_scatter(figure):
        data = [(*line, at, scale * value) for line, values in whole for at, value in values.items()]
    else:
        lines: dict[Line, list[Points]] = {}
        for line, values in whole:
            lines.setdefault(line, []).append(values)
        kept = of_shared_seeds(lines)
        left_out = drawn - {run for *_, run in kept}
        drawn -= left_out
        data = [(*line, at, scale * value) for line in kept for at, value in mean_of(lines[line]).items()]
    named = sorted(one[2] for one in data) if axis == NETWORK else [record.field(axis) for record in records]
    names = unique(named)
    curves = pd.DataFrame(data, columns=[*COLUMNS[:4], "run", *COLUMNS[4:6]])[COLUMNS]
    return Content(
        curves=together(curves) if "megabytes" in figure.get("shows", {}) else curves,
        names=[name for name in figure["methods"] if name in names] if axis == "method" else names,
        rows=unique(panel(study, record, figure["rows"]) for record in records),
        columns=unique(panel(study, record, figure["columns"]) for record in records),
        records=records,
        drawn=drawn,
        left_out=left_out,
    )


def together(curves: pd.DataFrame) -> pd.DataFrame:
    """Put the n-th points of a curve's runs at their mean place: seeds may send unlike numbers of bytes in a round."""
    curve = ["row", "column", "curve"]
    nth = curves.groupby([*curve, "run"]).cumcount()
    return curves.assign(round=curves.groupby([*curve, nth])["round"].transform("mean"))


def undiverged(study: Study, figure: Mapping[str, Any], records: Iterable[Record]) -> list[tuple[Line, Points]]:
    """List the curves of records that have a value; of runs that diverged only if no other run has that curve."""
    found = []
    for record in records:
        row, column = (panel(study, record, figure[side]) for side in ("rows", "columns"))
        named = named_points(record, figure)
        found += [(record, (row, column, curve), values) for curve, values in named if values]
    whole = {line for record, line, _ in found if not record.diverged}
    return [
        ((*line, record.seed, record.folder.name), values)
        for record, line, values in found
        if not (record.diverged and line in whole)
    ]


def of_shared_seeds(lines: Iterable[Line]) -> list[Line]:
    """Of each curve of a panel the seeds that most curves there have; a curve of other seeds alone is left out."""
    lines = list(lines)
    curves: dict[tuple[str, str], dict[str, set[str]]] = {}  # the seeds of each curve, by panel
    for row, column, curve, seed, _ in lines:
        curves.setdefault((row, column), {}).setdefault(curve, set()).add(seed)
    shared = {}
    for side, of_panel in curves.items():
        counts = Counter(itertools.chain(*of_panel.values()))
        shared[side] = {seed for seed, count in counts.items() if count == max(counts.values())}
    return [line for line in lines if line[3] in shared[line[0], line[1]]]


def axis_of(figure: Mapping[str, Any]) -> str:
    """Return what tells a figure's curves apart: an axis of its runs, or the networks of each run."""
    return NETWORK if "error" in figure.get("shows", {}) else figure.get("curves", "method")


def named_points(record: Record, figure: Mapping[str, Any]) -> list[tuple[str, Points]]:
    """Return a record's curve and its name; if networks are told apart, a point for each."""
    if axis_of(figure) != NETWORK:
        return [(record.field(axis_of(figure)), points(record, figure))]
    found = record.run.errors(figure["shows"]["error"]) if record.done else []
    return [(network.split()[0], {at: value}) for network, at, value in found if math.isfinite(value)]


def points(record: Record, figure: Mapping[str, Any]) -> Points:
    """Return a record's curve: by round, or by the number on the horizontal axis in its place."""
    shows = figure.get("shows", {})
    if "diagnostic" in shows:
        return finite(record.run.diagnostics.get(shows["diagnostic"], {})) if record.done else {}
    if "metric" in shows:
        return record.along_rounds(shows["metric"])
    if "predictors" in shows:
        at = record.rounds if shows["round"] == -1 else shows["round"]
        return record.run.along(shows["predictors"], at) if record.done else {}
    if "labelled" in shows:
        return record.along_labelled()
    if "megabytes" in shows:
        return record.along_megabytes()
    if "reliability" in shows:
        return record.reliability(shows["reliability"])
    if "against" in shows:
        best, other = record.value(BEST), record.at_best(figure["accuracy"], shows["against"])
        return {} if best is None or other is None else {100 * other: best}
    if "x" in figure:
        best = record.value(BEST)
        return {} if best is None else {float(record.field(figure["x"])): best}
    return record.curve()


def why_bare(record: Record, curve: Points) -> str:
    """Return why a record has no curve of what not all records have: no accuracy, or it is from before that."""
    return record.missing or (UNRECORDED if record.done and not record.diverged and not curve else "")


def panel(study: Study, record: Record, keys: Iterable[str]) -> str:
    """Return a panel's title from a record's values of `keys`; a stand-in dataset is named as such."""
    words = []
    for key in keys:
        value = record.field(key)
        if key == "dataset":
            words.append(study.stand_ins([record]) or study.labels(value))
        elif key in ("alpha", "client"):
            words.append(f"{'alpha =' if key == 'alpha' else 'client'} {study.written(key, value)}")
        else:
            words.append(study.labelled(key, value))
    return ", ".join(words)


def footnote(study: Study, data: Content, shows: Mapping[str, Any] = types.MappingProxyType({})) -> str:
    """Write the small print: what line and band are, how many runs are behind them, budget, notice."""
    records, left_out = data.records, data.left_out
    drawn = [record for record in records if record.folder.name in data.drawn]
    seeds = len(unique(record.seed for record in drawn))
    asked = {record.folder for record in records}
    done = {record.folder for record in records if record.done}
    most = "" if asked == done else "at most "
    if "against" in shows:
        line = f"A point: a run, in the round that is best for it; {seeds} seed{'s' if seeds != 1 else ''}."
    elif "error" in shows:
        line = f"A point: a network of a run; {seeds} seed{'s' if seeds != 1 else ''}."
    else:
        many = f"{most}{seeds} seeds{', not the same ones for all methods' * unlike(drawn)}"
        line = f"Line: mean over {many}; band: ± one standard deviation." if seeds > 1 else "One seed."
        line += (
            f" In a panel the seeds that most of its curves have; finished runs of others: {len(left_out)}."
            if left_out
            else ""
        )
    missing = "" if asked == done else f"{len(done)} of {len(asked)} runs finished."
    shown = [record for record in records if record.done] or records
    rounds, epochs, batch = (cells.budget(shown, field) for field in ("rounds", "local_epochs", "batch_size"))
    stopped = unique(f"{r.method} seed {r.seed} in round {r.diverged}" for r in records if r.diverged)
    gone = any(r.diverged and r.folder.name not in data.drawn for r in records)
    out = ", left out where another seed has not" if gone else ""
    diverged = f"Diverged{out}: {', '.join(stopped)}." if stopped else ""
    none = f"Without a curve: {'; '.join(bare)}." if (bare := without(study, records)) else ""
    if "reliability" in shows:
        line += " Accuracy of the last round by confidence, in bins of equal width with a thousandth of the images or more; dashed: where they are equal."
    changes = study.changes(shown)
    local = "" if epochs == "0" else f", local epochs {epochs}"  # 0 where a round is so many mini-batches
    own = f"{rounds} round{'s' * (rounds != '1')}{local}, batch size {batch}"
    told = f"Not the paper's run or data: {changes}." if changes else f"{own}, the paper's budget."
    if not study.reproduces:
        told = f"{own}{f'; other than its file asks for: {changes}' if changes else ''}."
    return " ".join(part for part in (line, missing, diverged, none, told if records else "", study.notice) if part)


def unlike(records: Iterable[Record]) -> bool:
    """Return True if finished runs of methods of one cell have different seeds."""
    seeds: dict[tuple[object, ...], dict[str, set[str]]] = {}
    for record in records:
        cell = (record.dataset, record.setting, record.alpha, record.stragglers, tuple(record.axes.items()))
        seeds.setdefault(cell, {}).setdefault(record.method, set()).add(record.seed)
    return any(one != other for of_methods in seeds.values() for one, other in itertools.pairwise(of_methods.values()))


def notes(figure: Mapping[str, Any], records: Iterable[Record]) -> str:
    """Write what a figure's own YAML notes, and what its search has chosen, in how many points."""
    note = figure.get("note", "")
    found = [note[0].upper() + note[1:].rstrip(".") + "."] if note else []
    if "search" in figure:
        found.append(selection.words(figure["search"]))
        if counts := selection.counts(records):
            found.append(f"Chosen, in so many cells: {counts}; each cell's choice is in the table beside this figure.")
    return "".join(f" {one}" for one in found)


def choices(
    study: Study, figure: Mapping[str, Any], records: Iterable[Record]
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the table beside a figure with a search: the choice in each cell that it shows, "" if nothing was run."""
    found = {}
    for record in records:
        cell = {field: record.field(field) for field in ("dataset", "model", "method", "alpha")}
        cell["axes"] = ", ".join(
            study.labelled(axis, value) for axis, value in record.axes.items() if axis not in figure["search"]["over"]
        )
        found[tuple(cell.values())] = {**cell, "chosen": record.chosen}
    return ["dataset", "model", "method", "alpha", "axes", "chosen"], list(found.values())


def without(study: Study, records: Iterable[Record]) -> list[str]:
    """List the finished records that have no curve, by method, and why: `FedAvg, client 3 (never took part)`."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record.missing:
            clients = found.setdefault((record.method, record.missing), [])
            clients += [f"client {study.written('client', record.client)}"] if record.client != "global" else []
    return [f"{', '.join([method, *unique(clients)])} ({why})" for (method, why), clients in found.items()]


def places(study: Study, axis: str, names: Iterable[str]) -> dict[str, int]:
    """Return the place of each curve among the colours; the paper's own method, or else the first curve, has place 0.

    A method has the same in all figures of its paper: one of its own while there are any, then one of a method that is in no
    figure and no experiment beside it. Where that cannot be, a figure counts its own curves.
    """
    first = sorted(names, key=lambda name: name != study.own_method)
    if axis != "method":
        return {name: place for place, name in enumerate(first)}
    methods = {name: {*of_one} for name, of_one in study.methods_of.items()}  # of each experiment, and of each figure
    for name, figure in study.spec.get("figures", {}).items():
        methods[f"figure {name}"] = set(figure.get("methods", ()))
    found: dict[str, int] = {}
    for name in sorted(study.spec["methods"], key=lambda name: name != study.own_method):
        beside = set().union(*(others for others in methods.values() if name in others))
        free = [place for place in range(COLOURS) if place not in {found.get(other) for other in beside}]
        if not free:
            return {name: place for place, name in enumerate(first)}
        found[name] = next((place for place in free if place not in found.values()), free[-1])
    return {name: found[name] for name in first}


def colours(places: Mapping[str, int]) -> dict[str, str]:
    """Return the colour of each curve by its place."""
    return {name: PALETTE[place % COLOURS] for name, place in places.items()}


def why(records: Iterable[Record]) -> str:
    """Return why finished records have no accuracy; "" if none of them has a reason."""
    return " or ".join(unique(record.missing for record in records if record.missing))
