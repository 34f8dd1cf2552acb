"""Our numbers beside the published ones, cell by cell; a verdict only where run and data are the paper's in everything."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError
from bayesfed.results import cells, csv_file, selection
from bayesfed.results.cells import Cell
from bayesfed.results.formatting import unique
from bayesfed.results.records import DIVERGED, Record
from bayesfed.results.statistics import Statistic, read_metric
from bayesfed.results.study import Study

KEYS = ("dataset", "setting", "alpha", "client", "model", "method", "metric")
COLUMNS = (
    "published", "mean", "sd", "seeds", "rounds", "difference", "verdict",
    "last5", "local_epochs", "batch_size", "dataset_used", "published_sd", "note",
)  # fmt: skip

Published = Sequence[dict[str, str]]
"""Published numbers: rows of a `<paper>.published.csv`."""


def read_published(path: Path) -> list[dict[str, str]]:
    """Read the published numbers in a `<paper>.published.csv`; none where there is no such file, or a value is
    empty. A column `sd` may have what is published of their spread, and `unplanned` why no run here can be in a cell.

    Raises InputError when it lacks a column or has a cell twice, when a row has more or fewer fields than there are columns,
    when a value is no number, for accuracies as fractions, and for what is no UTF-8.
    """
    if not path.is_file():
        return []
    rows = csv_file.read(path)
    wanted = ["item", *KEYS, "value"]
    missing = [name for name in wanted if rows and name not in rows[0]]
    if missing:
        raise InputError(f"no column '{missing[0]}'; expected {','.join(wanted)}")
    known = [row for row in rows if row["value"]]
    once = set()
    for row in known:
        cell = tuple(text for key, text in row.items() if key not in ("value", "sd", "unplanned"))
        if cell in once:
            raise InputError(f"{', '.join(filter(None, cell))}: this cell occurs twice; keep one")
        once.add(cell)
    for row, column in itertools.product(known, ("value", "sd")):
        check_value(row, column)
    for item in unique(row["item"] for row in known):
        accuracies = [float(row["value"]) for row in known if row["item"] == item and "accuracy" in row["metric"]]
        if accuracies and max(accuracies) <= 1 and any(0 < value < 1 for value in accuracies):
            raise InputError(f"no accuracy of {item} is above 1: these are fractions; write percent, 51.26 for 0.5126")
    return known


def check_value(row: Mapping[str, str], column: str) -> None:
    """Raise InputError where a column of a row, value or sd, holds no number, or no percentage for an accuracy."""
    try:
        value = float(row.get(column) or 0)
    except ValueError:
        value = math.nan
    named = ", ".join(f"{key} {row[key]}" for key in ("item", *KEYS) if row[key])
    if not math.isfinite(value):
        raise InputError(f"{column} '{row[column]}' of {named}: expected a number, or nothing where none is published")
    if "accuracy" in row["metric"] and not 0 <= value <= 100:
        raise InputError(f"{column} '{row[column]}' of {named}: expected a percentage, 0 to 100")


@dataclass(frozen=True)
class Compared:
    """A cell beside the published numbers: its row of the comparison, and what is to be said of it beside how many
    seeds it has."""

    cell: Cell
    row: Mapping[str, str]
    remarks: Sequence[str]


def compare(
    study: Study, name: str, table: Mapping[str, Any], rows: Sequence[cells.Row], published: Published
) -> list[Compared]:
    """Compare each cell of a table, in the paper's order, with the number that is published of its keys.

    Where a cell has no client but the published rows have, the published value is their mean (our number, not the
    paper's; the note says so). A cell without a published number has none, and no verdict. Behind them come the published
    numbers that no run here can have a cell for, with the reason.
    """
    items = table.get("published", [name])
    candidates = [row for row in published if row["item"] in items]
    found = [(cell, published_of(study, cell, candidates), "") for _, of_row in rows for cell in of_row]
    found += [(unplanned(study, row), [row], row["unplanned"]) for row in candidates if row.get("unplanned")]
    return [beside(study, table, cell, known, why) for cell, known, why in found]


def unplanned(study: Study, row: Mapping[str, str]) -> Cell:
    """Return the cell of a published number that no run here can have; it has no records."""
    _, statistic = read_metric(row["metric"], study.spec.get("statistics", {}))
    named = {key: row[key] for key in row if key not in ("item", "metric", "value", "sd", "unplanned") and row[key]}
    return Cell(named, "", [], row["metric"], statistic)


def beside(study: Study, table: Mapping[str, Any], cell: Cell, known: Published, why: str) -> Compared:
    """Compare a cell with its published numbers; `why` no run can be in it."""
    value = statistics.fmean(float(row["value"]) for row in known) if known else None
    score = cell.score
    places = 1 if cell.statistic.decimals is None else cell.statistic.decimals
    # As it is shown, lest a point away be more than a point by a rounding.
    difference = None if score.mean is None or value is None else round(score.scale * score.mean - value, places)
    stand_in = any(record.used != record.dataset for record in cell.records)
    remarks = [*remarks_on(study, cell, len(known)), *([why] if why else [])]
    count = "" if score.seeds == score.planned and not score.missing else f"seeds: {score.count()}"
    notes = [*remarks, count, table.get("note", "")]
    own = {"metric": cell.metric, **{key: study.written(key, value) for key, value in cell.keys.items()}}
    keys = {key: unique(row[key] for row in known) or [own.get(key, "")] for key in KEYS}
    keys |= {key: [own.get(key, "")] for key in axes_of(table)}
    row = {
        **{key: values[0] if len(values) == 1 else "" for key, values in keys.items()},
        "published": "" if value is None else score.number(value / score.scale),
        "mean": score.number(score.mean),
        "sd": score.number(score.sd),
        "seeds": str(score.seeds),
        "rounds": cells.budget(cell.records, "rounds"),
        # A number on other data is no difference to the published numbers.
        "difference": "" if difference is None or stand_in else f"{difference:+.{places}f}",
        "verdict": verdict(cell.records, difference, cell.statistic)
        if score.mean is not None or not score.missing
        else " or ".join(score.missing),
        "last5": cell.last5.number(cell.last5.mean) if cell.statistic.over_rounds else "",
        "local_epochs": cells.budget(cell.records, "local_epochs"),
        "batch_size": cells.budget(cell.records, "batch_size"),
        "dataset_used": cells.used(study, cell.records),
        "published_sd": known[0].get("sd", "") if len(known) == 1 else "",
        "note": "; ".join(note for note in notes if note),
    }
    return Compared(cell, row, remarks)


def published_of(study: Study, cell: Cell, published: Published) -> list[dict[str, str]]:
    """Return the published numbers that belong to a cell, by its metric and its keys as labels."""
    labels = {key: study.written(key, value) for key, value in cell.keys.items()}
    of_metric = (row for row in published if row["metric"] == cell.metric)
    return [row for row in of_metric if all(row.get(key) == value for key, value in labels.items())]


def verdict(records: Sequence[Record], difference: float | None, statistic: Statistic) -> str:
    """Judge a difference, as the statistic is shown (ours minus the published numbers; None: no result, or nothing
    published)."""
    if not any(record.done for record in records):
        return "not run"
    if all(record.diverged for record in records if record.done):
        return DIVERGED
    why = unique(record.missing for record in records if record.done and not record.diverged)
    if all(why):
        return " or ".join(why)
    if difference is None:
        return "not published"
    if lost := sum(record.done and bool(record.diverged) for record in records):
        return f"{lost} of {sum(record.done for record in records)} {DIVERGED}"
    if any(record.used != record.dataset for record in records):
        return "stand-in data"
    if not all(record.is_the_papers for record in records):
        return "not the paper's run"
    if abs(difference) <= statistic.close:
        return f"within {statistic.close:g}" + (f" {statistic.unit}" if statistic.close == 1 else "")
    return "higher" if difference > 0 else "lower"


def remarks_on(study: Study, cell: Cell, known: int) -> list[str]:
    """List the remarks on a cell beside how many seeds it has; `known`: how many published numbers it has."""
    notes = [
        selection.chosen(cell.records),
        cell.of_rounds,
        study.changes(cell.records),
        cell.caveat,
        "" if cell.score.missing else ", ".join(cell.score.without()),
        f"published value: mean of {known} published cells" if known > 1 else "",
    ]
    return [note for note in notes if note]


def axes_of(table: Mapping[str, Any]) -> list[str]:
    """List the keys of a table that published numbers have no column for: axes such as `lr`."""
    asked = [*table["rows"], *(key for column in table["columns"] for key in cells.keys_of(column))]
    return [key for key in unique(asked) if key not in KEYS]
